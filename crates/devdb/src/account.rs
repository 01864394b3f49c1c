//! Whom Postgres runs as: ourselves, or the `postgres` user when we are root, as whom it refuses to run.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::Error;

/// Whom Postgres runs as.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Account {
    /// The user and group to become; `None` when we are a plain user and stay ourselves.
    become_user: Option<(u32, u32)>,
    root: bool,
}

impl Account {
    /// Who we are; whether root has a `postgres` user is asked by [`Account::for_postgres`].
    pub(crate) fn current() -> Result<Account, Error> {
        // std has no geteuid, and `id` is in POSIX.
        let id = Command::new("id").arg("-u").output().map_err(Error::io("run", Path::new("id")))?;
        Ok(Account { become_user: None, root: id.stdout.trim_ascii() == b"0" })
    }

    /// The account Postgres runs as.
    pub(crate) fn for_postgres() -> Result<Account, Error> {
        let mut account = Account::current()?;
        if account.root {
            let path = Path::new("/etc/passwd");
            let users = fs::read_to_string(path).map_err(Error::io("read", path))?;
            account.become_user = Some(user_in(&users, "postgres").ok_or(Error::NoPostgresUser)?);
        }
        Ok(account)
    }

    pub(crate) fn is_root(&self) -> bool {
        self.root
    }

    /// A command run as this account, from `/`, without the caller's `PG*` settings and in the C locale:
    /// we read what Postgres logs, and `PGOPTIONS` or `PGPORT` of the caller's shell are not meant for it.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("PG") || text.starts_with("LC_") || text.starts_with("LANG") {
                command.env_remove(&name);
            }
        }
        command.env("LC_ALL", "C").current_dir("/").stdin(Stdio::null());
        if let Some((user, group)) = self.become_user {
            command.uid(user).gid(group);
        }
        command
    }

    /// Makes `folder` and its missing parents.
    pub(crate) fn create_folders(&self, folder: &Path) -> Result<(), Error> {
        let missing: Vec<&Path> = folder.ancestors().take_while(|path| !path.exists()).collect();
        for path in missing.into_iter().rev().filter(|path| !path.as_os_str().is_empty()) {
            match fs::create_dir(path) {
                Ok(()) => self.open(path)?,
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Error::io("create", path)(error)),
            }
        }
        Ok(())
    }

    /// Lets this account, and when we are a plain user nobody else, into a new `folder`. Apart from its
    /// creation, whose mode the umask narrows.
    pub(crate) fn open(&self, folder: &Path) -> Result<(), Error> {
        let mode = if self.root { 0o755 } else { 0o700 };
        fs::set_permissions(folder, fs::Permissions::from_mode(mode))
            .map_err(Error::io("set the mode of", folder))
    }

    /// Makes `folder`, private to this account.
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

    /// Gives `path` to this account; nothing to do when that is who we are.
    pub(crate) fn own(&self, path: &Path) -> Result<(), Error> {
        match self.become_user {
            Some((user, group)) => {
                lchown(path, Some(user), Some(group)).map_err(Error::io("change the owner of", path))
            }
            None => Ok(()),
        }
    }

    /// Whether this account can enter and write `folder`: a parent of it may be closed.
    pub(crate) fn reaches(&self, folder: &Path) -> Result<bool, Error> {
        let mut test = self.command("/bin/sh");
        test.args(["-c", "cd \"$1\" && test -w .", "sh"])
            .arg(folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Ok(test.status().map_err(Error::io("run", Path::new("/bin/sh")))?.success())
    }
}

/// The user and group ids of `name` in the text of `/etc/passwd`.
fn user_in(users: &str, name: &str) -> Option<(u32, u32)> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some(name) {
            return None;
        }
        let user = fields.nth(1)?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        Some((user, group))
    })
}

#[cfg(test)]
mod tests {
    use super::user_in;

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        let users =
            "daemon:x:1:1::/:/bin/sh\npostgresql:x:7:8::/:/bin/sh\npostgres:x:101:104:a,b:/var:/bin/sh\n";

        assert_eq!(user_in(users, "postgres"), Some((101, 104)));
        assert_eq!(user_in(users, "nobody"), None);
        assert_eq!(user_in("postgres:x", "postgres"), None);
    }
}
