//! A schema that is missing, behind or ahead is reported, with what to do about it.

use pitwheel_testkit::psql;
use serde_json::json;

use crate::support::{Db, Result};

#[test]
fn without_a_schema_every_command_says_to_migrate() -> Result {
    let db = Db::empty()?;
    let commands: [&[&str]; 18] = [
        &["jobs", "list"],
        &["jobs", "show", "1"],
        &["jobs", "enqueue", "greet"],
        &["jobs", "retry", "1"],
        &["jobs", "cancel", "1"],
        &["jobs", "delete", "--state", "dead"],
        &["jobs", "reschedule", "1", "--in", "1h"],
        &["queues", "list"],
        &["queues", "pause", "--all"],
        &["queues", "resume", "--all"],
        &["workers", "list"],
        &["workers", "drain", "1"],
        &["kinds", "list"],
        &["kinds", "redact", "greet"],
        &["tokens", "list"],
        &["tokens", "create", "ci", "--role", "admin"],
        &["audit"],
        &["serve", "--listen", "127.0.0.1:0"],
    ];
    for command in commands {
        db.run(command)?.with_code(5)?.assert_error("run `pitwheel migrate up`");
    }
    Ok(())
}

#[test]
fn a_script_can_wait_for_the_schema() -> Result {
    let db = Db::empty()?;
    let behind = db.run(&["migrate", "status"])?.with_code(5)?;
    assert!(behind.out.starts_with("behind: the schema is at version 0"), "{behind:#?}");
    let behind = db.run(&["migrate", "status", "-o", "json"])?.with_code(5)?.json()?;
    assert_eq!((&behind["state"], &behind["version"]), (&json!("behind"), &json!(0)));

    let applied = db.run(&["migrate", "up"])?.with_code(0)?;
    assert!(applied.err.contains("applied: job"), "{applied:#?}");
    assert!(db.run(&["migrate", "up"])?.with_code(0)?.err.contains("nothing to do"));
    let current = db.json(&["migrate", "status"])?;
    assert_eq!((&current["state"], &current["pending"]), (&json!("current"), &json!([])));
    assert_eq!(db.json(&["migrate", "up"])?["applied"], json!([]));
    Ok(())
}

#[test]
fn a_newer_schema_is_refused_only_when_it_breaks_this_version() -> Result {
    let db = Db::migrated()?;
    let newer = "insert into pitwheel.migration (version, name, breaking) values (9999, 'later', false)";
    psql(&db.url, newer)?;
    db.run(&["jobs", "list"])?.with_code(0)?;
    assert_eq!(db.json(&["migrate", "status"])?["state"], json!("ahead"));

    psql(&db.url, "update pitwheel.migration set breaking = true where version = 9999")?;
    for command in [["jobs", "list"], ["queues", "list"], ["migrate", "up"], ["migrate", "status"]] {
        db.run(&command)?.with_code(1)?.assert_error("upgrade Pitwheel here");
    }
    Ok(())
}
