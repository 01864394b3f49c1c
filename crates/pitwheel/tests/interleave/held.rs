//! What a node does with the claims of its streams, beside claims and settles: it reads what is held, deletes empty
//! holds, and retires workers whose stream has ended.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::Result;
use pitwheel::engine::{self, Ending, Settlement};
use pitwheel::{Claim, History};
use pitwheel_testkit::{Connection, Explorer, Run, Session, TestDb};

use crate::sessions::{FIRST, claims_for_workers, complete_first, sweep, sweeps_by_statement};

/// Returns the claims that worker 1 holds, each as id and fence, and keeps the ids of holds without a held job.
async fn held(connection: &Connection, emptied: &RefCell<Vec<i64>>) -> Result<String> {
    let holds = engine::held(&connection.client, &[1]).await?;
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
async fn a_read_of_held_jobs_returns_what_is_held_at_that_moment() -> Result<()> {
    let db = TestDb::new().await?;
    // One job is given back, and may be claimed again under its next fence; the other is held throughout.
    let start = |title| {
        let gives_back = Session::transaction("a", "settle", async |connection: &mut Connection| {
            connection.retry(FIRST).await
        });
        Explorer::new(&db, title)
            .worker(1)
            .running(1, 1)
            .running(2, 1)
            .session(gives_back)
            .session(claims_for_workers("b", &[1]))
    };
    let wrong = |run: &Run| {
        let is_held = |claim: &str| run.output("r.held").split(',').any(|one| one == claim);
        let again = run.output("b.claim") == "1" && run.before("b.commit", "r.held");
        run.failed()
            || is_held("1/1") != run.before("r.held", "a.commit")
            || is_held("1/2") != again
            || !is_held("2/1")
    };

    let right =
        start("held × settle × claim_for_workers")
            .session(Session::new("r").step("held", async |connection: &mut Connection| {
                held(connection, &RefCell::default()).await
            }))
            .explore()
            .await?;
    right.never(wrong);
    right.sometimes(|run| run.output("r.held") == "1/1,2/1");
    right.sometimes(|run| run.output("r.held") == "2/1");
    right.sometimes(|run| run.output("r.held") == "1/2,2/1");

    // Reads the holds alone, which list what was claimed and not what has ended since.
    let holds_alone = "select string_agg(held || '/1', ',' order by held) from pitwheel.hold, unnest(job_ids) as held where worker = 1";
    start("held × settle × claim_for_workers, holds alone")
        .session(Session::new("r").sql_as("held", holds_alone))
        .explore()
        .await?
        .sometimes(|run| run.output("r.held") == "1/1,2/1" && run.before("a.commit", "r.held"));
    Ok(())
}

/// Lets worker 1 expire, and sweeps: what it holds is found now or never.
async fn expire_and_sweep(connection: &mut Connection) -> Result<String> {
    connection
        .query("update pitwheel.worker set lease_until = now() - interval '1 second' where id = 1")
        .await?;
    connection.sweep().await
}

#[tokio::test]
async fn a_hold_deleted_as_empty_is_no_longer_needed() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| {
        let completes = Session::new("a").step("settle", complete_first);
        Explorer::new(&db, title)
            .worker(1)
            .running(1, 1)
            .waiting(2)
            .session(completes)
            .session(claims_for_workers("b", &[1]))
            .afterwards("sweep", expire_and_sweep)
    };
    let stranded = |run: &Run| run.failed() || run.end() != "1 done | 2 waiting";

    // As a node does for a silent stream: the holds that it read as empty are deleted with its next settle.
    let emptied: Rc<RefCell<Vec<i64>>> = Rc::default();
    let reads = emptied.clone();
    let deletes = async move |connection: &mut Connection| {
        let no_job = Claim { id: 0, fence: 0, holder: 0 };
        let write = Settlement::new(no_job, Ending::done(History::All, None));
        let holds = emptied.take();
        let _ = engine::settle(&connection.client, &[write], &holds).await?;
        Ok(holds.len().to_string())
    };
    let right = start("held, delete × settle × claim_for_workers")
        .session(
            Session::new("r")
                .step("held", async move |connection: &mut Connection| held(connection, &reads).await)
                .step("delete", deletes),
        )
        .explore()
        .await?;
    right.never(stranded);
    right.sometimes(|run| run.output("r.delete") == "1");
    right.sometimes(|run| run.output("r.delete") == "0");

    // Reads the jobs, then the holds: a hold that was added in between looks empty.
    let jobs = "create temp table if not exists seen (id bigint); delete from seen;
        insert into seen select id from pitwheel.job where holder = 1";
    let delete = "delete from pitwheel.hold
        where worker = 1 and not exists (select from seen where id = any(hold.job_ids))";
    start("held, delete × settle × claim_for_workers, jobs then holds")
        .session(Session::new("r").sql_as("held", jobs).sql_as("delete", delete))
        .explore()
        .await?
        .sometimes(|run| run.end() == "1 done | 2 running by 1 (dead)");
    Ok(())
}

