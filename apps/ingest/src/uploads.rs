//! Files that were sent: streamed to a folder, never held in memory. All processes that run the jobs share the folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use tokio::fs::{self, File, OpenOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::error::Error;

/// Uploads at a time. Each has a file and a connection.
const UPLOADS_MAX: usize = 16;
/// The largest file.
const BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;
/// An upload that sends nothing for this long is given up.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Files are deleted after this long. A job that is dead can be retried until then.
const KEEP: Duration = Duration::from_secs(7 * 24 * 3600);

/// The folder of uploads. Cheap to clone.
#[derive(Clone)]
pub struct Uploads {
    folder: Arc<Path>,
    room: Arc<Semaphore>,
    bytes_max: u64,
}

/// A file in the folder. It is deleted with this value, unless it was kept.
pub struct Upload {
    path: PathBuf,
    name: String,
    bytes: u64,
    is_kept: bool,
}

impl Uploads {
    /// Uploads to this folder, which is created when it is needed.
    pub fn new(folder: impl Into<PathBuf>) -> Uploads {
        Uploads {
            folder: folder.into().into(),
            room: Arc::new(Semaphore::new(UPLOADS_MAX)),
            bytes_max: BYTES_MAX,
        }
    }

    /// The same folder, with another limit of bytes for each file.
    #[must_use]
    pub fn limit(self, bytes_max: u64) -> Uploads {
        Uploads { bytes_max, ..self }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The path of a file that was kept under this name.
    pub(crate) fn path(&self, name: &str) -> Result<PathBuf, Error> {
        let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_name {
            return Err(Error::Invalid(format!("`{name}` is not the name of an upload")));
        }
        Ok(self.folder.join(format!("{name}.csv")))
    }

    /// Writes a stream to a file, as it arrives. A stream that fails, is too long or falls silent leaves nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the stream does not end well, [`Error::Busy`] if too many are under way.
    pub async fn receive<E: std::fmt::Display>(
        &self,
        stream: impl Stream<Item = Result<Bytes, E>>,
    ) -> Result<Upload, Error> {
        let _room = self
            .room
            .try_acquire()
            .map_err(|_| Error::Busy(format!("{UPLOADS_MAX} uploads are under way: send this one later")))?;
        let (mut upload, mut file) = self.create().await?;
        let mut stream = std::pin::pin!(stream);
        loop {
            let chunk = timeout(SILENCE_MAX, stream.next()).await;
            let chunk = chunk.map_err(|_| {
                let silence = SILENCE_MAX.as_secs();
                Error::Invalid(format!("the upload fell silent for {silence} seconds: send it again"))
            })?;
            let Some(chunk) = chunk else { break };
            let chunk = chunk.map_err(|error| {
                Error::Invalid(format!(
                    "the upload was cut off after {} bytes: send it again ({error})",
                    upload.bytes
                ))
            })?;
            upload.bytes += chunk.len() as u64;
            self.check_size(&upload)?;
            file.write_all(&chunk).await.map_err(|error| self.failed(&error))?;
        }
        // The last write may still be on its way, and `sync_all` would drop its error.
        file.flush().await.map_err(|error| self.failed(&error))?;
        file.sync_all().await.map_err(|error| self.failed(&error))?;
        Ok(upload)
    }

    /// Copies a file of this machine.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is too long, [`Error::Unreadable`] if it cannot be read.
    pub async fn copy(&self, from: &Path) -> Result<Upload, Error> {
        let unreadable = |error| Error::Unreadable(format!("`{}` cannot be read: {error}", from.display()));
        // One byte more than the limit shows that it is too long, also if it grows, or has no size.
        let mut source = File::open(from).await.map_err(unreadable)?.take(self.bytes_max.saturating_add(1));
        let (mut upload, mut file) = self.create().await?;
        upload.bytes = tokio::io::copy(&mut source, &mut file).await.map_err(unreadable)?;
        self.check_size(&upload)?;
        file.sync_all().await.map_err(|error| self.failed(&error))?;
        Ok(upload)
    }

    fn check_size(&self, upload: &Upload) -> Result<(), Error> {
        let max = self.bytes_max;
        if upload.bytes > max {
            return Err(Error::Invalid(format!("the file has more than {max} bytes: send it in parts")));
        }
        Ok(())
    }

    async fn create(&self) -> Result<(Upload, File), Error> {
        fs::create_dir_all(&self.folder).await.map_err(|error| self.failed(&error))?;
        let name = format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..));
        let path = self.path(&name)?;
        // Only this account reads what others sent.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).await;
        let file = file.map_err(|error| self.failed(&error))?;
        Ok((Upload { path, name, bytes: 0, is_kept: false }, file))
    }

    fn failed(&self, error: &std::io::Error) -> Error {
        Error::Unreadable(format!("the folder `{}` cannot be written: {error}", self.folder.display()))
    }

    /// Deletes a file whose job is done.
    pub(crate) async fn delete(&self, name: &str) {
        if let Ok(path) = self.path(name) {
            // If this fails, the file is deleted when it is old.
            let _ = fs::remove_file(path).await;
        }
    }

    /// Deletes files that were not needed for a week.
    pub(crate) async fn delete_old(&self) -> std::io::Result<()> {
        let Ok(mut files) = fs::read_dir(&self.folder).await else { return Ok(()) };
        while let Some(file) = files.next_entry().await? {
            let changed = file.metadata().await.and_then(|metadata| metadata.modified());
            let is_old =
                changed.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age > KEEP));
            if is_old && file.path().extension().is_some_and(|extension| extension == "csv") {
                fs::remove_file(file.path()).await?;
            }
        }
        Ok(())
    }
}

impl Upload {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps the file, for a job. Returns its name.
    pub(crate) fn keep(mut self) -> String {
        self.is_kept = true;
        std::mem::take(&mut self.name)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
