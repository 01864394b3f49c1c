//! The loop: take events, send them, acknowledge what was sent.

use std::time::{Duration, Instant};

use pitwheel::engine::RetryDelay;
use pitwheel::engine::outbox::{Acknowledged, Batch, Event, Strategy};
use pitwheel::metrics;
use tokio_util::sync::CancellationToken;

use crate::batch_size::BatchSize;
use crate::limit::Limit;
use crate::pace::Pace;
use crate::postponed::Postponed;
use crate::resolve::{Resolved, resolve};
use crate::sink::{Outcome, Sink};
use crate::unreadable::send_readable;

/// How long a relay that stops tries to write what it has sent, and to give up what it holds. Then its lease expires.
const RELEASE_MAX: Duration = Duration::from_secs(5);
/// Between two renewals while a batch is sent, at least.
const RENEW_MIN: Duration = Duration::from_millis(50);

/// Counts of a relay, from its start to its end.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Events that were sent and acknowledged.
    pub sent: u64,
    /// Events that were sent, but not held any more when they were acknowledged: another relay sends them again.
    pub lost: u64,
    /// Entities that were parked.
    pub parked: u64,
}

/// Sends the events of an outbox to a sink.
pub struct Relay<S, K> {
    strategy: S,
    sink: K,
    size: BatchSize,
    stats: Stats,
    postponed: Postponed,
}

impl<S: Strategy, K: Sink> Relay<S, K> {
    /// A relay that takes events by this strategy and sends them to this sink.
    pub fn new(strategy: S, sink: K) -> Relay<S, K> {
        Relay {
            strategy,
            sink,
            size: BatchSize::default(),
            stats: Stats::default(),
            postponed: Postponed::default(),
        }
    }

    /// Takes about this many events at a time. Default: 2,000.
    #[must_use]
    pub fn batch(mut self, events: usize) -> Relay<S, K> {
        self.size = BatchSize::new(events);
        self
    }

