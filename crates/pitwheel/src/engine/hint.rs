//! Wake-up hints: `notify` after a commit, so that an idle worker need not wait for its next poll.
//!
//! A hint may be lost, doubled or late; polling finds every job without it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::poll_fn;
use tokio::sync::Notify;
use tokio_postgres::config::SslMode;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client, Connection, NoTls};

use crate::error::Error;
use crate::job::claim::Claim;
use crate::metrics;
use crate::postgres::{Pool, Sql, tls};

const CHANNEL: &str = "pitwheel";
/// A queue gets at most one hint in this time: a commit that notifies takes a server-wide lock, so hints must be few.
const COALESCE: Duration = Duration::from_millis(5);
/// How long a broken listener waits before it connects again.
const RECONNECT: Duration = Duration::from_secs(2);
/// How long the listener waits after its own hint did not arrive: a server that was slow once passes them on later.
const TRY_AGAIN: Duration = Duration::from_secs(60);
/// How long the listener waits for its own first hint. If it does not arrive, a pooler in between drops hints.
const SELF_TEST: Duration = Duration::from_secs(2);
/// How many queues are remembered for this before the memory is cleared.
const QUEUES_MAX: usize = 1000;

/// Claims per hint. A hint has less than 8,000 bytes, and a claim at most 63.
const CLAIMS_MAX: usize = 120;

/// The hints of one process that something is due.
pub(crate) struct Hints {
    pool: Pool,
    queues: Arc<Mutex<HashMap<String, LastHint>>>,
}

/// The last hint of a queue.
struct LastHint {
    sent: Instant,
    /// Another one will follow, for what was enqueued since.
    follows: bool,
}

/// A hint that could not be sent delays the job until the next poll, no more.
pub(crate) fn log_unhinted(hinted: Result<(), Error>) {
    if let Err(error) = hinted {
        tracing::debug!(%error, "a wake-up hint was not sent");
    }
}

impl Hints {
    /// `pool` sends the hints that follow later.
    pub(crate) fn new(pool: Pool) -> Hints {
        Hints { pool, queues: Arc::default() }
    }

    /// Sends a hint that a queue has something due. If one was sent just now, another one follows a little later.
    pub(crate) async fn due(&self, client: &impl Sql, queue: &str) -> Result<(), Error> {
        {
            let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
            match queues.get_mut(queue).filter(|last| last.follows || last.sent.elapsed() < COALESCE) {
                Some(last) if last.follows => return Ok(()),
                Some(last) => {
                    last.follows = true;
                    self.follow(queue.to_owned());
                    return Ok(());
                }
                None => {}
            }
            if queues.len() >= QUEUES_MAX {
                queues.clear();
            }
            queues.insert(queue.to_owned(), LastHint { sent: Instant::now(), follows: false });
        }
        send(client, &format!("due {queue}")).await
    }

    fn follow(&self, queue: String) {
        let (pool, queues) = (self.pool.clone(), self.queues.clone());
        tokio::spawn(async move {
            tokio::time::sleep(COALESCE).await;
            let hint = format!("due {queue}");
            let last = LastHint { sent: Instant::now(), follows: false };
            queues.lock().unwrap_or_else(PoisonError::into_inner).insert(queue, last);
            log_unhinted(pool.run(async |client| send(&*client, &hint).await).await);
        });
    }
}

/// Sends a hint that a cancel of a running job was requested.
pub(crate) async fn cancel(client: &impl Sql) -> Result<(), Error> {
    send(client, "cancel").await
}

/// Sends a hint that a worker was made quiet, drained or resumed.
pub(crate) async fn command(client: &impl Sql) -> Result<(), Error> {
    send(client, "command").await
}

/// Sends a hint that workers have reported the endings of these claims, to the nodes that sent them to their workers.
pub async fn hint_reported(client: &impl Sql, claims: &[Claim]) -> Result<(), Error> {
    hint_claims(client, "reported", claims).await
}

/// Sends a hint that these claims were settled, to the nodes that sent them to their workers.
pub async fn hint_settled(client: &impl Sql, claims: &[Claim]) -> Result<(), Error> {
    hint_claims(client, "settled", claims).await
}

/// Sends a hint that handlers have completed the jobs of these claims in transactions of their own, to the nodes that sent them.
pub async fn hint_completed(client: &impl Sql, claims: &[Claim]) -> Result<(), Error> {
    hint_claims(client, "completed", claims).await
}

async fn hint_claims(client: &impl Sql, word: &str, claims: &[Claim]) -> Result<(), Error> {
    for part in claims.chunks(CLAIMS_MAX) {
        send(client, &claims_hint(word, part)).await?;
    }
    Ok(())
}

fn claims_hint(word: &str, claims: &[Claim]) -> String {
    let claim = |claim: &Claim| format!("{}.{}.{}", claim.id, claim.fence, claim.holder);
    format!("{word} {}", claims.iter().map(claim).collect::<Vec<_>>().join(" "))
}

