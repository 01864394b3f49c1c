//! Which connections are admitted: limits in all and per address, and who makes room when a limit is reached.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// Connections of a node, if it may open enough files. Each costs memory for its buffers.
const CONNECTIONS_MAX: usize = 10_000;
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
    connections: HashMap<u64, IpAddr>,
    by_address: HashMap<IpAddr, usize>,
    /// Those that sent no request yet, oldest first.
    idle: BTreeMap<u64, (IpAddr, CancellationToken)>,
}

impl Open {
    fn remove(&mut self, id: u64) {
        self.idle.remove(&id);
        let Some(address) = self.connections.remove(&id) else { return };
        let Some(count) = self.by_address.get_mut(&address) else { return };
        *count -= 1;
        if *count == 0 {
            self.by_address.remove(&address);
        }
    }

    /// Closes the oldest connection that sent no request; `of`: only of this address. False: there is none.
    fn evict(&mut self, of: Option<IpAddr>) -> bool {
        let mut idle = self.idle.iter();
        let Some((id, (_, evicted))) = idle.find(|(_, (address, _))| of.is_none_or(|of| of == *address))
        else {
            return false;
        };
        evicted.cancel();
        let id = *id;
        self.remove(id);
        true
    }
}

impl Admission {
    pub(crate) fn new(limits: Limits) -> Arc<Admission> {
        Arc::new(Admission { limits, open: Mutex::default() })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a connection. When a limit is reached, the oldest connection that sent no request makes room: callers that
    /// do send one are served although others hold silent connections. `None`: there is none, and this one is refused.
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
        let id = open.next;
        open.next += 1;
        open.connections.insert(id, address);
        *open.by_address.entry(address).or_default() += 1;
        let evicted = CancellationToken::new();
        open.idle.insert(id, (address, evicted.clone()));
        Some(Arc::new(Admitted { id, evicted, served: AtomicBool::new(false), admission: self.clone() }))
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

    /// The connection has sent a request: it is not closed to make room.
    pub(crate) fn set_served(&self) {
        if !self.served.swap(true, Ordering::AcqRel) {
            self.admission.open().idle.remove(&self.id);
        }
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
        first.set_served();
        let third = admission.admit(address(1)).expect("the second makes room");
        assert!(second.evicted().is_cancelled() && !first.evicted().is_cancelled());
        drop(second);
        third.set_served();
        assert!(admission.admit(address(1)).is_none(), "both send requests");
        let other = admission.admit(address(2)).expect("one address does not take all");
        other.set_served();
        assert!(admission.admit(address(3)).is_none(), "the limit in all");
        drop(first);
        assert!(admission.admit(address(3)).is_some());
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_address() {
        let one: IpAddr = "2001:db8::1".parse().expect("an address");
        let two: IpAddr = "2001:db8::ffff:2".parse().expect("an address");
        assert_eq!(network(one), network(two));
        assert_eq!(network("::ffff:10.0.0.1".parse().expect("an address")), address(1));
    }
}
