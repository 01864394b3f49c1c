//! A remote worker that is told to stop ends, whatever its server does.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use pitwheel::{Context, Worker};
use pitwheel_testkit::{TestDb, Work, start_worker, work};
use tokio::sync::Notify;

use crate::support::Node;

#[tokio::test]
async fn a_worker_whose_handlers_have_ended_does_not_wait_for_its_server() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), Duration::from_secs(30)).await?;
    let (gate, started, ended) = (Arc::new(Notify::new()), Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (open, starts, ends) = (gate.clone(), started.clone(), ended.clone());
    let handler = move |_: Work, _: Context| {
        let (open, ends) = (open.clone(), ends.clone());
        starts.notify_one();
        async move {
            open.notified().await;
            ends.notify_one();
            Ok::<_, String>(())
        }
    };
    let running = start_worker(Worker::remote(&node.url()).queue("default", 2).handle(handler));
    db.pitwheel().enqueue(work(1)).await?;
    started.notified().await;
    node.stop().await?;
    gate.notify_one();
    ended.notified().await;
    // The result cannot be reported. The grace time, 30 s, is for handlers.
    let begun = Instant::now();
    running.stop().await?;
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    Ok(())
}
