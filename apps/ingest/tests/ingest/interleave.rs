//! Promote against the end of a load and against the deletion of old versions, in every order of their statements.

use anyhow::Result;
use pitwheel_testkit::{Connection, Explorer, Run, Session};

use crate::support::TestIngest;

const LOCK_LANE: &str = include_str!("../../sql/lock_lane.sql");
const MAKE_CURRENT: &str = include_str!("../../sql/make_current.sql");
const FINISH_VERSION: &str = include_str!("../../sql/finish_version.sql");
const DROP_VERSION: &str = include_str!("../../sql/drop_version.sql");

const LOCK_VERSION: &str = include_str!("../../sql/lock_version.sql");
const DROP_LOADING: &str = include_str!("../../sql/drop_loading.sql");
const ADD_ROW: &str = "insert into ingest.entry (version_id, line, unit, category, quantity, measure) values (3, 2, 'it', 'flight', 1, 'km')";

const LANE: i64 = 1;
/// A former version, and one that is loaded.
const OLD: i64 = 1;
const NEW: i64 = 3;

/// Version 2 is current, 1 is a former one, and 3 is about to be.
const SETUP: &str = "
    truncate ingest.lane, ingest.version, ingest.sync, ingest.source restart identity;
    insert into ingest.lane (target, method) values ('entries', 'csv');
    insert into ingest.version (lane_id, job_id, fence, state) values (1, 1, 1, 'loaded'), (1, 2, 1, 'loaded'), (1, 3, 1, 'loading');
    update ingest.lane set current_version = 2";

/// The current version and its state.
const END: &str = "
    select concat_ws(' ', lane.current_version, version.state)
    from ingest.lane left join ingest.version on version.id = lane.current_version";

/// A person promotes the old version.
fn promotes() -> Session {
    Session::new("person")
        .sql("begin")
        .step("lock", lock)
        .step("promote", async |connection: &mut Connection| make_current(connection, OLD).await)
        .sql("commit")
}

/// A load ends.
fn loads() -> Session {
    Session::new("load")
        .sql("begin")
        .step("lock", lock)
        .step("finish", async |connection: &mut Connection| {
            connection.client.query(FINISH_VERSION, &[&NEW, &1_i64, &0_i64]).await?;
            Ok(String::new())
        })
        .step("swap", async |connection: &mut Connection| make_current(connection, NEW).await)
        .sql("commit")
}

/// The upkeep drops the old version.
fn drops(locks: bool) -> Session {
    let session = Session::new("upkeep").sql("begin");
    let session = if locks { session.step("lock", lock) } else { session };
    session
        .step("drop", async |connection: &mut Connection| {
            let dropped = connection.client.query(DROP_VERSION, &[&LANE, &OLD]).await?;
            Ok((!dropped.is_empty()).to_string())
        })
        .sql("commit")
}

async fn lock(connection: &mut Connection) -> Result<String> {
    connection.client.query(LOCK_LANE, &[&LANE]).await?;
    Ok(String::new())
}

async fn make_current(connection: &mut Connection, version: i64) -> Result<String> {
    let done = connection.client.query(MAKE_CURRENT, &[&LANE, &version]).await?;
    Ok((!done.is_empty()).to_string())
}

fn is_broken(run: &Run) -> bool {
    run.failed() || !run.end().ends_with(" loaded")
}

#[tokio::test]
async fn the_current_version_always_has_its_data() -> Result<()> {
    let test = TestIngest::new().await?;
    let start = |title| Explorer::new(&test.db, title).setup(SETUP).end(END);

    let right = start("promote × end of a load").session(promotes()).session(loads()).explore().await?;
    right.never(is_broken);
    right.sometimes(|run| run.end() == "1 loaded");
    right.sometimes(|run| run.end() == "3 loaded");

    let right = start("promote × drop").session(promotes()).session(drops(true)).explore().await?;
    right.never(is_broken);
    right.sometimes(|run| run.output("upkeep.drop") == "true" && run.output("person.promote") == "false");
    right.sometimes(|run| run.output("upkeep.drop") == "false" && run.output("person.promote") == "true");

    start("promote × drop, without the lock of the lane")
        .session(promotes())
        .session(drops(false))
        .explore()
        .await?
        .sometimes(|run| run.end() == "1 dropped");
    Ok(())
}

/// The form of the source design, without its index: a flag on each version, cleared and then set.
#[tokio::test]
async fn a_flag_on_each_version_would_make_two_of_them_current() -> Result<()> {
    let test = TestIngest::new().await?;
    let flags = "create table flagged (id int primary key, is_current boolean not null)";
    test.db.client().await?.batch_execute(flags).await?;
    let makes_current = |name: &'static str, set: &'static str| {
        Session::new(name)
            .sql("begin")
            .sql_as("clear", "update flagged set is_current = false where is_current")
            .sql_as("set", set)
            .sql("commit")
    };
    Explorer::new(&test.db, "promote × end of a load, with flags")
        .setup("truncate flagged; insert into flagged values (1, false), (2, true), (3, false)")
        .end("select count(*)::text from flagged where is_current")
        .session(makes_current("person", "update flagged set is_current = true where id = 1"))
        .session(makes_current("load", "update flagged set is_current = true where id = 3"))
        .explore()
        .await?
        .sometimes(|run| run.end() == "2");
    Ok(())
}

/// An attempt writes a batch, as `store::rows::add_batch` does.
fn writes(locks: bool) -> Session {
    Session::new("load")
        .sql("begin")
        .step("write", async move |connection: &mut Connection| {
            if locks && connection.client.query(LOCK_VERSION, &[&NEW]).await?.is_empty() {
                return Ok("lost".to_owned());
            }
            connection.client.execute(ADD_ROW, &[]).await?;
            Ok("written".to_owned())
        })
        .sql("commit")
}

/// The upkeep takes the attempt for a dead one, and deletes what it left behind.
fn cleans() -> Session {
    Session::new("upkeep")
        .step("drop", async |connection: &mut Connection| {
            Ok(connection.client.execute(DROP_LOADING, &[&NEW]).await?.to_string())
        })
        .sql_as("delete", "delete from ingest.entry where version_id = 3")
}

#[tokio::test]
async fn no_row_is_written_after_the_rows_of_its_version_were_deleted() -> Result<()> {
    let test = TestIngest::new().await?;
    let setup = format!("truncate ingest.entry; {SETUP}");
    let end =
        "select concat(state, ' ', (select count(*) from ingest.entry)) from ingest.version where id = 3";
    let start = |title| Explorer::new(&test.db, title).setup(&setup).end(end);

    let right = start("batch × drop").session(writes(true)).session(cleans()).explore().await?;
    right.never(|run| run.failed() || run.end() == "dropped 1");
    right.sometimes(|run| run.end() == "dropped 0" && run.output("load.write") == "lost");
    right.sometimes(|run| run.end() == "dropped 0" && run.output("load.write") == "written");
    right.sometimes(|run| run.end() == "loading 1");

    start("batch × drop, without the lock of the version")
        .session(writes(false))
        .session(cleans())
        .explore()
        .await?
        .sometimes(|run| run.end() == "dropped 1");
    Ok(())
}
