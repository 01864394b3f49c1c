//! Data go to stdout, words to stderr; colour only where a person looks.

use std::io::{self, Write};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::log;

/// How answers are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Output {
    #[default]
    Table,
    Json,
}

/// Writes text to stdout. Its styles are left out where stdout is no terminal, or shall have no colours (`NO_COLOR`).
///
/// A closed pipe is an error here and a success in `exit.rs`.
pub(crate) fn print(text: &str) -> io::Result<()> {
    write_lines(anstream::stdout().lock(), text)
}

/// Writes a value to stdout as JSON.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    // Without `anstream`: what looks like a style in JSON is data.
    Ok(write_lines(io::stdout().lock(), &serde_json::to_string_pretty(value)?)?)
}

fn write_lines(mut stdout: impl Write, text: &str) -> io::Result<()> {
    stdout.write_all(text.as_bytes())?;
    if !text.is_empty() && !text.ends_with('\n') {
        stdout.write_all(b"\n")?;
    }
    stdout.flush()
}

/// Says something to whoever looks. Nobody does: that is no failure.
pub(crate) fn say(text: &str) {
    let line = log::line("INFO", text).unwrap_or_else(|| text.to_owned());
    let _ = writeln!(io::stderr(), "{line}");
}

/// Says what went wrong.
pub(crate) fn say_error(text: &str) {
    let line = log::line("ERROR", text).unwrap_or_else(|| format!("error: {text}"));
    let _ = writeln!(io::stderr(), "{line}");
}
