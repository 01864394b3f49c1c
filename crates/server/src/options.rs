//! The settings of a server.

use std::time::Duration;

use crate::listen::tls::Tls;

/// The settings of a server.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// How long a worker may send no heartbeat before it is declared dead and its jobs are given to others. Use the same
    /// for all nodes and workers. Default: 30 seconds.
    pub lease: Duration,
    /// How long finished jobs are kept. Default: 7 days.
    pub keep_history: Duration,
    /// For how long the lease of a worker must not have been renewed before a person can recover its jobs. Default: 30 minutes.
    pub stale_after: Duration,
    /// Whether workers can open streams here, and this node does maintenance: sweeps, plans and promotions. False: the node answers
    /// calls and does nothing by itself. Default: true.
    pub serve_workers: bool,
    /// Whether callers on this machine need a token too: for a server behind a proxy. Callers on other machines always
    /// need one. Default: false.
    pub require_tokens: bool,
    /// The certificates for TLS. Default: no TLS.
    pub tls: Option<Tls>,
    /// Whether to record spans, for the OpenTelemetry provider of this process. Default: false.
    pub traces: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            lease: Duration::from_secs(30),
            keep_history: Duration::from_secs(7 * 24 * 3600),
            stale_after: Duration::from_secs(30 * 60),
            serve_workers: true,
            require_tokens: false,
            tls: None,
            traces: false,
        }
    }
}
