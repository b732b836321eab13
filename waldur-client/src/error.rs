//! What can go wrong with a call, and what it means for the caller.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde_json::Value;

use crate::scrub::Scrub;

/// Result of a call to Waldur.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a [`Client`](crate::Client) could not be made. All of these are mistakes in the settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A credential would travel unencrypted to another machine.
    #[error("{what} {url} is plain http to another host: use https, or set allow_insecure_http if the network in between is trusted")]
    InsecureHttp {
        /// Which setting.
        what: &'static str,
        /// The address, without path.
        url: String,
    },
    /// An address that cannot be used. The address itself is not repeated: it may hold a password.
    #[error("{what} cannot be used: {reason}")]
    BadUrl {
        /// Which setting.
        what: &'static str,
        /// What is wrong and what to do.
        reason: String,
    },
    /// The CA bundle holds no readable certificate.
    #[error("the CA bundle cannot be used: {reason}; it must be one or more PEM certificates")]
    BadCa {
        /// What the parser said.
        reason: String,
    },
    /// The HTTP client could not be made, e.g. for a user agent with control characters.
    #[error("the HTTP client cannot be made: {cause}")]
    Http {
        /// The chain of causes.
        cause: String,
    },
}

/// A call that did not succeed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{method} {path}: {kind}")]
pub struct Error {
    /// HTTP method.
    pub method: &'static str,
    /// Path of the call, without host and query.
    pub path: String,
    /// What happened.
    pub kind: ErrorKind,
}

/// What happened to a call.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Our own secret is unreadable or the token endpoint refused it. Nothing was sent to Waldur.
    Credential {
        /// What is wrong, without the secret.
        message: String,
    },
    /// No connection: the request was surely not sent.
    Unreachable {
        /// The chain of causes.
        cause: String,
    },
    /// The request was sent, or may have been, and the answer was lost: time-out, reset, cut body.
    Interrupted {
        /// The chain of causes.
        cause: String,
    },
    /// The server answered with a status that is no success.
    Status {
        /// HTTP status.
        status: u16,
        /// Best text of the answer, one line, at most 500 characters, without secrets.
        message: String,
        /// The answer was an HTML page: the framework's page for an unknown route or a crash.
        html: bool,
        /// Parsed `Retry-After`.
        retry_after: Option<Duration>,
        /// All texts of a JSON answer by their place, e.g. `usages[0].amount`; a bare text or list is under the
        /// empty name.
        fields: BTreeMap<String, Vec<String>>,
    },
    /// A success whose body could not be read as what it should be.
    Decode {
        /// Place in the JSON, e.g. `[3].uuid`; `.` is the whole body.
        at: String,
        /// What was expected.
        cause: String,
    },
    /// The server wants the call made somewhere else. Never followed: the credential would go along.
    Redirected {
        /// HTTP status.
        status: u16,
        /// Host named by `Location`, where it could be read.
        location_host: Option<String>,
    },
    /// The pages of a list do not add up to the count the server gave.
    Incomplete {
        /// Both figures.
        message: String,
    },
    /// The body is larger than the client accepts.
    TooLarge {
        /// The most that is read of such an answer, in bytes.
        limit: usize,
    },
    /// A 404 that Waldur did not write (no JSON, not its HTML page): an ingress or proxy whose backend is away.
    /// Says nothing about the object or the route.
    Foreign {
        /// HTTP status.
        status: u16,
        /// Its text, cleaned like that of `Status`.
        message: String,
    },
}

/// What a failure means for whoever made the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Will probably pass: transport, time-out, 5xx, 408, 429, an unreadable or incomplete answer, a redirect.
    Transient,
    /// 401, 403, or our own secret: a fault of the site, of no single order.
    Credential,
    /// 409: the state is not what the caller thought. Look again.
    Conflict,
    /// JSON (or empty) 404: no such object, or not visible to us.
    NotFound,
    /// HTML 404 or 405: this generation of the server has no such call.
    NoSuchRoute,
    /// Any other 4xx: the request itself was refused.
    Refused,
}

impl Error {
    /// What the failure means.
    pub fn class(&self) -> Class {
        match &self.kind {
            ErrorKind::Credential { .. } => Class::Credential,
            ErrorKind::Status { status, html, .. } => match status {
                401 | 403 => Class::Credential,
                404 if *html => Class::NoSuchRoute,
                404 => Class::NotFound,
                405 => Class::NoSuchRoute,
                408 | 425 | 429 => Class::Transient,
                409 => Class::Conflict,
                400..=499 => Class::Refused,
                _ => Class::Transient,
            },
            _ => Class::Transient,
        }
    }

