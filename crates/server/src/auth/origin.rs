//! Requests that a browser on this machine sends for a page of another site.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::header::{HOST, ORIGIN};

/// Whether a browser sent this request for a page of another site, or for a page that reaches this machine by a host name
/// of another owner (DNS rebinding).
pub(crate) fn is_cross_site(request: &Request) -> bool {
    let text = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = request.uri().authority().map(|authority| authority.as_str()).or(text(HOST.as_str()));
    let other_host = host.is_some_and(|host| !is_local(host));
    let other_site = text("sec-fetch-site").is_some_and(|site| !["same-origin", "none"].contains(&site));
    let other_origin = text(ORIGIN.as_str())
        .is_some_and(|origin| origin.split_once("://").map(|(_, authority)| authority) != host);
    other_host || other_site || other_origin
}

/// Whether a host, with or without a port, is this machine.
fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_local() {
        for host in ["localhost", "localhost:7475", "127.0.0.1:80", "[::1]:7475", "127.9.9.9"] {
            assert!(is_local(host), "{host}");
        }
        for host in ["evil.example", "127.0.0.1.evil.example:7475", "10.0.0.1:7475", "", "localhost.evil:1"] {
            assert!(!is_local(host), "{host}");
        }
    }
}
