//! What people do to jobs and workers, beside what the engine does to them and beside each other.

use anyhow::Result;
use pitwheel_testkit::{Explorer, Run, Session, Stage, TestDb};
use tokio_postgres::types::{ToSql, Type};

use crate::{claims, deals};

/// Changes job 1 with this statement, and says `1` if it did.
fn changes(name: &'static str, label: &'static str, sql: &'static str) -> Session {
    Session::transaction(name, label, async move |stage: &mut Stage| {
        let ids = vec![1_i64];
        let rows = stage.client.query_typed(sql, &[(&ids, Type::INT8_ARRAY), (&"test", Type::TEXT)]).await?;
        Ok(rows.first().map(|row| row.get::<_, i64>(0).to_string()).unwrap_or_default())
    })
}

fn deletes() -> Session {
    changes("d", "delete", include_str!("../../sql/operate/delete.sql"))
}

fn retries(name: &'static str) -> Session {
    changes(name, "retry", include_str!("../../sql/operate/retry.sql"))
}

/// To a time that never comes.
fn reschedules() -> Session {
    static NEVER: std::sync::LazyLock<std::time::SystemTime> = std::sync::LazyLock::new(|| {
        std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(7_000_000_000)
    });
    Session::transaction("r", "reschedule", async |stage: &mut Stage| {
        let sql = include_str!("../../sql/operate/reschedule.sql");
        let ids = vec![1_i64];
        let params: [(&(dyn ToSql + Sync), Type); 3] =
            [(&ids, Type::INT8_ARRAY), (&*NEVER, Type::TIMESTAMPTZ), (&"test", Type::TEXT)];
        let rows = stage.client.query_typed(sql, &params).await?;
        Ok(rows.first().map(|row| row.get::<_, i64>(0).to_string()).unwrap_or_default())
    })
}

/// The end in which no job is left.
const NOTHING: &str = "nothing";

/// Job 1 is dead.
const DEAD: &str =
    "insert into pitwheel.job_history (id, finished_at, run_at, enqueued_at, fence, attempt, max_attempts,
        priority, crashes, state, queue, kind, payload)
    values (1, now(), now(), now(), 1, 1, 1, 0, 0, 'dead', 'default', 'test', '{}')";

#[tokio::test]
async fn a_job_that_is_deleted_is_not_claimed_and_one_that_is_claimed_not_deleted() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(1).waiting(1);
    let both = |run: &Run| {
        let (deleted, claimed) = (run.said("d.delete") == "1", run.said("a.claim") == "1");
        run.failed()
            || deleted == claimed
            || (claimed && run.end() != "1 running by 1")
            || (deleted && run.end() != NOTHING)
    };
    let right = start("delete × claim").session(deletes()).session(claims("a", 1, 1)).explore().await?;
    right.never(both);
    right.sometimes(|run| run.said("d.delete") == "1");
    right.sometimes(|run| run.said("a.claim") == "1");
    start("delete × claim_for_workers")
        .session(deletes())
        .session(deals("a", &[1]))
        .explore()
        .await?
        .never(both);

    let look = "select id from pitwheel.job where id = 1 and holder is null";
    start("delete × claim, looked before")
        .session(
            Session::new("d")
                .sql("begin")
                .sql_as("look", look)
                .sql_as("delete", "delete from pitwheel.job where id = 1 returning id")
                .sql("commit"),
        )
        .session(claims("a", 1, 1))
        .explore()
        .await?
        .sometimes(|run| run.said("d.delete") == "1" && run.said("a.claim") == "1");
    Ok(())
}

#[tokio::test]
async fn a_job_that_runs_is_not_rescheduled() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(1).waiting(1);
    let both = |run: &Run| run.failed() || (run.said("r.reschedule") == "1") == (run.said("a.claim") == "1");
    let right =
        start("reschedule × claim").session(reschedules()).session(claims("a", 1, 1)).explore().await?;
    right.never(both);
    right.sometimes(|run| run.said("r.reschedule") == "1");
    right.sometimes(|run| run.said("a.claim") == "1");
    start("reschedule × claim_for_workers")
        .session(reschedules())
        .session(deals("a", &[1]))
        .explore()
        .await?
        .never(both);

    let unasked = "update pitwheel.job set run_at = 'infinity' where id = 1 returning id";
    start("reschedule × claim, whoever holds it")
        .session(Session::new("r").sql("begin").sql_as("reschedule", unasked).sql("commit"))
        .session(claims("a", 1, 1))
        .explore()
        .await?
        .sometimes(both);
    Ok(())
}

