//! Requests that reach a loopback address although no program on this machine sent them: a browser sent them for a page
//! of another site, or a proxy passed them on.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::Version;
use axum::http::header::{HOST, ORIGIN};

/// Headers that proxies add, beside all that begin with one of [`PROXY_PREFIXES`].
const PROXY_HEADERS: [&str; 10] = [
    "forwarded",
    "via",
    "x-real-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "cf-connecting-ip",
    "true-client-ip",
    "cdn-loop",
    "fastly-client-ip",
    "fly-client-ip",
];
const PROXY_PREFIXES: [&str; 3] = ["x-forwarded", "x-envoy-", "x-original-"];

/// Whether a proxy passed this request on, as far as the request shows it. Its sender may be on another machine. nginx adds no header by
/// default, and speaks HTTP/1.0, which programs on this machine do not need. What forwards connections shows in no request.
pub(crate) fn is_proxied(request: &Request) -> bool {
    let is_added = |name: &str| {
        PROXY_HEADERS.contains(&name) || PROXY_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    };
    request.version() < Version::HTTP_11 || request.headers().keys().any(|name| is_added(name.as_str()))
}

/// Whether a browser sent this request for a page of another site, or for a page that reaches this machine by a host name
/// of another owner (DNS rebinding). A header may be sent twice: then every value counts, because its sender may have written any of them.
pub(crate) fn is_cross_site(request: &Request) -> bool {
    let values = |name: &str| {
        let values = request.headers().get_all(name).into_iter();
        values.map(|value| value.to_str().unwrap_or("?"))
    };
    let authority = request.uri().authority().map(|authority| authority.as_str());
    let hosts: Vec<&str> = authority.into_iter().chain(values(HOST.as_str())).collect();
    let is_own = |origin: &str| {
        let host = origin.split_once("://").map(|(_, host)| host);
        !hosts.is_empty() && hosts.iter().all(|own| Some(*own) == host)
    };
    let other_host = hosts.iter().any(|host| !is_local(host));
    let other_site = values("sec-fetch-site").any(|site| !["same-origin", "none"].contains(&site));
    let other_origin = values(ORIGIN.as_str()).any(|origin| !is_own(origin));
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
