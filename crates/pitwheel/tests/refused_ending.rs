//! An ending that Postgres refuses fails alone: the others of its batch are written.

use std::time::{Duration, Instant};

use anyhow::Result;
use pitwheel::engine::{Ending, SettleResult, Settlement, settle};
use pitwheel::{Change, Context, History, NewJob, State, Verdict};
use pitwheel_testkit::{TestDb, Work, start_worker, wait_until, worker};

/// Postgres refuses this result and this follower, as it may refuse what the checks of the library let through.
const REFUSE: &str = r#"
    create function refuse() returns trigger language plpgsql as $$
    begin
        raise exception 'this is refused' using errcode = '22023';
    end $$;
    create trigger refuse before insert on pitwheel.job_history for each row when (new.result::text = '"bad"')
        execute function refuse();
    create trigger refuse before insert on pitwheel.job for each row when (new.kind = 'bad') execute function refuse();"#;

#[tokio::test]
async fn the_other_endings_of_a_batch_are_written_once() -> Result<()> {
    let db = TestDb::new().await?;
    db.client().await?.batch_execute(REFUSE).await?;
    for _ in 0..40 {
        db.job().insert().await?;
    }
    let error = r#"{"attempt": 1, "cause": "error", "message": "no", "worker": "test"}"#;
    let done = |result: Option<&str>, then| Ending::Done {
        history: History::All,
        ctid: None,
        result: result.map(str::to_owned),
        then,
    };
    let jobs = db.claim(40).await?;
    let batch: Vec<Settlement> = jobs
        .iter()
        .enumerate()
        .map(|(n, job)| {
            let ending = match n {
                7 | 8 => done(Some(r#""bad""#), Vec::new()),
                30 => done(None, vec![NewJob::raw("bad", "{}")]),
                // The entry is no JSON.
                31 => Ending::Retry { delay: Duration::ZERO, error: "no".into() },
                n if n % 4 == 0 => Ending::done(History::All, Some(job.ctid)),
                n if n % 4 == 1 => Ending::done(History::FailuresOnly, Some(job.ctid)),
                n if n % 4 == 2 => done(Some("1"), Vec::new()),
                _ => Ending::Retry { delay: Duration::ZERO, error: error.into() },
            };
            Settlement::new(job.claim, ending)
        })
        .collect();
    let results = settle(&db.client().await?, &batch, &[]).await?;
    for (n, result) in results.iter().enumerate() {
        if [7, 8, 30, 31].contains(&n) {
            assert!(
                matches!(result, SettleResult::Refused(problem) if !problem.is_empty()),
                "{n}: {result:?}"
            );
            assert_eq!(db.state(jobs[n].claim.id).await?, Some(State::Running), "{n}");
        } else {
            assert_eq!(*result, SettleResult::Written, "{n}");
        }
    }
    assert_eq!(db.count("select count(*) from (select id from pitwheel.job_history group by id having count(*) > 1) as twice").await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_worker_retries_the_job_and_settles_the_others() -> Result<()> {
    let db = TestDb::new().await?;
    db.client().await?.batch_execute(REFUSE).await?;
    let handler = async |work: Work, context: Context| match work.n {
        7 => Verdict::complete_with(&"bad").map_err(anyhow::Error::from),
        8 => {
            context.then(NewJob::raw("bad", "{}"));
            Ok(Verdict::complete())
        }
        _ => Ok(Verdict::complete()),
    };
    let jobs = db.pitwheel().enqueue_many((0..50).map(|n| NewJob::of(&Work { n }))).await?;
    let running = start_worker(worker(db.pitwheel()).handle(handler));
    let done = "select count(*) from pitwheel.job_history where state = 'done'";
    let waiting = "select count(*) from pitwheel.job where holder is null and errors is not null";
    wait_until("the others are done and two wait", async || {
        Ok(db.count(done).await? == 48 && db.count(waiting).await? == 2)
    })
    .await?;
    for n in [7, 8] {
        let message = db.pitwheel().job(jobs[n].id).await?.errors[0]["message"].to_string();
        assert!(message.contains("this is refused"), "{message}");
    }
    assert_eq!(running.stop().await?.lost, 0);
    Ok(())
}

#[tokio::test]
async fn a_damaged_row_delays_no_other_ending() -> Result<()> {
    let db = TestDb::new().await?;
    db.client().await?.batch_execute(&REFUSE.replace("22023", "XX001")).await?;
    let handler = async |work: Work, _: Context| match work.n {
        7 => Verdict::complete_with(&"bad").map_err(anyhow::Error::from),
        _ => Ok(Verdict::complete()),
    };
    db.pitwheel().enqueue_many((0..50).map(|n| NewJob::of(&Work { n }))).await?;
    let running = start_worker(worker(db.pitwheel()).handle(handler));
    let done = "select count(*) from pitwheel.job_history where state = 'done'";
    wait_until("the others are done", async || Ok(db.count(done).await? == 49)).await?;
    let failed = "select count(*) from pitwheel.job where errors is not null";
    assert_eq!(db.count(failed).await?, 0, "its values are not to blame");
    db.client().await?.batch_execute("drop trigger refuse on pitwheel.job_history").await?;
    wait_until("it is done too", async || Ok(db.count(done).await? == 50)).await?;
    assert_eq!(running.stop().await?.lost, 0);
    Ok(())
}

#[tokio::test]
async fn progress_that_postgres_refuses_delays_no_ending() -> Result<()> {
    let db = TestDb::new().await?;
    let refuse = "create function refuse() returns trigger language plpgsql as $$
        begin
            raise exception 'this is refused' using errcode = '22P05';
        end $$;
        create trigger refuse before update of progress on pitwheel.job for each row when (new.progress is not null)
            execute function refuse();";
    db.client().await?.batch_execute(refuse).await?;
    let handler = async |_: Work, context: Context| {
        context.progress(0.5, "half");
        Ok::<_, String>(())
    };
    db.pitwheel().enqueue_many((0..50).map(|n| NewJob::of(&Work { n }))).await?;
    let running = start_worker(worker(db.pitwheel()).handle(handler));
    let done = "select count(*) from pitwheel.job_history where state = 'done'";
    wait_until("all are done", async || Ok(db.count(done).await? == 50)).await?;
    assert_eq!(running.stop().await?.lost, 0);
    Ok(())
}

#[tokio::test]
async fn a_worker_buries_the_job_after_its_last_attempt() -> Result<()> {
    let db = TestDb::new().await?;
    db.client().await?.batch_execute(REFUSE).await?;
    let handler = async |_: Work, _: Context| Verdict::complete_with(&"bad").map_err(anyhow::Error::from);
    let id = db.pitwheel().enqueue(NewJob::of(&Work { n: 1 }).max_attempts(2)).await?.id;
    let running = start_worker(worker(db.pitwheel()).handle(handler));
    let waits = "select count(*) from pitwheel.job where holder is null and attempt = 1";
    wait_until("the first attempt failed", async || Ok(db.count(waits).await? == 1)).await?;
    db.pitwheel().change(&[id], Change::Reschedule(None)).await?;
    wait_until("the job is dead", async || Ok(db.state(id).await? == Some(State::Dead))).await?;
    let errors = db.pitwheel().job(id).await?.errors;
    assert_eq!((errors[0]["attempt"].as_u64(), errors[1]["attempt"].as_u64()), (Some(1), Some(2)));
    assert_eq!(running.stop().await?.lost, 0);
    Ok(())
}

/// Refuses every ending of the first job until the sequence has counted to 5. It counts refused writes too, because a rollback does not
/// change a sequence.
const REFUSE_ALL: &str = r#"
    create sequence writes;
    create function refuse_all() returns trigger language plpgsql as $$
    begin
        if nextval('writes') <= 5 then
            raise exception 'this is refused' using errcode = '22023';
        end if;
        return new;
    end $$;
    create trigger refuse_all before update on pitwheel.job for each row
        when (old.holder is not null and new.holder is null and old.key = 'refused') execute function refuse_all();"#;

#[tokio::test]
async fn a_refused_retry_is_written_again_less_and_less_often_and_delays_no_other_job() -> Result<()> {
    refused_five_times(REFUSE_ALL).await
}

#[tokio::test]
async fn so_is_an_ending_that_meets_a_fault_of_the_server() -> Result<()> {
    refused_five_times(&REFUSE_ALL.replace("22023", "XX001")).await
}

async fn refused_five_times(refuse_all: &str) -> Result<()> {
    let db = TestDb::new().await?;
    db.client().await?.batch_execute(refuse_all).await?;
    let handler = async |work: Work, _: Context| if work.n == 0 { Err("no") } else { Ok(()) };
    let begun = Instant::now();
    let id = db.pitwheel().enqueue(NewJob::of(&Work { n: 0 }).key("refused")).await?.id;
    let running = start_worker(worker(db.pitwheel()).handle(handler));
    let writes = "select case when is_called then last_value else 0 end from writes";
    wait_until("its ending was refused", async || Ok(db.count(writes).await? > 0)).await?;
    let other = db.pitwheel().enqueue(NewJob::of(&Work { n: 1 })).await?.id;
    wait_until("another job is done", async || Ok(db.state(other).await? == Some(State::Done))).await?;
    wait_until("the job waits", async || Ok(db.state(id).await? == Some(State::Waiting))).await?;
    // It was refused five times, with a pause after each: 0.1, 0.2, 0.4, 0.8 and 1.6 s.
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(3100), "{took:?}");
    assert_eq!(running.stop().await?.lost, 0);
    Ok(())
}
