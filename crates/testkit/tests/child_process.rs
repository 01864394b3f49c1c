//! A child process ends with its owner, however the owner ends and whatever the child does.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use pitwheel_testkit::{ChildProcess, block_until, is_alive};

const OWNER: &str = "PITWHEEL_TESTKIT_OWNER";

fn spawn_sleep() -> Result<ChildProcess> {
    let mut sleep = Command::new("sleep");
    ChildProcess::spawn(sleep.arg("600"), Stdio::null(), Stdio::null())
}

/// The owner process of the other tests. Does nothing unless the environment variable is set. With `stopped`, it
/// stops each child as soon as it has started it.
#[test]
fn the_owner_process() -> Result<()> {
    let Some(owner) = std::env::var_os(OWNER) else {
        return Ok(());
    };
    let mut children = Vec::new();
    for _ in 0..10 {
        let child = spawn_sleep()?;
        if owner == "stopped" {
            child.signal("STOP")?;
        }
        children.push(child);
    }
    let pids: Vec<String> = children.iter().map(|child| child.id().to_string()).collect();
    println!("\nchildren: {}", pids.join(" "));
    loop {
        std::thread::park();
    }
}

/// Another process that owns children, `running` or `stopped`, and their process ids.
fn spawn_owner(children: &str) -> Result<(ChildProcess, Vec<u32>)> {
    let mut owner = ChildProcess::spawn_test("the_owner_process", [(OWNER, children)], Stdio::piped())?;
    for line in BufReader::new(owner.take_stdout()?).lines() {
        if let Some(pids) = line?.strip_prefix("children: ") {
            let pids = pids.split(' ').map(str::parse).collect::<Result<Vec<u32>, _>>()?;
            return Ok((owner, pids));
        }
    }
    Err(anyhow::anyhow!("the owner ended early"))
}

#[test]
fn a_child_ends_when_its_owner_is_interrupted_terminated_or_killed() -> Result<()> {
    for ending in ["INT", "TERM", "KILL"] {
        let (owner, children) = spawn_owner("running")?;
        assert!(children.iter().all(|&pid| is_alive(pid)));
        owner.signal(ending)?;
        block_until("the children end", || !children.iter().any(|&pid| is_alive(pid)))
            .with_context(|| format!("after SIG{ending}"))?;
    }
    Ok(())
}

#[test]
fn a_stopped_child_ends_with_its_owner() -> Result<()> {
    let (mut owner, children) = spawn_owner("stopped")?;
    owner.kill()?;
    block_until("the children end", || !children.iter().any(|&pid| is_alive(pid)))
}

#[test]
fn a_child_ends_whose_owner_was_killed_before_its_watcher_ran() -> Result<()> {
    let (owner, watcher_stdin) = UnixStream::pair()?;
    drop(owner);
    let mut shell = Command::new("/bin/sh");
    let script = include_str!("../src/end_with_owner.sh");
    shell.args(["-c", script, "pitwheel-child", "sleep", "600"]).stdin(OwnedFd::from(watcher_stdin));
    let mut child = shell.spawn()?;
    let ended = block_until("the child ends", || child.try_wait().is_ok_and(|ended| ended.is_some()));
    // If it has not.
    let _ = child.kill();
    child.wait()?;
    ended
}

#[test]
fn a_dropped_child_has_ended() -> Result<()> {
    let child = spawn_sleep()?;
    let pid = child.id();
    assert!(is_alive(pid));
    drop(child);
    assert!(!is_alive(pid));
    Ok(())
}

#[test]
fn a_child_has_the_arguments_environment_and_folder_of_its_command() -> Result<()> {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "echo \"$1 $PITWHEEL_WORD ${HOME-unset} $(pwd)\"; cat", "sh", "a b"]);
    command.env("PITWHEEL_WORD", "word").env_remove("HOME").current_dir("/");
    let mut child = ChildProcess::spawn(&command, Stdio::piped(), Stdio::null())?;
    let output = std::io::read_to_string(child.take_stdout()?)?;
    assert_eq!(output, "a b word unset /\n");
    assert!(child.wait()?.success());
    Ok(())
}
