//! The doors of `pitwheel serve`: who is let in, with which token, and over TLS.

use std::fs;
use std::io::Read;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};

use crate::support::{Db, Node, Ran, Result, get, signal};

fn token(db: &Db, name: &str, role: &str) -> Result<String> {
    Ok(db.run(&["tokens", "create", name, "--role", role])?.with_code(0)?.out.trim().to_owned())
}

#[test]
fn an_open_address_needs_a_token_and_every_call_shows_one() -> Result {
    let db = Db::migrated()?;
    let refused = db.run(&["serve", "--listen", "0.0.0.0:0"])?.with_code(2)?;
    refused.says_error("pitwheel tokens create NAME --role admin");
    assert_eq!(refused.out, "", "it was announced, and then refused");

    db.enqueue(&["greet"])?;
    let secret = token(&db, "me", "admin")?;
    let node = Node::start(&db, "0.0.0.0:0", &[])?;
    let (status, body) = node.get("/api/v1/jobs", Some(&secret))?;
    let page: Value = serde_json::from_str(&body)?;
    assert_eq!((status, &page["jobs"]), (200, &db.json(&["jobs", "list"])?));
    assert_eq!(node.get("/api/v1/jobs", None)?.0, 401);
    assert_eq!(node.get("/api/v1/jobs", Some("pitwheel_0000"))?.0, 401);
    assert_eq!(node.get("/metrics", None)?.0, 401);
    assert_eq!(node.get("/healthz", None)?.0, 200);
    Ok(())
}

#[test]
fn on_loopback_tokens_are_asked_for_when_you_say_so() -> Result {
    let db = Db::migrated()?;
    let free = Node::start(&db, "127.0.0.1:0", &[])?;
    assert_eq!(free.get("/api/v1/queues", None)?.0, 200);
    let kept = Node::start(&db, "127.0.0.1:0", &["--require-tokens"])?;
    assert_eq!(kept.get("/api/v1/queues", None)?.0, 401);
    let mut command = db.command(&["serve", "--listen", "127.0.0.1:0"]);
    let by_variable = Node::of(command.env("PITWHEEL_REQUIRE_TOKENS", "true").stderr(Stdio::null()))?;
    assert_eq!(by_variable.get("/api/v1/queues", None)?.0, 401);
    Ok(())
}

#[test]
fn serve_tells_where_its_doors_are() -> Result {
    let db = Db::migrated()?;
    let announced = |args: &[&str]| -> Result<String> {
        let mut command = db.command(&[&["serve", "--listen", "127.0.0.1:0"], args].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut out = child.stdout.take().ok_or("no output")?;
        let mut first = [0];
        out.read_exact(&mut first)?;
        signal("TERM", child.id())?;
        let mut text = String::from_utf8(first.to_vec())?;
        out.read_to_string(&mut text)?;
        assert_eq!(child.wait()?.code(), Some(0));
        Ok(text)
    };
    let text = announced(&[])?;
    for words in ["gRPC and HTTP on 127.0.0.1:", "/api/openapi.json\n", "/metrics\n", "need no token"] {
        assert!(text.contains(words), "no {words:?}: {text}");
    }
    assert!(announced(&["--require-tokens"])?.contains("pitwheel tokens create"));
    let json: Value = serde_json::from_str(&announced(&["-o", "json"])?)?;
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
fn what_a_server_logs_is_json_on_every_line() -> Result {
    let db = Db::migrated()?;
    token(&db, "me", "admin")?;
    let mut command = db.command(&["serve", "--listen", "0.0.0.0:0", "--log-format", "json"]);
    let mut node = Node::of(command.stderr(Stdio::piped()))?;
    let mut err = node.child.stderr.take().ok_or("no words")?;
    assert_eq!(node.end("TERM")?, Some(0));
    let mut text = String::new();
    err.read_to_string(&mut text)?;

    let lines = text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let says = |level: &str, words: &str| {
        let holds = |line: &Value| line["message"].as_str().is_some_and(|message| message.contains(words));
        lines.iter().any(|line| line["level"] == level && line["timestamp"].is_string() && holds(line))
    };
    assert!(says("WARN", "travel in the clear"), "{text}");
    assert!(says("INFO", "stopping"), "{text}");
    Ok(())
}

/// An authority, and what it has signed: a server's certificate and a client's, as files.
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

    /// A GET of a client that trusts the authority, with a certificate of its own or without.
    fn get(&self, node: &Node, path: &str, with_own: bool) -> Result<(u16, String)> {
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
        let connection = ClientConnection::new(Arc::new(config), ServerName::try_from("localhost")?)?;
        get(StreamOwned::new(connection, TcpStream::connect(&node.address)?), path, None)
    }
}

const TLS: [&str; 4] = ["--tls-cert", "server.pem", "--tls-key", "server.key"];

#[test]
fn a_client_that_trusts_the_authority_is_served_over_tls() -> Result {
    let db = Db::migrated()?;
    let certificates = Certificates::make(&db)?;
    let node = Node::start(&db, "127.0.0.1:0", &TLS)?;
    assert_eq!(certificates.get(&node, "/healthz", false)?, (200, json!({ "status": "ok" }).to_string()));
    assert_eq!(certificates.get(&node, "/api/v1/jobs", false)?.0, 200);
    assert!(node.get("/healthz", None).is_err(), "it answers without TLS, too");

    let mut command = db.command(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("PITWHEEL_TLS_CERT", "server.pem").env("PITWHEEL_TLS_KEY", "server.key");
    let by_variable = Node::of(command.stderr(Stdio::null()))?;
    assert_eq!(certificates.get(&by_variable, "/healthz", false)?.0, 200);
    Ok(())
}

#[test]
fn with_an_authority_for_clients_nobody_comes_in_without_a_certificate() -> Result {
    let db = Db::migrated()?;
    let certificates = Certificates::make(&db)?;
    let node = Node::start(&db, "127.0.0.1:0", &[&TLS[..], &["--tls-client-ca", "ca.pem"]].concat())?;
    assert_eq!(certificates.get(&node, "/healthz", true)?.0, 200);
    assert!(certificates.get(&node, "/healthz", false).is_err(), "it answers without a certificate, too");
    Ok(())
}

#[test]
fn certificates_that_cannot_be_used_are_a_matter_of_usage() -> Result {
    let db = Db::migrated()?;
    Certificates::make(&db)?;
    let serve = |args: &[&str]| -> Result<Ran> {
        db.run(&[&["serve", "--listen", "127.0.0.1:0"], args].concat())?.with_code(2)
    };
    let alone = serve(&["--tls-cert", "server.pem"])?;
    assert!(alone.err.contains("--tls-key <FILE>"), "{alone:#?}");
    let alone = serve(&["--tls-client-ca", "ca.pem"])?;
    assert!(alone.err.contains("--tls-cert <FILE>"), "{alone:#?}");
    let nowhere = serve(&["--tls-cert", "nowhere.pem", "--tls-key", "server.key"])?;
    nowhere.says_error("TLS cannot be set up: `nowhere.pem`");
    assert_eq!(nowhere.out, "");
    serve(&["--tls-cert", "server.pem", "--tls-key", "client.key"])?.says_error("TLS cannot be set up");
    Ok(())
}
