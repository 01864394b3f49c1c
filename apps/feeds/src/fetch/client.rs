//! The HTTP client of the fetcher: conditional requests, redirects followed by hand, and the limits of one fetch.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderMap, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, LOCATION, USER_AGENT,
};
use hyper::{Method, Request, Response, StatusCode};
use pitwheel_app::TlsError;
use url::Url;

use crate::fetch::address::is_public;
use crate::fetch::body;
use crate::fetch::connect::Connector;
use crate::fetch::error::FetchError;
use crate::fetch::headers::{self, Link, Validators};
use crate::fetch::hosts::Hosts;
use crate::fetch::limits::{HOST_GAP, HOST_WAIT_MAX, REDIRECTS_MAX, TOTAL_MAX};

const FEEDS: &str = "application/atom+xml, application/rss+xml, application/feed+json, application/xml;q=0.9, \
                     text/xml;q=0.8, application/json;q=0.8, text/html;q=0.5, */*;q=0.1";

/// How to fetch.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// Whether addresses that are not public may be fetched. Default: false.
    pub allow_private: bool,
    /// The `User-Agent`.
    pub user_agent: String,
    /// The time between the starts of two fetches from one host. Default: 500 ms.
    pub host_gap: Duration,
    /// How long a fetch waits while others from its host are under way. Default: 1 second.
    pub host_wait_max: Duration,
}

impl Default for Options {
    fn default() -> Options {
        let version = env!("CARGO_PKG_VERSION");
        let home = env!("CARGO_PKG_REPOSITORY");
        Options {
            allow_private: false,
            user_agent: format!("pitwheel-feeds/{version} (+{home})"),
            host_gap: HOST_GAP,
            host_wait_max: HOST_WAIT_MAX,
        }
    }
}

/// The HTTP client of the fetcher. It keeps no cookies and no connections.
pub struct Client {
    connector: Connector,
    user_agent: String,
    hosts: Arc<Hosts>,
}

/// A response of the last hop.
#[derive(Debug)]
pub struct Fetched {
    /// Its status.
    pub status: StatusCode,
    /// The URL that sent it.
    pub url: Url,
    /// Where the source has moved to: every redirect on the way was permanent.
    pub moved_to: Option<Url>,
    /// What to send the next time.
    pub validators: Validators,
    /// Its `Content-Type`.
    pub content_type: Option<String>,
    /// Its `Link` headers.
    pub links: Vec<Link>,
    /// How long it is fresh.
    pub max_age: Option<Duration>,
    /// How long the host asks to be left alone.
    pub retry_after: Option<Duration>,
    /// The document, decompressed.
    pub body: Vec<u8>,
    /// Bytes of the body on the network.
    pub received: usize,
}

enum Hop {
    Last(Box<Fetched>),
    Redirect { to: Url, permanent: bool },
}

impl Client {
    /// A client. Root certificates are those of the system.
    ///
    /// # Errors
    /// If the certificates of the system cannot be read.
    pub fn new(options: Options) -> Result<Client, TlsError> {
        Ok(Client {
            connector: Connector {
                tls: pitwheel_app::client_config()?,
                allowed: if options.allow_private { |_| true } else { is_public },
            },
            user_agent: options.user_agent,
            hosts: Hosts::new(options.host_gap, options.host_wait_max),
        })
    }

    /// Fetches a document. Any status but a redirect is a response.
    ///
    /// # Errors
    /// If there is no complete response within the limits, or the host is busy.
    pub async fn get(&self, url: &Url, validators: &Validators) -> Result<Fetched, FetchError> {
        let request = |url: &Url| self.request(Method::GET, url, validators, Bytes::new());
        self.follow(url, request).await
    }

    /// Sends a form. Redirects that keep the method are followed.
    ///
    /// # Errors
    /// As for [`Client::get`].
    pub async fn post_form(&self, url: &Url, form: &[(&str, &str)]) -> Result<Fetched, FetchError> {
        let body = encoded(form);
        let request = |url: &Url| {
            let mut request = self.request(Method::POST, url, &Validators::default(), body.clone())?;
            let kind = headers::value("application/x-www-form-urlencoded");
            kind.map(|kind| request.headers_mut().insert(CONTENT_TYPE, kind));
            Ok(request)
        };
        self.follow(url, request).await
    }

