//! Data go to stdout, words to stderr; colour only where a person looks.

use std::io::{self, IsTerminal, Write};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::log;

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

/// Text from a database as a terminal may see it: control characters are spelled out, so that none takes effect.
pub(crate) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// The name under which this program was called: what a person can type again.
pub(crate) fn program() -> String {
    std::env::args().next().map_or_else(|| "pitwheel".to_owned(), |name| quoted(&name))
}

/// A word as a shell takes it.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@:=,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// 10000 as 10,000.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_reach_no_terminal() {
        assert_eq!(visible("a\u{1b}[31mb\nc\u{9b}é"), r"a\u{1b}[31mb\nc\u{9b}é");
    }

    #[test]
    fn long_numbers_are_grouped() {
        let grouped = [0, 999, 1000, 10_000, 1_234_567].map(thousands);
        assert_eq!(grouped, ["0", "999", "1,000", "10,000", "1,234,567"]);
    }

    #[test]
    fn a_shell_reads_back_what_was_quoted() {
        assert_eq!(quoted("/var/lib/pitwheel"), "/var/lib/pitwheel");
        assert_eq!(quoted("it's here"), r"'it'\''s here'");
    }
}
