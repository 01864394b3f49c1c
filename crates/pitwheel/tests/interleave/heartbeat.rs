//! What a node does for its streams beside the rest: heartbeats for many, the look at what is held, and signing off.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::Result;
use pitwheel::engine::{self, Ending, Settlement};
use pitwheel::{Claim, History};
use pitwheel_testkit::{Explorer, Run, Session, Stage, TestDb};

use crate::{FIRST, cancels, deals, sweeps, sweeps_by_statement};

/// The two ways the planner finds many workers by id: along the index, in the order of their ids; or page after page, in
/// the order in which their rows happen to lie. It takes the second as long as nobody has analyzed the table.
const BY_INDEX: &str = "set local enable_seqscan = off; set local enable_bitmapscan = off";
const BY_PAGE: &str = "set local enable_seqscan = off; set local enable_indexscan = off";

/// Says who lives, and after `stop` what somebody asked to cancel.
async fn beat(stage: &Stage, workers: &[i64]) -> Result<String> {
    let mut beat = engine::heartbeat(&stage.client, workers).await?;
    beat.alive.sort_unstable();
    let alive: Vec<String> = beat.alive.iter().map(i64::to_string).collect();
    let stop: Vec<String> = beat.cancelled.iter().map(|(_, claim)| format!(" stop {}", claim.id)).collect();
    Ok(format!("{}{}", alive.join(","), stop.concat()))
}

/// The heartbeats of these workers, as one node writes them together.
fn beats(name: &'static str, workers: &'static [i64]) -> Session {
    Session::transaction(name, "beat", async move |stage: &mut Stage| beat(stage, workers).await)
}

/// The same, begun in one step, with the workers found in the given way.
fn begins_and_beats(name: &'static str, plan: &'static str, workers: &'static [i64]) -> Session {
    let call = async move |stage: &mut Stage| {
        stage.ask(&format!("begin; {plan}")).await?;
        beat(stage, workers).await
    };
    Session::new(name).step("beat", call).sql("commit")
}

/// Whether the answer to the heartbeat is not what the worker's job shows: alive and holding it, or dead and swept.
fn deceived(run: &Run, worker: i64) -> bool {
    let alive = run.said("h.beat").split(',').any(|one| one == worker.to_string());
    let right = if alive { format!("{worker} running by {worker}") } else { format!("{worker} waiting") };
    run.failed() || !run.end().split(" | ").any(|one| one == right)
}

#[tokio::test]
async fn a_worker_that_was_told_it_lives_is_not_declared_dead() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).expired(1).running(1, 1);
    let wrong = |run: &Run| deceived(run, 1);

    let right = start("heartbeat × sweep").session(beats("h", &[1])).session(sweeps()).explore().await?;
    right.never(wrong);
    right.sometimes(|run| run.said("h.beat") == "1");
    right.sometimes(|run| run.said("h.beat").is_empty());
    start("heartbeat × sweep by statement")
        .session(beats("h", &[1]))
        .session(sweeps_by_statement())
        .explore()
        .await?
        .never(wrong);

    // Looks who is dead, and moves the leases of the others on: a sweep fits between.
    let looks = Session::new("h")
        .sql("begin")
        .sql_as("beat", "select id from pitwheel.worker where id = any('{1}') and dead_at is null")
        .sql_as(
            "renew",
            "update pitwheel.worker set lease_until = clock_timestamp() + lease where id = any('{1}')",
        )
        .sql("commit");
    start("heartbeat × sweep, look then renew")
        .session(looks)
        .session(sweeps())
        .explore()
        .await?
        .sometimes(wrong);
    Ok(())
}

/// Holds one worker's row for a while and leaves it as it was, so that others wait with what they have locked before it.
fn holds_up(worker: i64) -> Session {
    let lock = format!("begin; update pitwheel.worker set name = name where id = {worker}");
    Session::new("x").sql_as("lock", lock).sql("rollback")
}

