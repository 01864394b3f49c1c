//! Data go to stdout, words to stderr; colour only where a person looks.

use std::io::{self, IsTerminal, Write};

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

/// Writes data to stdout. A reader that has left is an error here and a success in `exit.rs`.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    if !text.is_empty() && !text.ends_with('\n') {
        stdout.write_all(b"\n")?;
    }
    stdout.flush()
}

/// Writes data to stdout as JSON.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    Ok(print(&serde_json::to_string_pretty(value)?)?)
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

/// Whether what is printed on stdout may have colour.
pub(crate) fn stdout_coloured() -> bool {
    coloured(io::stdout().is_terminal())
}

/// Whether a stream may have colour: a terminal that can, and nobody who asked for none.
pub(crate) fn coloured(terminal: bool) -> bool {
    let is = |name, wanted: fn(&str) -> bool| std::env::var(name).is_ok_and(|value| wanted(&value));
    terminal && !is("NO_COLOR", |value| !value.is_empty()) && !is("TERM", |value| value == "dumb")
}
