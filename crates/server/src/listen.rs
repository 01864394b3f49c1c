//! Connections from clients, with TLS or without, and the bodies of their requests.

pub(crate) mod admission;
pub(crate) mod bodies;
pub(crate) mod connections;
mod entries;
pub(crate) mod lifetimes;
pub(crate) mod reflection;
pub(crate) mod tls;
