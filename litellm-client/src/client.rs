//! One exchange with the gateway: credential, request, whole answer.

use std::error::Error as _;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::fmt::rfc2822;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, DATE, HeaderMap, HeaderValue, LOCATION, RETRY_AFTER};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use url::{Host, Url};

use crate::Result;
use crate::decode::decode;
use crate::error::{Error, ErrorKind, from_answer};
use crate::scrub::Scrubber;

/// Where the gateway's key comes from: called before every request, so that a rotated key is used at once. The message of an
/// error must not hold the key.
pub type SecretSource = Arc<dyn Fn() -> Result<SecretString, String> + Send + Sync>;

/// The largest body of a page of a list or a single object, in bytes: 300 KiB for each of 100 teams.
pub(crate) const LIST_CAP: usize = 32 << 20;
/// The largest page of usage or of logged calls, in bytes: 12 KiB for each of 5000 rows.
pub(crate) const USAGE_PAGE_CAP: usize = 64 << 20;
/// The largest answer with the totals of all teams of some days, in bytes. A day of 10,000 busy teams has some 10 MB, so ask for
/// few days where there are many.
pub(crate) const TOTALS_CAP: usize = 256 << 20;
/// How much of an error's body is read, in bytes.
const ERROR_CAP: usize = 1 << 20;

/// The proxy's server closes idle connections after 5 s; a connection we let go earlier is never closed under a request.
const IDLE_CONNECTION: Duration = Duration::from_secs(4);

/// How to reach a gateway.
#[derive(Clone)]
pub struct Settings {
    /// The address of the proxy; a path is kept as a prefix.
    pub url: Url,
    /// The key for the management calls.
    pub key: SecretSource,
    /// The longest a whole call may take, from connecting to the last byte of the answer. A table lock in the gateway's
    /// database makes calls hang for as long as it is held.
    pub timeout: Duration,
    /// The longest connecting may take.
    pub connect_timeout: Duration,
    /// PEM certificates to trust in addition to the system's.
    pub ca_bundle: Option<Vec<u8>>,
    /// Whether the key may travel unencrypted to another machine.
    pub allow_insecure_http: bool,
    /// The `User-Agent` header.
    pub user_agent: String,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("url", &without_credentials(&self.url))
            .field("timeout", &self.timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("allow_insecure_http", &self.allow_insecure_http)
            .field("user_agent", &self.user_agent)
            .finish_non_exhaustive()
    }
}

/// Settings no client can be made from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The scheme is neither http nor https, or there is no host.
    #[error("the gateway's address `{url}` must start with https:// or http:// and name a host")]
    Address {
        /// The address without credentials.
        url: String,
    },
    /// The address carries a user, a password, a query or a fragment.
    #[error("the gateway's address must hold no user, password, query or fragment: give the key in its own file")]
    Decorated,
    /// The key would travel unencrypted to another machine.
    #[error("the gateway's key would travel to {host} over plain http: use https, or set allow_insecure_http where the network is trusted")]
    Insecure {
        /// The host of the address.
        host: String,
    },
    /// The CA bundle holds no certificate that can be read.
    #[error("the CA bundle for the gateway cannot be used: {cause}; it must hold PEM certificates")]
    CaBundle {
        /// What is wrong with it.
        cause: String,
    },
    /// The HTTP client refused the settings.
    #[error("the HTTP client cannot be made: {cause}")]
    Http {
        /// Why.
        cause: String,
    },
}

/// A client for the management API of one LiteLLM proxy. Cheap to clone; makes no call twice on its own.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    http: reqwest::Client,
    /// The address without a slash at its end.
    base: String,
    key: SecretSource,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("url", &self.inner.base).finish_non_exhaustive()
    }
}

/// Whose credential goes with a request.
pub(crate) enum Auth<'a> {
    /// Our own.
    Ours,
    /// None.
    Nobody,
    /// A customer's key.
    Key(&'a SecretString),
}

/// One request.
pub(crate) struct Call<'a> {
    pub(crate) method: &'static str,
    /// `{id}` in it stands for `id`; messages show it as it is here.
    pub(crate) path: &'static str,
    /// What one object is addressed by; only what needs no escaping in a path.
    pub(crate) id: &'a str,
    pub(crate) query: Vec<(&'static str, String)>,
    pub(crate) body: Option<Vec<u8>>,
    pub(crate) auth: Auth<'a>,
    /// The largest accepted body of a success, in bytes.
    pub(crate) cap: usize,
    /// A secret inside the body, to be kept out of errors.
    pub(crate) secret: Option<&'a SecretString>,
}

impl<'a> Call<'a> {
    pub(crate) fn get(path: &'static str) -> Self {
        Self { method: "GET", path, id: "", query: Vec::new(), body: None, auth: Auth::Ours, cap: LIST_CAP, secret: None }
    }