#[tokio::test]
async fn no_hold_is_restored_for_a_job_that_has_one() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| {
        Explorer::new(&db, title)
            .worker(1)
            .running(1, 1)
            .waiting(2)
            .session(Session::transaction("a", "settle", complete_first))
            .session(claims_for_workers("b", &[1]))
            .end("select count(*)::text from pitwheel.hold")
    };
    let restores = Session::transaction("r", "restore", async |connection: &mut Connection| {
        Ok(engine::restore_holds(&connection.client, 0).await?.to_string())
    });
    let right = start("restore × settle × claim_for_workers").session(restores).explore().await?;
    right.never(|run| run.failed() || run.end() != "2");

    // Reads the holds, then the jobs: one that was claimed in between seems to have none.
    let holds = "create temp table if not exists seen (id bigint); delete from seen;
        insert into seen select unnest(job_ids) from pitwheel.hold";
    let restore = "insert into pitwheel.hold (worker, job_ids)
        select holder, array[id] from pitwheel.job where holder is not null and id not in (select id from seen)";
    start("restore × settle × claim_for_workers, holds then jobs")
        .session(Session::new("r").sql_as("holds", holds).sql_as("restore", restore))
        .explore()
        .await?
        .sometimes(|run| run.end() == "3");
    Ok(())
}

/// What a node does when a worker reports the end of a stream from which it runs nothing: releases what was in transit,
/// then retires the stream's worker.
fn ends_stream() -> Session {
    Session::new("e")
        .step("held", async |connection: &mut Connection| {
            let holds = engine::held(&connection.client, &[1]).await?;
            connection.claims.extend(holds.iter().flat_map(|hold| &hold.claims));
            Ok(String::new())
        })
        .step("release", async |connection: &mut Connection| {
            let released = |claim: &Claim| Settlement::release(*claim);
            let batch: Vec<Settlement> = connection.claims.iter().map(released).collect();
            let settled = engine::settle(&connection.client, &batch, &[]).await?;
            Ok(settled.len().to_string())
        })
        .step("retire", retire)
}

async fn retire(connection: &mut Connection) -> Result<String> {
    engine::retire(&connection.client, 1).await?;
    Ok(String::new())
}

#[tokio::test]
async fn what_is_claimed_for_a_retired_worker_is_found_by_the_next_sweep() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| {
        Explorer::new(&db, title)
            .worker(1)
            .waiting(1)
            .session(claims_for_workers("a", &[1]))
            .afterwards("next sweep", sweep)
    };
    let stranded = |run: &Run| run.failed() || run.end() != "1 waiting";

    let right = start("retire × claim_for_workers")
        .session(Session::transaction("e", "retire", retire))
        .explore()
        .await?;
    right.never(stranded);
    right.sometimes(|run| run.output("a.claim") == "1" && run.output("next sweep") == "1");
    right.sometimes(|run| run.output("a.claim").is_empty());
    let right = start("end of stream × claim_for_workers").session(ends_stream()).explore().await?;
    right.never(stranded);
    right.sometimes(|run| run.output("e.release") == "1");
    right.sometimes(|run| run.output("next sweep") == "1");
    start("retire × claim_for_workers × sweep by statement")
        .session(Session::new("e").step("retire", retire))
        .session(sweeps_by_statement())
        .explore()
        .await?
        .never(stranded);

    // Deletes the worker's row: what is claimed for it afterwards is found by no sweep.
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
