//! Pipelines with a worker: handlers see the results of the steps before them, and random pipelines run in their order to their end.

use std::collections::{HashMap, HashSet};

use anyhow::{Context as _, Result};
use pitwheel::engine::{Cause, Ending, error_entry};
use pitwheel::{Context, History, NewJob, NewPipeline, OnFailure, PipelineState, Settled, Verdict};
use pitwheel_testkit::{TestDb, Work, start_worker, wait_until, work, worker};

/// The sum of the parents' results and of its own number.
async fn add_up(job: Work, context: Context) -> Result<Verdict> {
    let parents: i64 = context.parents().iter().filter_map(|parent| parent.result::<i64>()).sum();
    if job.n == 4 {
        context.then_step("extra", work(100));
    }
    Ok(Verdict::complete_with(&(parents + job.n))?.into())
}

#[tokio::test]
async fn handlers_see_the_results_of_the_steps_before_them() -> Result<()> {
    let db = TestDb::new().await?;
    let pipelines = db.pitwheel().pipelines();
    let sums = NewPipeline::new("sums")
        .step("one", work(1))
        .step("two", work(2))
        .after(["one"])
        .step("three", work(3))
        .after(["one"])
        .step("four", work(4))
        .after(["two", "three"]);
    let id = pipelines.create(sums).await?;
    let running = start_worker(worker(db.pitwheel()).handle(add_up));
    let done = async || Ok(pipelines.get(id).await?.summary.state == PipelineState::Done);
    wait_until("the pipeline is done", done).await?;
    running.stop().await?;
    let detail = pipelines.get(id).await?;
    let results: Vec<_> = detail.steps.iter().map(|step| (&*step.name, step.result.as_deref())).collect();
    let expected = [("one", "1"), ("two", "3"), ("three", "4"), ("four", "11"), ("extra", "111")]
        .map(|(name, sum)| (name, Some(sum)));
    assert_eq!(results, expected);
    assert_eq!(detail.counts(), [("done", 5)].into());
    Ok(())
}

/// A random pipeline, and the parents of each of its steps.
fn random_pipeline(random: &mut fastrand::Rng) -> (NewPipeline, Vec<Vec<usize>>) {
    let on_failure = if random.bool() { OnFailure::Stop } else { OnFailure::GoOn };
    let mut pipeline = NewPipeline::new("random").on_failure(on_failure);
    let mut parents: Vec<Vec<usize>> = Vec::new();
    for n in 0..random.usize(1..=12) {
        let of_step: Vec<usize> = (0..n).filter(|_| random.u8(..) < 80).collect();
        pipeline = pipeline
            .step(format!("s{n}"), NewJob::raw("test", "{}"))
            .after(of_step.iter().map(|parent| format!("s{parent}")));
        parents.push(of_step);
    }
    (pipeline, parents)
}

/// What becomes of each step if those in `failing` fail.
fn expected(parents: &[Vec<usize>], failing: &HashSet<usize>, stop: bool) -> Vec<&'static str> {
    let mut states: Vec<&'static str> = Vec::new();
    for (n, of_step) in parents.iter().enumerate() {
        let skipped = stop && of_step.iter().any(|&parent| states[parent] != "done");
        states.push(match skipped {
            true => "skipped",
            false if failing.contains(&n) => "dead",
            false => "done",
        });
    }
    states
}

#[tokio::test]
async fn random_pipelines_run_in_their_order_to_their_end() -> Result<()> {
    let db = TestDb::new().await?;
    let pipelines = db.pitwheel().pipelines();
    let worker = db.register().await?;
    let mut random = fastrand::Rng::with_seed(12);
    for round in 0..60 {
        let (new, parents) = random_pipeline(&mut random);
        let failing: HashSet<usize> = (0..parents.len()).filter(|_| random.u8(..) < 60).collect();
        let id = pipelines.create(new).await?;
        let stop = pipelines.get(id).await?.summary.on_failure == OnFailure::Stop;
        let mut running = Vec::new();
        let mut ended: HashMap<usize, &str> = HashMap::new();
        loop {
            running.extend(db.claim_as(worker, random.usize(1..=4)).await?);
            if running.is_empty() {
                break;
            }
            let job = running.swap_remove(random.usize(..running.len()));
            let step = job.step.as_ref().context("it is a step")?;
            let n: usize = step.name.trim_start_matches('s').parse()?;
            assert_eq!(step.parents.len(), parents[n].len());
            for parent in &parents[n] {
                let state = ended.get(parent).copied();
                assert!(state == Some("done") || !stop && state == Some("dead"), "round {round}: {step:?}");
            }
            let fails = failing.contains(&n);
            let ending = match fails {
                true => Ending::dead(error_entry(Cause::Error, "no", 1, "w")),
                false => Ending::done(History::All, Some(job.ctid)),
            };
            assert_eq!(db.settle(&job, ending).await?, Settled::Written);
            assert!(ended.insert(n, if fails { "dead" } else { "done" }).is_none(), "s{n} ran twice");
        }
        let detail = pipelines.get(id).await?;
        let states: Vec<&str> = detail.steps.iter().map(|step| step.state.as_str()).collect();
        assert_eq!(states, expected(&parents, &failing, stop), "round {round}");
        let is_done = states.iter().all(|state| *state == "done");
        let end = if is_done { PipelineState::Done } else { PipelineState::Failed };
        assert_eq!(detail.summary.state, end, "round {round}");
    }
    Ok(())
}

#[tokio::test]
async fn a_part_of_the_maintenance_that_fails_does_not_stop_the_others() -> Result<()> {
    let db = TestDb::new().await?;
    let pipelines = db.pitwheel().pipelines();
    let id = pipelines.create(NewPipeline::new("one").step("a", work(1))).await?;
    let break_planning = "alter table pitwheel.recurring rename to gone; delete from pitwheel.job";
    db.client().await?.batch_execute(break_planning).await?;
    let running = start_worker(worker(db.pitwheel()).handle(add_up));
    let repaired = async || Ok(pipelines.get(id).await?.summary.state == PipelineState::Failed);
    wait_until("the pipeline whose job is gone has ended", repaired).await?;
    running.stop().await?;
    Ok(())
}
