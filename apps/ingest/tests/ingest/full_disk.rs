//! A folder of uploads that takes no more.

use std::convert::Infallible;
use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Result;
use bytes::Bytes;
use futures_util::stream;
use pitwheel_ingest::{Error, Uploads};
use pitwheel_testkit::{ChildProcess, ScratchFolder};

const FOLDER: &str = "PITWHEEL_INGEST_SMALL_FILES";

/// The process of the other test, in which a file has a few KB at most. Does nothing unless the environment variable is set.
#[tokio::test]
async fn the_process_with_small_files() -> Result<()> {
    let Some(folder) = env::var_os(FOLDER) else {
        return Ok(());
    };
    let uploads = Uploads::new(PathBuf::from(folder));
    let chunk = Ok::<_, Infallible>(Bytes::from(vec![b'x'; 100_000]));
    let received = uploads.receive(stream::iter([chunk])).await;
    assert!(matches!(received, Err(Error::Unreadable(_))), "it was not written to its end");
    Ok(())
}

#[test]
fn an_upload_whose_last_write_fails_is_refused() -> Result<()> {
    let folder = ScratchFolder::create()?;
    // Without the trap, the write that fails would end the process.
    let limited = r#"trap "" XFSZ; ulimit -f 8; exec "$@""#;
    let mut command = Command::new("/bin/sh");
    command.args(["-c", limited, "sh"]).arg(env::current_exe()?);
    command.args(["--exact", "full_disk::the_process_with_small_files"]).env(FOLDER, folder.path());
    let mut child = ChildProcess::spawn(&command, Stdio::null(), Stdio::null())?;
    assert!(child.wait()?.success());
    assert_eq!(std::fs::read_dir(folder.path())?.count(), 0, "nothing is left");
    Ok(())
}
