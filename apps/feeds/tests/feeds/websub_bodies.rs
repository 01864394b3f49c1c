//! The bodies of posts to the callback, whose path is public: none is read for a caller who does not know the secret, and few at a time for
//! those who do.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::future::select_all;
use pitwheel_testkit::{Http, WAIT_MAX, wait_until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::site::feed;
use crate::support::TestFeeds;
use crate::websub::{Callbacks, SUBSCRIPTION, signature};

const MIB: usize = 1024 * 1024;
/// Far less than the deadline of a body.
const AT_ONCE: Duration = Duration::from_secs(4);
/// A header that is well-formed.
const SIGNED: &str =
    "x-hub-signature: sha256=0000000000000000000000000000000000000000000000000000000000000000\r\n";

/// The callback of one subscription.
async fn start() -> Result<(TestFeeds, Callbacks)> {
    let test = TestFeeds::new().await?;
    let id = test.add("https://topic.example/feed").await?;
    test.db.client().await?.execute(SUBSCRIPTION, &[&id]).await?;
    let callbacks = Callbacks::start(&test).await?;
    Ok((test, callbacks))
}

/// A post whose head was sent, and no byte of its body.
struct HeadSent(TcpStream);

impl HeadSent {
    /// By hand: no client library leaves a body unfinished.
    async fn new(callbacks: &Callbacks, token: &str, headers: &str) -> Result<HeadSent> {
        let mut socket = TcpStream::connect(callbacks.address).await?;
        let head = format!(
            "POST /websub/{token} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n{headers}\r\n",
            10 * MIB
        );
        socket.write_all(head.as_bytes()).await?;
        Ok(HeadSent(socket))
    }

    async fn status(mut self) -> Result<u16> {
        let mut line = [0; 12];
        timeout(WAIT_MAX, self.0.read_exact(&mut line)).await??;
        Ok(std::str::from_utf8(&line[9..])?.parse()?)
    }
}

#[tokio::test]
async fn an_unknown_secret_is_refused_before_the_body() -> Result<()> {
    let (_test, callbacks) = start().await?;
    let started = Instant::now();
    assert_eq!(HeadSent::new(&callbacks, "anything", SIGNED).await?.status().await?, 404);
    assert_eq!(HeadSent::new(&callbacks, "token2", "").await?.status().await?, 404);
    assert!(started.elapsed() < AT_ONCE, "no body was waited for: {:?}", started.elapsed());
    Ok(())
}

#[tokio::test]
async fn a_missing_or_malformed_signature_is_refused_before_the_body() -> Result<()> {
    let (_test, callbacks) = start().await?;
    let started = Instant::now();
    for header in ["", "x-hub-signature: 1234\r\n", "x-hub-signature: sha256=00\r\n"] {
        assert_eq!(HeadSent::new(&callbacks, "token", header).await?.status().await?, 403, "{header}");
    }
    assert!(started.elapsed() < AT_ONCE, "no body was waited for: {:?}", started.elapsed());
    Ok(())
}

#[tokio::test]
async fn bodies_beyond_the_limit_in_all_are_refused_until_others_end() -> Result<()> {
    let (_test, callbacks) = start().await?;
    let push = async || {
        let body = feed(&["1"]);
        let signed = signature("sha256", "secret", &body);
        let http = Http::new(callbacks.address).header("x-hub-signature", &signed);
        http.send("POST", "/websub/token", body).await
    };
    assert_eq!(push().await?.status, 202);
    // Eight of the largest have room. Of nine, whichever comes last is refused.
    let mut nine = Vec::new();
    for _ in 0..9 {
        nine.push(Box::pin(HeadSent::new(&callbacks, "token", SIGNED).await?.status()));
    }
    let (first_answer, _, mut unfinished) = select_all(nine).await;
    assert_eq!(first_answer?, 429);
    let refused = push().await?;
    assert!(refused.status == 429 && refused.text.contains("send it again later"), "{}", refused.text);
    drop(unfinished.pop());
    wait_until("room again", async || Ok(push().await?.status == 202)).await
}
