//! Recurring jobs: what operators change beside claims, settles and the maintenance.

use std::sync::{Arc, Mutex};

use anyhow::Result;
use pitwheel::engine::{Attempt, Outcome, Settlement, attempts, decide_run, plan_runs};
use pitwheel::{History, Recurrence};
use pitwheel_testkit::{Connection, Explorer, Run, Session, TestDb};

use crate::sessions::{FIRST, cancels, claims};

/// Recurring job 1, as it is at the start of a schedule; `planned` or not.
const RECURRING: &str = "
    insert into pitwheel.recurring (id, kind, key, queue, cadence, misfire, payload, priority, planned, next_run_at, anchor_at)
    overriding system value
    values (1, 'test', 'k', 'default', 'every 15m', 'one', '{}', 0, true, clock_timestamp(), clock_timestamp())";
/// Its run, which is due.
const WAITING: &str = "
    insert into pitwheel.job (id, recurring, run_at, enqueued_at, max_attempts, priority, queue, kind, payload)
    values (1, 1, clock_timestamp(), clock_timestamp(), 1000, 0, 'default', 'test', '{}')";
/// Its run, which worker 1 has claimed.
const RUNNING: &str = "
    insert into pitwheel.job (id, recurring, run_at, enqueued_at, max_attempts, priority, queue, kind, payload, holder, fence,
        attempt, claimed_at)
    values (1, 1, clock_timestamp(), clock_timestamp(), 1000, 0, 'default', 'test', '{}', 1, 1, 1, clock_timestamp())";
/// The run carries the state: it counts seven runs, of which the recurring job knows none.
const CARRIED: &str = "
    update pitwheel.job
    set anchor_at = recurring.anchor_at, next_run_at = recurring.next_run_at, version = 0, runs = 7, skipped = 0,
        recurring_key = recurring.key, cadence = recurring.cadence, misfire = recurring.misfire
    from pitwheel.recurring where recurring.id = job.recurring;
    update pitwheel.recurring set carried = true";
/// Whether the run carries the state, and how many runs were counted.
const STATES: [(&str, u32); 2] = [("", 0), (CARRIED, 7)];
/// The recurring job, its runs, and its live jobs: `late` if a waiting one is not due when its recurring job says, `old` if it has
/// another definition.
const END: &str = "
    select coalesce((
            select case when enabled then 'enabled' else 'disabled' end || case when planned then '' else ' unplanned' end
                || ', runs ' || runs || ', '
            from pitwheel.recurring_now where id = 1
        ), 'deleted, ') || coalesce((
            select string_agg(case when job.holder is not null then 'running'
                when abs(extract(epoch from job.run_at - recurring.next_run_at)) > 1 then 'late'
                when job.payload::text <> recurring.payload::text
                    or job.anchor_at is not null and (job.cadence, job.version) <> (recurring.cadence, recurring.version) then 'old'
                else 'waiting' end, ' ')
            from pitwheel.job left join pitwheel.recurring_now as recurring on recurring.id = job.recurring
            where job.recurring = 1
        ), 'no job')";

fn start<'a>(db: &'a TestDb, title: &'static str, job: &str) -> Explorer<'a> {
    start_with(db, title, job, "")
}

fn start_with<'a>(db: &'a TestDb, title: &'static str, job: &str, state: &str) -> Explorer<'a> {
    Explorer::new(db, title).worker(1).setup(RECURRING).setup(job).setup(state).end(END)
}

/// While it is enabled it has one live job, while it is not it has none that waits, and a waiting one has its definition and is due when
/// it says.
fn inconsistent(run: &Run) -> bool {
    let end = run.end();
    let waits = ["waiting", "late", "old"].iter().any(|state| end.contains(state));
    run.failed()
        || end.contains("late")
        || end.contains("old")
        || end.contains("waiting waiting")
        || end.starts_with("enabled,") && end.contains("no job")
        || !end.starts_with("enabled") && waits
}

/// Calls one of the functions on recurring job 1, in a transaction. The output is the first column.
fn calls(name: &'static str, label: &'static str, call: &'static str) -> Session {
    Session::new(name)
        .sql("begin")
        .sql_as(label, format!("select changed from pitwheel.{call}"))
        .sql("commit")
}

