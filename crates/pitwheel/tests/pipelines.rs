//! Pipelines: steps run after those that they depend on, whichever way the jobs end.

use anyhow::{Context as _, Result, ensure};
use pitwheel::engine::{Claimed, Ending, error_entry};
use pitwheel::{
    Change, Changed, History, NewJob, NewPipeline, OnFailure, PipelineFilter, PipelineState, Settled,
    StepState,
};
use pitwheel_testkit::TestDb;

fn job() -> NewJob {
    NewJob::raw("test", "{}")
}

/// `a`, then `b` and `c`, then `d`.
fn diamond() -> NewPipeline {
    NewPipeline::new("diamond")
        .step("a", job())
        .step("b", job())
        .after(["a"])
        .step("c", job())
        .after(["a"])
        .step("d", job())
        .after(["b", "c"])
}

/// `a`, `b`, `c`, one after the other.
fn chain() -> NewPipeline {
    NewPipeline::new("chain").step("a", job()).step("b", job()).after(["a"]).step("c", job()).after(["b"])
}

fn done(result: Option<&str>) -> Ending {
    Ending::Done {
        history: History::FailuresOnly,
        ctid: None,
        result: result.map(str::to_owned),
        then: Vec::new(),
    }
}

fn dead() -> Ending {
    Ending::dead(error_entry(pitwheel::engine::Cause::Error, "no", 1, "w"))
}

fn name(job: &Claimed) -> &str {
    job.step.as_ref().map_or("", |step| &step.name)
}

/// Claims what is due: the step of this name must be among it.
async fn claim(db: &TestDb, step: &str) -> Result<Claimed> {
    let job = db.claim_one().await?;
    ensure!(name(&job) == step, "claimed `{}` instead of `{step}`", name(&job));
    Ok(job)
}

async fn end(db: &TestDb, step: &str, ending: Ending) -> Result<()> {
    let job = claim(db, step).await?;
    ensure!(db.settle(&job, ending).await? == Settled::Written, "`{step}` was lost");
    Ok(())
}

/// The state of the pipeline and of its steps, as in `running: a done, b live`.
async fn states(db: &TestDb, id: i64) -> Result<String> {
    let pipeline = db.pitwheel().pipelines().get(id).await?;
    let steps: Vec<String> =
        pipeline.steps.iter().map(|step| format!("{} {}", step.name, step.state.as_str())).collect();
    let summary = &pipeline.summary;
    let ended = |state: StepState| !matches!(state, StepState::Waiting | StepState::Live);
    let count = |of: &dyn Fn(StepState) -> bool| pipeline.steps.iter().filter(|step| of(step.state)).count();
    assert_eq!(summary.ended as usize, count(&ended), "{pipeline:?}");
    let failed = |state| matches!(state, StepState::Dead | StepState::Cancelled);
    assert_eq!(summary.failed as usize, count(&failed), "{pipeline:?}");
    assert_eq!(summary.finished_at.is_none(), summary.state == PipelineState::Running, "{pipeline:?}");
    let live = db.count(&format!("select count(*) from pitwheel.job where pipeline = {id}")).await?;
    assert_eq!(live as usize, count(&|state| state == StepState::Live), "{pipeline:?}");
    Ok(format!("{}: {}", summary.state.as_str(), steps.join(", ")))
}

