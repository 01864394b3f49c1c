//! The limits that several parts share, each with its reason.

use std::time::Duration;

/// Jobs per claim. A hold keeps their ids in one row, inside its page; larger batches gained nothing measurable.
pub const CLAIM_MAX: usize = 500;
/// Jobs per enqueue statement: enough to make the round trip cheap, few enough to bound a message (500 × 256 KiB at worst).
pub const ENQUEUE_MAX: usize = 500;
/// Jobs per enqueue statement, and rows per promotion, where lanes are concerned. Each lane takes a lock until the commit, and
/// the server's memory for locks is limited: 6,400 by default.
pub const LANES_MAX: usize = 100;
/// Endings per settle, and results per report.
pub const SETTLE_MAX: usize = 1000;
/// An ending with this many bytes, of its result and its followers, counts as one more, so that a batch has at most 16 MB.
pub const BYTES_PER_ENDING: usize = 16 * 1024;
/// Followers per job. More jobs belong into an enqueue of their own.
pub const FOLLOWERS_MAX: usize = 100;
/// Bytes of the payloads, metadata and keys of the followers of one job. They are written by one statement, and a remote worker
/// sends them in one message of at most 4 MiB, beside the result.
pub const FOLLOWERS_BYTES_MAX: usize = 3 * 1024 * 1024;
/// Steps with which a pipeline is created. Handlers can add more, up to ten times as many.
pub const STEPS_MAX: usize = 1000;
/// Steps that one step comes after: a claim reads the results of all of them.
pub const PARENTS_MAX: usize = 100;
/// A delay or a timeout that is longer is a mistake in its unit, and would overflow in later arithmetic.
pub const SPAN_MAX: Duration = Duration::from_secs(100 * 366 * 24 * 3600);
/// Bytes of a cadence. It is read with every run; the longest sensible one names all minutes, hours and days. The table has this limit too.
pub const CADENCE_BYTES_MAX: usize = 512;
/// An error message is cut after this many characters: it is read by people, and 50 of them are kept with the job.
pub const ERROR_CHARS_MAX: usize = 4000;
/// A progress note is cut after this many characters: it is one line for a person.
pub const NOTE_CHARS_MAX: usize = 500;
