//! Whatever was killed, and whenever: the next start puts it right.

mod support;

use std::fs;
use std::process::{Command, Stdio};

use pitwheel_devdb::{Error, Options, Server, running};
use support::{Owner, Result, Scratch, as_postgres, eventually, is_alive, postmaster, query, signal};

#[test]
fn owner_process() -> Result {
    support::own_until_killed()
}

#[test]
fn a_crashed_server_comes_back_with_what_was_committed() -> Result {
    let mut server = Server::start(Options::temporary())?;
    let url = server.url();
    query(&url, "create table kept as select 42 as answer")?;

    server.crash()?;
    assert!(query(&url, "select 1").is_err());
    assert_eq!(running(server.dir()), None);
    server.start_again()?;

    assert_eq!(server.url(), url);
    assert_eq!(query(&url, "select answer from kept")?, "42");
    let log = fs::read_to_string(server.dir().join("postgres.log"))?;
    assert!(log.contains("automatic recovery in progress"), "that was no crash:\n{log}");

    server.start_again()?;
    assert_eq!(query(&url, "select answer from kept")?, "42");
    Ok(())
}

#[test]
fn a_server_killed_with_its_sessions_open_comes_back() -> Result {
    let mut server = Server::start(Options::temporary())?;
    let url = server.url();
    query(&url, "create table kept as select 42 as answer")?;
    let mut busy = Command::new(server.programs().path("psql"))
        .args(["-X", "-c", "select pg_sleep(600)", &url])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    eventually("the session is busy", || {
        query(&url, "select count(*) from pg_stat_activity where query = 'select pg_sleep(600)'")
            .is_ok_and(|count| count == "1")
    })?;

    let pid = postmaster(server.dir())?;
    signal("KILL", pid)?;
    eventually("the postmaster is gone", || !is_alive(pid))?;
    server.crash()?;
    server.start_again()?;

    assert_eq!(query(&url, "select answer from kept")?, "42");
    busy.wait()?;
    Ok(())
}

#[test]
fn a_stale_pid_does_not_keep_a_server_down() -> Result {
    let scratch = Scratch::new();
    Server::start(Options::kept(&scratch.0))?.stop()?;
    let mut stranger = as_postgres(&scratch.0, "sleep")?.arg("600").spawn()?;
    let dead = {
        let mut process = Command::new("true").spawn()?;
        process.wait()?;
        process.id()
    };

    for pid in [stranger.id(), dead] {
        let file = scratch.0.join("data/postmaster.pid");
        let data = fs::canonicalize(scratch.0.join("data"))?;
        fs::write(&file, format!("{pid}\n{}\n1\n5432\n\n127.0.0.1\n1 1\nready\n", data.display()))?;
        let server = Server::start(Options::kept(&scratch.0))?;
        assert_eq!(query(&server.url(), "select 1")?, "1");
        server.stop()?;
    }

    assert!(is_alive(stranger.id()), "a stranger was stopped");
    stranger.kill()?;
    stranger.wait()?;
    Ok(())
}

#[test]
fn an_empty_pid_file_does_not_keep_a_server_down() -> Result {
    let scratch = Scratch::new();
    Server::start(Options::kept(&scratch.0))?.stop()?;
    fs::write(scratch.0.join("data/postmaster.pid"), "")?;

    let server = Server::start(Options::kept(&scratch.0))?;
    assert_eq!(query(&server.url(), "select 1")?, "1");
    Ok(())
}

#[test]
fn a_server_that_nobody_owns_is_stopped_and_started_anew() -> Result {
    let scratch = Scratch::new();
    let server = Server::start(Options::kept(&scratch.0))?;
    let (url, port, pg_ctl) = (server.url(), server.port(), server.programs().path("pg_ctl"));
    server.stop()?;
    let data = scratch.0.join("data");
    let started = as_postgres(&scratch.0, pg_ctl)?
        .args(["start", "-w", "-s", "-l", "/dev/null", "-o", &format!("-p {port} -k ''"), "-D"])
        .arg(&data)
        .status()?;
    assert!(started.success());
    let orphan = postmaster(&scratch.0)?;
    query(&url, "create table kept as select 42 as answer")?;

    let server = Server::start(Options::kept(&scratch.0))?;
    assert!(!is_alive(orphan));
    assert_eq!(server.url(), url);
    assert_eq!(query(&url, "select answer from kept")?, "42");
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
        return Ok(()); // Only Linux says who its parent is without more ado.
    };
    signal("KILL", supervisor)?;
    server.crash()?;
    assert!(!is_alive(pid));
    server.start_again()?;
    assert_eq!(query(&server.url(), "select 1")?, "1");
    Ok(())
}

#[test]
fn half_an_initdb_is_done_again() -> Result {
    let scratch = Scratch::new();
    let left = scratch.0.join("data.new-0123456789abcdef");
    fs::create_dir_all(left.join("base"))?;
    fs::write(left.join("PG_VERSION"), "15\n")?;

    let server = Server::start(Options::kept(&scratch.0))?;
    assert_eq!(query(&server.url(), "select 1")?, "1");
    assert!(!left.exists());
    Ok(())
}

#[test]
fn an_owner_killed_at_any_moment_of_its_start_leaves_a_folder_that_starts() -> Result {
    let scratch = Scratch::new();
    // From the middle of initdb to the middle of the first start.
    for milliseconds in [30, 120, 300, 600, 900, 1200, 1500] {
        let mut owner = Command::new(std::env::current_exe()?)
            .args(["--exact", "owner_process", "--nocapture"])
            .env(support::OWNER, &scratch.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()?;
        std::thread::sleep(std::time::Duration::from_millis(milliseconds)); // the moment of the kill
        owner.kill()?;
        owner.wait()?;
    }

    let server = Server::start(Options::kept(&scratch.0))?;
    assert_eq!(query(&server.url(), "select 1")?, "1");
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
fn a_killed_owner_is_forgotten() -> Result {
    let scratch = Scratch::new();
    let mut owner = Owner::spawn(Some(&scratch.0))?;
    owner.kill()?;

    assert_eq!(running(&scratch.0), None);
    Ok(())
}
