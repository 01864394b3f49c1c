//! Child processes, for the cases that need them. Each runs until its standard input closes.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::{Context as _, Result, bail, ensure};
use pitwheel::{Pitwheel, Worker};
use pitwheel_server::Server;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStdout, Command};

use crate::engine::{Running, handling};
use crate::{cases, fetcher, loader};

/// Slots of one remote worker.
const SLOTS: usize = 500;

/// A child process. It is killed when this is dropped.
pub(crate) struct ChildProcess {
    child: Child,
}

impl ChildProcess {
    /// Starts this program as a child, in one of the roles of [`run`].
    pub(crate) fn start(role: &str, url: &str) -> Result<ChildProcess> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([role, url]);
        ChildProcess::spawn(command)
    }

    pub(crate) fn spawn(mut command: Command) -> Result<ChildProcess> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        Ok(ChildProcess { child })
    }

    /// Starts a server on the database at `url`, and returns its URL.
    pub(crate) async fn serve(url: &str) -> Result<(ChildProcess, String)> {
        let mut server = ChildProcess::start("serve-process", url)?;
        let out = server.child.stdout.as_mut().context("the output of the server is not piped")?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).await?;
        Ok((server, line.trim().to_owned()))
    }

    pub(crate) fn pid(&self) -> Result<u32> {
        self.child.id().context("the process has ended")
    }

    /// What the process prints.
    pub(crate) fn stdout(&mut self) -> Result<&mut ChildStdout> {
        self.child.stdout.as_mut().context("the output is not piped")
    }

    /// Kills the process, which can finish nothing.
    pub(crate) async fn kill(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    pub(crate) async fn stop(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let status = self.child.wait().await?;
        ensure!(status.success(), "a child process failed: {status}");
        Ok(())
    }
}

/// Runs this program as a child process.
pub(crate) async fn run(role: &str, url: &str) -> Result<()> {
    let ended = async {
        let _ = tokio::io::stdin().read_to_end(&mut Vec::new()).await;
    };
    match role {
        "worker-process" => {
            let running = Running::start(&Pitwheel::connect(url).await?);
            ended.await;
            running.stop().await?;
        }
        "serve-process" => {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            println!("http://{}", listener.local_addr()?);
            Server::new(&Pitwheel::connect(url).await?).run(listener, ended).await?;
        }
        "remote-process" => {
            let worker = Worker::remote(url).queue("default", SLOTS);
            handling(worker, &Arc::new(AtomicU64::new(0))).run(ended).await?;
        }
        "relay-process" => cases::run_relay(url, ended).await?,
        "feeds-process" => {
            fetcher::run(url).await?;
            ended.await;
        }
        "ingest-process" => {
            loader::run(url).await?;
            ended.await;
        }
        _ => bail!("unknown role `{role}`"),
    }
    Ok(())
}
