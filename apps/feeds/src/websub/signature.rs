//! The signature of pushed content: HMAC over the body, with the secret that the hub was given.

use ring::hmac::{self, Algorithm, Key};

/// Why pushed content is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// No signature.
    #[error("the content is not signed: send `X-Hub-Signature`")]
    Missing,
    /// A signature of another form.
    #[error("the signature has an unknown form: send `method=hex` with sha1, sha256, sha384 or sha512")]
    Malformed,
    /// Another secret, or other content.
    #[error("the signature does not fit the content")]
    Wrong,
}

/// An `X-Hub-Signature` that is well-formed.
#[derive(Debug)]
pub(crate) struct Signature {
    algorithm: Algorithm,
    tag: Vec<u8>,
}

impl Signature {
    /// What can be said without the body: a signature is there, and some body could have it.
    pub(crate) fn parse(header: Option<&str>) -> Result<Signature, SignatureError> {
        let header = header.ok_or(SignatureError::Missing)?;
        let (method, hex) = header.trim().split_once('=').ok_or(SignatureError::Malformed)?;
        let algorithm = algorithm(&method.to_ascii_lowercase()).ok_or(SignatureError::Malformed)?;
        let tag = bytes(hex).ok_or(SignatureError::Malformed)?;
        if tag.len() != algorithm.digest_algorithm().output_len() {
            return Err(SignatureError::Wrong);
        }
        Ok(Signature { algorithm, tag })
    }

    /// Verifies the signature of a body, in constant time.
    pub(crate) fn verify(&self, secret: &str, body: &[u8]) -> Result<(), SignatureError> {
        let key = Key::new(self.algorithm, secret.as_bytes());
        hmac::verify(&key, body, &self.tag).map_err(|_| SignatureError::Wrong)
    }
}

/// Verifies the `X-Hub-Signature` of a body, in constant time.
///
/// # Errors
/// If it is missing, malformed or wrong.
pub fn verify(secret: &str, signature: Option<&str>, body: &[u8]) -> Result<(), SignatureError> {
    Signature::parse(signature)?.verify(secret, body)
}

fn algorithm(method: &str) -> Option<Algorithm> {
    match method {
        "sha1" => Some(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY),
        "sha256" => Some(hmac::HMAC_SHA256),
        "sha384" => Some(hmac::HMAC_SHA384),
        "sha512" => Some(hmac::HMAC_SHA512),
        _ => None,
    }
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    if !hex.is_ascii() || !hex.len().is_multiple_of(2) {
        return None;
    }
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signed(method: &str, algorithm: Algorithm, secret: &str, body: &[u8]) -> String {
        let tag = hmac::sign(&Key::new(algorithm, secret.as_bytes()), body);
        let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{method}={hex}")
    }

    #[test]
    fn all_methods_are_verified() {
        for method in ["sha1", "sha256", "sha384", "sha512"] {
            let signature = signed(method, algorithm(method).expect("known"), "s", b"body");
            assert_eq!(verify("s", Some(&signature), b"body"), Ok(()), "{method}");
            assert_eq!(verify("t", Some(&signature), b"body"), Err(SignatureError::Wrong), "{method}");
            assert_eq!(verify("s", Some(&signature), b"bodY"), Err(SignatureError::Wrong), "{method}");
            let short = &signature[..signature.len() - 2];
            assert_eq!(verify("s", Some(short), b"body"), Err(SignatureError::Wrong), "{method}");
        }
        let other = signed("sha256", hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, "s", b"body");
        assert_eq!(verify("s", Some(&other), b"body"), Err(SignatureError::Wrong));
    }

    #[test]
    fn missing_and_malformed_signatures_are_refused() {
        assert_eq!(verify("s", None, b""), Err(SignatureError::Missing));
        for malformed in ["", "sha256", "md5=00", "sha256=xy", "sha256=abc", "=00"] {
            assert_eq!(verify("s", Some(malformed), b""), Err(SignatureError::Malformed), "{malformed}");
        }
    }
}
