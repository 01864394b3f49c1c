//! Recurring jobs from a terminal.

use serde_json::json;

use crate::support::{Db, Result};

#[test]
fn a_recurring_job_is_created_listed_changed_and_deleted() -> Result {
    let db = Db::migrated()?;
    let none = db.run(&["recurring", "list"])?.with_code(0)?;
    assert!(none.out.is_empty() && none.err.contains("pitwheel recurring create"), "{none:#?}");

    let create =
        ["recurring", "create", "report", "tenant-7", "cron 30 2 * * * Europe/Zurich", r#"{"tenant":7}"#];
    let created = db.json(&create)?;
    let id = created["id"].to_string();
    assert_eq!(created["is_new"], json!(true));
    assert_eq!(db.json(&create)?, json!({ "id": created["id"], "is_new": false }));

    let listed = db.run(&["recurring", "list"])?.with_code(0)?;
    assert!(
        listed.out.contains("enabled  report  tenant-7  cron 30 2 * * * Europe/Zurich"),
        "{}",
        listed.out
    );
    let shown = db.run(&["recurring", "show", &id])?.with_code(0)?;
    for line in ["misfire       one", "why then      created", "runs          0", r#"  "tenant": 7"#] {
        assert!(shown.out.contains(line), "{line}: {}", shown.out);
    }
    let next = db.json(&["recurring", "next", &id, "--count", "3"])?;
    assert_eq!(next.as_array().map(Vec::len), Some(3));
    assert_eq!(db.json(&["recurring", "runs", &id])?[0]["state"], json!("waiting"));

    assert_eq!(db.json(&["recurring", "disable", &id])?["enabled"], json!(false));
    let refused = db.run(&["recurring", "run", &id])?.with_code(2)?;
    refused.assert_error("is disabled: enable it first");
    let enabled = db.run(&["recurring", "enable", &id])?.with_code(0)?;
    assert!(enabled.err.contains("is enabled, and runs in"), "{enabled:#?}");
    assert_eq!(db.json(&["recurring", "run", &id])?["outcome"], json!("due"));
    let changed = db.json(&["recurring", "cadence", &id, "every 2h", "--misfire", "all"])?;
    assert_eq!((&changed["cadence"], &changed["misfire"]), (&json!("every 2h"), &json!("all")));

    let audit = db.json(&["audit", "--limit", "1"])?;
    assert_eq!(audit[0]["action"], json!("recurring.change"));
    db.run(&["recurring", "delete", &id])?.with_code(0)?;
    db.run(&["recurring", "delete", &id])?.with_code(3)?.assert_error("there is no recurring job");
    db.run(&["recurring", "show", &id])?.with_code(3)?;
    Ok(())
}

#[test]
fn a_cadence_that_cannot_be_read_is_refused_with_what_to_write() -> Result {
    let db = Db::migrated()?;
    for (cadence, problem) in [
        ("hourly", "none of the three forms"),
        ("cron 99 * * * *", "the minute `99` is not one of 0 to 59"),
        ("cron * * * * * Mars/Olympus", "`Mars/Olympus` is not a time zone"),
        ("every 15", "is not a time span"),
    ] {
        let refused = db.run(&["recurring", "create", "report", "k", cadence])?.with_code(2)?;
        assert!(refused.err.contains(problem) && refused.err.contains("every 15m"), "{refused:#?}");
    }
    Ok(())
}
