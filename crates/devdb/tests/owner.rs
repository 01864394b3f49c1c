//! A server lives exactly as long as its one owner.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use pitwheel_devdb::{Error, Options, Server, running};
use support::{Owner, Result, Scratch, answers, eventually, is_alive, port_of, postmaster, query};

#[test]
fn owner_process() -> Result {
    support::own_until_killed()
}

#[test]
fn a_server_answers_with_its_database_and_settings() -> Result {
    let server = Server::start(Options::temporary().setting("work_mem", "7MB"))?;

    let shown = |name: &str| query(&server.url(), &format!("show {name}"));
    assert_eq!(
        query(&server.url(), "select current_database() || ' ' || current_user")?,
        "pitwheel postgres"
    );
    assert_eq!(shown("fsync")?, "on");
    assert_eq!(shown("max_connections")?, "200");
    assert_eq!(shown("work_mem")?, "7MB");
    assert_eq!(shown("listen_addresses")?, "127.0.0.1");
    assert_eq!(shown("port")?, server.port().to_string());

    let overridden = Server::start(Options::temporary().setting("max_connections", "33"))?;
    assert_eq!(query(&overridden.url(), "show max_connections")?, "33");
    Ok(())
}

#[test]
fn a_temporary_server_leaves_nothing_behind() -> Result {
    let stopped = Server::start(Options::temporary())?;
    let dropped = Server::start(Options::temporary())?;
    let mut crashed = Server::start(Options::temporary())?;
    crashed.crash()?;
    let traces = [&stopped, &dropped, &crashed].map(|server| (server.dir().to_owned(), server.port()));

    stopped.stop()?;
    drop(dropped);
    drop(crashed);

    for (dir, port) in traces {
        assert!(!dir.exists(), "{} is left", dir.display());
        assert!(!answers(port));
    }
    Ok(())
}

#[test]
fn a_temporary_server_removes_nobodys_files() -> Result {
    let scratch = Scratch::new();
    fs::create_dir(&scratch.0)?;
    fs::write(scratch.0.join("thesis.txt"), "dear")?;

    let options = Options { temporary: true, ..Options::kept(&scratch.0) };
    assert!(matches!(Server::start(options), Err(Error::NotEmpty { .. })));
    assert!(scratch.0.join("thesis.txt").exists());
    Ok(())
}

#[test]
fn a_kept_server_comes_back_with_its_data_and_port() -> Result {
    let scratch = Scratch::new();
    let server = Server::start(Options::kept(&scratch.0))?;
    let url = server.url();
    query(&url, "create table kept as select 42 as answer")?;
    server.stop()?;
    assert_eq!(running(&scratch.0), None);

    let server = Server::start(Options::kept(&scratch.0))?;
    assert_eq!(server.url(), url);
    assert_eq!(query(&url, "select answer from kept")?, "42");
    Ok(())
}

#[test]
fn a_dropped_database_is_created_again() -> Result {
    let scratch = Scratch::new();
    let server = Server::start(Options::kept(&scratch.0))?;
    query(&server.url().replace("/pitwheel", "/postgres"), "drop database pitwheel")?;
    server.stop()?;

    let server = Server::start(Options::kept(&scratch.0))?;
    assert_eq!(query(&server.url(), "select 1")?, "1");
    Ok(())
}

#[test]
fn a_taken_port_is_left_to_its_holder() -> Result {
    let scratch = Scratch::new();
    let server = Server::start(Options::kept(&scratch.0))?;
    let port = server.port();
    server.stop()?;
    let holder = std::net::TcpListener::bind(("127.0.0.1", port))?;

    let server = Server::start(Options::kept(&scratch.0))?;
    assert_ne!(server.port(), port);
    assert_eq!(query(&server.url(), "select 1")?, "1");
    drop(holder);
    Ok(())
}

#[test]
fn a_second_owner_is_refused_and_told_the_url() -> Result {
    let scratch = Scratch::new();
    let owner = Owner::spawn(Some(&scratch.0))?;

    assert_eq!(running(&scratch.0), Some(owner.url.clone()));
    let Err(error) = Server::start(Options::kept(&scratch.0)) else {
        return Err("two owners".into());
    };
    assert!(matches!(&error, Error::Owned { url: Some(url), .. } if *url == owner.url));
    assert!(error.to_string().contains(&owner.url), "{error}");
    assert_eq!(query(&owner.url, "select 1")?, "1");
    Ok(())
}

#[test]
fn a_server_stops_when_its_owner_is_killed() -> Result {
    let mut owner = Owner::spawn(None)?;
    let pid = postmaster(&owner.dir)?;
    assert!(is_alive(pid));

    owner.kill()?;

    eventually("the server has stopped", || !is_alive(pid))?;
    eventually("its folder is removed", || !owner.dir.exists())?;
    assert!(!answers(port_of(&owner.url)?));
    Ok(())
}

#[test]
fn a_killed_owners_server_is_taken_over_at_once() -> Result {
    let scratch = Scratch::new();
    let mut owner = Owner::spawn(Some(&scratch.0))?;
    query(&owner.url, "create table kept as select 42 as answer")?;
    owner.kill()?;

    let server = Server::start(Options::kept(&scratch.0))?;
    assert_eq!(server.url(), owner.url);
    assert_eq!(running(&scratch.0), Some(server.url()));
    assert_eq!(query(&server.url(), "select answer from kept")?, "42");
    Ok(())
}

#[test]
fn nobody_runs_a_folder_that_is_not_there() {
    assert_eq!(running(Path::new("/nowhere/at/all")), None);
}

#[test]
fn a_folder_too_deep_for_a_socket_still_serves() -> Result {
    let scratch = Scratch::new();
    let server =
        Server::start(Options::kept(scratch.0.join("a folder, \"quoted\"").join("deep".repeat(30))))?;

    assert_eq!(query(&server.url(), "show unix_socket_directories")?, "");
    server.stop()?;
    Ok(())
}

#[test]
fn a_folder_closed_to_postgres_is_refused_by_name() -> Result {
    let scratch = Scratch::new();
    fs::create_dir(&scratch.0)?;
    fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o700))?;
    let dir = scratch.0.join("dev");

    match Server::start(Options::kept(&dir)) {
        Err(error @ Error::Unreachable { .. }) => assert!(error.to_string().contains("/dev`"), "{error}"),
        // A plain user runs Postgres as itself and reaches all its folders.
        Ok(_) => assert_ne!(fs::metadata(&dir)?.uid(), 0),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

#[test]
fn many_servers_start_at_once() -> Result {
    std::thread::scope(|scope| {
        let starts: Vec<_> = (0..6)
            .map(|_| {
                scope.spawn(|| {
                    Server::start(Options::temporary()).map(|server| query(&server.url(), "select 1").is_ok())
                })
            })
            .collect();
        for start in starts {
            assert!(start.join().map_err(|_| "a start panicked")??);
        }
        Ok(())
    })
}
