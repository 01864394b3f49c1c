//! Turns at hosts: few fetches at a time from one host, with a gap between them. The memory of this process only.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::fetch::error::FetchError;
use crate::fetch::limits::{HOST_FETCHES_MAX, HOST_WAIT_MAX};

/// Hosts without a fetch are forgotten when more than this many are known.
const KNOWN_MAX: usize = 4096;

/// The hosts that were fetched from lately.
pub(crate) struct Hosts {
    gap: Duration,
    known: Mutex<HashMap<String, Host>>,
    /// A turn has ended.
    left: Notify,
}

#[derive(Clone, Copy)]
struct Host {
    running: u32,
    /// The earliest start of the next fetch.
    next_at: Instant,
}

/// A turn at a host. It ends when this is dropped.
pub(crate) struct Turn {
    hosts: Arc<Hosts>,
    host: String,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(host) = self.hosts.known().get_mut(&self.host) {
            host.running -= 1;
        }
        self.hosts.left.notify_waiters();
    }
}

impl Hosts {
    pub(crate) fn new(gap: Duration) -> Arc<Hosts> {
        Arc::new(Hosts { gap, known: Mutex::default(), left: Notify::new() })
    }

    /// Waits for a turn, but not for long: the slot of a waiting fetch is missing to other hosts.
    pub(crate) async fn turn(self: &Arc<Hosts>, host: &str) -> Result<Turn, FetchError> {
        let deadline = Instant::now() + HOST_WAIT_MAX;
        loop {
            // Listens before it looks: a turn that ends between the two would be missed otherwise.
            let left = self.left.notified();
            let wake_up = match self.take(host) {
                None => return Ok(Turn { hosts: self.clone(), host: host.to_owned() }),
                Some(at) => at,
            };
            let now = Instant::now();
            if now >= deadline || wake_up.is_some_and(|at| at > deadline) {
                let retry_in = wake_up.map_or(self.gap, |at| at - now).max(HOST_WAIT_MAX);
                return Err(FetchError::HostBusy { host: host.to_owned(), retry_in });
            }
            tokio::select! {
                () = tokio::time::sleep_until(wake_up.unwrap_or(deadline).into()) => {}
                () = left, if wake_up.is_none() => {}
            }
        }
    }

    /// No fetch from this host starts before `span` has passed: it asked for that.
    pub(crate) fn hold_back(&self, host: &str, span: Duration) {
        let until = Instant::now() + span;
        let mut known = self.known();
        let host = known.entry(host.to_owned()).or_insert(Host { running: 0, next_at: until });
        host.next_at = host.next_at.max(until);
    }

    /// Takes a turn: `None`. Otherwise when to look again, or `Some(None)` when another turn has ended.
    fn take(&self, name: &str) -> Option<Option<Instant>> {
        let now = Instant::now();
        let mut known = self.known();
        if known.len() > KNOWN_MAX {
            known.retain(|_, host| host.running > 0 || host.next_at > now);
        }
        let host = known.entry(name.to_owned()).or_insert(Host { running: 0, next_at: now });
        if host.next_at > now {
            return Some(Some(host.next_at));
        }
        if host.running >= HOST_FETCHES_MAX {
            return Some(None);
        }
        *host = Host { running: host.running + 1, next_at: now + self.gap };
        None
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Host>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_host_has_two_turns_at_a_time() {
        let hosts = Hosts::new(Duration::ZERO);
        let first = hosts.turn("a").await.expect("free");
        let _second = hosts.turn("a").await.expect("free");
        let _other = hosts.turn("b").await.expect("another host");
        assert!(matches!(hosts.turn("a").await, Err(FetchError::HostBusy { .. })));
        let (third, ()) = tokio::join!(hosts.turn("a"), async { drop(first) });
        third.expect("a turn has ended");
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_asked_for_a_pause_is_left_alone() {
        let hosts = Hosts::new(Duration::ZERO);
        hosts.hold_back("a", Duration::from_secs(60));
        let refused = hosts.turn("a").await;
        let Err(FetchError::HostBusy { retry_in, .. }) = refused else { panic!("it was fetched") };
        assert!(retry_in > Duration::from_secs(50), "{retry_in:?}");
    }
}
