//! The metrics of the ingestion.

use std::time::Duration;

use metrics::{counter, describe_counter, describe_histogram, histogram};

const ROWS: &str = "ingest_rows_total";
const BYTES: &str = "ingest_bytes_total";
const RUNS: &str = "ingest_runs_total";
const DURATION: &str = "ingest_run_duration_seconds";

/// Describes the metrics, and exports the counters with 0 before the first job.
pub(crate) fn describe() {
    describe_counter!(ROWS, "Rows of files, by what became of them.");
    describe_counter!(BYTES, "Bytes of files that were read.");
    describe_counter!(RUNS, "Attempts to load or compute data, by how they ended.");
    describe_histogram!(DURATION, "The duration of these attempts.");
    counter!(BYTES).increment(0);
    for result in ["loaded", "rejected"] {
        counter!(ROWS, "result" => result).increment(0);
    }
    for outcome in ["current", "failed", "lost"] {
        counter!(RUNS, "outcome" => outcome).increment(0);
    }
}

/// Rows were read.
pub(crate) fn read(loaded: u64, rejected: u64, bytes: u64) {
    counter!(ROWS, "result" => "loaded").increment(loaded);
    counter!(ROWS, "result" => "rejected").increment(rejected);
    counter!(BYTES).increment(bytes);
}

/// An attempt has ended: `current`, `failed` or `lost`.
pub(crate) fn ended(outcome: &'static str, took: Duration) {
    counter!(RUNS, "outcome" => outcome).increment(1);
    histogram!(DURATION).record(took);
}
