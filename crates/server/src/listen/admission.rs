//! Which connections are admitted: limits in all and per address, and who makes room when a limit is reached.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::listen::ages::Ages;

/// Connections of a node, if it may open enough files. Each costs memory for its buffers.
const CONNECTIONS_MAX: usize = 10_000;
/// Probes of one connection at a time. They need no token, so their number is limited with that of the connections.
const PROBES_MAX: usize = 16;
/// Bytes of answers to callers without a token, such as refusals, that one connection may leave unread. A limit of the node would let one
/// client keep the probes of all others out; so their limit is that of the connections.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;
/// One of so many files stays for the database, the listener and all else.
const FILES_RESERVED: usize = 4;

/// The limits of connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) total: usize,
    /// Half of all: one address cannot keep all others out. A proxy uses few connections for many callers.
    pub(crate) per_address: usize,
}

impl Limits {
    /// The limits that fit the number of files that this process may open.
    pub(crate) fn of_process() -> Limits {
        let files = metrics_process::collector::collect().max_fds.filter(|files| *files > 0);
        let files = files.and_then(|files| usize::try_from(files).ok()).unwrap_or(usize::MAX);
        let total = CONNECTIONS_MAX.min(files - files / FILES_RESERVED);
        Limits { total, per_address: total.div_ceil(2) }
    }
}

/// The open connections.
pub(crate) struct Admission {
    limits: Limits,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    next: u64,
    connections: HashMap<u64, Place>,
    by_address: HashMap<IpAddr, usize>,
    /// The ids of those that have no call under way, in the order in which they make room.
    idle: BTreeMap<Turn, u64>,
}

/// The place of a connection.
struct Place {
    address: IpAddr,
    evicted: CancellationToken,
    /// `None`: it has a call under way.
    turn: Option<Turn>,
}

/// When an idle connection makes room: first those that never sent a request, then those that have been idle for longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    served: bool,
    since: u64,
}

impl Open {
    fn tick(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn set_idle(&mut self, id: u64, served: bool) {
        // It may be idle already: two calls that ended at the same time both say so.
        self.set_busy(id);
        let turn = Turn { served, since: self.tick() };
        if let Some(place) = self.connections.get_mut(&id) {
            place.turn = Some(turn);
            self.idle.insert(turn, id);
        }
    }

    fn set_busy(&mut self, id: u64) {
        if let Some(turn) = self.connections.get_mut(&id).and_then(|place| place.turn.take()) {
            self.idle.remove(&turn);
        }
    }

    fn remove(&mut self, id: u64) -> Option<Place> {
        self.set_busy(id);
        let place = self.connections.remove(&id)?;
        if let Some(count) = self.by_address.get_mut(&place.address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&place.address);
            }
        }
        Some(place)
    }

    /// Closes the connection whose turn it is to make room; `of`: only of this address. False: there is none.
    fn evict(&mut self, of: Option<IpAddr>) -> bool {
        let is_of =
            |id: &u64| of.is_none_or(|of| self.connections.get(id).is_some_and(|place| place.address == of));
        let Some(id) = self.idle.values().copied().find(is_of) else { return false };
        self.remove(id).is_some_and(|place| {
            place.evicted.cancel();
            true
        })
    }
}

impl Admission {
    pub(crate) fn new(limits: Limits) -> Arc<Admission> {
        Arc::new(Admission { limits, open: Mutex::default() })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a connection. When a limit is reached, one without a call under way makes room: callers that do send one are served
    /// although others hold idle connections. `None`: there is none, and this one is refused.
    pub(crate) fn admit(self: &Arc<Admission>, address: IpAddr) -> Option<Arc<Admitted>> {
        let address = network(address);
        let mut open = self.open();
        let of_address = open.by_address.get(&address).copied().unwrap_or(0);
        if of_address >= self.limits.per_address && !open.evict(Some(address)) {
            return None;
        }
        if open.connections.len() >= self.limits.total && !open.evict(None) {
            return None;
        }
        let (id, evicted) = (open.tick(), CancellationToken::new());
        open.connections.insert(id, Place { address, evicted: evicted.clone(), turn: None });
        *open.by_address.entry(address).or_default() += 1;
        open.set_idle(id, false);
        Some(Arc::new(Admitted {
            id,
            evicted,
            served: AtomicBool::new(false),
            calls: AtomicUsize::new(0),
            heads: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            probes: Arc::new(Semaphore::new(PROBES_MAX)),
            refusals: Arc::new(Semaphore::new(REFUSAL_BYTES_MAX)),
            ages: Arc::default(),
            admission: self.clone(),
        }))
    }
}

/// What counts as one address: an IPv4 address, or the network of 64 bits that an IPv6 host can choose its addresses in.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        address => address,
    }
}

/// An admitted connection. Its place is free again when it is dropped.
pub(crate) struct Admitted {
    id: u64,
    evicted: CancellationToken,
    served: AtomicBool,
    /// Calls under way.
    calls: AtomicUsize,
    /// Requests of HTTP/1 that it has sent, and those of them that are under way.
    heads: AtomicUsize,
    requests: AtomicUsize,
    /// Places for probes.
    probes: Arc<Semaphore>,
    /// Room for answers to callers without a token.
    refusals: Arc<Semaphore>,
    ages: Arc<Ages>,
    admission: Arc<Admission>,
}

impl Admitted {
    /// Cancelled when the connection must be closed to make room for another.
    pub(crate) fn evicted(&self) -> CancellationToken {
        self.evicted.clone()
    }

    /// Whether the connection has sent a request.
    pub(crate) fn is_served(&self) -> bool {
        self.served.load(Ordering::Acquire)
    }

