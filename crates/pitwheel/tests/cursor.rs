//! Claims read on from where they were, and still find a job that was written late.
//!
//! A statement reads the clock for `run_at` before it writes its row. If it is not scheduled in between, the row appears later
//! than its `run_at`, below what was read by then.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use pitwheel::Pitwheel;
use pitwheel::engine::{self, Claimed, Cursor, QueueSlots};
use pitwheel_devdb::{Options, Server};
use pitwheel_testkit::{TestDb, connect};
use tokio_postgres::Client;

/// How late a row is written in these tests, in milliseconds. Less than the cursor's margin of two seconds.
const LATE_MS: i64 = 1500;

/// Claims up to five jobs from the cursor's bounds.
async fn claim(client: &Client, worker: i64, cursor: &Cursor) -> Result<Vec<Claimed>> {
    Ok(engine::claim(client, worker, &asks(), &["test".to_owned()], &cursor.bounds()).await?)
}

/// A cursor that has made its first look, which tells the time.
async fn started(client: &Client) -> Result<Cursor> {
    let mut cursor = Cursor::new(["default"].into_iter());
    assert!(look_back(client, &mut cursor, false).await?, "it looks again at once");
    Ok(cursor)
}

/// Looks back as a claimer does once a second, or from the start.
async fn look_back(client: &Client, cursor: &mut Cursor, deep: bool) -> Result<bool> {
    let look = cursor.next_look(deep);
    let found = engine::look_back(client, &["test".to_owned()], &look).await?;
    Ok(cursor.looked_back(&look, &found))
}

fn asks() -> [QueueSlots; 1] {
    [QueueSlots { queue: "default".to_owned(), slots: 5 }]
}

async fn now(client: &Client) -> Result<SystemTime> {
    Ok(client.query_one("select clock_timestamp()", &[]).await?.get(0))
}

