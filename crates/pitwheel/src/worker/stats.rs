//! What a worker did.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a worker did between its start and its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Attempts that were started.
    pub started: u64,
    /// Attempts whose ending was written.
    pub settled: u64,
    /// Attempts whose ending was refused, because the claim was lost.
    pub lost: u64,
}

/// Counts while the worker runs.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    started: AtomicU64,
    settled: AtomicU64,
    lost: AtomicU64,
}

impl Counters {
    pub(crate) fn started(&self, attempts: usize) {
        self.started.fetch_add(attempts as u64, Ordering::Relaxed);
    }

    pub(crate) fn settled(&self, attempts: u64) {
        self.settled.fetch_add(attempts, Ordering::Relaxed);
    }

    pub(crate) fn lost(&self, attempts: u64) {
        self.lost.fetch_add(attempts, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            started: self.started.load(Ordering::Relaxed),
            settled: self.settled.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
        }
    }
}
