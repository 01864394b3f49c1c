//! Lanes: never two running jobs of one lane, and never a lane whose jobs wait for nothing.

use anyhow::{Context, Result};
use pitwheel::History;
use pitwheel::engine::{Ending, Settlement, promote_checked};
use pitwheel_testkit::{Connection, Explorer, Run, Session, TestDb};
use tokio_postgres::types::Type;

use crate::sessions::{FIRST, cancels, claims, claims_for_workers, complete_first};

/// A lane with a null, which is equal to every other null.
pub(crate) const LANE: &str = r#"["tenant", 7, null]"#;

/// Completes job 1, as a worker does.
pub(crate) fn completes() -> Session {
    Session::transaction("a", "settle", complete_first)
}

/// Completes job 1 by the place of its row, as a worker does for many lanes at once.
fn completes_in_batch() -> Session {
    Session::new("a")
        .step("read", async |connection: &mut Connection| connection.read_ctid(FIRST.id).await)
        .sql("begin")
        .step("settle", async |connection: &mut Connection| {
            let ending = Ending::done(History::All, connection.ctid);
            connection.write(Settlement { in_lane: true, ..Settlement::new(FIRST, ending) }).await
        })
        .sql("commit")
}

/// Enqueues into the lane in a user's transaction.
pub(crate) fn enqueues_in_sql(name: &'static str) -> Session {
    Session::new(name)
        .sql("begin")
        .sql_as("enqueue", format!("select pitwheel.enqueue('test', lane => '{LANE}')"))
        .sql("commit")
}

/// Enqueues into the lane through the library, which promotes it in the same statement. The transaction makes that statement longer.
pub(crate) fn enqueues(name: &'static str) -> Session {
    Session::transaction(name, "enqueue", async |connection: &mut Connection| {
        let texts = [["test"], ["{}"], ["default"]].map(|text| text.to_vec());
        let (none, numbers): (Vec<Option<i64>>, Vec<i64>) = (vec![None], vec![0]);
        let (priorities, max): (Vec<i16>, Vec<i32>) = (vec![0], vec![20]);
        let (no_text, lanes): (Vec<Option<&str>>, Vec<&str>) = (vec![None], vec![LANE]);
        let sql = include_str!("../../sql/engine/enqueue_keyed.sql");
        let rows = connection
            .client
            .query_typed(
                sql,
                &[
                    (&texts[0], Type::TEXT_ARRAY),
                    (&texts[1], Type::TEXT_ARRAY),
                    (&texts[2], Type::TEXT_ARRAY),
                    (&numbers, Type::INT8_ARRAY),
                    (&none, Type::INT8_ARRAY),
                    (&priorities, Type::INT2_ARRAY),
                    (&max, Type::INT4_ARRAY),
                    (&none, Type::INT8_ARRAY),
                    (&no_text, Type::TEXT_ARRAY),
                    (&no_text, Type::TEXT_ARRAY),
                    (&lanes, Type::TEXT_ARRAY),
                    (&vec![false], Type::BOOL_ARRAY),
                    (&true, Type::BOOL),
                ],
            )
            .await?;
        Ok(rows.first().context("no row for the job")?.get::<_, i64>(0).to_string())
    })
}

/// Promotes what was left, as the maintenance does.
pub(crate) async fn promote(connection: &mut Connection) -> Result<String> {
    Ok(promote_checked(&connection.client, "0").await?.queues.len().to_string())
}

pub(crate) fn promotes(name: &'static str) -> Session {
    Session::transaction(name, "promote", promote)
}

/// Two jobs of the lane run.
fn two_run(run: &Run) -> bool {
    run.end().matches("running").count() > 1
}

/// Jobs of the lane wait, and none of them is the head.
pub(crate) fn stranded(run: &Run) -> bool {
    let has_head = run.end().contains("waiting") || run.end().contains("running");
    run.end().contains("blocked") && !has_head
}

fn heads(run: &Run) -> usize {
    run.end().matches("waiting").count() + run.end().matches("running").count()
}

