//! Bytes of a stream that are on their way to its client. HTTP/2 takes messages long before it can write them, and a client that reads
//! nothing leaves them in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many bytes of one stream were handed on and are not written yet. In the extensions of its answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unwritten {
    bytes: Arc<AtomicUsize>,
}

impl Unwritten {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Acquire)
    }

    /// So many bytes are handed on. They count until all parts of the value are dropped.
    pub(crate) fn add(&self, bytes: usize) -> UnwrittenBytes {
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
        UnwrittenBytes { of: self.clone(), bytes }
    }
}

/// Bytes that count until this is dropped.
pub(crate) struct UnwrittenBytes {
    of: Unwritten,
    bytes: usize,
}

impl UnwrittenBytes {
    /// The share of a part of these bytes.
    pub(crate) fn split(&mut self, bytes: usize) -> UnwrittenBytes {
        let part = bytes.min(self.bytes);
        self.bytes -= part;
        UnwrittenBytes { of: self.of.clone(), bytes: part }
    }
}

impl Drop for UnwrittenBytes {
    fn drop(&mut self) {
        self.of.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}
