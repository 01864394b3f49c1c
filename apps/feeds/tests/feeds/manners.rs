//! How the fetcher treats servers: it asks for changes only, comes back when it may, and follows moves.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Result;
use pitwheel_testkit::wait_until;
use tokio::sync::Semaphore;

use crate::site::{Reply, Request, Site, feed};
use crate::support::{TestFeeds, options};

fn minutes_until_next(column: &str) -> String {
    format!("select round(extract(epoch from {column} - now()) / 60)::bigint from feeds.source")
}

#[tokio::test]
async fn validators_are_sent_back_exactly_and_updated_by_304() -> Result<()> {
    let test = TestFeeds::new().await?;
    // Weak, with a space and without the date format that the header should have.
    let etag = "W/\"v 1;gzip\"";
    let answer = move |request: &Request| match request.header("if-none-match") {
        None => Reply::new("200 OK", &[("etag", etag), ("last-modified", "yesterday, 08:00")], feed(&["1"])),
        Some(sent) if sent == etag => Reply::new("304 Not Modified", &[("etag", "\"v2\"")], ""),
        Some(_) => Reply::new("304 Not Modified", &[], ""),
    };
    let site = Site::start(answer).await?;
    let id = test.add(&site.url("/")).await?;
    for _ in 0..3 {
        test.make_due(id).await?;
        assert_eq!(test.fetch_due(1).await?.sources_fetched, 1);
    }
    let sent: Vec<_> = site
        .requests()
        .iter()
        .map(|request| {
            (
                request.header("if-none-match").map(str::to_owned),
                request.header("if-modified-since").map(str::to_owned),
            )
        })
        .collect();
    let modified = Some("yesterday, 08:00".to_owned());
    let expected =
        [(None, None), (Some(etag.to_owned()), modified.clone()), (Some("\"v2\"".to_owned()), modified)];
    assert_eq!(sent, expected);
    assert_eq!(test.titles(id).await?, ["article 1"], "304 keeps the articles");
    let first = &site.requests()[0];
    assert!(
        first.header("user-agent").is_some_and(|agent| agent.starts_with("pitwheel-feeds/")),
        "{}",
        first.head
    );
    assert_eq!(first.header("accept-encoding"), Some("gzip, br"));
    assert_eq!(first.header("cookie"), None);
    Ok(())
}

#[tokio::test]
async fn compressed_documents_are_read() -> Result<()> {
    let test = TestFeeds::new().await?;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(feed(&["1", "2"]).as_bytes())?;
    let gzip = gzip.finish()?;
    let answer = move |request: &Request| match request.path.as_str() {
        "/gzip" => Reply::new("200 OK", &[("content-encoding", "gzip")], &gzip),
        _ => Reply::new("200 OK", &[("content-encoding", "br")], brotli(feed(&["1", "2", "3"]).as_bytes())),
    };
    let site = Site::start(answer).await?;
    test.add(&site.url_on(1, "/gzip")).await?;
    test.add(&site.url_on(2, "/br")).await?;
    let stats = test.fetch_due(2).await?;
    assert_eq!((stats.articles_new, stats.errors.len()), (5, 0), "{:?}", stats.errors);
    Ok(())
}

/// A brotli stream of one uncompressed block (RFC 7932, section 9).
fn brotli(bytes: &[u8]) -> Vec<u8> {
    assert!(bytes.len() <= 1 << 16, "one block");
    let length = u32::try_from(bytes.len() - 1).expect("short");
    // WBITS = 16 (one bit 0), ISLAST 0, MNIBBLES 4 (00), MLEN - 1 in 16 bits, ISUNCOMPRESSED 1; then to the next byte.
    let head: u32 = length << 4 | 1 << 20;
    let mut stream = head.to_le_bytes()[..3].to_vec();
    stream.extend_from_slice(bytes);
    // An empty last block.
    stream.push(0b11);
    stream
}

