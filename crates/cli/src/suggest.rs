//! Commands to type next.

use crate::database;
use crate::settings::Settings;

/// This program with the flags it needs to use the database at `url`.
pub(crate) fn command_for(url: &str, settings: &Settings) -> String {
    let is_default = database::find(settings).is_ok_and(|database| database.url == url);
    if is_default {
        return program();
    }
    format!("{} --database-url {}", program(), quoted(url))
}

/// The name that this program was called by, quoted for a shell.
pub(crate) fn program() -> String {
    std::env::args().next().map_or_else(|| "pitwheel".to_owned(), |name| quoted(&name))
}

/// A word, quoted for a shell if necessary.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@:=,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_back_what_was_quoted() {
        assert_eq!(quoted("/var/lib/pitwheel"), "/var/lib/pitwheel");
        assert_eq!(quoted("it's here"), r"'it'\''s here'");
    }
}
