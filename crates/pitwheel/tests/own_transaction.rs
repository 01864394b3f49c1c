//! Effects written with the completion, in the handler's own transaction, commit with it or not at all.
#![cfg(all(feature = "sqlx", feature = "tokio-postgres"))]

use anyhow::{Context as _, Result};
use pitwheel::{Context, NewJob, Settled, State, Verdict};
use pitwheel_testkit::{TestDb, Work, connect, start_worker, wait_until, worker};
use sqlx::Connection;

#[tokio::test]
async fn a_tokio_postgres_handler_completes_with_its_effect() -> Result<()> {
    let db = TestDb::new().await?;
    db.client().await?.batch_execute("create table effect (n bigint)").await?;
    let url = db.url().to_owned();
    let handler = move |work: Work, context: Context| {
        let url = url.clone();
        async move {
            let mut client = connect(&url).await?;
            let transaction = client.transaction().await?;
            let settled = pitwheel::transaction::tokio_postgres::complete(&transaction, &context).await?;
            anyhow::ensure!(settled == Settled::Written, "lost");
            transaction.execute("insert into effect values ($1)", &[&work.n]).await?;
            // Odd ones do not commit: that is a failed attempt, not a completed job.
            if work.n % 2 == 0 {
                transaction.commit().await?
            } else {
                transaction.rollback().await?
            }
            Ok::<_, anyhow::Error>(())
        }
    };
    let even = db.pitwheel().enqueue(&Work { n: 2 }).await?.id;
    let odd = db.pitwheel().enqueue(&Work { n: 1 }).await?.id;
    let running = start_worker(worker(db.pitwheel()).handle(handler));
    wait_until("both had their attempt", async || {
        let failed = db.pitwheel().job(odd).await?.errors.as_array().is_some_and(|errors| !errors.is_empty());
        Ok(failed && db.state(even).await? == Some(State::Done))
    })
    .await?;
    let stats = running.stop().await?;
    assert_eq!(stats.lost, 0);
    assert_eq!(db.count("select count(*) from effect").await?, 1);
    let message = db.pitwheel().job(odd).await?.errors[0]["message"].to_string();
    assert!(message.contains("was not committed"), "{message}");
    Ok(())
}

#[tokio::test]
async fn a_handler_whose_claim_a_failover_lost_completes_nothing() -> Result<()> {
    let db = TestDb::new().await?;
    let url = db.url().to_owned();
    let handler = move |work: Work, context: Context| {
        let url = url.clone();
        async move {
            let mut client = connect(&url).await?;
            // Another worker has made the claim again that the standby had never seen, with the same fence.
            client.execute("update pitwheel.job set holder = -1 where id = $1", &[&context.id()]).await?;
            context.progress(0.5, "half");
            let settled = if work.n == 0 {
                let transaction = client.transaction().await?;
                pitwheel::transaction::tokio_postgres::complete(&transaction, &context).await?
            } else {
                let mut connection = sqlx::PgConnection::connect(&url).await?;
                let mut transaction = connection.begin().await?;
                pitwheel::transaction::sqlx::complete(&mut transaction, &context).await?
            };
            client.execute("insert into seen values ($1)", &[&format!("{settled:?}")]).await?;
            Ok::<_, anyhow::Error>(())
        }
    };
    db.client().await?.batch_execute("create table seen (settled text)").await?;
    let ids =
        [db.pitwheel().enqueue(&Work { n: 0 }).await?.id, db.pitwheel().enqueue(&Work { n: 1 }).await?.id];
    let running = start_worker(worker(db.pitwheel()).handle(handler));
    wait_until("both ran", async || Ok(db.count("select count(*) from seen").await? == 2)).await?;
    running.stop().await?;
    assert_eq!(db.count("select count(*) from seen where settled = 'Lost'").await?, 2);
    for id in ids {
        let job = db.pitwheel().job(id).await?.summary;
        assert_eq!((job.state, job.note), (State::Running, None), "it is held by another worker");
    }
    Ok(())
}

