//! Jobs of one lane run one at a time, in the order of their enqueue, through every door.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};
use pitwheel::engine::{Ending, SettleResult, Settlement, promote_checked, settle};
use pitwheel::{
    Change, Changed, Context, Error, Filter, History, Lane, LaneFilter, NewJob, Settled, State, transaction,
};
use pitwheel_testkit::{TestDb, Work, start_worker, wait_until, worker};
use serde_json::json;

fn test_job() -> NewJob {
    NewJob::raw("test", "{}")
}

async fn enqueue(db: &TestDb, lane: &str) -> Result<i64> {
    Ok(db.pitwheel().enqueue(test_job().lane(lane)).await?.id)
}

async fn states<const N: usize>(db: &TestDb, ids: [i64; N]) -> Result<[Option<State>; N]> {
    let mut states = [None; N];
    for (state, id) in states.iter_mut().zip(ids) {
        *state = db.state(id).await?;
    }
    Ok(states)
}

const WAITING: Option<State> = Some(State::Waiting);
const BLOCKED: Option<State> = Some(State::Blocked);
const DONE: Option<State> = Some(State::Done);

fn failed(after: Duration) -> Ending {
    let error = pitwheel::engine::error_entry(pitwheel::engine::Cause::Error, "no", 1, "test");
    Ending::Retry { delay: after, error }
}

#[tokio::test]
async fn a_worker_runs_them_one_at_a_time_and_in_order() -> Result<()> {
    let db = TestDb::new().await?;
    let (running, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(std::sync::Mutex::new(Vec::new())));
    let (counter, order) = (running.clone(), seen.clone());
    let handler = move |work: Work, context: Context| {
        let (running, seen) = (counter.clone(), order.clone());
        async move {
            if context.lane().is_none() {
                return Ok(());
            }
            let beside = running.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            running.fetch_sub(1, Ordering::SeqCst);
            seen.lock().map_err(|_| "poisoned")?.push(work.n);
            if beside == 0 { Ok(()) } else { Err("another job of the lane runs") }
        }
    };
    let lane = Lane::of(json!(["tenant", 7, null]))?;
    let jobs = (0..300).map(|n| {
        let job = NewJob::of(&Work { n });
        if n % 3 == 0 { job } else { job.lane(lane.clone()) }
    });
    db.pitwheel().enqueue_many(jobs).await?;
    let started = start_worker(worker(db.pitwheel()).handle(handler));
    wait_until("all are done", async || Ok(db.count("select count(*) from pitwheel.job").await? == 0))
        .await?;
    started.stop().await?;
    let ran = seen.lock().map_err(|_| anyhow::anyhow!("poisoned"))?.clone();
    assert_eq!(ran, (0..300).filter(|n| n % 3 != 0).collect::<Vec<i64>>(), "each once, in order");
    Ok(())
}

#[tokio::test]
async fn only_the_head_is_claimable_and_its_end_promotes_the_next() -> Result<()> {
    let db = TestDb::new().await?;
    let ids = [enqueue(&db, "a").await?, enqueue(&db, "a").await?, enqueue(&db, "a").await?];
    let other = enqueue(&db, "b").await?;
    assert_eq!(states(&db, ids).await?, [WAITING, BLOCKED, BLOCKED]);
    let claimed = db.claim(10).await?;
    assert_eq!(claimed.iter().map(|job| job.claim.id).collect::<Vec<_>>(), [ids[0], other]);
    assert_eq!(claimed[0].lane.as_deref(), Some("\"a\""));
    assert!(db.claim(10).await?.is_empty(), "the others are blocked");

    assert_eq!(db.complete(&claimed[0]).await?, Settled::Written);
    assert_eq!(states(&db, ids).await?, [DONE, WAITING, BLOCKED]);
    let second = db.claim_one().await?;
    assert_eq!(
        db.settle(&second, Ending::done(History::FailuresOnly, Some(second.ctid))).await?,
        Settled::Written
    );
    assert_eq!(states(&db, ids).await?, [DONE, None, WAITING]);
    let third = db.claim_one().await?;
    assert_eq!(db.settle(&third, Ending::dead("{\"message\": \"no\"}".into())).await?, Settled::Written);
    assert_eq!(db.state(ids[2]).await?, Some(State::Dead));
    assert_eq!(db.promote().await?, 0, "the lane is empty");
    assert_eq!(db.count("select count(*) from pitwheel.lane_check").await?, 0);
    Ok(())
}

