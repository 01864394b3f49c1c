//! A lane that cannot be promoted holds up no other lane.

use anyhow::Result;
use pitwheel::engine::promote_checked;
use pitwheel_testkit::TestDb;

/// One job in each of `$2` lanes, by a user's transaction: none has a head.
const INSERT: &str = "
    insert into pitwheel.job (run_at, enqueued_at, max_attempts, priority, queue, kind, payload, lane)
    select now(), now(), 20, 0, 'default', 'test', '{}', to_json($1 || n)::text from generate_series(1, $2::int) as n";
/// A user's trigger: it refuses the heads of some lanes, and locks a row for those of others.
const TRIGGER: &str = r#"
    create table gate (id int);
    insert into gate values (1);
    create function check_head() returns trigger language plpgsql as $$
    begin
        if new.lane like '"refused%' then
            raise exception 'this is refused';
        elsif new.lane like '"locked%' then
            perform from gate for update;
        end if;
        return new;
    end $$;
    create trigger check_head before update on pitwheel.job for each row execute function check_head();"#;
const HEADS: &str = "select count(*) from pitwheel.job where run_at < 'infinity'";

/// More lanes than one look reads are refused or locked, and the free ones are behind them.
#[tokio::test]
async fn lanes_that_cannot_be_promoted_hold_up_no_other() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    client.batch_execute(TRIGGER).await?;
    for (lane, count) in [("locked ", 20), ("refused ", 130), ("free ", 60)] {
        client.execute(INSERT, &[&lane, &count]).await?;
    }
    let mut other = db.client().await?;
    let lock = other.transaction().await?;
    lock.execute("select from gate for update", &[]).await?;
    client.batch_execute("set lock_timeout = '200ms'").await?;

    let mut first = "0".to_owned();
    for _ in 0..3 {
        first = promote_checked(&client, &first).await?.first;
    }
    assert_eq!(db.count(HEADS).await?, 60);
    assert_eq!(
        db.count("select count(*) from pitwheel.lane_check").await?,
        150,
        "the others are looked at again"
    );
    lock.rollback().await?;
    for _ in 0..2 {
        first = promote_checked(&client, &first).await?.first;
    }
    assert_eq!(db.count(HEADS).await?, 80);
    client.batch_execute("drop trigger check_head on pitwheel.job").await?;
    for _ in 0..2 {
        first = promote_checked(&client, &first).await?.first;
    }
    assert_eq!(
        (db.count(HEADS).await?, db.count("select count(*) from pitwheel.lane_check").await?),
        (210, 0)
    );
    let lock_timeout: String = client.query_one("show lock_timeout", &[]).await?.get(0);
    assert_eq!(lock_timeout, "200ms");
    Ok(())
}

#[tokio::test]
async fn an_error_that_concerns_every_lane_is_returned() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    client.execute(INSERT, &[&"free ", &3]).await?;
    client.batch_execute("alter table pitwheel.job rename column lane_at to missing").await?;
    let error = promote_checked(&client, "0").await.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("lane_at"), "{error}");
    assert_eq!(db.count("select count(*) from pitwheel.lane_check").await?, 3);
    Ok(())
}
