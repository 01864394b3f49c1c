//! The log of one server, and what the latest start added to it.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::error::Error;

/// A log larger than this is set aside at the next start; the one before it is dropped.
const LARGEST: u64 = 16 * 1024 * 1024;

/// How much of the end of a log is read, and how many lines of it an error shows.
const TAIL_BYTES: u64 = 64 * 1024;
const TAIL_LINES: usize = 20;

/// The log from one start on.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    since: u64,
}

impl Log {
    /// Opens the log at `path` for a new start; the file is for that start to write to.
    pub(crate) fn open(path: &Path) -> Result<(Log, File), Error> {
        if fs::metadata(path).is_ok_and(|log| log.len() > LARGEST) {
            fs::rename(path, path.with_extension("log.old")).map_err(Error::io("rename", path))?;
        }
        let file = File::options().append(true).create(true).open(path).map_err(Error::io("open", path))?;
        let since = file.metadata().map_err(Error::io("read", path))?.len();
        Ok((Log { path: path.to_owned(), since }, file))
    }

    /// What this start has logged; of a long log the end.
    pub(crate) fn text(&self) -> String {
        let mut bytes = Vec::new();
        if let Ok(mut file) = File::open(&self.path) {
            let end = file.metadata().map_or(0, |log| log.len());
            let start = self.since.max(end.saturating_sub(TAIL_BYTES));
            // A log that cannot be read gives an empty tail: the error it goes into still stands.
            let _ =
                file.seek(SeekFrom::Start(start)).and_then(|_| file.take(TAIL_BYTES).read_to_end(&mut bytes));
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The error for a program that ended or was too slow, with the last lines of this start.
    pub(crate) fn failure(&self, what: String) -> Error {
        let text = self.text();
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n");
        Error::Failed { what, tail: if tail.is_empty() { "(it said nothing)".to_owned() } else { tail } }
    }
}
