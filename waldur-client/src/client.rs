//! Transport: one request, one answer, every failure named.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, DATE, HeaderMap, LOCATION, RETRY_AFTER};
use secrecy::SecretString;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use url::{Host, Url};

use crate::auth::{Auth, Authenticator, Credential};
use crate::error::{BuildError, Error, ErrorKind, Refusal, Result};
use crate::lenient;
use crate::scrub::Scrub;

/// Largest body of one object, in bytes. An offering of hundreds of models and plans stays below a tenth of it.
const MAX_OBJECT: usize = 8 << 20;
/// Largest body of one page of a list, in bytes: 100 KiB for each of 300 rows.
pub(crate) const MAX_PAGE: usize = 32 << 20;
/// How much of a refusal, or of the answer to a write, is read.
const MAX_SMALL_BODY: usize = 256 << 10;

/// How to reach one Waldur.
#[derive(Clone)]
pub struct Settings {
    /// Address of the server, with or without a trailing slash or `/api`.
    pub api_url: Url,
    /// How to authenticate.
    pub auth: Auth,
    /// Longest time for one whole call, from connecting to the last byte.
    pub timeout: Duration,
    /// Longest time to connect.
    pub connect_timeout: Duration,
    /// PEM certificates trusted besides those of the platform.
    pub ca_bundle: Option<Vec<u8>>,
    /// Allow plain http to a host that is not this one.
    pub allow_insecure_http: bool,
    /// `User-Agent`; Waldur shows it as the activity of the integration.
    pub user_agent: String,
    /// Rows asked for per page. The server may give fewer (2024 at most 300, 2026 at most 100).
    pub page_size: u32,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("api_host", &self.api_url.host_str())
            .field("auth", &self.auth)
            .field("timeout", &self.timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("ca_bundle", &self.ca_bundle.is_some())
            .field("allow_insecure_http", &self.allow_insecure_http)
            .field("user_agent", &self.user_agent)
            .field("page_size", &self.page_size)
            .finish()
    }
}

/// A client for one Waldur. Cheap to clone; clones share connections and the login.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    http: reqwest::Client,
    auth: Authenticator,
    /// Ends with `/api/`.
    base: Url,
    page_size: u32,
    /// `Date` of the last answer, in seconds since 1970; 0 before the first.
    server_date: AtomicI64,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("base", &self.inner.base.as_str()).field("auth", self.inner.auth.settings()).finish_non_exhaustive()
    }
}

/// Whether a proxy named by the environment may carry the calls. It only ever sees encrypted ones: over plain http it would
/// be handed the credential, which `allow_insecure_http` allows on the way to the server alone.
fn may_use_proxy(base: &Url, auth: &Auth) -> bool {
    let plain_login = matches!(auth, Auth::Oidc { token_url, .. } if token_url.scheme() == "http");
    base.scheme() == "https" && !is_loopback(base) && !plain_login
}

fn logs_in_over_tls(auth: &Auth) -> bool {
    matches!(auth, Auth::Oidc { token_url, .. } if token_url.scheme() != "http")
}

