//! What the engine logs goes to stderr, as text for people or as JSON for programs that collect logs.

use std::io;
use std::sync::OnceLock;
use std::time::SystemTime;

use anstream::{AutoStream, ColorChoice};
use clap::ValueEnum;
use pitwheel_server::views::time;
use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

/// How logs are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

/// There is one stderr, so there is one way to write to it.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// Warnings of the engine go to stderr; `RUST_LOG` asks for more or less.
pub(crate) fn to_stderr(format: LogFormat) {
    let format = *FORMAT.get_or_init(|| format);
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    match format {
        LogFormat::Text => logs.with_ansi(AutoStream::choice(&io::stderr()) != ColorChoice::Never).init(),
        LogFormat::Json => logs.json().flatten_event(true).init(),
    }
}

/// A line of the log, with the names that the engine's own lines have.
#[derive(Debug, Serialize)]
struct Line<'a> {
    timestamp: String,
    level: &'a str,
    message: &'a str,
    target: &'a str,
}

/// Our own words as a line of the log, when that is JSON: whoever collects it can read every line.
pub(crate) fn line(level: &str, message: &str) -> Option<String> {
    FORMAT.get().filter(|format| **format == LogFormat::Json)?;
    let timestamp = time(SystemTime::now());
    serde_json::to_string(&Line { timestamp, level, message, target: "pitwheel" }).ok()
}
