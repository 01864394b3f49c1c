//! The part of the Postgres protocol that is needed to log in and to run one statement.
//!
//! Written by hand so that this crate, which every test depends on, needs no driver and no async runtime.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// How long to wait for a response. The slowest is that of `create database`, which copies files.
const RESPONSE_LIMIT: Duration = Duration::from_secs(30);
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// The longest accepted message. Errors and notices are far shorter.
const LARGEST_MESSAGE: usize = 1024 * 1024;

/// The most messages of one response. A login has about twenty.
const MOST_MESSAGES: usize = 1000;

/// Protocol 3.0, which every supported Postgres implements.
const PROTOCOL: i32 = 3 << 16;

/// Why a login or a statement failed.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The server cannot be reached, or is not ready: try again.
    NotYet,
    /// The database does not exist.
    NoDatabase,
    /// The database exists already.
    Duplicate,
    /// Any other error, with the server's message.
    Other(String),
}

/// Logs in to `database` and, if given, runs one `statement` there.
pub(crate) fn execute(port: u16, user: &str, database: &str, statement: Option<&str>) -> Result<(), Refusal> {
    let mut server = connect(port).map_err(|_| Refusal::NotYet)?;
    let mut startup = PROTOCOL.to_be_bytes().to_vec();
    for text in ["user", user, "database", database, ""] {
        startup.extend_from_slice(text.as_bytes());
        startup.push(0);
    }
    send(&mut server, None, &startup).map_err(|_| Refusal::NotYet)?;
    read_response(&mut server)?;
    if let Some(statement) = statement {
        let mut query = statement.as_bytes().to_vec();
        query.push(0);
        send(&mut server, Some(b'Q'), &query).map_err(|_| Refusal::NotYet)?;
        read_response(&mut server)?;
    }
    // An error is ignored: the statement has succeeded.
    let _ = send(&mut server, Some(b'X'), &[]);
    Ok(())
}

fn connect(port: u16) -> io::Result<TcpStream> {
    let server = TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), CONNECT_LIMIT)?;
    server.set_read_timeout(Some(RESPONSE_LIMIT))?;
    server.set_write_timeout(Some(RESPONSE_LIMIT))?;
    Ok(server)
}

fn send(server: &mut TcpStream, kind: Option<u8>, body: &[u8]) -> io::Result<()> {
    let length = i32::try_from(body.len() + 4).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let mut message: Vec<u8> = kind.into_iter().collect();
    message.extend_from_slice(&length.to_be_bytes());
    message.extend_from_slice(body);
    server.write_all(&message)
}

/// Reads until the server is ready for the next statement.
fn read_response(server: &mut TcpStream) -> Result<(), Refusal> {
    let mut refusal = None;
    for _ in 0..MOST_MESSAGES {
        // After an error at login the server closes the connection: the error counts, not the closed connection.
        let Ok((kind, body)) = receive(server) else {
            return Err(refusal.unwrap_or(Refusal::NotYet));
        };
        match kind {
            b'Z' => return refusal.map_or(Ok(()), Err),
            b'E' => refusal = Some(refusal_in(&body)),
            b'R' if body != [0; 4] => {
                return Err(Refusal::Other("the server requires a password".to_owned()));
            }
            _ => {}
        }
    }
    Err(Refusal::Other(format!("more than {MOST_MESSAGES} messages")))
}

fn receive(server: &mut TcpStream) -> io::Result<(u8, Vec<u8>)> {
    let mut kind = [0; 1];
    let mut length = [0; 4];
    server.read_exact(&mut kind)?;
    server.read_exact(&mut length)?;
    let length = usize::try_from(i32::from_be_bytes(length)).ok().and_then(|length| length.checked_sub(4));
    let Some(length) = length.filter(|length| *length <= LARGEST_MESSAGE) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let mut body = vec![0; length];
    server.read_exact(&mut body)?;
    Ok((kind[0], body))
}

/// Reads an error message. Each of its fields is a letter and a text: C is the code, M the message.
fn refusal_in(body: &[u8]) -> Refusal {
    let field = |letter: u8| {
        let mut fields = body.split(|byte| *byte == 0);
        let text = fields.find_map(|field| field.strip_prefix(&[letter]));
        String::from_utf8_lossy(text.unwrap_or_default()).into_owned()
    };
    match field(b'C').as_str() {
        "57P03" => Refusal::NotYet,
        "3D000" => Refusal::NoDatabase,
        "42P04" => Refusal::Duplicate,
        _ => Refusal::Other(field(b'M')),
    }
}

#[cfg(test)]
mod tests {
    use super::{Refusal, refusal_in};

    #[test]
    fn the_code_of_an_error_decides() {
        let body = |code: &str| format!("SFATAL\0VFATAL\0C{code}\0Mno such thing\0\0").into_bytes();

        assert!(matches!(refusal_in(&body("57P03")), Refusal::NotYet));
        assert!(matches!(refusal_in(&body("3D000")), Refusal::NoDatabase));
        assert!(matches!(refusal_in(&body("42501")), Refusal::Other(words) if words == "no such thing"));
        assert!(matches!(refusal_in(b""), Refusal::Other(words) if words.is_empty()));
    }
}