/// The claims of a hint. What is no claim is left out.
fn claims_of_hint(words: &str) -> Vec<Claim> {
    let read = |word: &str| {
        let mut numbers = word.split('.').map(|number| number.parse().ok());
        Some(Claim { id: numbers.next()??, fence: numbers.next()??, holder: numbers.next()?? })
    };
    words.split(' ').filter_map(read).collect()
}

async fn send(client: &impl Sql, word: &str) -> Result<(), Error> {
    client
        .rows(include_str!("../../sql/engine/notify.sql"), &[(&CHANNEL, Type::TEXT), (&word, Type::TEXT)])
        .await?;
    Ok(())
}

/// Called with the name of a queue, or with `None` for any queue.
pub type OnDue = dyn Fn(Option<&str>) + Send + Sync;

/// Called with claims.
pub type OnClaims = dyn Fn(Vec<Claim>) + Send + Sync;

/// What hints wake.
pub struct HintListener {
    /// Called when something may be due in this queue, or in any queue.
    pub due: Box<OnDue>,
    /// Notified when a cancel may have been requested.
    pub cancel: Arc<Notify>,
    /// Notified when a worker may have been made quiet, drained or resumed.
    pub command: Arc<Notify>,
    /// Called with claims whose endings were reported, perhaps to another node than the one that sent them to their workers.
    pub reported: Box<OnClaims>,
    /// Called with such claims when their endings are written.
    pub settled: Box<OnClaims>,
    /// Called with such claims when their handlers have completed the jobs themselves.
    pub completed: Box<OnClaims>,
}

/// Listens until it is dropped, and connects again whenever the connection breaks.
pub async fn listen(pool: &Pool, listener: HintListener) {
    let config = pool.config();
    loop {
        let ended = match config.get_ssl_mode() {
            SslMode::Require => match tls() {
                Ok(tls) => match config.connect(tls).await {
                    Ok((client, connection)) => receive(client, connection, &listener).await,
                    Err(error) => Err(error.into()),
                },
                Err(error) => Err(error),
            },
            _ => match config.connect(NoTls).await {
                Ok((client, connection)) => receive(client, connection, &listener).await,
                Err(error) => Err(error.into()),
            },
        };
        let pause = match ended {
            Ok(Received::Nothing) => {
                tracing::info!(
                    "no hints arrive on this connection (a pooler in transaction mode?): polling only, will try again"
                );
                TRY_AGAIN
            }
            Ok(Received::Closed) => RECONNECT,
            Err(error) => {
                tracing::debug!(%error, "the listener lost its connection");
                RECONNECT
            }
        };
        // Hints that were sent meanwhile did not arrive.
        (listener.due)(None);
        tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
    }
}

enum Received {
    /// Not even the listener's own hint arrived.
    Nothing,
    Closed,
}

async fn receive<S, T>(
    client: Client,
    mut connection: Connection<S, T>,
    listener: &HintListener,
) -> Result<Received, Error>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let mut messages = poll_fn(move |context| connection.poll_message(context));
    let mut hello = std::pin::pin!(async {
        client.batch_execute(include_str!("../../sql/engine/listen.sql")).await?;
        send(&client, "hello").await
    });
    let mut greeted = false;
    let mut received_hello = false;
    let deadline = tokio::time::sleep(SELF_TEST);
    let mut deadline = std::pin::pin!(deadline);
    loop {
        tokio::select! {
            said = &mut hello, if !greeted => {
                said?;
                greeted = true;
            }
            () = &mut deadline, if !received_hello => return Ok(Received::Nothing),
            message = messages.next() => match message {
                None => return Ok(Received::Closed),
                Some(Err(error)) => return Err(error.into()),
                Some(Ok(AsyncMessage::Notification(hint))) => {
                    received_hello = true;
                    listener.wake(hint.payload());
                }
                Some(Ok(_)) => {}
            },
        }
    }
}

impl HintListener {
    fn wake(&self, word: &str) {
        match word.split_once(' ') {
            Some(("due", queue)) => {
                metrics::woken();
                (self.due)(Some(queue));
            }
            Some(("reported", claims)) => (self.reported)(claims_of_hint(claims)),
            Some(("settled", claims)) => (self.settled)(claims_of_hint(claims)),
            Some(("completed", claims)) => (self.completed)(claims_of_hint(claims)),
            None if word == "cancel" => self.cancel.notify_one(),
            None if word == "command" => self.command.notify_one(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_hint_fits_and_is_read_as_it_was_sent() {
        let longest = [Claim { id: i64::MIN, fence: i64::MIN, holder: i64::MIN }; CLAIMS_MAX];
        let hint = claims_hint("completed", &longest);
        assert!(hint.len() < 8000, "{} bytes", hint.len());
        assert_eq!(hint.split_once(' ').map(|(_, claims)| claims_of_hint(claims)), Some(longest.to_vec()));
    }
}
