//! The command line.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use pitwheel_testkit::{ChildProcess, Http, ScratchFolder, connect, wait_until};

use crate::support::{TestIngest, entries};

/// Runs the command with the database of the test. Returns the exit code and what it printed.
fn command(test: &TestIngest, args: &[&str]) -> Result<(i32, String)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pitwheel-ingest"));
    command.args(args).env("DATABASE_URL", test.db.url()).env("PITWHEEL_INGEST_UPLOADS", test.folder.path());
    let output = command.output()?;
    let text = String::from_utf8([output.stdout, output.stderr].concat())?;
    Ok((output.status.code().unwrap_or(-1), text))
}

#[test]
fn the_demo_shows_loads_bad_files_and_a_promote() -> Result<()> {
    let output = Command::new(env!("CARGO_BIN_EXE_pitwheel-ingest")).arg("demo").output()?;
    let text = String::from_utf8([output.stdout, output.stderr].concat())?;
    assert!(output.status.success(), "{text}");
    for words in [
        "travel/flights/entries/csv/2025 has version",
        "line 2, column `quantity`",
        "did you mean `category`?",
        "is promoted: it is current again",
    ] {
        assert!(text.contains(words), "no {words:?}: {text}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_worker_answers_and_runs_nothing() -> Result<()> {
    let test = TestIngest::new().await?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_pitwheel-ingest"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--no-worker"]);
    command.env("DATABASE_URL", test.db.url()).env("PITWHEEL_INGEST_UPLOADS", test.folder.path());
    let mut server = ChildProcess::spawn(&command, Stdio::piped(), Stdio::null())?;
    let address = address(&mut server)?;
    let path = "/api/v1/ingest/uploads?module=travel&entry_type=flights&year=2025";
    let uploaded = Http::new(address).send("POST", path, entries(&["1"])).await?;
    assert_eq!(uploaded.status, 202, "{}", uploaded.text);
    assert_eq!(test.db.count("select count(*) from pitwheel.worker").await?, 0);
    assert_eq!(
        test.db
            .count("select count(*) from pitwheel.job where kind = 'csv_ingest' and holder is null")
            .await?,
        1
    );
    server.signal("TERM")?;
    assert_eq!(server.wait()?.code(), Some(0));
    Ok(())
}

/// Where a server that has just started can be reached.
fn address(server: &mut ChildProcess) -> Result<SocketAddr> {
    for line in BufReader::new(server.take_stdout()?).lines() {
        if let Some((_, rest)) = line?.split_once("http://") {
            return Ok(rest.split('/').next().unwrap_or_default().parse()?);
        }
    }
    anyhow::bail!("the server ended")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_do_what_the_library_does() -> Result<()> {
    let test = TestIngest::new().await?;
    let files = ScratchFolder::create()?;
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

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_waits_for_a_database_that_is_away() -> Result<()> {
    let test = TestIngest::new().await?;
    let files = ScratchFolder::create()?;
    let path = files.path().join("good.csv");
    std::fs::write(&path, entries(&["1"]))?;
    test.db.pitwheel().pause(None).await?;
    let mut upload = Command::new(env!("CARGO_BIN_EXE_pitwheel-ingest"));
    upload.arg("upload").arg(&path).env("PITWHEEL_INGEST_UPLOADS", test.folder.path());
    upload.env("DATABASE_URL", test.db.url());
    let mut process = ChildProcess::spawn(&upload, Stdio::null(), Stdio::piped())?;
    let waits = "select count(*) from pitwheel.worker, ingest.sync";
    wait_until("it to wait for its job", || async { Ok(test.db.count(waits).await? > 0) }).await?;

    let (server, name) = test.db.url().rsplit_once('/').context("no name of a database")?;
    let admin = connect(&format!("{server}/postgres")).await?;
    admin.batch_execute(&format!("alter database {name} with allow_connections false")).await?;
    let cut = "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1";
    admin.query(cut, &[&name]).await?;
    let mut errors = BufReader::new(process.take_stderr()?).lines().map_while(Result::ok);
    assert!(errors.any(|line| line.contains("waiting for the database")), "it gave up");
    admin.batch_execute(&format!("alter database {name} with allow_connections true")).await?;
    test.db.pitwheel().resume(None).await?;
    // Read to its end: the command could not write to a closed pipe.
    let errors: Vec<String> = errors.collect();
    assert!(process.wait()?.success(), "{errors:?}");
    Ok(())
}