#[tokio::test]
async fn a_server_decides_when_to_come_back_within_bounds() -> Result<()> {
    let cases = [
        ("200 OK", ("cache-control", "public, max-age=7200"), "Cache-Control", 120..=132),
        ("200 OK", ("cache-control", "max-age=99999999"), "Cache-Control", 1440..=1585),
        ("429 Too Many Requests", ("retry-after", "600"), "Retry-After", 10..=11),
        ("503 Service Unavailable", ("retry-after", "99999999"), "Retry-After", 1440..=1585),
        ("200 OK", ("cache-control", "max-age=1"), "interval", 60..=66),
        // Only an answer that asks to come back later may name the time for it.
        ("200 OK", ("retry-after", "7200"), "interval", 60..=66),
        ("404 Not Found", ("retry-after", "7200"), "failed 1 time", 1..=1),
    ];
    for (status, headers, reason, minutes) in cases {
        let test = TestFeeds::new().await?;
        let site = Site::start(move |_| Reply::new(status, &[headers], feed(&["1"]))).await?;
        let id = test.add(&site.url("/")).await?;
        test.fetch_due(1).await?;
        let source = test.source(id).await?;
        let why = source.next_fetch_reason.unwrap_or_default();
        assert!(why.contains(reason), "{status} {headers:?}: {why}");
        let next = test.count(&minutes_until_next("next_fetch_at")).await?;
        assert!(minutes.contains(&next), "{status} {headers:?}: {next} minutes");
    }
    Ok(())
}

