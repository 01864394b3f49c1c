//! A node whose connections for callers of the API are all in use.

mod support;

use std::time::{Duration, Instant};

use anyhow::Result;
use pitwheel::{Options, Pitwheel, Role};
use pitwheel_proto::v1;
use pitwheel_proto::v1::result::Outcome;
use pitwheel_testkit::{TestDb, wait_until, work};

use crate::support::Node;

const REPORTS: usize = 5;
/// Half of what so many reports need if each waits two seconds until it gives up a hint.
const REPORTED_WITHIN: Duration = Duration::from_secs(5);

#[tokio::test]
async fn reports_with_followers_do_not_wait_for_callers_of_the_api() -> Result<()> {
    let db = TestDb::new().await?;
    let mut options = Options::default();
    options.connections = 1;
    let pitwheel = Pitwheel::connect_with(db.url(), options).await?;
    let node = Node::start(&pitwheel, Duration::from_secs(600)).await?;
    let mut stream = node.stream(REPORTS as u32).await?;
    db.pitwheel().enqueue_many((0..REPORTS as i64).map(work)).await?;
    let jobs = stream.jobs_at_least(REPORTS).await?;

    let mut by_hand = db.client().await?;
    let lock = by_hand.transaction().await?;
    lock.batch_execute("lock table pitwheel.token in exclusive mode").await?;
    let caller = tokio::spawn(async move { pitwheel.create_token("waits", Role::Viewer, None).await });
    wait_until("the only connection is in use", async || Ok(db.lock_waits().await? == 1)).await?;
    let begun = Instant::now();
    for job in &jobs {
        let next = v1::NewJob { kind: "next".into(), ..v1::NewJob::default() };
        let complete = v1::Complete { then: vec![next], ..v1::Complete::default() };
        assert_eq!(stream.report(job, Outcome::Complete(complete)).await?, v1::Written::Yes);
    }
    assert!(begun.elapsed() < REPORTED_WITHIN, "{:?}", begun.elapsed());
    lock.rollback().await?;
    caller.await??;
    node.stop().await
}
