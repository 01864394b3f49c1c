//! A database for one test, dropped with it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use pitwheel::Pitwheel;
use pitwheel::engine::MIGRATIONS;
use tokio_postgres::Client;

use crate::postgres::{connect, server_url};

/// Numbers the databases of this process.
static NEXT: AtomicUsize = AtomicUsize::new(1);

/// A database on the server that the tests share. It is dropped with this value.
pub struct Database {
    server_url: String,
    name: String,
    url: String,
}

impl Database {
    /// A migrated database without rows, copied from a template.
    pub async fn migrated() -> Result<Database> {
        let server_url = server_url().await?;
        let admin = connect(&server_url).await?;
        let template = template(&admin, &server_url).await?;
        Database::copy_of(&template, server_url, &admin).await
    }

    /// A database without the schema.
    pub async fn empty() -> Result<Database> {
        let server_url = server_url().await?;
        let admin = connect(&server_url).await?;
        Database::copy_of("template1", server_url, &admin).await
    }

    async fn copy_of(template: &str, server_url: String, admin: &Client) -> Result<Database> {
        let name = create(admin, template).await?;
        let url = with_database(&server_url, &name);
        Ok(Database { server_url, name, url })
    }

    /// The database's URL.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let url = self.server_url.clone();
        let sql = format!("drop database if exists {} with (force)", self.name);
        let drop_it = move || -> Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                connect(&url).await?.batch_execute(&sql).await?;
                Ok(())
            })
        };
        // A thread of its own, because the test's runtime is busy dropping this. A test does not fail because its
        // database could not be dropped.
        let _ = std::thread::spawn(drop_it).join();
    }
}

/// Creates a database as a copy of the template; returns its name.
async fn create(admin: &Client, template: &str) -> Result<String> {
    let name = format!("pitwheel_test_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    admin.batch_execute(&format!("drop database if exists {name} with (force)")).await?;
    admin.batch_execute(&format!("create database {name} template {template}")).await?;
    Ok(name)
}

/// The name of a database that is migrated and otherwise empty. Created once per schema: the name carries a hash of the
/// migrations, so that processes on one server can share it.
async fn template(admin: &Client, server_url: &str) -> Result<String> {
    let mut hasher = DefaultHasher::new();
    MIGRATIONS.iter().for_each(|one| one.sql.hash(&mut hasher));
    let name = format!("pitwheel_template_{:016x}", hasher.finish());
    // Two tests must not create the template at the same time. The lock ends with the session if this test fails.
    let lock = "select pg_advisory_lock(hashtextextended('pitwheel.template', 0))";
    let unlock = "select pg_advisory_unlock(hashtextextended('pitwheel.template', 0))";
    admin.batch_execute(lock).await?;
    let exists = admin.query_opt("select from pg_database where datname = $1", &[&name]).await?;
    if exists.is_none() {
        let draft = create(admin, "template1").await?;
        let pitwheel = Pitwheel::connect(&with_database(server_url, &draft)).await?;
        pitwheel.migrate().await?;
        drop(pitwheel);
        admin.batch_execute(&format!("alter database {draft} rename to {name}")).await?;
    }
    admin.batch_execute(unlock).await?;
    Ok(name)
}

/// The URL with the name of its database replaced.
fn with_database(url: &str, name: &str) -> String {
    let (base, query) = match url.split_once('?') {
        Some((base, query)) => (base, format!("?{query}")),
        None => (url, String::new()),
    };
    let authority = base.find("://").map_or(0, |at| at + 3);
    let end = base[authority..].find('/').map_or(base.len(), |at| authority + at);
    format!("{}/{name}{query}", &base[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_is_replaced_and_the_rest_kept() {
        let url = |from| with_database(from, "x");
        assert_eq!(url("postgres://u@h:5/app"), "postgres://u@h:5/x");
        assert_eq!(url("postgres://u@h/app?sslmode=disable"), "postgres://u@h/x?sslmode=disable");
        assert_eq!(url("postgres://u@h"), "postgres://u@h/x");
    }
}
