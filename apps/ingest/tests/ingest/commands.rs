//! The command line.

use std::process::Command;

use anyhow::Result;

use crate::support::{TestIngest, entries};

/// Runs the command with the database of the test. Returns the exit code and what it printed.
fn command(test: &TestIngest, args: &[&str]) -> Result<(i32, String)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pitwheel-ingest"));
    command.args(args).env("DATABASE_URL", test.db.url()).env("PITWHEEL_INGEST_UPLOADS", test.folder.path());
    let output = command.output()?;
    let text = String::from_utf8([output.stdout, output.stderr].concat())?;
    Ok((output.status.code().unwrap_or(-1), text))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_do_what_the_library_does() -> Result<()> {
    let test = TestIngest::new().await?;
    let files = pitwheel_testkit::ScratchFolder::create()?;
    let write = |name: &str, text: String| -> Result<String> {
        let path = files.path().join(name);
        std::fs::write(&path, text)?;
        Ok(path.to_string_lossy().into_owned())
    };
    let good = write("good.csv", entries(&["1", "2"]))?;
    let bad = write("bad.csv", entries(&["1", "many"]))?;
    let misspelt = write("misspelt.csv", entries(&["1"]).replace("unit", "unti"))?;
    let lane = ["--module", "travel", "--type", "flights", "--year", "2025"];
    let run = |args: &[&str], code: i32, expected: &str| -> Result<String> {
        let (exit, text) = command(&test, args)?;
        assert!(exit == code && text.contains(expected), "{args:?}: {exit} {text}");
        Ok(text)
    };
    run(&["current"], 0, "no lanes")?;
    run(&["jobs"], 0, "no jobs")?;
    run(&[&["upload", &misspelt], &lane[..]].concat(), 2, "did you mean `unit`?")?;
    run(&["upload", "/nowhere.csv"], 1, "cannot be read")?;
    run(&[&["upload", &good], &lane[..]].concat(), 0, "2 rows, current version 1")?;
    run(&[&["upload", &bad], &lane[..]].concat(), 1, "line 3, column `quantity`")?;
    let dead =
        test.ingest.jobs(&pitwheel_ingest::LaneFilter::default(), None, 1).await?[0].sync.job_id.to_string();
    run(&["rejected", &dead], 0, "3,quantity,")?;
    run(&[&["upload", &bad, "--skip-bad-rows"], &lane[..]].concat(), 0, "1 rows, 1 rejected")?;
    run(&["current", "--method", "csv"], 0, "travel/flights/entries/csv/2025")?;
    run(&["versions", "1"], 0, "current")?;
    run(&["promote", "1"], 0, "version 1 is current")?;
    run(&["promote", "99"], 2, "there is no version 99")?;
    run(&["current", "-o", "json", "--method", "csv"], 0, "\"current_version\": 1")?;
    run(&["sync", "--module", "travel", "--method", "computed"], 0, "emission_recalc")?;
    run(&["sync", "--target", "units", "--method", "api"], 2, "has no source")?;
    let units = write("units.csv", "code,name\nit,Computing\n".to_owned())?;
    run(&["sources", "set", &units, "--target", "units"], 0, "is read from")?;
    run(&["sources", "list"], 0, "units.csv")?;
    run(&["sync", "--target", "units", "--method", "api"], 0, "unit_sync")?;
    run(&["sources", "remove", "--target", "units"], 0, "has no source any more")?;
    run(&["sources", "remove", "--target", "units"], 2, "has no source")?;
    run(&[&["upload", &good, "--no-wait"], &lane[..]].concat(), 0, "is enqueued")?;
    run(&["jobs", "--method", "csv"], 0, "good.csv")?;
    Ok(())
}
