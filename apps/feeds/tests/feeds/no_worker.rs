//! A server that is told not to fetch.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use pitwheel_testkit::{ChildProcess, Http};

use crate::site::{Reply, Site, feed};
use crate::support::TestFeeds;

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_worker_answers_and_fetches_nothing() -> Result<()> {
    let test = TestFeeds::new().await?;
    let site = Site::start(|_| Reply::ok(feed(&["1"]))).await?;
    let id = test.add(&site.url("/")).await?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_pitwheel-feeds"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--allow-private-addresses", "--no-worker"]);
    command.env("DATABASE_URL", test.db.url());
    let mut server = ChildProcess::spawn(&command, Stdio::piped(), Stdio::null())?;
    let mut lines = BufReader::new(server.take_stdout()?).lines();
    let address = lines.find_map(|line| {
        let line = line.ok()?;
        line.split_once("http://")?.1.split('/').next()?.parse().ok()
    });
    let http = Http::new(address.context("the server ended")?);
    assert_eq!(http.get(&format!("/api/v1/feeds/sources/{id}")).await?.status, 200);
    assert_eq!(test.db.count("select count(*) from pitwheel.worker").await?, 0);
    assert!(site.requests().is_empty(), "nothing is fetched");
    server.signal("TERM")?;
    assert_eq!(server.wait()?.code(), Some(0));
    Ok(())
}