#[tokio::test]
async fn gone_disables_a_source_with_the_reason() -> Result<()> {
    let test = TestFeeds::new().await?;
    let site = Site::start(|_| Reply::new("410 Gone", &[], "")).await?;
    let id = test.feeds.subscribe(&site.url("/"), "ada").await?.source_id;
    let stats = test.fetch_due(1).await?;
    assert!(stats.errors[&id].contains("410"), "{:?}", stats.errors);
    let source = test.source(id).await?;
    assert_eq!((source.disabled_because.as_deref(), source.next_fetch_at), (Some("gone"), None));
    assert!(source.last_error.is_some_and(|error| error.contains("gone for good")));
    let live = "select count(*) from pitwheel.job where kind = 'fetch_feed'";
    assert_eq!(test.count(live).await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_permanent_move_is_adopted_after_repeated_sightings() -> Result<()> {
    let test = TestFeeds::new().await?;
    let site = Site::start(|request| match request.path.as_str() {
        "/old" => Reply::redirect("301 Moved Permanently", "/older"),
        "/older" => Reply::redirect("308 Permanent Redirect", "/new"),
        "/temporary" => Reply::redirect("302 Found", "/new"),
        _ => Reply::ok(feed(&["1"])),
    })
    .await?;
    let moved = test.add(&site.url("/old")).await?;
    let stays = test.add(&site.url_on(1, "/temporary")).await?;
    for sighting in 1..=5 {
        for id in [moved, stays] {
            test.make_due(id).await?;
        }
        assert_eq!(test.fetch_due(2).await?.sources_fetched, 2);
        let url = test.source(moved).await?.url;
        assert_eq!(url.ends_with("/new"), sighting == 5, "{sighting}: {url}");
    }
    assert!(test.source(stays).await?.url.ends_with("/temporary"));
    Ok(())
}

#[tokio::test]
async fn a_host_gets_two_fetches_at_a_time() -> Result<()> {
    let test = TestFeeds::new().await?;
    let gate = Arc::new(Semaphore::new(0));
    let held = gate.clone();
    let site = Site::start(move |_| Reply::ok(feed(&["1"])).after(&held)).await?;
    for n in 0..6 {
        test.add(&site.url(&format!("/{n}"))).await?;
    }
    test.add(&site.url_on(1, "/other")).await?;
    let worker = test.start(options());
    // Two of one host and one of the other; the rest wait, and give their slots back after a second.
    wait_until("the first fetches", || async { Ok(site.requests().len() == 3) }).await?;
    let waiting =
        "select count(*) from pitwheel.job where kind = 'fetch_feed' and holder is null and run_at > now()";
    wait_until("the others to wait", || async { Ok(test.count(waiting).await? == 4) }).await?;
    assert_eq!(site.requests().len(), 3, "two at a time");
    assert_eq!(test.count("select count(*) from feeds.fetch").await?, 0, "waiting is no failure");
    gate.add_permits(100);
    test.until("all to be fetched", "select (count(*) = 7)::int::bigint from feeds.fetch").await?;
    worker.stop().await?;
    Ok(())
}

#[tokio::test]
async fn articles_are_stored_once() -> Result<()> {
    let test = TestFeeds::new().await?;
    let round = Arc::new(AtomicU32::new(0));
    let at = round.clone();
    let site = Site::start(move |_| {
        let item =
            |guid: &str, link: &str| format!("<item>{guid}<link>{link}</link><title>{link}</title></item>");
        let guid = |text: &str| format!("<guid>{text}</guid>");
        let items = match at.load(Ordering::SeqCst) {
            0 => item(&guid("a"), "http://x.example/1") + &item("", "http://x.example/2"),
            // The site has moved to https, and a new article has the guid of another.
            1 => {
                item(&guid("a"), "https://x.example/3")
                    + &item(&guid("a"), "https://x.example/1")
                    + &item("", "https://x.example/2")
            }
            _ => item(&guid("a"), "https://x.example/3") + "<item><title>only a title</title></item>",
        };
        Reply::ok(format!("<rss version=\"2.0\"><channel>{items}</channel></rss>"))
    })
    .await?;
    let id = test.add(&site.url("/")).await?;
    for new in [2, 1, 1] {
        test.make_due(id).await?;
        let stats = test.fetch_due(1).await?;
        assert_eq!(
            stats.articles_new,
            new,
            "round {}: {:?}",
            round.load(Ordering::SeqCst),
            test.titles(id).await?
        );
        round.fetch_add(1, Ordering::SeqCst);
    }
    Ok(())
}

#[tokio::test]
async fn a_page_leads_to_its_feeds() -> Result<()> {
    let site = Site::start(|request| match request.path.as_str() {
        "/" => Reply::ok("<html><link rel=alternate type='application/rss+xml' href='/rss'></html>"),
        "/plain" => Reply::ok("<html><p>no link</p></html>"),
        "/feed.xml" => Reply::ok(feed(&["1"])),
        _ => Reply::new("404 Not Found", &[], ""),
    })
    .await?;
    let mut options = pitwheel_feeds::fetch::Options::default();
    (options.allow_private, options.host_gap) = (true, Duration::ZERO);
    let client = pitwheel_feeds::fetch::Client::new(options)?;
    for (path, expected) in [("/", "/rss"), ("/plain", "/feed.xml"), ("/feed.xml", "/feed.xml")] {
        let found = pitwheel_feeds::discover::discover(&client, &site.url(path).parse()?).await?;
        let urls: Vec<_> = found.into_iter().map(|feed| feed.url).collect();
        assert_eq!(urls, [site.url(expected)], "{path}");
    }
    Ok(())
}

#[tokio::test]
async fn other_sources_of_a_host_that_asks_for_a_pause_wait_for_its_end_and_say_so() -> Result<()> {
    let test = TestFeeds::new().await?;
    let answer = |_: &Request| Reply::new("503 Service Unavailable", &[("retry-after", "99999999")], "");
    let site = Site::start(answer).await?;
    let asked = test.add(&site.url("/asked")).await?;
    let other = test.add(&site.url("/other")).await?;
    let mut one_by_one = options();
    one_by_one.slots = 1;
    let worker = test.start(one_by_one);
    let waiting = "select count(*) from pitwheel.job
        where kind = 'fetch_feed' and holder is null and run_at > now() + interval '23 hours'";
    wait_until("both to wait", || async { Ok(test.count(waiting).await? == 2) }).await?;
    worker.stop().await?;

    assert_eq!(site.paths(), ["/asked"], "the host is left alone");
    let late = "select count(*) from pitwheel.job
        where kind = 'fetch_feed' and payload->>'source_id' = $$OTHER$$ and run_at > now() + interval '24 hours 5 minutes'";
    assert_eq!(test.count(&late.replace("OTHER", &other.to_string())).await?, 0, "no longer than a day");
    for id in [asked, other] {
        let why = test.source(id).await?.next_fetch_reason.unwrap_or_default();
        assert!(why.contains("Retry-After"), "{id}: {why}");
    }
    let shown = format!(
        "select count(*) from feeds.source where id = {other} and next_fetch_at > now() + interval '23 hours'"
    );
    assert_eq!(test.count(&shown).await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_source_that_is_a_page_names_the_command_that_finds_its_feeds() -> Result<()> {
    let test = TestFeeds::new().await?;
    let site = Site::start(|_| Reply::ok("<!doctype html><html><body>a page</body></html>")).await?;
    let id = test.add(&site.url("/")).await?;
    let stats = test.fetch_due(1).await?;
    assert!(stats.errors[&id].contains("`pitwheel-feeds sources add URL --discover`"), "{:?}", stats.errors);
    Ok(())
}
