//! A job whose enqueue was acknowledged exists once and as it was given. If one job is refused, so is its whole batch.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use pitwheel::{Error, NewJob, State};
use pitwheel_testkit::{TestDb, Work};

#[tokio::test]
async fn thousands_are_enqueued_in_the_order_given() -> Result<()> {
    let db = TestDb::new().await?;
    let jobs = (0..1234).map(|n| NewJob::of(&Work { n }));
    let enqueued = db.pitwheel().enqueue_many(jobs).await?;

    assert_eq!(enqueued.len(), 1234);
    assert!(enqueued.iter().all(|job| job.is_new));
    for at in [0, 499, 500, 1233] {
        let job = db.pitwheel().job(enqueued[at].id).await?;
        assert_eq!(job.payload, format!("{{\"n\":{at}}}"));
    }
    Ok(())
}

#[tokio::test]
async fn every_option_is_kept() -> Result<()> {
    let db = TestDb::new().await?;
    let later = SystemTime::now() + Duration::from_secs(3600);
    let job = NewJob::of(&Work { n: 1 })
        .queue("mail")
        .priority(-9)
        .max_attempts(7)
        .timeout(Duration::from_millis(1500))
        .key("k")
        .metadata(&serde_json::json!({"tenant": 12_345_678_901_234_567_890_u64}))
        .run_at(later);
    let id = db.pitwheel().enqueue(job).await?.id;

    let job = db.pitwheel().job(id).await?;
    assert_eq!((job.summary.queue.as_str(), job.summary.priority, job.summary.max_attempts), ("mail", -9, 7));
    assert_eq!((job.timeout_ms, job.summary.key.as_deref()), (Some(1500), Some("k")));
    assert_eq!(job.metadata.as_deref(), Some("{\"tenant\":12345678901234567890}"));
    assert!(
        job.summary.run_at.duration_since(later).unwrap_or_else(|early| early.duration())
            < Duration::from_millis(1)
    );
    assert_eq!(job.summary.state, State::Waiting);
    Ok(())
}

#[tokio::test]
async fn one_job_is_written_like_one_of_many() -> Result<()> {
    let db = TestDb::new().await?;
    let hour = Duration::from_secs(3600);
    let jobs = [
        NewJob::of(&Work { n: 1 }),
        NewJob::of(&Work { n: 2 }).run_at(SystemTime::UNIX_EPOCH),
        NewJob::of(&Work { n: 3 }).run_at(SystemTime::now() + hour),
        NewJob::of(&Work { n: 4 }).delay(hour).queue("mail").priority(-9).max_attempts(7),
        NewJob::of(&Work { n: 5 }).timeout(hour).metadata(&"tenant").priority(9),
    ];
    let mut alone = Vec::new();
    for job in &jobs {
        alone.push(db.pitwheel().enqueue(job.clone()).await?.id);
    }
    let together = db.pitwheel().enqueue_many(jobs).await?;

    // Everything but the id and the times of the insert.
    let row = async |id: i64| -> Result<String> {
        let sql = "select (to_jsonb(job) - array['id', 'run_at', 'enqueued_at'])::text
            || round(extract(epoch from job.run_at - job.enqueued_at) / 60) from pitwheel.job where id = $1";
        Ok(db.client().await?.query_one(sql, &[&id]).await?.get(0))
    };
    for (alone, together) in alone.into_iter().zip(together) {
        assert_eq!(row(alone).await?, row(together.id).await?);
    }
    Ok(())
}

#[tokio::test]
async fn a_key_returns_the_live_job_and_is_free_again_after_its_end() -> Result<()> {
    let db = TestDb::new().await?;
    let keyed = || NewJob::of(&Work { n: 1 }).key("one");
    let first = db.pitwheel().enqueue(keyed()).await?;
    let again = db.pitwheel().enqueue(keyed()).await?;
    assert_eq!((again.id, again.is_new), (first.id, false));
    let other_kind = db.pitwheel().enqueue(NewJob::raw("other", "{}").key("one")).await?;
    assert!(other_kind.is_new);

    db.pitwheel().cancel(first.id).await?;
    let fresh = db.pitwheel().enqueue(keyed()).await?;
    assert!(fresh.is_new && fresh.id != first.id);
    Ok(())
}

#[tokio::test]
async fn a_key_given_twice_in_one_batch_is_one_job() -> Result<()> {
    let db = TestDb::new().await?;
    let jobs = ["a", "b", "a", "c", "a"].map(|key| NewJob::of(&Work { n: 1 }).key(key));
    let enqueued = db.pitwheel().enqueue_many(jobs).await?;

    assert_eq!(enqueued.iter().filter(|job| job.is_new).count(), 3);
    assert_eq!(enqueued[0].id, enqueued[2].id);
    assert_eq!(enqueued[0].id, enqueued[4].id);
    assert_eq!(db.count("select count(*) from pitwheel.job").await?, 3);
    Ok(())
}

