//! The long-running worker, and the one that ends when nothing is due. Both run the same handler.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use pitwheel::{Context, Worker};

use crate::error::Error;
use crate::feeds::Feeds;
use crate::fetch::limits::DUE_HOST_WAIT_MAX;
use crate::fetch::{self, Client};
use crate::kinds::{FetchFeed, QUEUE, RenewWebsub, SubscribeWebsub, UPKEEP_QUEUE};
use crate::worker::fetcher::{FetchStats, Fetcher};
use crate::worker::upkeep::Upkeep;

/// Jobs at a time beside the fetches.
const UPKEEP_SLOTS: usize = 4;

/// How a worker fetches.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WorkerOptions {
    /// How to fetch.
    pub fetch: fetch::Options,
    /// Fetches at a time. Default: 100.
    pub slots: usize,
    /// How long the worker may be silent before its fetches are given to others. Default: 60 seconds, twice the longest fetch.
    pub lease: Duration,
    /// Where WebSub hubs reach this server, as in `https://feeds.example.com`; `None`: hubs are not used.
    pub public_url: Option<String>,
}

impl Default for WorkerOptions {
    fn default() -> WorkerOptions {
        WorkerOptions {
            fetch: fetch::Options::default(),
            slots: 100,
            lease: Duration::from_secs(60),
            public_url: None,
        }
    }
}

/// Fetches what is due until `shutdown` ends.
///
/// # Errors
/// Before the first fetch only.
pub async fn run(
    feeds: &Feeds,
    options: WorkerOptions,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<FetchStats, Error> {
    let fetcher = Arc::new(Fetcher::new(feeds, Client::new(options.fetch.clone())?));
    let upkeep = Arc::new(Upkeep {
        feeds: feeds.clone(),
        client: Client::new(options.fetch.clone())?,
        public_url: options.public_url.clone(),
    });
    let subscribe = {
        let upkeep = upkeep.clone();
        move |job: SubscribeWebsub, _: Context| {
            let upkeep = upkeep.clone();
            async move { upkeep.subscribe(job).await }
        }
    };
    let renew = move |job: RenewWebsub, context: Context| {
        let upkeep = upkeep.clone();
        async move { upkeep.renew(job, context).await }
    };
    let worker =
        worker(feeds, &fetcher, &options).queue(UPKEEP_QUEUE, UPKEEP_SLOTS).handle(subscribe).handle(renew);
    // Boxed, so that the compiler can tell that this future may move between threads.
    let running: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(worker.run(shutdown));
    let ran = tokio::select! {
        ran = running => ran,
        () = fetcher.clone().run() => unreachable!("it runs until it is dropped"),
    };
    ran?;
    Ok(fetcher.stats())
}

/// Fetches sources that are due now, the highest priority first and then the longest waiting, at most `max`. Returns when they are
/// fetched, or nothing more is due. A source waits for its turn at its host, but not for the end of a pause that the host asked
/// for: then it is fetched later. `shutdown` ends it at once: fetches under way are given up, and their runs are released.
/// `progress` is called with the number of sources that were claimed.
///
/// # Errors
/// Before the first fetch only.
pub async fn fetch_due(
    feeds: &Feeds,
    mut options: WorkerOptions,
    max: usize,
    shutdown: impl Future<Output = ()> + Send,
    mut progress: impl FnMut(&FetchStats),
) -> Result<FetchStats, Error> {
    options.fetch.host_wait_max = DUE_HOST_WAIT_MAX;
    let fetcher = Arc::new(Fetcher::new(feeds, Client::new(options.fetch.clone())?));
    // A fetch may wait long for its turn. Who interrupts it does not.
    let worker = worker(feeds, &fetcher, &options).grace(Duration::ZERO);
    let watch = async {
        let mut tick = tokio::time::interval(Duration::from_millis(200));
        loop {
            tick.tick().await;
            progress(&fetcher.stats());
        }
    };
    let ran = tokio::select! {
        ran = worker.run_due(max, shutdown) => ran,
        () = fetcher.clone().run() => unreachable!("it runs until it is dropped"),
        () = watch => unreachable!("it runs until it is dropped"),
    };
    ran?;
    Ok(fetcher.stats())
}

fn worker(feeds: &Feeds, fetcher: &Arc<Fetcher>, options: &WorkerOptions) -> Worker {
    let fetcher = fetcher.clone();
    let fetch = move |job: FetchFeed, context: Context| {
        let fetcher = fetcher.clone();
        async move { fetcher.handle(job, context).await }
    };
    Worker::new(feeds.pitwheel()).queue(QUEUE, options.slots.max(1)).lease(options.lease).handle(fetch)
}