    /// The connection has sent a request: it makes room after those that were idle before it.
    pub(crate) fn note_request(&self) {
        self.served.store(true, Ordering::Release);
        let mut open = self.admission.open();
        if self.calls.load(Ordering::Acquire) == 0 {
            open.set_idle(self.id, true);
        }
    }

    /// The connection is not closed to make room while this call is under way.
    pub(crate) fn begin_call(self: &Arc<Admitted>) -> Call {
        if self.calls.fetch_add(1, Ordering::AcqRel) == 0 {
            self.admission.open().set_busy(self.id);
        }
        Call { admitted: self.clone() }
    }

    /// A request of HTTP/1 is under way until the last copy of it is dropped.
    pub(crate) fn begin_request(self: &Arc<Admitted>) -> Arc<HttpRequest> {
        self.requests.fetch_add(1, Ordering::AcqRel);
        self.heads.fetch_add(1, Ordering::AcqRel);
        Arc::new(HttpRequest { admitted: self.clone() })
    }

    /// How many requests of HTTP/1 it has sent. `None`: one is under way.
    pub(crate) fn heads(&self) -> Option<usize> {
        let heads = self.heads.load(Ordering::Acquire);
        (self.requests.load(Ordering::Acquire) == 0).then_some(heads)
    }

    /// A probe is under way until the last copy of it is dropped. `None`: there are too many.
    pub(crate) fn begin_probe(&self) -> Option<Probe> {
        let permit = self.probes.clone().try_acquire_owned().ok()?;
        Some(Probe { _permit: Arc::new(permit) })
    }

    /// Room for answers to callers without a token, in bytes.
    pub(crate) fn refusals(&self) -> &Arc<Semaphore> {
        &self.refusals
    }

    /// The parts of answers that the client has not taken yet.
    pub(crate) fn ages(&self) -> &Arc<Ages> {
        &self.ages
    }

    /// Closes the connection.
    pub(crate) fn cut(&self) {
        self.evicted.cancel();
    }

    fn end_call(&self) {
        if self.calls.fetch_sub(1, Ordering::AcqRel) == 1 {
            let mut open = self.admission.open();
            // Another call may have begun meanwhile. If it begins now, it waits for the lock.
            if self.calls.load(Ordering::Acquire) == 0 {
                open.set_idle(self.id, true);
            }
        }
    }
}

/// A probe under way, in the extensions of its request, and then with its answer until that is written.
#[derive(Debug, Clone)]
pub(crate) struct Probe {
    _permit: Arc<OwnedSemaphorePermit>,
}

/// A call under way, until it is dropped.
pub(crate) struct Call {
    admitted: Arc<Admitted>,
}

impl Drop for Call {
    fn drop(&mut self) {
        self.admitted.end_call();
    }
}

/// A request of HTTP/1 under way, until it is dropped.
pub(crate) struct HttpRequest {
    admitted: Arc<Admitted>,
}

impl Drop for HttpRequest {
    fn drop(&mut self) {
        self.admitted.requests.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.admission.open().remove(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn a_silent_connection_makes_room_for_a_new_one() {
        let admission = Admission::new(Limits { total: 3, per_address: 2 });
        let first = admission.admit(address(1)).expect("room");
        let second = admission.admit(address(1)).expect("room");
        let first_call = first.begin_call();
        let third = admission.admit(address(1)).expect("the second makes room");
        assert!(second.evicted().is_cancelled() && !first.evicted().is_cancelled());
        drop(second);
        let _third_call = third.begin_call();
        assert!(admission.admit(address(1)).is_none(), "both send requests");
        let other = admission.admit(address(2)).expect("one address does not take all");
        let _other_call = other.begin_call();
        assert!(admission.admit(address(3)).is_none(), "the limit in all");
        drop((first, first_call));
        assert!(admission.admit(address(3)).is_some());
    }

    #[test]
    fn a_connection_makes_room_again_when_its_calls_have_ended() {
        let admission = Admission::new(Limits { total: 2, per_address: 2 });
        let served = admission.admit(address(1)).expect("room");
        let calls = [served.begin_call(), served.begin_call()];
        drop(calls);
        let silent = admission.admit(address(1)).expect("room");
        let third = admission.admit(address(1)).expect("room is made");
        assert!(silent.evicted().is_cancelled(), "one that never sent a request goes first");
        let _third_call = third.begin_call();
        let call = served.begin_call();
        assert!(admission.admit(address(1)).is_none(), "a call is under way");
        drop(call);
        assert!(admission.admit(address(1)).is_some());
        assert!(served.evicted().is_cancelled());
        drop((served, silent));
        assert_eq!(admission.open().connections.len(), 1, "what was evicted is not counted twice");
    }

    #[test]
    fn calls_that_end_at_the_same_time_leave_one_turn() {
        let admission = Admission::new(Limits { total: 1, per_address: 1 });
        let admitted = admission.admit(address(1)).expect("room");
        drop(admitted.begin_call());
        // The other one was counted as ended before, and gets the lock only now.
        admission.open().set_idle(admitted.id, true);
        assert_eq!(admission.open().idle.len(), 1);
        let _call = admitted.begin_call();
        assert!(admission.admit(address(2)).is_none(), "its call is under way");
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_address() {
        let one: IpAddr = "2001:db8::1".parse().expect("an address");
        let two: IpAddr = "2001:db8::ffff:2".parse().expect("an address");
        assert_eq!(network(one), network(two));
        assert_eq!(network("::ffff:10.0.0.1".parse().expect("an address")), address(1));
    }
}