#[tokio::test]
async fn heartbeats_and_a_sweep_of_the_same_workers_never_wait_in_a_circle() -> Result<()> {
    let db = TestDb::new().await?;
    // The row of the second worker lies before that of the first, as rows do after a few renewals.
    let start = |title| Explorer::new(&db, title).expired(2).expired(1).running(1, 1).running(2, 2);
    let sweeps = || Session::new("s").step("sweep", async |stage: &mut Stage| stage.sweep().await);
    let wrong = |run: &Run| deceived(run, 1) || deceived(run, 2);

    for (plan, title) in [(BY_INDEX, "heartbeats by index × sweep"), (BY_PAGE, "heartbeats by page × sweep")]
    {
        for held_up in [1, 2] {
            let right = start(title)
                .session(begins_and_beats("h", plan, &[1, 2]))
                .session(sweeps())
                .session(holds_up(held_up))
                .afterwards("next sweep", async |stage: &mut Stage| stage.sweep().await)
                .explore()
                .await?;
            right.never(wrong);
            right.sometimes(|run| run.said("h.beat") == "1,2");
            right.sometimes(|run| run.said("h.beat").is_empty());
        }
    }
    // After an outage the sweep moves everybody's lease on, when everybody sends a heartbeat at last.
    let outage = "update pitwheel.sweep_tick set ticked_at = clock_timestamp() - interval '1 day'";
    for (plan, title) in [
        (BY_INDEX, "heartbeats by index × sweep after an outage"),
        (BY_PAGE, "heartbeats by page × sweep after an outage"),
    ] {
        for held_up in [1, 2] {
            start(title)
                .setup(outage)
                .session(begins_and_beats("h", plan, &[1, 2]))
                .session(sweeps())
                .session(holds_up(held_up))
                .explore()
                .await?
                .never(|run| wrong(run) || run.said("h.beat") != "1,2");
        }
    }

    // The one locks what it finds from the first to the last, the other from the last to the first.
    let renew = "update pitwheel.worker set lease_until = clock_timestamp() + lease where id = any('{1,2}')";
    let declare = "with late as materialized (
            select id from pitwheel.worker where lease_until < clock_timestamp() order by id desc for no key update
        )
        update pitwheel.worker set dead_at = clock_timestamp() from late where worker.id = late.id";
    start("heartbeats × sweep, in opposite orders")
        .session(Session::new("h").sql_as("beat", format!("begin; {BY_INDEX}; {renew}")).sql("commit"))
        .session(Session::new("s").sql_as("sweep", declare))
        .session(holds_up(1))
        .explore()
        .await?
        .sometimes(Run::failed);
    Ok(())
}

#[tokio::test]
async fn heartbeats_of_the_same_workers_on_two_nodes_never_wait_in_a_circle() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(2).worker(1);
    let stuck = |run: &Run| run.failed() || run.said("a.beat") != "1,2" || run.said("b.beat") != "1,2";

    for (one, other, title) in [
        (BY_INDEX, BY_INDEX, "heartbeats by index × heartbeats by index"),
        (BY_PAGE, BY_PAGE, "heartbeats by page × heartbeats by page"),
        (BY_INDEX, BY_PAGE, "heartbeats by index × heartbeats by page"),
    ] {
        for held_up in [1, 2] {
            start(title)
                .session(begins_and_beats("a", one, &[1, 2]))
                .session(begins_and_beats("b", other, &[2, 1]))
                .session(holds_up(held_up))
                .explore()
                .await?
                .never(stuck);
        }
    }

    let one_by_one = |name, first: &'static [i64], second: &'static [i64]| {
        Session::new(name)
            .sql("begin")
            .step("first", async move |stage: &mut Stage| beat(stage, first).await)
            .step("second", async move |stage: &mut Stage| beat(stage, second).await)
            .sql("commit")
    };
    start("heartbeats × heartbeats, one by one in opposite orders")
        .session(one_by_one("a", &[1], &[2]))
        .session(one_by_one("b", &[2], &[1]))
        .explore()
        .await?
        .sometimes(Run::failed);
    Ok(())
}