impl Client {
    /// Makes a client. Nothing is sent and no secret is read.
    ///
    /// # Errors
    /// When an address, the CA bundle or the user agent cannot be used, or a credential would travel over plain http.
    pub fn new(settings: Settings) -> Result<Self, BuildError> {
        let base = base_url(settings.api_url, settings.allow_insecure_http)?;
        if let Auth::Oidc { token_url, .. } = &settings.auth {
            check_url("the token URL", token_url, settings.allow_insecure_http)?;
        }
        let mut builder = reqwest::Client::builder()
            .user_agent(settings.user_agent)
            .timeout(settings.timeout)
            .connect_timeout(settings.connect_timeout)
            .pool_idle_timeout(Duration::from_secs(30))
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never());
        if !may_use_proxy(&base, &settings.auth) {
            builder = builder.no_proxy();
        }
        if let Some(pem) = &settings.ca_bundle {
            let certificates =
                reqwest::Certificate::from_pem_bundle(pem).map_err(|error| BuildError::BadCa { reason: cause_chain(error) })?;
            if certificates.is_empty() {
                return Err(BuildError::BadCa { reason: "it holds no certificate".to_owned() });
            }
            builder = builder.tls_certs_merge(certificates);
        } else if base.scheme() == "http" && !logs_in_over_tls(&settings.auth) {
            // Nothing will be verified, and reading the machine's certificates takes longer than all else here.
            builder = builder.tls_certs_only(std::iter::empty());
        }
        let http = builder.build().map_err(|error| {
            let cause = cause_chain(error);
            // The certificates themselves are only looked at when they are put to use.
            if settings.ca_bundle.is_some() && cause.contains("peer certificate") {
                BuildError::BadCa { reason: cause }
            } else {
                BuildError::Http { cause }
            }
        })?;
        Ok(Self {
            inner: Arc::new(Inner {
                http,
                auth: Authenticator::new(settings.auth),
                base,
                page_size: settings.page_size.max(1),
                server_date: AtomicI64::new(0),
            }),
        })
    }

    /// The server's own time as its last answer had it. It files usage under its own now, whatever ours is.
    #[must_use]
    pub fn server_time(&self) -> Option<Timestamp> {
        let seconds = self.inner.server_date.load(Ordering::Relaxed);
        (seconds != 0).then(|| Timestamp::from_second(seconds).ok())?
    }

    pub(crate) fn page_size(&self) -> u32 {
        self.inner.page_size
    }

    /// Reads one object.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str, query: &[(&str, String)]) -> Result<T> {
        let answer = self.get_answer(path, query, MAX_OBJECT).await?;
        answer.decode()
    }

    /// Reads a body of at most `limit` bytes with its headers.
    pub(crate) async fn get_answer(&self, path: &str, query: &[(&str, String)], limit: usize) -> Result<Answer> {
        let url = self.url(path, query)?;
        self.send(Request { method: reqwest::Method::GET, url, body: None, secrets: &[], limit }).await
    }

    /// Makes a change. Success is the status alone.
    pub(crate) async fn post<B: Serialize + ?Sized>(&self, path: &str, body: &B) -> Result<()> {
        self.post_secret(path, body, &[]).await.map(drop)
    }

    /// Makes a change whose body holds secrets, which are kept out of any error.
    pub(crate) async fn post_secret<B: Serialize + ?Sized>(&self, path: &str, body: &B, secrets: &[&SecretString]) -> Result<Answer> {
        let url = self.url(path, &[])?;
        let body = serde_json::to_vec(body).map_err(|error| Error {
            method: "POST",
            path: url.path().to_owned(),
            kind: ErrorKind::Unreachable { cause: format!("the request cannot be written: {}", lenient::plain_cause(&error)) },
        })?;
        self.send(Request { method: reqwest::Method::POST, url, body: Some(body), secrets, limit: MAX_SMALL_BODY }).await
    }

    fn url(&self, path: &str, query: &[(&str, String)]) -> Result<Url> {
        let mut url = self.inner.base.join(path).map_err(|error| Error {
            method: "GET",
            path: path.to_owned(),
            kind: ErrorKind::Unreachable { cause: format!("the address cannot be made: {error}") },
        })?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        Ok(url)
    }

    /// Sends a request, with one new login when a bearer token is refused.
    async fn send(&self, request: Request<'_>) -> Result<Answer> {
        let started = Instant::now();
        let result = self.send_authenticated(&request).await;
        let status = match &result {
            Ok(answer) => answer.status,
            Err(kind) => kind_status(kind),
        };
        let (method, path) = (request.method_name(), request.url.path());
        let ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::debug!(method, path, status, ms, "Waldur call");
        result.map_err(|kind| Error { method, path: path.to_owned(), kind })
    }

    async fn send_authenticated(&self, request: &Request<'_>) -> Result<Answer, ErrorKind> {
        let Inner { http, auth, .. } = &*self.inner;
        let credential = auth.credential(http).await?;
        match self.attempt(request, &credential).await {
            Err(ErrorKind::Status { status: 401, .. }) if auth.drop_refused(&credential).await => {
                let credential = auth.credential(http).await?;
                self.attempt(request, &credential).await
            }
            result => result,
        }
    }

    async fn attempt(&self, request: &Request<'_>, credential: &Credential) -> Result<Answer, ErrorKind> {
        let mut builder = self
            .inner
            .http
            .request(request.method.clone(), request.url.clone())
            .header(AUTHORIZATION, credential.header.clone())
            .header(ACCEPT, "application/json");
        if let Some(body) = &request.body {
            builder = builder.header(CONTENT_TYPE, "application/json").body(body.clone());
        }
        let response = builder.send().await.map_err(transport_kind)?;

        let status = response.status().as_u16();
        let headers = response.headers().clone();
        if let Ok(date) = rfc2822::parse(header(&headers, DATE)) {
            let seconds = date.timestamp().as_second();
            self.inner.server_date.store(seconds, Ordering::Relaxed);
        }
        let known: Vec<&SecretString> = request.secrets.iter().copied().chain([&credential.secret]).collect();
        let scrub = Scrub::new(&known);
        match (&request.body, status) {
            (None, 200) => {
                let body = read_capped(response, request.limit).await.map_err(|fault| match fault {
                    BodyFault::TooLarge { limit } => ErrorKind::TooLarge { limit },
                    BodyFault::Lost(cause) => ErrorKind::Interrupted { cause },
                })?;
                let body = String::from_utf8(body)
                    .map_err(|_| ErrorKind::Decode { at: ".".to_owned(), cause: "the body is not UTF-8".to_owned() })?;
                Ok(Answer { path: request.url.path().to_owned(), status, headers, body })
            }
            (Some(_), 200 | 201 | 202 | 204) => {
                // Read so that the connection can be used again. What it says is not needed for success; that it
                // says something tells generations of servers apart.
                let body = match read_capped(response, request.limit).await {
                    Ok(body) => String::from_utf8_lossy(&body).into_owned(),
                    Err(BodyFault::TooLarge { .. }) => "(too large)".to_owned(),
                    Err(BodyFault::Lost(cause)) => return Err(ErrorKind::Interrupted { cause }),
                };
                Ok(Answer { path: request.url.path().to_owned(), status, headers, body })
            }
            (_, 301 | 302 | 303 | 307 | 308) => Err(ErrorKind::Redirected { status, location_host: location_host(&request.url, &headers) }),
            _ => {
                // The status alone is an answer: a refusal whose text is lost or endless is still a refusal.
                let body = read_prefix(response, MAX_SMALL_BODY.min(request.limit)).await;
                Err(Refusal {
                    status,
                    content_type: header(&headers, CONTENT_TYPE),
                    retry_after: retry_after(&headers),
                    body: &String::from_utf8_lossy(&body),
                }
                .into_kind(scrub))
            }
        }
    }
}

