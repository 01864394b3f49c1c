//! Through PgBouncer in transaction mode, where no two statements need share a connection.

mod support;

use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use pitwheel::{Cancelled, Context, Job, NewJob, Pitwheel, State, Verdict, Worker};
use pitwheel_testkit::TestDb;
use serde::{Deserialize, Serialize};
use support::{Work, start, until, worker};
use tokio::net::TcpStream;
use tokio_postgres::config::Host;

/// A PgBouncer before the server of a test, stopped when dropped.
struct Bouncer {
    process: Child,
    folder: PathBuf,
    port: u16,
    url: String,
}

impl Bouncer {
    /// Five connections to the server, however many clients there are.
    async fn before(db: &TestDb) -> Result<Bouncer> {
        let mut bouncer = Bouncer::spawn(db)?;
        let address = ("127.0.0.1", bouncer.port);
        until("pgbouncer listens", || async { Ok(TcpStream::connect(address).await.is_ok()) }).await?;
        let ended = bouncer.process.try_wait()?;
        ensure!(ended.is_none(), "pgbouncer ended: {ended:?}");
        Ok(bouncer)
    }

    fn spawn(db: &TestDb) -> Result<Bouncer> {
        let server: tokio_postgres::Config = db.url().parse()?;
        let (Some(Host::Tcp(host)), Some(port)) = (server.get_hosts().first(), server.get_ports().first())
        else {
            bail!("the test server is not reached by TCP: {}", db.url());
        };
        let user = server.get_user().context("the test server's URL names no user")?;
        // PgBouncer does not understand an empty one.
        let password =
            server.get_password().map(|password| format!("password='{}'", String::from_utf8_lossy(password)));
        let password = password.unwrap_or_default();
        let name = server.get_dbname().context("the test server's URL names no database")?;
        let own_port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let folder = std::env::temp_dir().join(format!("{name}_bouncer_{own_port}"));
        std::fs::create_dir(&folder)?;
        let config = folder.join("pgbouncer.ini");
        std::fs::write(
            &config,
            format!(
                "[databases]\n\
                * = host={host} port={port} user={user} {password}\n\
                [pgbouncer]\n\
                listen_addr = 127.0.0.1\n\
                listen_port = {own_port}\n\
                unix_socket_dir =\n\
                auth_type = any\n\
                pool_mode = transaction\n\
                default_pool_size = 5\n"
            ),
        )?;
        let mut command = Command::new(program()?);
        command.arg("--quiet").arg(&config).stdin(Stdio::null());
        if let Some(postgres) = user_to_become()? {
            command.uid(postgres);
        }
        let process = command.spawn().context("pgbouncer does not start")?;
        Ok(Bouncer {
            process,
            folder,
            port: own_port,
            url: format!("postgres://{user}@127.0.0.1:{own_port}/{name}"),
        })
    }
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        // Nothing to be done about a failure here: it has ended already, or the machine is in retry_delay.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// PgBouncer on the PATH, or where Debian keeps it for root.
fn program() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders
        .map(|folder| folder.join("pgbouncer"))
        .find(|program| program.is_file())
        .context("pgbouncer was not found: install the package `pgbouncer`")
}

/// PgBouncer refuses to be root; then it runs as `postgres`.
fn user_to_become() -> Result<Option<u32>> {
    if std::fs::metadata("/proc/self")?.uid() != 0 {
        return Ok(None);
    }
    let users = std::fs::read_to_string("/etc/passwd")?;
    let mut fields =
        users.lines().map(|line| line.split(':')).filter(|line| line.clone().next() == Some("postgres"));
    let id = fields.next().and_then(|mut fields| fields.nth(2));
    Ok(Some(id.context("there is no user `postgres`")?.parse()?))
}

/// Snoozes once.
#[derive(Serialize, Deserialize)]
struct Sleepy {}

impl Job for Sleepy {
    const KIND: &'static str = "sleepy";
}

