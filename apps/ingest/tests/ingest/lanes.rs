//! One load at a time for each lane, in the order of the requests.

use anyhow::Result;
use pitwheel::engine::claim_by_id;
use pitwheel_ingest::{CsvOptions, Lane, Method, WorkerOptions};
use pitwheel_testkit::wait_until;

use crate::support::{TestIngest, entries, lane};

#[tokio::test]
async fn two_files_for_one_lane_are_loaded_one_after_the_other() -> Result<()> {
    let test = TestIngest::new().await?;
    let other = Lane { year: None, ..lane() };
    for lane in [lane(), other.clone()] {
        let mut client = test.db.client().await?;
        let gate = client.transaction().await?;
        // A load waits for this lock when it writes its first rows.
        gate.batch_execute("lock table ingest.entry in exclusive mode").await?;
        let first = test.upload(&lane, entries(&["1"]), &CsvOptions::default()).await?;
        let second = test.upload(&lane, entries(&["2"]), &CsvOptions::default()).await?;
        // Parts that are null do not make it another lane; other parts do.
        let free = test
            .upload(
                &Lane { module: None, entry_type: None, ..lane.clone() },
                entries(&["3"]),
                &CsvOptions::default(),
            )
            .await?;
        let mut options = WorkerOptions::default();
        options.slots = 3;
        let worker = test.start(options);
        let begun = |job: i64| format!("select count(*) from ingest.version where job_id = {job}");
        for job in [first, free] {
            wait_until("a load began", || async { Ok(test.db.count(&begun(job)).await? == 1) }).await?;
        }
        assert_eq!(test.db.count(&begun(second)).await?, 0, "a slot is free, but its lane is busy");
        gate.commit().await?;
        test.ended(second).await?;
        worker.stop().await?;
        assert_eq!(test.quantities(&lane).await?, ["2"], "the later request is current");
        let order = format!(
            "select count(*) from ingest.version a, ingest.version b
            where a.job_id = {first} and b.job_id = {second} and a.loaded_at < b.started_at"
        );
        assert_eq!(test.db.count(&order).await?, 1, "the second began when the first had ended");
    }
    Ok(())
}

/// A load, and a recalculation, whose job another worker has claimed.
#[tokio::test]
async fn nothing_begins_whose_job_another_worker_has() -> Result<()> {
    let test = TestIngest::new().await?;
    let computed = Lane { method: Method::Computed, ..lane() };
    let load = test.upload(&lane(), entries(&["1"]), &CsvOptions::default()).await?;
    let recalculation = test.ingest.sync(&computed, &CsvOptions::default(), "test").await?;
    // Both were enqueued in a transaction of the application.
    test.db.promote().await?;
    let (client, other) = (test.db.client().await?, test.db.register().await?);
    for (job, kind) in [(load, "csv_ingest"), (recalculation, "emission_recalc")] {
        let claimed = claim_by_id(&client, other, job, &[kind.to_owned()], None).await?;
        assert!(claimed.is_ok(), "{kind}: {claimed:?}");
    }
    let free = test.upload(&Lane { year: None, ..lane() }, entries(&["2"]), &CsvOptions::default()).await?;
    test.run(free).await?;
    for job in [load, recalculation] {
        let begun = format!("select count(*) from ingest.version where job_id = {job}");
        assert_eq!(test.db.count(&begun).await?, 0);
        let held =
            format!("select count(*) from pitwheel.job where id = {job} and holder = {other} and fence = 1");
        assert_eq!(test.db.count(&held).await?, 1, "the other worker has it");
    }
    assert!(test.current(&lane()).await?.is_none());
    Ok(())
}