#[tokio::test]
async fn a_step_runs_after_its_parents_and_sees_their_results() -> Result<()> {
    let db = TestDb::new().await?;
    let id = db.pitwheel().pipelines().create(diamond()).await?;
    assert_eq!(states(&db, id).await?, "running: a live, b waiting, c waiting, d waiting");
    end(&db, "a", done(Some("1"))).await?;
    let pair = db.claim(10).await?;
    assert_eq!(pair.iter().map(name).collect::<Vec<_>>(), ["b", "c"]);
    let parent = pair[0].step.as_ref().and_then(|step| step.parent("a")).context("b comes after a")?;
    assert_eq!((parent.state, parent.result::<u8>()), (StepState::Done, Some(1)));
    assert_eq!(db.settle(&pair[1], done(None)).await?, Settled::Written);
    assert_eq!(states(&db, id).await?, "running: a done, b live, c done, d waiting");
    assert_eq!(db.settle(&pair[0], done(Some("[2]"))).await?, Settled::Written);
    assert_eq!(db.settle(&pair[0], done(None)).await?, Settled::Lost, "a repeated settle changes nothing");
    let last = claim(&db, "d").await?;
    let step = last.step.as_ref().context("it is a step")?;
    let results: Vec<_> = step.parents.iter().map(|one| (&*one.name, one.result.as_deref())).collect();
    assert_eq!((step.pipeline, results), (id, vec![("b", Some("[2]")), ("c", None)]));
    assert_eq!(db.settle(&last, done(None)).await?, Settled::Written);
    assert_eq!(states(&db, id).await?, "done: a done, b done, c done, d done");
    // A kind that keeps no history keeps its steps: the pipeline refers to them.
    assert_eq!(db.count("select count(*) from pitwheel.job_history where pipeline is not null").await?, 4);
    Ok(())
}

#[tokio::test]
async fn what_comes_after_a_failed_step_is_skipped_and_a_retry_goes_on_from_there() -> Result<()> {
    let db = TestDb::new().await?;
    let pipelines = db.pitwheel().pipelines();
    let id = pipelines.create(diamond()).await?;
    assert!(!pipelines.retry(id).await?, "nothing has failed");
    end(&db, "a", done(Some("1"))).await?;
    end(&db, "b", dead()).await?;
    assert_eq!(states(&db, id).await?, "running: a done, b dead, c live, d skipped");
    end(&db, "c", done(None)).await?;
    assert_eq!(states(&db, id).await?, "failed: a done, b dead, c done, d skipped");
    assert!(pipelines.retry(id).await?);
    assert_eq!(states(&db, id).await?, "running: a done, b live, c done, d waiting");
    end(&db, "b", done(None)).await?;
    end(&db, "d", done(None)).await?;
    assert_eq!(states(&db, id).await?, "done: a done, b done, c done, d done");
    let audit = db.pitwheel().audit(None, 1).await?;
    assert_eq!((&*audit[0].action, audit[0].subject.as_deref()), ("pipeline.retry", Some(&*id.to_string())));
    Ok(())
}

#[tokio::test]
async fn go_on_runs_what_comes_after_a_failed_step() -> Result<()> {
    let db = TestDb::new().await?;
    let pipelines = db.pitwheel().pipelines();
    let id = pipelines.create(diamond().on_failure(OnFailure::GoOn)).await?;
    end(&db, "a", done(None)).await?;
    end(&db, "b", dead()).await?;
    assert_eq!(states(&db, id).await?, "running: a done, b dead, c live, d waiting");
    end(&db, "c", done(None)).await?;
    let last = claim(&db, "d").await?;
    let parent = last.step.as_ref().and_then(|step| step.parent("b")).context("d comes after b")?;
    assert_eq!(parent.state, StepState::Dead);
    // A retry while what comes after it runs: only the failed step runs again.
    assert!(pipelines.retry(id).await?);
    assert_eq!(states(&db, id).await?, "running: a done, b live, c done, d live");
    assert_eq!(db.settle(&last, done(None)).await?, Settled::Written);
    end(&db, "b", done(None)).await?;
    assert_eq!(states(&db, id).await?, "done: a done, b done, c done, d done");
    Ok(())
}

