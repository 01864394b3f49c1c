//! TLS to a webhook.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};

use crate::error::SinkError;

/// Verifies the server against the root certificates of the system, or those in the file that `SSL_CERT_FILE` names.
pub(super) fn client_config() -> Result<Arc<ClientConfig>, SinkError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| SinkError::Settings(format!("TLS cannot be set up: {error}")))?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}
