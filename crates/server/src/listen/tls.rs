//! TLS, from files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use crate::error::Error;

/// Where the certificates are, all in PEM.
#[derive(Debug, Clone)]
pub struct Tls {
    /// The server's certificate, and those between it and the root.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authority that clients' certificates must come from; without one, clients need none.
    pub client_ca: Option<PathBuf>,
}

impl Tls {
    pub(crate) fn acceptor(&self) -> Result<TlsAcceptor, Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::Tls(error.to_string()))?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(|error| wrong(path, &error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| wrong(path, &error))?)
            }
        };
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|error| match error {
            pem::Error::NoItemsFound => wrong(&self.key, &"no private key is in it"),
            error => wrong(&self.key, &error),
        })?;
        let mut config = builder
            .with_single_cert(certificates(&self.certificate)?, key)
            .map_err(|error| wrong(&self.certificate, &error))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(found) if found.is_empty() => Err(wrong(path, &"no certificate is in it")),
        Ok(found) => Ok(found),
        Err(error) => Err(wrong(path, &error)),
    }
}

fn wrong(path: &Path, problem: &dyn std::fmt::Display) -> Error {
    Error::Tls(format!("`{}`: {problem}", path.display()))
}
