//! The progress that handlers report, while they run and after they have ended.
#![cfg(all(feature = "sqlx", feature = "tokio-postgres"))]

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use pitwheel::transaction;
use pitwheel::{Context, Settled, State, Verdict};
use pitwheel_testkit::{TestDb, Work, connect, start_worker, wait_until, work, worker};
use sqlx::Connection;
use tokio::sync::Notify;

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
