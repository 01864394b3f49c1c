//! Connections from clients, with TLS or without.

pub(crate) mod connections;
pub(crate) mod tls;
