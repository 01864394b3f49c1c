//! The way from workers to a node, which can go wrong.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

/// What happens to what is sent along a connection.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Line {
    /// It arrives.
    Open,
    /// Nothing arrives, not even that the other end hung up. What is sent is kept, and arrives when the line is open again.
    Silent,
    /// What the node answers is lost.
    Answerless,
    /// The connection is gone.
    Cut,
}

/// It goes wrong for the connections that are there; new ones are open.
pub(crate) struct Wire {
    address: SocketAddr,
    lines: Arc<Mutex<Vec<watch::Sender<Line>>>>,
    /// How often the node ended a connection.
    hung_up: Arc<AtomicUsize>,
    task: AbortHandle,
}

impl Wire {
    pub(crate) async fn to(node: SocketAddr) -> Result<Wire> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (lines, hung_up) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let (entered, ended) = (lines.clone(), hung_up.clone());
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((worker, _)) = listener.accept().await {
                let (line, seen) = watch::channel(Line::Open);
                entered.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                connections.spawn(carry(worker, node, seen, ended.clone()));
            }
        });
        Ok(Wire { address, lines, hung_up, task: task.abort_handle() })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn turn(&self, line: Line) {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        for one in lines.iter() {
            one.send_replace(line);
        }
    }

    /// How many connections were made.
    pub(crate) fn connections(&self) -> usize {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub(crate) fn hung_up(&self) -> usize {
        self.hung_up.load(Ordering::SeqCst)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One connection, both ways, until one end of it hangs up and the other may know.
async fn carry(worker: TcpStream, node: SocketAddr, line: watch::Receiver<Line>, hung_up: Arc<AtomicUsize>) {
    let Ok(node) = TcpStream::connect(node).await else { return };
    let ((from_worker, mut to_worker), (from_node, mut to_node)) = (worker.into_split(), node.into_split());
    let heard =
        async |mut line: watch::Receiver<Line>| drop(line.wait_for(|line| *line != Line::Silent).await);
    let up = async {
        pump(from_worker, &mut to_node, line.clone(), false).await;
        heard(line.clone()).await;
    };
    let down = async {
        pump(from_node, &mut to_worker, line.clone(), true).await;
        hung_up.fetch_add(1, Ordering::SeqCst);
        heard(line.clone()).await;
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}

/// One way of a connection, until its source hangs up or it is cut. The other end is the caller's: it would hear of it.
async fn pump(
    mut from: OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    mut line: watch::Receiver<Line>,
    answers: bool,
) {
    let mut kept = Vec::new();
    loop {
        tokio::select! {
            read = from.read_buf(&mut kept) => if !matches!(read, Ok(1..)) { return },
            changed = line.changed() => if changed.is_err() { return },
        }
        let now = *line.borrow_and_update();
        match now {
            Line::Cut => return,
            Line::Silent => {}
            Line::Answerless if answers => kept.clear(),
            Line::Open | Line::Answerless => {
                if to.write_all(&kept).await.is_err() {
                    return;
                }
                kept.clear();
            }
        }
    }
}
