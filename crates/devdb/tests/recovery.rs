//! Whatever was killed, and at whatever moment: the next start recovers.

mod support;

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use pitwheel_devdb::{Error, Options, Server, running};
use pitwheel_testkit::{ScratchFolder, block_until, is_alive, psql, signal};
use support::{Owner, Result, as_postgres, postmaster, spawn_owner};

#[test]
fn owner_process() -> Result {
    support::own_until_killed()
}

#[test]
fn a_crashed_server_starts_again_with_all_committed_data() -> Result {
    let mut server = Server::start(Options::temporary())?;
    let url = server.url();
    psql(&url, "create table kept as select 42 as answer")?;

    server.crash()?;
    assert!(psql(&url, "select 1").is_err());
    assert_eq!(running(server.dir()), None);
    server.start_again()?;

    assert_eq!(server.url(), url);
    assert_eq!(psql(&url, "select answer from kept")?, "42");
    let log = fs::read_to_string(server.dir().join("postgres.log"))?;
    assert!(log.contains("automatic recovery in progress"), "the server did not crash:\n{log}");

    server.start_again()?;
    assert_eq!(psql(&url, "select answer from kept")?, "42");
    Ok(())
}

#[test]
fn a_server_killed_with_open_sessions_starts_again() -> Result {
    let mut server = Server::start(Options::temporary())?;
    let url = server.url();
    psql(&url, "create table kept as select 42 as answer")?;
    let mut busy = Command::new(server.programs().path("psql"))
        .args(["-X", "-c", "select pg_sleep(600)", &url])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    block_until("the session is busy", || {
        psql(&url, "select count(*) from pg_stat_activity where query = 'select pg_sleep(600)'")
            .is_ok_and(|count| count == "1")
    })?;

    let pid = postmaster(server.dir())?;
    signal("KILL", pid)?;
    block_until("the postmaster is gone", || !is_alive(pid))?;
    server.crash()?;
    server.start_again()?;

    assert_eq!(psql(&url, "select answer from kept")?, "42");
    busy.wait()?;
    Ok(())
}

#[test]
fn a_stale_pid_file_does_not_prevent_a_start() -> Result {
    let scratch = ScratchFolder::missing();
    Server::start(Options::kept(scratch.path()))?.stop()?;
    // A process of the same user that is not a Postgres. It ends with this test, because its standard input does.
    let mut other = as_postgres(scratch.path(), "cat")?.stdin(Stdio::piped()).spawn()?;
    let dead = {
        let mut process = Command::new("true").spawn()?;
        process.wait()?;
        process.id()
    };

    for pid in [other.id(), dead] {
        let file = scratch.path().join("data/postmaster.pid");
        let data = fs::canonicalize(scratch.path().join("data"))?;
        fs::write(&file, format!("{pid}\n{}\n1\n5432\n\n127.0.0.1\n1 1\nready\n", data.display()))?;
        let server = Server::start(Options::kept(scratch.path()))?;
        assert_eq!(psql(&server.url(), "select 1")?, "1");
        server.stop()?;
    }

    assert!(is_alive(other.id()), "a process that is not a Postgres was stopped");
    other.kill()?;
    other.wait()?;
    Ok(())
}

#[test]
fn an_empty_pid_file_does_not_prevent_a_start() -> Result {
    let scratch = ScratchFolder::missing();
    Server::start(Options::kept(scratch.path()))?.stop()?;
    fs::write(scratch.path().join("data/postmaster.pid"), "")?;

    let server = Server::start(Options::kept(scratch.path()))?;
    assert_eq!(psql(&server.url(), "select 1")?, "1");
    Ok(())
}

#[test]
fn a_server_without_an_owner_is_stopped_and_started_again() -> Result {
    let scratch = ScratchFolder::missing();
    let server = Server::start(Options::kept(scratch.path()))?;
    let (url, port, pg_ctl) = (server.url(), server.port(), server.programs().path("pg_ctl"));
    server.stop()?;
    let data = scratch.path().join("data");
    let started = as_postgres(scratch.path(), pg_ctl)?
        .args(["start", "-w", "-s", "-l", "/dev/null", "-o", &format!("-p {port} -k ''"), "-D"])
        .arg(&data)
        .status()?;
    assert!(started.success());
    let orphan = postmaster(scratch.path())?;
    psql(&url, "create table kept as select 42 as answer")?;

    let server = Server::start(Options::kept(scratch.path()))?;
    assert!(!is_alive(orphan));
    assert_eq!(server.url(), url);
    assert_eq!(psql(&url, "select answer from kept")?, "42");
    Ok(())
}

#[test]
fn a_server_whose_supervisor_was_killed_still_stops() -> Result {
    let mut server = Server::start(Options::temporary())?;
    let pid = postmaster(server.dir())?;
    let parents = fs::read_to_string(format!("/proc/{pid}/status"));
    let Some(supervisor) = parents.ok().and_then(|status| {
        status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse::<u32>().ok())
    }) else {
        return Ok(()); // Only Linux has the parent of a process in /proc.
    };
    signal("KILL", supervisor)?;
    server.crash()?;
    assert!(!is_alive(pid));
    server.start_again()?;
    assert_eq!(psql(&server.url(), "select 1")?, "1");
    Ok(())
}

#[test]
fn an_interrupted_initdb_is_run_again() -> Result {
    let scratch = ScratchFolder::missing();
    let left = scratch.path().join("data.new-0123456789abcdef");
    fs::create_dir_all(left.join("base"))?;
    fs::write(left.join("PG_VERSION"), "15\n")?;

    let server = Server::start(Options::kept(scratch.path()))?;
    assert_eq!(psql(&server.url(), "select 1")?, "1");
    assert!(!left.exists());
    Ok(())
}

#[test]
fn an_owner_killed_at_any_moment_of_its_start_leaves_a_usable_folder() -> Result {
    let scratch = ScratchFolder::missing();
    // From the middle of initdb to the middle of the first start.
    for milliseconds in [30, 120, 300, 600, 900, 1200, 1500] {
        let mut owner = spawn_owner(scratch.path(), Stdio::null())?;
        std::thread::sleep(Duration::from_millis(milliseconds)); // the moment of the kill
        owner.kill()?;
    }

    let server = Server::start(Options::kept(scratch.path()))?;
    assert_eq!(psql(&server.url(), "select 1")?, "1");
    Ok(())
}

#[test]
fn a_server_that_cannot_start_shows_its_log() -> Result {
    let options = Options::temporary().setting("no_such_setting", "1");
    let dir = options.dir.clone();

    let Err(error) = Server::start(options) else {
        return Err("it started".into());
    };
    assert!(matches!(error, Error::Failed { .. }));
    assert!(
        error.to_string().contains("unrecognized configuration parameter \"no_such_setting\""),
        "{error}"
    );
    assert!(!dir.exists());
    Ok(())
}

#[test]
fn a_killed_owner_no_longer_owns_the_folder() -> Result {
    let scratch = ScratchFolder::missing();
    let mut owner = Owner::spawn(Some(scratch.path()))?;
    owner.process.kill()?;

    assert_eq!(running(scratch.path()), None);
    Ok(())
}
