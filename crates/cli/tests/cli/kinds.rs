//! Kinds whose payloads are hidden from roles that may only read.

use serde_json::json;

use crate::support::{Db, Node, Result};

#[test]
fn a_redacted_kind_shows_in_the_list_until_it_is_revealed() -> Result {
    let db = Db::migrated()?;
    let none = db.run(&["kinds", "list"])?.with_code(0)?;
    assert_eq!(none.out, "");
    assert!(none.err.contains("start a worker"), "{none:#?}");

    let redacted = db.run(&["kinds", "redact", "invoice"])?.with_code(0)?;
    assert!(redacted.err.contains("pitwheel kinds reveal invoice"), "{redacted:#?}");
    let listed = db.run(&["kinds", "list"])?.with_code(0)?;
    assert_eq!(listed.out, "KIND     WORKERS  PAYLOADS\ninvoice        0  redacted\n");
    assert_eq!(db.json(&["kinds", "list"])?, json!([{ "name": "invoice", "redacted": true, "workers": 0 }]));

    assert_eq!(db.json(&["kinds", "reveal", "invoice"])?, json!({ "name": "invoice", "redacted": false }));
    assert!(db.run(&["kinds", "list"])?.out.contains("shown"));
    db.run(&["kinds", "redact", "no name"])?.with_code(2)?.assert_error("is not a name");
    db.run(&["kinds", "redact"])?.with_code(2)?;
    Ok(())
}

#[test]
fn a_redacted_payload_is_hidden_from_a_viewer_and_shown_at_the_terminal() -> Result {
    let db = Db::migrated()?;
    db.run(&["kinds", "redact", "invoice"])?.with_code(0)?;
    let id = db.enqueue(&["invoice", "[7]"])?.to_string();
    let token = db.run(&["tokens", "create", "looker", "--role", "viewer"])?.with_code(0)?.out;
    let node = Node::start(&db, "127.0.0.1:0", &["--require-tokens"])?;

    let response = node.get(&format!("/api/v1/jobs/{id}"), Some(token.trim()))?;
    let seen = response.json()?;
    assert_eq!((response.status, &seen["redacted"], &seen["payload"]), (200, &json!(true), &json!(null)));
    let shown = db.json(&["jobs", "show", &id])?;
    assert_eq!((&shown["redacted"], &shown["payload"]), (&json!(false), &json!([7])));
    Ok(())
}
