//! Claims by id: of several callers one gets the job, and never two jobs of one lane run.

use anyhow::Result;
use pitwheel::engine::{claim_by_id, promote_checked};
use pitwheel_testkit::{Connection, Explorer, Run, Session, TestDb};

use crate::sessions::{claims, complete_first};

/// A lane with nulls, which are equal to every other null.
const LANE: &str = r#"["module", null, "csv", null]"#;

/// Claims this job for a worker; the output is `claimed`, or why not.
fn claims_job(name: &'static str, worker: i64, id: i64) -> Session {
    Session::transaction(name, "claim", async move |connection: &mut Connection| {
        let kinds = ["test".to_owned()];
        let claimed = claim_by_id(&connection.client, worker, id, &kinds, None).await?;
        Ok(claimed.map_or_else(|refusal| format!("{refusal:?}"), |_| "claimed".to_owned()))
    })
}

/// A broken twin: looks for another running job in one statement, and claims in the next.
fn looks_then_claims(name: &'static str, worker: i64, id: i64, is_same_lane: &str) -> Session {
    let look = format!(
        "create temp table if not exists seen (id bigint); delete from seen;
        insert into seen select job.id from pitwheel.job where job.id = {id} and not exists (
            select from pitwheel.job as other where other.holder is not null and {is_same_lane})"
    );
    let claim = format!(
        "update pitwheel.job set holder = {worker} where id in (select id from seen) and holder is null returning 'claimed'"
    );
    Session::new(name).sql("begin").sql_as("look", look).sql_as("claim", claim).sql("commit")
}

fn two_run(run: &Run) -> bool {
    run.end().matches("running").count() > 1
}

fn claimed(run: &Run) -> usize {
    ["a.claim", "b.claim"].iter().filter(|step| run.output(step) == "claimed").count()
}

#[tokio::test]
async fn of_two_claims_of_one_job_one_gets_it() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(1).worker(2).in_lane(1, LANE);
    let right = start("claim by id × claim by id")
        .session(claims_job("a", 1, 1))
        .session(claims_job("b", 2, 1))
        .explore()
        .await?;
    right.never(|run| run.failed() || claimed(run) != 1);
    right.sometimes(|run| run.output("a.claim") == "Taken");
    right.sometimes(|run| run.output("b.claim") == "Taken");
    start("claim by id × claim")
        .session(claims_job("a", 1, 1))
        .session(claims("b", 2, 10))
        .explore()
        .await?
        .never(|run| run.failed() || (run.output("a.claim") == "claimed") == (run.output("b.claim") == "1"));

    // Reads that it is free, and then claims: both believe that they got it.
    let reads = |name: &'static str, worker: i64| {
        let read = "create temp table if not exists seen (id bigint); delete from seen;
            insert into seen select id from pitwheel.job where id = 1 and holder is null";
        let claim = format!(
            "update pitwheel.job set holder = {worker} where id in (select id from seen) returning 'claimed'"
        );
        Session::new(name).sql("begin").sql_as("read", read).sql_as("claim", claim).sql("commit")
    };
    start("claim by id × claim by id, read before")
        .session(reads("a", 1))
        .session(reads("b", 2))
        .explore()
        .await?
        .sometimes(|run| claimed(run) == 2);
    Ok(())
}

#[tokio::test]
async fn two_claims_by_id_never_take_two_jobs_of_a_lane_with_nulls() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| Explorer::new(&db, title).worker(1).worker(2).in_lane(1, LANE).in_lane(2, LANE);
    start("claim by id × claim by id, same lane")
        .session(claims_job("a", 1, 1))
        .session(claims_job("b", 2, 2))
        .explore()
        .await?
        .never(|run| {
            run.failed()
                || (run.output("a.claim"), run.output("b.claim")) != ("claimed", "LaneBusy")
                || run.end() != "1 running by 1 | 2 blocked"
        });

    // The form of the source design without its index, on jobs whose lane is in columns that may be null.
    let start = |title| {
        Explorer::new(&db, title)
            .worker(1)
            .worker(2)
            .waiting(1)
            .waiting(2)
            .setup("update pitwheel.job set metadata = '{\"module\": null}'")
    };
    start("claim by id × claim by id, looks for a running one")
        .session(looks_then_claims("a", 1, 1, "true"))
        .session(looks_then_claims("b", 2, 2, "true"))
        .explore()
        .await?
        .sometimes(two_run);
    // A null is not equal to a null: two run even if one claim comes after the other.
    let equal = "other.metadata ->> 'module' = job.metadata ->> 'module'";
    start("claim by id × claim by id, nulls compared with =")
        .session(looks_then_claims("a", 1, 1, equal))
        .session(looks_then_claims("b", 2, 2, equal))
        .explore()
        .await?
        .sometimes(|run| two_run(run) && run.before("a.commit", "b.look"));
    Ok(())
}

