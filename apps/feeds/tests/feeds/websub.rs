//! A hub that pushes: discovery, verification of intent, signed content, renewal and the end.

use std::collections::HashMap;
use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use pitwheel_feeds::kinds::RenewWebsub;
use pitwheel_feeds::websub;
use pitwheel_server::{Readiness, Server};
use pitwheel_testkit::{Http, wait_until};
use ring::hmac;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::site::{Reply, Request, Site, feed};
use crate::support::{TestFeeds, options};

const TOPIC: &str = "https://topic.example/feed";

/// The subscription of a source at a hub, whose callback is `/websub/token`.
pub(crate) const SUBSCRIPTION: &str =
    "insert into feeds.websub (source_id, wanted, hub_url, topic_url, token, secret)
        values ($1, true, 'https://hub.example', 'https://topic.example/feed', 'token', 'secret')";

/// The server that hubs call.
pub(crate) struct Callbacks {
    pub(crate) address: SocketAddr,
    _stop: oneshot::Sender<()>,
    _task: JoinHandle<Result<(), pitwheel_server::Error>>,
}

impl Callbacks {
    pub(crate) async fn start(test: &TestFeeds) -> Result<Callbacks> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let readiness = Readiness::default();
        let mut needs_tokens = pitwheel_server::Options::default();
        needs_tokens.require_tokens = true;
        let server = Server::new(test.db.pitwheel())
            .options(needs_tokens)
            .routes(websub::routes(&test.feeds))
            .public(websub::PUBLIC_PREFIX)
            .readiness(&readiness);
        let task = tokio::spawn(server.run(listener, async { drop(stopped.await) }));
        readiness.accepting().await?;
        Ok(Callbacks { address, _stop: stop, _task: task })
    }
}

/// The form that a hub received last.
fn form(hub: &Site) -> Result<HashMap<String, String>> {
    let requests = hub.requests();
    let last = requests.iter().rfind(|request| request.path == "/hub").context("the hub was not asked")?;
    Ok(url::form_urlencoded::parse(last.body.as_bytes()).into_owned().collect())
}

fn asked(hub: &Site) -> usize {
    hub.paths().iter().filter(|path| *path == "/hub").count()
}

/// What a hub asks the callback.
fn intent(callback: &str, mode: &str, topic: &str) -> Result<String> {
    let path = callback.splitn(4, '/').nth(3).context("no path")?;
    let query: String = url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs([("hub.mode", mode), ("hub.topic", topic), ("hub.challenge", "a challenge")])
        .extend_pairs([("hub.lease_seconds", "3600"), ("hub.reason", "not today")])
        .finish();
    Ok(format!("/{path}?{query}"))
}

pub(crate) fn signature(method: &str, secret: &str, body: &str) -> String {
    let algorithm = match method {
        "sha1" => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
        "sha256" => hmac::HMAC_SHA256,
        "sha384" => hmac::HMAC_SHA384,
        _ => hmac::HMAC_SHA512,
    };
    let tag = hmac::sign(&hmac::Key::new(algorithm, secret.as_bytes()), body.as_bytes());
    let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{method}={hex}")
}

