//! A server runs as long as its one owner.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use pitwheel_devdb::{Error, Options, Server, running};
use pitwheel_testkit::{ScratchFolder, block_until, is_alive, is_listening, psql};
use support::{Owner, Result, postmaster};

#[test]
fn owner_process() -> Result {
    support::own_until_killed()
}

#[test]
fn a_server_has_its_database_and_its_settings() -> Result {
    let server = Server::start(Options::temporary().setting("work_mem", "7MB"))?;

    let shown = |name: &str| psql(&server.url(), &format!("show {name}"));
    assert_eq!(psql(&server.url(), "select current_database() || ' ' || current_user")?, "pitwheel postgres");
    assert_eq!(shown("fsync")?, "on");
    assert_eq!(shown("max_connections")?, "200");
    assert_eq!(shown("work_mem")?, "7MB");
    assert_eq!(shown("listen_addresses")?, "127.0.0.1");
    assert_eq!(shown("port")?, server.port().to_string());

    let overridden = Server::start(Options::temporary().setting("max_connections", "33"))?;
    assert_eq!(psql(&overridden.url(), "show max_connections")?, "33");
    Ok(())
}

#[test]
fn a_temporary_server_leaves_nothing_behind() -> Result {
    let stopped = Server::start(Options::temporary())?;
    let dropped = Server::start(Options::temporary())?;
    let mut crashed = Server::start(Options::temporary())?;
    crashed.crash()?;
    let servers = [&stopped, &dropped, &crashed].map(|server| (server.dir().to_owned(), server.url()));

    stopped.stop()?;
    drop(dropped);
    drop(crashed);

    for (dir, url) in servers {
        assert!(!dir.exists(), "{} is left", dir.display());
        assert!(!is_listening(&url));
    }
    Ok(())
}

#[test]
fn a_temporary_server_does_not_remove_other_files() -> Result {
    let scratch = ScratchFolder::create()?;
    fs::write(scratch.path().join("thesis.txt"), "important")?;

    let options = Options { temporary: true, ..Options::kept(scratch.path()) };
    assert!(matches!(Server::start(options), Err(Error::NotEmpty { .. })));
    assert!(scratch.path().join("thesis.txt").exists());
    Ok(())
}

#[test]
fn a_kept_server_starts_again_with_its_data_and_port() -> Result {
    let scratch = ScratchFolder::missing();
    let server = Server::start(Options::kept(scratch.path()))?;
    let url = server.url();
    psql(&url, "create table kept as select 42 as answer")?;
    server.stop()?;
    assert_eq!(running(scratch.path()), None);

    let server = Server::start(Options::kept(scratch.path()))?;
    assert_eq!(server.url(), url);
    assert_eq!(psql(&url, "select answer from kept")?, "42");
    Ok(())
}

#[test]
fn a_dropped_database_is_created_again() -> Result {
    let scratch = ScratchFolder::missing();
    let server = Server::start(Options::kept(scratch.path()))?;
    psql(&server.url().replace("/pitwheel", "/postgres"), "drop database pitwheel")?;
    server.stop()?;

    let server = Server::start(Options::kept(scratch.path()))?;
    assert_eq!(psql(&server.url(), "select 1")?, "1");
    Ok(())
}

#[test]
fn a_server_whose_port_is_taken_gets_another() -> Result {
    let scratch = ScratchFolder::missing();
    let server = Server::start(Options::kept(scratch.path()))?;
    let port = server.port();
    server.stop()?;
    let holder = std::net::TcpListener::bind(("127.0.0.1", port))?;

    let server = Server::start(Options::kept(scratch.path()))?;
    assert_ne!(server.port(), port);
    assert_eq!(psql(&server.url(), "select 1")?, "1");
    drop(holder);
    Ok(())
}

#[test]
fn a_second_owner_is_refused_with_the_url_of_the_server() -> Result {
    let scratch = ScratchFolder::missing();
    let owner = Owner::spawn(Some(scratch.path()))?;

    assert_eq!(running(scratch.path()), Some(owner.url.clone()));
    let Err(error) = Server::start(Options::kept(scratch.path())) else {
        return Err("the folder has two owners".into());
    };
    assert!(matches!(&error, Error::Owned { url: Some(url), .. } if *url == owner.url));
    assert!(error.to_string().contains(&owner.url), "{error}");
    assert_eq!(psql(&owner.url, "select 1")?, "1");
    Ok(())
}

#[test]
fn a_server_stops_when_its_owner_is_killed() -> Result {
    let mut owner = Owner::spawn(None)?;
    let pid = postmaster(&owner.dir)?;
    assert!(is_alive(pid));

    owner.process.kill()?;

    block_until("the server has stopped", || !is_alive(pid))?;
    block_until("its folder is removed", || !owner.dir.exists())?;
    assert!(!is_listening(&owner.url));
    Ok(())
}

#[test]
fn the_server_of_a_killed_owner_can_be_taken_over_at_once() -> Result {
    let scratch = ScratchFolder::missing();
    let mut owner = Owner::spawn(Some(scratch.path()))?;
    psql(&owner.url, "create table kept as select 42 as answer")?;
    owner.process.kill()?;

    let server = Server::start(Options::kept(scratch.path()))?;
    assert_eq!(server.url(), owner.url);
    assert_eq!(running(scratch.path()), Some(server.url()));
    assert_eq!(psql(&server.url(), "select answer from kept")?, "42");
    Ok(())
}

#[test]
fn no_server_runs_in_a_folder_that_does_not_exist() {
    assert_eq!(running(Path::new("/nowhere/at/all")), None);
}

#[test]
fn a_server_starts_in_a_folder_whose_path_is_too_long_for_a_socket() -> Result {
    let scratch = ScratchFolder::missing();
    let server =
        Server::start(Options::kept(scratch.path().join("a folder, \"quoted\"").join("deep".repeat(30))))?;

    assert_eq!(psql(&server.url(), "show unix_socket_directories")?, "");
    server.stop()?;
    Ok(())
}

#[test]
fn a_folder_that_postgres_cannot_reach_is_refused_with_its_name() -> Result {
    let scratch = ScratchFolder::create()?;
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o700))?;
    let dir = scratch.path().join("dev");

    match Server::start(Options::kept(&dir)) {
        Err(error @ Error::Unreachable { .. }) => assert!(error.to_string().contains("/dev`"), "{error}"),
        // For a user other than root Postgres runs as that user and reaches all its folders.
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
                    Server::start(Options::temporary()).map(|server| psql(&server.url(), "select 1").is_ok())
                })
            })
            .collect();
        for start in starts {
            assert!(start.join().map_err(|_| "a start panicked")??);
        }
        Ok(())
    })
}
