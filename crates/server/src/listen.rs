//! Connections as they come in, with TLS or without.

pub(crate) mod connections;
pub(crate) mod tls;
