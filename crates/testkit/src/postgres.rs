//! The Postgres server that the tests of a process share, and connections to servers.

use std::net::TcpStream;
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow};
use pitwheel_devdb::{Options, Server};
use tokio_postgres::{Client, Config, NoTls};

/// Started by the first test that needs it. Its supervisor stops it when this process ends.
static SERVER: OnceLock<Result<Server, String>> = OnceLock::new();

/// The URL of the database from which others are created: `DATABASE_URL`, or a database of a private server.
pub(crate) async fn server_url() -> Result<String> {
    if let Ok(url) = std::env::var("DATABASE_URL") {
        return Ok(url);
    }
    let start =
        || SERVER.get_or_init(|| Server::start(Options::temporary()).map_err(|error| error.to_string()));
    match tokio::task::spawn_blocking(start).await? {
        Ok(server) => Ok(server.url()),
        Err(error) => Err(anyhow!("no Postgres for the tests: {error}")),
    }
}

/// A connection, driven by a task of its own that ends with the client.
pub async fn connect(url: &str) -> Result<Client> {
    let config: Config = url.parse().context("the database URL is not usable")?;
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Whether a server accepts connections on the port of this URL on 127.0.0.1.
pub fn is_listening(url: &str) -> bool {
    let port = url.rsplit_once(':').and_then(|(_, rest)| rest.split_once('/')?.0.parse::<u16>().ok());
    port.is_some_and(|port| TcpStream::connect(("127.0.0.1", port)).is_ok())
}