    /// Runs until `shutdown` completes. Then nothing more is taken or sent, and what the relay holds is given up at once.
    ///
    /// Errors of the database and of the sink are waited out. Not safe to cancel: what the relay holds is then free when its
    /// lease expires.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> Stats {
        let stop = CancellationToken::new();
        let wait = async {
            shutdown.await;
            stop.cancel();
        };
        tokio::join!(self.work(&stop), wait);
        match tokio::time::timeout(RELEASE_MAX, self.strategy.release()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the relay could not give up what it holds"),
            Err(_) => tracing::warn!("the relay could not give up what it holds in time"),
        }
        self.stats
    }

    async fn work(&mut self, stop: &CancellationToken) {
        let (mut pace, mut delay) = (Pace::new(), RetryDelay::default());
        while !stop.is_cancelled() {
            let batch = match self.strategy.take(self.size.limit()).await {
                Ok(batch) => batch,
                Err(error) => {
                    tracing::warn!(%error, "the outbox cannot be read");
                    self.size.failed();
                    delay.wait(stop).await;
                    continue;
                }
            };
            let pause = pace.after(batch.events.len());
            if !batch.events.is_empty() {
                self.size.taken(&batch.events);
                if !self.deliver(batch, stop).await {
                    delay.wait(stop).await;
                    continue;
                }
            }
            delay.reset();
            if !pause.is_zero() {
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = stop.cancelled() => {}
                }
            }
        }
    }

    /// Sends a batch and writes what became of it. False if the relay is to wait before the next one.
    async fn deliver(&mut self, batch: Batch, stop: &CancellationToken) -> bool {
        let Batch { events, deadline } = batch;
        let was_failing = self.forget_old();
        let limit = Limit::new(deadline, stop.clone());
        let outcomes = self.send(&events, &limit).await;
        let Resolved { sent, refused, unsent, again } = resolve(&events, outcomes);
        let is_acknowledged = if sent.len() == events.len() {
            self.acknowledge(&events, stop).await
        } else {
            let sent: Vec<Event> = sent.iter().map(|at| events[*at].clone()).collect();
            self.acknowledge(&sent, stop).await
        };
        let others_were_sent = !sent.is_empty() || !refused.is_empty();
        let mut are_parked = true;
        for (at, reason) in refused {
            are_parked &= self.park(&events[at], &reason).await;
            self.postponed.forget(&events[at].entity_key);
        }
        if !self.postponed.is_empty() {
            sent.iter().for_each(|at| self.postponed.forget(&events[*at].entity_key));
        }
        let unsent: Vec<&Event> = unsent.iter().map(|at| &events[*at]).collect();
        let has_room = self.postpone(&unsent, others_were_sent);
        self.log_change(was_failing, again.as_deref(), events.len() - sent.len());
        is_acknowledged && are_parked && has_room
    }

    /// Forgets entities that are not held any more. Returns whether there are others that cannot be sent.
    fn forget_old(&mut self) -> bool {
        let was_failing = !self.postponed.is_empty();
        self.postponed.forget_old(Instant::now());
        let is_failing = !self.postponed.is_empty();
        if was_failing && !is_failing {
            tracing::info!("events that could not be sent are not held any more");
        }
        is_failing
    }

    /// Leaves out the entities of events that were not sent, so that the next batch has room for others. False if there are too many.
    fn postpone(&mut self, unsent: &[&Event], others_were_sent: bool) -> bool {
        let mut all_left_out = true;
        for event in unsent {
            let until = self.postponed.failed(&event.entity_key, others_were_sent, Instant::now());
            all_left_out &= self.strategy.postpone(event, until);
        }
        all_left_out
    }

    /// Sends a batch, and renews the lease while that takes long.
    async fn send(&mut self, events: &[Event], limit: &Limit) -> Vec<Outcome> {
        let Relay { strategy, sink, .. } = self;
        let done = CancellationToken::new();
        let send = async {
            let outcomes = send_readable(sink, events, limit).await;
            done.cancel();
            outcomes
        };
        // A renewal that has begun is waited for: the strategy learns its result.
        let renew = async {
            loop {
                let wait = (limit.deadline().saturating_duration_since(Instant::now()) / 2).max(RENEW_MIN);
                tokio::select! {
                    () = done.cancelled() => return,
                    () = tokio::time::sleep(wait) => {}
                }
                match strategy.acknowledge(&[]).await {
                    Ok(renewed) => limit.move_to(renewed.deadline),
                    Err(error) => tracing::debug!(%error, "the lease could not be renewed"),
                }
            }
        };
        tokio::join!(send, renew).0
    }

    /// Writes that events were sent. While the database does not answer, tries again: else they would be sent again. Once the
    /// lease has expired, the database answers that they were lost. False if the relay is to wait before it takes more.
    async fn acknowledge(&mut self, sent: &[Event], stop: &CancellationToken) -> bool {
        if sent.is_empty() {
            return true;
        }
        let mut delay = RetryDelay::default();
        let mut stopped_at = None;
        loop {
            let error = match self.strategy.acknowledge(sent).await {
                Ok(acknowledged) => {
                    let Acknowledged { lost, locked, refused, must_wait, .. } = acknowledged;
                    if locked > 0 {
                        tracing::warn!(
                            events = locked,
                            "rows of sent events are locked: they are sent again"
                        );
                    }
                    self.stats.sent += (sent.len() - lost - locked - refused) as u64;
                    self.stats.lost += lost as u64;
                    return !must_wait;
                }
                Err(error) => error,
            };
            if stop.is_cancelled() {
                let stopped_at = *stopped_at.get_or_insert_with(Instant::now);
                if stopped_at.elapsed() > RELEASE_MAX {
                    tracing::warn!(%error, events = sent.len(), "sent events could not be acknowledged: they are sent again");
                    return false;
                }
            }
            tracing::warn!(%error, events = sent.len(), "sent events could not be acknowledged yet");
            delay.wait(&CancellationToken::new()).await;
        }
    }

    /// Parks the entity of a refused event. False if that failed: otherwise the same event would be sent again at once.
    async fn park(&mut self, event: &Event, reason: &str) -> bool {
        let (id, topic) = (event.id, event.topic.as_str());
        metrics::send_failed("refused");
        match self.strategy.park(event, reason).await {
            Ok(true) => {
                self.stats.parked += 1;
                tracing::warn!(id, topic, reason, "an event was refused: its entity is parked");
            }
            // Another relay holds it now, or a row is locked: it is refused again.
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(id, topic, %error, "the entity of a refused event could not be parked");
                return false;
            }
        }
        true
    }

    /// Logs the start and the end of a time in which events cannot be sent, of all entities or of some.
    fn log_change(&self, was_failing: bool, again: Option<&str>, unsent: usize) {
        match again {
            Some(reason) => {
                metrics::send_failed("again");
                if !was_failing {
                    tracing::warn!(
                        reason,
                        events = unsent,
                        "events cannot be sent: they are kept and tried again"
                    );
                }
            }
            None if was_failing && self.postponed.is_empty() => {
                tracing::info!("events are sent again");
            }
            None => {}
        }
    }
}
