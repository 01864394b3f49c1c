//! Pipelines: settles of their steps beside each other, and beside what operators and the sweep do.

use anyhow::Result;
use pitwheel::engine::{Ending, Settlement};
use pitwheel::{Claim, History, NewJob};
use pitwheel_testkit::{Connection, Explorer, Run, Session, TestDb};

use crate::sessions::{FIRST, claims};

/// The claim of job 2, as [`FIRST`] is that of job 1.
const SECOND: Claim = Claim { id: 2, fence: 1, holder: 1 };

/// Steps `a` and `b` are live, as jobs 1 and 2, and `c` comes after both.
const FAN_IN: &str = "
    insert into pitwheel.pipeline (id, name, on_failure, steps, open) overriding system value values (1, 'p', 'stop', 3, 3);
    insert into pitwheel.step (pipeline, n, name, parents, children, waiting, state, job_id, kind, queue, payload, delay_ms,
        priority, max_attempts)
    values (1, 1, 'a', '{}', '{c}', 0, 'live', 1, 'test', 'default', '{}', 0, 0, 20),
        (1, 2, 'b', '{}', '{c}', 0, 'live', 2, 'test', 'default', '{}', 0, 0, 20),
        (1, 3, 'c', '{a,b}', '{}', 2, 'waiting', null, 'test', 'default', '{}', 0, 0, 20)";
/// Steps `a`, `b` and `c`, one after the other; `a` is live, as job 1.
const CHAIN: &str = "
    insert into pitwheel.pipeline (id, name, on_failure, steps, open) overriding system value values (1, 'p', 'stop', 3, 3);
    insert into pitwheel.step (pipeline, n, name, parents, children, waiting, state, job_id, kind, queue, payload, delay_ms,
        priority, max_attempts)
    values (1, 1, 'a', '{}', '{b}', 0, 'live', 1, 'test', 'default', '{}', 0, 0, 20),
        (1, 2, 'b', '{a}', '{c}', 1, 'waiting', null, 'test', 'default', '{}', 0, 0, 20),
        (1, 3, 'c', '{b}', '{}', 1, 'waiting', null, 'test', 'default', '{}', 0, 0, 20)";
/// Jobs 1 and 2 are the steps `a` and `b`.
const STEPS: &str =
    "update pitwheel.job set pipeline = 1, step = case id when 1 then 'a' else 'b' end, key = null";
/// The pipeline, its steps, and what is inconsistent: a live step without a job, a job without a live step, a wrong count.
const END: &str = "
    select pitwheel.pipeline_state(pipeline) || ': '
        || (select string_agg(name || ' ' || state || case when state = 'waiting' then ' for ' || waiting else '' end, ', ' order by n)
            from pitwheel.step)
        || case when exists (
                select from pitwheel.step
                full join pitwheel.job on job.pipeline = step.pipeline and job.step = step.name
                where (step.state = 'live') is distinct from (job.id is not null)
            ) then ' (jobs)' else '' end
        || case when open <> (select count(*) from pitwheel.step where state in ('waiting', 'live'))
            or failed <> (select count(*) from pitwheel.step where state in ('dead', 'cancelled')) then ' (counts)' else '' end
    from pitwheel.pipeline";

fn fan_in<'a>(db: &'a TestDb, title: &'static str) -> Explorer<'a> {
    Explorer::new(db, title).worker(1).running(1, 1).running(2, 1).setup(STEPS).setup(FAN_IN).end(END)
}

fn chain<'a>(db: &'a TestDb, title: &'static str) -> Explorer<'a> {
    Explorer::new(db, title).worker(1).running(1, 1).setup(STEPS).setup(CHAIN).end(END)
}

fn inconsistent(run: &Run) -> bool {
    run.failed() || run.end().contains('(')
}

fn done(then: Vec<NewJob>) -> Ending {
    Ending::Done { history: History::All, ctid: None, result: None, then }
}

/// Completes the job of a step in a transaction. With `more`, a step of that name follows.
fn completes(name: &'static str, claim: Claim, more: bool) -> Session {
    Session::transaction(name, "settle", async move |connection: &mut Connection| {
        let then = if more { vec![NewJob::raw("test", "{}").as_step("more")] } else { Vec::new() };
        connection.write(Settlement::new(claim, done(then))).await
    })
}