#[tokio::test]
async fn a_job_written_late_is_found_by_the_claim_after_an_empty_one() -> Result<()> {
    let db = TestDb::new().await?;
    let (client, worker) = (db.client().await?, db.register().await?);
    let mut cursor = started(&client).await?;
    let claimed = claim(&client, worker, &cursor).await?;
    assert!(claimed.is_empty());
    cursor.after(&cursor.bounds(), &asks(), &claimed, now(&client).await?);

    db.job().due_in_ms(-LATE_MS).insert().await?;
    assert_eq!(claim(&client, worker, &cursor).await?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_job_written_late_is_found_by_the_look_back_after_empty_ones() -> Result<()> {
    let db = TestDb::new().await?;
    let (client, worker) = (db.client().await?, db.register().await?);
    let mut cursor = started(&client).await?;
    // Claims read far ahead of the job, and looks back have found nothing to read again.
    cursor.after(&cursor.bounds(), &asks(), &[], now(&client).await? + Duration::from_secs(60));
    for _ in 0..3 {
        look_back(&client, &mut cursor, true).await?;
    }
    db.job().due_in_ms(-LATE_MS).insert().await?;
    let id = db.job().due_in_ms(-LATE_MS).insert().await?;
    // No job had this priority before.
    client.execute("update pitwheel.job set priority = -4 where id = $1", &[&id]).await?;
    assert!(claim(&client, worker, &cursor).await?.is_empty());
    look_back(&client, &mut cursor, true).await?;
    assert_eq!(claim(&client, worker, &cursor).await?.len(), 2);
    Ok(())
}

/// On a server of its own: transaction ids are those of a whole server, and any later one that ends hides the fault.
#[tokio::test]
async fn the_floor_does_not_pass_a_transaction_that_is_open_on_an_idle_database() -> Result<()> {
    let server = Server::start(Options::temporary().setting("autovacuum", "off"))?;
    Pitwheel::connect(&server.url()).await?.migrate().await?;
    let [client, mut other] = [connect(&server.url()).await?, connect(&server.url()).await?];
    let worker = "insert into pitwheel.worker (name, lease, lease_until) values ('test', '1 hour', now() + interval '1 hour') returning id";
    let worker: i64 = client.query_one(worker, &[]).await?.get(0);
    let mut cursor = started(&client).await?;
    // The transaction with the newest id is still open: no later one has ended.
    let open = other.transaction().await?;
    open.batch_execute(
        "insert into pitwheel.job (run_at, enqueued_at, max_attempts, priority, queue, kind, payload)
        values (now() - interval '10 seconds', now(), 20, 0, 'default', 'test', '{}')",
    )
    .await?;
    let own: String = open.query_one("select pg_current_xact_id()::text", &[]).await?.get(0);
    let next = "select pg_snapshot_xmax(pg_current_snapshot())::text";
    assert_eq!(
        client.query_one(next, &[]).await?.get::<_, String>(0),
        own,
        "a snapshot calls it the next one"
    );
    cursor.after(&cursor.bounds(), &asks(), &[], now(&client).await? + Duration::from_secs(60));
    for _ in 0..3 {
        look_back(&client, &mut cursor, false).await?;
    }
    open.commit().await?;
    look_back(&client, &mut cursor, false).await?;
    assert_eq!(claim(&client, worker, &cursor).await?.len(), 1);
    Ok(())
}

/// The rows of `used_priority` were deleted for a while. Claims and looks back read no level meanwhile.
#[tokio::test]
async fn the_floor_does_not_pass_jobs_of_a_level_that_was_not_read() -> Result<()> {
    let db = TestDb::new().await?;
    let (client, worker) = (db.client().await?, db.register().await?);
    let mut cursor = started(&client).await?;
    db.job().due_in_ms(-10_000).insert().await?;
    client.batch_execute("delete from pitwheel.used_priority").await?;
    for _ in 0..3 {
        let claimed = claim(&client, worker, &cursor).await?;
        assert!(claimed.is_empty());
        cursor.after(&cursor.bounds(), &asks(), &claimed, now(&client).await?);
        look_back(&client, &mut cursor, false).await?;
    }
    engine::restore_rows(&client).await?;
    assert!(claim(&client, worker, &cursor).await?.is_empty(), "the bound has passed it");
    look_back(&client, &mut cursor, false).await?;
    assert_eq!(claim(&client, worker, &cursor).await?.len(), 1);
    Ok(())
}

/// A look back may read for long, and each node makes one.
#[tokio::test]
async fn a_look_back_in_progress_does_not_hide_what_it_has_found() -> Result<()> {
    let db = TestDb::new().await?;
    let (client, worker) = (db.client().await?, db.register().await?);
    let cursor = Cursor::new(["default"].into_iter());
    db.job().due_in_ms(-10_000).insert().await?;
    let mut other = db.client().await?;
    let look = other.transaction().await?;
    let (queues, priorities) = (["default"; 19], (-9..=9).rev().collect::<Vec<i16>>());
    let (floors, bounds) = ([UNIX_EPOCH; 19], [now(&client).await?; 19]);
    let found = look
        .query(
            include_str!("../sql/engine/look_back.sql"),
            &[
                &&queues[..],
                &priorities,
                &&floors[..],
                &&[0_i64; 19][..],
                &&bounds[..],
                &&[0_i64; 19][..],
                &vec!["test"],
            ],
        )
        .await?;
    assert_eq!(found.iter().filter(|row| row.get::<_, Option<i64>>("id").is_some()).count(), 1);
    assert_eq!(claim(&client, worker, &cursor).await?.len(), 1);
    look.rollback().await?;
    Ok(())
}

/// A claim from a locked job on would pass all dead entries behind it, at each look again.
#[tokio::test]
async fn a_locked_job_keeps_the_floor_down_and_leaves_the_bound_where_it_is() -> Result<()> {
    let db = TestDb::new().await?;
    let (client, worker) = (db.client().await?, db.register().await?);
    let mut cursor = started(&client).await?;
    let locked = db.job().due_in_ms(-10_000).insert().await?;
    let mut other = db.client().await?;
    let lock = other.transaction().await?;
    lock.query("select from pitwheel.job where id = $1 for update", &[&locked]).await?;
    cursor.after(&cursor.bounds(), &asks(), &[], now(&client).await?);
    look_back(&client, &mut cursor, false).await?;
    let free = db.job().due_in_ms(-5_000).insert().await?;
    look_back(&client, &mut cursor, false).await?;
    lock.rollback().await?;
    let ids = |claimed: Vec<Claimed>| claimed.iter().map(|job| job.claim.id).collect::<Vec<_>>();
    assert_eq!(ids(claim(&client, worker, &cursor).await?), [free], "the bound is at the job that was free");
    look_back(&client, &mut cursor, false).await?;
    assert_eq!(ids(claim(&client, worker, &cursor).await?), [locked]);
    Ok(())
}
