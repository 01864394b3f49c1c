//! What a command writes: data to stdout, messages and logs to stderr.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::ValueEnum;
use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Row, Table};
use serde::Serialize;
use tracing_subscriber::EnvFilter;

/// Wider tables wrap in an ordinary window.
const WIDTH: u16 = 120;

/// The format of the output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
}

/// A wrong value in the command line: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(
    /// What to do about it.
    pub String,
);

/// Logs go to stderr: warnings and errors, unless `RUST_LOG` has another filter. What cannot be written is dropped.
pub fn log_to_stderr() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // Such an error would be printed to stderr with `eprintln!`, which panics if stderr is the pipe that is closed.
    logs.log_internal_errors(false).init();
}

/// Prints the error, if there is one, and returns the exit code: 2 for a [`UsageError`] and where `is_usage` says so. A reader that closed
/// the pipe is a success.
pub fn exit_code(result: anyhow::Result<()>, is_usage: impl Fn(&anyhow::Error) -> bool) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    if matches!(error.downcast_ref::<io::Error>(), Some(error) if error.kind() == io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    print_message(&format!("error: {error:#}"));
    ExitCode::from(if error.is::<UsageError>() || is_usage(&error) { 2 } else { 1 })
}

/// Prints text to stdout.
///
/// # Errors
/// If stdout is closed.
pub fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        stdout.write_all(b"\n")?;
    }
    stdout.flush()
}

/// Prints a value to stdout as JSON.
///
/// # Errors
/// If stdout is closed.
pub fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    Ok(print(&serde_json::to_string_pretty(value)?)?)
}

/// Prints a message to stderr. Errors are ignored: stderr may be closed.
pub fn print_message(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// A table without lines.
pub fn table(titles: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
    table.set_truncation_indicator("…").set_header(titles.iter().copied());
    for cells in rows {
        let mut row = Row::from(cells.iter().map(|cell| visible(cell)));
        row.max_height(1);
        table.add_row(row);
    }
    table.column_iter_mut().for_each(|column| {
        column.set_padding((0, 2));
    });
    let lines = table.lines().map(|line| format!("{}\n", line.trim_end()));
    lines.collect()
}

/// Text of a stranger without control characters, which would have an effect on a terminal.
pub fn visible(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A time relative to now, in one rounded unit: "3 m ago", "in 2 h".
pub fn relative(time: SystemTime) -> String {
    let now = SystemTime::now();
    match now.duration_since(time) {
        Ok(past) if past.as_secs() == 0 => "now".to_owned(),
        Ok(past) => format!("{} ago", rough(past)),
        Err(future) => format!("in {}", rough(future.duration())),
    }
}

fn rough(span: Duration) -> String {
    match span.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} m", seconds / 60),
        seconds @ 3600..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::process::{Command, Stdio};

    use super::*;

    /// Set in the process that logs.
    const LOGS: &str = "PITWHEEL_TEST_LOGS";

    #[test]
    fn a_log_line_that_nothing_reads_is_dropped() -> anyhow::Result<()> {
        if env::var_os(LOGS).is_some() {
            log_to_stderr();
            tracing::error!("nothing reads this");
            return Ok(());
        }
        let (reader, writer) = io::pipe()?;
        drop(reader);
        let test = "output::tests::a_log_line_that_nothing_reads_is_dropped";
        let mut child = Command::new(env::current_exe()?);
        child.args([test, "--exact", "--nocapture"]).env(LOGS, "1").env_remove("RUST_LOG");
        assert!(child.stdout(Stdio::null()).stderr(writer).status()?.success());
        Ok(())
    }
}
