//! Pauses of queues, and their end.

use serde_json::json;

use crate::support::{Db, Result};

#[test]
fn a_paused_queue_shows_in_the_list_until_it_is_resumed() -> Result {
    let db = Db::migrated()?;
    db.enqueue(&["greet", "{}", "--queue", "mail"])?;
    db.enqueue(&["greet", "{}", "--queue", "mail", "--delay", "1h"])?;
    let listed = db.run(&["queues", "list"])?.with_code(0)?;
    assert!(listed.out.contains("mail   open         1        0      1"), "{}", listed.out);

    let paused = db.run(&["queues", "pause", "mail"])?.with_code(0)?;
    assert!(paused.err.contains("pitwheel queues resume mail"), "{paused:#?}");
    assert!(db.run(&["queues", "list"])?.out.contains("mail   paused"));
    let queue = &db.json(&["queues", "list"])?[0];
    assert_eq!((&queue["name"], &queue["waiting"], &queue["later"]), (&json!("mail"), &json!(1), &json!(1)));
    assert!(queue["paused_at"].is_string(), "{queue}");

    assert_eq!(db.json(&["queues", "resume", "mail"])?, json!({ "queue": "mail", "paused": false }));
    assert_eq!(db.json(&["queues", "list"])?[0]["paused_at"], json!(null));
    let again = db.run(&["queues", "resume", "mail"])?.with_code(0)?;
    assert!(again.err.contains("not paused"), "{again:#?}");
    Ok(())
}

#[test]
fn a_pause_of_all_outlasts_the_resume_of_one_and_this_is_printed() -> Result {
    let db = Db::migrated()?;
    db.enqueue(&["greet"])?;
    assert_eq!(db.json(&["queues", "pause", "--all"])?, json!({ "queue": null, "paused": true }));
    db.run(&["queues", "pause", "other"])?.with_code(0)?;

    let one = db.run(&["queues", "resume", "default"])?.with_code(0)?;
    assert!(one.err.contains("pitwheel queues resume --all"), "{one:#?}");
    let all = db.run(&["queues", "resume", "--all"])?.with_code(0)?;
    assert!(all.err.contains("still paused individually: other"), "{all:#?}");
    assert_eq!(db.json(&["queues", "list"])?[0]["paused_at"], json!(null));
    Ok(())
}

#[test]
fn a_pause_names_a_queue_or_all() -> Result {
    let db = Db::migrated()?;
    db.run(&["queues", "pause"])?.with_code(2)?;
    db.run(&["queues", "pause", "mail", "--all"])?.with_code(2)?;
    db.run(&["queues", "pause", "no name"])?.with_code(2)?.assert_error("is not a name");
    let none = db.run(&["queues", "list"])?.with_code(0)?;
    assert_eq!(none.out, "");
    assert!(none.err.contains("pitwheel jobs enqueue"), "{none:#?}");
    Ok(())
}
