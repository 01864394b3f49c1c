//! `pitwheel-bench [CASE]`: measures, prints a table, and writes `target/bench.json`.
//!
//! It uses a private Postgres with default settings (fsync and synchronous_commit on), or the database that `DATABASE_URL`
//! names. There it drops the schemas `pitwheel`, `feeds`, `ingest` and `raw_bench`, and beside it the database `pitwheel_bench_free`.

mod cases;
mod child_process;
mod disk_probe;
mod driver;
mod engine;
mod fetcher;
mod loader;
mod process_stats;
mod raw;
mod raw_latency;
mod report;
mod session;
mod stream_worker;

use std::env;

use anyhow::{Result, bail};
use pitwheel_devdb::{Options, Server};

use crate::report::Row;

/// All cases. Without an argument all but the last one run: that one compares drivers.
const CASES: [&str; 27] = [
    "drain",
    "few_slots",
    "end_to_end",
    "backlog",
    "in_flight",
    "pinned",
    "steady",
    "scale",
    "late",
    "recurring",
    "lanes",
    "pipelines",
    "outbox",
    "latency",
    "idle",
    "memory",
    "remote",
    "remote_few_slots",
    "fleet",
    "remote_latency",
    "streams",
    "python",
    "lists",
    "attack",
    "feeds",
    "ingest",
    "driver",
];

#[tokio::main]
async fn main() -> Result<()> {
    let argument = env::args().nth(1);
    // With two arguments this is a child process of a case.
    if let (Some(role), Some(url)) = (argument.as_deref(), env::args().nth(2)) {
        return child_process::run(role, &url).await;
    }
    let cases = match argument.as_deref() {
        None | Some("") => CASES[..CASES.len() - 1].to_vec(),
        Some(case) => vec![case],
    };
    if cases.contains(&"python") {
        // Checked first, so that a missing interpreter is not reported after everything else was measured.
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
    let (mut rows, mut failed) = (Vec::new(), Ok(()));
    for case in cases {
        eprintln!("measuring {case} …");
        match measure(case, &url).await {
            Ok(measured) => {
                // A whole run takes most of an hour: whoever ends it early has what was measured.
                eprint!("{}", report::table(&measured));
                rows.extend(measured);
            }
            // The other cases are still worth their time.
            Err(error) => {
                eprintln!("{case} failed: {error:#}");
                failed = Err(error);
            }
        }
    }
    report::publish(&rows)?;
    failed
}

async fn measure(case: &str, url: &str) -> Result<Vec<Row>> {
    match case {
        "drain" => cases::drain(url).await,
        "few_slots" => cases::few_slots(url).await,
        "end_to_end" => cases::end_to_end(url).await,
        "backlog" => cases::backlog(url).await,
        "in_flight" => cases::in_flight(url).await,
        "pinned" => cases::pinned(url).await,
        "steady" => cases::steady(url).await,
        "scale" => cases::scale(url).await,
        "late" => cases::late(url).await,
        "recurring" => cases::recurring(url).await,
        "lanes" => cases::lanes(url).await,
        "pipelines" => cases::pipelines(url).await,
        "outbox" => cases::outbox(url).await,
        "latency" => cases::latency(url).await,
        "idle" => cases::idle(url).await,
        "memory" => cases::memory(url).await,
        "remote" => cases::remote(url).await,
        "remote_few_slots" => cases::remote_few_slots(url).await,
        "fleet" => cases::fleet(url).await,
        "remote_latency" => cases::remote_latency(url).await,
        "streams" => cases::streams(url).await,
        "python" => cases::python(url).await,
        "lists" => cases::lists(url).await,
        "attack" => cases::attack(url).await,
        "feeds" => cases::feeds(url).await,
        "ingest" => cases::ingest(url).await,
        "driver" => driver::driver(url).await,
        _ => bail!("unknown case `{case}`: choose one of `{}`", CASES.join("`, `")),
    }
}
