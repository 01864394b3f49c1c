//! TLS for HTTP and for the database: the root certificates of the system.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};

/// The certificates of the system cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("TLS cannot be set up: {0}")]
pub struct TlsError(String);

/// Verifies peers against the root certificates of the system. A system without any verifies nothing: every handshake fails.
///
/// # Errors
/// If the cryptography of this build lacks the protocol versions.
pub fn client_config() -> Result<Arc<ClientConfig>, TlsError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError(error.to_string()))?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}
