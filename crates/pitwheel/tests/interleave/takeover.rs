//! A worker that comes back after its job was given to another: what it writes is refused, effects and all.

use anyhow::{Context as _, Result, ensure};
use pitwheel::{Context, Job, Worker};
use pitwheel_testkit::{Explorer, Run, Session, Stage, TestDb};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use crate::FIRST;

/// Sweeps, with the lease of worker 1 just over.
fn expires_and_sweeps() -> Session {
    Session::new("s")
        .step("sweep", async |stage: &mut Stage| {
            stage
                .ask("begin; update pitwheel.worker set lease_until = clock_timestamp() - interval '1 s' where id = 1")
                .await?;
            stage.sweep().await
        })
        .sql("commit")
}

/// The second worker: claims, and completes what it got.
fn takes_over() -> Session {
    Session::new("b").step("claim", async |stage: &mut Stage| stage.claim(2, 1).await).step(
        "settle",
        async |stage: &mut Stage| match stage.claims.first() {
            Some(&claim) => stage.complete(claim).await,
            None => Ok(String::new()),
        },
    )
}

#[tokio::test]
async fn a_worker_that_comes_back_cannot_settle_what_another_took_over() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(1).worker(2).waiting(1);
    let claims = |name| Session::new(name).step("claim", async |stage: &mut Stage| stage.claim(1, 1).await);
    // As often as the job is done, so often was a settle written; and no job is there twice or not at all.
    let twice = |run: &Run| {
        let written =
            ["a.settle", "b.settle"].iter().filter(|label| run.said(label).contains("written")).count();
        let known = ["1 waiting", "1 running by 1", "1 running by 2", "1 running by 1 (dead)", "1 done"];
        run.failed()
            || !known.contains(&run.end())
            || (run.end() == "1 done") != (written == 1)
            || written > 1
    };

    let right = start("claim, settle late × sweep × second claim")
        .session(
            claims("a")
                .step("settle", async |stage: &mut Stage| {
                    stage.ask("begin").await?;
                    match stage.claims.first() {
                        Some(&claim) => stage.complete(claim).await,
                        None => Ok(String::new()),
                    }
                })
                .sql("commit"),
        )
        .session(expires_and_sweeps())
        .session(takes_over())
        .explore()
        .await?;
    right.never(twice);
    right.sometimes(|run| run.said("a.settle") == "lost" && run.said("b.settle") == "written");

    // Guarded by the state alone: running it is, but for somebody else.
    let by_state = "begin; update pitwheel.job set holder = null, priority = -9
        where id = 1 and holder is not null returning 'written'";
    start("claim, settle late × sweep × second claim, state only")
        .session(claims("a").sql_as("settle", by_state).sql("commit"))
        .session(expires_and_sweeps())
        .session(Session::new("b").step("claim", async |stage: &mut Stage| stage.claim(2, 1).await))
        .explore()
        .await?
        .sometimes(|run| {
            run.said("b.claim") == "1"
                && run.said("a.settle") == "written"
                && run.before("b.claim", "a.settle")
        });
    Ok(())
}

#[derive(Serialize, Deserialize)]
struct Test {}

impl Job for Test {
    const KIND: &'static str = "test";
}

/// The context of a handler that ran job 1 under fence 1, which is what every schedule claims it under again.
async fn context(db: &TestDb) -> Result<Context> {
    db.job().insert().await?;
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let handler = move |_: Test, context: Context| {
        let sent = sender.send(context);
        async move { sent.map_err(|_| "nobody waits for the context") }
    };
    let worker = Worker::new(db.pitwheel())
        .queue("default", 1)
        .without_hints()
        .handle(handler)
        .run(async { stopped.await.unwrap_or_default() });
    let (ran, context) = tokio::join!(worker, async {
        let context = receiver.recv().await;
        let _ = stop.send(());
        context
    });
    ran?;
    let context = context.context("the job did not run")?;
    ensure!(context.claim() == FIRST);
    Ok(context)
}

#[tokio::test]
async fn an_effect_commits_only_with_the_settle_in_its_transaction() -> Result<()> {
    let db = TestDb::new().await?;
    let context = context(&db).await?;
    db.client().await?.batch_execute("create table effect (worker bigint)").await?;
    let start = |title| {
        Explorer::new(&db, title)
            .setup("delete from effect")
            .expired(1)
            .worker(2)
            .running(1, 1)
            .session(Session::new("s").step("sweep", async |stage: &mut Stage| stage.sweep().await))
            .session(Session::new("b").step("claim", async |stage: &mut Stage| stage.claim(2, 1).await).step(
                "settle",
                async |stage: &mut Stage| {
                    let Some(&claim) = stage.claims.first() else {
                        return Ok(String::new());
                    };
                    stage.ask("begin").await?;
                    let settled = stage.complete(claim).await?;
                    ensure!(settled == "written", "lost");
                    stage.ask("insert into effect values (2); commit").await
                },
            ))
            .end(
                "select (select count(*) from pitwheel.job_history where state = 'done') || ' done, '
                || (select count(*) from effect) || ' effects'",
            )
    };
    let unfenced = |run: &Run| !["0 done, 0 effects", "1 done, 1 effects"].contains(&run.end());

    let right = start("settle with its effect × sweep, second claim")
        .session(
            Session::new("a")
                .step("settle", async move |stage: &mut Stage| {
                    let settled = stage.begin_and_complete(&context).await?;
                    ensure!(settled == "written", "lost");
                    Ok(settled)
                })
                .sql_as("effect", "insert into effect values (1)")
                .sql("commit"),
        )
        .explore()
        .await?;
    right.never(unfenced);
    right.sometimes(|run| run.said("a.settle") == "error: lost");

    // Looks whether the claim still holds, and writes the effect before the settle: a look is no lock.
    start("settle with its effect × sweep, second claim, only looked")
        .session(
            Session::new("a")
                .step("look", async |stage: &mut Stage| {
                    stage.ask("begin").await?;
                    let held =
                        stage.ask("select 1 from pitwheel.job where id = 1 and fence = 1 and holder = 1");
                    ensure!(held.await? == "1", "lost");
                    Ok(String::new())
                })
                .sql_as("effect", "insert into effect values (1)")
                .step("settle", async |stage: &mut Stage| stage.complete(FIRST).await)
                .sql("commit"),
        )
        .explore()
        .await?
        .sometimes(unfenced);
    Ok(())
}
