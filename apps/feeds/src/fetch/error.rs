//! Why a fetch failed.

use std::net::IpAddr;
use std::time::Duration;

use crate::fetch::limits::{BODY_BYTES_MAX, CONNECT_MAX, REDIRECTS_MAX, TOTAL_MAX};

/// Why a fetch failed. The message is kept with the source and shown to people.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// Not an absolute http or https URL.
    #[error("`{0}` cannot be fetched: give an absolute URL that begins with http:// or https://")]
    Url(String),
    /// No address of the host may be connected to.
    #[error("`{host}` has the address {address}, which is not public: allow private addresses to fetch it")]
    Address {
        /// The host that was named.
        host: String,
        /// The address that was refused.
        address: IpAddr,
    },
    /// The name has no address.
    #[error("the name `{0}` cannot be resolved: {1}")]
    Resolve(String, String),
    /// No connection.
    #[error("cannot connect to `{0}`: {1}")]
    Connect(String, String),
    /// No connection in time.
    #[error("no connection to `{0}` after {CONNECT_MAX:?}")]
    ConnectTime(String),
    /// The certificate was refused, or the handshake failed.
    #[error("TLS with `{0}` failed: {1}")]
    Tls(String, String),
    /// The exchange broke.
    #[error("the exchange with `{0}` broke: {1}")]
    Exchange(String, String),
    /// No complete answer in time.
    #[error("no complete answer after {TOTAL_MAX:?}")]
    Time,
    /// The body is too large, compressed or not.
    #[error("the document has more than {BODY_BYTES_MAX} bytes")]
    TooLarge,
    /// The body cannot be decompressed.
    #[error("the document cannot be decompressed: {0}")]
    Encoding(String),
    /// Too many redirects.
    #[error("more than {REDIRECTS_MAX} redirects")]
    Redirects,
    /// A redirect without a usable target.
    #[error("the redirect to `{0}` cannot be followed")]
    Redirect(String),
    /// The host asked for a pause in answer to another fetch: not an error of the source.
    #[error("`{host}` asked for a pause")]
    HostPaused {
        /// The host.
        host: String,
        /// When the pause ends.
        retry_in: Duration,
    },
    /// The limit of the host is reached: not an error of the source.
    #[error("`{host}` is busy with other fetches")]
    HostBusy {
        /// The host.
        host: String,
        /// When to try again.
        retry_in: Duration,
    },
}