#[tokio::test]
async fn two_claims_never_take_two_jobs_of_one_lane() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(1).worker(2).in_lane(1, LANE).in_lane(2, LANE);
    let wrong = |run: &Run| run.failed() || two_run(run) || stranded(run);

    let right =
        start("claim × claim").session(claims("a", 1, 10)).session(claims("b", 2, 10)).explore().await?;
    right.never(|run| wrong(run) || !run.end().contains("1 running") || !run.end().contains("2 blocked"));
    start("claim × claim for workers")
        .session(claims("a", 1, 10))
        .session(claims_for_workers("b", &[2, 2]))
        .explore()
        .await?
        .never(wrong);

    // Looks for a running job of the lane, then claims: two claims of two jobs do not see each other.
    let looks = |name: &'static str, id: i64| {
        Session::new(name)
            .sql("begin")
            .sql_as(
                "claim",
                format!(
                    "update pitwheel.job set holder = {id} where id = {id} and holder is null
                    and not exists (select from pitwheel.job where holder is not null) returning id"
                ),
            )
            .sql("commit")
    };
    Explorer::new(&db, "claim × claim, looks for a running one")
        .worker(1)
        .worker(2)
        .waiting(1)
        .waiting(2)
        .session(looks("a", 1))
        .session(looks("b", 2))
        .explore()
        .await?
        .sometimes(two_run);
    Ok(())
}

#[tokio::test]
async fn a_claim_beside_a_settle_takes_the_next_job_only_after_it() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| {
        Explorer::new(&db, title)
            .worker(1)
            .worker(2)
            .in_lane(1, LANE)
            .in_lane(2, LANE)
            .in_lane(3, LANE)
            .claimed(1, 1)
    };
    let wrong =
        |run: &Run| run.failed() || two_run(run) || heads(run) != 1 || run.output("a.settle") != "written";
    let right = start("settle × claim").session(completes()).session(claims("b", 2, 10)).explore().await?;
    right.never(wrong);
    right.sometimes(|run| run.end() == "1 done | 2 running by 2 | 3 blocked");
    right.sometimes(|run| run.end() == "1 done | 2 waiting | 3 blocked");
    start("settle of many × claim")
        .session(completes_in_batch())
        .session(claims("b", 2, 10))
        .explore()
        .await?
        .never(wrong);

    // Makes the next one due in a statement before the one that settles the head.
    let twin = TestDb::new().await?;
    twin.client().await?.batch_execute("drop index pitwheel.job_lane").await?;
    let early = Session::new("a")
        .sql_as("promote", "update pitwheel.job set run_at = clock_timestamp() where id = 2")
        .step("settle", complete_first);
    let looks = claims("b", 2, 10).sql_as("look", "select count(holder) from pitwheel.job");
    Explorer::new(&twin, "settle × claim, promoted before")
        .worker(1)
        .worker(2)
        .in_lane(1, LANE)
        .in_lane(2, LANE)
        .claimed(1, 1)
        .session(early)
        .session(looks)
        .explore()
        .await?
        .sometimes(|run| run.output("b.look") == "2");
    Ok(())
}

#[tokio::test]
async fn an_enqueue_beside_the_settle_of_the_head_is_never_stranded() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(1).in_lane(1, LANE).claimed(1, 1);
    let wrong = |run: &Run| run.failed() || run.end() != "1 done | 101 waiting";

    let right = start("settle × enqueue in a user's transaction")
        .session(completes())
        .session(enqueues_in_sql("b"))
        .afterwards("maintenance", promote)
        .explore()
        .await?;
    right.never(wrong);
    right.sometimes(|run| run.output("maintenance") == "1");
    start("settle × enqueue")
        .session(completes())
        .session(enqueues("b"))
        .afterwards("maintenance", promote)
        .explore()
        .await?
        .never(wrong);
    for enqueues in [enqueues("b"), enqueues_in_sql("b")] {
        start("settle of many × enqueue")
            .session(completes_in_batch())
            .session(enqueues)
            .afterwards("maintenance", promote)
            .explore()
            .await?
            .never(wrong);
    }
    start("settle × enqueue × promote")
        .session(Session::new("a").step("settle", complete_first))
        .session(enqueues_in_sql("b"))
        .session(promotes("p"))
        .afterwards("maintenance", promote)
        .explore()
        .await?
        .never(wrong);

    // Without the maintenance, an enqueue that did not see the settle, and a settle that did not see the enqueue, strand the job.
    start("settle × enqueue, no maintenance")
        .session(completes())
        .session(enqueues("b"))
        .explore()
        .await?
        .sometimes(stranded);
    // An enqueue that promotes in its own transaction and leaves no row behind, beside a settle that leaves none.
    let forgets = "delete from pitwheel.lane_check";
    let looks_at_once = Session::new("b")
        .sql("begin")
        .sql_as("enqueue", format!("select pitwheel.enqueue('test', lane => '{LANE}')"))
        .sql_as("promote", format!("select pitwheel.promote_lane('{LANE}')"))
        .sql_as("forget", forgets)
        .sql("commit");
    start("settle × enqueue, nothing left to look at")
        .session(
            Session::new("a")
                .sql("begin")
                .step("settle", complete_first)
                .sql_as("forget", forgets)
                .sql("commit"),
        )
        .session(looks_at_once)
        .afterwards("maintenance", promote)
        .explore()
        .await?
        .sometimes(stranded);
    Ok(())
}

