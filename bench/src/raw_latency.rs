//! The raw loop on an idle table: how long an insert, a hint and a claim take on this machine, whatever the library does.

use std::future::poll_fn;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use tokio::sync::mpsc;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, NoTls};

use crate::raw::{CLAIM, COMPLETE, ENQUEUE, PAYLOAD, QUEUE, fresh_table};
use crate::session::Session;

/// The waits of so many jobs, in milliseconds, from the insert of each to the end of its claim. `pause` comes before each.
pub(crate) async fn raw_latency(
    url: &str,
    samples: usize,
    pause: impl Fn(usize) -> Duration,
) -> Result<Vec<f64>> {
    let owner = fresh_table(url).await?;
    let (producer, worker) = (Session::open(url).await?, Session::open(url).await?);
    let (listener, mut connection) = tokio_postgres::connect(url, NoTls).await?;
    let (hinted, mut hints) = mpsc::unbounded_channel();
    let listening = tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(_) = message {
                let _ = hinted.send(());
            }
        }
    });
    listener.batch_execute("listen raw_bench").await?;
    let enqueue = producer.client.prepare(ENQUEUE).await?;
    let hint = producer.client.prepare("select pg_notify('raw_bench', '')").await?;
    let claim = worker.client.prepare(CLAIM).await?;
    let complete = worker.client.prepare(COMPLETE).await?;

    let payloads = [PAYLOAD].as_slice();
    let (row, mut waits): ([&(dyn ToSql + Sync); 2], _) = ([&QUEUE, &payloads], Vec::new());
    for sample in 0..samples {
        tokio::time::sleep(pause(sample)).await;
        let asked = Instant::now();
        // The hint is sent behind the insert and commits after it, as the library does.
        tokio::try_join!(producer.client.execute(&enqueue, &row), producer.client.execute(&hint, &[]))?;
        hints.recv().await.context("the listener ended")?;
        let rows = worker.client.query(&claim, &[&QUEUE, &SystemTime::UNIX_EPOCH, &0_i64, &10_i64]).await?;
        waits.push(asked.elapsed().as_secs_f64() * 1000.0);
        let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        worker.client.execute(&complete, &[&ids]).await?;
    }
    drop(listener);
    listening.await?;
    owner.client.batch_execute("drop schema raw_bench cascade").await?;
    for session in [owner, producer, worker] {
        session.close().await?;
    }
    Ok(waits)
}
