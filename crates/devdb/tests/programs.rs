//! An installed Postgres is found, and a missing one is asked for in one sentence.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use pitwheel_devdb::{Error, Options, Programs, Server};
use support::{Result, Scratch};

/// A folder with a Postgres that says it is `version`.
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
fn a_missing_postgres_is_asked_for_in_one_sentence() {
    let found = Programs::find_in(&[PathBuf::from("/nowhere"), PathBuf::from("/etc")]);

    let message = found.err().map(|error| error.to_string()).unwrap_or_default();
    assert_eq!(
        message,
        "no Postgres 15 or newer found: install one (Debian and Ubuntu: `apt-get install postgresql`; \
         Fedora: `dnf install postgresql-server`; macOS: `brew install postgresql`)"
    );
}

#[test]
fn an_old_postgres_is_passed_over_and_named() -> Result {
    let scratch = Scratch::new();
    let old = install(&scratch.0.join("old"), "14.9")?;
    let new = install(&scratch.0.join("new"), "17.2 (Debian 17.2-1)")?;

    let message = Programs::find_in(std::slice::from_ref(&old)).err().map(|error| error.to_string());
    assert!(message.is_some_and(|message| message.contains(&format!("(only 14 in `{}`)", old.display()))));

    let found = Programs::find_in(&[old, new.clone()])?;
    assert_eq!((found.folder(), found.major()), (new.as_path(), 17));
    Ok(())
}

#[test]
fn half_an_installation_is_passed_over() -> Result {
    let scratch = Scratch::new();
    let folder = install(&scratch.0.join("client"), "17.2")?;
    fs::remove_file(folder.join("initdb"))?;

    assert!(matches!(Programs::find_in(&[folder]), Err(Error::NotFound { seen: None })));
    Ok(())
}

#[test]
fn data_of_a_postgres_that_is_gone_are_left_alone() -> Result {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.0.join("data"))?;
    fs::write(scratch.0.join("data/PG_VERSION"), "9999\n")?;

    let error = Server::start(Options::kept(&scratch.0)).err();
    assert!(matches!(error, Some(Error::OtherMajor { major: 9999, .. })));
    Ok(())
}

#[test]
fn links_are_followed_to_where_all_programs_are() -> Result {
    let scratch = Scratch::new();
    let real = fs::canonicalize(install(&scratch.0.join("real"), "16.1")?)?;
    let links = scratch.0.join("links");
    fs::create_dir(&links)?;
    for program in ["initdb", "pg_ctl", "postgres"] {
        std::os::unix::fs::symlink(real.join(program), links.join(program))?;
    }

    assert_eq!(Programs::find_in(&[links])?.folder(), real);
    Ok(())
}
