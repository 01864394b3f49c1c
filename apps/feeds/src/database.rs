//! The database of a command: the one that is named, or a private Postgres.

use std::path::PathBuf;

use anyhow::Context as _;
use pitwheel_devdb::{Options, Server};
use pitwheel_feeds::Feeds;

use crate::output::print_message;

/// The database of a command.
pub(crate) struct Database {
    pub(crate) feeds: Feeds,
    /// A Postgres that this process started.
    postgres: Option<Server>,
}

/// The folder of the private Postgres.
fn dir() -> PathBuf {
    let dir = std::env::var_os("PITWHEEL_FEEDS_DIR").filter(|dir| !dir.is_empty());
    dir.map_or_else(|| pitwheel_devdb::default_dir().with_file_name("feeds"), PathBuf::from)
}

impl Database {
    /// Opens the database and brings its schema up to date. Without a URL, the private Postgres: the one that runs, or it is started
    /// for this command.
    pub(crate) async fn open(url: Option<&str>) -> anyhow::Result<Database> {
        let (url, postgres) = match url.map(str::to_owned).or_else(|| pitwheel_devdb::running(dir())) {
            Some(url) => (url, None),
            None => {
                let started = start(Options::kept(dir())).await?;
                (started.url(), Some(started))
            }
        };
        Database::on(&url, postgres).await
    }

    /// A database that is gone when the command ends.
    pub(crate) async fn temporary() -> anyhow::Result<Database> {
        let postgres = start(Options::temporary()).await?;
        Database::on(&postgres.url(), Some(postgres)).await
    }

    async fn on(url: &str, postgres: Option<Server>) -> anyhow::Result<Database> {
        let feeds = Feeds::connect(url).await.context("check the database, or leave out DATABASE_URL")?;
        feeds.migrate().await?;
        Ok(Database { feeds, postgres })
    }

    /// Where the data of the private Postgres are; `None` for a database that was named.
    pub(crate) fn private_dir(&self) -> Option<String> {
        self.postgres.as_ref().map(|postgres| postgres.dir().display().to_string())
    }

    /// Stops the Postgres that this process started.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        let Database { feeds, postgres } = self;
        drop(feeds);
        if let Some(postgres) = postgres {
            tokio::task::spawn_blocking(move || postgres.stop()).await??;
        }
        Ok(())
    }
}

async fn start(options: Options) -> anyhow::Result<Server> {
    print_message("starting a private Postgres …");
    Ok(tokio::task::spawn_blocking(move || Server::start(options)).await??)
}
