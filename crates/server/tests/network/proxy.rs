//! A TCP proxy between workers and a node, whose connections can be made to fail.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

/// What a connection does with the bytes that are sent over it.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Link {
    /// It passes them on.
    Open,
    /// It passes nothing on, not even that one end has closed. It keeps the bytes until it is open again.
    Silent,
    /// It drops the responses of the node.
    NoResponses,
    /// It is closed at both ends.
    Cut,
}

/// The proxy. A failure concerns the connections that exist; new ones are open.
pub(crate) struct Proxy {
    address: SocketAddr,
    links: Arc<Mutex<Vec<watch::Sender<Link>>>>,
    closed_by_node: Arc<AtomicUsize>,
    task: AbortHandle,
}

impl Proxy {
    pub(crate) async fn to(node: SocketAddr) -> Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (links, closed_by_node) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let (added, closed) = (links.clone(), closed_by_node.clone());
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((worker, _)) = listener.accept().await {
                let (link, state) = watch::channel(Link::Open);
                added.lock().unwrap_or_else(PoisonError::into_inner).push(link);
                connections.spawn(forward(worker, node, state, closed.clone()));
            }
        });
        Ok(Proxy { address, links, closed_by_node, task: task.abort_handle() })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Changes the state of all connections that exist.
    pub(crate) fn set(&self, link: Link) {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        for one in links.iter() {
            one.send_replace(link);
        }
    }

    /// How many connections workers have opened.
    pub(crate) fn connections(&self) -> usize {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// How many connections the node has closed.
    pub(crate) fn closed_by_node(&self) -> usize {
        self.closed_by_node.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Forwards one connection both ways until one end closes it and the link lets the other end see that.
async fn forward(
    worker: TcpStream,
    node: SocketAddr,
    link: watch::Receiver<Link>,
    closed_by_node: Arc<AtomicUsize>,
) {
    let Ok(node) = TcpStream::connect(node).await else { return };
    let ((from_worker, mut to_worker), (from_node, mut to_node)) = (worker.into_split(), node.into_split());
    let not_silent =
        async |mut link: watch::Receiver<Link>| drop(link.wait_for(|link| *link != Link::Silent).await);
    let up = async {
        copy(from_worker, &mut to_node, link.clone(), false).await;
        not_silent(link.clone()).await;
    };
    let down = async {
        copy(from_node, &mut to_worker, link.clone(), true).await;
        closed_by_node.fetch_add(1, Ordering::SeqCst);
        not_silent(link.clone()).await;
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}

/// Copies one direction of a connection until its source closes it or it is cut. The other end stays open: the caller
/// decides when it closes.
async fn copy(
    mut from: OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    mut link: watch::Receiver<Link>,
    is_response: bool,
) {
    let mut kept = Vec::new();
    loop {
        tokio::select! {
            read = from.read_buf(&mut kept) => if !matches!(read, Ok(1..)) { return },
            changed = link.changed() => if changed.is_err() { return },
        }
        let now = *link.borrow_and_update();
        match now {
            Link::Cut => return,
            Link::Silent => {}
            Link::NoResponses if is_response => kept.clear(),
            Link::Open | Link::NoResponses => {
                if to.write_all(&kept).await.is_err() {
                    return;
                }
                kept.clear();
            }
        }
    }
}
