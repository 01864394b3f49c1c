//! The user that Postgres runs as: our own, or `postgres` when we are root, because Postgres refuses to run as root.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::unistd::{Uid, User};

use crate::error::Error;

/// The user that Postgres runs as.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Account {
    /// The ids of the user and group to switch to when we are root; `None`: our own user.
    switch_to: Option<(u32, u32)>,
}

impl Account {
    /// Our own user, or `postgres` when we are root.
    pub(crate) fn for_postgres() -> Result<Account, Error> {
        if !is_root() {
            return Ok(Account { switch_to: None });
        }
        let user = User::from_name("postgres")
            .map_err(|error| Error::io("look up the user", Path::new("postgres"))(error.into()))?
            .ok_or(Error::NoPostgresUser)?;
        Ok(Account { switch_to: Some((user.uid.as_raw(), user.gid.as_raw())) })
    }

    /// Whether Postgres runs as another user than we do.
    pub(crate) fn is_other_user(&self) -> bool {
        self.switch_to.is_some()
    }

    /// A command that runs as this account, in `/`, without the caller's `PG*` variables and in the C locale. The log must
    /// be in English for us to read it, and `PGOPTIONS` or `PGPORT` of the caller's shell are for another server.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("PG") || text.starts_with("LC_") || text.starts_with("LANG") {
                command.env_remove(&name);
            }
        }
        command.env("LC_ALL", "C").current_dir("/").stdin(Stdio::null());
        if let Some((user, group)) = self.switch_to {
            command.uid(user).gid(group);
        }
        command
    }

    /// Creates `folder` and its missing parents.
    pub(crate) fn create_folders(&self, folder: &Path) -> Result<(), Error> {
        let missing: Vec<&Path> = folder.ancestors().take_while(|path| !path.exists()).collect();
        for path in missing.into_iter().rev().filter(|path| !path.as_os_str().is_empty()) {
            match fs::create_dir(path) {
                Ok(()) => self.set_mode(path)?,
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Error::io("create", path)(error)),
            }
        }
        Ok(())
    }

    /// Sets the mode of a new `folder`: only its owner may enter, unless Postgres runs as another user. This is a step of
    /// its own because the umask narrows the mode at the creation.
    pub(crate) fn set_mode(&self, folder: &Path) -> Result<(), Error> {
        let mode = if self.is_other_user() { 0o755 } else { 0o700 };
        fs::set_permissions(folder, fs::Permissions::from_mode(mode))
            .map_err(Error::io("set the mode of", folder))
    }

    /// Creates `folder`, private to this account.
    pub(crate) fn create_private(&self, folder: &Path) -> Result<(), Error> {
        if let Err(error) = fs::create_dir(folder)
            && error.kind() != std::io::ErrorKind::AlreadyExists
        {
            return Err(Error::io("create", folder)(error));
        }
        self.own(folder)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))
            .map_err(Error::io("set the mode of", folder))
    }

    /// Makes this account the owner of `path`. Does nothing when the account is our own.
    pub(crate) fn own(&self, path: &Path) -> Result<(), Error> {
        match self.switch_to {
            Some((user, group)) => {
                lchown(path, Some(user), Some(group)).map_err(Error::io("change the owner of", path))
            }
            None => Ok(()),
        }
    }

    /// Whether this account can enter `folder` and write to it. A parent folder may deny access.
    pub(crate) fn reaches(&self, folder: &Path) -> Result<bool, Error> {
        let mut test = self.command("/bin/sh");
        test.args(["-c", "cd \"$1\" && test -w .", "sh"])
            .arg(folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Ok(test.status().map_err(Error::io("run", Path::new("/bin/sh")))?.success())
    }
}

/// Whether this process runs as root.
pub(crate) fn is_root() -> bool {
    Uid::effective().is_root()
}
