//! Steps of pipelines in lanes: they end with their pipeline, and enter their lanes at once.
#![cfg(feature = "tokio-postgres")]

use std::time::Duration;

use anyhow::{Context as _, Result};
use pitwheel::engine::{Cause, Ending, SettleResult, Settlement, error_entry, settle};
use pitwheel::{History, NewJob, NewPipeline, PipelineState, Settled, State, transaction};
use pitwheel_testkit::TestDb;

fn job() -> NewJob {
    NewJob::raw("test", "{}")
}

/// `a`, then `b` in a lane.
fn into_lane() -> NewPipeline {
    NewPipeline::new("lane").step("a", job()).step("b", job().lane("tenant-7")).after(["a"])
}

async fn state(db: &TestDb, pipeline: i64) -> Result<PipelineState> {
    Ok(db.pitwheel().pipelines().get(pipeline).await?.summary.state)
}

#[tokio::test]
async fn the_fast_path_of_lanes_does_not_end_a_step_without_its_pipeline() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    let new = NewPipeline::new("lane").step("a", job().lane("x")).step("b", job().lane("x")).after(["a"]);
    let id = db.pitwheel().pipelines().create(new).await?;
    for step in ["a", "b"] {
        let claimed = db.claim_one().await?;
        assert_eq!(claimed.step.as_ref().map(|step| &*step.name), Some(step));
        let ending = Ending::done(History::All, Some(claimed.ctid));
        let settlement = Settlement { in_lane: true, ..Settlement::new(claimed.claim, ending) };
        assert_eq!(settle(&client, &[settlement], &[]).await?, [SettleResult::Written]);
    }
    assert_eq!(state(&db, id).await?, PipelineState::Done);
    Ok(())
}

#[tokio::test]
async fn a_step_can_be_claimed_as_soon_as_it_has_entered_an_empty_lane() -> Result<()> {
    let db = TestDb::new().await?;
    let pipelines = db.pitwheel().pipelines();
    let first = pipelines.create(into_lane()).await?;
    assert_eq!(db.complete(&db.claim_one().await?).await?, Settled::Written);
    let in_lane = db.claim_one().await?;
    assert_eq!(in_lane.lane.as_deref(), Some("\"tenant-7\""), "the settle has promoted it");
    let dead = Ending::dead("{\"message\": \"no\"}".into());
    assert_eq!(db.settle(&in_lane, dead).await?, Settled::Written);
    assert_eq!(state(&db, first).await?, PipelineState::Failed);

    assert!(pipelines.retry(first).await?);
    assert_eq!(db.complete(&db.claim_one().await?).await?, Settled::Written, "the retry has promoted it");
    let new = NewPipeline::new("lane").step("a", job().lane("tenant-8"));
    let second = pipelines.create(new).await?;
    assert_eq!(db.complete(&db.claim_one().await?).await?, Settled::Written, "the create has promoted it");
    assert_eq!(
        (state(&db, first).await?, state(&db, second).await?),
        (PipelineState::Done, PipelineState::Done)
    );
    Ok(())
}

#[tokio::test]
async fn a_step_that_a_handler_adds_enters_its_lane_at_once() -> Result<()> {
    let db = TestDb::new().await?;
    let id = db.pitwheel().pipelines().create(NewPipeline::new("grows").step("a", job())).await?;
    let first = db.claim_one().await?;
    let then = vec![job().lane("x").as_step("b")];
    let ending = Ending::Done { history: History::All, ctid: None, result: None, then };
    assert_eq!(db.settle(&first, ending).await?, Settled::Written);
    let added = db.claim_one().await?;
    assert_eq!(added.step.as_ref().map(|step| &*step.name), Some("b"));
    assert_eq!(db.complete(&added).await?, Settled::Written);
    assert_eq!(state(&db, id).await?, PipelineState::Done);
    Ok(())
}

#[tokio::test]
async fn a_step_enters_behind_the_others_of_its_lane() -> Result<()> {
    let db = TestDb::new().await?;
    let before = db.pitwheel().enqueue(job().queue("other").lane("tenant-7")).await?.id;
    let id = db.pitwheel().pipelines().create(into_lane()).await?;
    assert_eq!(db.complete(&db.claim_one().await?).await?, Settled::Written);
    let steps = db.pitwheel().pipelines().get(id).await?.steps;
    let step = steps[1].job_id.context("it has no job")?;
    assert_eq!(
        (db.state(before).await?, db.state(step).await?),
        (Some(State::Waiting), Some(State::Blocked))
    );
    Ok(())
}

/// Until it commits, no other session could promote the lane.
#[tokio::test]
async fn a_step_that_sql_lets_others_pass_without_a_lane_can_be_retried() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    let create = r#"select pitwheel.create_pipeline('{"name": "import", "steps": [
        {"name": "a", "job": {"kind": "test", "lane_pass": true}}]}')"#;
    client.query_one(create, &[]).await?;
    let added = r#"select pitwheel.complete($1, $2, followers => '[{"kind": "test", "step": "b", "lane_pass": true}]')"#;
    for step in ["a", "b"] {
        let job = db.claim_one().await?;
        let error = error_entry(Cause::Error, "no", 1, "w");
        let retry = Ending::Retry { delay: Duration::from_secs(60), error };
        assert_eq!(db.settle(&job, retry).await?, Settled::Written, "{step}");
        client.execute("update pitwheel.job set run_at = now()", &[]).await?;
        let job = db.claim_one().await?;
        client.query_one(added, &[&job.claim.id, &job.claim.fence]).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_users_transaction_promotes_nothing() -> Result<()> {
    let db = TestDb::new().await?;
    let mut client = db.client().await?;
    let open = client.transaction().await?;
    let new = NewPipeline::new("lane").step("a", job().lane("tenant-7"));
    let id = transaction::tokio_postgres::create_pipeline(&open, &new).await?;
    let other = db.pitwheel().enqueue(job().lane("tenant-7")).await?.id;
    assert_eq!(db.state(other).await?, Some(State::Waiting), "the open transaction blocks no other job");
    open.commit().await?;
    db.promote().await?;
    let step = db.pitwheel().pipelines().get(id).await?.steps[0].job_id.context("it has no job")?;
    assert_eq!(db.state(step).await?, Some(State::Blocked));
    Ok(())
}
