//! A write of an earlier claim changes nothing, wherever the row of the job is by then, and also if a failover lost the claim and
//! another worker has its fence.

use std::time::Duration;

use anyhow::{Context as _, Result};
use pitwheel::engine::{self, Claimed, Ctid, Ending, SettleResult, Settlement};
use pitwheel::{Claim, History, NewJob, Settled, State};
use pitwheel_testkit::TestDb;

/// Two claims of one job: the first was released, the second holds.
async fn claimed_twice(db: &TestDb) -> Result<(Claimed, Claimed)> {
    db.job().insert().await?;
    let first = db.claim_one().await?;
    assert_eq!(db.settle(&first, Ending::Release).await?, Settled::Written);
    let second = db.claim_one().await?;
    assert_eq!(first.claim.id, second.claim.id);
    assert!(first.claim.fence < second.claim.fence);
    Ok((first, second))
}

#[tokio::test]
async fn an_earlier_claim_completes_nothing_although_the_row_is_where_it_was() -> Result<()> {
    for history in [History::All, History::FailuresOnly] {
        let db = TestDb::new().await?;
        let (first, second) = claimed_twice(&db).await?;
        // Vacuum gives places of rows away again, so the row of the second claim can be where that of the first was.
        assert_eq!(db.settle(&first, Ending::done(history, Some(second.ctid))).await?, Settled::Lost);
        assert_eq!(db.state(second.claim.id).await?, Some(State::Running), "{history:?}");
        assert_eq!(
            db.settle(&second, Ending::done(history, Some(second.ctid))).await?,
            Settled::Written,
            "{history:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn an_earlier_claim_ends_nothing_in_any_way() -> Result<()> {
    let db = TestDb::new().await?;
    let (first, second) = claimed_twice(&db).await?;
    let error = || r#"{"attempt": 1, "cause": "error", "message": "no", "worker": "test"}"#.to_owned();
    for ending in [
        Ending::done(History::All, None),
        Ending::dead(error()),
        Ending::Retry { delay: std::time::Duration::ZERO, error: error() },
        Ending::Release,
        Ending::Crash { error: error() },
    ] {
        assert_eq!(db.settle(&first, ending.clone()).await?, Settled::Lost, "{ending:?}");
        assert_eq!(db.state(second.claim.id).await?, Some(State::Running), "{ending:?}");
    }
    assert_eq!(db.complete(&second).await?, Settled::Written);
    Ok(())
}

/// Two claims of one job with the same fence: a failover lost the first, and another worker made the second. That one has the lower
/// id if `is_older`.
async fn claimed_again_after_a_failover(db: &TestDb, is_older: bool) -> Result<(Claimed, Claimed)> {
    db.job().insert().await?;
    let (older, newer) = (db.register().await?, db.register().await?);
    let (first, second) = if is_older { (newer, older) } else { (older, newer) };
    let claim = async |worker| db.claim_as(worker, 1).await?.pop().context("nothing was due");
    let lost = claim(first).await?;
    // The standby has never seen the claim.
    let sql =
        "update pitwheel.job set holder = null, claimed_at = null, fence = fence - 1, attempt = attempt - 1";
    db.client().await?.batch_execute(&format!("{sql}; delete from pitwheel.hold")).await?;
    let second = claim(second).await?;
    assert_eq!((lost.claim.id, lost.claim.fence), (second.claim.id, second.claim.fence));
    assert_ne!(lost.claim.holder, second.claim.holder);
    Ok((lost, second))
}

/// All ways to end the job of a claim whose row is at this ctid.
fn endings(ctid: Ctid) -> Vec<Ending> {
    let error = || r#"{"attempt": 1, "cause": "error", "message": "no", "worker": "test"}"#.to_owned();
    let then = || vec![NewJob::raw("test", "{}")];
    let result = Some("1".to_owned());
    vec![
        Ending::done(History::All, Some(ctid)),
        Ending::done(History::FailuresOnly, Some(ctid)),
        Ending::Done { history: History::All, ctid: Some(ctid), result, then: then() },
        Ending::Dead { error: error(), then: then() },
        Ending::Cancelled { error: None, then: then() },
        Ending::Retry { delay: Duration::ZERO, error: error() },
        Ending::Snooze { delay: Duration::ZERO },
        Ending::Release,
        Ending::Crash { error: error() },
    ]
}

#[tokio::test]
async fn a_claim_that_a_failover_lost_ends_nothing_although_its_fence_was_given_again() -> Result<()> {
    let db = TestDb::new().await?;
    let (lost, second) = claimed_again_after_a_failover(&db, false).await?;
    let client = db.client().await?;
    for ending in endings(second.ctid) {
        assert_eq!(db.settle(&lost, ending.clone()).await?, Settled::Lost, "{ending:?}");
        let last_progress = Some((0.5, "half".to_owned()));
        let ended = Settlement { last_progress, ..Settlement::new(lost.claim, ending) };
        assert_eq!(engine::settle(&client, &[ended], &[]).await?, [SettleResult::Lost]);
    }
    for sql in
        ["select pitwheel.complete($1, $2, holder => $3)", "select pitwheel.fail($1, $2, 'no', holder => $3)"]
    {
        let claim = lost.claim;
        let written: bool = client.query_one(sql, &[&claim.id, &claim.fence, &claim.holder]).await?.get(0);
        assert!(!written, "{sql}");
    }
    assert_eq!(engine::progress(&client, &[(lost.claim, 0.5, "half".into())]).await?, []);
    assert!(engine::attempts(&client, &[lost.claim]).await?.is_empty());
    let running = db.pitwheel().job(second.claim.id).await?.summary;
    assert_eq!((running.state, running.attempt, running.note), (State::Running, 1, None));
    assert_eq!(db.count("select count(*) from pitwheel.job").await?, 1, "no follower");

    let held = [(second.claim, 0.5, "half".to_owned())];
    assert_eq!(engine::progress(&client, &held).await?, [second.claim]);
    assert_eq!(engine::attempts(&client, &[second.claim]).await?.len(), 1);
    assert_eq!(db.complete(&second).await?, Settled::Written);
    Ok(())
}

#[tokio::test]
async fn of_two_claims_with_one_fence_in_a_batch_only_the_holder_s_is_written() -> Result<()> {
    let ways = 0..endings(Ctid::default()).len();
    for (n, is_older) in ways.flat_map(|n| [(n, false), (n, true)]) {
        let db = TestDb::new().await?;
        let (lost, second) = claimed_again_after_a_failover(&db, is_older).await?;
        let ending = endings(second.ctid).swap_remove(n);
        let batch = [&lost, &second].map(|job| Settlement::new(job.claim, ending.clone()));
        let settled = engine::settle(&db.client().await?, &batch, &[]).await?;
        assert_eq!(settled, [SettleResult::Lost, SettleResult::Written], "{ending:?}");
        let rows = "select (select count(*) from pitwheel.job) + (select count(*) from pitwheel.job_history)";
        let expected =
            if matches!(ending, Ending::Done { history: History::FailuresOnly, .. }) { 0 } else { 1 };
        assert_eq!(db.count(rows).await?, expected + ending.then().len() as i64, "{ending:?}");
    }
    Ok(())
}

#[tokio::test]
async fn one_claim_twice_in_a_batch_is_written_once() -> Result<()> {
    for n in 0..endings(Ctid::default()).len() {
        let db = TestDb::new().await?;
        db.job().insert().await?;
        let job = db.claim_one().await?;
        let ending = endings(job.ctid).swap_remove(n);
        let batch = [job.claim, job.claim].map(|claim| Settlement::new(claim, ending.clone()));
        let settled = engine::settle(&db.client().await?, &batch, &[]).await?;
        assert_eq!(settled, [SettleResult::Written, SettleResult::Already], "{ending:?}");
        let rows = "select (select count(*) from pitwheel.job) + (select count(*) from pitwheel.job_history)";
        let expected =
            if matches!(ending, Ending::Done { history: History::FailuresOnly, .. }) { 0 } else { 1 };
        assert_eq!(db.count(rows).await?, expected + ending.then().len() as i64, "{ending:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_claim_that_does_not_name_its_holder_is_compared_by_job_and_fence() -> Result<()> {
    for n in 0..endings(Ctid::default()).len() {
        let db = TestDb::new().await?;
        let (earlier, mut job) = claimed_twice(&db).await?;
        job.claim.holder = 0;
        let ending = endings(job.ctid).swap_remove(n);
        let unnamed = Claimed { claim: Claim { holder: 0, ..earlier.claim }, ..earlier };
        assert_eq!(db.settle(&unnamed, ending.clone()).await?, Settled::Lost, "{ending:?}");
        assert_eq!(
            engine::progress(&db.client().await?, &[(job.claim, 0.5, String::new())]).await?,
            [job.claim]
        );
        assert_eq!(db.settle(&job, ending.clone()).await?, Settled::Written, "{ending:?}");
    }
    Ok(())
}
