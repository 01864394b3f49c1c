//! Jobs from enqueue to retry, as tables and as JSON.

use std::process::Stdio;

use pitwheel::{Context, Job, Pitwheel, State, Worker};
use pitwheel_testkit::{start_worker, wait_until};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::support::{Db, Output, Result};

#[test]
fn a_job_can_be_followed_from_enqueue_to_retry_as_a_person_would() -> Result {
    let db = Db::migrated()?;
    let enqueued =
        db.run(&["jobs", "enqueue", "greet", r#"{"name":"Ada"}"#, "--queue", "mail", "--delay", "10m"])?;
    let id = enqueued.out.trim();
    assert_eq!(enqueued.code, Some(0));
    assert!(enqueued.err.contains(&format!("pitwheel jobs show {id}")), "{enqueued:#?}");

    let listed = db.run(&["jobs", "list"])?.with_code(0)?;
    assert!(listed.out.starts_with("ID  STATE    KIND   QUEUE  ATTEMPT  WHEN\n"), "{}", listed.out);
    assert!(listed.out.contains("waiting  greet  mail      0/20  due in 10 m"), "{}", listed.out);

    let shown = db.run(&["jobs", "show", id])?.with_code(0)?;
    for words in [
        "state         waiting",
        "queue         mail",
        "attempts      0 of 20",
        "  {\n    \"name\": \"Ada\"\n  }",
    ] {
        assert!(shown.out.contains(words), "no {words:?}: {}", shown.out);
    }
    assert!(shown.err.contains(&format!("pitwheel jobs cancel {id}")), "{shown:#?}");

    let cancelled = db.run(&["jobs", "cancel", id])?.with_code(0)?;
    assert_eq!((cancelled.out.as_str(), cancelled.err), ("", format!("job {id} is cancelled\n")));
    assert!(db.run(&["jobs", "show", id])?.out.contains("state         cancelled"));

    db.run(&["jobs", "retry", id])?.with_code(0)?;
    let again = db.run(&["jobs", "list", "--state", "waiting"])?;
    assert!(again.out.contains("due now") || again.out.contains("s ago"), "{}", again.out);
    Ok(())
}

#[test]
fn a_job_can_be_followed_from_enqueue_to_retry_as_a_program_would() -> Result {
    let db = Db::migrated()?;
    let args =
        ["jobs", "enqueue", "invoice", "[7]", "--priority", "-3", "--key", "i-7", "--max-attempts", "4"];
    let more =
        ["--run-at", "2099-01-31T09:00:00+01:00", "--timeout", "1m30s", "--metadata", r#"{"tenant":"x"}"#];
    let enqueued = db.json(&[&args[..], &more[..]].concat())?;
    let id = enqueued["id"].as_i64().ok_or("no id")?;
    assert_eq!(enqueued, json!({ "id": id, "is_new": true }));

    let listed = db.json(&["jobs", "list", "--kind", "invoice"])?;
    let mut shown = db.json(&["jobs", "show", &id.to_string()])?;
    let enqueued_at = shown["enqueued_at"].take();
    assert!(enqueued_at.as_str().is_some_and(|time| time.ends_with('Z')), "{enqueued_at}");
    let expected = json!({
        "id": id, "kind": "invoice", "queue": "default", "state": "waiting", "priority": -3, "attempt": 0,
        "max_attempts": 4, "key": "i-7", "lane": null, "run_at": "2099-01-31T08:00:00Z", "enqueued_at": null, "claimed_at": null,
        "finished_at": null, "progress": null, "note": null, "fence": 0, "crashes": 0, "timeout_ms": 90_000,
        "cancel_requested_at": null, "worker": null, "recurring": null, "pipeline": null, "step": null, "unserved": true, "redacted": false, "payload": [7],
        "metadata": { "tenant": "x" }, "result": null, "errors": []
    });
    assert_eq!(shown, expected);
    assert_eq!((&listed[0]["id"], &listed[0]["key"]), (&json!(id), &json!("i-7")));

    let text = id.to_string();
    assert_eq!(db.json(&["jobs", "cancel", &text])?, json!([{ "id": id, "outcome": "cancelled" }]));
    assert_eq!(db.json(&["jobs", "list", "--state", "cancelled"])?[0]["id"], json!(id));
    assert_eq!(db.json(&["jobs", "retry", &text])?, json!([{ "id": id, "outcome": "retried" }]));
    assert_eq!(db.json(&["jobs", "show", &text])?["state"], json!("waiting"));
    Ok(())
}

#[test]
fn json_and_page_show_every_digit_of_a_payload() -> Result {
    let db = Db::migrated()?;
    let payload = r#"{"big": 123456789012345678901234567890, "exact":1.10,"b":1,"a":"é\u00e9"}"#;
    let id = db.enqueue(&["exact", payload])?.to_string();

    let shown = db.run(&["jobs", "show", &id, "-o", "json"])?.with_code(0)?;
    assert!(shown.out.contains(payload), "{}", shown.out);
    shown.json()?;
    let page = db.run(&["jobs", "show", &id])?.with_code(0)?;
    assert!(
        page.out.contains("\"big\": 123456789012345678901234567890,\n    \"exact\": 1.10,"),
        "{}",
        page.out
    );
    Ok(())
}

#[test]
fn a_payload_is_read_from_standard_input_or_is_empty_by_default() -> Result {
    let db = Db::migrated()?;
    let piped = db.run_with_input(&["jobs", "enqueue", "k", "-"], b"[1,\n2]\n")?.with_code(0)?;
    let negative = db.enqueue(&["k", "-5"])?.to_string();
    let none = db.enqueue(&["k"])?.to_string();

    assert_eq!(db.json(&["jobs", "show", piped.out.trim()])?["payload"], json!([1, 2]));
    assert_eq!(db.json(&["jobs", "show", &negative])?["payload"], json!(-5));
    assert_eq!(db.json(&["jobs", "show", &none])?["payload"], json!({}));
    Ok(())
}

#[test]
fn an_invalid_job_is_refused_and_nothing_is_enqueued() -> Result {
    let db = Db::migrated()?;
    let deep = "[".repeat(70) + &"]".repeat(70);
    let refused: [(&[&str], &str); 11] = [
        (
            &["greet", "hello"],
            "payload is not JSON: expected value at line 1 column 1; give it in single quotes",
        ),
        (&["greet", ""], "payload is not JSON"),
        (&["greet", r#""\u0000""#], "NUL character"),
        (&["greet", "[1e5000]"], "exponent above"),
        (&["greet", &deep], "nested deeper than 64"),
        (&["greet", "{}", "--metadata", "{tenant:x}"], "metadata is not JSON"),
        (&["not a name"], "kind `not a name` is not a name"),
        (&["greet", "{}", "--queue", ""], "queue `` is not a name"),
        (&["greet", "{}", "--priority", "10"], "priority 10 is out of range: -9 to 9"),
        (&["greet", "{}", "--max-attempts", "0"], "max_attempts 0 is out of range"),
        (&["greet", "{}", "--key", ""], "key has 0 bytes"),
    ];
    for (args, words) in refused {
        db.run(&[&["jobs", "enqueue"], args].concat())?.with_code(2)?.assert_error(words);
    }
    let large = vec![b' '; 2 * 1024 * 1024];
    db.run_with_input(&["jobs", "enqueue", "greet", "-"], &large)?
        .with_code(2)?
        .assert_error("more than 1048576 bytes");
    let latin = db.run_with_input(&["jobs", "enqueue", "greet", "-"], b"\"\xe9\"")?.with_code(2)?;
    latin.assert_error("not UTF-8");
    for args in [["--delay", "10"], ["--timeout", "soon"], ["--run-at", "tomorrow"], ["--priority", "high"]] {
        let output = db.run(&[&["jobs", "enqueue", "greet", "{}"], &args[..]].concat())?.with_code(2)?;
        assert!(output.err.starts_with("error: invalid value"), "{output:#?}");
    }
    assert_eq!(db.json(&["jobs", "list"])?, json!([]));
    Ok(())
}

#[test]
fn a_key_returns_the_live_job() -> Result {
    let db = Db::migrated()?;
    let id = db.enqueue(&["invoice", "1", "--key", "seven"])?;
    let again = db.run(&["jobs", "enqueue", "invoice", "2", "--key", "seven"])?.with_code(0)?;

    assert_eq!(again.out.trim(), id.to_string());
    assert!(again.err.contains("nothing was enqueued"), "{again:#?}");
    let third = db.json(&["jobs", "enqueue", "invoice", "3", "--key", "seven"])?;
    assert_eq!(third, json!({ "id": id, "is_new": false }));
    assert_eq!(db.json(&["jobs", "show", &id.to_string()])?["payload"], json!(1));
    Ok(())
}

#[test]
fn each_page_names_the_start_of_the_next() -> Result {
    let db = Db::migrated()?;
    let ids = [db.enqueue(&["a"])?, db.enqueue(&["b"])?, db.enqueue(&["c"])?];
    let first = db.run(&["jobs", "list", "--limit", "2"])?.with_code(0)?;
    assert!(first.err.contains(&format!("--before {}", ids[1])), "{first:#?}");

    let rest = db.json(&["jobs", "list", "--limit", "2", "--before", &ids[1].to_string()])?;
    assert_eq!(rest.as_array().map(Vec::len), Some(1));
    assert_eq!(rest[0]["id"], json!(ids[0]));
    db.run(&["jobs", "list", "--limit", "1001"])?.with_code(2)?.assert_error("limit 1001 is above 1000");
    // With JSON output standard error names the next page too.
    let first = db.run(&["jobs", "list", "--limit", "2", "-o", "json"])?.with_code(0)?;
    assert!(first.err.contains(&format!("--before {}", ids[1])), "{first:#?}");
    Ok(())
}

#[test]
fn a_list_is_filtered_by_key_or_to_finished_jobs() -> Result {
    let db = Db::migrated()?;
    let (seven, eight) = (db.enqueue(&["a", "--key", "seven"])?, db.enqueue(&["a", "--key", "eight"])?);
    db.run(&["jobs", "cancel", &eight.to_string()])?.with_code(0)?;
    let ids = |args: &[&str]| -> Result<Vec<Option<i64>>> {
        let listed = db.json(&[&["jobs", "list"], args].concat())?;
        Ok(listed.as_array().ok_or("no list")?.iter().map(|job| job["id"].as_i64()).collect())
    };

    assert_eq!(ids(&["--key", "seven"])?, [Some(seven)]);
    assert_eq!(ids(&["--finished"])?, [Some(eight)]);
    assert_eq!(ids(&["--finished", "--key", "seven"])?, []);
    assert_eq!(ids(&[])?, [Some(eight), Some(seven)]);
    let both = db.run(&["jobs", "list", "--finished", "--state", "waiting"])?.with_code(2)?;
    assert!(both.err.contains("cannot be used with"), "{both:#?}");
    Ok(())
}

#[test]
fn an_empty_list_prints_a_hint_and_no_table() -> Result {
    let db = Db::migrated()?;
    let all = db.run(&["jobs", "list"])?.with_code(0)?;
    assert_eq!(all.out, "");
    assert!(all.err.contains("pitwheel jobs enqueue"), "{all:#?}");
    let some = db.run(&["jobs", "list", "--state", "dead"])?.with_code(0)?;
    assert!(some.err.contains("leave out a filter"), "{some:#?}");
    assert_eq!(db.run(&["jobs", "list", "-o", "json"])?.out, "[]\n");
    Ok(())
}

#[test]
fn a_table_fits_100_columns_and_lets_no_control_character_through() -> Result {
    let db = Db::migrated()?;
    let (kind, queue, key) = ("k".repeat(63), "q".repeat(63), format!("\u{1b}[31m{}\n", "é".repeat(200)));
    let args = [&kind, "{}", "--queue", &queue, "--key", &key, "--priority", "9"];
    let id = db.enqueue(&args)?.to_string();
    db.enqueue(&["short"])?;

    let listed = db.run(&["jobs", "list"])?.with_code(0)?;
    assert_eq!(listed.out.lines().count(), 3, "{}", listed.out);
    assert!(listed.out.lines().all(|line| line.chars().count() <= 100), "{}", listed.out);
    let shown = db.run(&["jobs", "show", &id])?.with_code(0)?;
    assert!(!(listed.out + &shown.out).contains('\u{1b}'));
    Ok(())
}

#[test]
fn missing_jobs_are_reported_and_the_others_are_changed() -> Result {
    let db = Db::migrated()?;
    let id = db.enqueue(&["greet"])?.to_string();

    let cancelled = db.run(&["jobs", "cancel", "999", &id, "-o", "json"])?.with_code(3)?;
    assert_eq!(cancelled.json()?[0]["outcome"], json!("not_found"));
    assert_eq!(cancelled.json()?[1]["outcome"], json!("cancelled"));
    cancelled.assert_error("job 999 was not found");
    db.run(&["jobs", "show", "999"])?.with_code(3)?.assert_error("job 999 was not found");
    db.run(&["jobs", "retry", "999"])?.with_code(3)?.assert_error("job 999 was not found");
    db.run(&["jobs", "cancel", &id])?.with_code(3)?;
    Ok(())
}

#[test]
fn a_retry_is_refused_if_another_live_job_has_the_key() -> Result {
    let db = Db::migrated()?;
    let first = db.enqueue(&["invoice", "--key", "seven"])?.to_string();
    db.run(&["jobs", "cancel", &first])?.with_code(0)?;
    db.enqueue(&["invoice", "--key", "seven"])?;

    db.run(&["jobs", "retry", &first])?.with_code(1)?.assert_error("cancel that one first");
    assert_eq!(db.json(&["jobs", "show", &first])?["state"], json!("cancelled"));
    Ok(())
}

#[test]
fn a_closed_output_pipe_is_no_failure() -> Result {
    let db = Db::migrated()?;
    db.enqueue(&["greet"])?;
    let mut child = db.command(&["jobs", "list"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    drop(child.stdout.take());
    let output = Output::new(&child.wait_with_output()?)?.with_code(0)?;
    assert!(!output.err.contains("error") && !output.err.contains("panic"), "{output:#?}");
    Ok(())
}

#[derive(Serialize, Deserialize)]
struct Fragile {}

impl Job for Fragile {
    const KIND: &'static str = "fragile";
}

async fn fail(_: Fragile, _: Context) -> Result<(), &'static str> {
    Err("the cup fell\nand broke")
}

#[test]
fn a_dead_job_shows_its_error_and_its_worker() -> Result {
    let db = Db::migrated()?;
    let id = db.enqueue(&["fragile", "--max-attempts", "1"])?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(work_until_dead(&db.url, id))?;

    let shown = db.run(&["jobs", "show", &id.to_string()])?.with_code(0)?;
    for words in [
        "state         dead",
        "failed attempts\n    1  error ",
        "on the-worker\n       the cup fell\n       and broke",
    ] {
        assert!(shown.out.contains(words), "no {words:?}: {}", shown.out);
    }
    assert!(shown.err.contains("pitwheel jobs retry"), "{shown:#?}");
    let error = &db.json(&["jobs", "show", &id.to_string()])?["errors"][0];
    assert_eq!((&error["cause"], &error["message"]), (&json!("error"), &json!("the cup fell\nand broke")));
    assert!(error["at"].as_str().is_some_and(|at| at.ends_with('Z')), "{error}");
    let listed = db.run(&["jobs", "list", "--state", "dead"])?;
    assert!(listed.out.contains("1/1  ended "), "{}", listed.out);
    Ok(())
}

async fn work_until_dead(url: &str, id: i64) -> Result {
    let pitwheel = Pitwheel::connect(url).await?;
    let worker = start_worker(Worker::new(&pitwheel).name("the-worker").queue("default", 1).handle(fail));
    wait_until("the job is dead", async || Ok(pitwheel.job(id).await?.summary.state == State::Dead)).await?;
    worker.stop().await?;
    Ok(())
}

#[test]
fn output_is_coloured_only_on_a_terminal_that_wants_it() -> Result {
    let db = Db::migrated()?;
    let id = db.enqueue(&["greet"])?.to_string();
    db.run(&["jobs", "cancel", &id])?.with_code(0)?;
    let binary = env!("CARGO_BIN_EXE_pitwheel");
    let on_terminal = |name: &str, value: &str| -> Result<bool> {
        // `script` gives the command a terminal.
        let line = format!("{binary} jobs list && {binary} jobs show {id}");
        let mut script = std::process::Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).current_dir(db.folder()).stdin(Stdio::null());
        // With `CI` set, colours are on whatever the terminal is.
        script.env_remove("NO_COLOR").env_remove("CI");
        script.env("DATABASE_URL", &db.url).env("TERM", "xterm").env(name, value);
        let output = Output::of(&mut script)?.with_code(0)?;
        assert!(output.out.contains("cancelled"), "{output:#?}");
        Ok(output.out.contains("\u{1b}["))
    };

    assert!(on_terminal("TERM", "xterm")?);
    assert!(on_terminal("NO_COLOR", "")?);
    assert!(!on_terminal("NO_COLOR", "1")?);
    assert!(!on_terminal("TERM", "dumb")?);
    assert!(!db.run(&["jobs", "list"])?.out.contains('\u{1b}'));
    Ok(())
}
