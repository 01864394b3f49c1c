//! Jobs that follow from a completion exist if and only if it was written.
#![cfg(all(feature = "sqlx", feature = "tokio-postgres"))]

use std::time::Duration;

use anyhow::Result;
use pitwheel::engine::{Ending, SettleResult, Settlement, settle};
use pitwheel::{Completion, Context, History, Job, NewJob, Settled, State, TraceContext, Verdict};
use pitwheel_testkit::{TestDb, Work, start_worker, wait_until, worker};
use serde::{Deserialize, Serialize};

/// A job that follows; no handler of these tests takes it.
#[derive(Serialize, Deserialize)]
struct Next {
    n: i64,
}

impl Job for Next {
    const KIND: &'static str = "next";
    const QUEUE: &'static str = "later";
    const PRIORITY: i16 = 3;
}

fn done_then(then: Vec<NewJob>) -> Ending {
    Ending::Done { history: History::All, ctid: None, result: None, then }
}

const NEXT: &str = "select count(*) from pitwheel.job where kind = 'next'";

#[tokio::test]
async fn a_handler_says_what_follows_from_its_completion() -> Result<()> {
    let db = TestDb::new().await?;
    let handler = async |work: Work, context: Context| -> Result<Completion, String> {
        context.then(NewJob::of(&Next { n: work.n + 1 }).key("named first"));
        let result = Verdict::complete_with(&work.n).map_err(|error| error.to_string())?;
        Ok(result
            .then(&Next { n: work.n + 2 })
            .then(NewJob::of(&Next { n: 0 }).delay(Duration::from_secs(3600))))
    };
    let id = db.pitwheel().enqueue(&Work { n: 40 }).await?.id;
    let running = start_worker(worker(db.pitwheel()).handle(handler));
    wait_until("the job is done", async || Ok(db.state(id).await? == Some(State::Done))).await?;
    running.stop().await?;

    assert_eq!(db.pitwheel().job(id).await?.result.as_deref(), Some("40"));
    assert_eq!(db.count(NEXT).await?, 3);
    let as_enqueued =
        "select count(*) from pitwheel.job where queue = 'later' and priority = 3 and max_attempts = 20";
    assert_eq!(db.count(as_enqueued).await?, 3);
    assert_eq!(
        db.count("select (payload ->> 'n')::bigint from pitwheel.job where key = 'named first'").await?,
        41
    );
    assert_eq!(
        db.count("select count(*) from pitwheel.job where run_at > now() + interval '30 minutes'").await?,
        1
    );
    Ok(())
}