#[tokio::test]
async fn a_heartbeat_tells_of_every_cancel_that_was_committed_before() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(1).running(1, 1).session(cancels());
    let untold = |run: &Run| {
        let right = if run.before("c.commit", "h.beat") { "1 stop 1" } else { "1" };
        run.failed() || run.said("h.beat") != right || run.said("next beat") != "1 stop 1"
    };

    start("heartbeat × cancel")
        .session(beats("h", &[1]))
        .afterwards("next beat", async |stage: &mut Stage| beat(stage, &[1]).await)
        .explore()
        .await?
        .never(untold)
        .sometimes(|run| run.said("h.beat") == "1 stop 1")
        .sometimes(|run| run.said("h.beat") == "1");

    // Tells of what was asked since the last heartbeat: what was asked before it and committed after it is never told.
    let since =
        "with before as materialized (select lease_until - lease as at from pitwheel.worker where id = 1),
        renewed as (
            update pitwheel.worker set lease_until = clock_timestamp() + lease where id = 1 returning id
        )
        select renewed.id || coalesce(' stop ' || job.id, '')
        from before
        cross join renewed
        left join pitwheel.job on job.holder = renewed.id and job.cancel_requested_at > before.at";
    start("heartbeat × cancel, since the last one")
        .session(Session::new("h").sql("begin").sql_as("beat", since).sql("commit"))
        .afterwards("next beat", async move |stage: &mut Stage| stage.ask(since).await)
        .explore()
        .await?
        .sometimes(|run| run.said("h.beat") == "1" && run.said("next beat") == "1");
    Ok(())
}

/// Says the claims that worker 1 holds, each as id and fence, and keeps the holds of which nothing is held.
async fn held(stage: &Stage, emptied: &RefCell<Vec<i64>>) -> Result<String> {
    let holds = engine::held(&stage.client, &[1]).await?;
    let mut claims: Vec<String> = holds
        .iter()
        .flat_map(|hold| &hold.claims)
        .map(|claim| format!("{}/{}", claim.id, claim.fence))
        .collect();
    claims.sort_unstable();
    claims.dedup();
    emptied.replace(holds.iter().filter(|hold| hold.claims.is_empty()).map(|hold| hold.id).collect());
    Ok(claims.join(","))
}

#[tokio::test]
async fn what_is_read_as_held_is_what_was_held_at_that_moment() -> Result<()> {
    let db = TestDb::new().await?;
    // One job is given back, and perhaps taken again under its next fence; the other is held throughout.
    let start = |title| {
        let gives_back =
            Session::transaction("a", "settle", async |stage: &mut Stage| stage.retry(FIRST).await);
        Explorer::new(&db, title)
            .worker(1)
            .running(1, 1)
            .running(2, 1)
            .session(gives_back)
            .session(deals("b", &[1]))
    };
    let wrong = |run: &Run| {
        let is_held = |claim: &str| run.said("r.held").split(',').any(|one| one == claim);
        let again = run.said("b.claim") == "1" && run.before("b.commit", "r.held");
        run.failed()
            || is_held("1/1") != run.before("r.held", "a.commit")
            || is_held("1/2") != again
            || !is_held("2/1")
    };

    let right = start("held × settle × claim_for_workers")
        .session(
            Session::new("r").step("held", async |stage: &mut Stage| held(stage, &RefCell::default()).await),
        )
        .explore()
        .await?;
    right.never(wrong);
    right.sometimes(|run| run.said("r.held") == "1/1,2/1");
    right.sometimes(|run| run.said("r.held") == "2/1");
    right.sometimes(|run| run.said("r.held") == "1/2,2/1");

    // Believes the holds, which say what was taken and not what became of it.
    let believes = "select string_agg(held || '/1', ',' order by held) from pitwheel.hold, unnest(job_ids) as held where worker = 1";
    start("held × settle × claim_for_workers, holds alone")
        .session(Session::new("r").sql_as("held", believes))
        .explore()
        .await?
        .sometimes(|run| run.said("r.held") == "1/1,2/1" && run.before("a.commit", "r.held"));
    Ok(())
}

/// Worker 1 dies now: what it holds is found, or never will be.
async fn dies(stage: &mut Stage) -> Result<String> {
    stage.ask("update pitwheel.worker set lease_until = now() - interval '1 second' where id = 1").await?;
    stage.sweep().await
}

