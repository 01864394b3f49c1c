//! An installed Postgres is found. If there is none, one sentence tells what to install.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use pitwheel_devdb::{Error, Options, Programs, Server};
use pitwheel_testkit::ScratchFolder;

type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// A folder with programs that print `version` as the version of Postgres.
fn install(folder: &Path, version: &str) -> Result<PathBuf> {
    fs::create_dir_all(folder)?;
    for program in ["initdb", "pg_ctl", "postgres"] {
        let path = folder.join(program);
        fs::write(&path, format!("#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(folder.to_owned())
}

#[test]
fn a_missing_postgres_is_reported_with_what_to_install() {
    let found = Programs::find_in(&[PathBuf::from("/nowhere"), PathBuf::from("/etc")]);

    let message = found.err().map(|error| error.to_string()).unwrap_or_default();
    assert_eq!(
        message,
        "no Postgres 15 or newer found: install one (Debian and Ubuntu: `apt-get install postgresql`; \
         Fedora: `dnf install postgresql-server`; macOS: `brew install postgresql`)"
    );
}

#[test]
fn a_postgres_that_is_too_old_is_skipped_and_reported() -> Result {
    let scratch = ScratchFolder::missing();
    let old = install(&scratch.path().join("old"), "14.9")?;
    let new = install(&scratch.path().join("new"), "17.2 (Debian 17.2-1)")?;

    let message = Programs::find_in(std::slice::from_ref(&old)).err().map(|error| error.to_string());
    assert!(message.is_some_and(|message| message.contains(&format!("(only 14 in `{}`)", old.display()))));

    let found = Programs::find_in(&[old, new.clone()])?;
    assert_eq!((found.folder(), found.major()), (new.as_path(), 17));
    Ok(())
}

#[test]
fn an_incomplete_installation_is_skipped() -> Result {
    let scratch = ScratchFolder::missing();
    let folder = install(&scratch.path().join("client"), "17.2")?;
    fs::remove_file(folder.join("initdb"))?;

    assert!(matches!(Programs::find_in(&[folder]), Err(Error::NotFound { seen: None })));
    Ok(())
}

#[test]
fn data_of_a_missing_postgres_version_is_not_touched() -> Result {
    let scratch = ScratchFolder::missing();
    fs::create_dir_all(scratch.path().join("data"))?;
    fs::write(scratch.path().join("data/PG_VERSION"), "9999\n")?;

    let error = Server::start(Options::kept(scratch.path())).err();
    assert!(matches!(error, Some(Error::OtherMajor { major: 9999, .. })));
    Ok(())
}

#[test]
fn links_are_followed_to_the_folder_of_all_programs() -> Result {
    let scratch = ScratchFolder::missing();
    let real = fs::canonicalize(install(&scratch.path().join("real"), "16.1")?)?;
    let links = scratch.path().join("links");
    fs::create_dir(&links)?;
    for program in ["initdb", "pg_ctl", "postgres"] {
        std::os::unix::fs::symlink(real.join(program), links.join(program))?;
    }

    assert_eq!(Programs::find_in(&[links])?.folder(), real);
    Ok(())
}
