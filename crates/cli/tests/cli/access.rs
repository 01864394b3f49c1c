//! Which callers `pitwheel serve` accepts: with which token, from where, and over TLS.

use std::fs;
use std::io::{Read, read_to_string};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use pitwheel_testkit::{ChildProcess, Http, HttpResponse, WAIT_MAX};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::support::{Db, Node, Output, Result};

fn token(db: &Db, name: &str, role: &str) -> Result<String> {
    Ok(db.run(&["tokens", "create", name, "--role", role])?.with_code(0)?.out.trim().to_owned())
}

#[test]
fn an_address_reachable_from_other_machines_needs_a_token_in_every_call() -> Result {
    let db = Db::migrated()?;
    let refused = db.run(&["serve", "--listen", "0.0.0.0:0"])?.with_code(2)?;
    refused.assert_error("pitwheel tokens create NAME --role admin");
    assert_eq!(refused.out, "", "the address was printed although it was refused");

    db.enqueue(&["greet"])?;
    let secret = token(&db, "me", "admin")?;
    let node = Node::start(&db, "0.0.0.0:0", &[])?;
    let page = node.get("/api/v1/jobs", Some(&secret))?;
    assert_eq!((page.status, &page.json()?["jobs"]), (200, &db.json(&["jobs", "list"])?));
    assert_eq!(node.get("/api/v1/jobs", None)?.status, 401);
    assert_eq!(node.get("/api/v1/jobs", Some("pitwheel_0000"))?.status, 401);
    assert_eq!(node.get("/metrics", None)?.status, 401);
    assert_eq!(node.get("/healthz", None)?.status, 200);
    Ok(())
}

#[test]
fn on_loopback_tokens_are_required_only_with_the_option() -> Result {
    let db = Db::migrated()?;
    let open = Node::start(&db, "127.0.0.1:0", &[])?;
    assert_eq!(open.get("/api/v1/queues", None)?.status, 200);
    let closed = Node::start(&db, "127.0.0.1:0", &["--require-tokens"])?;
    assert_eq!(closed.get("/api/v1/queues", None)?.status, 401);
    let mut command = db.command(&["serve", "--listen", "127.0.0.1:0"]);
    let by_variable = Node::of(command.env("PITWHEEL_REQUIRE_TOKENS", "true"), Stdio::null())?;
    assert_eq!(by_variable.get("/api/v1/queues", None)?.status, 401);
    Ok(())
}

#[test]
fn serve_prints_its_addresses_and_whether_tokens_are_required() -> Result {
    let db = Db::migrated()?;
    let printed = |args: &[&str]| -> Result<String> {
        let command = db.command(&[&["serve", "--listen", "127.0.0.1:0"], args].concat());
        let mut process = ChildProcess::spawn(&command, Stdio::piped(), Stdio::null())?;
        let mut out = process.take_stdout()?;
        let mut first = [0];
        out.read_exact(&mut first)?;
        process.signal("TERM")?;
        let mut text = String::from_utf8(first.to_vec())?;
        out.read_to_string(&mut text)?;
        assert_eq!(process.wait()?.code(), Some(0));
        Ok(text)
    };
    let text = printed(&[])?;
    for words in ["gRPC and HTTP on 127.0.0.1:", "/api/openapi.json\n", "/metrics\n", "need no token"] {
        assert!(text.contains(words), "no {words:?}: {text}");
    }
    assert!(printed(&["--require-tokens"])?.contains("pitwheel tokens create"));
    let json: Value = serde_json::from_str(&printed(&["-o", "json"])?)?;
    let listen = json["listen"].as_str().ok_or("no address")?;
    assert_eq!(json["url"], json!(format!("http://{listen}")));
    assert_eq!(json["openapi"], json!(format!("http://{listen}/api/openapi.json")));
    assert_eq!(
        (&json["metrics"], &json["tokens"]),
        (&json!(format!("http://{listen}/metrics")), &json!(false))
    );
    Ok(())
}

#[test]
fn every_log_line_of_a_server_is_json_if_you_choose_it() -> Result {
    let db = Db::migrated()?;
    token(&db, "me", "admin")?;
    let command = db.command(&["serve", "--listen", "0.0.0.0:0", "--log-format", "json"]);
    let mut node = Node::of(&command, Stdio::piped())?;
    let err = node.process.take_stderr()?;
    assert_eq!(node.end("TERM")?, Some(0));
    let text = read_to_string(err)?;

    let lines = text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let logged = |level: &str, words: &str| {
        let matches = |line: &Value| line["message"].as_str().is_some_and(|message| message.contains(words));
        lines.iter().any(|line| line["level"] == level && line["timestamp"].is_string() && matches(line))
    };
    assert!(logged("WARN", "travel in the clear"), "{text}");
    assert!(logged("INFO", "stopping"), "{text}");
    Ok(())
}

/// A certificate authority, and a server's and a client's certificate that it has signed, as files.
struct Certificates {
    folder: PathBuf,
}

