//! How long the disk alone takes to write one page, beside a load: a commit of the load waits for it at least as long.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

/// Often enough to see a stall of a tenth of a second, and rare enough not to be a load itself.
const EVERY: Duration = Duration::from_millis(20);
const PAGE: [u8; 8192] = [0; 8192];

/// A thread that writes a page to a file and waits until it is on the disk, again and again.
pub(crate) struct DiskProbe {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<Duration>>,
}

impl DiskProbe {
    pub(crate) fn start(folder: &Path) -> Result<DiskProbe> {
        let file = File::create(folder.join("disk_probe"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !stopped.load(Ordering::Relaxed) {
                std::thread::sleep(EVERY);
                let begun = Instant::now();
                file.write_all_at(&PAGE, 0)?;
                file.sync_data()?;
                longest = longest.max(begun.elapsed());
            }
            Ok(longest)
        });
        Ok(DiskProbe { stop, thread })
    }

    /// The longest of these writes.
    pub(crate) fn longest(self) -> Result<Duration> {
        self.stop.store(true, Ordering::Relaxed);
        Ok(self.thread.join().map_err(|_| anyhow!("the thread that writes to the disk panicked"))??)
    }
}
