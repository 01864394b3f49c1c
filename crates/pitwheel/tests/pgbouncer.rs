//! Everything works through PgBouncer in transaction mode, where each transaction may run on another connection.

use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use pitwheel::engine::{Session, Sql};
use pitwheel::{Cancelled, Context, Job, NewJob, Pitwheel, State, Verdict, Worker};
use pitwheel_testkit::{ChildProcess, ScratchFolder, TestDb, Work, start_worker, wait_until, worker};
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio_postgres::config::Host;

/// A PgBouncer in front of the server of a test, ended with it.
struct Bouncer {
    process: ChildProcess,
    _folder: ScratchFolder,
    port: u16,
    url: String,
}

impl Bouncer {
    /// Five connections to the server, however many clients there are.
    async fn in_front_of(db: &TestDb) -> Result<Bouncer> {
        let mut bouncer = Bouncer::spawn(db)?;
        let address = ("127.0.0.1", bouncer.port);
        wait_until("pgbouncer listens", || async { Ok(TcpStream::connect(address).await.is_ok()) }).await?;
        ensure!(!bouncer.process.has_ended()?, "pgbouncer ended");
        Ok(bouncer)
    }

    fn spawn(db: &TestDb) -> Result<Bouncer> {
        let server: tokio_postgres::Config = db.url().parse()?;
        let (Some(Host::Tcp(host)), Some(port)) = (server.get_hosts().first(), server.get_ports().first())
        else {
            bail!("the test server is not reached by TCP: {}", db.url());
        };
        let user = server.get_user().context("the test server's URL names no user")?;
        // PgBouncer does not accept an empty password.
        let password =
            server.get_password().map(|password| format!("password='{}'", String::from_utf8_lossy(password)));
        let password = password.unwrap_or_default();
        let name = server.get_dbname().context("the test server's URL names no database")?;
        let own_port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let folder = ScratchFolder::create()?;
        let config = folder.path().join("pgbouncer.ini");
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
        command.arg("--quiet").arg(&config);
        // PgBouncer refuses to run as root.
        if std::fs::metadata("/proc/self")?.uid() == 0 {
            command.args(["--user", "postgres"]);
        }
        Ok(Bouncer {
            process: ChildProcess::spawn(&command, Stdio::inherit(), Stdio::inherit())?,
            _folder: folder,
            port: own_port,
            url: format!("postgres://{user}@127.0.0.1:{own_port}/{name}"),
        })
    }
}

/// PgBouncer on the PATH, or where Debian installs it.
fn program() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders
        .map(|folder| folder.join("pgbouncer"))
        .find(|program| program.is_file())
        .context("pgbouncer was not found: install the package `pgbouncer`")
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

