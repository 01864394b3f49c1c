//! Server processes of Postgres that do not answer.

use anyhow::Result;
use pitwheel_testkit::{connect, signal};

/// Server processes that do not answer, as if the network were broken, until this is dropped. New ones answer.
pub(crate) struct Silent(Vec<u32>);

impl Silent {
    /// Those of all connections that nodes have to this database server.
    pub(crate) async fn all(url: &str) -> Result<Silent> {
        let sql = "select pid from pg_stat_activity where application_name = 'pitwheel'";
        let rows = connect(url).await?.query(sql, &[]).await?;
        let silent = Silent(rows.iter().map(|row| row.get::<_, i32>(0).unsigned_abs()).collect());
        silent.0.iter().try_for_each(|pid| signal("STOP", *pid))?;
        Ok(silent)
    }

    /// Ends them, and with them the connections.
    pub(crate) fn end(self) -> Result<()> {
        self.0.iter().try_for_each(|pid| signal("TERM", *pid))
    }
}

impl Drop for Silent {
    /// A stopped process ends when it goes on. One that has ended already is no error.
    fn drop(&mut self) {
        self.0.iter().for_each(|pid| drop(signal("CONT", *pid)));
    }
}