#[tokio::test]
async fn an_sqlx_handler_completes_with_its_effect() -> Result<()> {
    let db = TestDb::new().await?;
    db.client().await?.batch_execute("create table effect (n bigint)").await?;
    let url = db.url().to_owned();
    let handler = move |work: Work, context: Context| {
        let url = url.clone();
        async move {
            let mut connection = sqlx::PgConnection::connect(&url).await?;
            let mut transaction = connection.begin().await?;
            let settled = pitwheel::transaction::sqlx::complete(&mut transaction, &context).await?;
            anyhow::ensure!(settled == Settled::Written, "lost");
            let child = [&Work { n: work.n - 1 }];
            if work.n > 0 {
                pitwheel::transaction::sqlx::enqueue(&mut transaction, child).await?;
            }
            sqlx::query("insert into effect values ($1)").bind(work.n).execute(&mut *transaction).await?;
            transaction.commit().await?;
            Ok::<_, anyhow::Error>(())
        }
    };
    db.pitwheel().enqueue(&Work { n: 3 }).await?;
    let running = start_worker(worker(db.pitwheel()).handle(handler));
    let done = "select count(*) from pitwheel.job_history where state = 'done'";
    wait_until("the job and its children are done", async || Ok(db.count(done).await? == 4)).await?;
    running.stop().await?;
    assert_eq!(db.count("select count(*) from effect").await?, 4);
    Ok(())
}

#[tokio::test]
async fn many_jobs_complete_in_one_transaction_without_the_lost_ones() -> Result<()> {
    let db = TestDb::new().await?;
    db.client().await?.batch_execute("create table effect (n bigint)").await?;
    let (send, mut receive) =
        tokio::sync::mpsc::channel::<(i64, Context, tokio::sync::oneshot::Sender<()>)>(8);
    let handler = move |work: Work, context: Context| {
        let send = send.clone();
        async move {
            let (done, written) = tokio::sync::oneshot::channel();
            send.send((work.n, context, done)).await?;
            written.await?;
            Ok::<_, anyhow::Error>(())
        }
    };
    let ids: Vec<i64> = db
        .pitwheel()
        .enqueue_many((0..4).map(|n| NewJob::of(&Work { n })))
        .await?
        .into_iter()
        .map(|enqueued| enqueued.id)
        .collect();
    let running = start_worker(worker(db.pitwheel()).handle(handler));
    let mut batch = Vec::new();
    while batch.len() < ids.len() {
        batch.push(receive.recv().await.context("the worker has ended")?);
    }
    // Another worker holds the third one by now.
    let mut client = db.client().await?;
    client
        .execute("update pitwheel.job set fence = fence + 1, holder = -1 where id = $1", &[&ids[2]])
        .await?;
    // The last of them is completed first: the result does not depend on the order.
    batch.sort_by_key(|(n, ..)| std::cmp::Reverse(*n));
    let transaction = client.transaction().await?;
    let completions = batch.iter().map(|(n, context, _)| {
        (context, Verdict::complete().then(NewJob::of(&Work { n: 100 + n }).queue("next")))
    });
    let completed =
        pitwheel::transaction::tokio_postgres::complete_many(&transaction, completions.collect()).await?;
    for ((n, ..), completed) in batch.iter().zip(&completed) {
        let expected = if *n == 2 { Settled::Lost } else { Settled::Written };
        assert_eq!(completed.settled, expected, "{n}");
        if completed.settled == Settled::Written {
            transaction.execute("insert into effect values ($1)", &[n]).await?;
        }
    }
    transaction.commit().await?;
    for (.., done) in batch {
        let _ = done.send(());
    }
    running.stop().await?;
    assert_eq!(db.count("select sum(n)::bigint from effect").await?, 4, "0, 1 and 3");
    assert_eq!(db.count("select count(*) from pitwheel.job where queue = 'next'").await?, 3);
    assert_eq!(db.state(ids[2]).await?, Some(State::Running), "it is held by another worker");
    assert_eq!(db.state(ids[3]).await?, Some(State::Done));
    Ok(())
}
