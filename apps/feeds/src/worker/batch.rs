//! Many callers share one statement: what came together while the last batch was at work is the next batch.

use std::pin::Pin;

use tokio::sync::{Mutex, mpsc, oneshot};

/// The largest batch. Beyond it a statement saves nothing more, and its rows are locked longer.
const BATCH_MAX: usize = 100;

type Item<I, O> = (I, oneshot::Sender<O>);

/// The work on one batch. Boxed, so that the compiler can tell that it may move between threads.
pub(crate) type Work<O> = Pin<Box<dyn Future<Output = Option<Vec<O>>> + Send>>;

/// The senders' end and the receiver's end of a stream of items.
pub(crate) struct Batches<I, O> {
    sender: mpsc::Sender<Item<I, O>>,
    receiver: Mutex<mpsc::Receiver<Item<I, O>>>,
}

impl<I, O> Batches<I, O> {
    pub(crate) fn new() -> Batches<I, O> {
        let (sender, receiver) = mpsc::channel(BATCH_MAX);
        Batches { sender, receiver: Mutex::new(receiver) }
    }

    /// Waits for the result of one item. `None`: its batch failed.
    pub(crate) async fn send(&self, item: I) -> Option<O> {
        let (reply, result) = oneshot::channel();
        self.sender.send((item, reply)).await.ok()?;
        result.await.ok()
    }

    /// Works on batches until it is dropped. Several of these may run at a time. `work` returns one result for each item, in
    /// order; without them the callers get `None`.
    pub(crate) async fn run(&self, work: impl Fn(Vec<I>) -> Work<O>) {
        loop {
            let mut batch = Vec::with_capacity(BATCH_MAX);
            self.receiver.lock().await.recv_many(&mut batch, BATCH_MAX).await;
            let (items, replies): (Vec<I>, Vec<oneshot::Sender<O>>) = batch.into_iter().unzip();
            let results = work(items).await.unwrap_or_default();
            for (reply, result) in replies.into_iter().zip(results) {
                // The receiver is gone if the handler was stopped.
                let _ = reply.send(result);
            }
        }
    }
}