    /// A POST with a JSON body.
    pub(crate) fn post(path: &'static str, body: &impl Serialize) -> Result<Self> {
        let body = serde_json::to_vec(body).map_err(|fault| Error {
            method: "POST",
            path: path.to_owned(),
            kind: ErrorKind::Invalid { message: format!("the request cannot be written as JSON: {fault}") },
        })?;
        Ok(Self { method: "POST", body: Some(body), ..Self::get(path) })
    }

    /// A PATCH of one object with a JSON body.
    pub(crate) fn patch(path: &'static str, id: &'a str, body: &impl Serialize) -> Result<Self> {
        let method = "PATCH";
        let call = Self::post(path, body).map_err(|error| Error { method, ..error })?;
        Ok(Self { method, id, ..call })
    }

    pub(crate) fn query(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.query.push((name, value.into()));
        self
    }

    pub(crate) fn auth(mut self, auth: Auth<'a>) -> Self {
        self.auth = auth;
        self
    }

    pub(crate) fn cap(mut self, cap: usize) -> Self {
        self.cap = cap;
        self
    }

    pub(crate) fn secret(mut self, secret: Option<&'a SecretString>) -> Self {
        self.secret = secret;
        self
    }

    fn fail(&self, kind: ErrorKind) -> Error {
        Error { method: self.method, path: self.path.to_owned(), kind }
    }
}

/// A whole answer that is no redirect.
pub(crate) struct Answer {
    method: &'static str,
    path: &'static str,
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
    retry_after: Option<Duration>,
    pub(crate) scrubber: Scrubber,
}

impl Answer {
    /// Success is a class. 206 and 207 are not in it: a part of the answer, and several results of which some may be
    /// failures.
    pub(crate) fn is_success(&self) -> bool {
        is_success(self.status)
    }

    pub(crate) fn fail(&self, kind: ErrorKind) -> Error {
        Error { method: self.method, path: self.path.to_owned(), kind }
    }

    /// The error this answer is when it is no success.
    pub(crate) fn error(&self) -> Error {
        self.fail(from_answer(self.status, &self.body, self.retry_after, &self.scrubber))
    }

    pub(crate) fn decode<'de, T: Deserialize<'de>>(&'de self) -> Result<T> {
        decode(&self.body).map_err(|mistake| {
            self.fail(ErrorKind::Decode { at: self.scrubber.clean_to(&mistake.at, 200), cause: self.scrubber.clean(&mistake.cause) })
        })
    }

    /// Lets go of the body, once it is read: it can be tens of megabytes.
    pub(crate) fn free(&mut self) {
        self.body = Vec::new();
    }

    pub(crate) fn incomplete(&self, message: impl Into<String>) -> Error {
        self.fail(ErrorKind::Incomplete { message: self.scrubber.clean(&message.into()) })
    }
}

fn is_success(status: u16) -> bool {
    (200..300).contains(&status) && !matches!(status, 206 | 207)
}

/// An error for arguments a call must not be made with.
pub(crate) fn invalid(method: &'static str, path: &str, message: &str) -> Error {
    Error { method, path: path.to_owned(), kind: ErrorKind::Invalid { message: message.to_owned() } }
}

