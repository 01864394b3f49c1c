//! Any language settles a job in its own transaction, with the SQL functions `pitwheel.complete` and `pitwheel.fail`.

use anyhow::Result;
use pitwheel::{NewJob, State};
use pitwheel_testkit::TestDb;

#[tokio::test]
async fn complete_is_written_once_with_its_result_and_followers() -> Result<()> {
    let db = TestDb::new().await?;
    db.job().insert().await?;
    let job = db.claim_one().await?;
    let client = db.client().await?;
    let complete = r#"select pitwheel.complete($1, $2, '{"rows": 3}', '[
        {"kind": "next", "payload": {"n": 1}, "queue": "later", "priority": 3, "key": "k"},
        {"kind": "next", "run_at": "2099-01-01T00:00:00Z", "max_attempts": 2, "timeout": "90 s"}]')"#;
    let written: bool = client.query_one(complete, &[&job.claim.id, &job.claim.fence]).await?.get(0);
    assert!(written);
    let done = db.pitwheel().job(job.claim.id).await?;
    assert_eq!((done.summary.state, done.result.as_deref()), (State::Done, Some(r#"{"rows": 3}"#)));
    let first = "select count(*) from pitwheel.job where queue = 'later' and priority = 3 and key = 'k'";
    assert_eq!(db.count(first).await?, 1);
    let second = "select count(*) from pitwheel.job
        where run_at > now() + interval '50 years' and max_attempts = 2 and timeout_ms = 90000 and payload::text = '{}'";
    assert_eq!(db.count(second).await?, 1);

    let again: bool = client.query_one(complete, &[&job.claim.id, &job.claim.fence]).await?.get(0);
    assert!(!again, "the claim is settled");
    assert_eq!(db.count("select count(*) from pitwheel.job").await?, 2);
    Ok(())
}

#[tokio::test]
async fn a_lost_claim_is_refused_and_changes_nothing() -> Result<()> {
    let db = TestDb::new().await?;
    db.job().insert().await?;
    let first = db.claim_one().await?;
    db.expire_holder(&first).await?;
    db.sweep().await?;
    let second = db.claim_one().await?;
    let client = db.client().await?;
    for settle in [
        r#"select pitwheel.complete($1, $2, followers => '[{"kind": "next"}]')"#,
        "select pitwheel.fail($1, $2, 'no')",
    ] {
        let written: bool = client.query_one(settle, &[&first.claim.id, &first.claim.fence]).await?.get(0);
        assert!(!written, "{settle}");
    }
    assert_eq!(db.count("select count(*) from pitwheel.job").await?, 1);
    assert_eq!(db.complete(&second).await?, pitwheel::Settled::Written);
    Ok(())
}

#[tokio::test]
async fn complete_without_history_leaves_no_row_unless_there_is_a_result() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    for (result, kept) in [("null", 0), ("'1'", 1)] {
        db.job().insert().await?;
        let job = db.claim_one().await?;
        let sql = format!("select pitwheel.complete($1, $2, {result}, keep_history => false)");
        client.query_one(&sql, &[&job.claim.id, &job.claim.fence]).await?;
        assert_eq!(db.count("select count(*) from pitwheel.job_history").await?, kept);
    }
    Ok(())
}

#[tokio::test]
async fn fail_retries_and_buries_after_the_last_attempt() -> Result<()> {
    let db = TestDb::new().await?;
    db.job().attempts(0, 2).insert().await?;
    let client = db.client().await?;
    let fail = "select pitwheel.fail($1, $2, 'no such row', interval '0')";

    let job = db.claim_one().await?;
    assert!(client.query_one(fail, &[&job.claim.id, &job.claim.fence]).await?.get::<_, bool>(0));
    let waiting = db.pitwheel().job(job.claim.id).await?;
    assert_eq!((waiting.summary.state, waiting.summary.attempt), (State::Waiting, 1));
    assert_eq!(waiting.errors[0]["message"], "no such row");
    assert_eq!(
        (&waiting.errors[0]["cause"], &waiting.errors[0]["worker"]),
        (&"error".into(), &"test".into())
    );

    let job = db.claim_one().await?;
    assert!(client.query_one(fail, &[&job.claim.id, &job.claim.fence]).await?.get::<_, bool>(0));
    let dead = db.pitwheel().job(job.claim.id).await?;
    assert_eq!((dead.summary.state, dead.errors.as_array().map(Vec::len)), (State::Dead, Some(2)));
    Ok(())
}

#[tokio::test]
async fn fail_waits_for_the_usual_backoff_and_respects_a_cancel() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    db.job().attempts(10, 20).insert().await?;
    let job = db.claim_one().await?;
    client.query_one("select pitwheel.fail($1, $2, 'no')", &[&job.claim.id, &job.claim.fence]).await?;
    let spread = "select count(*) from pitwheel.job
        where run_at between clock_timestamp() - interval '1 minute' and clock_timestamp() + interval '2048 seconds'";
    assert_eq!(db.count(spread).await?, 1);
    db.pitwheel().cancel(job.claim.id).await?;

    let id = db.pitwheel().enqueue(NewJob::raw("test", "{}")).await?.id;
    let job = db.claim_one().await?;
    db.pitwheel().cancel(id).await?;
    client.query_one("select pitwheel.fail($1, $2, 'no')", &[&job.claim.id, &job.claim.fence]).await?;
    assert_eq!(db.state(id).await?, Some(State::Cancelled));
    Ok(())
}

#[tokio::test]
async fn wrong_arguments_are_refused_and_change_nothing() -> Result<()> {
    let db = TestDb::new().await?;
    db.job().insert().await?;
    let job = db.claim_one().await?;
    let client = db.client().await?;
    for (sql, problem) in [
        ("select pitwheel.complete($1, $2, followers => '{}')", "is not a JSON array"),
        (r#"select pitwheel.complete($1, $2, followers => '[{"payload": 1}]')"#, "is not a name"),
        (
            r#"select pitwheel.complete($1, $2, followers => '[{"kind": "a", "priority": 10}]')"#,
            "out of range",
        ),
        (
            "select pitwheel.complete($1, $2, followers =>
                (select json_agg(json_build_object('kind', 'a')) from generate_series(1, 101)))",
            "101 jobs follow from one",
        ),
        (
            "select pitwheel.complete($1, $2, followers => (select json_agg(json_build_object('kind', 'a',
                'payload', repeat('x', 250000))) from generate_series(1, 13)))",
            "the limit is 3145728",
        ),
        ("select pitwheel.complete($1, $2, '[1e131071]')", "exponent"),
        ("select pitwheel.fail($1, $2, null)", "error is null"),
        ("select pitwheel.fail($1, $2, 'no', interval '-1 s')", "is negative"),
        ("select pitwheel.fail($1, $2, 'no', interval '5000 years')", "is longer than 100 years"),
    ] {
        let refused = client.query_one(sql, &[&job.claim.id, &job.claim.fence]).await;
        let message =
            refused.err().and_then(|error| error.as_db_error().map(|error| error.message().to_owned()));
        assert!(message.as_deref().is_some_and(|message| message.contains(problem)), "{sql}: {message:?}");
    }
    assert_eq!(db.complete(&job).await?, pitwheel::Settled::Written);
    Ok(())
}
