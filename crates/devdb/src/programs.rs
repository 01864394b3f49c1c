//! Finds an installed Postgres, on the PATH or where packages install it.

use std::cmp::Reverse;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;

/// The oldest supported major version.
const OLDEST_MAJOR: u32 = 15;

/// Where packages install Postgres outside the PATH: a folder, the prefix of its subfolders, and the folder in each of them.
const KNOWN: [(&str, &str, &str); 6] = [
    ("/usr/lib/postgresql", "", "bin"),
    ("/usr/lib64/pgsql", "postgresql-", "bin"),
    ("/usr", "pgsql-", "bin"),
    ("/usr/local", "pgsql", "bin"),
    ("/opt/homebrew/opt", "postgresql", "bin"),
    ("/usr/local/opt", "postgresql", "bin"),
];

/// The programs of one installed Postgres, 15 or newer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Programs {
    folder: PathBuf,
    major: u32,
}

impl Programs {
    /// The first on the PATH, or else the newest where packages install them.
    pub fn find() -> Result<Programs, Error> {
        Programs::find_in(&folders())
    }

    /// The first in `folders`, in the given order.
    pub fn find_in(folders: &[PathBuf]) -> Result<Programs, Error> {
        let mut too_old: Option<Programs> = None;
        for programs in folders.iter().filter_map(|folder| Programs::in_folder(folder)) {
            if programs.major >= OLDEST_MAJOR {
                return Ok(programs);
            }
            if too_old.as_ref().is_none_or(|other| other.major < programs.major) {
                too_old = Some(programs);
            }
        }
        let seen = too_old.map(|programs| format!("{} in `{}`", programs.major, programs.folder.display()));
        Err(Error::NotFound { seen })
    }

    /// The programs of major version `major`, which created the data in `dir`: Postgres cannot open the data of another one.
    pub(crate) fn for_data(dir: &Path, major: u32) -> Result<Programs, Error> {
        let folders = folders();
        // If no Postgres is installed at all, that is the error, rather than a missing version.
        Programs::find_in(&folders)?;
        folders
            .iter()
            .filter_map(|folder| Programs::in_folder(folder))
            .find(|programs| programs.major == major)
            .ok_or_else(|| Error::OtherMajor { dir: dir.to_owned(), major })
    }

    /// The folder that contains them.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The major version of Postgres.
    pub fn major(&self) -> u32 {
        self.major
    }

    /// The path of one program, as in `path("psql")`.
    pub fn path(&self, program: &str) -> PathBuf {
        self.folder.join(program)
    }

    fn in_folder(folder: &Path) -> Option<Programs> {
        let has_all = |folder: &Path| {
            let mut programs = ["initdb", "pg_ctl", "postgres"].iter();
            programs.all(|program| folder.join(program).is_file())
        };
        if !has_all(folder) {
            return None;
        }
        // The PATH often has links to some of the programs only. The folder they point to has all of them.
        let real = fs::canonicalize(folder.join("postgres")).ok()?;
        let folder = real.parent().filter(|real| has_all(real)).unwrap_or(folder);
        let version = Command::new(folder.join("postgres")).arg("-V").output().ok()?;
        let major = major_in(&String::from_utf8_lossy(&version.stdout))?;
        Some(Programs { folder: folder.to_owned(), major })
    }
}

/// The folders of the PATH, then the known folders, the newest version first.
fn folders() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> =
        std::env::split_paths(&path).filter(|folder| folder.is_absolute()).collect();

    let mut known = Vec::new();
    for (parent, prefix, last) in KNOWN {
        for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(prefix) {
                known.push((number_in(&name).unwrap_or(0), entry.path().join(last)));
            }
        }
    }
    known.sort_by_key(|(version, _)| Reverse(*version));
    folders.extend(known.into_iter().map(|(_, folder)| folder));
    folders
}

/// The major version in what `postgres -V` prints: `postgres (PostgreSQL) 15.18 (Debian …)`.
fn major_in(version: &str) -> Option<u32> {
    number_in(version.split_once(')')?.1)
}

/// The first whole number in `text`.
fn number_in(text: &str) -> Option<u32> {
    let start = text.find(|c: char| c.is_ascii_digit())?;
    let digits = &text[start..];
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{major_in, number_in};

    #[test]
    fn the_major_version_is_read_from_every_kind_of_release() {
        assert_eq!(major_in("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n"), Some(15));
        assert_eq!(major_in("postgres (PostgreSQL) 17beta1\n"), Some(17));
        assert_eq!(major_in("postgres (PostgreSQL) 19devel\n"), Some(19));
        assert_eq!(major_in("no such program"), None);
    }

    #[test]
    fn versions_in_folder_names_sort_as_numbers() {
        assert_eq!(number_in("postgresql@9"), Some(9));
        assert_eq!(number_in("pgsql-16"), Some(16));
        assert_eq!(number_in("pgsql"), None);
    }
}
