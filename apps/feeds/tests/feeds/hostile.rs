//! Servers with malice: each costs one failed fetch with a clear error, and nothing else.

use std::future::pending;
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Result;
use pitwheel_feeds::fetch::limits::TOTAL_MAX;

use crate::site::{Reply, Request, Site, feed};
use crate::support::{TestFeeds, options};

fn gzip_bomb() -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    let zeros = vec![b' '; 1024 * 1024];
    for _ in 0..64 {
        gzip.write_all(&zeros).expect("memory");
    }
    gzip.finish().expect("memory")
}

fn answer(request: &Request) -> Reply {
    let deep = || format!("<rss version=\"2.0\"><channel>{}", "<a>".repeat(200_000));
    let bomb = "<?xml version=\"1.0\"?><!DOCTYPE lolz [<!ENTITY a \"aaaaaaaaaa\"><!ENTITY b \"&a;&a;&a;&a;\">
        <!ENTITY c \"&b;&b;&b;&b;\">]><rss version=\"2.0\"><channel><title>&c;</title></channel></rss>";
    match request.path.as_str() {
        "/xml-bomb" => Reply::ok(bomb),
        "/gzip-bomb" => Reply::new("200 OK", &[("content-encoding", "gzip")], gzip_bomb()),
        "/too-large" => Reply::ok(vec![b'x'; 11 * 1024 * 1024]),
        "/deep" => Reply::ok(deep()),
        "/wrong-gzip" => Reply::new("200 OK", &[("content-encoding", "gzip")], feed(&["1"])),
        "/wrong-brotli" => Reply::new("200 OK", &[("content-encoding", "br")], feed(&["1"])),
        "/cut-gzip" => {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            gzip.write_all(feed(&["1"]).as_bytes()).expect("memory");
            let bytes = gzip.finish().expect("memory");
            Reply::new("200 OK", &[("content-encoding", "gzip")], &bytes[..bytes.len() / 2])
        }
        "/unasked" => Reply::new("200 OK", &[("content-encoding", "zstd")], feed(&["1"])),
        "/cut-off" => Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n<rss"),
        "/not-http" => Reply::raw("SSH-2.0-OpenSSH_9.2\r\n"),
        "/closes" => Reply::raw(""),
        "/binary" => Reply::ok((0..=255).collect::<Vec<u8>>()),
        "/html" => Reply::ok("<!doctype html><html><body>hello</body></html>"),
        "/empty" => Reply::ok(""),
        "/json" => Reply::ok("{\"a\":".repeat(100_000)),
        "/loop" => Reply::redirect("302 Found", "/loop"),
        "/file" => Reply::redirect("302 Found", "file:///etc/passwd"),
        "/nowhere" => Reply::new("302 Found", &[], ""),
        "/headers" => Reply::raw(format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(100_000))),
        _ => Reply::ok(feed(&["1"])),
    }
}

#[tokio::test]
async fn malice_is_one_failed_fetch_with_a_clear_error() -> Result<()> {
    let test = TestFeeds::new().await?;
    let site = Site::start(answer).await?;
    let cases = [
        ("/xml-bomb", "XML entities"),
        ("/gzip-bomb", "more than 10485760 bytes"),
        ("/too-large", "more than 10485760 bytes"),
        ("/deep", "not a feed"),
        ("/wrong-gzip", "decompressed"),
        ("/wrong-brotli", "decompressed"),
        ("/cut-gzip", "decompressed"),
        ("/unasked", "`zstd` was not asked for"),
        ("/cut-off", "broke"),
        ("/not-http", "broke"),
        ("/closes", "broke"),
        ("/binary", "not a feed"),
        ("/html", "web page"),
        ("/empty", "not a feed"),
        ("/json", "not a feed"),
        ("/loop", "more than 5 redirects"),
        ("/file", "cannot be followed"),
        ("/nowhere", "cannot be followed"),
        ("/headers", "broke"),
    ];
    let mut ids = Vec::new();
    for (host, (path, _)) in (1..).zip(cases) {
        ids.push(test.add(&site.url_on(host, path)).await?);
    }
    let good = test.add(&site.url_on(200, "/good")).await?;
    let stats = test.fetch_due(100).await?;
    for (id, (path, expected)) in ids.iter().zip(cases) {
        let error = stats.errors.get(id).cloned().unwrap_or_default();
        assert!(error.contains(expected), "{path}: {error}");
        assert_eq!(test.source(*id).await?.consecutive_failures, 1, "{path}");
    }
    assert_eq!((stats.sources_fetched, stats.sources_checked), (1, cases.len() as u64 + 1));
    assert_eq!(test.titles(good).await?, ["article 1"]);
    Ok(())
}

#[tokio::test]
async fn private_addresses_are_refused_on_every_hop() -> Result<()> {
    let test = TestFeeds::new().await?;
    let site = Site::start(|_| Reply::ok(feed(&["1"]))).await?;
    let port = site.address.port();
    let urls = [
        format!("http://127.0.0.1:{port}/"),
        format!("http://localhost:{port}/"),
        format!("http://[::1]:{port}/"),
        format!("http://[::ffff:127.0.0.1]:{port}/"),
        format!("http://2130706433:{port}/"),
        format!("http://0x7f.1:{port}/"),
        "http://169.254.169.254/latest/meta-data".to_owned(),
        "http://10.0.0.1/".to_owned(),
    ];
    for url in &urls {
        test.add(url).await?;
    }
    let mut strict = options();
    strict.fetch.allow_private = false;
    let stats = pitwheel_feeds::fetch_due(&test.feeds, strict, 100, pending(), |_| ()).await?;
    assert_eq!(stats.sources_fetched, 0);
    for (id, error) in &stats.errors {
        assert!(error.contains("not public") || error.contains("cannot be resolved"), "{id}: {error}");
    }
    assert_eq!(stats.errors.len(), test.feeds.sources(0, 100, None).await?.len());
    assert!(site.requests().is_empty(), "no connection was made");
    Ok(())
}

/// A server that sends one byte now and then never ends; the fetch does. Time is not paused: sockets do not follow it.
#[tokio::test]
async fn a_server_that_never_ends_is_left_after_the_limit() -> Result<()> {
    let site = Site::start(|request| match request.path.as_str() {
        "/silent" => Reply::raw("").then_hang(),
        _ => Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n<rss").then_hang(),
    })
    .await?;
    let mut fetch = pitwheel_feeds::fetch::Options::default();
    (fetch.allow_private, fetch.host_gap) = (true, Duration::ZERO);
    let client = pitwheel_feeds::fetch::Client::new(fetch)?;
    let begun = Instant::now();
    let (silent, stuck) = (site.url("/silent").parse()?, site.url("/stuck").parse()?);
    let validators = pitwheel_feeds::fetch::Validators::default();
    let (silent, stuck) = tokio::join!(client.get(&silent, &validators), client.get(&stuck, &validators));
    for error in [silent.err(), stuck.err()] {
        let error = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("no complete answer after 30s"), "{error}");
    }
    assert!(begun.elapsed() < TOTAL_MAX + Duration::from_secs(5));
    Ok(())
}