fn calls(name: &'static str, label: &'static str, call: &'static str) -> Session {
    Session::new(name).sql("begin").sql_as(label, format!("select * from pitwheel.{call}")).sql("commit")
}

fn cancels() -> Session {
    calls("x", "cancel", "cancel_pipeline(1)")
}

#[tokio::test]
async fn the_last_of_two_parents_starts_the_step() -> Result<()> {
    let db = TestDb::new().await?;
    let right = fan_in(&db, "settle × settle of the other parent")
        .session(completes("s", FIRST, false))
        .session(completes("t", SECOND, false))
        .explore()
        .await?;
    right.never(|run| inconsistent(run) || run.end() != "running: a done, b done, c live");
    let in_sql = fan_in(&db, "complete in SQL × settle of the other parent")
        .session(calls("s", "settle", "complete(1, 1)"))
        .session(completes("t", SECOND, false))
        .explore()
        .await?;
    in_sql.never(|run| inconsistent(run) || run.end() != "running: a done, b done, c live");

    // Without a lock, each sees that the other parent has not ended.
    let ends = |name, step: &str| {
        let start = "update pitwheel.step set state = 'live' where name = 'c' and not exists (
            select from pitwheel.step where name in ('a', 'b') and state <> 'done')";
        Session::new(name)
            .sql("begin")
            .sql_as("settle", format!("update pitwheel.step set state = 'done' where name = '{step}'"))
            .sql_as("start", start)
            .sql("commit")
    };
    fan_in(&db, "settle × settle without the lock")
        .session(ends("s", "a"))
        .session(ends("t", "b"))
        .explore()
        .await?
        .sometimes(|run| run.end().contains("a done, b done, c waiting"));
    Ok(())
}

#[tokio::test]
async fn nothing_of_a_cancelled_pipeline_starts() -> Result<()> {
    let db = TestDb::new().await?;
    let right = chain(&db, "cancel × settle")
        .session(cancels())
        .session(completes("s", FIRST, false))
        .explore()
        .await?;
    right.never(|run| {
        inconsistent(run)
            || run.output("s.settle") != "written"
            || run.end() != "cancelled: a done, b cancelled, c cancelled"
    });
    for call in ["complete(1, 1)", "fail(1, 1, 'no')"] {
        let right = chain(&db, "cancel × settle in SQL")
            .session(cancels())
            .session(calls("s", "settle", call))
            .explore()
            .await?;
        right.never(|run| inconsistent(run) || run.end().contains("b live"));
    }

    // One statement sees what was there when it began: not the job that the settle has added since.
    let at_once = "with cancelled as (update pitwheel.pipeline set cancelled_at = now() where id = 1),
        steps as (update pitwheel.step set state = 'cancelled' where pipeline = 1 and state = 'waiting')
        delete from pitwheel.job where pipeline = 1 and holder is null";
    chain(&db, "cancel in one statement × settle")
        .session(Session::new("x").sql("begin").sql_as("cancel", at_once).sql("commit"))
        .session(completes("s", FIRST, false))
        .explore()
        .await?
        .sometimes(|run| run.end().contains("b live"));
    Ok(())
}

#[tokio::test]
async fn a_claim_beside_a_cancel_is_asked_to_stop_or_gets_nothing() -> Result<()> {
    let db = TestDb::new().await?;
    let waiting = |title| Explorer::new(&db, title).worker(1).waiting(1).setup(STEPS).setup(CHAIN).end(END);
    let right = waiting("cancel × claim").session(cancels()).session(claims("a", 1, 1)).explore().await?;
    right.never(|run| {
        inconsistent(run) || (run.output("a.claim") == "1") != run.end().starts_with("running: a live")
    });
    right.sometimes(|run| run.output("a.claim") == "1");

    let read = "select id from pitwheel.job where pipeline = 1 and holder is null";
    waiting("cancel × claim, holder read before")
        .session(
            Session::new("x")
                .sql("begin")
                .sql_as("read", read)
                .sql_as(
                    "cancel",
                    "update pitwheel.step set state = 'cancelled'; delete from pitwheel.job where id = 1",
                )
                .sql("commit"),
        )
        .session(claims("a", 1, 1))
        .explore()
        .await?
        .sometimes(|run| run.output("a.claim") == "1" && run.end().contains("a cancelled"));
    Ok(())
}

