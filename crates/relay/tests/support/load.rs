//! A load that writes events and, in the same transactions, a ledger of them: what was committed is what the ledger has.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use anyhow::Result;
use pitwheel_testkit::connect;
use rdkafka::message::{Message, OwnedMessage};
use tokio::task::JoinSet;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use crate::support::arrivals::Arrivals;
use crate::support::consumer::key;

const LEDGER: &str = "create table ledger (entity text, number bigint, primary key (entity, number))";
const WRITERS: usize = 4;
/// Of each writer. Only this writer writes them, so that their numbers are in the order of the commits.
const ENTITIES: usize = 12;
/// Between two transactions of a writer.
const PACE: Duration = Duration::from_millis(4);
/// Between two attempts to connect.
const RECONNECT: Duration = Duration::from_millis(50);

/// Writers that run until they are stopped. Connections that end are made again.
pub(crate) struct Load {
    stop: CancellationToken,
    writers: JoinSet<()>,
}

impl Load {
    /// `insert` writes events of entity `$1` with the numbers from `$2` to `$3` as payload, in this order.
    pub(crate) async fn start(url: &str, insert: &str) -> Result<Load> {
        connect(url).await?.batch_execute(LEDGER).await?;
        let (stop, mut writers) = (CancellationToken::new(), JoinSet::new());
        for number in 0..WRITERS {
            let (url, insert, stop) = (url.to_owned(), insert.to_owned(), stop.clone());
            writers.spawn(async move {
                while !stop.is_cancelled() {
                    // An error ends the connection; what was committed is in the ledger.
                    if write(&url, &insert, number, &stop).await.is_err() {
                        tokio::time::sleep(RECONNECT).await;
                    }
                }
            });
        }
        Ok(Load { stop, writers })
    }

    /// Stops the writers; returns what was committed: the last number of each entity.
    pub(crate) async fn finish(mut self, url: &str) -> Result<BTreeMap<String, i64>> {
        self.stop.cancel();
        while self.writers.join_next().await.is_some() {}
        let rows =
            connect(url).await?.query("select entity, max(number) from ledger group by 1", &[]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }
}

/// Writes transactions with events of some entities. Some stay open for a while, and some are rolled back.
async fn write(url: &str, insert: &str, writer: usize, stop: &CancellationToken) -> Result<()> {
    let mut client = connect(url).await?;
    let mut numbers: HashMap<String, i64> = HashMap::new();
    while !stop.is_cancelled() {
        let transaction = client.transaction().await?;
        let mut written = Vec::new();
        for _ in 0..fastrand::usize(1..=3) {
            let entity = format!("entity-{writer}-{}", fastrand::usize(0..ENTITIES));
            let from = match numbers.get(&entity) {
                Some(last) => last + 1,
                None => last_number(transaction.client(), &entity).await? + 1,
            };
            let to = from + fastrand::i64(0..4);
            transaction.execute(insert, &[&entity, &from, &to]).await?;
            numbers.insert(entity.clone(), to);
            written.push(entity);
        }
        if fastrand::u8(0..5) == 0 {
            tokio::time::sleep(Duration::from_millis(fastrand::u64(0..40))).await; // the transaction is open
        }
        if fastrand::u8(0..10) == 0 {
            transaction.rollback().await?;
            numbers.retain(|entity, _| !written.contains(entity));
        } else {
            transaction.commit().await?;
        }
        tokio::time::sleep(PACE).await; // the pace of the load
    }
    Ok(())
}

async fn last_number(client: &Client, entity: &str) -> Result<i64> {
    let sql = "select coalesce(max(number), 0) from ledger where entity = $1";
    Ok(client.query_one(sql, &[&entity]).await?.get(0))
}

/// What a consumer received of the load.
pub(crate) fn arrivals(messages: &[OwnedMessage]) -> Arrivals {
    let mut arrivals = Arrivals::default();
    for message in messages {
        let payload = String::from_utf8_lossy(message.payload().unwrap_or_default());
        arrivals.add(&key(message), payload.parse().unwrap_or(-1));
    }
    arrivals
}

/// Writes events into the outbox. The topic is the parameter of the function.
pub(crate) fn insert_into_outbox(topic: &str) -> String {
    format!(
        "with written as (
            insert into ledger select $1::text, n from generate_series($2::bigint, $3::bigint) as n returning number)
        insert into pitwheel.outbox (entity_key, topic, type, payload)
        select $1::text, '{topic}', 'step', convert_to(number::text, 'UTF8') from written order by number"
    )
}