    /// Whether the server may have carried out the call all the same. Never for a read.
    pub fn may_have_happened(&self) -> bool {
        if self.method == "GET" {
            return false;
        }
        match &self.kind {
            ErrorKind::Interrupted { .. } | ErrorKind::Decode { .. } | ErrorKind::TooLarge { .. } => true,
            ErrorKind::Status { status, .. } => !(300..500).contains(status),
            _ => false,
        }
    }

    /// How long the server asked to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match &self.kind {
            ErrorKind::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// The HTTP status, where there was an answer that failed by its status.
    pub fn status(&self) -> Option<u16> {
        match &self.kind {
            ErrorKind::Status { status, .. } | ErrorKind::Redirected { status, .. } | ErrorKind::Foreign { status, .. } => Some(*status),
            _ => None,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Credential { message } => {
                write!(f, "the credential for Waldur cannot be used: {message}")
            }
            Self::Unreachable { cause } => write!(f, "Waldur cannot be reached: {cause}"),
            Self::Interrupted { cause } => write!(f, "the answer was lost: {cause}"),
            Self::Status { status, message, .. } => {
                write!(f, "Waldur answered {status}")?;
                if !message.is_empty() {
                    write!(f, ": {message}")?;
                }
                match status {
                    401 => f.write_str(" (check the token)"),
                    403 => f.write_str(" (check the roles of the agent's user)"),
                    _ => Ok(()),
                }
            }
            Self::Decode { at, cause } => write!(f, "the answer cannot be read at {at}: {cause}"),
            Self::Redirected { status, location_host } => {
                write!(f, "Waldur answered {status}, a redirect")?;
                if let Some(host) = location_host {
                    write!(f, " to {host}")?;
                }
                f.write_str("; redirects are not followed: set the API URL to the final address, with https")
            }
            Self::Incomplete { message } => write!(f, "the list is not complete: {message}"),
            Self::TooLarge { limit } => write!(
                f,
                "the answer is larger than {limit} bytes, the most that is read; check that the API URL is Waldur's, and what stands in front of it"
            ),
            Self::Foreign { status, message } => {
                write!(f, "a {status} that does not come from Waldur (check the ingress): {message}")
            }
        }
    }
}

/// The parts of an answer that an error is made of.
pub(crate) struct Refusal<'a> {
    pub(crate) status: u16,
    pub(crate) content_type: &'a str,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) body: &'a str,
}

impl Refusal<'_> {
    /// Reads the five shapes Waldur answers errors in: `{"detail"}`, `{"details"}`, `{"field": […]}` (nested),
    /// a bare list, and an HTML page.
    pub(crate) fn into_kind(self, scrub: Scrub<'_>) -> ErrorKind {
        let body = self.body.trim();
        let json: Option<Value> = serde_json::from_str(body).ok();
        let html = json.is_none() && (self.content_type.contains("html") || body.starts_with('<'));

        let mut fields = BTreeMap::new();
        let message = match &json {
            Some(value) => {
                flatten(value, String::new(), 0, scrub, &mut fields);
                summary(value, &fields)
            }
            None if html => page_title(body),
            None => body.to_owned(),
        };
        let message = scrub.clean(&message);

        let from_waldur = json.is_some() || body.is_empty() || (html && !is_proxy_page(body));
        if self.status == 404 && !from_waldur {
            return ErrorKind::Foreign { status: self.status, message };
        }
        ErrorKind::Status { status: self.status, message, html, retry_after: self.retry_after, fields }
    }
}

/// Most places kept of one answer: a refusal of a large batch repeats itself.
const MAX_FIELDS: usize = 100;
/// Deepest nesting looked at.
const MAX_DEPTH: usize = 8;

fn flatten(value: &Value, at: String, depth: usize, scrub: Scrub<'_>, out: &mut BTreeMap<String, Vec<String>>) {
    if depth > MAX_DEPTH || (out.len() >= MAX_FIELDS && !out.contains_key(&at)) {
        return;
    }
    match value {
        Value::Null => {}
        Value::Object(map) => {
            for (key, inner) in map {
                let key = scrub.clean(key);
                let at = if at.is_empty() { key } else { format!("{at}.{key}") };
                flatten(inner, at, depth + 1, scrub, out);
            }
        }
        Value::Array(items) => {
            for (index, inner) in items.iter().take(MAX_FIELDS).enumerate() {
                let at = match inner {
                    Value::Object(_) | Value::Array(_) => format!("{at}[{index}]"),
                    _ => at.clone(),
                };
                flatten(inner, at, depth + 1, scrub, out);
            }
        }
        Value::String(text) => out.entry(at).or_default().push(scrub.clean(text)),
        Value::Bool(_) | Value::Number(_) => {
            out.entry(at).or_default().push(value.to_string());
        }
    }
}