#[tokio::test]
async fn every_end_of_the_head_promotes_the_next() -> Result<()> {
    let db = TestDb::new().await?;
    let claim = async || -> Result<pitwheel::engine::Claimed> { db.claim_one().await };
    let lane = || test_job().lane("a");
    db.pitwheel().enqueue_many((0..8).map(|_| lane())).await?;
    let next = async |end: &str| -> Result<()> {
        let heads = "select count(*) from pitwheel.job where lane is not null and run_at < 'infinity' and holder is null";
        assert_eq!(db.count(heads).await?, 1, "after {end}");
        Ok(())
    };

    let buried = claim().await?;
    assert_eq!(db.settle(&buried, Ending::dead("{}".into())).await?, Settled::Written);
    next("a burial").await?;
    let dead = db.pitwheel().job(buried.claim.id).await?;
    assert_eq!((dead.summary.state, dead.summary.lane.as_deref()), (State::Dead, Some("\"a\"")), "it shows");
    let head = db.count("select min(id) from pitwheel.job").await?;
    db.pitwheel().cancel(head).await?;
    next("a cancel").await?;
    let head = db.count("select min(id) from pitwheel.job").await?;
    assert_eq!(db.pitwheel().change(&[head], Change::Delete).await?, [(head, Changed::Done)]);
    next("a delete").await?;
    let client = db.client().await?;
    let job = claim().await?.claim;
    let sql = "select pitwheel.complete($1, $2, holder => $3)";
    assert!(client.query_one(sql, &[&job.id, &job.fence, &job.holder]).await?.get::<_, bool>(0));
    next("pitwheel.complete").await?;
    client.execute("delete from pitwheel.job where run_at < 'infinity'", &[]).await?;
    next("a delete by hand").await?;
    let job = claim().await?;
    let done = Settlement::new(
        job.claim,
        Ending::Done { history: History::All, ctid: None, result: Some("1".into()), then: vec![lane()] },
    );
    assert_eq!(settle(&client, &[done], &[]).await?, [SettleResult::Written]);
    next("a result and a follower").await?;
    assert_eq!(db.count("select count(*) from pitwheel.job where lane = '\"a\"'").await?, 3);
    // Its crash leaves it where it is: it is the head until it is buried.
    let crashed = claim().await?;
    db.expire_holder(&crashed).await?;
    db.sweep().await?;
    next("a crash").await?;
    assert_eq!(claim().await?.claim.id, crashed.claim.id);
    Ok(())
}

#[tokio::test]
async fn a_job_enqueued_in_a_users_transaction_is_found() -> Result<()> {
    let db = TestDb::new().await?;
    let mut client = db.client().await?;
    let transaction = client.transaction().await?;
    let first = transaction::tokio_postgres::enqueue(&transaction, [test_job().lane("a")]).await?[0].id;
    let in_sql = "select pitwheel.enqueue('test', lane => '[\"a\", 1]')";
    let second: i64 = transaction.query_one(in_sql, &[]).await?.get(0);
    transaction.commit().await?;
    let third = db.job().lane("[ \"a\" , 1 ]").insert().await?;
    assert_eq!(states(&db, [first, second, third]).await?, [BLOCKED, BLOCKED, BLOCKED]);
    assert_eq!(db.promote().await?, 2);
    assert_eq!(states(&db, [first, second, third]).await?, [WAITING, WAITING, BLOCKED]);
    assert_eq!(db.promote().await?, 0);
    Ok(())
}

#[tokio::test]
async fn the_maintenance_of_a_worker_finds_it_within_seconds() -> Result<()> {
    let db = TestDb::new().await?;
    let running =
        start_worker(worker(db.pitwheel()).handle(async |_: Work, _: Context| Ok::<(), String>(())));
    let client = db.client().await?;
    let sql = "select pitwheel.enqueue('work', '{\"n\": 1}', lane => '\"a\"') from generate_series(1, 3)";
    client.execute(sql, &[]).await?;
    wait_until("all are done", async || Ok(db.count("select count(*) from pitwheel.job").await? == 0))
        .await?;
    running.stop().await?;
    Ok(())
}

