//! The feed fetcher: 10,000 sources of 20 articles on many hosts, the first time and when nothing has changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, ensure};
use pitwheel_feeds::Feeds;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::child_process::ChildProcess;
use crate::engine::fresh;
use crate::fetcher::SOURCES;
use crate::process_stats::peak_memory;
use crate::report::Row;

const HOSTS: usize = 2_500;
const ARTICLES: usize = 20;

/// What the sites have seen.
struct Seen {
    /// Requests for each source.
    requests: Vec<AtomicU32>,
    /// Requests under way at each host.
    under_way: Vec<AtomicU32>,
    /// The most requests at a time at one host.
    most: AtomicU32,
}

/// Sources per second, the first time and the second, and the memory of the fetcher.
pub(crate) async fn feeds(url: &str) -> Result<Vec<Row>> {
    let (_, session) = fresh(url).await?;
    session.client.batch_execute("drop schema if exists feeds cascade").await?;
    Feeds::connect(url).await?.migrate().await?;
    let counts = |number| (0..number).map(|_| AtomicU32::new(0)).collect();
    let seen =
        Arc::new(Seen { requests: counts(SOURCES), under_way: counts(HOSTS), most: AtomicU32::new(0) });
    let listener = TcpListener::bind("0.0.0.0:0").await?;
    let port = i32::from(listener.local_addr()?.port());
    let sites = tokio::spawn(serve(listener, seen.clone()));
    let (sources, hosts) = (i32::try_from(SOURCES)?, i32::try_from(HOSTS)?);
    session.client.query(include_str!("../../sql/feeds/fill.sql"), &[&sources, &hosts, &port]).await?;
    session.client.execute(include_str!("../../sql/feeds/link.sql"), &[]).await?;
    session.client.batch_execute("vacuum analyze").await?;
    let (first, first_memory) = fetch(url).await?;
    check(&seen, 1)?;
    let stored: i64 = session.client.query_one("select count(*) from feeds.article", &[]).await?.get(0);
    ensure!(usize::try_from(stored)? == SOURCES * ARTICLES, "{stored} articles were stored");
    session.client.execute(include_str!("../../sql/feeds/due.sql"), &[]).await?;
    let (second, second_memory) = fetch(url).await?;
    check(&seen, 2)?;
    sites.abort();
    session.close().await?;
    let most = f64::from(seen.most.load(Ordering::Relaxed));
    Ok(vec![
        Row::new("feeds: 10,000 sources of 20 articles, the first time", first, "sources/s").at_least(300.0),
        Row::new("feeds: the same, not modified", second, "sources/s").at_least(1500.0),
        Row::new("feeds: memory of the fetcher", first_memory.max(second_memory), "MiB").at_most(200.0),
        Row::new("feeds: requests at a time at one host", most, "requests").at_most(2.0),
    ])
}

/// Fetches everything in a process of its own. Returns sources per second and its peak memory.
async fn fetch(url: &str) -> Result<(f64, f64)> {
    let mut fetcher = ChildProcess::start("feeds-process", url)?;
    let mut line = String::new();
    BufReader::new(fetcher.stdout()?).read_line(&mut line).await?;
    let (fetched, seconds) = line.trim().split_once(' ').context("the fetcher failed")?;
    ensure!(fetched == SOURCES.to_string(), "{fetched} of {SOURCES} sources were fetched");
    let seconds: f64 = seconds.parse()?;
    let memory = peak_memory(fetcher.pid()?)?;
    fetcher.stop().await?;
    let rate = SOURCES as f64 / seconds;
    Ok((rate, memory))
}

fn check(seen: &Seen, times: u32) -> Result<()> {
    let wrong = seen.requests.iter().filter(|count| count.load(Ordering::Relaxed) != times).count();
    ensure!(wrong == 0, "{wrong} sources were not fetched {times} times");
    Ok(())
}

async fn serve(listener: TcpListener, seen: Arc<Seen>) {
    while let Ok((stream, _)) = listener.accept().await {
        let seen = seen.clone();
        tokio::spawn(async move { answer(stream, &seen).await });
    }
}

async fn answer(mut stream: TcpStream, seen: &Seen) -> Result<()> {
    let mut head = Vec::with_capacity(1024);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        ensure!(stream.read_buf(&mut head).await? > 0, "the client went away");
    }
    let head = String::from_utf8(head)?;
    let path = head.strip_prefix("GET /").and_then(|head| head.split_once(' ')).context("no path")?.0;
    let source: usize = path.parse()?;
    let host = &seen.under_way[source % HOSTS];
    seen.requests[source].fetch_add(1, Ordering::Relaxed);
    seen.most.fetch_max(host.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
    let reply = if head.to_ascii_lowercase().contains("if-none-match: \"v1\"") {
        "HTTP/1.1 304 Not Modified\r\netag: \"v1\"\r\nconnection: close\r\n\r\n".to_owned()
    } else {
        let body = document(source);
        format!(
            "HTTP/1.1 200 OK\r\netag: \"v1\"\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        )
    };
    // Counted off before the answer is complete: the client begins the next request when it has the last byte.
    let (start, last) = reply.split_at(reply.len() - 1);
    stream.write_all(start.as_bytes()).await?;
    host.fetch_sub(1, Ordering::Relaxed);
    stream.write_all(last.as_bytes()).await?;
    Ok(())
}

fn document(source: usize) -> String {
    let text = "An article has some sentences about something that happened. ".repeat(5);
    let items: String = (0..ARTICLES)
        .map(|n| {
            format!(
                "<item><guid>{source}-{n}</guid><title>Article {n} of {source}</title>\
                 <link>http://x.example/{source}/{n}</link><description>{text}</description>\
                 <pubDate>Sat, 01 Nov 2025 08:00:00 GMT</pubDate></item>"
            )
        })
        .collect();
    format!("<rss version=\"2.0\"><channel><title>Source {source}</title>{items}</channel></rss>")
}
