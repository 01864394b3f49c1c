//! A write of an earlier claim changes nothing, wherever the row of the job is by then.

use anyhow::Result;
use pitwheel::engine::{Claimed, Ending};
use pitwheel::{History, Settled, State};
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
