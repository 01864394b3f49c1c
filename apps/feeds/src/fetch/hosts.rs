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
    /// How long a fetch waits for its turn.
    wait_max: Duration,
    known: Mutex<HashMap<String, Host>>,
    /// A turn has ended.
    left: Notify,
}

#[derive(Clone, Copy)]
struct Host {
    running: u32,
    /// The earliest start of the next fetch.
    next_at: Instant,
    /// The host asked for a pause until then.
    paused_until: Instant,
}

/// Why there is no turn now.
enum Blocked {
    /// The host asked for a pause until then.
    Paused(Instant),
    /// The gap after the last start ends then.
    Gap(Instant),
    /// It ends with another turn.
    Full,
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
    pub(crate) fn new(gap: Duration, wait_max: Duration) -> Arc<Hosts> {
        Arc::new(Hosts { gap, wait_max, known: Mutex::default(), left: Notify::new() })
    }

    /// Waits for a turn, up to the limit. A pause that a host asked for is not waited for: it may be a day.
    pub(crate) async fn turn(self: &Arc<Hosts>, host: &str) -> Result<Turn, FetchError> {
        let begun = Instant::now();
        let (deadline, pause_end_max) = (begun + self.wait_max, begun + HOST_WAIT_MAX.min(self.wait_max));
        loop {
            // Listens before it looks: a turn that ends between the two would be missed otherwise.
            let left = self.left.notified();
            let Err(blocked) = self.take(host) else {
                return Ok(Turn { hosts: self.clone(), host: host.to_owned() });
            };
            let (now, host_name) = (Instant::now(), || host.to_owned());
            let wake_up = match blocked {
                Blocked::Paused(at) if at > pause_end_max => {
                    return Err(FetchError::HostPaused { host: host_name(), retry_in: at - now });
                }
                Blocked::Paused(at) | Blocked::Gap(at) => Some(at),
                Blocked::Full => None,
            };
            if now >= deadline || wake_up.is_some_and(|at| at > deadline) {
                let retry_in = wake_up.map_or(self.gap, |at| at - now).max(HOST_WAIT_MAX);
                return Err(FetchError::HostBusy { host: host_name(), retry_in });
            }
            tokio::select! {
                () = tokio::time::sleep_until(wake_up.unwrap_or(deadline).into()) => {}
                () = left, if wake_up.is_none() => {}
            }
        }
    }

    /// No fetch from this host starts before `span` has passed: it asked for that.
    pub(crate) fn hold_back(&self, host: &str, span: Duration) {
        let now = Instant::now();
        let mut known = self.known();
        let new = Host { running: 0, next_at: now, paused_until: now };
        let host = known.entry(host.to_owned()).or_insert(new);
        host.paused_until = host.paused_until.max(now + span);
    }

    /// Takes a turn, or tells what it waits for.
    fn take(&self, name: &str) -> Result<(), Blocked> {
        let now = Instant::now();
        let mut known = self.known();
        if known.len() > KNOWN_MAX {
            known.retain(|_, host| host.running > 0 || host.next_at.max(host.paused_until) > now);
        }
        let new = Host { running: 0, next_at: now, paused_until: now };
        let host = known.entry(name.to_owned()).or_insert(new);
        if host.paused_until > now {
            return Err(Blocked::Paused(host.paused_until));
        }
        if host.next_at > now {
            return Err(Blocked::Gap(host.next_at));
        }
        if host.running >= HOST_FETCHES_MAX {
            return Err(Blocked::Full);
        }
        (host.running, host.next_at) = (host.running + 1, now + self.gap);
        Ok(())
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
        let hosts = Hosts::new(Duration::ZERO, HOST_WAIT_MAX);
        let first = hosts.turn("a").await.expect("free");
        let _second = hosts.turn("a").await.expect("free");
        let _other = hosts.turn("b").await.expect("another host");
        assert!(matches!(hosts.turn("a").await, Err(FetchError::HostBusy { .. })));
        let (third, ()) = tokio::join!(hosts.turn("a"), async { drop(first) });
        third.expect("a turn has ended");
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_asked_for_a_pause_is_left_alone() {
        // However long a fetch waits for other fetches.
        let hosts = Hosts::new(Duration::ZERO, Duration::from_secs(3600));
        hosts.hold_back("a", Duration::from_secs(60));
        let refused = hosts.turn("a").await;
        let Err(FetchError::HostPaused { retry_in, .. }) = refused else { panic!("it was fetched") };
        assert!(retry_in > Duration::from_secs(50), "{retry_in:?}");
    }
}
