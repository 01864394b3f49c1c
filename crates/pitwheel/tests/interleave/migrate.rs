//! Nodes that start at once: one of them migrates, the others find it done.

use anyhow::Result;
use pitwheel::Pitwheel;
use pitwheel::engine::{MIGRATION_LOCK, MIGRATIONS};
use pitwheel_testkit::{Explorer, Run, Session, Stage, TestDb};

/// How many nodes start at once.
const NODES: usize = 10;

#[tokio::test]
async fn nodes_that_start_at_once_migrate_once() -> Result<()> {
    let db = TestDb::unmigrated().await?;
    let mut nodes = tokio::task::JoinSet::new();
    for _ in 0..NODES {
        let pitwheel = Pitwheel::connect(db.url()).await?;
        nodes.spawn(async move { pitwheel.migrate().await });
    }
    let mut applied = Vec::new();
    while let Some(node) = nodes.join_next().await {
        applied.extend(node??);
    }

    let all: Vec<&str> = MIGRATIONS.iter().map(|one| one.name).collect();
    assert_eq!(applied, all);
    db.pitwheel().check_schema().await?;
    Ok(())
}

/// Reads where the schema stands, then applies what is missing; with the lock of the engine, or without.
fn migrates(name: &'static str, lock: bool) -> Session {
    let session = Session::new(name).sql("begin");
    let session = if lock { session.sql_as("lock", MIGRATION_LOCK) } else { session };
    session
        .step("look", async |stage: &mut Stage| {
            stage
                .ask(
                    "create temp table seen on commit drop as
                    select to_regclass('pitwheel.migration') is not null as there",
                )
                .await?;
            stage.ask("select there from seen").await
        })
        .step("apply", async |stage: &mut Stage| {
            if stage.ask("select there from seen").await? == "t" {
                return Ok(String::new());
            }
            stage
                .ask("create schema pitwheel; create table pitwheel.migration (version integer primary key)")
                .await?;
            for migration in MIGRATIONS {
                stage.ask(migration.sql).await?;
                stage.ask(&format!("insert into pitwheel.migration values ({})", migration.version)).await?;
            }
            Ok("applied".to_owned())
        })
        .sql("commit")
}

#[tokio::test]
async fn two_migrations_wait_for_each_other() -> Result<()> {
    let db = TestDb::unmigrated().await?;
    let start = |title| {
        Explorer::from_scratch(&db, title)
            .setup("drop schema if exists pitwheel cascade")
            .end("select string_agg(version::text, ',') from pitwheel.migration")
    };
    let clashed = |run: &Run| {
        let applied = ["a.apply", "b.apply"].iter().filter(|label| run.said(label) == "applied");
        run.failed() || applied.count() != 1
    };

    start("migrate × migrate")
        .session(migrates("a", true))
        .session(migrates("b", true))
        .explore()
        .await?
        .never(clashed);
    start("migrate × migrate, unlocked")
        .session(migrates("a", false))
        .session(migrates("b", false))
        .explore()
        .await?
        .sometimes(clashed);
    Ok(())
}
