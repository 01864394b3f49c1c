//! How a node behaves.

use std::time::Duration;

use crate::listen::tls::Tls;

/// How a node behaves.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// How long a worker may be silent before its jobs are given to others. Use the same for all nodes and workers.
    pub lease: Duration,
    /// How long finished jobs are remembered.
    pub keep_history: Duration,
    /// Nobody comes in without a token, also from this machine: for a server behind a proxy. An address that other machines
    /// can reach needs them in any case.
    pub require_tokens: bool,
    /// Certificates, for TLS.
    pub tls: Option<Tls>,
    /// Make spans, for the OpenTelemetry provider that this process has set.
    pub traces: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            lease: Duration::from_secs(30),
            keep_history: Duration::from_secs(7 * 24 * 3600),
            require_tokens: false,
            tls: None,
            traces: false,
        }
    }
}