/// One look of the maintenance promotes up to 5,000.
#[tokio::test]
async fn a_backlog_of_lanes_is_promoted_without_long_pauses() -> Result<()> {
    const LANES: i64 = 15_000;
    let db = TestDb::new().await?;
    let client = db.client().await?;
    let sql =
        "select pitwheel.enqueue('test', lane => to_json(n::text)) from generate_series(1, $1::bigint) as n";
    client.execute(sql, &[&LANES]).await?;
    let running =
        start_worker(worker(db.pitwheel()).handle(async |_: Work, _: Context| Ok::<(), String>(())));
    let heads = async || db.count("select count(*) from pitwheel.job where run_at < 'infinity'").await;
    let begun = Instant::now();
    wait_until("a look has ended", async || Ok(heads().await? >= LANES / 3)).await?;
    let first = begun.elapsed();
    wait_until("all are promoted", async || Ok(heads().await? == LANES)).await?;
    // Two more looks; with pauses in proportion it is 23 times as long.
    assert!(begun.elapsed() < first * 10, "{:?}, {first:?} of it for the first look", begun.elapsed());
    running.stop().await?;
    Ok(())
}

#[tokio::test]
async fn nulls_and_spaces_name_the_same_lane() -> Result<()> {
    let db = TestDb::new().await?;
    let lane = Lane::of(json!(["a", null, 1, true]))?;
    let first = db.pitwheel().enqueue(test_job().lane(lane.clone())).await?.id;
    let second = db.job().lane("[\"a\",null , 1,true]").insert().await?;
    let third = db.pitwheel().enqueue(test_job().lane(lane)).await?.id;
    db.promote().await?;
    assert_eq!(states(&db, [first, second, third]).await?, [WAITING, BLOCKED, BLOCKED]);
    let other = db.pitwheel().enqueue(test_job().lane(Lane::of(json!(["a", null, 2, true]))?)).await?.id;
    assert_eq!(db.state(other).await?, WAITING);
    Ok(())
}