#[tokio::test]
async fn a_cancelled_pipeline_runs_nothing_more_until_it_is_retried() -> Result<()> {
    let db = TestDb::new().await?;
    let pipelines = db.pitwheel().pipelines();
    let id = pipelines.create(diamond()).await?;
    end(&db, "a", done(None)).await?;
    let running = claim(&db, "b").await?;
    assert!(pipelines.cancel(id).await?);
    assert_eq!(states(&db, id).await?, "running: a done, b live, c cancelled, d cancelled");
    assert!(db.pitwheel().job(running.claim.id).await?.cancel_requested_at.is_some());
    // A handler that completes all the same decides; one that is released is cancelled.
    assert_eq!(db.settle(&running, Ending::Release).await?, Settled::Written);
    assert_eq!(states(&db, id).await?, "cancelled: a done, b cancelled, c cancelled, d cancelled");
    assert!(!pipelines.cancel(id).await?, "it had ended");
    assert!(pipelines.retry(id).await?);
    assert_eq!(states(&db, id).await?, "running: a done, b live, c live, d waiting");
    for step in ["b", "c", "d"] {
        end(&db, step, done(None)).await?;
    }
    assert_eq!(states(&db, id).await?, "done: a done, b done, c done, d done");
    assert!(pipelines.cancel(9).await.is_err_and(|error| error.code() == "not_found"));
    Ok(())
}

#[tokio::test]
async fn a_retry_withdraws_the_cancel_of_a_step_that_still_runs() -> Result<()> {
    let db = TestDb::new().await?;
    let pipelines = db.pitwheel().pipelines();
    let id = pipelines.create(chain()).await?;
    let running = claim(&db, "a").await?;
    assert!(pipelines.cancel(id).await?);
    assert!(pipelines.retry(id).await?);
    assert_eq!(db.settle(&running, Ending::Release).await?, Settled::Written);
    assert_eq!(states(&db, id).await?, "running: a live, b waiting, c waiting");
    for step in ["a", "b", "c"] {
        end(&db, step, done(None)).await?;
    }
    assert_eq!(states(&db, id).await?, "done: a done, b done, c done");
    Ok(())
}

#[tokio::test]
async fn jobs_of_steps_that_people_cancel_delete_and_retry_move_the_pipeline() -> Result<()> {
    let db = TestDb::new().await?;
    let pipelines = db.pitwheel().pipelines();
    let job_of = async |id: i64, step: &str| -> Result<i64> {
        let pipeline = pipelines.get(id).await?;
        let step = pipeline.steps.into_iter().find(|one| one.name == step).context("no such step")?;
        step.job_id.context("it has a job")
    };
    for change in [Change::Cancel, Change::Delete] {
        let id = pipelines.create(chain()).await?;
        let first = job_of(id, "a").await?;
        assert_eq!(db.pitwheel().change(&[first], change).await?, [(first, Changed::Done)]);
        assert_eq!(states(&db, id).await?, "failed: a cancelled, b skipped, c skipped", "{change:?}");
        if change == Change::Cancel {
            db.pitwheel().retry(first).await?;
            assert_eq!(states(&db, id).await?, "running: a live, b waiting, c waiting");
            end(&db, "a", done(None)).await?;
            end(&db, "b", dead()).await?;
            let second = job_of(id, "b").await?;
            assert!(pipelines.retry(id).await?);
            // The step has another job now, so the former one cannot come back.
            let refused = db.pitwheel().change(&[second], Change::Retry).await?;
            assert_eq!(refused, [(second, Changed::NotFound)]);
            end(&db, "b", done(None)).await?;
            end(&db, "c", done(None)).await?;
            assert_eq!(states(&db, id).await?, "done: a done, b done, c done");
        }
    }
    let id = pipelines.create(chain().on_failure(OnFailure::GoOn)).await?;
    db.pitwheel().cancel(job_of(id, "a").await?).await?;
    assert_eq!(states(&db, id).await?, "running: a cancelled, b live, c waiting");
    Ok(())
}

