//! A Kafka broker with one node, which ends with its owner.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow, ensure};
use pitwheel_devdb::{Options, free_port};

use crate::child_process::ChildProcess;
use crate::wait::block_until;

const PROPERTIES: &str = include_str!("server.properties");
const REMOVE_WITH_OWNER: &str = include_str!("remove_with_owner.sh");
/// Any value of this form: the cluster has one node, and no other one joins it.
const META: &str =
    "version=1\ncluster.id=pitwheelpitwheelpitwhA\nnode.id=1\ndirectory.id=pitwheelpitwheelpitwhA\n";

const LOGIN_MODULE: &str = "org.apache.kafka.common.security.plain.PlainLoginModule";

/// The certificate of a broker, and who may connect.
pub struct KafkaAccess {
    /// Of the certificate, in PKCS 8.
    pub key_pem: String,
    /// For 127.0.0.1.
    pub certificate_pem: String,
    pub user: String,
    pub password: String,
}

/// Started by the first test that needs it. It ends with this process.
static SHARED: OnceLock<Result<KafkaBroker, String>> = OnceLock::new();

/// A broker on free ports of 127.0.0.1, with its data in a temporary folder. It creates no topics by itself.
///
/// It ends when this value is dropped, and when this process ends, however it ends.
pub struct KafkaBroker {
    folder: PathBuf,
    port: u16,
    secured_port: u16,
    process: Option<ChildProcess>,
    /// Removes the folder when its standard input closes.
    remover: Child,
}

impl KafkaBroker {
    /// Starts a broker. Takes some seconds.
    pub fn start() -> Result<KafkaBroker> {
        KafkaBroker::start_with(None)
    }

    /// Starts a broker that also listens with TLS, for a user with a password. The address of that listener is
    /// [`secured_address`](KafkaBroker::secured_address).
    pub fn start_secured(access: &KafkaAccess) -> Result<KafkaBroker> {
        KafkaBroker::start_with(Some(access))
    }

    fn start_with(access: Option<&KafkaAccess>) -> Result<KafkaBroker> {
        let folder = Options::temporary().dir;
        let data = folder.join("data");
        fs::create_dir_all(&data)?;
        let remover = remove_with_owner(&folder)?;
        let (port, controller, secured_port) = (free_port(), free_port(), free_port());
        let mut listeners = format!("PLAINTEXT://127.0.0.1:{port}");
        let mut lines = vec![
            PROPERTIES.to_owned(),
            format!("controller.quorum.voters=1@127.0.0.1:{controller}"),
            format!("log.dirs={}", data.display()),
        ];
        if let Some(access) = access {
            let keystore = folder.join("keystore.pem");
            fs::write(&keystore, format!("{}{}", access.key_pem, access.certificate_pem))?;
            listeners += &format!(",SECURED://127.0.0.1:{secured_port}");
            let (user, password) = (&access.user, &access.password);
            lines.extend([
                format!("listener.name.secured.ssl.keystore.location={}", keystore.display()),
                format!("listener.name.secured.plain.sasl.jaas.config={LOGIN_MODULE} required user_{user}=\"{password}\";"),
            ]);
        }
        lines.push(format!("listeners={listeners},CONTROLLER://127.0.0.1:{controller}"));
        lines.push(format!("advertised.listeners={listeners}"));
        fs::write(folder.join("server.properties"), lines.join("\n"))?;
        // What `kafka.tools.StorageTool format` writes, without the start of another Java.
        fs::write(data.join("meta.properties"), META)?;
        let mut broker = KafkaBroker { folder, port, secured_port, process: None, remover };
        broker.start_again()?;
        Ok(broker)
    }

    /// The broker that the tests of this process share.
    pub async fn shared() -> Result<&'static KafkaBroker> {
        let start = || SHARED.get_or_init(|| KafkaBroker::start().map_err(|error| format!("{error:#}")));
        let started = tokio::task::spawn_blocking(start).await?;
        started.as_ref().map_err(|error| anyhow!("no Kafka for the tests: {error}"))
    }

    /// Its address, for clients.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The address for clients with TLS and a password, if it was started with them.
    pub fn secured_address(&self) -> String {
        format!("127.0.0.1:{}", self.secured_port)
    }

    /// Stops it as an operator does. Its data stay.
    pub fn stop(&mut self) -> Result<()> {
        if let Some(mut process) = self.process.take() {
            process.signal("TERM")?;
            process.wait()?;
        }
        Ok(())
    }

    /// Kills it. Its data stay.
    pub fn kill(&mut self) -> Result<()> {
        self.process.take().map_or(Ok(()), |mut process| process.kill())
    }

    /// Starts it on the same ports with the same data, and waits until it accepts connections.
    pub fn start_again(&mut self) -> Result<()> {
        let jars = jars()?;
        let log = File::create(self.folder.join("log"))?;
        let mut java = Command::new("java");
        java.args(["-Xmx512m", "-Xms512m", "-XX:+UseSerialGC", "-cp"])
            .arg(jars.join("*"))
            .arg("kafka.Kafka")
            .arg(self.folder.join("server.properties"));
        let mut process = ChildProcess::spawn(&java, log.try_clone()?.into(), log.into())
            .context("Kafka cannot be started: is Java installed?")?;
        fs::write(self.folder.join("pid"), process.id().to_string())?;
        let mut ended = Ok(false);
        block_until("Kafka accepts connections", || {
            ended = process.has_ended();
            !matches!(ended, Ok(false)) || TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok()
        })?;
        let output = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        ensure!(!ended?, "Kafka ended at its start:\n{output}");
        self.process = Some(process);
        Ok(())
    }
}

impl Drop for KafkaBroker {
    fn drop(&mut self) {
        let _ = self.kill();
        drop(self.remover.stdin.take());
        let _ = self.remover.wait();
    }
}

fn remove_with_owner(folder: &Path) -> io::Result<Child> {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", REMOVE_WITH_OWNER, "pitwheel-remover"]).arg(folder).arg(folder.join("pid"));
    shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

/// The folder of Kafka's jars, in cargo's target folder.
fn jars() -> Result<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    let jars = workspace.join(target).join("kafka/libs");
    ensure!(jars.exists(), "the jars of Kafka are missing: run `scripts/kafka target`, or `make test`");
    Ok(jars)
}