struct Request<'a> {
    method: reqwest::Method,
    url: Url,
    body: Option<Vec<u8>>,
    secrets: &'a [&'a SecretString],
    /// Largest body of a success, in bytes.
    limit: usize,
}

impl Request<'_> {
    fn method_name(&self) -> &'static str {
        if self.body.is_some() { "POST" } else { "GET" }
    }
}

/// A success.
pub(crate) struct Answer {
    path: String,
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    /// Whether there is nothing in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.body.trim().is_empty()
    }

    /// Reads the body as what it should be; an error names the place.
    pub(crate) fn decode<T: DeserializeOwned>(&self) -> Result<T> {
        // The place of a mistake is looked for only where there is one: keeping track of it costs time on every field.
        if let Ok(value) = serde_json::from_str(&self.body) {
            return Ok(value);
        }
        let mut json = serde_json::Deserializer::from_str(&self.body);
        let failed = |at: String, cause: String| Error {
            method: "GET",
            path: self.path.clone(),
            // A parser's message can quote the body.
            kind: ErrorKind::Decode { at, cause: Scrub::default().clean(&cause) },
        };
        let value = serde_path_to_error::deserialize(&mut json)
            .map_err(|error| failed(error.path().to_string(), lenient::plain_cause(error.inner())))?;
        json.end().map_err(|error| failed(".".to_owned(), lenient::plain_cause(&error)))?;
        Ok(value)
    }

    /// `X-Result-Count`: how many rows the whole list has.
    pub(crate) fn result_count(&self) -> Option<usize> {
        self.headers.get("x-result-count")?.to_str().ok()?.trim().parse().ok()
    }

    /// Whether `Link` names a next page; none without a `Link`. Only the fact is used, never the address.
    pub(crate) fn has_next(&self) -> Option<bool> {
        let link = self.headers.get(reqwest::header::LINK)?.to_str().ok()?;
        Some(link.contains("rel=\"next\"") || link.contains("rel=next"))
    }
}

fn kind_status(kind: &ErrorKind) -> u16 {
    match kind {
        ErrorKind::Status { status, .. } | ErrorKind::Redirected { status, .. } | ErrorKind::Foreign { status, .. } => *status,
        _ => 0,
    }
}

/// The address all calls start from, with `/api/` at its end.
fn base_url(mut url: Url, allow_insecure_http: bool) -> Result<Url, BuildError> {
    check_url("the API URL", &url, allow_insecure_http)?;
    let path = url.path().trim_end_matches('/');
    let path = path.strip_suffix("/api").unwrap_or(path);
    let path = format!("{}/api/", path.trim_end_matches('/'));
    url.set_path(&path);
    Ok(url)
}

