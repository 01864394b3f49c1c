//! What operators see and change, and that every change is in the audit log.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use pitwheel::{Change, Changed, Error, Filter, NewJob, Role, Settled, State, WorkerCommand};
use pitwheel_testkit::TestDb;

#[tokio::test]
async fn a_change_of_many_jobs_returns_an_outcome_for_each() -> Result<()> {
    let db = TestDb::new().await?;
    let running = db.job().insert().await?;
    let claimed = db.claim_one().await?;
    let waiting = db.job().insert().await?;
    let ada = db.pitwheel().acting_as("ada");

    let cancelled = ada.change(&[waiting, running, 4711], Change::Cancel).await?;
    assert_eq!(
        cancelled,
        [(waiting, Changed::Done), (running, Changed::Requested), (4711, Changed::NotFound)]
    );
    assert_eq!(ada.change(&[running], Change::Delete).await?, [(running, Changed::NotFound)], "it runs");
    let later = SystemTime::now() + Duration::from_secs(3600);
    assert_eq!(
        ada.change(&[waiting], Change::Reschedule(Some(later))).await?,
        [(waiting, Changed::NotFound)],
        "it is finished"
    );
    assert_eq!(ada.change(&[waiting], Change::Retry).await?, [(waiting, Changed::Done)]);
    assert_eq!(ada.change(&[waiting], Change::Reschedule(Some(later))).await?, [(waiting, Changed::Done)]);
    assert!(db.claim(1).await?.is_empty(), "nothing is due");
    ada.change(&[waiting], Change::Reschedule(None)).await?;
    assert_eq!(db.claim_one().await?.claim.id, waiting, "it is due now");
    assert_eq!(db.complete(&claimed).await?, Settled::Written);
    assert_eq!(ada.change(&[running], Change::Delete).await?, [(running, Changed::Done)]);
    assert_eq!(db.state(running).await?, None);

    let log = ada.audit(None, 0).await?;
    let entries: Vec<(&str, &str)> =
        log.iter().map(|entry| (entry.actor.as_str(), entry.action.as_str())).collect();
    let expected = ["job.delete", "job.reschedule", "job.reschedule", "job.retry", "job.cancel"];
    assert_eq!(
        entries,
        expected.map(|action| ("ada", action)),
        "a change without an effect is not in the log"
    );
    assert_eq!(log[4].job_ids, Some(vec![running, waiting]));
    Ok(())
}

#[tokio::test]
async fn jobs_that_match_a_filter_are_changed_a_page_at_a_time() -> Result<()> {
    let db = TestDb::new().await?;
    let jobs = (0..25).map(|n| NewJob::raw(if n % 5 == 0 { "rare" } else { "common" }, "{}"));
    db.pitwheel().enqueue_many(jobs).await?;
    let mut filter =
        Filter { kind: Some("common".into()), state: Some(State::Waiting), limit: 7, ..Filter::default() };
    let mut changed = 0;
    loop {
        let (jobs, next) = db.pitwheel().change_matching(&filter, Change::Cancel).await?;
        changed += jobs.iter().filter(|(_, changed)| *changed == Changed::Done).count();
        filter.before = next;
        if next.is_none() {
            break;
        }
    }
    assert_eq!(changed, 20);
    assert_eq!(db.count("select count(*) from pitwheel.job").await?, 5);
    let all = Filter::default();
    let refused = db.pitwheel().change_matching(&all, Change::Delete).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "the filter names no state");
    Ok(())
}

#[tokio::test]
async fn a_retry_of_many_jobs_skips_those_whose_key_is_taken() -> Result<()> {
    let db = TestDb::new().await?;
    let enqueue = async |key: &str| db.pitwheel().enqueue(NewJob::raw("test", "{}").key(key)).await;
    let first = enqueue("a").await?.id;
    let other = enqueue("b").await?.id;
    db.pitwheel().change(&[first, other], Change::Cancel).await?;
    enqueue("a").await?;
    assert_eq!(
        db.pitwheel().change(&[first, other], Change::Retry).await?,
        [(first, Changed::KeyTaken), (other, Changed::Done)]
    );
    assert_eq!(db.state(first).await?, Some(State::Cancelled), "it is still in the history");
    Ok(())
}

