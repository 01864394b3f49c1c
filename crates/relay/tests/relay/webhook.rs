//! Events to a webhook, over a connection that is kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pitwheel::engine::outbox::Event;
use pitwheel_relay::{Format, Limit, Outcome, Sink, Webhook, WebhookSettings};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// What the webhook received: headers and body.
type Requests = Arc<Mutex<Vec<(HashMap<String, String>, String)>>>;

/// A webhook that answers as the body says: `422 …` with 422, and `200` otherwise.
async fn start() -> Result<(String, Requests)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/in", listener.local_addr()?);
    let requests = Requests::default();
    let received = requests.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, received.clone()));
        }
    });
    Ok((url, requests))
}

async fn serve(stream: TcpStream, requests: Requests) -> Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            anyhow::ensure!(stream.read_line(&mut line).await? > 0, "the connection ended");
            match line.trim_end().split_once(": ") {
                Some((name, value)) => drop(headers.insert(name.to_owned(), value.to_owned())),
                None if line == "\r\n" => break,
                None => {}
            }
        }
        let mut body = vec![0; headers.get("content-length").context("no length")?.parse()?];
        stream.read_exact(&mut body).await?;
        let body = String::from_utf8(body)?;
        let status = body.split_once(' ').map_or("200", |(status, _)| status).to_owned();
        requests.lock().unwrap_or_else(PoisonError::into_inner).push((headers, body));
        let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n");
        stream.write_all(answer.as_bytes()).await?;
    }
}

fn webhook(url: &str) -> Result<Webhook> {
    let secret = Some("secret".to_owned());
    Ok(Webhook::new(WebhookSettings { url: url.parse()?, secret, format: Format::Plain })?)
}

fn limit() -> Limit {
    Limit::new(Instant::now() + Duration::from_secs(20), CancellationToken::new())
}

fn event(id: i64, key: &str, body: &str) -> Event {
    Event::unheld(id, key, "topic", "happened", Some(body.as_bytes().to_vec()))
}

#[tokio::test]
async fn events_of_an_entity_are_posted_in_order_and_signed() -> Result<()> {
    let (url, requests) = start().await?;
    let events: Vec<Event> = (1..=40).map(|id| event(id, ["a", "b", "c"][id as usize % 3], "{}")).collect();

    let outcomes = webhook(&url)?.send(&events, &limit()).await;

    assert_eq!(outcomes, vec![Outcome::Sent; 40]);
    let requests = requests.lock().unwrap_or_else(PoisonError::into_inner);
    for entity in ["a", "b", "c"] {
        let of_entity = requests.iter().filter(|(headers, _)| headers["pitwheel-entity"] == entity);
        let ids: Vec<i64> = of_entity.flat_map(|(headers, _)| headers["pitwheel-id"].parse()).collect();
        assert!(ids.is_sorted() && ids.len() >= 13, "{ids:?}");
    }
    assert!(requests.iter().all(|(headers, _)| headers["pitwheel-signature"].contains(",v1=")));
    Ok(())
}

#[tokio::test]
async fn an_event_that_is_refused_stops_its_entity_only() -> Result<()> {
    let (url, requests) = start().await?;
    let events =
        [event(1, "a", "422 no"), event(2, "a", "{}"), event(3, "b", "503 later"), event(4, "c", "{}")];

    let outcomes = webhook(&url)?.send(&events, &limit()).await;

    assert!(matches!(outcomes[0], Outcome::Refused(_)), "{outcomes:?}");
    assert!(matches!(outcomes[1], Outcome::Again(_)), "{outcomes:?}");
    assert!(matches!(outcomes[2], Outcome::Again(_)), "{outcomes:?}");
    assert_eq!(outcomes[3], Outcome::Sent);
    assert_eq!(
        requests.lock().unwrap_or_else(PoisonError::into_inner).len(),
        3,
        "nothing behind a refused one"
    );
    Ok(())
}

#[tokio::test]
async fn without_a_webhook_nothing_is_refused() -> Result<()> {
    let outcomes = webhook("http://127.0.0.1:1/")?.send(&[event(1, "a", "{}")], &limit()).await;
    assert!(matches!(outcomes[..], [Outcome::Again(_)]), "{outcomes:?}");
    Ok(())
}