#[tokio::test]
async fn a_hub_pushes_articles_until_the_source_is_disabled() -> Result<()> {
    let TestFeeds { db, feeds } = TestFeeds::new().await?;
    let test = TestFeeds { db, feeds: feeds.with_events("articles".parse()?) };
    let callbacks = Callbacks::start(&test).await?;
    let site = Site::start(|request: &Request| match request.path.as_str() {
        "/hub" => Reply::new("202 Accepted", &[], ""),
        // The header is looked at before the document.
        _ => {
            let link = "</hub>; rel=\"hub\", <https://topic.example/feed>; rel=\"self\"";
            let document = feed(&["1"]).replace(
                "<title>A feed",
                "<atom:link xmlns:atom=\"http://www.w3.org/2005/Atom\" rel=\"hub\" href=\"http://wrong.example/\"/><title>A feed",
            );
            Reply::new("200 OK", &[("link", link)], document)
        }
    })
    .await?;
    let mut worker_options = options();
    worker_options.public_url = Some(format!("http://{}/", callbacks.address));
    let id = test.feeds.subscribe(&site.url("/"), "ada").await?.source_id;
    let worker = test.start(worker_options);
    wait_until("the hub to be asked", || async { Ok(asked(&site) == 1) }).await?;
    let request = form(&site)?;
    assert_eq!((request["hub.mode"].as_str(), request["hub.topic"].as_str()), ("subscribe", TOPIC));
    let (callback, secret) = (request["hub.callback"].clone(), request["hub.secret"].clone());
    assert!(secret.len() >= 32 && secret.len() < 200 && callback.len() > 64, "{callback}");

    let http = Http::new(callbacks.address);
    assert_eq!(http.get(&intent(&callback, "subscribe", "https://other.example/")?).await?.status, 404);
    assert_eq!(http.get(&intent(&callback, "unsubscribe", TOPIC)?).await?.status, 404, "it is wanted");
    assert_eq!(http.get(&intent(&format!("{callback}0"), "subscribe", TOPIC)?).await?.status, 404);
    let confirmed = http.get(&intent(&callback, "subscribe", TOPIC)?).await?;
    assert_eq!((confirmed.status, confirmed.text.as_str()), (200, "a challenge"));
    assert!(test.source(id).await?.push_until.is_some());

    let path = format!("/{}", callback.splitn(4, '/').nth(3).context("no path")?);
    for (n, method) in ["sha1", "sha256", "sha384", "sha512"].into_iter().enumerate() {
        let body = feed(&["1", &format!("pushed {n}")]);
        let signed = http.header("x-hub-signature", &signature(method, &secret, &body));
        assert_eq!(signed.send("POST", &path, body.clone()).await?.status, 202, "{method}");
        assert!(test.titles(id).await?.contains(&format!("article pushed {n}")), "{method}");
    }
    let events = "select count(*) from pitwheel.outbox";
    assert_eq!(test.count(events).await?, 5, "one for each article, fetched or pushed");
    let forged = feed(&["forged"]);
    assert_eq!(http.send("POST", &path, forged.clone()).await?.status, 403, "no signature");
    for wrong in [signature("sha256", "another secret", &forged), signature("sha256", &secret, "other")] {
        let refused = http.header("x-hub-signature", &wrong).send("POST", &path, forged.clone()).await?;
        assert_eq!(refused.status, 403, "{}", refused.text);
    }
    assert!(!test.titles(id).await?.contains(&"article forged".to_owned()));

    // The lease ends within a day, so the daily job renews it.
    test.feeds.pitwheel().enqueue(pitwheel::NewJob::of(&RenewWebsub {}).queue("feeds-upkeep")).await?;
    wait_until("the renewal", || async { Ok(asked(&site) == 2) }).await?;
    assert_eq!(form(&site)?["hub.callback"], callback);
    assert_eq!(http.get(&intent(&callback, "subscribe", TOPIC)?).await?.status, 200);

    test.feeds.unsubscribe(id, "ada").await?;
    wait_until("the hub to be left", || async { Ok(asked(&site) == 3) }).await?;
    assert_eq!(form(&site)?["hub.mode"], "unsubscribe");
    assert_eq!(http.get(&intent(&callback, "subscribe", TOPIC)?).await?.status, 404, "not wanted");
    let late = feed(&["late"]);
    let signed = http.header("x-hub-signature", &signature("sha256", &secret, &late));
    assert_eq!(signed.send("POST", &path, late).await?.status, 410);
    assert_eq!(http.get(&intent(&callback, "unsubscribe", TOPIC)?).await?.status, 200);
    assert_eq!(http.get(&intent(&callback, "subscribe", TOPIC)?).await?.status, 404, "it is over");
    worker.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_denied_subscription_leaves_the_fetches() -> Result<()> {
    let test = TestFeeds::new().await?;
    let callbacks = Callbacks::start(&test).await?;
    let site = Site::start(|request: &Request| match request.path.as_str() {
        "/hub" => Reply::new("202 Accepted", &[], ""),
        _ => Reply::new("200 OK", &[("link", "</hub>; rel=hub, </feed>; rel=self")], feed(&["1"])),
    })
    .await?;
    let mut worker_options = options();
    worker_options.public_url = Some(format!("http://{}", callbacks.address));
    let id = test.add(&site.url("/feed")).await?;
    let worker = test.start(worker_options);
    wait_until("the hub to be asked", || async { Ok(asked(&site) == 1) }).await?;
    let callback = form(&site)?["hub.callback"].clone();
    let denied = Http::new(callbacks.address).get(&intent(&callback, "denied", &site.url("/feed"))?).await?;
    assert_eq!(denied.status, 200, "{}", denied.text);
    assert_eq!(test.count("select count(*) from feeds.websub where denied = 'not today'").await?, 1);
    let source = test.source(id).await?;
    assert!(source.push_until.is_none() && source.next_fetch_at.is_some());
    worker.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_push_waits_for_a_fetch_of_its_source_so_that_events_are_in_order() -> Result<()> {
    let TestFeeds { db, feeds } = TestFeeds::new().await?;
    let test = TestFeeds { db, feeds: feeds.with_events("articles".parse()?) };
    let callbacks = Callbacks::start(&test).await?;
    let id = test.add("https://topic.example/feed").await?;
    let mut client = test.db.client().await?;
    client.execute(SUBSCRIPTION, &[&id]).await?;
    // A fetch that has locked its source and written its event, and not committed yet.
    let fetch = client.transaction().await?;
    fetch.execute("select from feeds.source where id = $1 for no key update", &[&id]).await?;
    let event = "select pitwheel.add_event($1, 'articles', 'article.new', 'fetched')";
    fetch.execute(event, &[&format!("source-{id}")]).await?;
    let body = feed(&["1"]);
    let http = Http::new(callbacks.address).header("x-hub-signature", &signature("sha256", "secret", &body));
    let push = http.send("POST", "/websub/token", body);
    let release = async {
        let waits = "select count(*) from pg_stat_activity where datname = current_database()
            and wait_event_type = 'Lock'";
        test.until("the push to wait", waits).await?;
        anyhow::Ok(fetch.commit().await?)
    };
    let (pushed, released) = tokio::join!(push, release);
    released?;
    assert_eq!(pushed?.status, 202);
    let last = "select count(*) from (select payload from pitwheel.outbox order by id desc limit 1) as last
        where payload <> 'fetched'";
    assert_eq!(test.count(last).await?, 1, "its event was written after that of the fetch");
    Ok(())
}
