//! What `/metrics` and lists of queues have and cost does not depend on the names that producers invent, or on the number of scrapers.

mod support;

use std::collections::HashSet;
use std::time::Duration;

use anyhow::Result;
use pitwheel::{NewJob, QUEUES_LISTED_MAX};
use pitwheel_proto::v1;
use pitwheel_testkit::{Http, TestDb};
use tokio::task::JoinSet;

use crate::support::Node;

/// Names that are enqueued, each a queue and a kind.
const NAMES: usize = 5000;
/// Names that a label may have: 200 with counters of their own, 200 with gauges of their own, and `other`.
const VALUES_MAX: usize = 402;

/// Scrapes at a time. Each would use the connections for scrapes until it gives up the lock.
const SCRAPES: usize = 100;

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

#[tokio::test]
async fn many_scrapes_at_a_time_do_not_keep_probes_out() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), Duration::from_secs(30)).await?;
    let http = Http::new(node.address);
    let mut other = db.client().await?;
    let lock = other.transaction().await?;
    lock.batch_execute("lock table pitwheel.job in access exclusive mode").await?;
    let mut scrapes = JoinSet::new();
    for _ in 0..SCRAPES {
        let http = http.clone();
        scrapes.spawn(async move { http.get("/metrics").await });
    }
    while !scrapes.is_empty() {
        assert_eq!(http.get("/readyz").await?.status, 200);
        while let Some(scrape) = scrapes.try_join_next() {
            let text = scrape??.text;
            assert!(text.contains("pitwheel_schema_version"), "there was no connection to read it: {text}");
        }
    }
    lock.rollback().await?;
    node.stop().await
}

#[tokio::test]
async fn invented_queues_hide_none_that_workers_take_or_that_is_paused() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), Duration::from_secs(30)).await?;
    let _stream = node.stream(1).await?;
    for queue in ["default", "default", "not taken"] {
        db.job().kind("other").queue(queue).insert().await?;
    }
    db.pitwheel().pause(Some("paused")).await?;
    let names = (0..NAMES).map(|n| NewJob::raw("other", "{}").queue(format!("{n:04}")));
    db.pitwheel().enqueue_many(names).await?;
    let http = Http::new(node.address);
    let listed = http.get("/api/v1/queues").await?.json()?;
    let listed = listed["queues"].as_array().expect("a list");
    let waiting = |name: &str| Some(listed.iter().find(|queue| queue["name"] == name)?["waiting"].as_i64());
    assert_eq!(waiting("default"), Some(Some(2)));
    assert_eq!(waiting("paused"), Some(Some(0)));
    assert_eq!((waiting("not taken"), listed.len()), (None, QUEUES_LISTED_MAX));
    let text = http.get("/metrics").await?.text;
    assert!(text.contains(r#"pitwheel_jobs{queue="default",state="waiting"} 2"#), "{text}");
    node.stop().await
}

#[tokio::test]
async fn kinds_that_one_worker_invents_hide_none_that_has_settings() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), Duration::from_secs(30)).await?;
    db.pitwheel().redact("secret", true).await?;
    let invent = "insert into pitwheel.worker (name, lease, lease_until, kinds)
        select 'inventive', '30 s', now() + '30 s', array_agg(n::text) from generate_series(1, 2000) as n";
    db.client().await?.batch_execute(invent).await?;
    let listed = Http::new(node.address).get("/api/v1/kinds").await?.json()?;
    let listed = listed["kinds"].as_array().expect("a list");
    assert!(listed.iter().any(|kind| kind["name"] == "secret" && kind["redacted"] == true), "{listed:?}");
    node.stop().await
}
