//! Prints data to stdout and messages to stderr.

use std::io::{self, Write};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::log;

/// The format of the output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OutputFormat {
    #[default]
    Table,
    Json,
}

/// Prints text to stdout. Styles are removed unless stdout is a terminal with colours and `NO_COLOR` is not set.
///
/// A closed pipe is an error here and a success in `exit.rs`.
pub(crate) fn print(text: &str) -> io::Result<()> {
    write_lines(anstream::stdout().lock(), text)
}

/// Prints a value to stdout as JSON.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    // Not through `anstream`, which would change data that look like a style.
    Ok(write_lines(io::stdout().lock(), &serde_json::to_string_pretty(value)?)?)
}

fn write_lines(mut stdout: impl Write, text: &str) -> io::Result<()> {
    stdout.write_all(text.as_bytes())?;
    if !text.is_empty() && !text.ends_with('\n') {
        stdout.write_all(b"\n")?;
    }
    stdout.flush()
}

/// Prints a message to stderr. Errors are ignored: stderr may be closed.
pub(crate) fn print_message(text: &str) {
    let line = log::line("INFO", text).unwrap_or_else(|| text.to_owned());
    let _ = writeln!(io::stderr(), "{line}");
}

/// Prints an error to stderr.
pub(crate) fn print_error(text: &str) {
    let line = log::line("ERROR", text).unwrap_or_else(|| format!("error: {text}"));
    let _ = writeln!(io::stderr(), "{line}");
}
