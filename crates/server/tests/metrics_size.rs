//! The size of `/metrics` does not depend on the names that producers invent.

mod support;

use std::collections::HashSet;
use std::time::Duration;

use anyhow::Result;
use pitwheel_proto::v1;
use pitwheel_testkit::{Http, TestDb};

use crate::support::Node;

/// Names that are enqueued, each a queue and a kind.
const NAMES: usize = 5000;
/// Names that a label may have: 200 with counters of their own, 200 with gauges of their own, and `other`.
const VALUES_MAX: usize = 402;

/// Bytes of a scrape: a queue and kind with series of their own have 13,000, with the buckets of all histograms.
const SIZE_MAX: usize = 3_000_000;

fn values<'t>(text: &'t str, label: &str) -> HashSet<&'t str> {
    let after = |line: &'t str| line.split_once(&format!("{label}=\""))?.1.split('"').next();
    text.lines().filter_map(after).collect()
}

#[tokio::test]
async fn invented_queues_and_kinds_share_a_label() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), Duration::from_secs(30)).await?;
    let names: Vec<String> = (0..NAMES).map(|n| format!("name{n}")).collect();
    let mut client = node.jobs().await?;
    for names in names.chunks(500) {
        let job =
            |name: &String| v1::NewJob { kind: name.clone(), queue: name.clone(), ..v1::NewJob::default() };
        client.enqueue(v1::EnqueueRequest { jobs: names.iter().map(job).collect() }).await?;
    }
    let text = Http::new(node.address).get("/metrics").await?.text;
    for label in ["queue", "kind"] {
        let values = values(&text, label);
        assert!(values.contains("other") && values.len() < VALUES_MAX, "{label}: {}", values.len());
    }
    assert!(text.len() < SIZE_MAX, "{} bytes", text.len());
    node.stop().await
}