impl Certificates {
    fn make(db: &Db) -> Result<Certificates> {
        let mut authority = CertificateParams::new(Vec::new())?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
        let folder = db.folder().to_owned();
        fs::write(folder.join("ca.pem"), authority.pem())?;
        for name in ["server", "client"] {
            let key = KeyPair::generate()?;
            let names = vec!["localhost".to_owned()];
            let certificate = CertificateParams::new(names)?.signed_by(&key, &authority)?;
            fs::write(folder.join(format!("{name}.pem")), certificate.pem())?;
            fs::write(folder.join(format!("{name}.key")), key.serialize_pem())?;
        }
        Ok(Certificates { folder })
    }

    /// Connects a client that trusts the authority, with a certificate of its own or without.
    async fn connect(&self, node: &Node, with_own: bool) -> Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.folder.join("ca.pem"))?)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let config = if with_own {
            let certificate = CertificateDer::from_pem_file(self.folder.join("client.pem"))?;
            let key = PrivateKeyDer::from_pem_file(self.folder.join("client.key"))?;
            builder.with_client_auth_cert(vec![certificate], key)?
        } else {
            builder.with_no_client_auth()
        };
        let name = ServerName::try_from("localhost")?;
        let stream = TcpStream::connect(node.address).await?;
        Ok(TlsConnector::from(Arc::new(config)).connect(name, stream).await?)
    }

    /// The response to a `GET` of such a client.
    fn get(&self, node: &Node, path: &str, with_own: bool) -> Result<HttpResponse> {
        Runtime::new()?.block_on(async {
            let stream = self.connect(node, with_own).await?;
            Ok(Http::new(node.address).send_over(stream, "GET", path, "").await?)
        })
    }
}

const TLS: [&str; 4] = ["--tls-cert", "server.pem", "--tls-key", "server.key"];

#[test]
fn a_client_that_trusts_the_authority_is_served_over_tls() -> Result {
    let db = Db::migrated()?;
    let certificates = Certificates::make(&db)?;
    let node = Node::start(&db, "127.0.0.1:0", &TLS)?;
    let health = certificates.get(&node, "/healthz", false)?;
    assert_eq!((health.status, health.text), (200, json!({ "status": "ok" }).to_string()));
    assert_eq!(certificates.get(&node, "/api/v1/jobs", false)?.status, 200);
    assert!(node.get("/healthz", None).is_err(), "it responds without TLS, too");

    let mut command = db.command(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("PITWHEEL_TLS_CERT", "server.pem").env("PITWHEEL_TLS_KEY", "server.key");
    let by_variable = Node::of(&command, Stdio::null())?;
    assert_eq!(certificates.get(&by_variable, "/healthz", false)?.status, 200);
    Ok(())
}

#[test]
fn a_client_that_sends_nothing_after_its_handshake_is_disconnected() -> Result {
    let db = Db::migrated()?;
    let certificates = Certificates::make(&db)?;
    let node = Node::start(&db, "127.0.0.1:0", &TLS)?;
    Runtime::new()?.block_on(async {
        let mut silent = certificates.connect(&node, false).await?;
        let mut rest = Vec::new();
        // An end without a farewell is an error of TLS, and as good.
        let _ = timeout(WAIT_MAX, silent.read_to_end(&mut rest)).await.map_err(|_| "still connected")?;
        assert!(rest.is_empty());
        Ok(())
    })
}

#[test]
fn with_a_client_authority_a_client_without_a_certificate_is_refused() -> Result {
    let db = Db::migrated()?;
    let certificates = Certificates::make(&db)?;
    let node = Node::start(&db, "127.0.0.1:0", &[&TLS[..], &["--tls-client-ca", "ca.pem"]].concat())?;
    assert_eq!(certificates.get(&node, "/healthz", true)?.status, 200);
    assert!(certificates.get(&node, "/healthz", false).is_err(), "it responds without a certificate, too");
    Ok(())
}

#[test]
fn unusable_certificates_are_a_usage_error() -> Result {
    let db = Db::migrated()?;
    Certificates::make(&db)?;
    let serve = |args: &[&str]| -> Result<Output> {
        db.run(&[&["serve", "--listen", "127.0.0.1:0"], args].concat())?.with_code(2)
    };
    let alone = serve(&["--tls-cert", "server.pem"])?;
    assert!(alone.err.contains("--tls-key <FILE>"), "{alone:#?}");
    let alone = serve(&["--tls-client-ca", "ca.pem"])?;
    assert!(alone.err.contains("--tls-cert <FILE>"), "{alone:#?}");
    let missing = serve(&["--tls-cert", "missing.pem", "--tls-key", "server.key"])?;
    missing.assert_error("TLS cannot be set up: `missing.pem`");
    assert_eq!(missing.out, "");
    serve(&["--tls-cert", "server.pem", "--tls-key", "client.key"])?.assert_error("TLS cannot be set up");
    Ok(())
}
