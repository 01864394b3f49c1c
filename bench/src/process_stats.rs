//! Memory of a process, and CPU time of a Postgres server, as Linux counts them.

use std::fs;

use anyhow::{Context, Result};

use crate::session::Session;

/// Microseconds of one unit of CPU time in `/proc`: Linux always counts hundredths of a second there.
const TICK_US: f64 = 10_000.0;

/// Resident memory in MiB.
pub(crate) fn resident_memory(pid: u32) -> Result<f64> {
    memory(pid, "VmRSS:")
}

/// The highest resident memory so far, in MiB.
pub(crate) fn peak_memory(pid: u32) -> Result<f64> {
    memory(pid, "VmHWM:")
}

fn memory(pid: u32, name: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib: f64 =
        line.with_context(|| format!("no {name} in the status"))?.trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1024.0)
}

/// CPU time of all processes of the server so far, in microseconds, without that of the sessions of one application.
/// The server must run on this machine, and the session must be that of a superuser.
pub(crate) async fn server_cpu_us(session: &Session, without: &str) -> Result<f64> {
    let sql = "select split_part(pg_read_file('postmaster.pid'), e'\\n', 1)::int,
        array(select pid from pg_stat_activity where application_name = $1)";
    let row = session.client.query_one(sql, &[&without]).await?;
    let (postmaster, excluded): (i32, Vec<i32>) = (row.get(0), row.get(1));
    let processes = fs::read_dir("/proc")?.flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        // A process that has ended since the folder was read is counted by its parent.
        Process::read(pid)
    });
    let counted = processes.filter(|process| !excluded.contains(&process.pid)).map(|process| match process {
        _ if process.pid == postmaster => process.own + process.ended_children,
        _ if process.parent == postmaster => process.own,
        _ => 0.0,
    });
    Ok(counted.sum::<f64>() * TICK_US)
}

/// A process, and its CPU time in ticks.
struct Process {
    pid: i32,
    parent: i32,
    own: f64,
    ended_children: f64,
}

impl Process {
    fn read(pid: i32) -> Option<Process> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name of the program may contain anything; the fields after it begin with the state.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<f64>().ok();
        Some(Process {
            pid,
            parent: fields.get(1)?.parse().ok()?,
            own: number(11)? + number(12)?,
            ended_children: number(13)? + number(14)?,
        })
    }
}
