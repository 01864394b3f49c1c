//! The schema is migrated once, however many nodes start. A build refuses a schema that does not fit it.

use anyhow::Result;
use pitwheel::{Error, Pitwheel};
use pitwheel_testkit::TestDb;

#[tokio::test]
async fn ten_nodes_that_start_together_migrate_once() -> Result<()> {
    let db = TestDb::unmigrated().await?;
    let node = async || Pitwheel::connect(db.url()).await?.migrate().await;
    let nodes: [_; 10] = std::array::from_fn(|_| node());
    let applied = futures_util::future::join_all(nodes).await;
    let applied = applied.into_iter().collect::<Result<Vec<_>, _>>()?;
    assert_eq!(applied.iter().filter(|steps| !steps.is_empty()).count(), 1);
    assert!(db.pitwheel().migrate().await?.is_empty());
    db.pitwheel().check_schema().await?;
    Ok(())
}

#[tokio::test]
async fn a_schema_that_is_missing_or_newer_is_refused_with_what_to_do() -> Result<()> {
    let db = TestDb::unmigrated().await?;
    let behind = db.pitwheel().check_schema().await.unwrap_err();
    assert!(matches!(behind, Error::SchemaBehind { found: 0, .. }));
    assert!(behind.to_string().contains("run `pitwheel migrate up`"), "{behind}");

    db.pitwheel().migrate().await?;
    let client = db.client().await?;
    client
        .batch_execute("insert into pitwheel.migration (version, name, breaking) values (998, 'soft', false)")
        .await?;
    db.pitwheel().check_schema().await?;
    client
        .batch_execute("insert into pitwheel.migration (version, name, breaking) values (999, 'hard', true)")
        .await?;
    for refused in
        [db.pitwheel().check_schema().await.unwrap_err(), db.pitwheel().migrate().await.unwrap_err()]
    {
        assert!(matches!(refused, Error::SchemaAhead { found: 999, .. }));
        assert!(refused.to_string().contains("upgrade Pitwheel here"), "{refused}");
    }
    Ok(())
}
