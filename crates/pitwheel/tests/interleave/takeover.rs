//! A worker that resumes after its job was given to another: its settle is refused, and so are the effects in the same
//! transaction.

use anyhow::{Context as _, Result, ensure};
use pitwheel::{Context, Job, Worker};
use pitwheel_testkit::{Connection, Explorer, Run, Session, TestDb};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use crate::sessions::{FIRST, complete_claimed, complete_first, sweep};

/// Lets the lease of worker 1 expire, and sweeps.
fn expires_and_sweeps() -> Session {
    Session::new("s")
        .step("sweep", async |connection: &mut Connection| {
            connection
                .query("begin; update pitwheel.worker set lease_until = clock_timestamp() - interval '1 s' where id = 1")
                .await?;
            connection.sweep().await
        })
        .sql("commit")
}

/// The second worker: claims, and completes what it claimed.
fn takes_over() -> Session {
    Session::new("b").step("claim", claim_second).step("settle", complete_claimed)
}

async fn claim_second(connection: &mut Connection) -> Result<String> {
    connection.claim(2, 1).await
}

#[tokio::test]
async fn a_worker_that_resumes_cannot_settle_what_another_took_over() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(1).worker(2).waiting(1);
    let claims = |name| {
        Session::new(name).step("claim", async |connection: &mut Connection| connection.claim(1, 1).await)
    };
    // The job is done if and only if one settle was written, and it exists once.
    let twice = |run: &Run| {
        let written =
            ["a.settle", "b.settle"].iter().filter(|label| run.output(label).contains("written")).count();
        let known = ["1 waiting", "1 running by 1", "1 running by 2", "1 running by 1 (dead)", "1 done"];
        run.failed()
            || !known.contains(&run.end())
            || (run.end() == "1 done") != (written == 1)
            || written > 1
    };

    let right = start("claim, settle late × sweep × second claim")
        .session(
            claims("a")
                .step("settle", async |connection: &mut Connection| {
                    connection.query("begin").await?;
                    complete_claimed(connection).await
                })
                .sql("commit"),
        )
        .session(expires_and_sweeps())
        .session(takes_over())
        .explore()
        .await?;
    right.never(twice);
    right.sometimes(|run| run.output("a.settle") == "lost" && run.output("b.settle") == "written");

    // Checks the state and not the fence: the job is running, but for another worker.
    let by_state = "begin; update pitwheel.job set holder = null, priority = -9
        where id = 1 and holder is not null returning 'written'";
    start("claim, settle late × sweep × second claim, state only")
        .session(claims("a").sql_as("settle", by_state).sql("commit"))
        .session(expires_and_sweeps())
        .session(Session::new("b").step("claim", claim_second))
        .explore()
        .await?
        .sometimes(|run| {
            run.output("b.claim") == "1"
                && run.output("a.settle") == "written"
                && run.before("b.claim", "a.settle")
        });
    Ok(())
}

#[derive(Serialize, Deserialize)]
struct Test {}

impl Job for Test {
    const KIND: &'static str = "test";
}

/// The context of a handler that ran job 1 under fence 1. Every schedule sets up the job under the same claim.
async fn context(db: &TestDb) -> Result<Context> {
    db.job().insert().await?;
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let handler = move |_: Test, context: Context| {
        let sent = sender.send(context);
        async move { sent.map_err(|_| "the test has ended") }
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
            .session(Session::new("s").step("sweep", sweep))
            .session(Session::new("b").step("claim", claim_second).step(
                "settle",
                async |connection: &mut Connection| {
                    let Some(&claim) = connection.claims.first() else {
                        return Ok(String::new());
                    };
                    connection.query("begin").await?;
                    let settled = connection.complete(claim).await?;
                    ensure!(settled == "written", "lost");
                    connection.query("insert into effect values (2); commit").await
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
                .step("settle", async move |connection: &mut Connection| {
                    let settled = connection.begin_and_complete(&context).await?;
                    ensure!(settled == "written", "lost");
                    Ok(settled)
                })
                .sql_as("effect", "insert into effect values (1)")
                .sql("commit"),
        )
        .explore()
        .await?;
    right.never(unfenced);
    right.sometimes(|run| run.output("a.settle") == "error: lost");

    // Reads whether the claim still holds, and writes the effect before the settle: reading takes no lock.
    start("settle with its effect × sweep, second claim, no lock")
        .session(
            Session::new("a")
                .step("read", async |connection: &mut Connection| {
                    connection.query("begin").await?;
                    let held = connection
                        .query("select 1 from pitwheel.job where id = 1 and fence = 1 and holder = 1");
                    ensure!(held.await? == "1", "lost");
                    Ok(String::new())
                })
                .sql_as("effect", "insert into effect values (1)")
                .step("settle", complete_first)
                .sql("commit"),
        )
        .explore()
        .await?
        .sometimes(unfenced);
    Ok(())
}