fn summary(value: &Value, fields: &BTreeMap<String, Vec<String>>) -> String {
    for key in ["detail", "details"] {
        if let Some(text) = value.get(key).and_then(Value::as_str) {
            return text.to_owned();
        }
    }
    fields
        .iter()
        .map(|(at, texts)| {
            let texts = texts.join(" ");
            match at.as_str() {
                "" | "non_field_errors" => texts,
                _ => format!("{at}: {texts}"),
            }
        })
        .collect::<Vec<_>>()
        .join("; ")
}

/// Title of an HTML page; the rest of it is decoration.
fn page_title(html: &str) -> String {
    let lower = html.to_ascii_lowercase();
    let title = lower.find("<title>").and_then(|start| {
        let from = start + "<title>".len();
        let len = lower.get(from..)?.find("</title>")?;
        html.get(from..from + len)
    });
    title.map_or_else(|| "an HTML page".to_owned(), |title| title.trim().to_owned())
}

/// The stock error pages of the usual ingress controllers, which are about the ingress and not about Waldur.
fn is_proxy_page(html: &str) -> bool {
    ["<center>nginx", "<center>openresty", "<address>Apache"].iter().any(|mark| html.contains(mark))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    fn error(method: &'static str, status: u16, content_type: &str, body: &str) -> Error {
        let kind = Refusal { status, content_type, retry_after: None, body }.into_kind(Scrub::default());
        Error { method, path: "/api/x/".into(), kind }
    }

    fn message_and_fields(error: &Error) -> (String, BTreeMap<String, Vec<String>>) {
        match &error.kind {
            ErrorKind::Status { message, fields, .. } => (message.clone(), fields.clone()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nested_fields_are_named_by_their_place() {
        let body = r#"{"usages":[{},{"amount":["too long","too odd"]}],"resource":["no"]}"#;
        let (message, fields) = message_and_fields(&error("POST", 400, "application/json", body));
        assert_eq!(message, "resource: no; usages[1].amount: too long too odd");
        assert_eq!(fields["usages[1].amount"], ["too long", "too odd"]);
        assert_eq!(fields["resource"], ["no"]);
    }

    #[test]
    fn classes_follow_status_and_shape() {
        let json = "application/json";
        let cases = [
            (400, json, "[\"no\"]", Class::Refused),
            (401, json, "{}", Class::Credential),
            (403, "text/html", "<html>", Class::Credential),
            (404, json, r#"{"detail":"No Order matches"}"#, Class::NotFound),
            (404, "", "", Class::NotFound),
            (404, "text/html", "<html><title>Not Found</title>", Class::NoSuchRoute),
            (404, "text/html", "<html><center>nginx</center>", Class::Transient),
            (404, "text/plain", "default backend - 404", Class::Transient),
            (405, json, "{}", Class::NoSuchRoute),
            (408, json, "", Class::Transient),
            (409, json, "{}", Class::Conflict),
            (429, json, "{}", Class::Transient),
            (500, "text/html", "<html>", Class::Transient),
            (207, json, "{}", Class::Transient),
            (304, "", "", Class::Transient),
        ];
        for (status, content_type, body, class) in cases {
            let error = error("POST", status, content_type, body);
            assert_eq!(error.class(), class, "{status} {body}");
            assert_eq!(error.status(), Some(status));
        }
    }

    #[test]
    fn only_writes_without_a_clear_no_may_have_happened() {
        assert!(error("POST", 500, "", "").may_have_happened());
        assert!(error("POST", 207, "", "").may_have_happened());
        assert!(!error("GET", 500, "", "").may_have_happened());
        assert!(!error("POST", 409, "", "").may_have_happened());
        assert!(!error("POST", 304, "", "").may_have_happened());
    }

    #[test]
    fn a_huge_refusal_stays_small() {
        let body = Value::Object((0..5000).map(|i| (format!("f{i}"), Value::from(vec!["x".repeat(2000)]))).collect()).to_string();
        let (message, fields) = message_and_fields(&error("POST", 400, "application/json", &body));
        assert!(message.chars().count() <= 500);
        assert_eq!(fields.len(), MAX_FIELDS);
        assert!(fields.values().flatten().all(|text| text.chars().count() <= 500));
    }
}