#[tokio::test]
async fn a_hold_that_is_forgotten_as_empty_is_not_needed_any_more() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| {
        let completes =
            Session::new("a").step("settle", async |stage: &mut Stage| stage.complete(FIRST).await);
        Explorer::new(&db, title)
            .worker(1)
            .running(1, 1)
            .waiting(2)
            .session(completes)
            .session(deals("b", &[1]))
            .afterwards("sweep", dies)
    };
    let stranded = |run: &Run| run.failed() || run.end() != "1 done | 2 waiting";

    // As a node does with a silent stream: what it read as empty goes with the next write, unseen.
    let emptied: Rc<RefCell<Vec<i64>>> = Rc::default();
    let reads = emptied.clone();
    let forgets = async move |stage: &mut Stage| {
        let nobody = Claim { id: 0, fence: 0 };
        let write = Settlement { claim: nobody, ending: Ending::done(History::All, None) };
        let holds = emptied.take();
        let _ = engine::settle(&stage.client, &[write], &holds).await?;
        Ok(holds.len().to_string())
    };
    let right = start("held, forget × settle × claim_for_workers")
        .session(
            Session::new("r")
                .step("held", async move |stage: &mut Stage| held(stage, &reads).await)
                .step("forget", forgets),
        )
        .explore()
        .await?;
    right.never(stranded);
    right.sometimes(|run| run.said("r.forget") == "1");
    right.sometimes(|run| run.said("r.forget") == "0");

    // Reads the jobs, then the holds: one that came between looks empty.
    let jobs = "create temp table if not exists seen (id bigint); delete from seen;
        insert into seen select id from pitwheel.job where holder = 1";
    let forget = "delete from pitwheel.hold
        where worker = 1 and not exists (select from seen where id = any(hold.job_ids))";
    start("held, forget × settle × claim_for_workers, jobs then holds")
        .session(Session::new("r").sql_as("held", jobs).sql_as("forget", forget))
        .explore()
        .await?
        .sometimes(|run| run.end() == "1 done | 2 running by 1 (dead)");
    Ok(())
}

/// A node that is told of a stream that ended with nothing left: gives back what was on its way, then signs it off.
fn signs_off() -> Session {
    Session::new("e")
        .step("held", async |stage: &mut Stage| {
            let holds = engine::held(&stage.client, &[1]).await?;
            stage.claims.extend(holds.iter().flat_map(|hold| &hold.claims));
            Ok(String::new())
        })
        .step("release", async |stage: &mut Stage| {
            let released = |claim: &Claim| Settlement::release(*claim);
            let batch: Vec<Settlement> = stage.claims.iter().map(released).collect();
            let settled = engine::settle(&stage.client, &batch, &[]).await?;
            Ok(settled.len().to_string())
        })
        .step("retire", retire)
}

async fn retire(stage: &mut Stage) -> Result<String> {
    engine::retire(&stage.client, 1).await?;
    Ok(String::new())
}

#[tokio::test]
async fn what_a_worker_that_signs_off_is_dealt_is_found_by_the_next_sweep() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| {
        Explorer::new(&db, title)
            .worker(1)
            .waiting(1)
            .session(deals("a", &[1]))
            .afterwards("next sweep", async |stage: &mut Stage| stage.sweep().await)
    };
    let stranded = |run: &Run| run.failed() || run.end() != "1 waiting";

    let right = start("retire × claim_for_workers")
        .session(Session::transaction("e", "retire", retire))
        .explore()
        .await?;
    right.never(stranded);
    right.sometimes(|run| run.said("a.claim") == "1" && run.said("next sweep") == "1");
    right.sometimes(|run| run.said("a.claim").is_empty());
    let right = start("sign off × claim_for_workers").session(signs_off()).explore().await?;
    right.never(stranded);
    right.sometimes(|run| run.said("e.release") == "1");
    right.sometimes(|run| run.said("next sweep") == "1");
    start("retire × claim_for_workers × sweep by statement")
        .session(Session::new("e").step("retire", retire))
        .session(sweeps_by_statement())
        .explore()
        .await?
        .never(stranded);

    // Leaves no trace of the worker, and none of the way to what it still gets.
    start("retire × claim_for_workers, worker removed")
        .session(
            Session::new("e")
                .sql("begin")
                .sql_as("retire", "delete from pitwheel.worker where id = 1")
                .sql("commit"),
        )
        .explore()
        .await?
        .sometimes(|run| run.end() == "1 running by 1");
    Ok(())
}
