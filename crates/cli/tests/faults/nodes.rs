//! The nodes of a test, each a process.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Result, anyhow};
use pitwheel_testkit::{ScratchFolder, TestDb};

use crate::support::{Node, pitwheel};

/// Of nodes and workers.
pub(crate) const LEASE: Duration = Duration::from_secs(5);

pub(crate) fn start_node(db: &TestDb, folder: &ScratchFolder, listen: &str) -> Result<Node> {
    let lease = LEASE.as_secs().to_string();
    let mut command = pitwheel(folder.path(), &["serve", "--listen", listen, "--lease", &lease]);
    command.env("DATABASE_URL", db.url());
    Node::of(&command, Stdio::null()).map_err(|error| anyhow!("{error}"))
}

pub(crate) fn url(node: &Node) -> String {
    format!("http://{}", node.address)
}
