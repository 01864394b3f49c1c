//! `pitwheel-feeds demo`: three local feeds, a subscription to each, and articles that arrive.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use pitwheel_feeds::{Feeds, WorkerOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::database::Database;
use pitwheel_app::output::print;

/// An article that does not arrive within this time is a failure of the demo.
const ARRIVAL_MAX: Duration = Duration::from_secs(15);
const FEEDS: [&str; 3] = ["Harbour News", "Mountain Weather", "City Library"];

/// The titles of the articles of each feed, newest first.
type Titles = Arc<Mutex<Vec<Vec<String>>>>;

pub(crate) async fn run() -> anyhow::Result<()> {
    let database = Database::temporary().await?;
    let first = FEEDS.map(|name| vec![format!("{name}: second article"), format!("{name}: first article")]);
    let titles: Titles = Arc::new(Mutex::new(first.to_vec()));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let base = format!("http://{}", listener.local_addr()?);
    let stop = CancellationToken::new();
    let mut options = WorkerOptions::default();
    options.fetch.allow_private = true;
    options.fetch.host_gap = Duration::ZERO;
    let show = async {
        let shown = show(&database.feeds, &base, &titles).await;
        stop.cancel();
        shown
    };
    let worker = async {
        pitwheel_feeds::run(&database.feeds, options, stop.cancelled()).await.map_err(anyhow::Error::from)
    };
    tokio::select! {
        done = async { tokio::try_join!(show, worker) } => done.map(drop)?,
        served = serve(listener, &titles) => served?,
    }
    database.close().await
}

async fn show(feeds: &Feeds, base: &str, titles: &Titles) -> anyhow::Result<()> {
    print("Ada subscribes to three feeds. Each gets a recurring job; the worker fetches them.")?;
    let mut shown = BTreeSet::new();
    for at in 0..FEEDS.len() {
        feeds.subscribe(&format!("{base}/{at}"), "ada").await?;
    }
    arrived(feeds, &mut shown, 6).await?;
    print("A feed publishes an article.")?;
    titles.lock().unwrap_or_else(PoisonError::into_inner)[1].insert(0, "Mountain Weather: snow".into());
    let source = feeds.source_by_url(&format!("{base}/1")).await?;
    feeds.fetch_now(source.id).await?;
    arrived(feeds, &mut shown, 7).await?;
    feeds.unsubscribe(source.id, "ada").await?;
    let disabled = feeds.source(source.id).await?.disabled_because.context("the source is still enabled")?;
    let jobs = feeds.pitwheel().recurring().find("fetch_feed", &source.id.to_string()).await?;
    ensure!(jobs.is_some_and(|job| !job.summary.enabled), "the recurring job is still enabled");
    Ok(print(&format!("Ada leaves that feed. Its recurring job is disabled: {disabled}."))?)
}

/// Prints new articles until there are so many.
async fn arrived(feeds: &Feeds, shown: &mut BTreeSet<i64>, count: usize) -> anyhow::Result<()> {
    let arrive = async {
        while shown.len() < count {
            let mut new = feeds.articles(None, 100, None, Some("ada")).await?;
            new.retain(|article| !shown.contains(&article.id));
            new.sort_by_key(|article| article.id);
            for article in new {
                print(&format!("  article {}  {}", article.id, article.title.unwrap_or_default()))?;
                shown.insert(article.id);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(ARRIVAL_MAX, arrive).await.context("the articles did not arrive in time")?
}

/// Serves the feeds, one connection after the other.
async fn serve(listener: TcpListener, titles: &Titles) -> anyhow::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        // A client that goes away is not the end of the demo.
        let _ = answer(stream, titles).await;
    }
}

async fn answer(mut stream: TcpStream, titles: &Titles) -> anyhow::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < 8192 {
        ensure!(stream.read_buf(&mut head).await? > 0, "the client went away");
    }
    let at = String::from_utf8_lossy(&head).strip_prefix("GET /").and_then(|path| path[..1].parse().ok());
    let at: usize = at.context("no such feed")?;
    let items: String = titles.lock().unwrap_or_else(PoisonError::into_inner)[at]
        .iter()
        .map(|title| format!("<item><guid>{title}</guid><title>{title}</title></item>"))
        .collect();
    let body = format!("<rss version=\"2.0\"><channel><title>{}</title>{items}</channel></rss>", FEEDS[at]);
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).await?;
    Ok(())
}
