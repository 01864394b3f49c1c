//! A private Postgres that several commands use at a time.

use std::time::Duration;

use anyhow::Result;
use pitwheel_app::PrivateDatabase;
use pitwheel_testkit::{ScratchFolder, connect};

#[tokio::test(flavor = "multi_thread")]
async fn the_private_postgres_runs_until_its_last_user_has_ended() -> Result<()> {
    let folder = ScratchFolder::missing();
    let first = PrivateDatabase::open(None, folder.path()).await?;
    let second = PrivateDatabase::open(None, folder.path()).await?;
    assert_eq!(first.url(), second.url());
    assert!(first.started_in().is_some() && second.started_in().is_none());
    let client = connect(second.url()).await?;

    let mut closing = tokio::spawn(first.close());
    // Nothing tells that it waits. A Postgres that is stopped under the second user has ended by then.
    let closed = tokio::time::timeout(Duration::from_secs(2), &mut closing).await;
    assert!(closed.is_err(), "it did not wait for the second user");
    client.batch_execute("select 1").await?;

    second.close().await?;
    closing.await??;
    assert_eq!(pitwheel_devdb::running(folder.path()), None);
    PrivateDatabase::open(None, folder.path()).await?.close().await
}
