//! Lanes and recovery from a terminal.

use serde_json::json;

use crate::support::{Db, Result};

#[test]
fn jobs_of_a_lane_are_enqueued_and_listed() -> Result {
    let db = Db::migrated()?;
    let first = db.enqueue(&["import", "--lane", "tenant-7"])?.to_string();
    let second = db.enqueue(&["import", "--lane", "tenant-7", "--lane-pass"])?.to_string();
    let other = db.enqueue(&["import", "--lane", r#"["tenant",7,null]"#])?.to_string();
    let listed = db.run(&["jobs", "list"])?.with_code(0)?.out;
    assert!(listed.contains("LANE") && listed.contains("behind another"), "{listed}");
    assert!(listed.contains(r#"["tenant", 7, null]"#), "{listed}");
    let shown = db.run(&["jobs", "show", &second])?.with_code(0)?;
    assert!(shown.out.contains("state         blocked"), "{}", shown.out);
    assert!(shown.out.contains("lane          \"tenant-7\""), "{}", shown.out);
    let queues = db.run(&["queues", "list"])?.with_code(0)?.out;
    assert!(queues.contains("BLOCKED"), "{queues}");
    let lane = db.run(&["lanes", "jobs", "tenant-7", "-o", "json"])?.with_code(0)?.json()?;
    let ids: Vec<String> =
        lane.as_array().ok_or("no list")?.iter().map(|job| job["id"].to_string()).collect();
    assert_eq!(ids, [second.clone(), first.clone()]);
    let current = db.run(&["lanes", "current", "tenant-7", "-o", "json"])?.with_code(0)?.json()?;
    assert_eq!(current, json!({ "id": null, "job": null }));
    db.run(&["jobs", "cancel", "--state", "blocked"])?.with_code(0)?;
    assert!(db.run(&["jobs", "show", &second])?.out.contains("state         cancelled"));
    assert!(db.run(&["jobs", "show", &other])?.out.contains("state         waiting"));
    db.run(&["jobs", "enqueue", "import", "--lane", "[[1]]"])?.with_code(2)?.assert_error("lane `[[1]]`");
    db.run(&["jobs", "enqueue", "import", "--lane-pass"])?.with_code(2)?;
    Ok(())
}

#[test]
fn a_job_that_no_live_worker_takes_shows_as_such() -> Result {
    let db = Db::migrated()?;
    let id = db.enqueue(&["import", "--lane", "tenant-7"])?.to_string();
    let what = "no live worker takes the kind `import`: start one with a handler for it";
    for args in [&["jobs", "list"][..], &["jobs", "show", &id], &["lanes", "jobs", "tenant-7"]] {
        let shown = db.run(args)?.with_code(0)?;
        assert!(shown.err.contains(what), "{shown:#?}");
    }
    assert!(db.run(&["jobs", "list"])?.out.contains(", no worker"));
    assert_eq!(db.json(&["jobs", "show", &id])?["unserved"], json!(true));
    db.run(&["jobs", "cancel", &id])?.with_code(0)?;
    let cancelled = db.run(&["jobs", "list"])?.with_code(0)?;
    assert!(!cancelled.err.contains(what), "{cancelled:#?}");
    Ok(())
}

#[test]
fn a_job_that_is_not_stale_is_not_recovered() -> Result {
    let db = Db::migrated()?;
    let id = db.enqueue(&["greet"])?.to_string();
    let refused = db.run(&["jobs", "recover", &id])?.with_code(1)?;
    refused.assert_error(&format!("job {id} cannot be recovered: it is not running"));
    db.run(&["jobs", "recover", "999999", "--stale-after", "5m"])?.with_code(3)?;
    Ok(())
}
