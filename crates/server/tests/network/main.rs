//! The network between workers and nodes fails: connections fall silent, break, or lose a response.
//!
//! Both ends notice a silent connection after at most 15 seconds (`KEEPALIVE`); the tests that wait for it take that
//! long.

mod gate;
mod proxy;
mod queries;
mod reports;
mod silence;
mod streams;
#[path = "../support/mod.rs"]
mod support;