#[tokio::test]
async fn what_cannot_name_a_lane_is_refused() -> Result<()> {
    let db = TestDb::new().await?;
    for bad in [json!(null), json!(1), json!([]), json!([1.5]), json!([["a"]]), json!({"a": 1})] {
        assert!(matches!(Lane::of(bad.clone()), Err(Error::Invalid(_))), "{bad}");
        assert!(db.job().lane(&bad.to_string()).insert().await.is_err(), "{bad}");
    }
    let long = test_job().lane("x".repeat(600));
    assert!(matches!(db.pitwheel().enqueue(long).await, Err(Error::Invalid(_))));
    assert!(db.job().lane(&json!("x".repeat(600)).to_string()).insert().await.is_err());
    let no_lane = test_job().lane_pass(true);
    assert!(matches!(db.pitwheel().enqueue(no_lane).await, Err(Error::Invalid(_))));
    assert_eq!(db.count("select count(*) from pitwheel.job").await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_failed_head_keeps_its_lane_waiting_unless_it_lets_others_pass() -> Result<()> {
    let db = TestDb::new().await?;
    let ids = [enqueue(&db, "a").await?, enqueue(&db, "a").await?];
    let first = db.claim_one().await?;
    assert_eq!(db.settle(&first, failed(Duration::from_secs(3600))).await?, Settled::Written);
    db.promote().await?;
    assert_eq!(states(&db, ids).await?, [WAITING, BLOCKED], "it waits for its retry");
    assert!(db.claim(10).await?.is_empty());

    let pass = |n: u64| test_job().lane("b").lane_pass(true).priority(n as i16);
    let jobs = db.pitwheel().enqueue_many((0..3).map(pass)).await?;
    let ids = [jobs[0].id, jobs[1].id, jobs[2].id];
    let first = db.claim_one().await?;
    assert_eq!(first.claim.id, ids[0]);
    assert_eq!(db.settle(&first, failed(Duration::from_secs(3600))).await?, Settled::Written);
    db.promote().await?;
    assert_eq!(states(&db, ids).await?, [BLOCKED, WAITING, BLOCKED], "the next one passes");
    let lane = Lane::from("b");
    let current =
        async || -> Result<i64> { Ok(db.pitwheel().lane_current(&lane).await?.context("none")?.id) };
    assert_eq!(current().await?, ids[0], "until the next one is claimed");
    let second = db.claim_one().await?;
    assert_eq!(current().await?, ids[1]);
    assert_eq!(db.complete(&second).await?, Settled::Written);
    assert_eq!(states(&db, ids).await?, [BLOCKED, DONE, WAITING]);
    let third = db.claim_one().await?;
    assert_eq!(db.complete(&third).await?, Settled::Written);
    db.promote().await?;
    assert_eq!(
        states(&db, ids).await?,
        [WAITING, DONE, DONE],
        "only the failed one is left, and waits for its time"
    );
    assert!(db.claim(10).await?.is_empty());
    // One that comes now does not wait for it.
    let fourth = db.pitwheel().enqueue(pass(0)).await?.id;
    assert_eq!(states(&db, [ids[0], fourth]).await?, [BLOCKED, WAITING]);
    assert_eq!(current().await?, ids[2]);
    assert_eq!(db.pitwheel().change(&[ids[0]], Change::Reschedule(None)).await?, [(ids[0], Changed::Done)]);
    assert_eq!(db.complete(&db.claim_one().await?).await?, Settled::Written);
    assert_eq!(db.claim_one().await?.claim.id, ids[0], "its time has come");
    Ok(())
}

/// Of jobs that all wait for their time and let others pass, the one whose time comes first is the head.
#[tokio::test]
async fn a_job_that_may_pass_does_not_wait_for_the_time_of_the_head() -> Result<()> {
    let db = TestDb::new().await?;
    let pitwheel = db.pitwheel();
    let in_hours = |hours: u64| {
        pitwheel.enqueue(test_job().lane("a").lane_pass(true).delay(Duration::from_secs(3600 * hours)))
    };
    let (three, two, four) = (in_hours(3).await?.id, in_hours(2).await?.id, in_hours(4).await?.id);
    assert_eq!(states(&db, [three, two, four]).await?, [BLOCKED, WAITING, BLOCKED]);

    // A node finds that another one comes first now.
    pitwheel.change(&[four], Change::Reschedule(None)).await?;
    assert_eq!(db.promote().await?, 1);
    assert_eq!(states(&db, [three, two, four]).await?, [BLOCKED, BLOCKED, WAITING]);
    assert_eq!(db.claim(9).await?.iter().map(|job| job.claim.id).collect::<Vec<_>>(), [four]);
    Ok(())
}

/// A job that lets no others pass keeps those behind it waiting, not those before it.
#[tokio::test]
async fn a_job_that_may_pass_does_not_wait_for_one_behind_it() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    let in_hours = |hours: u64, pass: bool| {
        test_job().lane("a").lane_pass(pass).delay(Duration::from_secs(3600 * hours))
    };
    let in_three_hours = SystemTime::now() + Duration::from_secs(3 * 3600);
    // The next job is looked for by done_in_lanes, or by the trigger.
    for in_lane in [true, false] {
        let running = enqueue(&db, "a").await?;
        let jobs = [in_hours(1, true), in_hours(2, false), in_hours(0, true)];
        let jobs = db.pitwheel().enqueue_many(jobs).await?;
        let [before, waits, behind] = [jobs[0].id, jobs[1].id, jobs[2].id];
        let claimed = db.claim_one().await?;
        assert_eq!(claimed.claim.id, running);
        let ending = Ending::done(History::All, Some(claimed.ctid));
        let settlement = Settlement { in_lane, ..Settlement::new(claimed.claim, ending) };
        assert_eq!(settle(&client, &[settlement], &[]).await?, [SettleResult::Written]);
        db.promote().await?;
        assert_eq!(states(&db, [before, waits, behind]).await?, [WAITING, BLOCKED, BLOCKED]);

        // The order is kept behind the one that waits, also when its time comes first.
        db.pitwheel().change(&[before], Change::Reschedule(Some(in_three_hours))).await?;
        db.promote().await?;
        assert_eq!(states(&db, [before, waits, behind]).await?, [BLOCKED, WAITING, BLOCKED]);
        db.pitwheel().change(&[before, waits, behind], Change::Delete).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_delayed_head_keeps_its_lane_waiting() -> Result<()> {
    let db = TestDb::new().await?;
    let later = test_job().lane("a").delay(Duration::from_secs(3600));
    let first = db.pitwheel().enqueue(later).await?.id;
    let second = enqueue(&db, "a").await?;
    assert_eq!(states(&db, [first, second]).await?, [WAITING, BLOCKED]);
    assert!(db.claim(10).await?.is_empty());
    db.pitwheel().change(&[first], Change::Reschedule(None)).await?;
    assert_eq!(db.claim_one().await?.claim.id, first);
    Ok(())
}

#[tokio::test]
async fn a_blocked_job_that_leaves_its_lane_promotes_nothing() -> Result<()> {
    let db = TestDb::new().await?;
    let ids = [enqueue(&db, "a").await?, enqueue(&db, "a").await?, enqueue(&db, "a").await?];
    db.pitwheel().cancel(ids[1]).await?;
    assert_eq!(db.state(ids[0]).await?, Some(State::Waiting));
    assert_eq!(db.state(ids[2]).await?, BLOCKED);
    Ok(())
}

#[tokio::test]
async fn the_job_that_was_claimed_last_is_current() -> Result<()> {
    let db = TestDb::new().await?;
    let lane = Lane::from("a");
    let current = async || -> Result<Option<i64>> {
        Ok(db.pitwheel().lane_current(&lane).await?.map(|current| current.id))
    };
    let ids = [enqueue(&db, "a").await?, enqueue(&db, "a").await?, enqueue(&db, "a").await?];
    assert_eq!(current().await?, None);
    let first = db.claim_one().await?;
    assert_eq!(current().await?, Some(ids[0]));
    assert!(db.claim(10).await?.is_empty());
    assert_eq!(current().await?, Some(ids[0]), "a claim that takes nothing clears nothing");
    assert_eq!(db.complete(&first).await?, Settled::Written);
    assert_eq!(current().await?, Some(ids[0]), "until the next one is claimed");
    db.pitwheel().cancel(ids[1]).await?;
    assert_eq!(current().await?, Some(ids[0]), "a head that was never claimed was never current");
    let third = db.claim_one().await?;
    assert_eq!(current().await?, Some(ids[2]));
    assert_eq!(
        db.settle(&third, Ending::done(History::FailuresOnly, Some(third.ctid))).await?,
        Settled::Written
    );
    assert_eq!(current().await?, Some(ids[2]), "also in an empty lane");
    db.promote().await?;
    assert_eq!(
        db.pitwheel().lane_current(&lane).await?.context("none")?.job,
        None,
        "its kind keeps no history"
    );
    let fourth = enqueue(&db, "a").await?;
    assert_eq!(current().await?, Some(ids[2]));
    db.claim_one().await?;
    assert_eq!(current().await?, Some(fourth));
    assert_eq!(db.count("select count(*) from pitwheel.current").await?, 1, "at most one");
    Ok(())
}

#[tokio::test]
async fn lists_and_counts_show_blocked_jobs_and_lanes() -> Result<()> {
    let db = TestDb::new().await?;
    let ids = [enqueue(&db, "a").await?, enqueue(&db, "a").await?, enqueue(&db, "a").await?];
    let filter = Filter { state: Some(State::Blocked), ..Filter::default() };
    let blocked = db.pitwheel().jobs(&filter).await?.jobs;
    assert_eq!(blocked.iter().map(|job| job.id).collect::<Vec<_>>(), [ids[2], ids[1]]);
    assert!(blocked.iter().all(|job| job.lane.as_deref() == Some("\"a\"") && job.run_at <= job.enqueued_at));
    let queue = db.pitwheel().queues().await?.remove(0);
    assert_eq!((queue.waiting, queue.blocked, queue.later), (1, 2, 0));
    assert_eq!(db.complete(&db.claim_one().await?).await?, Settled::Written);
    let listed = async |before, limit| -> Result<Vec<(i64, State)>> {
        let filter = LaneFilter { before, limit, ..LaneFilter::default() };
        let page = db.pitwheel().lane_jobs(&Lane::from("a"), &filter).await?;
        Ok(page.jobs.iter().map(|job| (job.id, job.state)).collect())
    };
    let all = [(ids[2], State::Blocked), (ids[1], State::Waiting), (ids[0], State::Done)];
    assert_eq!(listed(None, 0).await?, all);
    assert_eq!(listed(Some(ids[2]), 1).await?, all[1..2]);
    assert_eq!(db.pitwheel().cancel(ids[2]).await?, pitwheel::Cancelled::AtOnce);
    assert_eq!(listed(None, 1).await?, [(ids[2], State::Cancelled)]);
    db.pitwheel().retry(ids[2]).await?;
    assert_eq!(db.state(ids[2]).await?, BLOCKED, "a retried job is in its lane again");
    Ok(())
}

#[tokio::test]
async fn a_retried_job_of_an_empty_lane_is_its_head() -> Result<()> {
    let db = TestDb::new().await?;
    let id = enqueue(&db, "a").await?;
    assert_eq!(db.settle(&db.claim_one().await?, Ending::dead("{}".into())).await?, Settled::Written);
    db.pitwheel().retry(id).await?;
    assert_eq!(db.state(id).await?, WAITING);
    Ok(())
}

#[tokio::test]
async fn a_locked_successor_is_neither_waited_for_nor_passed_over() -> Result<()> {
    let db = TestDb::new().await?;
    let ids = [enqueue(&db, "a").await?, enqueue(&db, "a").await?, enqueue(&db, "a").await?];
    let first = db.claim_one().await?;
    let client = db.client().await?;
    client
        .batch_execute(&format!("begin; select from pitwheel.job where id = {} for update", ids[1]))
        .await?;
    assert_eq!(db.complete(&first).await?, Settled::Written);
    db.promote().await?;
    assert_eq!(states(&db, ids).await?, [DONE, BLOCKED, BLOCKED]);
    client.batch_execute("commit").await?;
    assert_eq!(db.promote().await?, 1);
    assert_eq!(states(&db, ids).await?, [DONE, WAITING, BLOCKED]);
    Ok(())
}

#[tokio::test]
async fn a_follower_in_a_lane_is_promoted() -> Result<()> {
    let db = TestDb::new().await?;
    let handler = async |work: Work, context: Context| -> Result<(), String> {
        if work.n > 0 {
            context.then(NewJob::of(&Work { n: work.n - 1 }).lane("a"));
        }
        Ok(())
    };
    db.pitwheel().enqueue(NewJob::of(&Work { n: 5 }).lane("a")).await?;
    let running = start_worker(worker(db.pitwheel()).handle(handler));
    let done = "select count(*) from pitwheel.job_history where state = 'done' and lane = '\"a\"'";
    wait_until("all have run", async || Ok(db.count(done).await? == 6)).await?;
    running.stop().await?;
    assert_eq!(db.state(db.count("select max(id) from pitwheel.job_history").await?).await?, DONE);
    Ok(())
}

#[tokio::test]
async fn all_lanes_in_which_nothing_runs_any_more_are_forgotten() -> Result<()> {
    let db = TestDb::new().await?;
    let sql = "insert into pitwheel.lane (lane, current_job, changed_at)
        select to_json('lane ' || n)::text, n, now() - case n % 100 when 0 then interval '1 day' else interval '40 days' end
        from generate_series(1, 25000) as n";
    db.client().await?.batch_execute(sql).await?;
    db.pitwheel().prune_history(Duration::from_secs(30 * 24 * 3600)).await?;
    assert_eq!(db.count("select count(*) from pitwheel.lane").await?, 250);
    Ok(())
}

/// More rows than one promotion reads are locked, and the transactions before them have ended.
#[tokio::test]
async fn locked_rows_of_lanes_to_look_at_hold_up_no_other_lane() -> Result<()> {
    let db = TestDb::new().await?;
    let mut client = db.client().await?;
    let insert = "insert into pitwheel.job (run_at, enqueued_at, max_attempts, priority, queue, kind, payload, lane)
        select now(), now(), 20, 0, 'default', 'test', '{}', to_json($1 || n)::text from generate_series(1, $2::int) as n";
    client.execute(insert, &[&"locked ", &150]).await?;
    let lock = client.transaction().await?;
    lock.execute("select from pitwheel.lane_check for update", &[]).await?;
    let other = db.client().await?;
    other.execute(insert, &[&"free ", &3]).await?;
    other.batch_execute("set lock_timeout = '1s'").await?;

    let promoted = promote_checked(&other, "0").await?;
    assert_eq!((promoted.queues.len(), promoted.full), (3, false));
    let heads = "select count(*) from pitwheel.job where run_at < 'infinity'";
    assert_eq!(db.count(heads).await?, 3);
    // The next look reads from where this one says, and misses no row that was locked.
    let promoted = promote_checked(&other, &promoted.first).await?;
    assert_eq!(promoted.queues.len(), 0);
    lock.rollback().await?;
    let mut first = promoted.first;
    for (count, full) in [(100, true), (50, false), (0, false)] {
        let promoted = promote_checked(&other, &first).await?;
        assert_eq!((promoted.queues.len(), promoted.full), (count, full));
        first = promoted.first;
    }
    assert_eq!(db.count(heads).await?, 153);
    assert_ne!(first, "0", "with no row left, the next look reads from the oldest open transaction on");
    Ok(())
}
