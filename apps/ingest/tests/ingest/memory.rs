//! The memory of a load does not depend on its file.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use pitwheel_testkit::{ChildProcess, ScratchFolder};

use crate::support::{TestIngest, entries, lane};

const MIB: usize = 1024 * 1024;
/// How much more memory a file of one line of 100 MiB may take than a small file: batches and buffers, and what the allocator keeps.
const MORE_MAX_KIB: u64 = 32 * 1024;

/// The most memory that the process has had so far, in KiB; `None` when it has ended.
fn peak(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

/// Uploads and loads a file in a process of its own. Returns its peak memory in KiB, its exit code and its messages.
async fn load(test: &TestIngest, file: &Path) -> Result<(u64, Option<i32>, String)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pitwheel-ingest"));
    command.arg("upload").arg(file).args(["--module", "travel", "--type", "flights", "--year", "2025"]);
    command.env("DATABASE_URL", test.db.url()).env("PITWHEEL_INGEST_UPLOADS", test.folder.path());
    let mut process = ChildProcess::spawn(&command, Stdio::null(), Stdio::piped())?;
    let (id, mut most) = (process.id(), 0);
    while !process.has_ended()? {
        most = most.max(peak(id).unwrap_or_default());
        tokio::time::sleep(Duration::from_millis(5)).await; // between two looks
    }
    let mut messages = String::new();
    process.take_stderr()?.read_to_string(&mut messages)?;
    Ok((most, process.wait()?.code(), messages))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_of_a_hundred_megabytes_is_refused_in_bounded_memory() -> Result<()> {
    let test = TestIngest::new().await?;
    let files = ScratchFolder::create()?;
    let small = files.path().join("small.csv");
    std::fs::write(&small, entries(&["1", "2"]))?;
    let (usual, code, messages) = load(&test, &small).await?;
    assert_eq!(code, Some(0), "{messages}");

    let large = files.path().join("large.csv");
    let mut file = File::create(&large).context("no file")?;
    file.write_all(entries(&["3"]).as_bytes())?;
    for _ in 0..100 {
        file.write_all(&vec![b'x'; MIB])?;
    }
    drop(file);
    let (most, code, messages) = load(&test, &large).await?;
    assert_eq!(code, Some(1), "{messages}");
    assert!(messages.contains("line 3 begins a row of more than 1048576 bytes"), "{messages}");
    assert!(usual > 0 && most < usual + MORE_MAX_KIB, "{most} KiB, and {usual} KiB for a small file");
    assert_eq!(test.quantities(&lane()).await?, ["1", "2"], "the former data is current");
    Ok(())
}
