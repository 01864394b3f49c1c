//! The private Postgres of a program for which no database is named.

use std::path::{Path, PathBuf};

use pitwheel_devdb::{Options, Server};

use crate::output::print_message;

/// The database of a command: the one that is named, or a private Postgres.
pub struct PrivateDatabase {
    url: String,
    /// A Postgres that this process started.
    postgres: Option<Server>,
}

impl PrivateDatabase {
    /// The folder of the private Postgres of a program: the one that the variable names, or `name` in the data folder of the user.
    pub fn folder(variable: &str, name: &str) -> PathBuf {
        let named = std::env::var_os(variable).filter(|dir| !dir.is_empty());
        named.map_or_else(|| pitwheel_devdb::default_dir().with_file_name(name), PathBuf::from)
    }

    /// The database with this URL. Without a URL, the private Postgres in the folder: the one that runs, or it is started for this
    /// command.
    ///
    /// # Errors
    /// If Postgres cannot be started.
    pub async fn open(url: Option<&str>, folder: &Path) -> anyhow::Result<PrivateDatabase> {
        match url.map(str::to_owned).or_else(|| pitwheel_devdb::running(folder)) {
            Some(url) => Ok(PrivateDatabase { url, postgres: None }),
            None => PrivateDatabase::start(Options::kept(folder)).await,
        }
    }

    /// A database that is gone when the command ends.
    ///
    /// # Errors
    /// If Postgres cannot be started.
    pub async fn temporary() -> anyhow::Result<PrivateDatabase> {
        PrivateDatabase::start(Options::temporary()).await
    }

    async fn start(options: Options) -> anyhow::Result<PrivateDatabase> {
        print_message("starting a private Postgres …");
        let postgres = tokio::task::spawn_blocking(move || Server::start(options)).await??;
        Ok(PrivateDatabase { url: postgres.url(), postgres: Some(postgres) })
    }

    /// Its URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where the data of the Postgres are that this process started.
    pub fn started_in(&self) -> Option<&Path> {
        self.postgres.as_ref().map(Server::dir)
    }

    /// Stops the Postgres that this process started.
    ///
    /// # Errors
    /// If it cannot be stopped.
    pub async fn close(self) -> anyhow::Result<()> {
        if let Some(postgres) = self.postgres {
            tokio::task::spawn_blocking(move || postgres.stop()).await??;
        }
        Ok(())
    }
}
