//! Nodes that start at the same time: one of them migrates, the others find the schema migrated.

use anyhow::Result;
use pitwheel::Pitwheel;
use pitwheel::engine::{MIGRATION_LOCK, MIGRATIONS};
use pitwheel_testkit::{Connection, Explorer, Run, Session, TestDb};

/// How many nodes start together.
const NODES: usize = 10;

#[tokio::test]
async fn nodes_that_start_together_migrate_once() -> Result<()> {
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

/// Reads whether the schema exists, then applies the migrations; with the engine's lock or without.
fn migrates(name: &'static str, lock: bool) -> Session {
    let session = Session::new(name).sql("begin");
    let session = if lock { session.sql_as("lock", MIGRATION_LOCK) } else { session };
    session
        .step("read", async |connection: &mut Connection| {
            connection
                .query(
                    "create temp table seen on commit drop as
                    select to_regclass('pitwheel.migration') is not null as there",
                )
                .await?;
            connection.query("select there from seen").await
        })
        .step("apply", async |connection: &mut Connection| {
            if connection.query("select there from seen").await? == "t" {
                return Ok(String::new());
            }
            connection
                .query(
                    "create schema pitwheel; create table pitwheel.migration (version integer primary key)",
                )
                .await?;
            for migration in MIGRATIONS {
                connection.query(migration.sql).await?;
                connection
                    .query(&format!("insert into pitwheel.migration values ({})", migration.version))
                    .await?;
            }
            Ok("applied".to_owned())
        })
        .sql("commit")
}

#[tokio::test]
async fn of_two_migrations_at_once_one_waits_for_the_other() -> Result<()> {
    let db = TestDb::unmigrated().await?;
    let start = |title| {
        Explorer::from_scratch(&db, title)
            .setup("drop schema if exists pitwheel cascade")
            .end("select string_agg(version::text, ',') from pitwheel.migration")
    };
    let wrong = |run: &Run| {
        let applied = ["a.apply", "b.apply"].iter().filter(|label| run.output(label) == "applied");
        run.failed() || applied.count() != 1
    };

    start("migrate × migrate")
        .session(migrates("a", true))
        .session(migrates("b", true))
        .explore()
        .await?
        .never(wrong);
    start("migrate × migrate, unlocked")
        .session(migrates("a", false))
        .session(migrates("b", false))
        .explore()
        .await?
        .sometimes(wrong);
    Ok(())
}
