//! Payloads are checked before they are stored, so that every reader can parse them.
//!
//! The SQL function `pitwheel.check_payload` has the same rules; a test compares the two.

use serde_json::value::RawValue;

/// A larger payload belongs into a store of its own, with a reference in the job.
pub(crate) const BYTES_MAX: usize = 256 * 1024;
/// Deeper nesting overflows the stack of some parsers, that of Postgres among them.
const DEPTH_MAX: usize = 64;
/// `1e131071` has eight bytes here and 131 KB once a reader prints it as a number.
const EXPONENT_MAX: u32 = 999;

/// Why a payload cannot be stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// It is not JSON, or of a type that serde cannot write as JSON.
    #[error("is not JSON: {0}")]
    NotJson(String),
    /// It is above the size limit.
    #[error("has {0} bytes, the limit is {BYTES_MAX}: store it elsewhere and enqueue a reference")]
    TooLarge(usize),
    /// It is nested too deeply.
    #[error("is nested deeper than {DEPTH_MAX} levels: flatten it")]
    TooDeep,
    /// It contains a number that is very long when it is printed.
    #[error("holds a number with an exponent above {EXPONENT_MAX}: send it as a string")]
    HugeExponent,
    /// It contains a character that Postgres cannot store.
    #[error("holds a NUL character, which Postgres cannot store: remove it")]
    Nul,
}

/// Checks one JSON text.
pub(crate) fn check(json: &str) -> Result<(), PayloadError> {
    if json.len() > BYTES_MAX {
        return Err(PayloadError::TooLarge(json.len()));
    }
    scan(json.as_bytes())?;
    // After the scan: the depth is limited by then, so the parser's stack is enough.
    serde_json::from_str::<&RawValue>(json).map_err(|error| PayloadError::NotJson(error.to_string()))?;
    Ok(())
}

/// One pass over the bytes: depth, exponents and NUL escapes; strings are skipped. Does not check the syntax.
fn scan(json: &[u8]) -> Result<(), PayloadError> {
    let mut depth = 0;
    let mut at = 0;
    while at < json.len() {
        match json[at] {
            b'"' => at = skip_string(json, at)?,
            b'[' | b'{' => {
                depth += 1;
                if depth > DEPTH_MAX {
                    return Err(PayloadError::TooDeep);
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'e' | b'E' if at > 0 && json[at - 1].is_ascii_digit() => check_exponent(&json[at + 1..])?,
            _ => {}
        }
        at += 1;
    }
    Ok(())
}

/// The index of the closing quote of the string that opens at `start`, or of the last byte if it never closes.
fn skip_string(json: &[u8], start: usize) -> Result<usize, PayloadError> {
    let mut at = start + 1;
    while at < json.len() {
        match json[at] {
            b'"' => return Ok(at),
            b'\\' if json[at + 1..].starts_with(b"u0000") => return Err(PayloadError::Nul),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    Ok(json.len() - 1)
}

fn check_exponent(digits: &[u8]) -> Result<(), PayloadError> {
    let unsigned = match digits.first() {
        Some(b'+' | b'-') => &digits[1..],
        _ => digits,
    };
    let mut exponent: u32 = 0;
    for digit in unsigned.iter().take_while(|byte| byte.is_ascii_digit()) {
        exponent = exponent.saturating_mul(10).saturating_add(u32::from(digit - b'0'));
    }
    if exponent > EXPONENT_MAX { Err(PayloadError::HugeExponent) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_payloads_pass() {
        for json in
            ["{}", "null", "1.5e10", r#"{"a":[1,2,{"b":"e9999 \\u0000 [[["}]}"#, "\"\\\"\"", "-0.1E-12"]
        {
            assert_eq!(check(json), Ok(()), "{json}");
        }
    }

    #[test]
    fn payloads_that_readers_cannot_hold_are_refused() {
        assert_eq!(check(&"[".repeat(100_000)), Err(PayloadError::TooDeep));
        assert_eq!(check("[1e131071]"), Err(PayloadError::HugeExponent));
        assert_eq!(check("1E-1000"), Err(PayloadError::HugeExponent));
        assert_eq!(check(r#"{"a":"\u0000"}"#), Err(PayloadError::Nul));
        assert_eq!(
            check(&format!("\"{}\"", "x".repeat(BYTES_MAX))),
            Err(PayloadError::TooLarge(BYTES_MAX + 2))
        );
    }

    #[test]
    fn text_that_is_not_json_is_refused() {
        for json in ["", "{", "\"abc", "\\", "{\"a\":1}}", "nul", "\"\\", "\"\u{1}\""] {
            assert!(matches!(check(json), Err(PayloadError::NotJson(_))), "{json}");
        }
    }
}
