//! Rows that older versions accepted, and that no longer can be stored, hold nothing up.

use std::time::Duration;

use anyhow::{Context as _, Result};
use pitwheel::engine::{Cause, Ending, MIGRATIONS, error_entry};
use pitwheel::{Change, Changed, NewJob, NewPipeline, Settled, State};
use pitwheel_testkit::TestDb;

fn job() -> NewJob {
    NewJob::raw("test", "{}")
}

const LATER: &str = "select count(*) from pitwheel.job where run_at between now() + interval '59 minutes' and now() + interval '1 hour'";

#[tokio::test]
async fn a_job_that_lets_others_pass_without_a_lane_is_retried() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    db.job().insert().await?;
    client.execute("update pitwheel.job set lane_pass = true", &[]).await?;
    let retry =
        Ending::Retry { delay: Duration::from_secs(3600), error: error_entry(Cause::Error, "no", 1, "test") };
    assert_eq!(db.settle(&db.claim_one().await?, retry).await?, Settled::Written);
    assert_eq!(db.count(LATER).await?, 1);

    client.execute("update pitwheel.job set run_at = now()", &[]).await?;
    let claim = db.claim_one().await?.claim;
    let fail = "select pitwheel.fail($1, $2, 'no', interval '1 hour')";
    assert!(client.query_one(fail, &[&claim.id, &claim.fence]).await?.get::<_, bool>(0));
    assert_eq!(db.count(LATER).await?, 1);
    Ok(())
}

#[tokio::test]
async fn steps_with_a_delay_or_a_time_without_end_do_not_refuse_the_end_of_their_parent() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    let new = || {
        let first = NewPipeline::new("chain").step("a", job());
        first.step("delay", job()).after(["a"]).step("time", job()).after(["a"])
    };
    for in_sql in [false, true] {
        db.pitwheel().pipelines().create(new()).await?;
        let stored =
            "update pitwheel.step set delay_ms = case name when 'delay' then 9223372036854775807 else 0 end,
            run_at = case name when 'time' then timestamptz 'infinity' end";
        client.execute(stored, &[]).await?;
        let parent = db.claim_one().await?;
        if in_sql {
            let complete = "select pitwheel.complete($1, $2)";
            client.query_one(complete, &[&parent.claim.id, &parent.claim.fence]).await?;
        } else {
            assert_eq!(db.complete(&parent).await?, Settled::Written);
        }
        let after = "select count(*) from pitwheel.job where run_at between now() + interval '99 years' and now() + interval '101 years'";
        assert_eq!(db.count(after).await?, 2, "in SQL: {in_sql}");
        client.execute("delete from pitwheel.job", &[]).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_migration_gives_jobs_without_a_lane_a_time() -> Result<()> {
    let db = TestDb::unmigrated().await?;
    let client = db.client().await?;
    client.batch_execute(include_str!("../sql/postgres/migration_table.sql")).await?;
    let older = MIGRATIONS.iter().take_while(|migration| migration.name != "stored_limits");
    for migration in older {
        client.batch_execute(migration.sql).await?;
        let record = "insert into pitwheel.migration (version, name, breaking) values ($1, $2, false)";
        client.execute(record, &[&migration.version, &migration.name]).await?;
    }
    let insert = "insert into pitwheel.job (run_at, enqueued_at, max_attempts, priority, queue, kind, payload, lane)
        values ('infinity', now(), 20, 0, 'default', 'test', '{}', null), (now(), now(), 20, 0, 'default', 'test', '{}', '\"a\"')";
    client.execute(insert, &[]).await?;
    assert!(db.pitwheel().migrate().await?.contains(&"stored_limits"));

    let ids = client.query("select id from pitwheel.job order by id", &[]).await?;
    let [stored, in_lane]: [i64; 2] =
        ids.iter().map(|row| row.get(0)).collect::<Vec<_>>().try_into().ok().context("two jobs")?;
    assert_eq!(db.state(stored).await?, Some(State::Waiting));
    assert_eq!(db.state(in_lane).await?, Some(State::Blocked), "it is not the head yet");
    let changed = db.pitwheel().change(&[stored], Change::Reschedule(None)).await?;
    assert_eq!(changed, [(stored, Changed::Done)]);
    assert_eq!(db.claim_one().await?.claim.id, stored);
    Ok(())
}