/// Fails at its first attempt.
#[derive(Serialize, Deserialize)]
struct Shaky {}

impl Job for Shaky {
    const KIND: &'static str = "shaky";
}

/// Runs until it is cancelled.
#[derive(Serialize, Deserialize)]
struct Endless {}

impl Job for Endless {
    const KIND: &'static str = "endless";
}

/// Handlers for all of these.
fn with_handlers(worker: Worker) -> Worker {
    let leases_extended = Arc::new(AtomicBool::new(false));
    worker
        .handle(async |_: Work, _| Ok::<_, &str>(()))
        .handle(move |_: Sleepy, _| {
            let again = leases_extended.swap(true, Ordering::Relaxed);
            async move {
                Ok::<_, &str>(if again {
                    Verdict::complete().into()
                } else {
                    Verdict::Snooze(Duration::from_millis(20))
                })
            }
        })
        .handle(async |_: Shaky, context: Context| {
            Ok::<_, &str>(if context.attempt() > 1 {
                Verdict::complete().into()
            } else {
                Verdict::retry_after(Duration::from_millis(20), "not yet")
            })
        })
        .handle(async |_: Endless, context: Context| {
            context.cancelled().await;
            Err::<(), _>("stopped")
        })
}

/// Everything a program does, through the bouncer alone.
async fn works(db: &TestDb, bouncer: &Bouncer, worker: Worker, pitwheel: &Pitwheel) -> Result<()> {
    let jobs: Vec<Work> = (0..500).map(|n| Work { n }).collect();
    let worker = start(with_handlers(worker).lease(Duration::from_secs(2)));
    pitwheel.enqueue_many(&jobs).await?;
    let sleepy = pitwheel.enqueue(&Sleepy {}).await?.id;
    let shaky = pitwheel.enqueue(&Shaky {}).await?.id;
    let endless = pitwheel.enqueue(&Endless {}).await?.id;
    let later = NewJob::of(&Work { n: -1 }).delay(Duration::from_secs(3600)).key("later");
    let later_id = pitwheel.enqueue(later.clone()).await?.id;
    ensure!(pitwheel.enqueue(later).await?.id == later_id);
    ensure!(pitwheel.cancel(later_id).await? == Cancelled::AtOnce);

    let is = |id, state| async move { Ok(db.state(id).await? == Some(state)) };
    until("the endless job runs", || is(endless, State::Running)).await?;
    ensure!(pitwheel.cancel(endless).await? == Cancelled::Requested);
    until("it is cancelled", || is(endless, State::Cancelled)).await?;
    until("the snoozed job is done", || is(sleepy, State::Done)).await?;
    until("the failed job is done", || is(shaky, State::Done)).await?;
    let done = "select count(*) from pitwheel.job_history where state = 'done' and kind = 'work'";
    until("all is done", || async { Ok(db.count(done).await? == 500) }).await?;

    let stats = worker.stop().await?;
    ensure!(stats.started == stats.settled && stats.lost == 0, "{stats:?}");
    let unwell = "select count(*) from pitwheel.job_history where errors is not null and kind = 'work'";
    ensure!(db.count(unwell).await? == 0, "jobs failed through {}", bouncer.url);
    Ok(())
}

#[tokio::test]
async fn a_worker_without_hints_works_through_pgbouncer() -> Result<()> {
    let db = TestDb::unmigrated().await?;
    let bouncer = Bouncer::before(&db).await?;
    let pitwheel = Pitwheel::connect(&bouncer.url).await?;
    pitwheel.migrate().await?;
    works(&db, &bouncer, worker(&pitwheel).without_hints(), &pitwheel).await
}

#[tokio::test]
async fn a_worker_that_hears_no_hints_through_pgbouncer_polls() -> Result<()> {
    let db = TestDb::new().await?;
    let bouncer = Bouncer::before(&db).await?;
    let pitwheel = Pitwheel::connect(&bouncer.url).await?;
    works(&db, &bouncer, worker(&pitwheel), &pitwheel).await
}
