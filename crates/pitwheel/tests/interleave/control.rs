//! Changes that operators make to jobs and workers, beside the engine's statements and beside each other.

use anyhow::Result;
use pitwheel_testkit::{Connection, Explorer, Run, Session, TestDb};
use tokio_postgres::types::{ToSql, Type};

use crate::sessions::{claims, claims_for_workers, claims_what_was_read};

/// Changes job 1 with this statement; the output is `1` if it did.
fn changes(name: &'static str, label: &'static str, sql: &'static str) -> Session {
    Session::transaction(name, label, async move |connection: &mut Connection| {
        let ids = vec![1_i64];
        let rows =
            connection.client.query_typed(sql, &[(&ids, Type::INT8_ARRAY), (&"test", Type::TEXT)]).await?;
        Ok(rows.first().map(|row| row.get::<_, i64>(0).to_string()).unwrap_or_default())
    })
}

fn deletes() -> Session {
    changes("d", "delete", include_str!("../../sql/operate/delete.sql"))
}

fn retries(name: &'static str) -> Session {
    changes(name, "retry", include_str!("../../sql/operate/retry.sql"))
}

/// Reschedules job 1 to a time in the far future.
fn reschedules() -> Session {
    static FAR_FUTURE: std::sync::LazyLock<std::time::SystemTime> = std::sync::LazyLock::new(|| {
        std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(7_000_000_000)
    });
    Session::transaction("r", "reschedule", async |connection: &mut Connection| {
        let sql = include_str!("../../sql/operate/reschedule.sql");
        let ids = vec![1_i64];
        let params: [(&(dyn ToSql + Sync), Type); 3] =
            [(&ids, Type::INT8_ARRAY), (&*FAR_FUTURE, Type::TIMESTAMPTZ), (&"test", Type::TEXT)];
        let rows = connection.client.query_typed(sql, &params).await?;
        Ok(rows.first().map(|row| row.get::<_, i64>(0).to_string()).unwrap_or_default())
    })
}

/// The end if no job is left.
const NOTHING: &str = "nothing";

/// Adds job 1 as dead.
const DEAD: &str =
    "insert into pitwheel.job_history (id, finished_at, run_at, enqueued_at, fence, attempt, max_attempts,
        priority, crashes, state, queue, kind, payload)
    values (1, now(), now(), now(), 1, 1, 1, 0, 0, 'dead', 'default', 'test', '{}')";

#[tokio::test]
async fn a_job_is_either_deleted_or_claimed() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(1).waiting(1);
    let both = |run: &Run| {
        let (deleted, claimed) = (run.output("d.delete") == "1", run.output("a.claim") == "1");
        run.failed()
            || deleted == claimed
            || (claimed && run.end() != "1 running by 1")
            || (deleted && run.end() != NOTHING)
    };
    let right = start("delete × claim").session(deletes()).session(claims("a", 1, 1)).explore().await?;
    right.never(both);
    right.sometimes(|run| run.output("d.delete") == "1");
    right.sometimes(|run| run.output("a.claim") == "1");
    start("delete × claim_for_workers")
        .session(deletes())
        .session(claims_for_workers("a", &[1]))
        .explore()
        .await?
        .never(both);

    let read = "select id from pitwheel.job where id = 1 and holder is null";
    start("delete × claim, holder read before")
        .session(
            Session::new("d")
                .sql("begin")
                .sql_as("read", read)
                .sql_as("delete", "delete from pitwheel.job where id = 1 returning id")
                .sql("commit"),
        )
        .session(claims("a", 1, 1))
        .explore()
        .await?
        .sometimes(|run| run.output("d.delete") == "1" && run.output("a.claim") == "1");
    Ok(())
}

#[tokio::test]
async fn a_running_job_is_not_rescheduled() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(1).waiting(1);
    let both =
        |run: &Run| run.failed() || (run.output("r.reschedule") == "1") == (run.output("a.claim") == "1");
    let right =
        start("reschedule × claim").session(reschedules()).session(claims("a", 1, 1)).explore().await?;
    right.never(both);
    right.sometimes(|run| run.output("r.reschedule") == "1");
    right.sometimes(|run| run.output("a.claim") == "1");
    start("reschedule × claim_for_workers")
        .session(reschedules())
        .session(claims_for_workers("a", &[1]))
        .explore()
        .await?
        .never(both);

    let unchecked = "update pitwheel.job set run_at = 'infinity' where id = 1 returning id";
    start("reschedule × claim, holder not checked")
        .session(Session::new("r").sql("begin").sql_as("reschedule", unchecked).sql("commit"))
        .session(claims("a", 1, 1))
        .explore()
        .await?
        .sometimes(both);
    Ok(())
}

#[tokio::test]
async fn a_job_retried_twice_at_once_is_live_once() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).setup(DEAD);
    let right = start("retry × retry").session(retries("a")).session(retries("b")).explore().await?;
    right.never(|run| {
        run.failed()
            || run.end() != "1 waiting"
            || (run.output("a.retry") == "1") == (run.output("b.retry") == "1")
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
async fn a_job_retried_and_deleted_at_once_is_in_one_table_or_none() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).setup(DEAD);
    let wrong = |run: &Run| match (run.output("a.retry"), run.output("d.delete")) {
        ("1", "1") | ("", "1") => run.failed() || run.end() != NOTHING,
        ("1", "") => run.failed() || run.end() != "1 waiting",
        _ => true,
    };
    let right = start("retry × delete").session(retries("a")).session(deletes()).explore().await?;
    right.never(wrong);
    right.sometimes(|run| run.end() == NOTHING);
    right.sometimes(|run| run.end() == "1 waiting");

    // Copies the job from the history, then deletes it there: the other delete can fall in between.
    let copy =
        "insert into pitwheel.job (id, run_at, enqueued_at, max_attempts, priority, queue, kind, payload)
        select id, now(), enqueued_at, max_attempts, priority, queue, kind, payload from pitwheel.job_history
        where id = 1 returning id";
    start("retry × delete, in two statements")
        .session(
            Session::new("a")
                .sql("begin")
                .sql_as("retry", copy)
                .sql_as("remove", "delete from pitwheel.job_history where id = 1")
                .sql("commit"),
        )
        .session(deletes())
        .explore()
        .await?
        .sometimes(wrong);
    Ok(())
}

#[tokio::test]
async fn a_claim_that_begins_after_its_worker_was_quieted_takes_nothing() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(1).waiting(1);
    let claimed_when_quiet =
        |run: &Run| run.failed() || (run.before("q.commit", "a.claim") && !run.output("a.claim").is_empty());
    let quiets = || {
        Session::transaction("q", "quiet", async |connection: &mut Connection| {
            let sql = include_str!("../../sql/operate/command_worker.sql");
            let params: [(&(dyn ToSql + Sync), Type); 3] =
                [(&1_i64, Type::INT8), (&"quiet", Type::TEXT), (&"test", Type::TEXT)];
            connection.client.execute_typed(sql, &params).await?;
            Ok(String::new())
        })
    };
    for claim in [claims("a", 1, 1), claims_for_workers("a", &[1])] {
        let right = start("quiet × claim").session(quiets()).session(claim).explore().await?;
        right.never(claimed_when_quiet);
        right.sometimes(|run| run.output("a.claim") == "1");
    }

    let read = "select 1 where exists (select from pitwheel.worker where id = 1 and quiet_at is null)";
    start("quiet × claim, state read before")
        .session(quiets())
        .session(claims_what_was_read("a", read))
        .explore()
        .await?
        .sometimes(claimed_when_quiet);
    Ok(())
}