/// Jobs 2 and 3 wait for their times: 2 lets others pass, and its time comes first.
#[tokio::test]
async fn a_settle_before_jobs_that_wait_leaves_their_turns_to_a_promotion() -> Result<()> {
    let db = TestDb::new().await?;
    let waits = |id: i64, pass: bool| {
        format!(
            "update pitwheel.job set lane_at = clock_timestamp() + {id} * interval '1 hour', lane_pass = {pass} where id = {id}"
        )
    };
    let start = |title| {
        let start = Explorer::new(&db, title).worker(1).in_lane(1, LANE).in_lane(2, LANE).in_lane(3, LANE);
        start.claimed(1, 1).setup(&waits(2, true)).setup(&waits(3, false)).afterwards("maintenance", promote)
    };
    for settles in [completes, completes_in_batch] {
        start("settle × promote")
            .session(settles())
            .session(promotes("b"))
            .explore()
            .await?
            .never(|run| run.failed() || run.end() != "1 done | 2 waiting | 3 blocked");
        for enqueues in [enqueues("b"), enqueues_in_sql("b")] {
            start("settle × enqueue")
                .session(settles())
                .session(enqueues)
                .explore()
                .await?
                .never(|run| run.failed() || run.end() != "1 done | 101 blocked | 2 waiting | 3 blocked");
        }
    }
    // A settle that makes the next one the head whatever its time, and leaves nothing to look at.
    let makes_head = Session::new("a")
        .sql("begin")
        .step("settle", complete_first)
        .sql_as("promote", "update pitwheel.job set run_at = lane_at where id = 3")
        .sql_as("forget", "delete from pitwheel.lane_check")
        .sql("commit");
    start("settle × promote, whatever its time")
        .session(makes_head)
        .session(promotes("b"))
        .explore()
        .await?
        .sometimes(|run| run.end() == "1 done | 2 blocked | 3 waiting");
    Ok(())
}

#[tokio::test]
async fn two_enqueues_into_an_empty_lane_make_one_head() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(1);
    let wrong = |run: &Run| run.failed() || heads(run) != 1;
    start("enqueue × enqueue")
        .session(enqueues("a"))
        .session(enqueues("b"))
        .afterwards("maintenance", promote)
        .explore()
        .await?
        .never(wrong);
    start("enqueue × enqueue in a user's transaction")
        .session(enqueues("a"))
        .session(enqueues_in_sql("b"))
        .afterwards("maintenance", promote)
        .explore()
        .await?
        .never(wrong);
    Ok(())
}

#[tokio::test]
async fn a_users_open_transaction_blocks_no_other() -> Result<()> {
    let db = TestDb::new().await?;
    // It is open all the time: it ends after all others.
    let open = || {
        Session::new("u")
            .sql("begin")
            .sql_as("enqueue", format!("select pitwheel.enqueue('test', lane => '{LANE}')"))
    };
    let blocked = |run: &Run| run.failed() || heads(run) != 1;
    Explorer::new(&db, "open enqueue × enqueue")
        .session(open())
        .session(enqueues("b"))
        .explore()
        .await?
        .never(|run| blocked(run) || run.output("b.enqueue").is_empty());
    Explorer::new(&db, "open enqueue × settle")
        .worker(1)
        .in_lane(1, LANE)
        .in_lane(2, LANE)
        .claimed(1, 1)
        .session(open())
        .session(completes())
        .explore()
        .await?
        .never(|run| blocked(run) || run.end() != "1 done | 2 waiting");
    Ok(())
}

