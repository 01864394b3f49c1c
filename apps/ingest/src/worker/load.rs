//! A file into the rows of a version: a thread reads and checks, `COPY` writes what is ready.

use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use deadpool_postgres::Object;
use pitwheel::Context;
use tokio::sync::mpsc;

use crate::csv::{Batch, CsvError, CsvOptions, Rows};
use crate::error::Error;
use crate::lane::Dataset;
use crate::metrics;
use crate::store::rows;
use crate::worker::failure::Failure;

/// Rejected rows that are kept. A file with more of them is not what its sender meant.
const REJECTED_MAX: u64 = 10_000;

/// What to load.
pub(crate) struct Input {
    pub(crate) path: PathBuf,
    pub(crate) dataset: Dataset,
    pub(crate) version: i64,
    pub(crate) options: CsvOptions,
}

/// What was loaded.
pub(crate) struct Loaded {
    pub(crate) rows: u64,
    pub(crate) rejected: u64,
    /// The encoding and the delimiter.
    pub(crate) format: String,
}

/// Loads a file. Every batch is a transaction of its own, and none is open while the file is read.
pub(crate) async fn load(client: &mut Object, input: Input, context: &Context) -> Result<Loaded, Failure> {
    let Input { path, dataset, version, options } = input;
    let opened = File::open(&path).and_then(|file| Ok((file.metadata()?.len(), file)));
    let (bytes, file) =
        opened.map_err(|error| Error::Unreadable(format!("`{}`: {error}", path.display())))?;
    let skip_bad_rows = options.skip_bad_rows;
    let (sender, mut batches) = mpsc::channel(1);
    let reading = tokio::task::spawn_blocking(move || read(file, (dataset, version), &options, &sender));
    let mut writing = Writing { client, dataset, version, skip_bad_rows, rows: 0, rejected: 0, first: None };
    let written = writing.run(&mut batches, &mut Report::new(context, bytes)).await;
    // The thread ends when its batches are not taken.
    drop(batches);
    let read = reading.await.map_err(|error| Error::Unreadable(format!("the reader failed: {error}")))?;
    written?;
    let format = read.map_err(|error| writing.failed(error))?;
    writing.check()?;
    Ok(Loaded { rows: writing.rows, rejected: writing.rejected, format })
}

/// Reads the file and sends what is ready, until it is not taken. Returns what was detected.
fn read(
    file: File,
    (dataset, version): (Dataset, i64),
    options: &CsvOptions,
    sender: &mpsc::Sender<Batch>,
) -> Result<String, CsvError> {
    let mut rows = Rows::open(file, dataset.columns(), options)?;
    while let Some(batch) = rows.next_batch(version)? {
        if sender.blocking_send(batch).is_err() {
            break;
        }
    }
    Ok(rows.format())
}

struct Writing<'a> {
    client: &'a mut Object,
    dataset: Dataset,
    version: i64,
    skip_bad_rows: bool,
    rows: u64,
    rejected: u64,
    /// The first row that was rejected.
    first: Option<String>,
}

impl Writing<'_> {
    /// Writes batches until there are none, or it is clear that the file cannot be loaded.
    async fn run(
        &mut self,
        batches: &mut mpsc::Receiver<Batch>,
        report: &mut Report<'_>,
    ) -> Result<(), Failure> {
        while let Some(batch) = batches.recv().await {
            if report.context.is_cancelled() {
                return Err(Failure::Again(given_away()));
            }
            metrics::read(batch.rows, batch.rejected.len() as u64, report.bytes_since(batch.bytes_read));
            self.write(batch).await?;
            report.progress(self.rows, self.rejected);
            if self.rejected > REJECTED_MAX {
                break;
            }
        }
        Ok(())
    }

    async fn write(&mut self, mut batch: Batch) -> Result<(), Error> {
        if let (None, Some(first)) = (&self.first, batch.rejected.first()) {
            let column = first.column.map_or_else(String::new, |column| format!(", column `{column}`"));
            self.first = Some(format!("line {}{column}: {}", first.line, first.reason));
        }
        let room = usize::try_from(REJECTED_MAX.saturating_sub(self.rejected)).unwrap_or(usize::MAX);
        self.rejected += batch.rejected.len() as u64;
        batch.rejected.truncate(room);
        self.rows += batch.rows;
        // Without skipping, one rejected row is enough: what follows is read for its errors only.
        let copy = if self.skip_bad_rows || self.rejected == 0 { batch.copy.into() } else { Bytes::new() };
        if !rows::add_batch(self.client, (self.version, self.dataset), copy, &batch.rejected).await? {
            return Err(given_away());
        }
        Ok(())
    }

    /// Refuses a file that has nothing to load, or too much that is wrong.
    fn check(&self) -> Result<(), Failure> {
        let (rejected, first) = (self.rejected, self.first.as_deref().unwrap_or_default());
        let reason = if rejected > REJECTED_MAX {
            format!("more than {REJECTED_MAX} rows are wrong; the first: {first}")
        } else if rejected > 0 && !self.skip_bad_rows {
            format!("{rejected} rows are wrong, so nothing was loaded; the first: {first}")
        } else if self.rows == 0 && rejected > 0 {
            format!("all {rejected} rows are wrong; the first: {first}")
        } else if self.rows == 0 {
            "the file has a header and no rows".to_owned()
        } else {
            return Ok(());
        };
        Err(Failure::Bad { reason, rejected })
    }

    fn failed(&self, error: CsvError) -> Failure {
        match Failure::from(error) {
            Failure::Bad { reason, .. } => Failure::Bad { reason, rejected: self.rejected },
            again @ Failure::Again(_) => again,
        }
    }
}

fn given_away() -> Error {
    Error::Unreadable("the job was cancelled, or given to another worker".into())
}

/// Tells how far it is.
struct Report<'a> {
    context: &'a Context,
    bytes: u64,
    read: u64,
    begun: Instant,
}

impl<'a> Report<'a> {
    fn new(context: &'a Context, bytes: u64) -> Report<'a> {
        Report { context, bytes, read: 0, begun: Instant::now() }
    }

    /// The bytes since the last call.
    fn bytes_since(&mut self, read: u64) -> u64 {
        let since = read.saturating_sub(self.read);
        self.read = read;
        since
    }

    fn progress(&self, rows: u64, rejected: u64) {
        let fraction = self.read as f64 / self.bytes.max(1) as f64;
        let seconds = self.begun.elapsed().as_secs_f64().max(0.001);
        let rate = rows as f64 / seconds;
        let left = Duration::from_secs_f64((seconds / fraction.max(0.001) - seconds).clamp(0.0, 1e6));
        let rejected = if rejected > 0 { format!(", {rejected} rejected") } else { String::new() };
        let note = format!("{rows} rows{rejected}, {rate:.0} rows/s, {} s left", left.as_secs());
        self.context.progress(fraction as f32, note);
    }
}
