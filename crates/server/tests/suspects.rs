//! Suspects, which run alone in their process, and jobs whose rows are locked.

mod support;

use std::time::Duration;

use anyhow::Result;
use pitwheel_proto::v1;
use pitwheel_testkit::{TestDb, work};

use crate::support::Node;

/// No sweep gives anything back.
const LEASE: Duration = Duration::from_secs(600);

#[tokio::test]
async fn a_suspect_and_the_jobs_after_it_run_although_the_rows_of_reported_jobs_are_locked() -> Result<()> {
    let db = TestDb::new().await?;
    let node = Node::start(db.pitwheel(), LEASE).await?;
    let mut stream = node.stream(10).await?;
    let (mut one, mut two) = (db.client().await?, db.client().await?);

    db.pitwheel().enqueue(work(0)).await?;
    let first = stream.jobs().await?.remove(0);
    let first_lock = one.transaction().await?;
    first_lock.execute("select from pitwheel.job where id = $1 for update", &[&first.job_id]).await?;
    assert_eq!(stream.complete(&first).await?, v1::Written::Locked);
    let suspect_id = db.job().kind("work").crashes(2).insert().await?;
    let suspect = stream.jobs().await?.remove(0);
    assert_eq!(suspect.job_id, suspect_id, "it does not wait for the lock of another job");

    let suspect_lock = two.transaction().await?;
    suspect_lock.execute("select from pitwheel.job where id = $1 for update", &[&suspect_id]).await?;
    assert_eq!(stream.complete(&suspect).await?, v1::Written::Locked);
    db.pitwheel().enqueue(work(1)).await?;
    let last = stream.jobs().await?.remove(0);
    assert_eq!(stream.complete(&last).await?, v1::Written::Yes, "no job waits for the lock of the suspect");

    suspect_lock.rollback().await?;
    first_lock.rollback().await?;
    for job in [&first, &suspect] {
        assert_eq!(stream.complete(job).await?, v1::Written::Yes);
    }
    node.stop().await
}
