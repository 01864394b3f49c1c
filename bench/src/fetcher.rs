//! The process that fetches feeds for the case `feeds`.

use std::time::Instant;

use anyhow::Result;
use pitwheel_feeds::{Feeds, WorkerOptions};

/// The sources of the case.
pub(crate) const SOURCES: usize = 10_000;
/// Fetches at a time. Loopback answers at once, so more would only wait for a processor.
const SLOTS: usize = 100;

/// Fetches all sources; prints how many, and the seconds that it took.
pub(crate) async fn run(url: &str) -> Result<()> {
    let feeds = Feeds::connect(url).await?;
    let mut options = WorkerOptions::default();
    options.fetch.allow_private = true;
    options.slots = SLOTS;
    let begun = Instant::now();
    let stats =
        pitwheel_feeds::fetch_due(&feeds, options, 2 * SOURCES, std::future::pending(), |_| ()).await?;
    println!("{} {}", stats.sources_fetched, begun.elapsed().as_secs_f64());
    Ok(())
}