    /// Follows redirects. The time in which a fetch waits for its turn at a host does not count.
    async fn follow(
        &self,
        url: &Url,
        request: impl Fn(&Url) -> Result<Request<Full<Bytes>>, FetchError>,
    ) -> Result<Fetched, FetchError> {
        let (mut url, mut permanent, mut left) = (url.clone(), true, TOTAL_MAX);
        for hop in 0..=REDIRECTS_MAX {
            let request = request(&url)?;
            let keeps_method = request.method() != Method::GET;
            let host = url.host_str().unwrap_or_default();
            let _turn = self.hosts.turn(host).await?;
            let started = Instant::now();
            let read = |response| read(&url, response, keeps_method);
            let exchange = self.connector.exchange(&url, request, read);
            let answered = tokio::time::timeout(left, exchange).await;
            left = left.saturating_sub(started.elapsed());
            match answered.map_err(|_| FetchError::Time)?? {
                Hop::Last(mut fetched) => {
                    if let Some(span) = fetched.retry_after {
                        self.hosts.hold_back(host, span.min(crate::schedule::WAIT_MAX));
                    }
                    fetched.moved_to = (hop > 0 && permanent).then(|| fetched.url.clone());
                    return Ok(*fetched);
                }
                Hop::Redirect { to, permanent: this } => {
                    permanent &= this;
                    url = to;
                }
            }
        }
        Err(FetchError::Redirects)
    }

    fn request(
        &self,
        method: Method,
        url: &Url,
        validators: &Validators,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, FetchError> {
        let refused = || FetchError::Url(url.to_string());
        let host = url.host_str().filter(|_| matches!(url.scheme(), "http" | "https")).ok_or_else(refused)?;
        let authority = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        let path = &url[url::Position::BeforePath..url::Position::AfterQuery];
        let mut request =
            Request::builder().method(method).uri(path).body(Full::new(body)).map_err(|_| refused())?;
        let fixed = [
            (HOST, authority.as_str()),
            (USER_AGENT, &self.user_agent),
            (ACCEPT, FEEDS),
            (ACCEPT_ENCODING, "gzip, br"),
            (CONNECTION, "close"),
        ];
        let kept = [(IF_NONE_MATCH, &validators.etag), (IF_MODIFIED_SINCE, &validators.last_modified)];
        let kept = kept.into_iter().filter_map(|(name, text)| Some((name, text.as_deref()?)));
        for (name, text) in fixed.into_iter().chain(kept) {
            if let Some(value) = headers::value(text) {
                request.headers_mut().insert(name, value);
            }
        }
        Ok(request)
    }
}

fn encoded(form: &[(&str, &str)]) -> Bytes {
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(form).finish().into()
}

async fn read(url: &Url, response: Response<Incoming>, keeps_method: bool) -> Result<Hop, FetchError> {
    let (parts, body) = response.into_parts();
    let (status, headers) = (parts.status, &parts.headers);
    let permanent = matches!(status, StatusCode::MOVED_PERMANENTLY | StatusCode::PERMANENT_REDIRECT);
    let redirect = match status {
        StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => true,
        StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND | StatusCode::SEE_OTHER => !keeps_method,
        _ => false,
    };
    if redirect {
        return Ok(Hop::Redirect { to: target(url, headers)?, permanent });
    }
    let encoding = headers::text(headers, &CONTENT_ENCODING).unwrap_or_default();
    let host = url.host_str().unwrap_or_default();
    // Only the body of a success is used; that of an error may be anything.
    let (document, received) =
        if status.is_success() { body::read(body, &encoding, host).await? } else { (Vec::new(), 0) };
    Ok(Hop::Last(Box::new(Fetched {
        status,
        url: url.clone(),
        moved_to: None,
        validators: Validators::of(headers),
        content_type: headers::text(headers, &CONTENT_TYPE),
        links: headers::links(headers, url),
        max_age: headers::max_age(headers),
        retry_after: headers::retry_after(status, headers, SystemTime::now()),
        body: document,
        received,
    })))
}

fn target(url: &Url, headers: &HeaderMap) -> Result<Url, FetchError> {
    let to = headers::text(headers, &LOCATION).unwrap_or_default();
    match url.join(&to) {
        Ok(target) if !to.is_empty() && matches!(target.scheme(), "http" | "https") => Ok(target),
        _ => Err(FetchError::Redirect(to)),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// The first hop has an allowed address and the second has not, as with a public site that redirects into a private network.
    #[tokio::test]
    async fn a_redirect_to_a_refused_address_is_not_followed() {
        let refused = TcpListener::bind("127.0.0.2:0").await.expect("a port");
        let to = format!("http://{}/", refused.local_addr().expect("bound"));
        let site = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/", site.local_addr().expect("bound")).parse().expect("a URL");
        tokio::spawn(async move {
            let (mut stream, _) = site.accept().await.expect("a connection");
            let _ = stream.read(&mut [0; 4096]).await.expect("a request");
            let reply = format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(reply.as_bytes()).await.expect("a reply");
        });

        let mut client = Client::new(Options::default()).expect("certificates");
        client.connector.allowed = |address| address == Ipv4Addr::LOCALHOST;
        let error = client.get(&url, &Validators::default()).await.expect_err("refused");
        let second = IpAddr::from([127, 0, 0, 2]);
        assert!(matches!(error, FetchError::Address { address, .. } if address == second), "{error}");
        let connection = tokio::time::timeout(Duration::from_millis(50), refused.accept()).await;
        assert!(connection.is_err(), "a connection was made");
    }
}