impl Client {
    /// Makes a client; nothing is sent.
    ///
    /// # Errors
    /// [`BuildError`] says which setting is at fault.
    pub fn new(settings: Settings) -> Result<Self, BuildError> {
        let url = &settings.url;
        let host = match (url.scheme(), url.host()) {
            ("http" | "https", Some(host)) => host,
            _ => {
                return Err(BuildError::Address { url: without_credentials(url) });
            }
        };
        if !url.username().is_empty() || url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
            return Err(BuildError::Decorated);
        }
        let loopback = is_loopback(&host);
        if url.scheme() == "http" && !loopback && !settings.allow_insecure_http {
            return Err(BuildError::Insecure { host: host.to_string() });
        }
        let mut builder = reqwest::Client::builder()
            .user_agent(settings.user_agent.as_str())
            .timeout(settings.timeout)
            .connect_timeout(settings.connect_timeout)
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .pool_idle_timeout(IDLE_CONNECTION);
        if loopback || url.scheme() == "http" {
            // A proxy from the environment would be handed the key of a plain http request, which may travel to the gateway
            // alone. Of a request over https it sees nothing but the host.
            builder = builder.no_proxy();
        }
        if let Some(bundle) = &settings.ca_bundle {
            let bad = |cause: String| BuildError::CaBundle { cause };
            let certificates = reqwest::Certificate::from_pem_bundle(bundle).map_err(|fault| bad(causes(fault)))?;
            if certificates.is_empty() {
                return Err(bad("no certificate found".to_owned()));
            }
            builder = builder.tls_certs_merge(certificates);
        } else if url.scheme() == "http" {
            // Nothing will be verified, and reading the machine's certificates takes longer than all else here.
            builder = builder.tls_certs_only(std::iter::empty());
        }
        let http = builder.build().map_err(|fault| BuildError::Http { cause: causes(fault) })?;
        Ok(Self { inner: Arc::new(Inner { http, base: url.as_str().trim_end_matches('/').to_owned(), key: settings.key }) })
    }

    /// Sends a request and reads the whole answer, whatever its status.
    pub(crate) async fn exchange(&self, call: Call<'_>) -> Result<Answer> {
        let started = Instant::now();
        let (method, path) = (call.method, call.path);
        let result = self.exchange_unlogged(call).await;
        let ms = started.elapsed().as_millis();
        match &result {
            Ok(answer) => tracing::debug!(method, path, status = answer.status, ms, "litellm call"),
            Err(error) => tracing::debug!(method, path, status = error.status(), ms, "litellm call failed"),
        }
        result
    }

    async fn exchange_unlogged(&self, call: Call<'_>) -> Result<Answer> {
        let mut secrets: Vec<SecretString> = call.secret.into_iter().cloned().collect();
        let mut headers = HeaderMap::new();
        let credential = match call.auth {
            Auth::Nobody => None,
            Auth::Key(key) => Some(key.clone()),
            Auth::Ours => Some(
                (self.inner.key)()
                    .map_err(|message| call.fail(ErrorKind::Credential { message: Scrubber::new(Vec::new()).clean(&message) }))?,
            ),
        };
        if let Some(credential) = credential {
            let header = bearer(&credential).map_err(|message| {
                call.fail(match call.auth {
                    Auth::Key(_) => ErrorKind::Invalid { message },
                    Auth::Ours | Auth::Nobody => ErrorKind::Credential { message },
                })
            })?;
            headers.insert(AUTHORIZATION, header);
            secrets.push(credential);
        }
        let scrubber = Scrubber::new(secrets);
        let url = format!("{}{}", self.inner.base, call.path.replace("{id}", call.id));
        let mut request = match call.method {
            "GET" => self.inner.http.get(url),
            "PATCH" => self.inner.http.patch(url),
            _ => self.inner.http.post(url),
        };
        if !call.query.is_empty() {
            request = request.query(&call.query);
        }
        request = request.headers(headers);
        let (method, path, cap) = (call.method, call.path, call.cap);
        let fail = |kind| Error { method, path: path.to_owned(), kind };
        if let Some(body) = call.body {
            request = request.header(CONTENT_TYPE, "application/json").body(body);
        }
        let mut response = request.send().await.map_err(|fault| {
            let never_sent = fault.is_connect() || fault.is_builder();
            let cause = scrubber.clean(&causes(fault));
            fail(if never_sent { ErrorKind::Unreachable { cause } } else { ErrorKind::Interrupted { cause } })
        })?;
        let status = response.status().as_u16();
        if (300..400).contains(&status) {
            return Err(fail(ErrorKind::Redirected { status, location: redirect_target(response.headers(), &scrubber) }));
        }
        let retry_after = retry_after(response.headers());
        let success = is_success(status);
        let cap = if success { cap } else { ERROR_CAP.min(cap) };
        let too_large = || fail(ErrorKind::TooLarge { limit: cap });
        if success && response.content_length().is_some_and(|length| length > u64::try_from(cap).unwrap_or(u64::MAX)) {
            return Err(too_large());
        }
        // In one piece where its length is told: one that grows takes up to twice the room.
        let length = response.content_length().and_then(|length| usize::try_from(length).ok()).unwrap_or(0);
        let mut body = Vec::with_capacity(length.min(cap));
        loop {
            let chunk = match response.chunk().await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => break,
                // The status of a refusal is known; its words are a help only.
                Err(_) if !success => break,
                Err(fault) => {
                    let cause = scrubber.clean(&causes(fault));
                    return Err(fail(ErrorKind::Interrupted { cause }));
                }
            };
            if body.len().saturating_add(chunk.len()) > cap {
                if success {
                    return Err(too_large());
                }
                break;
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Answer { method, path, status, body, retry_after, scrubber })
    }

    /// Sends a request that has to succeed.
    pub(crate) async fn call(&self, call: Call<'_>) -> Result<Answer> {
        let answer = self.exchange(call).await?;
        if answer.is_success() { Ok(answer) } else { Err(answer.error()) }
    }
}

fn bearer(credential: &SecretString) -> Result<HeaderValue, String> {
    if credential.expose_secret().is_empty() {
        return Err("it is empty".to_owned());
    }
    let mut header = HeaderValue::try_from(format!("Bearer {}", credential.expose_secret()))
        .map_err(|_| "it holds characters that no HTTP header takes, such as a line end".to_owned())?;
    header.set_sensitive(true);
    Ok(header)
}