fn disables() -> Session {
    calls("d", "disable", "disable_recurring(1)")
}

fn enables() -> Session {
    calls("e", "enable", "enable_recurring(1)")
}

fn changes() -> Session {
    calls("c", "change", "change_recurring(1, 'every 2h', null, clock_timestamp() + interval '2 hours')")
}

/// Creates it again, with another payload.
fn creates() -> Session {
    let sql = r#"select changed from pitwheel.create_recurring('test', 'k', 'every 15m', '{"n":2}')"#;
    Session::new("n").sql("begin").sql_as("create", sql).sql("commit")
}

fn deletes() -> Session {
    Session::new("x")
        .sql("begin")
        .sql_as("delete", "select kind from pitwheel.delete_recurring(1)")
        .sql("commit")
}

/// Reads what the next time depends on, as a claim does, and later settles the run.
fn settles() -> Session {
    settles_with(false)
}

/// The same by the fast path, which finds the row by its ctid.
fn settles_fast() -> Session {
    settles_with(true)
}

fn settles_with(fast: bool) -> Session {
    let known: Arc<Mutex<Option<Box<Recurrence>>>> = Arc::default();
    let read = known.clone();
    Session::new("s")
        .step("read", async move |connection: &mut Connection| {
            let read_now =
                attempts(&connection.client, &[FIRST]).await?.remove(&1).and_then(|one| one.recurrence);
            *read.lock().expect("no panic") = read_now;
            if fast {
                connection.read_ctid(1).await?;
            }
            Ok(String::new())
        })
        .sql("begin")
        .step("settle", async move |connection: &mut Connection| {
            let recurrence = known.lock().expect("no panic").clone();
            // It was deleted before it was read: the run has no plan then.
            let Some(recurrence) = recurrence else { return connection.complete(FIRST).await };
            let attempt = Attempt {
                number: 1,
                max: 1000,
                history: History::All,
                ctid: connection.ctid.filter(|_| fast),
                worker: "w",
                cancelled: false,
            };
            let (ending, plan) = decide_run(Outcome::Verdict(().into()), &attempt, &recurrence, 0.5);
            connection.write(Settlement { plan, ..Settlement::new(FIRST, ending) }).await
        })
        .sql("commit")
}

#[tokio::test]
async fn a_disabled_recurring_job_is_not_claimed() -> Result<()> {
    let db = TestDb::new().await?;
    for (state, runs) in STATES {
        let right = start_with(&db, "disable × claim", WAITING, state)
            .session(disables())
            .session(claims("a", 1, 1))
            .explore()
            .await?;
        right.never(|run| {
            inconsistent(run) || (run.output("a.claim") == "1") != run.end().ends_with("running")
        });
        right.sometimes(|run| run.output("a.claim") == "1");
        right.sometimes(|run| run.end() == format!("disabled, runs {runs}, no job"));
    }

    let read = "select id from pitwheel.job where recurring = 1 and holder is null";
    start(&db, "disable × claim, holder read before", WAITING)
        .session(
            Session::new("d")
                .sql("begin")
                .sql_as("disable", "update pitwheel.recurring set enabled = false where id = 1")
                .sql_as("read", read)
                .sql_as("delete", "delete from pitwheel.job where id = 1")
                .sql("commit"),
        )
        .session(claims("a", 1, 1))
        .explore()
        .await?
        .sometimes(|run| run.output("a.claim") == "1" && !run.end().ends_with("running"));
    Ok(())
}