#[tokio::test]
async fn a_job_that_is_retried_twice_lives_once() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).setup(DEAD);
    let right = start("retry × retry").session(retries("a")).session(retries("b")).explore().await?;
    right.never(|run| {
        run.failed()
            || run.end() != "1 waiting"
            || (run.said("a.retry") == "1") == (run.said("b.retry") == "1")
    });

    let copy = "insert into pitwheel.job (id, run_at, enqueued_at, max_attempts, priority, queue, kind, payload)
        select id, now(), enqueued_at, max_attempts, priority, queue, kind, payload from pitwheel.job_history where id = 1";
    let in_two = |name| {
        Session::new(name)
            .sql("begin")
            .sql_as("copy", copy)
            .sql_as("retry", "delete from pitwheel.job_history where id = 1 returning id")
            .sql("commit")
    };
    start("retry × retry, in two statements")
        .session(in_two("a"))
        .session(in_two("b"))
        .explore()
        .await?
        .sometimes(Run::failed);
    Ok(())
}

#[tokio::test]
async fn a_job_that_is_retried_and_deleted_is_in_one_place_or_none() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).setup(DEAD);
    let wrong = |run: &Run| match (run.said("a.retry"), run.said("d.delete")) {
        ("1", "1") | ("", "1") => run.failed() || run.end() != NOTHING,
        ("1", "") => run.failed() || run.end() != "1 waiting",
        _ => true,
    };
    let right = start("retry × delete").session(retries("a")).session(deletes()).explore().await?;
    right.never(wrong);
    right.sometimes(|run| run.end() == NOTHING);
    right.sometimes(|run| run.end() == "1 waiting");

    // It looks where the job was, and takes it from where it is not any more.
    let copy =
        "insert into pitwheel.job (id, run_at, enqueued_at, max_attempts, priority, queue, kind, payload)
        select id, now(), enqueued_at, max_attempts, priority, queue, kind, payload from pitwheel.job_history
        where id = 1 returning id";
    start("retry × delete, in two statements")
        .session(
            Session::new("a")
                .sql("begin")
                .sql_as("retry", copy)
                .sql_as("forget", "delete from pitwheel.job_history where id = 1")
                .sql("commit"),
        )
        .session(deletes())
        .explore()
        .await?
        .sometimes(wrong);
    Ok(())
}

#[tokio::test]
async fn a_claim_that_begins_after_its_worker_was_told_to_be_quiet_takes_nothing() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(1).waiting(1);
    let ran_on =
        |run: &Run| run.failed() || (run.before("q.commit", "a.claim") && !run.said("a.claim").is_empty());
    let quiets = || {
        Session::transaction("q", "quiet", async |stage: &mut Stage| {
            let sql = include_str!("../../sql/operate/command_worker.sql");
            let params: [(&(dyn ToSql + Sync), Type); 3] =
                [(&1_i64, Type::INT8), (&"quiet", Type::TEXT), (&"test", Type::TEXT)];
            stage.client.execute_typed(sql, &params).await?;
            Ok(String::new())
        })
    };
    for dealt in [false, true] {
        let claim = if dealt { deals("a", &[1]) } else { claims("a", 1, 1) };
        let right = start("quiet × claim").session(quiets()).session(claim).explore().await?;
        right.never(ran_on);
        right.sometimes(|run| run.said("a.claim") == "1");
    }

    let look = "create temp table if not exists seen (id bigint); delete from seen; insert into seen
        select 1 where exists (select from pitwheel.worker where id = 1 and quiet_at is null)";
    let take = "update pitwheel.job set holder = 1 where id in (select id from seen) and holder is null returning id";
    start("quiet × claim, read before")
        .session(quiets())
        .session(Session::new("a").sql("begin").sql_as("look", look).sql_as("claim", take).sql("commit"))
        .explore()
        .await?
        .sometimes(ran_on);
    Ok(())
}
