//! Every change is in the audit log, with its actor.

use serde_json::json;

use crate::support::{Db, Output, Result};

#[test]
fn every_change_is_logged_with_its_actor() -> Result {
    let db = Db::migrated()?;
    let id = db.enqueue(&["greet"])?;
    let text = id.to_string();
    let changes: [(&[&str], &str); 10] = [
        (&["jobs", "reschedule", &text, "--in", "1h"], "job.reschedule"),
        (&["jobs", "cancel", &text], "job.cancel"),
        (&["jobs", "retry", "--state", "cancelled"], "job.retry"),
        (&["jobs", "delete", &text], "job.delete"),
        (&["queues", "pause", "mail"], "queue.pause"),
        (&["queues", "resume", "mail"], "queue.resume"),
        (&["kinds", "redact", "greet"], "kind.redact"),
        (&["kinds", "reveal", "greet"], "kind.reveal"),
        (&["tokens", "create", "ci", "--role", "viewer"], "token.create"),
        (&["tokens", "revoke", "ci"], "token.revoke"),
    ];
    for (args, action) in changes {
        Output::of(db.command(args).env("USER", "ada"))?.with_code(0)?;
        let last = &db.json(&["audit", "--limit", "1"])?[0];
        assert_eq!((&last["actor"], &last["action"]), (&json!("cli ada"), &json!(action)), "{args:?}");
        let jobs = if action.starts_with("job.") { json!([id]) } else { json!(null) };
        assert_eq!(last["job_ids"], jobs, "{args:?}");
    }

    let listed = db.run(&["audit"])?.with_code(0)?;
    assert!(listed.out.starts_with("ID  WHEN"), "{}", listed.out);
    assert!(listed.out.contains("cli ada  token.revoke    ci"), "{}", listed.out);
    assert_eq!(listed.out.lines().count(), 1 + changes.len(), "{}", listed.out);
    Ok(())
}

#[test]
fn the_actor_is_the_user_or_unknown() -> Result {
    let db = Db::migrated()?;
    let actor = |user: &str, logname: &str| -> Result<String> {
        let mut command = db.command(&["queues", "pause", &format!("q-{user}-{logname}")]);
        Output::of(command.env("USER", user).env("LOGNAME", logname))?.with_code(0)?;
        let last = &db.json(&["audit", "--limit", "1"])?[0];
        Ok(last["actor"].as_str().ok_or("no actor")?.to_owned())
    };
    assert_eq!(actor("ada", "bob")?, "cli ada");
    assert_eq!(actor("", "bob")?, "cli bob");
    assert_eq!(actor("", "")?, "cli unknown");
    Ok(())
}

#[test]
fn the_log_is_read_a_page_at_a_time() -> Result {
    let db = Db::migrated()?;
    let empty = db.run(&["audit"])?.with_code(0)?;
    assert_eq!((empty.out.as_str(), empty.err.as_str()), ("", "no changes yet\n"));
    assert_eq!(db.json(&["audit"])?, json!([]));
    for queue in ["a", "b", "c"] {
        db.run(&["queues", "pause", queue])?.with_code(0)?;
    }

    let first = db.run(&["audit", "--limit", "2", "-o", "json"])?.with_code(0)?;
    let page = first.json()?;
    assert_eq!((&page[0]["subject"], &page[1]["subject"]), (&json!("c"), &json!("b")));
    let before = page[1]["id"].to_string();
    assert!(first.err.contains(&format!("--before {before}")), "{first:#?}");
    let rest = db.json(&["audit", "--limit", "2", "--before", &before])?;
    assert_eq!((rest.as_array().map(Vec::len), &rest[0]["subject"]), (Some(1), &json!("a")));
    db.run(&["audit", "--limit", "1001"])?.with_code(2)?.assert_error("limit 1001 is above 1000");
    Ok(())
}