#[tokio::test]
async fn a_page_of_a_filter_that_matches_few_jobs_ends_and_returns_a_cursor() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    client
        .batch_execute(
            "insert into pitwheel.job (run_at, enqueued_at, max_attempts, priority, queue, kind, payload)
        select now(), now(), 1, 0, 'default', case when n = 1 then 'rare' else 'common' end, '{}'
        from generate_series(1, 25000) as n",
        )
        .await?;
    let mut filter = Filter { kind: Some("rare".into()), ..Filter::default() };
    let (mut pages, mut found) = (0, 0);
    loop {
        let page = db.pitwheel().jobs(&filter).await?;
        (pages, found) = (pages + 1, found + page.jobs.len());
        filter.before = page.next;
        if page.next.is_none() {
            break;
        }
    }
    assert_eq!((pages, found), (3, 1));
    Ok(())
}

#[tokio::test]
async fn running_jobs_are_listed_however_many_wait() -> Result<()> {
    let db = TestDb::new().await?;
    let first = db.job().insert().await?;
    db.claim_one().await?;
    db.pitwheel().enqueue_many((0..100).map(|_| NewJob::raw("test", "{}"))).await?;
    let filter = Filter { state: Some(State::Running), limit: 10, ..Filter::default() };
    let page = db.pitwheel().jobs(&filter).await?;
    assert_eq!(page.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [first]);
    Ok(())
}

#[tokio::test]
async fn a_quiet_worker_claims_nothing_until_it_is_resumed() -> Result<()> {
    let db = TestDb::new().await?;
    let pitwheel = db.pitwheel();
    let worker = db.register().await?;
    db.job().insert().await?;
    assert!(pitwheel.command_worker(worker, WorkerCommand::Quiet).await?);
    assert!(db.claim_as(worker, 1).await?.is_empty());
    assert_eq!(pitwheel.workers(None, 0, false).await?[0].state(), "quiet");
    assert!(pitwheel.command_worker(worker, WorkerCommand::Resume).await?);
    assert_eq!(db.claim_as(worker, 1).await?.len(), 1);
    assert_eq!(pitwheel.workers(None, 0, false).await?[0].running, 1);

    assert!(pitwheel.command_worker(worker, WorkerCommand::Drain).await?);
    assert!(!pitwheel.command_worker(worker, WorkerCommand::Resume).await?, "it may have ended already");
    assert_eq!(pitwheel.workers(None, 0, false).await?[0].state(), "draining");
    assert!(!pitwheel.command_worker(4711, WorkerCommand::Quiet).await?);
    Ok(())
}

#[tokio::test]
async fn a_pause_is_in_the_audit_log_once() -> Result<()> {
    let db = TestDb::new().await?;
    let bob = db.pitwheel().acting_as("bob");
    bob.pause(Some("mail")).await?;
    bob.pause(Some("mail")).await?;
    assert!(bob.resume(Some("mail")).await?);
    assert!(!bob.resume(Some("mail")).await?);
    let log = bob.audit(None, 0).await?;
    let actions: Vec<&str> = log.iter().map(|entry| entry.action.as_str()).collect();
    assert_eq!(actions, ["queue.resume", "queue.pause"]);
    assert_eq!(log[0].subject.as_deref(), Some("mail"));
    Ok(())
}

#[tokio::test]
async fn only_the_hash_of_a_token_is_stored() -> Result<()> {
    let db = TestDb::new().await?;
    let (token, secret) = db.pitwheel().create_token("ci", Role::Producer, None).await?;
    assert_eq!(db.pitwheel().tokens().await?, std::slice::from_ref(&token));
    let kept = "select count(*) from pitwheel.token where token::text like '%' || $1 || '%'";
    let client = db.client().await?;
    assert_eq!(client.query_one(kept, &[&&secret[10..]]).await?.get::<_, i64>(0), 0);
    assert!(matches!(db.pitwheel().create_token("ci", Role::Admin, None).await, Err(Error::Invalid(_))));
    assert!(db.pitwheel().revoke_token("ci").await?);
    assert!(!db.pitwheel().revoke_token("ci").await?);
    assert!(db.pitwheel().tokens().await?.is_empty());
    db.pitwheel().create_token("ci", Role::Admin, None).await?;
    Ok(())
}