fn check_url(what: &'static str, url: &Url, allow_insecure_http: bool) -> Result<(), BuildError> {
    let bad = |reason: &str| Err(BuildError::BadUrl { what, reason: reason.to_owned() });
    if !matches!(url.scheme(), "http" | "https") {
        return bad("it must begin with https://");
    }
    if url.host().is_none() {
        return bad("it names no host");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return bad("it holds a user name or password: put the secret into its own file");
    }
    if url.query().is_some() || url.fragment().is_some() {
        return bad("it has a query or a fragment: leave out everything from ? or # on");
    }
    if url.scheme() == "http" && !is_loopback(url) && !allow_insecure_http {
        return Err(BuildError::InsecureHttp { what, url: format!("http://{}", url.host_str().unwrap_or_default()) });
    }
    Ok(())
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// A transport failure by whether the request can have left.
fn transport_kind(error: reqwest::Error) -> ErrorKind {
    let not_sent = error.is_connect() || error.is_builder();
    let cause = cause_chain(error);
    if not_sent { ErrorKind::Unreachable { cause } } else { ErrorKind::Interrupted { cause } }
}

/// All causes of a transport error in one line, without the address (which carries the query).
pub(crate) fn cause_chain(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    Scrub::default().clean(&text)
}

/// Why a body could not be read.
pub(crate) enum BodyFault {
    TooLarge {
        /// The most that is read, in bytes.
        limit: usize,
    },
    Lost(String),
}

impl fmt::Display for BodyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { limit } => write!(f, "the answer is larger than {limit} bytes"),
            Self::Lost(cause) => f.write_str(cause),
        }
    }
}

/// Reads a body of at most `limit` bytes.
pub(crate) async fn read_capped(mut response: reqwest::Response, limit: usize) -> Result<Vec<u8>, BodyFault> {
    if response.content_length().is_some_and(|length| length > u64::try_from(limit).unwrap_or(u64::MAX)) {
        return Err(BodyFault::TooLarge { limit });
    }
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if body.len() + chunk.len() > limit => return Err(BodyFault::TooLarge { limit }),
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Ok(None) => return Ok(body),
            Err(error) => return Err(BodyFault::Lost(cause_chain(error))),
        }
    }
}

/// What can be had of a body, at most `cap` bytes.
async fn read_prefix(mut response: reqwest::Response, cap: usize) -> Vec<u8> {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        let room = cap - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if body.len() == cap {
            break;
        }
    }
    body
}

fn header(headers: &HeaderMap, name: reqwest::header::HeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// `Retry-After` in seconds, or as a date measured against the server's own `Date`, so that no clocks are compared.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = header(headers, RETRY_AFTER).trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let until = rfc2822::parse(value).ok()?.timestamp();
    let now = rfc2822::parse(header(headers, DATE)).ok()?.timestamp();
    Some(Duration::try_from(until.duration_since(now)).unwrap_or(Duration::ZERO))
}

fn location_host(asked: &Url, headers: &HeaderMap) -> Option<String> {
    let location = headers.get(LOCATION)?.to_str().ok()?;
    let target = asked.join(location).ok()?;
    Some(target.host_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use reqwest::header::HeaderValue;

    fn base(url: &str) -> Result<String, BuildError> {
        base_url(url.parse().unwrap(), false).map(String::from)
    }

    #[test]
    fn the_api_url_is_taken_in_every_spelling() {
        for url in [
            "https://w.example.org",
            "https://w.example.org/",
            "https://w.example.org/api",
            "https://w.example.org/api/",
            "https://w.example.org/api//",
        ] {
            assert_eq!(base(url).unwrap(), "https://w.example.org/api/", "{url}");
        }
        // A suffix is removed, not its letters.
        assert_eq!(base("https://w.example.org/papi").unwrap(), "https://w.example.org/papi/api/");
        assert_eq!(base("https://w.example.org/waldur/api").unwrap(), "https://w.example.org/waldur/api/");
    }

    #[test]
    fn addresses_that_would_leak_or_mislead_are_refused() {
        for url in [
            "https://user:hunter2@w.example.org/",
            "https://w.example.org/?x=1",
            "https://w.example.org/#x",
            "ftp://w.example.org/",
            "http://w.example.org/",
            "http://localhost.example.org/",
            "http://10.0.0.1/",
        ] {
            let error = base(url).unwrap_err();
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        for url in ["http://localhost:8000", "http://127.0.0.1:1", "http://[::1]:1"] {
            assert!(base(url).is_ok(), "{url}");
        }
        assert!(base_url("http://w.example.org".parse().unwrap(), true).is_ok());
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let mut headers = HeaderMap::new();
        assert_eq!(retry_after(&headers), None);
        headers.insert(RETRY_AFTER, HeaderValue::from_static("7"));
        assert_eq!(retry_after(&headers), Some(Duration::from_secs(7)));
        headers.insert(RETRY_AFTER, HeaderValue::from_static("Mon, 30 Nov 2026 10:01:30 GMT"));
        assert_eq!(retry_after(&headers), None);
        headers.insert(DATE, HeaderValue::from_static("Mon, 30 Nov 2026 10:00:00 GMT"));
        assert_eq!(retry_after(&headers), Some(Duration::from_secs(90)));
        headers.insert(DATE, HeaderValue::from_static("Mon, 30 Nov 2026 11:00:00 GMT"));
        assert_eq!(retry_after(&headers), Some(Duration::ZERO));
        headers.insert(RETRY_AFTER, HeaderValue::from_static("soon"));
        assert_eq!(retry_after(&headers), None);
    }
}
