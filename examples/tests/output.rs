//! Every example runs as a separate process and prints the output that the head of its file promises.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pitwheel::NewJob;
use pitwheel_devdb::Programs;
use pitwheel_server::Server;
use pitwheel_testkit::TestDb;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};

/// No example takes this long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// The line of a head at which the test presses Ctrl-C.
const CTRL_C: &str = "^C";

#[tokio::test]
async fn the_in_process_worker_retries_buries_and_completes() -> Result<()> {
    let db = TestDb::unmigrated().await?;
    let mut example = Command::new(env!("CARGO_BIN_EXE_in_process_worker"));
    prints_what_its_head_promises(example.env("DATABASE_URL", db.url()), "src/bin/in_process_worker.rs").await
}

#[tokio::test]
async fn the_remote_worker_needs_a_server_and_no_database() -> Result<()> {
    let db = TestDb::new().await?;
    let payload = r#"{"image":"cat.png","widths":[320,640]}"#;
    let job = db.pitwheel().enqueue(NewJob::raw("resize_image", payload)).await?;
    let mut example = Command::new(env!("CARGO_BIN_EXE_remote_worker"));
    example.env_remove("DATABASE_URL").env("PITWHEEL_SERVER", serve(&db).await?);
    prints_what_its_head_promises(&mut example, "src/bin/remote_worker.rs").await?;

    let result = db.pitwheel().job(job.id).await?.result;
    assert_eq!(result.as_deref(), Some(r#"{"files":["320/cat.png","640/cat.png"]}"#));
    Ok(())
}

#[tokio::test]
async fn the_sqlx_transaction_enqueues_and_settles_with_its_rows() -> Result<()> {
    let db = TestDb::unmigrated().await?;
    let mut example = Command::new(env!("CARGO_BIN_EXE_sqlx_transaction"));
    prints_what_its_head_promises(example.env("DATABASE_URL", db.url()), "src/bin/sqlx_transaction.rs").await
}

#[tokio::test]
async fn plain_sql_enqueues_the_second_time_too() -> Result<()> {
    let db = TestDb::new().await?;
    for _ in 0..2 {
        let mut psql = Command::new(Programs::find()?.path("psql"));
        psql.args(["-X", db.url(), "-f"]).arg(path("sql/enqueue.sql"));
        prints_what_its_head_promises(&mut psql, "sql/enqueue.sql").await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_python_worker_needs_a_server_and_no_database() -> Result<()> {
    let db = TestDb::new().await?;
    let mut example = Command::new(python().await?);
    example.arg(path("python/worker.py")).env("PITWHEEL_SERVER", serve(&db).await?);
    // Otherwise Python buffers what does not go to a terminal.
    example.env("PYTHONUNBUFFERED", "1");
    prints_what_its_head_promises(&mut example, "python/worker.py").await
}

/// Runs the example, presses Ctrl-C where its head has it, and compares all that it printed.
async fn prints_what_its_head_promises(example: &mut Command, file: &str) -> Result<()> {
    let promised = promised_output(file)?;
    let mut child = example
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut printed = Vec::new();
    let finished = tokio::time::timeout(PATIENCE, finish(&mut child, &promised, &mut printed)).await;
    let errors = finished.with_context(|| format!("{file} hangs after {printed:#?}"))??;
    assert_eq!((printed, errors.as_str()), (promised, ""), "{file}");
    let status = child.wait().await?;
    ensure!(status.success(), "{file} ended with {status}");
    Ok(())
}

/// Reads what the child prints until it ends, and returns what it wrote to stderr.
async fn finish(child: &mut Child, promised: &[String], printed: &mut Vec<String>) -> Result<String> {
    let stdout = child.stdout.take().context("no stdout")?;
    let mut stderr = child.stderr.take().context("no stderr")?;
    let before_ctrl_c = promised.iter().position(|line| line == CTRL_C);
    let lines = async {
        let mut lines = BufReader::new(stdout).lines();
        while let Some(line) = lines.next_line().await? {
            printed.push(line);
            if Some(printed.len()) == before_ctrl_c {
                interrupt(child).await?;
                printed.push(CTRL_C.to_owned());
            }
        }
        anyhow::Ok(())
    };
    let mut errors = String::new();
    let (lines, errors_read) = tokio::join!(lines, stderr.read_to_string(&mut errors));
    lines?;
    errors_read?;
    Ok(errors)
}

/// Sends the signal that Ctrl-C sends.
async fn interrupt(child: &Child) -> Result<()> {
    let id = child.id().context("the example has ended")?;
    let kill = Command::new("/bin/sh").args(["-c", &format!("kill -s INT {id}")]).status().await?;
    ensure!(kill.success(), "the example cannot be interrupted");
    Ok(())
}

/// The output in the head of an example: its second block between fences. The first one has the command.
fn promised_output(file: &str) -> Result<Vec<String>> {
    let source = std::fs::read_to_string(path(file))?;
    let uncommented =
        |line| ["//! ", "-- "].iter().find_map(|mark| str::strip_prefix(line, mark)).unwrap_or(line);
    let lines: Vec<&str> = source.lines().map(uncommented).collect();
    let output = lines.split(|line| line.starts_with("```")).nth(3);
    let output = output.with_context(|| format!("the head of {file} promises no output"))?;
    Ok(output.iter().map(ToString::to_string).collect())
}

fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

/// A server on a free port, until the test ends.
async fn serve(db: &TestDb) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let shutdown = std::future::pending();
    tokio::spawn(Server::new(db.pitwheel()).run(listener, shutdown));
    Ok(address)
}

/// The Python that has the worker installed. `scripts/venv` makes it, and does nothing when it is there.
async fn python() -> Result<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().context("no target folder")?;
    let made = Command::new(path("../scripts/venv")).arg(target).status().await?;
    ensure!(made.success(), "scripts/venv cannot install the Python worker");
    Ok(target.join("python/bin/python"))
}
