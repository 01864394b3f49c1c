//! Logs on stderr, as text or as JSON.

use std::io;
use std::sync::OnceLock;
use std::time::SystemTime;

use anstream::{AutoStream, ColorChoice};
use clap::ValueEnum;
use pitwheel_server::views::time;
use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

/// The format of logs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

/// The format of this process, set once.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// Sends logs to stderr: warnings and errors, unless `RUST_LOG` has another filter. What cannot be written is dropped.
pub(crate) fn to_stderr(format: LogFormat) {
    let format = *FORMAT.get_or_init(|| format);
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // Such an error would be printed to stderr with `eprintln!`, which panics if stderr is the pipe that is closed.
    let logs = logs.log_internal_errors(false);
    match format {
        LogFormat::Text => logs.with_ansi(AutoStream::choice(&io::stderr()) != ColorChoice::Never).init(),
        LogFormat::Json => logs.json().flatten_event(true).init(),
    }
}

/// A line of a JSON log, with the same keys as the lines of `tracing`.
#[derive(Debug, Serialize)]
struct Line<'a> {
    timestamp: String,
    level: &'a str,
    message: &'a str,
    target: &'a str,
}

/// A message as a line of the log if logs are JSON, so that every line on stderr is JSON; `None` if logs are text.
pub(crate) fn line(level: &str, message: &str) -> Option<String> {
    FORMAT.get().filter(|format| **format == LogFormat::Json)?;
    let timestamp = time(SystemTime::now());
    serde_json::to_string(&Line { timestamp, level, message, target: "pitwheel" }).ok()
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::process::{Command, Stdio};

    use super::*;

    /// Set in the process that logs: the format.
    const LOGS: &str = "PITWHEEL_TEST_LOGS";

    #[test]
    fn a_log_line_that_nothing_reads_is_dropped() -> anyhow::Result<()> {
        if let Ok(format) = env::var(LOGS) {
            to_stderr(if format == "json" { LogFormat::Json } else { LogFormat::Text });
            tracing::error!("nothing reads this");
            return Ok(());
        }
        for format in ["text", "json"] {
            let (reader, writer) = io::pipe()?;
            drop(reader);
            let test = "output::log::tests::a_log_line_that_nothing_reads_is_dropped";
            let mut child = Command::new(env::current_exe()?);
            child.args([test, "--exact", "--nocapture"]).env(LOGS, format).env_remove("RUST_LOG");
            assert!(child.stdout(Stdio::null()).stderr(writer).status()?.success(), "{format}");
        }
        Ok(())
    }
}