/// The worker with handlers for all kinds.
fn with_handlers(worker: Worker) -> Worker {
    let snoozed = Arc::new(AtomicBool::new(false));
    worker
        .handle(async |_: Work, _| Ok::<_, &str>(()))
        .handle(move |_: Sleepy, _| {
            let again = snoozed.swap(true, Ordering::Relaxed);
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

/// Everything a program does with Pitwheel, through PgBouncer alone.
async fn works(db: &TestDb, bouncer: &Bouncer, worker: Worker, pitwheel: &Pitwheel) -> Result<()> {
    let jobs: Vec<Work> = (0..500).map(|n| Work { n }).collect();
    let worker = start_worker(with_handlers(worker).lease(Duration::from_secs(2)));
    pitwheel.enqueue_many(&jobs).await?;
    let sleepy = pitwheel.enqueue(&Sleepy {}).await?.id;
    let shaky = pitwheel.enqueue(&Shaky {}).await?.id;
    let endless = pitwheel.enqueue(&Endless {}).await?.id;
    let later = NewJob::of(&Work { n: -1 }).delay(Duration::from_secs(3600)).key("later");
    let later_id = pitwheel.enqueue(later.clone()).await?.id;
    ensure!(pitwheel.enqueue(later).await?.id == later_id);
    ensure!(pitwheel.cancel(later_id).await? == Cancelled::AtOnce);

    let is = |id, state| async move { Ok(db.state(id).await? == Some(state)) };
    wait_until("the endless job runs", || is(endless, State::Running)).await?;
    ensure!(pitwheel.cancel(endless).await? == Cancelled::Requested);
    wait_until("it is cancelled", || is(endless, State::Cancelled)).await?;
    wait_until("the snoozed job is done", || is(sleepy, State::Done)).await?;
    wait_until("the failed job is done", || is(shaky, State::Done)).await?;
    let done = "select count(*) from pitwheel.job_history where state = 'done' and kind = 'work'";
    wait_until("all is done", || async { Ok(db.count(done).await? == 500) }).await?;

    let stats = worker.stop().await?;
    ensure!(stats.started == stats.settled && stats.lost == 0, "{stats:?}");
    let failed = "select count(*) from pitwheel.job_history where errors is not null and kind = 'work'";
    ensure!(db.count(failed).await? == 0, "jobs failed through {}", bouncer.url);
    Ok(())
}

#[tokio::test]
async fn a_worker_without_hints_works_through_pgbouncer() -> Result<()> {
    let db = TestDb::unmigrated().await?;
    let bouncer = Bouncer::in_front_of(&db).await?;
    let pitwheel = Pitwheel::connect(&bouncer.url).await?;
    pitwheel.migrate().await?;
    works(&db, &bouncer, worker(&pitwheel).without_hints(), &pitwheel).await
}

#[tokio::test]
async fn a_worker_that_receives_no_hints_through_pgbouncer_polls() -> Result<()> {
    let db = TestDb::new().await?;
    let bouncer = Bouncer::in_front_of(&db).await?;
    let pitwheel = Pitwheel::connect(&bouncer.url).await?;
    works(&db, &bouncer, worker(&pitwheel), &pitwheel).await
}

#[tokio::test]
async fn every_statement_through_pgbouncer_pins_what_the_engine_depends_on() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    let name: String = client.query_one("select current_database()::text", &[]).await?.get(0);
    for setting in [
        "default_transaction_isolation = 'serializable'",
        "default_transaction_read_only = on",
        "timezone = 'Asia/Kathmandu'",
        "datestyle = 'German'",
        "synchronous_commit = off",
    ] {
        client.batch_execute(&format!("alter database {name} set {setting}")).await?;
    }
    let bouncer = Bouncer::in_front_of(&db).await?;
    let pitwheel = Pitwheel::connect(&bouncer.url).await?;
    let pool = pitwheel.pool_for_loops(3, Duration::from_secs(6))?;
    let pins = [
        ("transaction_isolation", "read committed"),
        ("transaction_read_only", "off"),
        ("timezone", "UTC"),
        ("datestyle", "ISO, DMY"),
        ("synchronous_commit", "on"),
        ("statement_timeout", "5s"),
        ("lock_timeout", "200ms"),
        ("client_connection_check_interval", "2s"),
    ];
    let settings = pins.map(|(setting, _)| format!("current_setting('{setting}')"));
    let sql = &format!("select {}", settings.join(", "));
    for _ in 0..10 {
        for prepared in [false, true] {
            let read = async |session: Arc<Session>| {
                if prepared { session.rows(sql, &[]).await } else { session.rows_once(sql, &[]).await }
            };
            let rows = pool.run(read).await?;
            for (at, (setting, pinned)) in pins.iter().enumerate() {
                assert_eq!(rows[0].get::<_, &str>(at), *pinned, "{setting}");
            }
        }
    }
    // Another client of the pooler finds the session as it was.
    let plain = pitwheel_testkit::connect(&bouncer.url).await?;
    let isolation: String = plain.query_one("show default_transaction_isolation", &[]).await?.get(0);
    assert_eq!(isolation, "serializable");
    works(&db, &bouncer, worker(&pitwheel).without_hints(), &pitwheel).await
}
