//! Whatever a handler does, its attempt is recorded and the worker keeps running.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use pitwheel::{Context, History, Job, JobDetail, NewJob, State, Verdict};
use pitwheel_testkit::{TestDb, Work, start_worker, wait_until, worker};
use serde::{Deserialize, Serialize};

/// Runs one job with the handler until it is as wanted; returns the job.
async fn run_until<F, Fut, V>(
    db: &TestDb,
    job: NewJob,
    handler: F,
    wanted: fn(&JobDetail) -> bool,
) -> Result<JobDetail>
where
    F: Fn(Work, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<V, String>> + Send + 'static,
    V: Into<Verdict>,
{
    let id = db.pitwheel().enqueue(job).await?.id;
    let running = start_worker(worker(db.pitwheel()).handle(handler));
    wait_until("the job is as wanted", async || Ok(wanted(&db.pitwheel().job(id).await?))).await?;
    let stats = running.stop().await?;
    assert_eq!(stats.lost, 0);
    Ok(db.pitwheel().job(id).await?)
}

fn is_finished(job: &JobDetail) -> bool {
    job.summary.finished_at.is_some()
}

fn has_failed_once(job: &JobDetail) -> bool {
    job.errors.as_array().is_some_and(|errors| errors.len() == 1)
}

fn error(job: &JobDetail, at: usize) -> (i64, String, String) {
    let entry = &job.errors[at];
    let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
    assert!(!text("at").is_empty() && text("worker") == "tester");
    (entry["attempt"].as_i64().unwrap_or_default(), text("cause"), text("message"))
}

#[tokio::test]
async fn a_done_job_is_in_the_history() -> Result<()> {
    let db = TestDb::new().await?;
    let job = run_until(&db, (&Work { n: 1 }).into(), async |_, _| Ok(()), is_finished).await?;
    assert_eq!((job.summary.state, job.summary.attempt, job.fence), (State::Done, 1, 1));
    assert_eq!(db.count("select count(*) from pitwheel.hold").await?, 0);
    assert_eq!(db.count("select count(*) from pitwheel.worker where dead_at is null").await?, 0);
    assert_eq!(db.count("select count(*) from pitwheel.job_history_default").await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_job_that_fails_waits_for_its_next_attempt() -> Result<()> {
    let db = TestDb::new().await?;
    let handler = async |_: Work, _: Context| Err::<(), _>("failed".to_owned());
    let job = run_until(&db, (&Work { n: 1 }).into(), handler, has_failed_once).await?;
    assert_eq!((job.summary.state, job.summary.attempt), (State::Waiting, 1));
    assert_eq!(error(&job, 0), (1, "error".into(), "failed".into()));
    Ok(())
}

#[tokio::test]
async fn a_job_out_of_attempts_is_dead_and_keeps_every_error() -> Result<()> {
    let db = TestDb::new().await?;
    let handler = async |_: Work, context: Context| {
        Ok::<_, String>(Verdict::retry_after(Duration::ZERO, format!("no {}", context.attempt())))
    };
    let job = run_until(&db, (&Work { n: 1 }).into(), handler, is_finished).await?;
    assert_eq!((job.summary.state, job.summary.attempt), (State::Dead, 3));
    assert_eq!(error(&job, 0), (1, "error".into(), "no 1".into()));
    assert_eq!(error(&job, 2), (3, "error".into(), "no 3".into()));
    Ok(())
}

#[tokio::test]
async fn a_panic_is_a_failed_attempt() -> Result<()> {
    let db = TestDb::new().await?;
    async fn panics(work: Work, _: Context) -> Result<(), String> {
        assert_eq!(work.n, 2, "on purpose");
        Ok(())
    }
    let job = run_until(&db, (&Work { n: 1 }).into(), panics, has_failed_once).await?;
    let (attempt, cause, message) = error(&job, 0);
    assert_eq!((attempt, cause.as_str()), (1, "panic"));
    assert!(message.contains("on purpose"));
    Ok(())
}

#[tokio::test]
async fn a_timeout_is_a_failed_attempt() -> Result<()> {
    let db = TestDb::new().await?;
    let job = NewJob::of(&Work { n: 1 }).timeout(Duration::from_millis(20));
    let handler = async |_: Work, _: Context| {
        std::future::pending::<()>().await;
        Ok(())
    };
    let job = run_until(&db, job, handler, has_failed_once).await?;
    assert_eq!(error(&job, 0).1, "timeout");
    Ok(())
}

#[tokio::test]
async fn a_panic_while_a_handler_is_dropped_at_its_timeout_is_a_failed_attempt() -> Result<()> {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
    let db = TestDb::new().await?;
    let job = NewJob::of(&Work { n: 1 }).timeout(Duration::from_millis(20));
    let handler = async |_: Work, _: Context| {
        let _bomb = Bomb;
        std::future::pending::<()>().await;
        Ok(())
    };
    let job = run_until(&db, job, handler, has_failed_once).await?;
    assert_eq!((error(&job, 0).1, error(&job, 0).2), ("panic".to_owned(), "dropped".to_owned()));
    Ok(())
}

#[tokio::test]
async fn a_payload_of_the_wrong_type_is_a_failed_attempt() -> Result<()> {
    let db = TestDb::new().await?;
    let job = NewJob::raw("work", r#"{"n":"one"}"#);
    let job = run_until(&db, job, async |_, _| Ok(()), has_failed_once).await?;
    let (_, cause, message) = error(&job, 0);
    assert_eq!(cause, "payload");
    assert!(message.contains("expected i64") && !message.contains("one"), "{message}");
    Ok(())
}

#[tokio::test]
async fn a_snooze_costs_no_attempt() -> Result<()> {
    let db = TestDb::new().await?;
    let runs = Arc::new(AtomicUsize::new(0));
    let handler = move |_: Work, _: Context| {
        let run = runs.fetch_add(1, Ordering::Relaxed);
        async move { Ok(if run < 9 { Verdict::Snooze(Duration::ZERO) } else { Verdict::complete().into() }) }
    };
    let job = run_until(&db, (&Work { n: 1 }).into(), handler, is_finished).await?;
    assert_eq!((job.summary.state, job.summary.attempt, job.fence), (State::Done, 1, 10));
    Ok(())
}

#[tokio::test]
async fn a_snoozed_job_waits_for_the_given_time() -> Result<()> {
    let db = TestDb::new().await?;
    let handler = async |_: Work, _: Context| Ok(Verdict::Snooze(Duration::from_secs(3600)));
    let snoozed = |job: &JobDetail| job.fence == 1 && job.summary.state == State::Waiting;
    let job = run_until(&db, (&Work { n: 1 }).into(), handler, snoozed).await?;
    let wait = job.summary.run_at.duration_since(SystemTime::now())?;
    assert!(wait > Duration::from_secs(3500) && wait < Duration::from_secs(3700));
    Ok(())
}

#[tokio::test]
async fn a_buried_job_is_dead_at_once() -> Result<()> {
    let db = TestDb::new().await?;
    let handler = async |_: Work, _: Context| Ok(Verdict::bury("no such customer"));
    let job = run_until(&db, (&Work { n: 1 }).into(), handler, is_finished).await?;
    assert_eq!((job.summary.state, job.summary.attempt), (State::Dead, 1));
    assert_eq!(error(&job, 0).2, "no such customer");
    Ok(())
}

#[tokio::test]
async fn a_result_is_kept() -> Result<()> {
    let db = TestDb::new().await?;
    let handler = async |_: Work, _: Context| {
        Verdict::complete_with(&serde_json::json!({"rows": 18_446_744_073_709_551_615_u64}))
            .map(Verdict::from)
            .map_err(|e| e.to_string())
    };
    let job = run_until(&db, (&Work { n: 1 }).into(), handler, is_finished).await?;
    assert_eq!(job.result.as_deref(), Some(r#"{"rows":18446744073709551615}"#));
    Ok(())
}

#[tokio::test]
async fn hostile_messages_are_recorded_and_do_not_stop_other_jobs() -> Result<()> {
    let db = TestDb::new().await?;
    let other = db.pitwheel().enqueue(&Work { n: 2 }).await?.id;
    let handler = async |work: Work, context: Context| {
        context.progress(f32::NAN, "nul \0 and more");
        if work.n == 2 { Ok(()) } else { Err(format!("\0 \u{FFFF} \" {}", "é".repeat(100_000))) }
    };
    let job = run_until(&db, (&Work { n: 1 }).into(), handler, has_failed_once).await?;
    assert!(error(&job, 0).2.chars().count() <= 4000);
    assert_eq!(db.pitwheel().job(other).await?.summary.state, State::Done);
    Ok(())
}

#[derive(Serialize, Deserialize)]
struct FailuresOnly {
    fails: bool,
}

impl Job for FailuresOnly {
    const KIND: &'static str = "failures_only";
    const MAX_ATTEMPTS: u32 = 1;
    const HISTORY: History = History::FailuresOnly;
}

#[tokio::test]
async fn a_kind_can_keep_only_its_failures_in_the_history() -> Result<()> {
    let db = TestDb::new().await?;
    db.pitwheel().enqueue_many([&FailuresOnly { fails: false }, &FailuresOnly { fails: true }]).await?;
    let handler = async |job: FailuresOnly, _: Context| if job.fails { Err("no") } else { Ok(()) };
    let running = start_worker(worker(db.pitwheel()).handle(handler));
    wait_until("both are finished", async || Ok(db.count("select count(*) from pitwheel.job").await? == 0))
        .await?;
    running.stop().await?;
    assert_eq!(db.count("select count(*) from pitwheel.job_history where state = 'dead'").await?, 1);
    assert_eq!(db.count("select count(*) from pitwheel.job_history where state = 'done'").await?, 0);
    Ok(())
}
