//! What keeps a node from serving.

use std::net::SocketAddr;

/// What went wrong with a node.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database, or its schema.
    #[error(transparent)]
    Pitwheel(#[from] pitwheel::Error),
    /// The network.
    #[error("cannot serve: {0}")]
    Transport(#[from] tonic::transport::Error),
    /// A certificate or key cannot be used.
    #[error("TLS cannot be set up: {0}")]
    Tls(String),
    /// Anyone who reaches the address could do anything.
    #[error(
        "{0} can be reached from other machines, and there are no tokens: make one with `pitwheel tokens create NAME --role admin`, or listen on 127.0.0.1 or [::1]"
    )]
    Open(SocketAddr),
}
