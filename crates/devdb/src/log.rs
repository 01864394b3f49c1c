//! The log of one server, and the part of it that the latest start wrote.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::error::Error;

/// A log larger than this is renamed at the next start, in place of the one renamed before.
const LARGEST: u64 = 16 * 1024 * 1024;

/// How much is read from the end of a log, and how many lines of it an error shows.
const TAIL_BYTES: u64 = 64 * 1024;
const TAIL_LINES: usize = 20;

/// The log since one start.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    since: u64,
}

impl Log {
    /// Opens the log at `path` for a new start, which writes to the returned file.
    pub(crate) fn open(path: &Path) -> Result<(Log, File), Error> {
        if fs::metadata(path).is_ok_and(|log| log.len() > LARGEST) {
            fs::rename(path, path.with_extension("log.old")).map_err(Error::io("rename", path))?;
        }
        let file = File::options().append(true).create(true).open(path).map_err(Error::io("open", path))?;
        let since = file.metadata().map_err(Error::io("read", path))?.len();
        Ok((Log { path: path.to_owned(), since }, file))
    }

    /// The text that this start has logged, or the end of it when it is long.
    pub(crate) fn text(&self) -> String {
        let mut bytes = Vec::new();
        if let Ok(mut file) = File::open(&self.path) {
            let end = file.metadata().map_or(0, |log| log.len());
            let start = self.since.max(end.saturating_sub(TAIL_BYTES));
            // If the log cannot be read, the error is reported without it.
            let _ =
                file.seek(SeekFrom::Start(start)).and_then(|_| file.take(TAIL_BYTES).read_to_end(&mut bytes));
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The error for a program that ended or was too slow, with the last lines that this start logged.
    pub(crate) fn failure(&self, what: String) -> Error {
        let text = self.text();
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n");
        Error::Failed { what, tail: if tail.is_empty() { "(the log is empty)".to_owned() } else { tail } }
    }
}
