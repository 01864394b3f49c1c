//! The limits of one fetch.

use std::time::Duration;

/// How long name resolution, connecting and the TLS handshake may take.
pub const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long a fetch may take with all its redirects.
pub const TOTAL_MAX: Duration = Duration::from_secs(30);
/// The largest document, after decompression. Large podcast feeds have 5 MiB.
pub const BODY_BYTES_MAX: usize = 10 * 1024 * 1024;
/// How many redirects are followed.
pub const REDIRECTS_MAX: usize = 5;
/// Fetches at a time from one host.
pub const HOST_FETCHES_MAX: u32 = 2;
/// The time between the starts of two fetches from one host.
pub const HOST_GAP: Duration = Duration::from_millis(500);
/// How long a fetch waits for its turn at a host before its slot is given to another host.
pub const HOST_WAIT_MAX: Duration = Duration::from_secs(1);
/// The same for a worker that only fetches what is due: nothing else needs the slot. A hundred fetches, as many as there are
/// slots by default, take this long at a host that needs 20 seconds for each.
pub const DUE_HOST_WAIT_MAX: Duration = Duration::from_secs(1000);
