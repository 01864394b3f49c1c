//! A free port on loopback.

use std::net::{Ipv4Addr, TcpListener};

use crate::options::random;

/// Below the range that Linux and macOS use for outgoing connections. Such a connection could take the port while the server
/// is down, and the server could not use it again.
const FIRST: u16 = 15_500;
const COUNT: u16 = 10_000;

/// How many ports to try. If all of them are in use, something else is wrong with this machine.
const TRIES: u16 = 200;

/// A port of 127.0.0.1 that is free now. Another program may take it before the caller does; the caller then tries again.
pub fn free_port() -> u16 {
    let start = (random() % u64::from(COUNT)) as u16;
    let mut candidates = (0..TRIES).map(|step| FIRST + (start + step) % COUNT);
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    candidates.find(is_free).unwrap_or(FIRST + start)
}
