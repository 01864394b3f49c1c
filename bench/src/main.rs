//! `pitwheel-bench [CASE]`: measures, prints a table, and writes `target/bench.json`.
//!
//! On a private Postgres with default settings (fsync and synchronous_commit on), or on the server of `DATABASE_URL`, whose
//! schemas `pitwheel` and `raw_bench` it drops.

mod cases;
mod child_process;
mod driver;
mod engine;
mod raw;
mod report;
mod session;

use std::env;

use anyhow::{Result, bail};
use pitwheel_devdb::{Options, Server};

use crate::report::Row;

/// All but the last, which is for choosing a driver, make up the whole.
const CASES: [&str; 15] = [
    "drain",
    "end_to_end",
    "backlog",
    "in_flight",
    "pinned",
    "late",
    "latency",
    "idle",
    "memory",
    "remote",
    "remote_latency",
    "streams",
    "python",
    "lists",
    "driver",
];

#[tokio::main]
async fn main() -> Result<()> {
    let chosen = env::args().nth(1);
    if let (Some(role), Some(url)) = (chosen.as_deref(), env::args().nth(2)) {
        return child_process::run(role, &url).await;
    }
    let cases = match chosen.as_deref() {
        None | Some("") => CASES[..CASES.len() - 1].to_vec(),
        Some(case) => vec![case],
    };
    if cases.contains(&"python") {
        // Missed now rather than when everything else is measured.
        cases::interpreter()?;
    }
    let (_server, url) = match env::var("DATABASE_URL") {
        Ok(url) => (None, url),
        Err(_) => {
            let server = Server::start(Options::temporary())?;
            let url = server.url();
            (Some(server), url)
        }
    };
    let mut rows = Vec::new();
    for case in cases {
        eprintln!("measuring {case} …");
        rows.extend(measure(case, &url).await?);
    }
    report::publish(&rows)
}

async fn measure(case: &str, url: &str) -> Result<Vec<Row>> {
    match case {
        "drain" => cases::drain(url).await,
        "end_to_end" => cases::end_to_end(url).await,
        "backlog" => cases::backlog(url).await,
        "in_flight" => cases::in_flight(url).await,
        "pinned" => cases::pinned(url).await,
        "late" => cases::late(url).await,
        "latency" => cases::latency(url).await,
        "idle" => cases::idle(url).await,
        "memory" => cases::memory(url).await,
        "remote" => cases::remote(url).await,
        "remote_latency" => cases::remote_latency(url).await,
        "streams" => cases::streams(url).await,
        "python" => cases::python(url).await,
        "lists" => cases::lists(url).await,
        "driver" => driver::driver(url).await,
        _ => bail!("no case `{case}`: choose one of `{}`", CASES.join("`, `")),
    }
}
