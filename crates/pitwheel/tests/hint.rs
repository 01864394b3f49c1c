//! A queue gets few hints, and each enqueue is followed by one.

use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::StreamExt;
use futures_util::stream::poll_fn;
use pitwheel::NewJob;
use pitwheel_testkit::{TestDb, Work};
use tokio::time::{Instant, timeout};
use tokio_postgres::{AsyncMessage, NoTls};

/// Longer than a hint takes, and than one is held back.
const SOON: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_hint_that_was_held_back_follows_and_stands_for_all() -> Result<()> {
    let db = TestDb::new().await?;
    let (listener, mut connection) = tokio_postgres::connect(db.url(), NoTls).await?;
    let (sender, mut hints) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut messages = poll_fn(|context| connection.poll_message(context));
        while let Some(Ok(message)) = messages.next().await {
            if let AsyncMessage::Notification(hint) = message {
                let _ = sender.send((hint.payload().to_owned(), Instant::now()));
            }
        }
    });
    listener.batch_execute("listen pitwheel").await?;

    let mut last = Instant::now();
    let begun = last;
    let mut enqueued = 0;
    while begun.elapsed() < Duration::from_millis(200) {
        last = Instant::now();
        db.pitwheel().enqueue(NewJob::of(&Work { n: enqueued })).await?;
        enqueued += 1;
    }
    let mut count = 0;
    loop {
        let (hint, at) =
            timeout(SOON, hints.recv()).await.context("no hint after the last enqueue")?.context("ended")?;
        assert_eq!(hint, "due default");
        count += 1;
        if at > last {
            break;
        }
    }
    let most = begun.elapsed().as_millis() / 5 + 2;
    assert!(count <= most, "{count} hints for {enqueued} jobs in {:?}", begun.elapsed());
    Ok(())
}