/// Step `b` is dead and `c` is skipped; `a` is live.
const FAILED: &str = "
    delete from pitwheel.job where id = 2;
    update pitwheel.step set state = case name when 'b' then 'dead' else 'skipped' end where name <> 'a';
    update pitwheel.pipeline set open = 1, failed = 1";

#[tokio::test]
async fn a_retry_beside_a_settle_waits_for_what_has_not_ended() -> Result<()> {
    let db = TestDb::new().await?;
    let right = fan_in(&db, "retry × settle")
        .setup(FAILED)
        .session(calls("r", "retry", "retry_pipeline(1)"))
        .session(completes("s", FIRST, false))
        .explore()
        .await?;
    right.never(|run| inconsistent(run) || run.end() != "running: a done, b live, c waiting for 1");

    let read = "create temp table if not exists seen (n int); delete from seen;
        insert into seen select count(*) from pitwheel.step where name in ('a', 'b') and state <> 'done'";
    let retry = "update pitwheel.step set state = 'waiting', waiting = (select n from seen) where name = 'c';
        update pitwheel.step set state = 'live' where name = 'b'";
    fan_in(&db, "retry that counted before × settle")
        .setup(FAILED)
        .session(Session::new("r").sql_as("read", read).sql("begin").sql_as("retry", retry).sql("commit"))
        .session(completes("s", FIRST, false))
        .explore()
        .await?
        .sometimes(|run| run.end().contains("a done, b live, c waiting for 2"));
    Ok(())
}

#[tokio::test]
async fn a_settle_beside_the_sweep_ends_the_step_once() -> Result<()> {
    let db = TestDb::new().await?;
    let expired = |title| {
        Explorer::new(&db, title)
            .expired(1)
            .running(1, 1)
            .setup(STEPS)
            .setup("update pitwheel.job set crashes = 2")
            .setup(CHAIN)
            .end(END)
    };
    let sweeps =
        || Session::transaction("w", "sweep", async |connection: &mut Connection| connection.sweep().await);
    let right =
        expired("sweep × settle").session(sweeps()).session(completes("s", FIRST, false)).explore().await?;
    right.never(|run| {
        let written = run.output("s.settle") == "written";
        let end = if written {
            "running: a done, b live, c waiting for 1"
        } else {
            "failed: a dead, b skipped, c skipped"
        };
        inconsistent(run) || run.end() != end
    });
    right.sometimes(|run| run.output("s.settle") == "lost");

    let unfenced = "update pitwheel.step set state = case name when 'a' then 'dead' else 'skipped' end";
    expired("sweep without a fence × settle")
        .session(Session::new("w").sql("begin").sql_as("sweep", unfenced).sql("commit"))
        .session(completes("s", FIRST, false))
        .explore()
        .await?
        .sometimes(|run| run.output("s.settle") == "written" && run.end().contains("a dead"));
    Ok(())
}

#[tokio::test]
async fn a_step_that_follows_twice_exists_once() -> Result<()> {
    let db = TestDb::new().await?;
    let repeated = chain(&db, "settle × the same settle")
        .session(completes("s", FIRST, true))
        .session(completes("t", FIRST, true))
        .explore()
        .await?;
    repeated.never(|run| {
        inconsistent(run)
            || run.output("s.settle") == run.output("t.settle")
            || run.end() != "running: a done, b live, c waiting for 1, more live"
    });
    let both = fan_in(&db, "settle × settle that adds the same step")
        .session(completes("s", FIRST, true))
        .session(completes("t", SECOND, true))
        .explore()
        .await?;
    both.never(|run| inconsistent(run) || run.end() != "running: a done, b done, c live, more live");

    let missing =
        "insert into twin (name) select 'more' where not exists (select from twin where name = 'more')";
    let adds = |name| Session::new(name).sql("begin").sql_as("add", missing).sql("commit");
    Explorer::new(&db, "add if missing × the same")
        .setup("create table if not exists twin (name text); delete from twin")
        .end("select count(*)::text from twin")
        .session(adds("s"))
        .session(adds("t"))
        .explore()
        .await?
        .sometimes(|run| run.end() == "2");
    Ok(())
}
