//! Events that a sink does not take delay their own entities, and nothing else.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use pitwheel::NewEvent;
use pitwheel::engine::outbox::{Entities, EntityLock, Event, RelayOptions, Shards, SourceTable, Strategy};
use pitwheel_relay::{Limit, Outcome, Relay, Sink};
use pitwheel_testkit::{TestDb, wait_until};
use tokio_util::sync::CancellationToken;

/// Takes all events, but those of entities whose key begins with `bad` only when it is repaired.
#[derive(Clone, Default)]
struct Choosy {
    repaired: Arc<AtomicBool>,
    taken: Arc<Mutex<HashMap<String, Vec<i64>>>>,
}

impl Sink for Choosy {
    async fn send(&mut self, events: &[Event], _: &Limit) -> Vec<Outcome> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let take = |event: &Event| {
            if event.entity_key.starts_with("bad") && !self.repaired.load(Ordering::Relaxed) {
                return Outcome::Again("not this one".to_owned());
            }
            taken.entry(event.entity_key.clone()).or_default().push(event.id);
            Outcome::Sent
        };
        events.iter().map(take).collect()
    }
}

async fn others_flow(db: &TestDb, strategy: impl Strategy + 'static) -> Result<()> {
    // More than a batch of them, before the others in the order of ids and of keys.
    let keys = (0..200).map(|n| format!("bad-{}", n % 10)).chain((0..200).map(|n| format!("good-{n}")));
    db.pitwheel().outbox().add(keys.map(|key| NewEvent::new(key, "orders", "changed", "x"))).await?;
    let (sink, stop) = (Choosy::default(), CancellationToken::new());
    let relay = Relay::new(strategy, sink.clone()).batch(8);
    let running = tokio::spawn(relay.run(stop.clone().cancelled_owned()));
    let waiting = "select count(*) from pitwheel.outbox";
    let good = format!("{waiting} where entity_key like 'good%'");
    wait_until("the others are sent", async || Ok(db.count(&good).await? == 0)).await?;
    assert_eq!(db.count(waiting).await?, 200);

    sink.repaired.store(true, Ordering::Relaxed);
    wait_until("all are sent", async || Ok(db.count(waiting).await? == 0)).await?;
    stop.cancel();
    running.await?;
    let taken = sink.taken.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(taken.values().all(|ids| ids.is_sorted()), "{taken:?}");
    Ok(())
}

#[tokio::test]
async fn others_flow_with_shards() -> Result<()> {
    let db = TestDb::new().await?;
    let pool = db.pitwheel().pool_for_loops(2, Duration::from_secs(10))?;
    others_flow(&db, Shards::new(pool, RelayOptions::default())?).await
}

#[tokio::test]
async fn others_flow_with_entities() -> Result<()> {
    for lock in [EntityLock::Advisory, EntityLock::Row] {
        let db = TestDb::new().await?;
        db.client().await?.batch_execute("create index on pitwheel.outbox (entity_key, id)").await?;
        let pool = db.pitwheel().pool_for_loops(2, Duration::from_secs(10))?;
        let relay = Entities::new(pool, RelayOptions::default(), SourceTable::pitwheel(), lock)?;
        others_flow(&db, relay).await?;
    }
    Ok(())
}
