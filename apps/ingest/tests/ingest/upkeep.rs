//! Old versions are deleted, the current one never.

use anyhow::{Context as _, Result};
use pitwheel_ingest::CsvOptions;
use pitwheel_testkit::wait_until;

use crate::support::{TestIngest, entries, lane};

#[tokio::test]
async fn the_current_version_and_the_newest_are_kept() -> Result<()> {
    let test = TestIngest::new().await?;
    let mut versions = Vec::new();
    for quantity in ["1", "2", "3", "4", "5"] {
        test.load(&lane(), entries(&[quantity]), &CsvOptions::default()).await?;
        versions.push(test.current(&lane()).await?.context("nothing is current")?.id);
    }
    test.run_all().await?;
    test.ingest.promote(versions[0]).await?;
    let upkeep = test.db.count("select id from pitwheel.recurring where kind = 'ingest_upkeep'").await?;
    test.db.pitwheel().recurring().run_now(upkeep).await?;
    let worker = test.start(pitwheel_ingest::WorkerOptions::default());
    wait_until("the old version is deleted", || async {
        Ok(test.ingest.version(versions[1]).await.is_err())
    })
    .await?;
    wait_until("its rows are deleted", || async {
        Ok(test.db.count("select count(*) from ingest.entry").await? == 4)
    })
    .await?;
    worker.stop().await?;

    assert_eq!(test.quantities(&lane()).await?, ["1"], "current, and the oldest");
    for kept in &versions[2..] {
        assert_eq!(test.quantities_of(*kept).await?.len(), 1);
    }
    assert!(test.ingest.promote(versions[1]).await.is_err(), "it is deleted");
    Ok(())
}