#[tokio::test]
async fn a_settle_beside_disable_and_enable_leaves_one_job_or_none() -> Result<()> {
    let db = TestDb::new().await?;
    let disabled = format!("{RUNNING}; update pitwheel.recurring set enabled = false");
    for settles in [settles, settles_fast] {
        for (state, runs) in STATES {
            let right = start_with(&db, "disable × settle", RUNNING, state)
                .session(disables())
                .session(settles())
                .explore()
                .await?;
            right.never(|run| {
                inconsistent(run) || run.end() != format!("disabled, runs {}, no job", runs + 1)
            });
        }
        let right =
            start(&db, "enable × settle", &disabled).session(enables()).session(settles()).explore().await?;
        right.never(|run| inconsistent(run) || run.end() != "enabled, runs 1, waiting");
    }

    // One statement sees what was there when it began: not the job that the settle has added since.
    let at_once = "with disabled as (update pitwheel.recurring set enabled = false where id = 1)
        delete from pitwheel.job where recurring = 1 and holder is null";
    start(&db, "disable in one statement × settle", RUNNING)
        .session(Session::new("d").sql("begin").sql_as("disable", at_once).sql("commit"))
        .session(settles())
        .explore()
        .await?
        .sometimes(inconsistent);

    // The settle does not look at the recurring job, because its run carries the state: a trigger takes it back.
    let by_hand =
        "update pitwheel.recurring set enabled = false where id = 1; select from pitwheel.place_run(1)";
    let changes_row = |sql: &'static str| Session::new("d").sql("begin").sql_as("disable", sql).sql("commit");
    let right = start_with(&db, "disable by hand × settle", RUNNING, CARRIED)
        .session(changes_row(by_hand))
        .session(settles_fast())
        .explore()
        .await?;
    right.never(|run| inconsistent(run) || !run.end().ends_with("no job"));

    let keeps_state = "set local session_replication_role = replica;
        update pitwheel.recurring set enabled = false where id = 1; select from pitwheel.place_run(1)";
    start_with(&db, "disable that leaves the state × settle", RUNNING, CARRIED)
        .session(changes_row(keeps_state))
        .session(settles_fast())
        .explore()
        .await?
        .sometimes(inconsistent);

    let next = "insert into pitwheel.job (recurring, run_at, enqueued_at, max_attempts, priority, queue, kind, payload)
        select 1, clock_timestamp(), clock_timestamp(), 1000, 0, 'default', 'test', '{}' where exists (select from seen)";
    start(&db, "disable × settle that read `enabled` before", RUNNING)
        .session(disables())
        .session(
            Session::new("s")
                .sql_as(
                    "read",
                    "create temp table if not exists seen (id bigint); delete from seen;
                    insert into seen select id from pitwheel.recurring where id = 1 and enabled",
                )
                .sql("begin")
                .sql_as("settle", format!("delete from pitwheel.job where id = 1; {next}"))
                .sql("commit"),
        )
        .explore()
        .await?
        .sometimes(inconsistent);
    Ok(())
}

#[tokio::test]
async fn two_creations_make_one_recurring_job() -> Result<()> {
    let db = TestDb::new().await?;
    let creates = |name| {
        let sql = "select is_new from pitwheel.create_recurring('test', 'k', 'every 15m')";
        Session::new(name).sql("begin").sql_as("create", sql).sql("commit")
    };
    let one =
        "select (select count(*) from pitwheel.recurring) || ' and ' || (select count(*) from pitwheel.job)";
    let right = Explorer::new(&db, "create × create")
        .end(one)
        .session(creates("a"))
        .session(creates("b"))
        .explore()
        .await?;
    right.never(|run| {
        run.failed() || run.end() != "1 and 1" || run.output("a.create") == run.output("b.create")
    });

    let missing = "insert into twin (key) select 'k' where not exists (select from twin where key = 'k')";
    let creates = |name| Session::new(name).sql("begin").sql_as("create", missing).sql("commit");
    Explorer::new(&db, "create if missing × the same")
        .setup("create table if not exists twin (key text); delete from twin")
        .end("select count(*)::text from twin")
        .session(creates("a"))
        .session(creates("b"))
        .explore()
        .await?
        .sometimes(|run| run.end() == "2");
    Ok(())
}

