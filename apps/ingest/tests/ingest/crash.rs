//! Processes that die, and claims that are lost, in the middle of a load.

use std::process::{Command, Stdio};

use anyhow::Result;
use pitwheel::State;
use pitwheel_ingest::{CsvOptions, Lane, Target};
use pitwheel_testkit::{ChildProcess, wait_until};

use crate::support::{TestIngest, entries, lane, short_lease};

#[tokio::test]
async fn a_load_that_is_killed_changes_nothing_and_another_process_ends_it() -> Result<()> {
    let test = TestIngest::new().await?;
    test.load(&lane(), entries(&["1"]), &CsvOptions::default()).await?;
    let row = "it,flight,1,km,a name that has some length so that there are several batches\n";
    let text = format!("unit,category,quantity,measure,name\n{}", row.repeat(500_000));
    let id = test.upload(&lane(), text, &CsvOptions::default()).await?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_pitwheel-ingest"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--lease", "2"]);
    command.env("DATABASE_URL", test.db.url()).env("PITWHEEL_INGEST_UPLOADS", test.folder.path());
    let mut process = ChildProcess::spawn(&command, Stdio::null(), Stdio::null())?;
    wait_until("rows are loaded", || async {
        Ok(test.db.count("select count(*) from ingest.entry").await? > 1)
    })
    .await?;
    process.kill()?;

    let loading = format!("select count(*) from ingest.version where job_id = {id} and state = 'loading'");
    assert_eq!(test.db.count(&loading).await?, 1, "it was killed before its end");
    assert_eq!(test.quantities(&lane()).await?, ["1"], "the former data is current");
    assert_eq!(test.db.count("select count(*) from ingest.current_entry").await?, 1);

    let worker = test.start(short_lease());
    let job = test.ended(id).await?;
    assert_eq!((job.summary.state, job.crashes), (State::Done, 1));
    assert_eq!(
        test.current(&lane()).await?.map(|current| (current.rows, current.job_id)),
        Some((500_000, id))
    );
    let loaded = format!("select count(*) from ingest.version where job_id = {id} and state = 'loaded'");
    assert_eq!(test.db.count(&loaded).await?, 1, "it ended once");
    // What the dead process loaded is deleted.
    let upkeep = test.db.count("select id from pitwheel.recurring where kind = 'ingest_upkeep'").await?;
    test.db.pitwheel().recurring().run_now(upkeep).await?;
    wait_until("its rows are deleted", || async {
        Ok(test.db.count("select count(*) from ingest.entry").await? == 500_001)
    })
    .await?;
    worker.stop().await
}

#[tokio::test]
async fn a_late_load_writes_nothing_beside_the_one_that_took_over() -> Result<()> {
    let test = TestIngest::new().await?;
    let factors = Lane { target: Target::Factors, ..lane() };
    let mut client = test.db.client().await?;
    let gate = client.transaction().await?;
    // Both attempts wait for this lock when they load.
    gate.batch_execute("lock table ingest.factor in access exclusive mode").await?;
    let id =
        test.upload(&factors, "category,measure,kg_co2e\nflight,km,0.25\n", &CsvOptions::default()).await?;
    let first = test.start(short_lease());
    let versions = format!("select count(*) from ingest.version where job_id = {id}");
    wait_until("the load began", || async { Ok(test.db.count(&versions).await? == 1) }).await?;
    // As if the lease had expired and a sweep had seen it.
    let lost = "with lost as (update pitwheel.job set holder = null, claimed_at = null where kind = 'factor_ingest' returning id)
        select count(*) from lost";
    assert_eq!(test.db.count(lost).await?, 1);
    test.ingest.pitwheel().hint("ingest").await?;
    wait_until("another attempt began", || async { Ok(test.db.count(&versions).await? == 2) }).await?;
    gate.commit().await?;
    let job = test.ended(id).await?;
    first.stop().await?;

    assert_eq!((job.summary.state, job.fence), (State::Done, 2));
    let loaded = format!("select fence from ingest.version where job_id = {id} and state = 'loaded'");
    assert_eq!(test.db.count(&loaded).await?, 2, "the attempt that took over");
    assert_eq!(
        test.db.count("select count(*) from ingest.version where state = 'loaded' and rows = 1").await?,
        1
    );
    Ok(())
}