#[tokio::test]
async fn only_a_completion_has_followers() -> Result<()> {
    let db = TestDb::new().await?;
    let handler = async |work: Work, context: Context| -> Result<Verdict, String> {
        context.then(&Next { n: work.n });
        match work.n {
            0 => Err("failed".into()),
            1 => Ok(Verdict::Snooze(Duration::from_secs(3600))),
            2 => Ok(Verdict::retry_after(Duration::from_secs(3600), "later")),
            _ => Ok(Verdict::bury("never")),
        }
    };
    db.pitwheel().enqueue_many((0..4).map(|n| NewJob::of(&Work { n }).max_attempts(1))).await?;
    let running = start_worker(worker(db.pitwheel()).handle(handler));
    let settled = "select count(*) from pitwheel.job_history";
    wait_until("all had their attempt", async || {
        let waiting = "select count(*) from pitwheel.job where fence = 1 and holder is null";
        Ok(db.count(settled).await? == 3 && db.count(waiting).await? == 1)
    })
    .await?;
    running.stop().await?;
    assert_eq!(db.count(NEXT).await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_follower_runs_without_waiting_for_a_poll_and_in_the_same_trace() -> Result<()> {
    let db = TestDb::new().await?;
    let trace = TraceContext::new("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", None);
    let first = trace.clone();
    let handler = move |work: Work, context: Context| {
        let same = context.trace() == first;
        async move {
            anyhow::ensure!(same, "another trace");
            if work.n > 0 {
                Ok(Verdict::complete().then(&Work { n: work.n - 1 }))
            } else {
                Ok(Verdict::complete())
            }
        }
    };
    let job = NewJob::of(&Work { n: 5 });
    let job = trace.iter().fold(job, |job, trace| job.trace(trace));
    db.pitwheel().enqueue(job).await?;
    let running = start_worker(worker(db.pitwheel()).handle(handler));
    let done = "select count(*) from pitwheel.job_history where state = 'done'";
    wait_until("the chain is done", async || Ok(db.count(done).await? == 6)).await?;
    assert_eq!(running.stop().await?.settled, 6);
    Ok(())
}

#[tokio::test]
async fn a_lost_claim_leaves_no_follower() -> Result<()> {
    let db = TestDb::new().await?;
    db.job().insert().await?;
    let first = db.claim_one().await?;
    db.expire_holder(&first).await?;
    db.sweep().await?;
    let second = db.claim_one().await?;
    let follower = || vec![NewJob::of(&Next { n: 1 })];

    assert_eq!(db.settle(&first, done_then(follower())).await?, Settled::Lost);
    assert_eq!(db.count(NEXT).await?, 0);
    assert_eq!(db.settle(&second, done_then(follower())).await?, Settled::Written);
    assert_eq!(db.settle(&second, done_then(follower())).await?, Settled::Lost, "settled before");
    assert_eq!(db.count(NEXT).await?, 1);
    Ok(())
}

#[tokio::test]
async fn in_one_batch_each_written_ending_brings_its_own_followers() -> Result<()> {
    let db = TestDb::new().await?;
    for _ in 0..4 {
        db.job().insert().await?;
    }
    let claimed = db.claim(4).await?;
    assert_eq!(db.complete(&claimed[1]).await?, Settled::Written);
    let batch: Vec<Settlement> = claimed
        .iter()
        .enumerate()
        .map(|(at, job)| {
            let then = vec![NewJob::of(&Next { n: at as i64 }); at];
            let ending = match at {
                3 => Ending::Dead { error: r#"{"message": "no"}"#.to_owned(), then },
                _ => done_then(then),
            };
            Settlement::new(job.claim, ending)
        })
        .collect();
    let settled = settle(&db.client().await?, &batch, &[]).await?;
    let written = settled.into_iter().map(|result| result == SettleResult::Written).collect::<Vec<_>>();
    assert_eq!(written, [true, false, true, true]);
    assert_eq!(
        db.count("select sum((payload ->> 'n')::bigint)::bigint from pitwheel.job").await?,
        2 + 2 + 3 + 3 + 3
    );
    Ok(())
}

#[tokio::test]
async fn a_follower_may_have_the_key_of_the_job_it_follows_and_of_no_other_live_one() -> Result<()> {
    let db = TestDb::new().await?;
    db.job().key("mine").insert().await?;
    let job = db.claim_one().await?;
    let taken = db.pitwheel().enqueue(NewJob::raw("next", "{}").key("taken")).await?.id;
    let then = vec![
        NewJob::raw("test", r#"{"next": true}"#).key("mine"),
        NewJob::raw("next", r#"{"next": true}"#).key("taken"),
        NewJob::raw("next", "{}").key("twin"),
        NewJob::raw("next", r#"{"second": true}"#).key("twin"),
    ];
    assert_eq!(db.settle(&job, done_then(then)).await?, Settled::Written);
    assert_eq!(
        db.count("select count(*) from pitwheel.job where key = 'mine' and payload ->> 'next' = 'true'")
            .await?,
        1
    );
    assert_eq!(db.count("select id from pitwheel.job where key = 'taken'").await?, taken);
    assert_eq!(
        db.count("select count(*) from pitwheel.job where key = 'twin' and payload::text = '{}'").await?,
        1
    );
    Ok(())
}

#[tokio::test]
async fn a_follower_that_cannot_be_enqueued_fails_the_attempt() -> Result<()> {
    let db = TestDb::new().await?;
    let handler = async |work: Work, context: Context| -> Result<Completion, String> {
        if work.n == 0 {
            return Ok(Verdict::complete().then(NewJob::raw("no name", "{}")));
        }
        if work.n == 1 {
            (0..101).for_each(|n| context.then(&Next { n }));
            return Ok(Verdict::complete());
        }
        let large = format!("\"{}\"", "x".repeat(250_000));
        (0..13).for_each(|_| context.then(NewJob::raw("next", large.clone())));
        Ok(Verdict::complete())
    };
    let jobs = (0..3).map(|n| NewJob::of(&Work { n }).max_attempts(1));
    let ids: Vec<i64> = db.pitwheel().enqueue_many(jobs).await?.iter().map(|job| job.id).collect();
    let running = start_worker(worker(db.pitwheel()).handle(handler));
    let problems = [
        "kind `no name` is not a name",
        "101 jobs follow from one",
        "the followers have 3250026 bytes, the limit is 3145728",
    ];
    for (id, problem) in ids.into_iter().zip(problems) {
        wait_until("the job is dead", async || Ok(db.state(id).await? == Some(State::Dead))).await?;
        let message = db.pitwheel().job(id).await?.errors[0]["message"].to_string();
        assert!(message.contains(problem), "{message}");
    }
    running.stop().await?;
    assert_eq!(db.count("select count(*) from pitwheel.job").await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_handler_completes_with_followers_in_its_own_transaction() -> Result<()> {
    let db = TestDb::new().await?;
    let url = db.url().to_owned();
    let handler = move |work: Work, context: Context| {
        let url = url.clone();
        async move {
            context.then(&Next { n: work.n });
            if work.n % 2 == 0 {
                let (mut client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
                tokio::spawn(connection);
                let transaction = client.transaction().await?;
                let settled = pitwheel::transaction::tokio_postgres::complete(&transaction, &context).await?;
                anyhow::ensure!(settled == Settled::Written, "lost");
                if work.n < 2 { transaction.commit().await? } else { transaction.rollback().await? }
            } else {
                use sqlx::Connection;
                let mut connection = sqlx::PgConnection::connect(&url).await?;
                let mut transaction = connection.begin().await?;
                let settled = pitwheel::transaction::sqlx::complete(&mut transaction, &context).await?;
                anyhow::ensure!(settled == Settled::Written, "lost");
                if work.n < 2 { transaction.commit().await? } else { transaction.rollback().await? }
            }
            Ok::<_, anyhow::Error>(())
        }
    };
    db.pitwheel().enqueue_many((0..4).map(|n| NewJob::of(&Work { n }).max_attempts(1))).await?;
    let running = start_worker(worker(db.pitwheel()).handle(handler));
    let finished = "select count(*) from pitwheel.job_history";
    wait_until("all are finished", async || Ok(db.count(finished).await? == 4)).await?;
    running.stop().await?;
    // Those of the transactions that were rolled back do not exist.
    assert_eq!(db.count(NEXT).await?, 2);
    assert_eq!(db.count("select count(*) from pitwheel.job where (payload ->> 'n')::int < 2").await?, 2);
    Ok(())
}

#[tokio::test]
async fn followers_of_different_kinds_keep_their_order_in_a_lane() -> Result<()> {
    let db = TestDb::new().await?;
    let kinds = ["zebra", "test", "apple", "zebra", "mango"];
    let then = kinds.map(|kind| NewJob::raw(kind, "{}").lane("a").queue("later")).to_vec();
    db.pitwheel().enqueue(NewJob::raw("test", "{}")).await?;
    assert_eq!(db.settle(&db.claim_one().await?, done_then(then)).await?, Settled::Written);
    let client = db.client().await?;
    let rows = client.query("select kind from pitwheel.job where lane is not null order by id", &[]).await?;
    let order: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(order, kinds);
    Ok(())
}

#[tokio::test]
async fn a_transaction_that_is_tried_again_writes_the_same_followers() -> Result<()> {
    let db = TestDb::new().await?;
    let url = db.url().to_owned();
    let handler = move |work: Work, context: Context| {
        let url = url.clone();
        async move {
            context.then(&Next { n: work.n });
            let (mut client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
            tokio::spawn(connection);
            for commits in [false, true] {
                let transaction = client.transaction().await?;
                let settled = pitwheel::transaction::tokio_postgres::complete(&transaction, &context).await?;
                anyhow::ensure!(settled == Settled::Written, "lost");
                if commits { transaction.commit().await? } else { transaction.rollback().await? }
            }
            Ok::<_, anyhow::Error>(())
        }
    };
    let id = db.pitwheel().enqueue(&Work { n: 1 }).await?.id;
    let running = start_worker(worker(db.pitwheel()).handle(handler));
    wait_until("the job is done", async || Ok(db.state(id).await? == Some(State::Done))).await?;
    running.stop().await?;
    assert_eq!(db.count(NEXT).await?, 1);
    Ok(())
}