#[tokio::test]
async fn a_retried_job_lets_wait_only_what_was_skipped_because_of_it() -> Result<()> {
    let db = TestDb::new().await?;
    let id = db.pitwheel().pipelines().create(diamond()).await?;
    end(&db, "a", done(None)).await?;
    let pair = db.claim(2).await?;
    for job in &pair {
        assert_eq!(db.settle(job, dead()).await?, Settled::Written);
    }
    db.pitwheel().retry(pair[0].claim.id).await?;
    assert_eq!(states(&db, id).await?, "running: a done, b live, c dead, d skipped");
    db.pitwheel().retry(pair[1].claim.id).await?;
    assert_eq!(states(&db, id).await?, "running: a done, b live, c live, d waiting");
    for step in ["b", "c", "d"] {
        end(&db, step, done(None)).await?;
    }
    assert_eq!(states(&db, id).await?, "done: a done, b done, c done, d done");
    Ok(())
}

#[tokio::test]
async fn a_follower_becomes_a_step_once() -> Result<()> {
    let db = TestDb::new().await?;
    let pipelines = db.pitwheel().pipelines();
    let two = NewPipeline::new("two").step("a", job()).step("b", job());
    let id = pipelines.create(two).await?;
    let pair = db.claim(2).await?;
    for claimed in &pair {
        let then = vec![job().as_step("more"), job()];
        let ending = Ending::Done { history: History::All, ctid: None, result: None, then };
        assert_eq!(db.settle(claimed, ending.clone()).await?, Settled::Written);
        assert_eq!(db.settle(claimed, ending).await?, Settled::Lost);
    }
    assert_eq!(states(&db, id).await?, "running: a done, b done, more live");
    assert_eq!(db.count("select count(*) from pitwheel.job where pipeline is null").await?, 2, "followers");
    let added = &pipelines.get(id).await?.steps[2];
    assert_eq!(added.after, ["a"]);
    // In a job that is no step, it is a follower like any other.
    let plain: Vec<Claimed> =
        db.claim(10).await?.into_iter().filter(|claimed| claimed.step.is_none()).collect();
    let then = vec![job().as_step("more")];
    let ending = Ending::Done { history: History::All, ctid: None, result: None, then };
    assert_eq!(db.settle(&plain[0], ending).await?, Settled::Written);
    assert_eq!(db.count("select count(*) from pitwheel.job where holder is null").await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_step_can_be_settled_in_sql_and_in_the_handlers_transaction() -> Result<()> {
    let db = TestDb::new().await?;
    let id = db.pitwheel().pipelines().create(chain()).await?;
    let client = db.client().await?;
    let first = claim(&db, "a").await?.claim;
    let complete = r#"select pitwheel.complete($1, $2, '7', keep_history => false,
        followers => '[{"kind": "other", "step": "more"}, {"kind": "other"}]')"#;
    assert!(client.query_one(complete, &[&first.id, &first.fence]).await?.get::<_, bool>(0));
    assert_eq!(states(&db, id).await?, "running: a done, b live, c waiting, more live");
    let second = claim(&db, "b").await?;
    let parent = second.step.as_ref().and_then(|step| step.parent("a")).and_then(|one| one.result());
    assert_eq!(parent, Some(7));
    client.execute("update pitwheel.job set max_attempts = 1 where id = $1", &[&second.claim.id]).await?;
    let fail = "select pitwheel.fail($1, $2, 'no')";
    assert!(client.query_one(fail, &[&second.claim.id, &second.claim.fence]).await?.get::<_, bool>(0));
    assert_eq!(states(&db, id).await?, "running: a done, b dead, c skipped, more live");
    Ok(())
}

#[tokio::test]
async fn a_step_that_killed_its_workers_is_dead_and_what_comes_after_it_is_skipped() -> Result<()> {
    let db = TestDb::new().await?;
    let id = db.pitwheel().pipelines().create(chain()).await?;
    let job = claim(&db, "a").await?;
    let client = db.client().await?;
    client.execute("update pitwheel.job set crashes = 2", &[]).await?;
    db.expire_holder(&job).await?;
    assert_eq!(db.sweep().await?.buried, 1);
    assert_eq!(states(&db, id).await?, "failed: a dead, b skipped, c skipped");
    Ok(())
}

#[tokio::test]
async fn a_pipeline_goes_on_when_a_job_of_it_was_deleted_by_hand() -> Result<()> {
    let db = TestDb::new().await?;
    let pipelines = db.pitwheel().pipelines();
    let ids = pipelines.create_many([chain(), chain(), chain()]).await?;
    let client = db.client().await?;
    client.execute("delete from pitwheel.job where pipeline = $1", &[&ids[0]]).await?;
    // As a program of an older version would finish it.
    let finished = "with gone as (delete from pitwheel.job where pipeline = $1 returning *)
        insert into pitwheel.job_history (id, finished_at, run_at, enqueued_at, fence, attempt, max_attempts, priority, crashes,
            state, queue, kind, payload)
        select id, now(), run_at, enqueued_at, fence, attempt, max_attempts, priority, crashes, 'done', queue, kind, payload from gone";
    client.execute(finished, &[&ids[1]]).await?;
    assert_eq!(pitwheel::engine::repair_pipelines(&client, 0).await?, ids[2]);
    assert_eq!(pitwheel::engine::repair_pipelines(&client, ids[2]).await?, 0);
    assert_eq!(states(&db, ids[0]).await?, "failed: a cancelled, b skipped, c skipped");
    assert_eq!(states(&db, ids[1]).await?, "running: a done, b live, c waiting");
    assert_eq!(states(&db, ids[2]).await?, "running: a live, b waiting, c waiting");
    Ok(())
}

#[tokio::test]
async fn a_pipeline_is_created_with_the_callers_rows_or_not_at_all() -> Result<()> {
    let db = TestDb::new().await?;
    let mut client = db.client().await?;
    let transaction = client.transaction().await?;
    pitwheel::transaction::tokio_postgres::create_pipeline(&transaction, &chain()).await?;
    transaction.rollback().await?;
    assert_eq!(db.pitwheel().pipelines().list(&PipelineFilter::default()).await?.pipelines, []);
    let create = r#"select pitwheel.create_pipeline('{"name": "import", "on_failure": "go_on", "steps": [
        {"name": "load", "job": {"kind": "test", "payload": [1,  2], "timeout": "3s", "priority": 4}},
        {"name": "index", "after": ["load"], "job": {"kind": "test", "queue": "slow"}}]}')"#;
    let id: i64 = client.query_one(create, &[]).await?.get(0);
    let job = claim(&db, "load").await?;
    assert_eq!((&*job.payload, job.priority), ("[1,  2]", 4));
    assert_eq!(job.timeout, Some(std::time::Duration::from_secs(3)));
    assert_eq!(states(&db, id).await?, "running: load live, index waiting");
    for (steps, problem) in [
        ("[]", "1 to 1000 steps"),
        (r#"[{"name": "a"}]"#, "is not a name"),
        (r#"[{"name": "a", "after": ["b"], "job": {"kind": "k"}}]"#, "does not stand before it"),
        (r#"[{"name": "a", "job": {"kind": "k", "key": "x"}}]"#, "has a key"),
        (r#"[{"name": "a", "job": {"kind": "k", "payload": "\u0000"}}]"#, "Unicode escape"),
    ] {
        let sql = format!(r#"select pitwheel.create_pipeline('{{"name": "n", "steps": {steps}}}')"#);
        let refused = client.query_one(&sql, &[]).await.err().context(problem)?;
        let message = refused.as_db_error().map(|error| error.message().to_owned()).unwrap_or_default();
        assert!(message.contains(problem), "{message}");
    }
    Ok(())
}

#[tokio::test]
async fn pipelines_are_listed_by_name_and_state_and_pruned_with_the_history() -> Result<()> {
    let db = TestDb::new().await?;
    let pipelines = db.pitwheel().pipelines();
    let ids = pipelines.create_many([chain(), diamond(), chain()]).await?;
    assert_eq!(ids.len(), 3);
    pipelines.cancel(ids[0]).await?;
    let listed = async |filter: PipelineFilter| -> Result<Vec<i64>> {
        Ok(pipelines.list(&filter).await?.pipelines.iter().map(|one| one.id).collect())
    };
    let by = |name: Option<&str>, state| PipelineFilter {
        name: name.map(str::to_owned),
        state,
        ..PipelineFilter::default()
    };
    assert_eq!(listed(by(None, None)).await?, [ids[2], ids[1], ids[0]]);
    assert_eq!(listed(by(Some("chain"), None)).await?, [ids[2], ids[0]]);
    assert_eq!(listed(by(None, Some(PipelineState::Cancelled))).await?, [ids[0]]);
    let page = pipelines.list(&PipelineFilter { limit: 2, ..PipelineFilter::default() }).await?;
    assert_eq!(page.next, Some(ids[1]));

    db.pitwheel().prune_history(std::time::Duration::ZERO).await?;
    assert_eq!(listed(by(None, None)).await?, [ids[2], ids[1]], "what runs is kept");
    assert_eq!(db.count("select count(*) from pitwheel.step").await?, 7);
    Ok(())
}

#[tokio::test]
async fn results_beyond_one_megabyte_are_left_out_of_the_claim() -> Result<()> {
    let db = TestDb::new().await?;
    let parents: Vec<String> = (1..=5).map(|n| format!("p{n}")).collect();
    let wide = parents.iter().fold(NewPipeline::new("wide"), |wide, name| wide.step(name, job()));
    db.pitwheel().pipelines().create(wide.step("last", job()).after(parents.clone())).await?;
    let large = format!("\"{}\"", "x".repeat(250_000));
    for parent in db.claim(5).await? {
        assert_eq!(db.settle(&parent, done(Some(&large))).await?, Settled::Written);
    }
    let last = claim(&db, "last").await?;
    let step = last.step.context("it is a step")?;
    let left_out: Vec<bool> = step.parents.iter().map(|one| one.result_left_out).collect();
    assert_eq!(left_out, [false, false, false, false, true]);
    assert!(step.parents.iter().all(|one| one.result.is_some() != one.result_left_out));
    Ok(())
}

#[tokio::test]
async fn a_step_enters_its_lane_when_it_can_run() -> Result<()> {
    let db = TestDb::new().await?;
    let new = || NewPipeline::new("lane").step("a", job()).step("b", job().lane("tenant-7")).after(["a"]);
    let ids = db.pitwheel().pipelines().create_many([new(), new()]).await?;
    end(&db, "a", done(None)).await?;
    end(&db, "a", done(None)).await?;
    db.promote().await?;
    for id in ids {
        let head = db.claim(10).await?;
        let lanes: Vec<_> = head.iter().map(|job| job.lane.as_deref()).collect();
        assert_eq!(lanes, [Some("\"tenant-7\"")], "one at a time");
        assert_eq!(db.settle(&head[0], done(None)).await?, Settled::Written);
        assert_eq!(states(&db, id).await?, "done: a done, b done");
    }
    Ok(())
}

#[tokio::test]
async fn a_look_for_lost_steps_ends_with_the_pipeline_that_fills_its_steps() -> Result<()> {
    let db = TestDb::new().await?;
    let ids = db.pitwheel().pipelines().create_many((0..4).map(|_| chain())).await?;
    let client = db.client().await?;
    client.execute("update pitwheel.pipeline set steps = 6000", &[]).await?;
    for (above, last) in [(0, ids[1]), (ids[1], ids[3]), (ids[3], 0)] {
        assert_eq!(pitwheel::engine::repair_pipelines(&client, above).await?, last);
    }
    Ok(())
}