#[tokio::test]
async fn a_run_at_in_the_past_means_now() -> Result<()> {
    let db = TestDb::new().await?;
    let past = || NewJob::of(&Work { n: 1 }).run_at(SystemTime::UNIX_EPOCH);
    let plain = db.pitwheel().enqueue(past()).await?.id;
    let keyed = db.pitwheel().enqueue(past().key("k")).await?.id;
    let by_sql = db.count("select pitwheel.enqueue('work', run_at => '1999-01-01')").await?;
    let keyed_by_sql =
        db.count("select pitwheel.enqueue('work', run_at => '1999-01-01', key => 'l')").await?;
    for id in [plain, keyed, by_sql, keyed_by_sql] {
        let job = db.pitwheel().job(id).await?;
        assert!(job.summary.run_at >= job.summary.enqueued_at - Duration::from_millis(1));
    }
    Ok(())
}

#[tokio::test]
async fn bad_input_is_refused_and_nothing_of_its_batch_is_enqueued() -> Result<()> {
    let db = TestDb::new().await?;
    let good = NewJob::of(&Work { n: 1 });
    let bad = [
        (good.clone().queue(""), "queue `` is not a name"),
        (good.clone().queue("white space"), "is not a name"),
        (good.clone().queue("x".repeat(64)), "is not a name"),
        (NewJob::raw("*", "{}"), "kind `*` is not a name"),
        (good.clone().priority(10), "priority 10 is out of range"),
        (good.clone().max_attempts(0), "max_attempts 0 is out of range"),
        (good.clone().timeout(Duration::ZERO), "timeout"),
        (good.clone().delay(Duration::MAX), "delay is longer than"),
        (good.clone().run_at(SystemTime::now() + Duration::from_secs(5_000_000_000)), "run_at is more than"),
        (good.clone().key(""), "key has 0 bytes"),
        (good.clone().key("k".repeat(513)), "key has 513 bytes"),
        (good.clone().key("a\0b"), "key holds a NUL"),
        (good.clone().metadata(&"\0"), "metadata holds a NUL"),
        (NewJob::raw("work", "{"), "payload is not JSON"),
        (NewJob::raw("work", "[1e131071]"), "exponent"),
    ];
    for (job, words) in bad {
        let error = db.pitwheel().enqueue_many([good.clone(), job]).await.unwrap_err();
        assert!(error.to_string().contains(words), "`{error}` should contain `{words}`");
        assert!(matches!(error, Error::Invalid(_) | Error::Payload { .. }));
    }
    assert_eq!(db.count("select count(*) from pitwheel.job").await?, 0);
    Ok(())
}

