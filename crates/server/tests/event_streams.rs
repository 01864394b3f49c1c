//! Streams of events belong to a token: they end with it, and one token has a limited number.

mod support;

use std::collections::HashSet;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use pitwheel::{NewJob, QUEUES_LISTED_MAX, Role};
use pitwheel_server::Options;
use pitwheel_testkit::{Events, Http, TestDb, WAIT_MAX, wait_until};

use crate::support::Node;

/// How soon a stream ends: two seconds, and two more for a slow machine.
const SOON: Duration = Duration::from_secs(4);
/// Event streams of one token.
const TOKEN_STREAMS: usize = 100;

async fn start_with_tokens(db: &TestDb) -> Result<Node> {
    let mut options = Options::default();
    options.require_tokens = true;
    Node::start_with(db.pitwheel(), options, "127.0.0.1:0".parse()?).await
}

/// Waits until a stream has ended, and returns how long that took.
async fn ended(mut events: Events) -> Result<Duration> {
    let started = Instant::now();
    tokio::time::timeout(WAIT_MAX, async { while events.next().await.is_ok() {} }).await?;
    Ok(started.elapsed())
}

#[tokio::test]
async fn a_token_that_is_no_longer_valid_loses_its_event_streams() -> Result<()> {
    let db = TestDb::new().await?;
    let node = start_with_tokens(&db).await?;
    let id = db.job().insert().await?;
    let revoked = db.pitwheel().create_token("revoked", Role::Producer, None).await?.1;
    // Long enough to open a stream with it.
    let lifetime = Duration::from_secs(10);
    let expires_at = SystemTime::now() + lifetime;
    let expiring = db.pitwheel().create_token("expiring", Role::Viewer, Some(expires_at)).await?.1;
    let kept = db.pitwheel().create_token("kept", Role::Viewer, None).await?.1;
    let path = format!("/api/v1/events?jobs={id}");
    let http = Http::new(node.address);
    let mut streams = Vec::new();
    for secret in [&revoked, &expiring, &kept] {
        let mut events = http.token(secret).events(&path).await?;
        assert_eq!(events.next().await?.0, "job");
        streams.push(events);
    }
    let mut kept = streams.remove(2);
    db.pitwheel().revoke_token("revoked").await?;
    let expiring = streams.remove(1);
    let (of_revoked, of_expiring) = tokio::join!(ended(streams.remove(0)), ended(expiring));
    let (of_revoked, of_expiring) = (of_revoked?, of_expiring?);
    assert!(of_revoked < SOON, "{of_revoked:?}");
    assert!(of_expiring < lifetime + SOON, "{of_expiring:?}");
    db.pitwheel().cancel(id).await?;
    assert_eq!(kept.next().await?.1["state"], "cancelled", "another token keeps its stream");
    node.stop().await
}

#[tokio::test]
async fn a_locked_table_does_not_keep_the_event_streams_of_a_token_that_was_revoked() -> Result<()> {
    let db = TestDb::new().await?;
    let node = start_with_tokens(&db).await?;
    let id = db.job().insert().await?;
    let secret = db.pitwheel().create_token("revoked", Role::Viewer, None).await?.1;
    let mut events =
        Http::new(node.address).token(&secret).events(&format!("/api/v1/events?jobs={id}")).await?;
    assert_eq!(events.next().await?.0, "job");
    let mut other = db.client().await?;
    let lock = other.transaction().await?;
    lock.batch_execute("lock table pitwheel.job in access exclusive mode").await?;
    wait_until("its job is read", async || {
        let waiting = "select count(*) from pg_stat_activity
            where datname = current_database() and wait_event_type = 'Lock' and query like '%jobs_by_id.sql%'";
        Ok(db.count(waiting).await? > 0)
    })
    .await?;
    db.pitwheel().revoke_token("revoked").await?;
    let took = ended(events).await?;
    assert!(took < SOON, "{took:?}");
    lock.rollback().await?;
    node.stop().await
}

#[tokio::test]
async fn one_token_cannot_take_all_event_streams() -> Result<()> {
    let db = TestDb::new().await?;
    let node = start_with_tokens(&db).await?;
    let producer = db.pitwheel().create_token("producer", Role::Producer, None).await?.1;
    let other = db.pitwheel().create_token("other", Role::Viewer, None).await?.1;
    let id = db.job().insert().await?;
    let path = format!("/api/v1/events?jobs={id}");
    let http = Http::new(node.address).token(&producer);
    let mut streams = Vec::new();
    for _ in 0..TOKEN_STREAMS {
        streams.push(http.events(&path).await?);
    }
    assert_eq!(http.get(&path).await?.status, 429);
    let mut events = Http::new(node.address).token(&other).events(&path).await?;
    assert_eq!(events.next().await?.0, "job");
    drop((streams, events));
    node.stop().await
}

#[tokio::test]
async fn a_queue_that_invented_names_hide_is_not_shown_as_empty() -> Result<()> {
    let db = TestDb::new().await?;
    let node = start_with_tokens(&db).await?;
    let secret = db.pitwheel().create_token("viewer", Role::Viewer, None).await?.1;
    db.job().queue("hidden").insert().await?;
    let mut events = Http::new(node.address).token(&secret).events("/api/v1/events").await?;
    assert_eq!(events.next().await?.1["name"], "hidden");
    let names: Vec<NewJob> =
        (0..QUEUES_LISTED_MAX).map(|n| NewJob::raw("work", "{}").queue(format!("{n:04}"))).collect();
    db.pitwheel().enqueue_many(names).await?;
    let mut invented = HashSet::new();
    while invented.len() < QUEUES_LISTED_MAX {
        let (_, queue) = events.next().await?;
        assert!(queue["name"] != "hidden" || queue["waiting"] == 1, "{queue}");
        invented.insert(queue["name"].to_string());
    }
    db.client().await?.batch_execute("delete from pitwheel.job").await?;
    loop {
        let (_, queue) = events.next().await?;
        if queue["name"] == "hidden" {
            assert_eq!(queue["waiting"], 0, "{queue}");
            break;
        }
    }
    node.stop().await
}