#[tokio::test]
async fn a_claim_by_id_beside_the_settle_of_the_head_takes_the_next_job_only_after_it() -> Result<()> {
    let db = TestDb::new().await?;
    let start =
        |title| Explorer::new(&db, title).worker(1).worker(2).in_lane(1, LANE).in_lane(2, LANE).claimed(1, 1);
    let settles = || Session::transaction("a", "settle", complete_first);
    let right =
        start("settle × claim by id").session(settles()).session(claims_job("b", 2, 2)).explore().await?;
    right.never(|run| {
        let end = match run.output("b.claim") {
            "claimed" => "1 done | 2 running by 2",
            "LaneBusy" => "1 done | 2 waiting",
            _ => "",
        };
        run.failed() || run.end() != end
    });
    right.sometimes(|run| run.output("b.claim") == "claimed");
    right.sometimes(|run| run.output("b.claim") == "LaneBusy");

    // Does not look at the lane.
    let claims = Session::new("b")
        .sql_as(
            "claim",
            "update pitwheel.job set holder = 2 where id = 2 and holder is null returning 'claimed'",
        )
        .sql_as("look", "select count(holder) from pitwheel.job");
    start("settle × claim by id, without the lane")
        .session(settles())
        .session(claims)
        .explore()
        .await?
        .sometimes(|run| run.output("b.look") == "2");
    Ok(())
}

/// A step that claims what is due for worker 2.
async fn claims_next(connection: &mut Connection) -> Result<String> {
    connection.claim(2, 10).await
}

/// A head waits for its time and lets others pass. A promotion replaces it; a claim by id takes it before its time.
#[tokio::test]
async fn a_promotion_never_replaces_a_head_that_was_claimed() -> Result<()> {
    let db = TestDb::new().await?;
    let start = |title| {
        Explorer::new(&db, title)
            .worker(1)
            .worker(2)
            .in_lane(1, LANE)
            .in_lane(2, LANE)
            .setup("update pitwheel.job set lane_pass = true, run_at = clock_timestamp() + interval '1 hour' where id = 1")
            .setup(&format!("insert into pitwheel.lane_check (xid, lane) values (pg_current_xact_id(), '{LANE}')"))
    };
    let promotes = Session::transaction("p", "promote", async |connection: &mut Connection| {
        Ok(promote_checked(&connection.client, "0").await?.queues.len().to_string())
    });
    let right = start("promote × claim by id")
        .session(promotes)
        .session(claims_job("b", 1, 1))
        .afterwards("next", claims_next)
        .explore()
        .await?;
    right.never(|run| run.failed() || two_run(run) || !run.end().contains("running"));
    right.sometimes(|run| run.end() == "1 running by 1 | 2 blocked");
    right.sometimes(|run| run.end() == "1 blocked | 2 running by 2");

    // Reads that the head waits, and then replaces it, without a lock and without a look at its holder.
    let replaces = Session::new("p")
        .sql("begin")
        .sql_as(
            "read",
            "create temp table if not exists head (id bigint); delete from head;
            insert into head select id from pitwheel.job where holder is null and run_at between now() and now() + interval '2 hours'",
        )
        .sql_as(
            "promote",
            "update pitwheel.job set lane_at = run_at, run_at = 'infinity' where id in (select id from head);
            update pitwheel.job set run_at = clock_timestamp() where id = 2 and exists (select from head)",
        )
        .sql("commit");
    start("promote × claim by id, head read before")
        .session(replaces)
        .session(claims_job("b", 1, 1))
        .afterwards("next", claims_next)
        .explore()
        .await?
        .sometimes(two_run);
    Ok(())
}
