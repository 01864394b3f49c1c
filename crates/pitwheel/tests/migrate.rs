//! The schema is migrated once, however many nodes start. A build refuses a schema that does not fit it.

use std::cell::RefCell;
use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use pitwheel::engine::MIGRATIONS;
use pitwheel::{Error, Pitwheel};
use pitwheel_testkit::{TestDb, WAIT_MAX, wait_until};
use tokio_postgres::Client;

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

/// The first migration that changes a table that an old node uses.
const CHANGES_JOB: usize = 10;

/// A database with the schema that an old node works with.
async fn with_old_schema() -> Result<(TestDb, Client)> {
    let db = TestDb::unmigrated().await?;
    let client = db.client().await?;
    client.batch_execute(include_str!("../sql/postgres/migration_table.sql")).await?;
    for migration in &MIGRATIONS[..CHANGES_JOB] {
        client.batch_execute(migration.sql).await?;
        let record = "insert into pitwheel.migration (version, name, breaking) values ($1, $2, false)";
        client.execute(record, &[&migration.version, &migration.name]).await?;
    }
    Ok((db, client))
}

#[tokio::test]
async fn a_migration_that_waits_for_a_table_lets_others_use_it() -> Result<()> {
    let (db, client) = with_old_schema().await?;
    let reader = db.client().await?;
    reader.batch_execute("begin; select from pitwheel.job").await?;
    let pitwheel = db.pitwheel().clone();
    let migration = tokio::spawn(async move { pitwheel.migrate().await });
    wait_until("the migration waits", async || Ok(db.lock_waits().await? > 0)).await?;
    let enqueue = client.batch_execute("select pitwheel.enqueue('test')");
    tokio::time::timeout(WAIT_MAX, enqueue).await.context("the enqueue waits for the migration")??;
    reader.batch_execute("commit").await?;
    assert!(migration.await??.len() > 1);
    db.pitwheel().check_schema().await?;
    Ok(())
}

/// Two nodes start, and one of them waits for a table again and again: the table is free in each pause.
#[tokio::test]
async fn a_node_that_pauses_keeps_other_nodes_from_migrating() -> Result<()> {
    let (db, client) = with_old_schema().await?;
    let reader = db.client().await?;
    reader.batch_execute("begin; select from pitwheel.job").await?;
    let mut nodes = Vec::new();
    for _ in 0..2 {
        let node = Pitwheel::connect(db.url()).await?;
        nodes.push(tokio::spawn(async move { node.migrate().await }));
    }
    // A wait has one session and one beginning.
    let waiting = "select pid, waitstart::text from pg_locks
        where not granted and relation = 'pitwheel.job'::regclass and mode = 'AccessExclusiveLock' and waitstart is not null
          and database = (select oid from pg_database where datname = current_database())";
    let waits = RefCell::new(BTreeSet::new());
    wait_until("three attempts", async || {
        let seen = client.query(waiting, &[]).await?;
        waits.borrow_mut().extend(seen.iter().map(|row| (row.get::<_, String>(1), row.get::<_, i32>(0))));
        Ok(waits.borrow().len() == 3)
    })
    .await?;
    let waits = waits.into_inner();
    let sessions: BTreeSet<i32> = waits.iter().map(|(_, pid)| *pid).collect();
    assert_eq!(sessions.len(), 1, "another node tries while one pauses: {waits:?}");
    reader.batch_execute("commit").await?;
    let mut applied = Vec::new();
    for node in nodes {
        applied.push(node.await??.len());
    }
    applied.sort_unstable();
    assert_eq!(applied, [0, MIGRATIONS.len() - CHANGES_JOB]);
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
