//! The part of the demo with an outbox: orders and their events, each pair written in one transaction.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pitwheel::Pitwheel;
use pitwheel::engine::outbox::{Event, RelayOptions, Shards};
use pitwheel_relay::{Limit, Outcome, Relay, Sink, Stdout};
use serde::Serialize;
use tokio::sync::oneshot;
use tokio_postgres::{Client, NoTls};

const ORDERS: usize = 3;
const NEXT: [&str; 2] = ["paid", "shipped"];
/// Far longer than it takes.
const ARRIVE_MAX: Duration = Duration::from_secs(20);
const POLL_EVERY: Duration = Duration::from_millis(20);
const STATEMENT_MAX: Duration = Duration::from_secs(5);

/// The results. The names are those of the JSON output.
#[derive(Debug, Serialize)]
pub(super) struct OrdersReport {
    events: usize,
    arrived: usize,
    /// Events that arrived after a later one of their order.
    out_of_order: usize,
    /// Events of the transaction that was rolled back.
    rolled_back: usize,
}

impl OrdersReport {
    pub(super) fn is_good(&self) -> bool {
        self.arrived == self.events && self.out_of_order == 0 && self.rolled_back == 0
    }

    pub(super) fn page(&self) -> String {
        format!(
            "{} events of {ORDERS} orders, each written in one transaction with its order\n\n  \
               {:<14}{:>7}   on standard output, above\n  \
               {:<14}{:>7}   each order was placed, then paid, then shipped\n  \
               {:<14}{:>7}   events of an order that was rolled back\n",
            self.events,
            "arrived",
            self.arrived,
            "out of order",
            self.out_of_order,
            "rolled back",
            self.rolled_back
        )
    }
}

/// What arrived, in order. Prints it too, unless the output is JSON.
struct Recorder {
    stdout: Option<Stdout>,
    events: Arc<Mutex<Vec<Event>>>,
}

impl Sink for Recorder {
    async fn send(&mut self, events: &[Event], limit: &Limit) -> Vec<Outcome> {
        let outcomes = match &mut self.stdout {
            Some(stdout) => stdout.send(events, limit).await,
            None => vec![Outcome::Sent; events.len()],
        };
        let sent = events.iter().zip(&outcomes).filter(|(_, outcome)| **outcome == Outcome::Sent);
        let mut arrived = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        arrived.extend(sent.map(|(event, _)| event.clone()));
        outcomes
    }
}

/// Writes orders, and runs a relay until their events have arrived. Only for a database of the demo's own: the relay sends
/// everything that waits in the outbox.
pub(super) async fn run(url: &str, quiet: bool) -> anyhow::Result<OrdersReport> {
    let (mut client, connection) = tokio_postgres::connect(url, NoTls).await?;
    let connection = tokio::spawn(connection);
    let (orders, rolled_back) = write(&mut client).await?;
    let events = Arc::<Mutex<Vec<Event>>>::default();
    let recorder = Recorder { stdout: (!quiet).then(Stdout::new), events: events.clone() };
    let pool = Pitwheel::connect(url).await?.pool_for_loops(2, STATEMENT_MAX)?;
    let (stop, stopped) = oneshot::channel::<()>();
    let relay = Relay::new(Shards::new(pool, RelayOptions::default())?, recorder);
    let relay = tokio::spawn(relay.run(async { drop(stopped.await) }));
    let expected = orders.len() * (1 + NEXT.len());
    let began = Instant::now();
    let of = |keys: &[String]| {
        let events = events.lock().unwrap_or_else(PoisonError::into_inner);
        events.iter().filter(|event| keys.contains(&event.entity_key)).cloned().collect::<Vec<Event>>()
    };
    while of(&orders).len() < expected && began.elapsed() < ARRIVE_MAX {
        tokio::time::sleep(POLL_EVERY).await;
    }
    drop(stop);
    relay.await?;
    drop(client);
    connection.await??;
    let arrived = of(&orders);
    let out_of_order = arrived.iter().enumerate().filter(|(at, event)| {
        arrived[..*at].iter().any(|before| before.entity_key == event.entity_key && before.id > event.id)
    });
    Ok(OrdersReport {
        events: expected,
        arrived: arrived.len(),
        out_of_order: out_of_order.count(),
        rolled_back: of(&[rolled_back]).len(),
    })
}

/// Writes orders, and one that is rolled back. Returns the entities.
async fn write(client: &mut Client) -> anyhow::Result<(Vec<String>, String)> {
    client.batch_execute(include_str!("../../../sql/demo_orders.sql")).await?;
    let mut numbers: Vec<i64> = Vec::new();
    for _ in 0..ORDERS {
        numbers.push(client.query_one(include_str!("../../../sql/demo_place.sql"), &[]).await?.get(0));
    }
    let transaction = client.transaction().await?;
    let given_up: i64 = transaction.query_one(include_str!("../../../sql/demo_place.sql"), &[]).await?.get(0);
    transaction.rollback().await?;
    for status in NEXT {
        for number in &numbers {
            client.execute(include_str!("../../../sql/demo_change.sql"), &[number, &status]).await?;
        }
    }
    let entity = |number: &i64| format!("order-{number}");
    Ok((numbers.iter().map(entity).collect(), entity(&given_up)))
}
