//! The request of an event: its headers, its signature, its body.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE, USER_AGENT,
};
use pitwheel::engine::outbox::Event;
use ring::hmac;
use serde_json::value::RawValue;
use url::{Position, Url};

use crate::message::{Format, HTTP};

/// Headers of the connection, which an event cannot set.
const FORBIDDEN: [HeaderName; 9] =
    [CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, USER_AGENT];
const TOMBSTONE: HeaderName = HeaderName::from_static("pitwheel-tombstone");
const SIGNATURE: HeaderName = HeaderName::from_static("pitwheel-signature");

/// The request of an event.
///
/// # Errors
/// If a header of the event cannot be sent: it will never be.
pub(super) fn request(
    event: &Event,
    url: &Url,
    format: &Format,
    key: Option<&hmac::Key>,
    now: SystemTime,
) -> Result<Request<Full<Bytes>>, String> {
    let body = Bytes::from(event.payload.clone().unwrap_or_default());
    let mut headers = HeaderMap::new();
    headers.insert(HOST, value(&url[Position::BeforeHost..Position::AfterPort])?);
    headers
        .insert(USER_AGENT, HeaderValue::from_static(concat!("pitwheel-relay/", env!("CARGO_PKG_VERSION"))));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type(&body)));
    if event.payload.is_none() {
        headers.insert(TOMBSTONE, HeaderValue::from_static("true"));
    }
    for (name, text) in format.headers(event, HTTP) {
        headers.insert(own_name(&name)?, value(&text)?);
    }
    if let Some(key) = key {
        headers.insert(SIGNATURE, value(&signature(key, event.id, &body, now))?);
    }
    let path = &url[Position::BeforePath..Position::AfterQuery];
    let request = Request::post(path).body(Full::new(body)).map_err(|error| error.to_string());
    request.map(|mut request| {
        *request.headers_mut() = headers;
        request
    })
}

fn own_name(name: &str) -> Result<HeaderName, String> {
    match HeaderName::try_from(name) {
        Ok(header) if !FORBIDDEN.contains(&header) && header != SIGNATURE => Ok(header),
        _ => Err(format!("`{name}` cannot be an HTTP header")),
    }
}

/// Characters that a header cannot have are percent-encoded, as CloudEvents does.
fn value(text: &str) -> Result<HeaderValue, String> {
    let is_plain = |byte: u8| (b'!'..=b'~').contains(&byte) && !matches!(byte, b'"' | b'%');
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            byte if is_plain(byte) => encoded.push(char::from(byte)),
            b' ' => encoded.push(' '),
            byte => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    HeaderValue::try_from(encoded).map_err(|error| error.to_string())
}

fn content_type(body: &[u8]) -> &'static str {
    match serde_json::from_slice::<&RawValue>(body) {
        Ok(_) => "application/json",
        Err(_) => "application/octet-stream",
    }
}

/// `t=SECONDS,v1=HEX`: HMAC-SHA256 over the time, the id and the body, with dots between them. The time limits how long a
/// request can be repeated by someone who recorded it.
fn signature(key: &hmac::Key, id: i64, body: &[u8], now: SystemTime) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut context = hmac::Context::with_key(key);
    context.update(format!("{seconds}.{id}.").as_bytes());
    context.update(body);
    let hex: String = context.sign().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("t={seconds},v1={hex}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn url() -> Url {
        "http://127.0.0.1:8080/in?x=1".parse().expect("a URL")
    }

    fn header<'a>(request: &'a Request<Full<Bytes>>, name: &str) -> &'a str {
        request.headers().get(name).map_or("", |value| value.to_str().unwrap_or("not text"))
    }

    #[test]
    fn a_request_names_its_event_and_is_signed() {
        let event = Event::unheld(7, "ordér 1", "orders", "placed", Some(b"{}".to_vec()));
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"secret");
        let now = UNIX_EPOCH + Duration::from_secs(100);
        let request = request(&event, &url(), &Format::Plain, Some(&key), now).expect("a request");
        assert_eq!(request.uri(), "/in?x=1");
        assert_eq!(header(&request, "host"), "127.0.0.1:8080");
        assert_eq!(header(&request, "content-type"), "application/json");
        assert_eq!(header(&request, "pitwheel-id"), "7");
        assert_eq!(header(&request, "pitwheel-entity"), "ord%C3%A9r 1");
        let tag = hmac::sign(&key, b"100.7.{}");
        let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(header(&request, "pitwheel-signature"), format!("t=100,v1={hex}"));
    }

    #[test]
    fn headers_of_the_connection_are_refused() {
        for name in ["host", "Content-Length", "transfer-encoding", "a b", "pitwheel-signature", ""] {
            let mut event = Event::unheld(7, "a", "t", "k", None);
            event.headers = json!({ name: "x" }).as_object().cloned();
            let request = request(&event, &url(), &Format::Plain, None, UNIX_EPOCH);
            assert!(request.is_err(), "{name}");
        }
    }
}
