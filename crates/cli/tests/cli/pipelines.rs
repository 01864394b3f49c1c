//! Pipelines from a terminal.

use serde_json::json;

use crate::support::{Db, Result};

#[test]
fn a_pipeline_is_created_listed_shown_cancelled_and_retried() -> Result {
    let db = Db::migrated()?;
    let none = db.run(&["pipelines", "list"])?.with_code(0)?;
    assert!(none.out.is_empty() && none.err.contains("pitwheel pipelines create"), "{none:#?}");

    let file = std::env::temp_dir().join(format!("pitwheel-pipeline-{}.json", std::process::id()));
    let import = json!({ "name": "import", "steps": [
        { "name": "load", "job": { "kind": "load" } },
        { "name": "index", "after": ["load"], "job": { "kind": "index" } },
    ] });
    std::fs::write(&file, import.to_string())?;
    let path = file.to_str().ok_or("a path")?;
    let created = db.json(&["pipelines", "create", path])?;
    let id = created["id"].to_string();

    let listed = db.run(&["pipelines", "list", "--state", "running"])?.with_code(0)?;
    assert!(listed.out.contains("running  import  0 of 2"), "{}", listed.out);
    let shown = db.run(&["pipelines", "show", &id])?.with_code(0)?;
    for line in ["on failure    stop", "index  waiting  load   index"] {
        assert!(shown.out.contains(line), "{line}: {}", shown.out);
    }
    assert_eq!(db.json(&["pipelines", "cancel", &id])?, json!({ "id": created["id"], "changed": true }));
    let again = db.run(&["pipelines", "cancel", &id])?.with_code(0)?;
    assert!(again.err.contains("had ended"), "{again:#?}");
    assert_eq!(db.json(&["pipelines", "list"])?[0]["state"], json!("cancelled"));
    assert_eq!(db.json(&["pipelines", "retry", &id])?["changed"], json!(true));
    assert_eq!(db.json(&["pipelines", "show", &id])?["counts"], json!({ "live": 1, "waiting": 1 }));
    assert_eq!(db.json(&["audit", "--limit", "1"])?[0]["action"], json!("pipeline.retry"));
    db.run(&["pipelines", "show", "99"])?.with_code(3)?;

    std::fs::write(&file, r#"{"name": "n", "steps": [{"name": "a"}]}"#)?;
    db.run(&["pipelines", "create", path])?.with_code(2)?.assert_error("missing field `job`");
    std::fs::write(&file, r#"{"name": "n", "steps": []}"#)?;
    db.run(&["pipelines", "create", path])?.with_code(2)?.assert_error("1 to 1000");
    std::fs::remove_file(&file)?;
    Ok(())
}
