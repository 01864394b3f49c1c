//! Reading a pipeline: the results of its steps come up to a limit, whatever they have together.

use anyhow::Result;
use pitwheel::{NewJob, NewPipeline, PipelineState};
use pitwheel_testkit::TestDb;

/// Five steps whose first four have results of 256 KiB, together 1 MiB; the last has a small one.
async fn wide(db: &TestDb) -> Result<i64> {
    let steps = (1..=5)
        .fold(NewPipeline::new("wide"), |wide, n| wide.step(format!("s{n}"), NewJob::raw("test", "{}")));
    let id = db.pitwheel().pipelines().create(steps).await?;
    let results = "update pitwheel.step
        set result = to_json(repeat('x', case when n < 5 then 262142 else 1 end))
        where pipeline = $1";
    db.client().await?.execute(results, &[&id]).await?;
    Ok(id)
}

/// Whether the result of each step was left out. It is there, or it was left out.
async fn left_out(db: &TestDb, id: i64) -> Result<Vec<bool>> {
    let steps = db.pitwheel().pipelines().get(id).await?.steps;
    assert!(steps.iter().all(|step| step.result.is_some() != step.result_left_out));
    Ok(steps.iter().map(|step| step.result_left_out).collect())
}

#[tokio::test]
async fn results_of_steps_are_left_out_beyond_one_megabyte() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    // The limit counts text: neither that it is stored compressed, nor that it has a header, changes what is left out.
    for storage in ["extended", "external"] {
        let set = format!("alter table pitwheel.step alter column result set storage {storage}");
        client.batch_execute(&set).await?;
        let id = wide(&db).await?;
        assert_eq!(left_out(&db, id).await?, [false, false, false, false, true], "{storage}");
        let larger = "update pitwheel.step set result = to_json(repeat('x', 262143))
            where pipeline = $1 and n = 3";
        client.execute(larger, &[&id]).await?;
        assert_eq!(left_out(&db, id).await?, [false, false, false, true, true], "{storage}");
    }
    Ok(())
}

#[tokio::test]
async fn a_step_without_a_result_has_none_left_out() -> Result<()> {
    let db = TestDb::new().await?;
    let id = wide(&db).await?;
    let client = db.client().await?;
    client.execute("update pitwheel.step set result = null where n in (1, 5)", &[]).await?;
    let pipelines = db.pitwheel().pipelines();
    let steps = pipelines.get(id).await?.steps;
    assert!(steps.iter().all(|step| !step.result_left_out));
    let with_result: Vec<&str> =
        steps.iter().filter(|step| step.result.is_some()).map(|step| &*step.name).collect();
    assert_eq!(with_result, ["s2", "s3", "s4"]);

    let summary = pipelines.summary(id).await?;
    assert_eq!((summary.state, summary.steps), (PipelineState::Running, 5));
    assert!(pipelines.summary(id + 1).await.is_err_and(|error| error.code() == "not_found"));
    Ok(())
}
