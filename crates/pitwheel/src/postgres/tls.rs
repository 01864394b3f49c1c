//! TLS to Postgres, as `sslmode=require` in the URL asks for it.

use std::sync::Arc;

use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::Error;

/// Verifies the server against the system's root certificates, or those in the file that `SSL_CERT_FILE` names.
pub(crate) fn tls() -> Result<MakeRustlsConnect, Error> {
    let mut roots = rustls::RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if added == 0 {
        return Err(Error::Url(
            "sslmode=require, but no root certificates were found: set SSL_CERT_FILE to your authority's certificate".into(),
        ));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Url(format!("TLS cannot be set up: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}