#[tokio::test]
async fn a_settle_beside_a_delete_leaves_no_job() -> Result<()> {
    let db = TestDb::new().await?;
    for (state, _) in STATES {
        for settles in [settles, settles_fast] {
            let right = start_with(&db, "delete × settle", RUNNING, state)
                .session(deletes())
                .session(settles())
                .explore()
                .await?;
            right.never(|run| {
                inconsistent(run) || run.end() != "deleted, no job" || run.output("s.settle") != "written"
            });
        }
    }

    let by_hand = |sql: &str| Session::new("x").sql("begin").sql_as("delete", sql.to_owned()).sql("commit");
    for settles in [settles, settles_fast] {
        let right = start_with(&db, "delete by hand × settle", RUNNING, CARRIED)
            .end("select count(*)::text from pitwheel.job where anchor_at is not null")
            .session(by_hand("delete from pitwheel.recurring where id = 1"))
            .session(settles())
            .explore()
            .await?;
        right.never(|run| run.failed() || run.end() != "0");
    }

    let at_once = "with gone as (delete from pitwheel.recurring where id = 1)
        delete from pitwheel.job where recurring = 1 and holder is null";
    start(&db, "delete in one statement × settle", RUNNING)
        .session(by_hand(at_once))
        .session(settles())
        .explore()
        .await?
        .sometimes(inconsistent);
    Ok(())
}

#[tokio::test]
async fn a_settle_beside_a_cancel_leaves_one_job() -> Result<()> {
    let db = TestDb::new().await?;
    for (state, runs) in STATES {
        for settles in [settles, settles_fast] {
            let right = start_with(&db, "cancel × settle", RUNNING, state)
                .session(cancels())
                .session(settles())
                .explore()
                .await?;
            right.never(|run| {
                inconsistent(run) || run.end() != format!("enabled, runs {}, waiting", runs + 1)
            });
            right.sometimes(|run| run.output("c.cancel") == "requested");
            right.sometimes(|run| run.output("c.cancel").is_empty());
        }
        let right = start_with(&db, "cancel × claim", WAITING, state)
            .session(cancels())
            .session(claims("a", 1, 1))
            .explore()
            .await?;
        right.never(|run| match run.output("a.claim") {
            "1" => run.failed() || run.end() != format!("enabled, runs {runs}, running"),
            _ => run.failed() || run.end() != format!("enabled unplanned, runs {runs}, no job"),
        });
    }

    // A cancel by recurring job instead of by run takes the next run, which no maintenance plans again.
    let next = "delete from pitwheel.job where recurring = 1 and holder is null";
    start(&db, "cancel of whatever waits × settle", RUNNING)
        .session(Session::new("c").sql("begin").sql_as("cancel", next).sql("commit"))
        .session(settles())
        .explore()
        .await?
        .sometimes(inconsistent);
    Ok(())
}

#[tokio::test]
async fn a_changed_cadence_decides_about_the_next_run() -> Result<()> {
    let db = TestDb::new().await?;
    for (state, runs) in STATES {
        for changes in [changes, creates] {
            for settles in [settles, settles_fast] {
                let right = start_with(&db, "change × settle", RUNNING, state)
                    .session(changes())
                    .session(settles())
                    .explore()
                    .await?;
                right.never(|run| {
                    inconsistent(run) || run.end() != format!("enabled, runs {}, waiting", runs + 1)
                });
            }
            let right = start_with(&db, "change × claim", WAITING, state)
                .session(changes())
                .session(claims("a", 1, 1))
                .explore()
                .await?;
            right.never(|run| {
                inconsistent(run) || (run.output("a.claim") == "1") != run.end().ends_with("running")
            });
        }
    }

    let at_once = "with changed as (
            update pitwheel.recurring set version = version + 1, next_run_at = clock_timestamp() + interval '2 hours' where id = 1
        )
        update pitwheel.job set run_at = clock_timestamp() + interval '2 hours' where recurring = 1 and holder is null";
    start(&db, "change in one statement × settle", RUNNING)
        .session(Session::new("c").sql("begin").sql_as("change", at_once).sql("commit"))
        .session(settles())
        .explore()
        .await?
        .sometimes(inconsistent);

    let keeps_state = r#"set local session_replication_role = replica;
        update pitwheel.recurring set payload = '{"n":2}' where id = 1; select from pitwheel.place_run(1)"#;
    start_with(&db, "change that leaves the state × settle", RUNNING, CARRIED)
        .session(Session::new("c").sql("begin").sql_as("change", keeps_state).sql("commit"))
        .session(settles_fast())
        .explore()
        .await?
        .sometimes(|run| run.end().contains("old"));
    let unlocked =
        "update pitwheel.recurring set runs = job.runs from pitwheel.job where job.recurring = recurring.id;
        update pitwheel.job set anchor_at = null where recurring = 1";
    start_with(&db, "change that reads the state without a lock × settle", RUNNING, CARRIED)
        .session(
            Session::new("c")
                .sql("begin")
                .sql_as("change", format!("{unlocked}; {keeps_state}"))
                .sql("commit"),
        )
        .session(settles_fast())
        .explore()
        .await?
        .sometimes(|run| !run.end().contains("runs 8"));
    Ok(())
}

