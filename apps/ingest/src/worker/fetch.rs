//! Reads a source over HTTP into a file.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, HOST};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use url::Url;

use crate::error::Error;
use crate::uploads::{Upload, Uploads};

/// How long a connection and the head of the response may take.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Fetches a URL into the folder of uploads. Every failure may pass: the source is read again.
pub(crate) async fn get(location: &str, uploads: &Uploads) -> Result<Upload, Error> {
    let failed = |problem: String| Error::Unreadable(format!("source `{location}`: {problem}"));
    let url = Url::parse(location).map_err(|error| failed(error.to_string()))?;
    let host = url.host_str().ok_or_else(|| failed("it names no host".into()))?.to_owned();
    let port = url.port_or_known_default().unwrap_or(80);
    let connecting = timeout(ANSWER_MAX, TcpStream::connect((host.trim_matches(['[', ']']), port)));
    let stream = connecting.await.map_err(|_| failed("it does not answer".into()))?;
    let stream = stream.map_err(|error| failed(error.to_string()))?;
    let fetched = if url.scheme() == "http" {
        exchange(stream, &url, uploads).await
    } else {
        let tls = pitwheel_app::client_config().map_err(|error| failed(error.to_string()))?;
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
        let name = name.map_err(|error| failed(error.to_string()))?;
        let secured = timeout(ANSWER_MAX, TlsConnector::from(tls).connect(name, stream)).await;
        let secured = secured.map_err(|_| failed("it does not answer".into()))?;
        exchange(secured.map_err(|error| failed(error.to_string()))?, &url, uploads).await
    };
    fetched.map_err(failed)
}

async fn exchange<S>(stream: S, url: &Url, uploads: &Uploads) -> Result<Upload, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let text = |error: hyper::Error| error.to_string();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(text)?;
    let authority = url.authority().rsplit_once('@').map_or(url.authority(), |(_, host)| host);
    let target = &url[url::Position::BeforePath..url::Position::AfterQuery];
    let request =
        Request::get(target).header(HOST, authority).header(ACCEPT, "text/csv").body(Empty::<Bytes>::new());
    let request = request.map_err(|error| error.to_string())?;
    let work = async {
        let response = timeout(ANSWER_MAX, sender.send_request(request)).await;
        let response = response.map_err(|_| "it does not answer".to_owned())?.map_err(text)?;
        if response.status() != 200 {
            return Err(format!("it answers {}", response.status()));
        }
        uploads.receive(response.into_body().into_data_stream()).await.map_err(|error| error.to_string())
    };
    let (mut work, mut connection) = (std::pin::pin!(work), std::pin::pin!(connection));
    tokio::select! {
        biased;
        done = &mut work => return done,
        _ = &mut connection => {}
    }
    // The peer has closed the connection; what it sent before is still to be read.
    work.await
}
