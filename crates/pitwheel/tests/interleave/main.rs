//! The engine's statements beside each other, in every order: no schedule may end badly.
//!
//! Every promise has a broken twin, the same scenario with a statement that is wrong in a way people do get wrong. The
//! explorer must find its bad end; one that does not is no proof of the right one either.

mod claim;
mod control;
mod enqueue;
mod followers;
mod heartbeat;
mod migrate;
mod settle;
mod takeover;

use pitwheel::Claim;
use pitwheel_testkit::{Session, Stage};
use tokio_postgres::types::Type;

/// What `Explorer::running(1, _)` is claimed under.
const FIRST: Claim = Claim { id: 1, fence: 1 };

fn claims(name: &'static str, worker: i64, slots: usize) -> Session {
    Session::transaction(name, "claim", async move |stage: &mut Stage| stage.claim(worker, slots).await)
}

/// As a node claims for its streams.
fn deals(name: &'static str, slots_by_worker: &'static [i64]) -> Session {
    Session::transaction(name, "claim", async move |stage: &mut Stage| {
        stage.claim_for_workers(slots_by_worker).await
    })
}

fn sweeps() -> Session {
    Session::transaction("s", "sweep", async |stage: &mut Stage| stage.sweep().await)
}

/// The sweep as the engine makes it: each statement is committed by itself.
fn sweeps_by_statement() -> Session {
    Session::new("s")
        .step("declare", async |stage: &mut Stage| {
            let sql = include_str!("../../sql/engine/sweep.sql");
            let limits = [(&0_i64 as _, Type::INT8), (&3_600_000_i64 as _, Type::INT8)];
            stage.client.query_typed(sql, &limits).await?;
            Ok(String::new())
        })
        .step("find", async |stage: &mut Stage| {
            let sql = include_str!("../../sql/engine/abandoned_jobs.sql");
            let rows = stage.client.query_typed(sql, &[(&20_i64, Type::INT8)]).await?;
            let held = rows.iter().filter_map(|row| {
                let id: Option<i64> = row.get("id");
                id.map(|id| Claim { id, fence: row.get("fence") })
            });
            stage.claims.extend(held);
            Ok(String::new())
        })
        .step("sweep", async |stage: &mut Stage| match stage.claims.first() {
            Some(&claim) => stage.retry(claim).await,
            None => Ok(String::new()),
        })
        .step("drop", async |stage: &mut Stage| {
            let sql = include_str!("../../sql/engine/drop_holds.sql");
            let rows = stage.client.query("select id from pitwheel.hold", &[]).await?;
            let holds: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
            stage.client.query_typed(sql, &[(&holds, Type::INT8_ARRAY)]).await?;
            Ok(String::new())
        })
}

/// Cancels job 1; says `requested`, `at once`, or nothing when it is not there.
fn cancels() -> Session {
    Session::transaction("c", "cancel", async |stage: &mut Stage| {
        let sql = include_str!("../../sql/operate/cancel.sql");
        let ids = vec![1_i64];
        let rows = stage.client.query_typed(sql, &[(&ids, Type::INT8_ARRAY), (&"test", Type::TEXT)]).await?;
        Ok(match rows.first().map(|row| row.get(1)) {
            Some(true) => "requested".to_owned(),
            Some(false) => "at once".to_owned(),
            None => String::new(),
        })
    })
}
