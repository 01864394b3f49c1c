//! The metrics of the fetcher.

use std::time::Duration;

use metrics::{counter, describe_counter, describe_histogram, histogram};

const CLAIMED: &str = "sources_claimed_total";
const FETCHED: &str = "sources_fetched_total";
const DURATION: &str = "sources_fetch_duration_seconds";
const ERRORS: &str = "sources_fetch_errors_total";

/// Describes the metrics, and exports the counters with 0 before the first fetch.
pub(crate) fn describe() {
    describe_counter!(CLAIMED, "Sources that were claimed to be fetched.");
    describe_counter!(FETCHED, "Fetches that succeeded.");
    describe_histogram!(DURATION, "The duration of fetches.");
    describe_counter!(ERRORS, "Fetches that failed.");
    for name in [CLAIMED, FETCHED, ERRORS] {
        counter!(name).increment(0);
    }
}

pub(crate) fn claimed() {
    counter!(CLAIMED).increment(1);
}

/// A fetch has ended.
pub(crate) fn ended(succeeded: bool, took: Duration) {
    histogram!(DURATION).record(took);
    counter!(if succeeded { FETCHED } else { ERRORS }).increment(1);
}
