//! The database of a command: the one that is named, or a private Postgres.

use anyhow::Context as _;
use pitwheel_app::PrivateDatabase;
use pitwheel_feeds::Feeds;

/// The database of a command.
pub(crate) struct Database {
    pub(crate) feeds: Feeds,
    private: PrivateDatabase,
}

impl Database {
    /// Opens the database and brings its schema up to date. Without a URL, the private Postgres: the one that runs, or it is started
    /// for this command.
    pub(crate) async fn open(url: Option<&str>) -> anyhow::Result<Database> {
        let folder = PrivateDatabase::folder("PITWHEEL_FEEDS_DIR", "feeds");
        Database::on(PrivateDatabase::open(url, &folder).await?).await
    }

    /// A database that is gone when the command ends.
    pub(crate) async fn temporary() -> anyhow::Result<Database> {
        Database::on(PrivateDatabase::temporary().await?).await
    }

    async fn on(private: PrivateDatabase) -> anyhow::Result<Database> {
        let feeds =
            Feeds::connect(private.url()).await.context("check the database, or leave out DATABASE_URL")?;
        feeds.migrate().await?;
        Ok(Database { feeds, private })
    }

    /// Where the data of the private Postgres are; `None` for a database that was named.
    pub(crate) fn private_dir(&self) -> Option<String> {
        self.private.started_in().map(|dir| dir.display().to_string())
    }

    /// Stops the Postgres that this process started.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        let Database { feeds, private } = self;
        drop(feeds);
        private.close().await
    }
}
