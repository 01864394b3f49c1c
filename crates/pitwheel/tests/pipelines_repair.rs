//! Pipelines whose steps have lost their jobs: one that cannot go on holds up no other.

use anyhow::Result;
use pitwheel::engine::repair_pipelines;
use pitwheel::{NewJob, NewPipeline};
use pitwheel_testkit::TestDb;

/// `a`, then `b`, with the payload of its pipeline.
fn pipeline(payload: &str) -> NewPipeline {
    let job = || NewJob::raw("test", payload);
    NewPipeline::new("chain").step("a", job()).step("b", job()).after(["a"])
}

/// Finishes all jobs as a program of an older version would.
const FINISH: &str = "
    with gone as (delete from pitwheel.job returning *)
    insert into pitwheel.job_history (id, finished_at, run_at, enqueued_at, fence, attempt, max_attempts, priority, crashes,
        state, queue, kind, payload)
    select id, now(), run_at, enqueued_at, fence, attempt, max_attempts, priority, crashes, 'done', queue, kind, payload from gone";

/// A user's trigger: it refuses some jobs, and locks a row for others.
const TRIGGER: &str = r#"
    create table gate (id int);
    insert into gate values (1);
    create function check_job() returns trigger language plpgsql as $$
    begin
        if new.payload::text = '"refused"' then
            raise exception 'this is refused';
        elsif new.payload::text = '"locked"' then
            perform from gate for update;
        end if;
        return new;
    end $$;
    create trigger check_job before insert on pitwheel.job for each row execute function check_job();"#;

#[tokio::test]
async fn a_pipeline_that_cannot_go_on_holds_up_no_other() -> Result<()> {
    let db = TestDb::new().await?;
    let payloads = [r#""refused""#, r#""free""#, r#""locked""#, r#""free""#, r#""refused""#];
    let ids = db.pitwheel().pipelines().create_many(payloads.map(pipeline)).await?;
    let client = db.client().await?;
    client.batch_execute(FINISH).await?;
    client.batch_execute(TRIGGER).await?;
    client.batch_execute("set lock_timeout = '200ms'").await?;
    let mut other = db.client().await?;
    let lock = other.transaction().await?;
    lock.execute("select from gate for update", &[]).await?;

    let live = "select count(*) from pitwheel.job where step = 'b'";
    assert_eq!(repair_pipelines(&client, 0).await?, ids[4], "the next look goes on behind them");
    assert_eq!(db.count(live).await?, 2);
    lock.rollback().await?;
    repair_pipelines(&client, 0).await?;
    assert_eq!(db.count(live).await?, 3);
    client.batch_execute("drop trigger check_job on pitwheel.job").await?;
    repair_pipelines(&client, 0).await?;
    assert_eq!(db.count(live).await?, 5);
    Ok(())
}