#[tokio::test]
async fn run_now_moves_a_waiting_run_and_no_other() -> Result<()> {
    let db = TestDb::new().await?;
    let runs_now = || calls("r", "run", "run_recurring(1)");
    for (state, runs) in STATES {
        let right = start_with(&db, "run now × claim", WAITING, state)
            .session(runs_now())
            .session(claims("a", 1, 1))
            .explore()
            .await?;
        right.never(|run| {
            inconsistent(run)
                || run.output("r.run") == "t"
                    && !run.end().ends_with("waiting")
                    && run.before("a.commit", "r.run")
        });
        right.sometimes(|run| run.output("r.run") == "f");
        for settles in [settles, settles_fast] {
            let right = start_with(&db, "run now × settle", RUNNING, state)
                .session(runs_now())
                .session(settles())
                .explore()
                .await?;
            right.never(|run| {
                inconsistent(run) || run.end() != format!("enabled, runs {}, waiting", runs + 1)
            });
        }
    }

    start(&db, "run now × claim, holder read before", WAITING)
        .session(
            Session::new("r")
                .sql("begin")
                .sql_as("read", "select id from pitwheel.job where recurring = 1 and holder is null")
                .sql_as("run", "update pitwheel.job set run_at = 'epoch' where id = 1")
                .sql("commit"),
        )
        .session(claims("a", 1, 1))
        .end("select holder is not null and run_at = 'epoch' from pitwheel.job where id = 1")
        .explore()
        .await?
        .sometimes(|run| run.end() == "t" && run.before("a.commit", "r.run"));
    Ok(())
}

#[tokio::test]
async fn the_maintenance_plans_beside_what_operators_change() -> Result<()> {
    let db = TestDb::new().await?;
    let plans = || {
        Session::transaction("p", "plan", async |connection: &mut Connection| {
            Ok(plan_runs(&connection.client, 0).await?.enqueued.to_string())
        })
    };
    let unplanned = "update pitwheel.recurring set planned = false, next_run_at = null";
    let right =
        start(&db, "plan × disable", unplanned).session(plans()).session(disables()).explore().await?;
    right.never(|run| inconsistent(run) || !run.end().starts_with("disabled"));
    let right = start(&db, "plan × run now", unplanned)
        .session(plans())
        .session(calls("r", "run", "run_recurring(1)"))
        .explore()
        .await?;
    right.never(|run| inconsistent(run) || run.end() != "enabled, runs 0, waiting");
    let disabled = "update pitwheel.recurring set planned = false, next_run_at = null, enabled = false";
    let right = start(&db, "plan × enable", disabled).session(plans()).session(enables()).explore().await?;
    right.never(inconsistent);
    let both = start(&db, "plan × plan", unplanned)
        .session(plans())
        .session(Session::transaction("q", "plan", async |connection: &mut Connection| {
            Ok(plan_runs(&connection.client, 0).await?.enqueued.to_string())
        }))
        .explore()
        .await?;
    both.never(|run| inconsistent(run) || run.end() != "enabled, runs 0, waiting");

    let next = "insert into pitwheel.job (recurring, run_at, enqueued_at, max_attempts, priority, queue, kind, payload)
        select 1, clock_timestamp(), clock_timestamp(), 1000, 0, 'default', 'test', '{}' where exists (select from seen)";
    start(&db, "plan that read `enabled` before × disable", unplanned)
        .session(
            Session::new("p")
                .sql_as(
                    "read",
                    "create temp table if not exists seen (id bigint); delete from seen;
                    insert into seen select id from pitwheel.recurring where id = 1 and enabled",
                )
                .sql_as("plan", next),
        )
        .session(disables())
        .explore()
        .await?
        .sometimes(inconsistent);
    Ok(())
}
