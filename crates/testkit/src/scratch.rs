//! A folder for one test, removed with it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use pitwheel_devdb::Options;

/// A folder under the system's temporary folder. It is removed with this value.
pub struct ScratchFolder {
    path: PathBuf,
}

impl ScratchFolder {
    /// A path where nothing exists yet, for a test whose subject creates the folder.
    pub fn missing() -> ScratchFolder {
        ScratchFolder { path: Options::temporary().dir }
    }

    /// An empty folder.
    pub fn create() -> io::Result<ScratchFolder> {
        let folder = ScratchFolder::missing();
        fs::create_dir(&folder.path)?;
        Ok(folder)
    }

    /// Where the folder is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