#[tokio::test]
async fn library_and_sql_function_accept_the_same_payloads() -> Result<()> {
    let db = TestDb::new().await?;
    let deep = |levels| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let cases = [
        ("{}".to_owned(), true),
        (deep(64), true),
        (deep(65), false),
        (format!("\"{}\"", "x".repeat(262_142)), true),
        (format!("\"{}\"", "x".repeat(262_143)), false),
        (r#"{"a":"\u0000"}"#.to_owned(), false),
        (r#"{"a":"\\u0000"}"#.to_owned(), true),
        (r#"{"a":"\\\u0000"}"#.to_owned(), false),
        ("[1e999]".to_owned(), true),
        ("[1e1000]".to_owned(), false),
        ("[1E+0001000]".to_owned(), false),
        ("[1.5e-1000]".to_owned(), false),
        (r#"["1e99999 [[[[ \" [[["]"#.to_owned(), true),
    ];
    for (payload, accepted) in cases {
        let library = db.pitwheel().enqueue(NewJob::raw("work", payload.clone())).await;
        let sql = db
            .client()
            .await?
            .query_one("select pitwheel.enqueue('work', $1::text::json)", &[&payload])
            .await;
        let shown: String = payload.chars().take(60).collect();
        assert_eq!(library.is_ok(), accepted, "library on {shown}: {library:?}");
        assert_eq!(sql.is_ok(), accepted, "SQL on {shown}: {sql:?}");
    }
    Ok(())
}

#[tokio::test]
async fn the_sql_functions_refuse_what_the_library_refuses() -> Result<()> {
    let db = TestDb::new().await?;
    let bad = [
        "select pitwheel.enqueue('')",
        "select pitwheel.enqueue(null)",
        "select pitwheel.enqueue('work', null)",
        "select pitwheel.enqueue('work', queue => 'white space')",
        "select pitwheel.enqueue('work', queue => null)",
        "select pitwheel.enqueue('work', priority => 10)",
        "select pitwheel.enqueue('work', max_attempts => 0)",
        "select pitwheel.enqueue('work', timeout => interval '0')",
        "select pitwheel.enqueue('work', timeout => interval '101 years')",
        "select pitwheel.enqueue('work', key => '')",
        "select pitwheel.enqueue('work', run_at => 'infinity', lane => '\"l\"')",
        "select pitwheel.enqueue('work', run_at => '-infinity')",
        "select pitwheel.enqueue('work', run_at => now() + interval '101 years')",
        "select pitwheel.enqueue('work', metadata => '[1e5000]')",
        "select pitwheel.create_recurring('work', 'k', 'every 1h', timeout => interval '101 years')",
        "select pitwheel.create_recurring('work', 'k', 'every 1h', misfire => 'never')",
        "select pitwheel.create_recurring('work', 'k', 'every 1h', misfire => null)",
        "select pitwheel.create_recurring('work', 'k', 'adaptive 1h..2h', interval_ms => 999)",
        "select pitwheel.create_recurring('work', 'k', 'adaptive 1h..2h', interval_ms => 3162240000001)",
        "select pitwheel.change_recurring(1, 'every 1h', misfire => 'never')",
        "select pitwheel.change_recurring(1, 'adaptive 1h..2h', interval_ms => -1)",
    ];
    let pipeline = |last: &str| {
        format!(
            r#"select pitwheel.create_pipeline('{{"name": "n", "steps": [
                {{"name": "a", "job": {{"kind": "work"}}}}, {{"name": "b", "after": ["a"], "job": {{"kind": "work", {last}}}}}]}}')"#
        )
    };
    let steps = [
        r#""delay_ms": 3162240000001"#,
        r#""delay_ms": -1"#,
        r#""run_at": "infinity""#,
        r#""timeout": "101 years""#,
        r#""timeout_ms": 3162240000001"#,
    ]
    .map(pipeline);
    for sql in bad.into_iter().chain(steps.iter().map(String::as_str)) {
        let error = db.client().await?.query(sql, &[]).await.unwrap_err();
        assert_eq!(error.code().map(|code| code.code()), Some("22023"), "{sql}: {error}");
    }
    assert_eq!(db.count("select count(*) from pitwheel.job").await?, 0);
    Ok(())
}

#[tokio::test]
async fn the_sql_function_enqueues_in_the_callers_transaction() -> Result<()> {
    let db = TestDb::new().await?;
    let first = db.count("select pitwheel.enqueue('work', '{\"n\":1}', key => 'k')").await?;
    assert_eq!(db.count("select pitwheel.enqueue('work', '{\"n\":2}', key => 'k')").await?, first);
    db.client().await?.batch_execute("begin; select pitwheel.enqueue('work', '{\"n\":3}'); rollback").await?;
    assert_eq!(db.count("select count(*) from pitwheel.job").await?, 1);
    Ok(())
}

#[cfg(feature = "tokio-postgres")]
#[tokio::test]
async fn jobs_enqueued_in_a_tokio_postgres_transaction_commit_with_it() -> Result<()> {
    use pitwheel::transaction::tokio_postgres::enqueue;
    let db = TestDb::new().await?;
    let mut client = db.client().await?;
    client.batch_execute("create table effect (n bigint)").await?;
    let keyed = || [NewJob::of(&Work { n: 1 }).key("k"), NewJob::of(&Work { n: 2 })];

    let transaction = client.transaction().await?;
    transaction.batch_execute("insert into effect values (1)").await?;
    enqueue(&transaction, keyed()).await?;
    transaction.rollback().await?;
    assert_eq!(db.count("select count(*) from pitwheel.job").await?, 0);

    let transaction = client.transaction().await?;
    let first = enqueue(&transaction, keyed()).await?;
    let again = enqueue(&transaction, keyed()).await?;
    transaction.batch_execute("insert into effect values (1)").await?;
    transaction.commit().await?;
    assert_eq!((again[0].id, again[0].is_new, again[1].is_new), (first[0].id, false, true));
    assert_eq!(db.count("select count(*) from pitwheel.job").await?, 3);
    assert_eq!(db.count("select count(*) from effect").await?, 1);
    Ok(())
}

#[cfg(feature = "sqlx")]
#[tokio::test]
async fn jobs_enqueued_in_an_sqlx_transaction_commit_with_it() -> Result<()> {
    use pitwheel::transaction::sqlx::enqueue;
    use sqlx::Connection;
    let db = TestDb::new().await?;
    let mut connection = sqlx::PgConnection::connect(db.url()).await?;
    let later = SystemTime::now() + Duration::from_secs(60);
    let keyed = || [NewJob::of(&Work { n: 1 }).key("k").run_at(later), NewJob::of(&Work { n: 2 })];

    let mut transaction = connection.begin().await?;
    enqueue(&mut transaction, keyed()).await?;
    transaction.rollback().await?;
    assert_eq!(db.count("select count(*) from pitwheel.job").await?, 0);

    let mut transaction = connection.begin().await?;
    let first = enqueue(&mut transaction, keyed()).await?;
    let again = enqueue(&mut transaction, keyed()).await?;
    transaction.commit().await?;
    assert_eq!((again[0].id, again[0].is_new, again[1].is_new), (first[0].id, false, true));
    let job = db.pitwheel().job(first[0].id).await?;
    assert!(job.summary.run_at >= later - Duration::from_millis(1));
    Ok(())
}