/// The whole chain of causes, without the address: reqwest's own text stops at "error sending request" and shows the query.
fn causes(fault: reqwest::Error) -> String {
    let fault = fault.without_url();
    let mut texts = vec![fault.to_string()];
    let mut source = fault.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        if texts.last().is_none_or(|last| !last.contains(&text)) {
            texts.push(text);
        }
        source = cause.source();
    }
    texts.join(": ")
}

fn is_loopback(host: &Host<&str>) -> bool {
    match host {
        Host::Domain(name) => *name == "localhost" || name.ends_with(".localhost"),
        Host::Ipv4(address) => address.is_loopback(),
        Host::Ipv6(address) => address.is_loopback(),
    }
}

fn without_credentials(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // A scheme without a host takes neither; then there is none to show.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.to_string()
}

fn redirect_target(headers: &HeaderMap, scrubber: &Scrubber) -> Option<String> {
    let text = headers.get(LOCATION)?.to_str().ok()?;
    let shown = match Url::parse(text) {
        Ok(url) => without_credentials(&url),
        Err(_) => text.split(['?', '#']).next().unwrap_or_default().to_owned(),
    };
    Some(scrubber.clean_to(&shown, 200))
}

/// `Retry-After` as seconds, or as a date measured against the answer's own `Date`, so that clocks need not agree.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let wanted = text(RETRY_AFTER)?;
    if let Ok(seconds) = wanted.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let until = rfc2822::parse(wanted).ok()?.timestamp();
    let now = rfc2822::parse(text(DATE)?).ok()?.timestamp();
    Some(Duration::try_from(until.duration_since(now)).unwrap_or(Duration::ZERO))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn settings(url: &str) -> Settings {
        Settings {
            url: url.parse().unwrap(),
            key: Arc::new(|| Ok(SecretString::from("sk-MARKER-ours-0123456789"))),
            timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(1),
            ca_bundle: None,
            allow_insecure_http: false,
            user_agent: "test".to_owned(),
        }
    }

    #[test]
    fn plain_http_needs_a_word_or_this_machine() {
        for url in ["http://localhost:4000", "http://127.0.0.2:4000/", "http://[::1]:4000/", "https://llm.example.org/prefix/"] {
            Client::new(settings(url)).unwrap();
        }
        for url in ["http://litellm.llm.svc:4000", "http://10.0.0.1/", "http://localhost.example.org/"] {
            let error = Client::new(settings(url)).unwrap_err();
            assert!(matches!(error, BuildError::Insecure { .. }), "{url}: {error}");
            let allowed = Settings { allow_insecure_http: true, ..settings(url) };
            Client::new(allowed).unwrap();
        }
    }

    #[test]
    fn addresses_that_hold_more_than_an_address_are_refused() {
        for url in ["https://user@h/", "https://u:MARKER@h/", "https://h/?key=MARKER", "https://h/#x"] {
            let error = Client::new(settings(url)).unwrap_err();
            assert_eq!(error, BuildError::Decorated);
        }
        let error = Client::new(settings("ftp://u:MARKER@h/")).unwrap_err();
        assert!(matches!(error, BuildError::Address { .. }));
        assert!(!error.to_string().contains("MARKER"), "{error}");
    }

    #[test]
    fn a_ca_bundle_without_certificates_is_refused() {
        for bundle in [b"".to_vec(), b"hello".to_vec(), b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_vec()] {
            let with = Settings { ca_bundle: Some(bundle.clone()), ..settings("https://h/") };
            assert!(Client::new(with).is_err(), "{bundle:?}");
        }
    }

    #[test]
    fn debug_shows_no_key() {
        let settings = settings("https://h/");
        let text = format!("{settings:?} {:?}", Client::new(settings.clone()).unwrap());
        assert!(!text.contains("MARKER"), "{text}");
    }

    #[test]
    fn waits_come_as_seconds_or_dates() {
        let mut headers = HeaderMap::new();
        assert_eq!(retry_after(&headers), None);
        headers.insert(RETRY_AFTER, HeaderValue::from_static("60"));
        assert_eq!(retry_after(&headers), Some(Duration::from_secs(60)));
        headers.insert(RETRY_AFTER, HeaderValue::from_static("Mon, 30 Nov 2026 10:00:30 GMT"));
        assert_eq!(retry_after(&headers), None);
        headers.insert(DATE, HeaderValue::from_static("Mon, 30 Nov 2026 10:00:00 GMT"));
        assert_eq!(retry_after(&headers), Some(Duration::from_secs(30)));
        headers.insert(DATE, HeaderValue::from_static("Mon, 30 Nov 2026 10:01:00 GMT"));
        assert_eq!(retry_after(&headers), Some(Duration::ZERO));
        headers.insert(RETRY_AFTER, HeaderValue::from_static("soon"));
        assert_eq!(retry_after(&headers), None);
    }
}