#[tokio::test]
async fn two_promotions_make_one_head() -> Result<()> {
    let db = TestDb::new().await?;
    let insert = |id: i64| {
        format!(
            "insert into pitwheel.job (id, run_at, enqueued_at, max_attempts, priority, queue, kind, payload, lane)
            values ({id}, clock_timestamp(), clock_timestamp(), 20, 0, 'default', 'test', '{{}}', '{LANE}')"
        )
    };
    let start = |title| Explorer::new(&db, title).worker(1).setup(&insert(2)).setup(&insert(3));
    let wrong = |run: &Run| run.failed() || heads(run) != 1;
    start("promote × promote")
        .session(promotes("a"))
        .session(promotes("b"))
        .explore()
        .await?
        .never(|run| wrong(run) || run.end() != "2 waiting | 3 blocked");
    start("promote × promote × enqueue")
        .session(Session::new("a").step("promote", promote))
        .session(promotes("b"))
        .session(Session::new("c").sql("begin").sql_as("insert", insert(1)).sql("commit"))
        .afterwards("maintenance", promote)
        .explore()
        .await?
        .never(wrong);
    start("promote × claim")
        .session(promotes("a"))
        .session(claims("b", 1, 10))
        .afterwards("maintenance", promote)
        .explore()
        .await?
        .never(wrong);

    // Without a lock on the lane, the second waits for the first and is refused by the unique index.
    let unlocked = |name: &'static str, id: i64| {
        Session::new(name)
            .sql("begin")
            .sql_as("promote", format!("update pitwheel.job set run_at = now() where id = {id}"))
            .sql("commit")
    };
    start("promote × promote, unlocked")
        .session(unlocked("a", 2))
        .session(unlocked("b", 3))
        .explore()
        .await?
        .sometimes(Run::failed);
    Ok(())
}

/// Jobs 1 and 2 of two lanes have no head, and a session locks the rows that ask to look at the lane of job 1.
#[tokio::test]
async fn a_promotion_passes_over_lanes_to_look_at_that_are_locked() -> Result<()> {
    let db = TestDb::new().await?;
    let insert = |id: i64, lane: &str| {
        format!(
            "insert into pitwheel.job (id, run_at, enqueued_at, max_attempts, priority, queue, kind, payload, lane)
            values ({id}, clock_timestamp(), clock_timestamp(), 20, 0, 'default', 'test', '{{}}', '{lane}')"
        )
    };
    let start = |title| {
        let start = Explorer::new(&db, title).setup(&insert(1, LANE)).setup(&insert(2, "\"other\""));
        start.afterwards("maintenance", promote)
    };
    let locks = |how: &'static str, end: &'static str| {
        let sql = format!(
            "select count(*) from (select from pitwheel.lane_check where lane = '{LANE}' for {how}) as locked"
        );
        Session::new("a").sql("begin").sql_as("lock", sql).sql(end)
    };
    for how in ["update", "key share"] {
        for end in ["commit", "rollback"] {
            let right = start("locked lane to look at × promote")
                .session(locks(how, end))
                .session(Session::new("b").step("promote", promote))
                .explore()
                .await?;
            right.never(|run| run.failed() || run.end() != "1 waiting | 2 waiting");
            right.sometimes(|run| run.output("b.promote") == "1" && run.output("maintenance") == "1");
        }
    }
    // A deletion that is undone.
    let deletes = Session::new("a")
        .sql("begin")
        .sql_as("delete", format!("delete from pitwheel.lane_check where lane = '{LANE}'"))
        .sql("rollback");
    start("lane to look at, deletion rolled back × promote × promote")
        .session(deletes)
        .session(Session::new("b").step("promote", promote))
        .session(promotes("c"))
        .explore()
        .await?
        .never(|run| run.failed() || run.end() != "1 waiting | 2 waiting");

    // A promotion that passes over the row, after which the next one reads on as if none were left.
    Explorer::new(&db, "locked lane to look at × promote, reads on")
        .setup(&insert(1, LANE))
        .session(locks("update", "commit"))
        .session(Session::new("b").step("promote", promote))
        .afterwards("maintenance", async |connection: &mut Connection| {
            let behind = "select coalesce(max(xid::text::bigint) + 1, 0)::text from pitwheel.lane_check";
            let first: String = connection.client.query_one(behind, &[]).await?.get(0);
            Ok(promote_checked(&connection.client, &first).await?.queues.len().to_string())
        })
        .explore()
        .await?
        .sometimes(stranded);
    Ok(())
}

#[tokio::test]
async fn a_cancel_of_the_head_beside_an_enqueue_strands_nothing() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).in_lane(1, LANE);
    let wrong = |run: &Run| run.failed() || run.end() != "1 cancelled | 101 waiting";
    start("cancel × enqueue")
        .session(cancels())
        .session(enqueues("b"))
        .afterwards("maintenance", promote)
        .explore()
        .await?
        .never(wrong);
    start("cancel × enqueue in a user's transaction")
        .session(cancels())
        .session(enqueues_in_sql("b"))
        .afterwards("maintenance", promote)
        .explore()
        .await?
        .never(wrong);
    Ok(())
}
