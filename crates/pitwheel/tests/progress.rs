//! The progress that handlers report, while they run and after they have ended.
#![cfg(all(feature = "sqlx", feature = "tokio-postgres"))]

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use pitwheel::transaction;
use pitwheel::{Context, Settled, State, Verdict};
use pitwheel_testkit::{TestDb, Work, connect, start_worker, wait_until, work, worker};
use sqlx::Connection;
use tokio::sync::{Barrier, Notify, Semaphore};

#[tokio::test]
async fn progress_can_be_read_while_the_job_runs() -> Result<()> {
    let db = TestDb::new().await?;
    let id = db.pitwheel().enqueue(work(1)).await?.id;
    let go_on = Arc::new(Notify::new());
    let handler = {
        let go_on = go_on.clone();
        move |_: Work, context: Context| {
            let go_on = go_on.clone();
            async move {
                context.progress(0.5, "half of it");
                go_on.notified().await;
                Ok::<_, String>(())
            }
        }
    };
    let running = start_worker(worker(db.pitwheel()).handle(handler));
    wait_until(
        "progress is written",
        async || Ok(db.pitwheel().job(id).await?.summary.progress == Some(0.5)),
    )
    .await?;
    assert_eq!(db.pitwheel().job(id).await?.summary.note.as_deref(), Some("half of it"));
    go_on.notify_one();
    running.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_note_that_met_a_locked_job_is_kept_when_the_attempt_ends() -> Result<()> {
    let db = TestDb::new().await?;
    let ids = [db.pitwheel().enqueue(work(0)).await?.id, db.pitwheel().enqueue(work(1)).await?.id];
    let (steps, end) = ([2, 2].map(|both| Arc::new(Barrier::new(both))), Arc::new(Semaphore::new(0)));
    let handler = {
        let (steps, end) = (steps.clone(), end.clone());
        move |work: Work, context: Context| {
            let (step, end) = (steps[usize::from(work.n == 1)].clone(), end.clone());
            async move {
                step.wait().await;
                context.progress(0.5, "half of it");
                step.wait().await;
                let _ = end.acquire().await?;
                anyhow::Ok(())
            }
        }
    };
    let running = start_worker(worker(db.pitwheel()).handle(handler));
    for id in ids {
        wait_until("it runs", async || Ok(db.pitwheel().job(id).await?.summary.state == State::Running))
            .await?;
    }
    let mut client = connect(db.url()).await?;
    let lock = client.transaction().await?;
    lock.execute("select from pitwheel.job where id = $1 for update", &[&ids[0]]).await?;
    // The locked job reports first, so that its note was tried when that of the other one is written.
    for step in &steps {
        step.wait().await;
        step.wait().await;
    }
    let noted = async |id| anyhow::Ok(db.pitwheel().job(id).await?.summary.note);
    wait_until("the other note is written", async || Ok(noted(ids[1]).await?.is_some())).await?;
    assert_eq!(noted(ids[0]).await?, None);
    lock.rollback().await?;
    end.add_permits(2);
    running.stop().await?;
    assert_eq!(noted(ids[0]).await?.as_deref(), Some("half of it"));
    Ok(())
}

/// The ways in which the jobs of the next test end.
const ENDS: [&str; 6] =
    ["done", "failed", "with tokio-postgres", "many with tokio-postgres", "with sqlx", "buried"];

#[tokio::test]
async fn the_last_note_is_kept_however_soon_the_attempt_ends() -> Result<()> {
    let db = TestDb::new().await?;
    let url = db.url().to_owned();
    let handler = move |work: Work, context: Context| {
        let url = url.clone();
        async move {
            let end = ENDS[usize::try_from(work.n)?];
            context.progress(0.1, "begun");
            context.progress(0.9, end);
            match end {
                "failed" => return Ok(Verdict::retry_after(Duration::from_secs(3600), "for the test")),
                "with tokio-postgres" | "many with tokio-postgres" => {
                    let mut client = connect(&url).await?;
                    let transaction = client.transaction().await?;
                    if end == "with tokio-postgres" {
                        let settled = transaction::tokio_postgres::complete(&transaction, &context).await?;
                        ensure!(settled == Settled::Written, "lost");
                    } else {
                        let completions = vec![(&context, Verdict::complete())];
                        transaction::tokio_postgres::complete_many(&transaction, completions).await?;
                    }
                    transaction.commit().await?;
                }
                "with sqlx" => {
                    let mut connection = sqlx::PgConnection::connect(&url).await?;
                    let mut transaction = connection.begin().await?;
                    let settled = transaction::sqlx::complete(&mut transaction, &context).await?;
                    ensure!(settled == Settled::Written, "lost");
                    transaction.commit().await?;
                }
                "buried" => return Ok(Verdict::bury("for the test")),
                _ => {}
            }
            Ok(Verdict::complete().into())
        }
    };
    let enqueued = db.pitwheel().enqueue_many((0..).take(ENDS.len()).map(work)).await?;
    let running = start_worker(worker(db.pitwheel()).handle(handler));
    for (end, job) in ENDS.iter().zip(&enqueued) {
        let state = match *end {
            "failed" => State::Waiting,
            "buried" => State::Dead,
            _ => State::Done,
        };
        wait_until(end, async || {
            let job = db.pitwheel().job(job.id).await?.summary;
            Ok(job.attempt > 0 && job.state == state)
        })
        .await?;
        assert_eq!(db.pitwheel().job(job.id).await?.summary.note.as_deref(), Some(*end));
    }
    let stats = running.stop().await?;
    assert_eq!((stats.settled, stats.lost), (ENDS.len() as u64, 0));
    Ok(())
}
