//! Claims read only the priorities that jobs have had. A job with one that no job had before is claimed as any other.

use anyhow::{Context as _, Result};
use pitwheel::engine::MIGRATIONS;
use pitwheel::{NewJob, NewRecurring};
use pitwheel_testkit::TestDb;

fn job(priority: i16) -> NewJob {
    NewJob::raw("test", "{}").priority(priority)
}

/// Claims everything that is due: one job for one worker, one as for many workers, then the rest.
async fn priorities_claimed(db: &TestDb) -> Result<Vec<i16>> {
    let mut jobs = db.claim(1).await?;
    let worker = db.register().await?;
    jobs.extend(db.claim_for_workers(&[worker]).await?);
    jobs.extend(db.claim_for_workers(&[worker; 30]).await?);
    Ok(jobs.iter().map(|job| job.priority).collect())
}

const INSERT: &str =
    "insert into pitwheel.job (run_at, enqueued_at, max_attempts, priority, queue, kind, payload)
    values (clock_timestamp(), clock_timestamp(), 20, ";

#[tokio::test]
async fn a_job_with_a_new_priority_is_claimed_whatever_wrote_it() -> Result<()> {
    let db = TestDb::new().await?;
    assert_eq!(db.count("select count(*) from pitwheel.used_priority").await?, 1, "0, and no other");
    db.pitwheel().enqueue(job(-9)).await?;
    db.pitwheel().enqueue_many([job(9), job(3), job(0)]).await?;
    let client = db.client().await?;
    client.batch_execute("select pitwheel.enqueue('test', priority => 5)").await?;
    client.batch_execute(&format!("{INSERT} 7, 'default', 'test', '{{}}')")).await?;
    client.batch_execute(&format!("{INSERT} 0, 'default', 'test', '{{}}')")).await?;
    let change = "update pitwheel.job set priority = -2 where id = (select max(id) from pitwheel.job)";
    client.batch_execute(change).await?;
    let mut claimed = priorities_claimed(&db).await?;
    assert_eq!(claimed[..2], [9, 7], "the highest priorities first");
    claimed.sort_unstable();
    assert_eq!(claimed, [-9, -2, 0, 3, 5, 7, 9]);
    Ok(())
}

#[tokio::test]
async fn recurring_jobs_use_no_priority_but_their_own() -> Result<()> {
    let db = TestDb::new().await?;
    let jobs = db.pitwheel().recurring();
    let new = || -> Result<NewRecurring> { Ok(NewRecurring::raw("test", "{}", "key", "every 1h".parse()?)) };
    let id = jobs.create(new()?).await?.id;
    jobs.create(new()?).await?;
    jobs.run_now(id).await?;
    assert_eq!(db.count("select count(*) from pitwheel.used_priority").await?, 1, "0, and no other");
    jobs.create(new()?.priority(-4)).await?;
    assert_eq!(priorities_claimed(&db).await?, [-4], "the waiting run has the new priority");
    Ok(())
}

#[tokio::test]
async fn each_worker_holds_the_jobs_it_gets_in_whatever_order_they_are_due() -> Result<()> {
    let db = TestDb::new().await?;
    // The later a job is enqueued, the sooner it is claimed.
    db.pitwheel().enqueue_many((-3..=3).map(job)).await?;
    let (one, two, three) = (db.register().await?, db.register().await?, db.register().await?);
    let claimed = db.claim_for_workers(&[three, one, three, two, one]).await?;
    let mut priorities: Vec<i16> = claimed.iter().map(|job| job.priority).collect();
    priorities.sort_unstable();
    assert_eq!(priorities, [-1, 0, 1, 2, 3], "as many as there are slots, the highest first");
    let count = |worker| claimed.iter().filter(|job| job.claim.holder == worker).count();
    assert_eq!([one, two, three].map(count), [2, 1, 2]);
    for job in &claimed {
        let held = "select worker from pitwheel.hold where id = $1 and $2 = any (job_ids)";
        let worker: i64 = db.client().await?.query_one(held, &[&job.hold, &job.claim.id]).await?.get(0);
        assert_eq!(worker, job.claim.holder, "job {}", job.claim.id);
    }
    Ok(())
}

#[tokio::test]
async fn a_job_is_claimed_although_the_first_of_its_priority_was_rolled_back() -> Result<()> {
    let db = TestDb::new().await?;
    let insert = format!("{INSERT} 4, 'default', 'test', '{{}}')");
    let client = db.client().await?;
    client.batch_execute(&format!("begin; {insert}; rollback")).await?;
    client.batch_execute(&format!("begin; savepoint a; {insert}; rollback to a; {insert}; commit")).await?;
    assert_eq!(priorities_claimed(&db).await?, [4]);
    Ok(())
}

#[tokio::test]
async fn a_claim_fires_no_trigger_for_each_job() -> Result<()> {
    let db = TestDb::new().await?;
    let row_triggers = "select count(*) from information_schema.triggers
        where event_object_schema = 'pitwheel' and event_object_table = 'job' and event_manipulation = 'UPDATE'
          and action_orientation = 'ROW'";
    assert_eq!(db.count(row_triggers).await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_migration_finds_the_priorities_of_waiting_jobs() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    let before = "drop trigger job_uses_priority on pitwheel.job; drop function pitwheel.use_priority;
        drop table pitwheel.used_priority";
    client.batch_execute(before).await?;
    client.batch_execute(&format!("{INSERT} 6, 'default', 'test', '{{}}')")).await?;
    let migration = MIGRATIONS.iter().find(|migration| migration.name == "used_priority");
    client.batch_execute(migration.context("no such migration")?.sql).await?;
    assert_eq!(priorities_claimed(&db).await?, [6]);
    Ok(())
}
