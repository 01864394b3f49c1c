//! A free port on loopback.

use std::net::{Ipv4Addr, TcpListener};

use crate::options::random;

/// Below the range that Linux and macOS give to outgoing connections: one of those on our port while we
/// are down would keep us from coming back on it.
const FIRST: u16 = 15_500;
const COUNT: u16 = 10_000;

/// How many ports to look at; if all are taken, something else is wrong with this machine.
const TRIES: u16 = 200;

/// A port that is free now. It may be taken before Postgres has it: the caller tries again then.
pub(crate) fn pick() -> u16 {
    let start = (random() % u64::from(COUNT)) as u16;
    let mut candidates = (0..TRIES).map(|step| FIRST + (start + step) % COUNT);
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    candidates.find(is_free).unwrap_or(FIRST + start)
}
