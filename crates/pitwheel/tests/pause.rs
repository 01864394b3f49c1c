//! No claim takes a job from a paused queue, whether that queue is paused or all of them.

use anyhow::Result;
use pitwheel_testkit::TestDb;

#[tokio::test]
async fn no_kind_of_claim_takes_a_job_of_a_paused_queue() -> Result<()> {
    for paused in [Some("default"), None] {
        let db = TestDb::new().await?;
        let worker = db.register().await?;
        let (one, two) = (db.job().insert().await?, db.job().insert().await?);
        let suspect = db.job().crashes(2).insert().await?;

        db.pitwheel().pause(paused).await?;
        assert!(db.claim_as(worker, 5).await?.is_empty(), "{paused:?}");
        assert!(db.claim_for_workers(&[worker; 5]).await?.is_empty(), "{paused:?}");
        assert!(db.claim_alone(worker).await?.is_none(), "{paused:?}");

        assert!(db.pitwheel().resume(paused).await?);
        let claimed = db.claim_as(worker, 1).await?;
        assert_eq!(claimed.iter().map(|job| job.claim.id).collect::<Vec<_>>(), [one]);
        let claimed = db.claim_for_workers(&[worker; 5]).await?;
        assert_eq!(claimed.iter().map(|job| job.claim.id).collect::<Vec<_>>(), [two]);
        assert_eq!(db.claim_alone(worker).await?.map(|job| job.claim.id), Some(suspect));
    }
    Ok(())
}
