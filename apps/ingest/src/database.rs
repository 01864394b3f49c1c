//! The database of a command, and the folder of its uploads.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use pitwheel_app::PrivateDatabase;
use pitwheel_ingest::{Ingest, Uploads};

/// The database of a command.
pub(crate) struct Database {
    pub(crate) ingest: Ingest,
    private: PrivateDatabase,
}

impl Database {
    /// Opens the database and brings its schema up to date. Without a URL, the private Postgres.
    pub(crate) async fn open(url: Option<&str>, upload_dir: Option<PathBuf>) -> anyhow::Result<Database> {
        let folder = PrivateDatabase::folder("PITWHEEL_INGEST_DIR", "ingest");
        let uploads = Uploads::new(upload_dir.unwrap_or_else(|| folder.with_extension("uploads")));
        Database::on(PrivateDatabase::open(url, &folder).await?, uploads).await
    }

    /// A database that is gone when the command ends. The uploads are in this folder.
    pub(crate) async fn temporary(uploads: &Path) -> anyhow::Result<Database> {
        Database::on(PrivateDatabase::temporary().await?, Uploads::new(uploads)).await
    }

    async fn on(private: PrivateDatabase, uploads: Uploads) -> anyhow::Result<Database> {
        let ingest = Ingest::connect(private.url(), uploads).await;
        let ingest = ingest.context("check the database, or leave out DATABASE_URL")?;
        ingest.migrate().await?;
        Ok(Database { ingest, private })
    }

    /// Where the data of the private Postgres are; `None` for a database that was named.
    pub(crate) fn private_dir(&self) -> Option<String> {
        self.private.started_in().map(|dir| dir.display().to_string())
    }

    /// Stops the Postgres that this process started.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        let Database { ingest, private } = self;
        drop(ingest);
        private.close().await
    }
}
