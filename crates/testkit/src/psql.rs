//! SQL through the program `psql`, for tests without a runtime.

use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use pitwheel_devdb::Programs;

/// Runs the SQL; returns its rows as text, with `|` between values. Fails if the database is not reached or refuses.
pub fn psql(url: &str, sql: &str) -> Result<String> {
    let psql = Command::new(Programs::find()?.path("psql"))
        .args(["-X", "-At", "-v", "ON_ERROR_STOP=1", "-c", sql, url])
        .stdin(Stdio::null())
        .output()?;
    ensure!(psql.status.success(), "{}", String::from_utf8_lossy(&psql.stderr));
    Ok(String::from_utf8_lossy(&psql.stdout).trim().to_owned())
}
