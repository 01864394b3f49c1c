//! The server that tests share, and the databases they get from it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, anyhow};
use pitwheel::Pitwheel;
use pitwheel::engine::MIGRATIONS;
use pitwheel_devdb::{Options, Server};
use tokio_postgres::{Client, Config, NoTls};

/// Started by the first test that asks. Its supervisor stops it when this process ends.
static SERVER: OnceLock<Result<Server, String>> = OnceLock::new();
/// Numbers the databases of this process.
static NEXT: AtomicUsize = AtomicUsize::new(1);

/// The URL of the server's own database, from which others are made: `DATABASE_URL`, or a private server's.
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

/// A new database's name; with a template, a copy of it.
pub(crate) async fn create_database(admin: &Client, template: &str) -> Result<String> {
    let name = format!("pitwheel_test_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    admin.batch_execute(&format!("drop database if exists {name} with (force)")).await?;
    admin.batch_execute(&format!("create database {name} template {template}")).await?;
    Ok(name)
}

/// The name of a database that is migrated and otherwise empty. Made once per schema: the name carries a hash of the
/// migrations, so that processes on one server can share it.
pub(crate) async fn template(admin: &Client, server_url: &str) -> Result<String> {
    let mut hasher = DefaultHasher::new();
    MIGRATIONS.iter().for_each(|one| one.sql.hash(&mut hasher));
    let name = format!("pitwheel_template_{:016x}", hasher.finish());
    // Held by the session, which ends with the test that made the template.
    let lock = "select pg_advisory_lock(hashtextextended('pitwheel.template', 0))";
    let unlock = "select pg_advisory_unlock(hashtextextended('pitwheel.template', 0))";
    admin.batch_execute(lock).await?;
    let there = admin.query_opt("select from pg_database where datname = $1", &[&name]).await?;
    if there.is_none() {
        let draft = create_database(admin, "template1").await?;
        let pitwheel = Pitwheel::connect(&with_database(server_url, &draft)?).await?;
        pitwheel.migrate().await?;
        drop(pitwheel);
        admin.batch_execute(&format!("alter database {draft} rename to {name}")).await?;
    }
    admin.batch_execute(unlock).await?;
    Ok(name)
}

/// A connection, driven by a task of its own that ends with the client.
pub(crate) async fn connect(url: &str) -> Result<Client> {
    let config: Config = url.parse().context("the database URL is not usable")?;
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// The same server, another database.
pub(crate) fn with_database(url: &str, name: &str) -> Result<String> {
    let (base, query) = match url.split_once('?') {
        Some((base, query)) => (base, format!("?{query}")),
        None => (url, String::new()),
    };
    let authority = base.find("://").map_or(0, |at| at + 3);
    let end = base[authority..].find('/').map_or(base.len(), |at| authority + at);
    Ok(format!("{}/{name}{query}", &base[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_is_replaced_and_the_rest_kept() -> Result<()> {
        let url = |from| with_database(from, "x");
        assert_eq!(url("postgres://u@h:5/app")?, "postgres://u@h:5/x");
        assert_eq!(url("postgres://u@h/app?sslmode=disable")?, "postgres://u@h/x?sslmode=disable");
        assert_eq!(url("postgres://u@h")?, "postgres://u@h/x");
        Ok(())
    }
}
