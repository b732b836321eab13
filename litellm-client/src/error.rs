//! What can go wrong, said so that the caller knows what to do next.

use std::fmt;
use std::time::Duration;

use serde_json::Value;

use crate::scrub::{MAX_CHARS, Scrubber};

/// A call that did not succeed. Never holds a secret, a query string or a body.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("LiteLLM {method} {path}: {kind}")]
pub struct Error {
    /// The HTTP method.
    pub method: &'static str,
    /// The path below the gateway's address, without the query.
    pub path: String,
    /// What happened.
    pub kind: ErrorKind,
}

/// What happened to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ErrorKind {
    /// Our own credential could not be read or cannot be put in a header. Nothing was sent.
    Credential {
        /// Why; never the credential.
        message: String,
    },
    /// The arguments make a call that must not be made. Nothing was sent.
    Invalid {
        /// Which argument, and why.
        message: String,
    },
    /// No connection: nothing was sent.
    Unreachable {
        /// The chain of causes.
        cause: String,
    },
    /// The connection broke or the time was up after the request may have been sent.
    Interrupted {
        /// The chain of causes.
        cause: String,
    },
    /// The gateway answered with an error.
    Status {
        /// The HTTP status.
        status: u16,
        /// `error.type`, or the type of the first validation mistake.
        error_type: Option<Box<str>>,
        /// `error.param`, or where the first validation mistake is.
        param: Option<Box<str>>,
        /// The text, freed of the Python notation around it; at most 500 characters.
        message: String,
        /// How long the gateway asks us to wait.
        retry_after: Option<Duration>,
    },
    /// An error status whose body is not the gateway's: a proxy or load balancer in front of it, or another service.
    Foreign {
        /// The HTTP status.
        status: u16,
        /// The beginning of the body.
        excerpt: String,
        /// How long we are asked to wait.
        retry_after: Option<Duration>,
    },
    /// A success whose body is not what this call returns.
    Decode {
        /// The JSON path of the mistake.
        at: String,
        /// The mistake.
        cause: String,
    },
    /// The answer points elsewhere. Redirects are not followed: the credential must not travel.
    Redirected {
        /// The HTTP status.
        status: u16,
        /// Where it points, without query and credentials.
        location: Option<String>,
    },
    /// The answer contradicts itself or the request, so it proves nothing.
    Incomplete {
        /// The contradiction.
        message: String,
    },
    /// The body is larger than any honest answer to this call.
    TooLarge {
        /// The most that is read of such an answer, in bytes.
        limit: usize,
    },
}

/// What a caller does about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Try again later; the object is not at fault. Transport, 5xx, 429, answers that prove nothing, and the 4xx the gateway
    /// gives when its database is down.
    Transient,
    /// Our own credential is missing, unknown, expired or not allowed to do this: a fault of the site.
    Credential,
    /// This gateway does not take keys chosen by the caller (`disable_custom_api_keys`).
    CustomKeysForbidden,
    /// The team id, key alias or key is taken. By whom must be read.
    AlreadyExists,
    /// The gateway says the object does not exist. **Unproven**: with its database down it says so of objects that do.
    NotFound,
    /// The gateway will not do this, however often it is asked.
    Refused,
}

impl Error {
    /// What to do about it.
    #[must_use]
    pub fn class(&self) -> Class {
        match &self.kind {
            ErrorKind::Credential { .. } => Class::Credential,
            ErrorKind::Invalid { .. } => Class::Refused,
            ErrorKind::Status { status, error_type, message, .. } => classify(&self.path, *status, error_type.as_deref(), message),
            ErrorKind::Foreign { status: 401 | 403 | 407, .. } => Class::Credential,
            ErrorKind::Foreign { .. }
            | ErrorKind::Unreachable { .. }
            | ErrorKind::Interrupted { .. }
            | ErrorKind::Decode { .. }
            | ErrorKind::Redirected { .. }
            | ErrorKind::Incomplete { .. }
            | ErrorKind::TooLarge { .. } => Class::Transient,
        }
    }

    /// Whether the effect of a write may be there although the call failed: look before asking again. Reads have no effect.
    #[must_use]
    pub fn may_have_happened(&self) -> bool {
        if self.method == "GET" {
            return false;
        }
        match &self.kind {
            ErrorKind::Interrupted { .. } | ErrorKind::Decode { .. } | ErrorKind::Incomplete { .. } | ErrorKind::TooLarge { .. } => true,
            ErrorKind::Status { status, message, error_type, .. } => match self.class() {
                Class::Transient => *status < 400 || *status == 408 || *status >= 500 || database_is_down(error_type.as_deref(), message),
                _ => false,
            },
            ErrorKind::Foreign { status, .. } => *status < 400 || matches!(*status, 408 | 499) || *status >= 500,
            ErrorKind::Credential { .. } | ErrorKind::Invalid { .. } | ErrorKind::Unreachable { .. } | ErrorKind::Redirected { .. } => {
                false
            }
        }
    }

    /// How long the peer asked us to wait; not capped.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match &self.kind {
            ErrorKind::Status { retry_after, .. } | ErrorKind::Foreign { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// The HTTP status, when there was one and it was no plain success.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match &self.kind {
            ErrorKind::Status { status, .. } | ErrorKind::Foreign { status, .. } | ErrorKind::Redirected { status, .. } => Some(*status),
            _ => None,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Credential { message } => write!(f, "our credential cannot be used: {message}"),
            Self::Invalid { message } => write!(f, "not sent: {message}"),
            Self::Unreachable { cause } => {
                write!(f, "no connection to the gateway: {cause}; check its address and that it is running")
            }
            Self::Interrupted { cause } => write!(f, "no complete answer: {cause}"),
            Self::Status { status, error_type, param, message, .. } => {
                write!(f, "answered {status}")?;
                let details: Vec<&str> = [error_type, param].into_iter().flatten().map(AsRef::as_ref).collect();
                if !details.is_empty() {
                    write!(f, " ({})", details.join(", "))?;
                }
                write!(f, ": {message}")
            }
            Self::Foreign { status, excerpt, .. } => {
                write!(f, "answered {status}, and not in the gateway's own words")?;
                if !excerpt.is_empty() {
                    write!(f, " ({excerpt})")?;
                }
                write!(f, "; check the address and what stands in front of it")
            }
            Self::Decode { at, cause } => write!(f, "unexpected answer at `{at}`: {cause}"),
            Self::Redirected { status, location } => {
                write!(f, "answered {status}")?;
                if let Some(location) = location {
                    write!(f, " pointing to {location}")?;
                }
                write!(f, "; redirects are not followed, set the final address of the gateway")
            }
            Self::Incomplete { message } => write!(f, "the answer proves nothing: {message}"),
            Self::TooLarge { limit } => write!(
                f,
                "the answer is larger than {limit} bytes, the most that is read; check the address and what stands in front of the gateway"
            ),
        }
    }
}

/// Words by which the gateway, or the database layer below it, says that its database is not there. With the database down
/// `/key/update` answers 400 `auth_error`, others 500 or 503; the status alone tells nothing.
const DATABASE_IS_DOWN: &[&str] = &[
    "can't reach database server",
    "database is temporarily unreachable",
    "db not connected",
    "no connected db",
    "not connected to the query engine",
    "all connection attempts failed",
    "timed out fetching a new connection from the connection pool",
    "server has closed the connection",
    "too many database connections",
];

fn database_is_down(error_type: Option<&str>, message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    error_type == Some("no_db_connection") || DATABASE_IS_DOWN.iter().any(|words| message.contains(words))
}

fn classify(path: &str, status: u16, error_type: Option<&str>, message: &str) -> Class {
    if database_is_down(error_type, message) {
        return Class::Transient;
    }
    if message.contains("Custom API key values are disabled") {
        return Class::CustomKeysForbidden;
    }
    if message.contains("LiteLLM Enterprise") || message.contains("Enterprise feature") {
        return Class::Refused;
    }
    // Two requests for one team id at the same time: the loser gets the database's own words with a 500.
    if message.contains("Unique constraint failed") {
        return Class::AlreadyExists;
    }
    // A null in a column that takes none: repeating cannot help, although the status is 500.
    if message.contains("Unable to match input value to any allowed input type") {
        return Class::Refused;
    }
    if matches!(error_type, Some("token_not_found_in_db" | "expired_key" | "budget_exceeded" | "key_model_access_denied")) {
        return Class::Credential;
    }
    match status {
        401 | 403 | 407 => Class::Credential,
        // FastAPI's word for a path it does not have: another service, another release or a wrong address.
        404 | 405 if matches!(message, "Not Found" | "Method Not Allowed") => Class::Transient,
        // The usage calls look up the user behind the key; a key that is no administrator's has none.
        404 if path.starts_with("/team/daily/activity") => Class::Credential,
        404 => Class::NotFound,
        400 | 409 if message.contains("already exists") => Class::AlreadyExists,
        408 | 409 | 425 | 429 => Class::Transient,
        400..500 => Class::Refused,
        _ => Class::Transient,
    }
}

/// The kind for a status that is no success, from its body.
pub(crate) fn from_answer(status: u16, body: &[u8], retry_after: Option<Duration>, scrubber: &Scrubber) -> ErrorKind {
    match envelope(body) {
        Some(said) => ErrorKind::Status {
            status,
            error_type: said.error_type.map(|text| scrubber.clean_to(&text, 100).into()),
            param: said.param.map(|text| scrubber.clean_to(&text, 100).into()),
            message: scrubber.clean(&said.message),
            retry_after,
        },
        None => ErrorKind::Foreign {
            status,
            excerpt: scrubber.clean_to(&String::from_utf8_lossy(body.get(..4 * MAX_CHARS).unwrap_or(body)), 200),
            retry_after,
        },
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Said {
    error_type: Option<String>,
    param: Option<String>,
    message: String,
}

/// The gateway's error envelopes: `{"error": {message, type, param, code}}` where the message is plain or a Python dict,
/// `{"error": "text"}`, `{"detail": {"error": …}}`, `{"detail": "text"}`, `{"detail": [{type, loc, msg}]}`.
fn envelope(body: &[u8]) -> Option<Said> {
    let body: Value = serde_json::from_slice(body).ok()?;
    if let Some(error) = body.get("error") {
        return match error {
            Value::Object(fields) => Some(Said {
                error_type: fields.get("type").and_then(plain),
                param: fields.get("param").and_then(plain),
                message: fields.get("message").map(text_of).unwrap_or_default(),
            }),
            Value::String(text) => Some(Said { message: unwrap_python(text), ..Said::default() }),
            _ => None,
        };
    }
    match body.get("detail")? {
        Value::Array(mistakes) => {
            let first = mistakes.first();
            Some(Said {
                error_type: first.and_then(|m| m.get("type")).and_then(plain),
                param: first.map(location),
                message: mistakes
                    .iter()
                    .take(5)
                    .map(|m| format!("{}: {}", location(m), m.get("msg").map(text_of).unwrap_or_default()))
                    .collect::<Vec<_>>()
                    .join("; "),
            })
        }
        detail @ (Value::String(_) | Value::Object(_)) => Some(Said { message: text_of(detail), ..Said::default() }),
        _ => None,
    }
}

/// Where a validation mistake is: `body.max_budget`.
fn location(mistake: &Value) -> String {
    let parts = mistake.get("loc").and_then(Value::as_array);
    parts.into_iter().flatten().map(|part| part.as_str().map_or_else(|| part.to_string(), str::to_owned)).collect::<Vec<_>>().join(".")
}

/// A string that says something: the gateway writes Python's `None` as a text.
fn plain(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty() && *text != "None").map(str::to_owned)
}

fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => unwrap_python(text),
        Value::Object(fields) => fields.get("error").or_else(|| fields.get("message")).map_or_else(|| value.to_string(), text_of),
        _ => value.to_string(),
    }
}

/// `{'error': 'text'}` and `{'message': "text"}`, the way Python prints a dict, to `text`; anything else stays.
fn unwrap_python(text: &str) -> String {
    let inner = text.trim();
    for key in ["error", "message"] {
        for quote in ['\'', '"'] {
            let inside = inner.strip_prefix(&format!("{{{quote}{key}{quote}:")).map(str::trim_start).and_then(python_string);
            if let Some(inside) = inside {
                return inside;
            }
        }
    }
    text.to_owned()
}

/// Reads a Python string literal up to its closing quote; `None` when it is no string or has no end.
fn python_string(text: &str) -> Option<String> {
    let mut chars = text.chars();
    let quote = chars.next().filter(|c| matches!(c, '\'' | '"'))?;
    let mut out = String::with_capacity(text.len());
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next()? {
                'n' | 'r' | 't' => out.push(' '),
                'x' => out.push(hex_char(&mut chars, 2)?),
                'u' => out.push(hex_char(&mut chars, 4)?),
                'U' => out.push(hex_char(&mut chars, 8)?),
                other => out.push(other),
            },
            c if c == quote => return Some(out),
            c => out.push(c),
        }
    }
    None
}

fn hex_char(chars: &mut std::str::Chars<'_>, digits: usize) -> Option<char> {
    let text: String = chars.by_ref().take(digits).collect();
    u32::from_str_radix(&text, 16).ok().and_then(char::from_u32)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use proptest::prelude::*;

    fn said(body: &str) -> Said {
        envelope(body.as_bytes()).unwrap()
    }

    #[test]
    fn every_envelope_becomes_plain_text() {
        let cases = [
            (r#"{"error":{"message":"plain","type":"t","param":"None","code":"400"}}"#, "plain"),
            (r#"{"error":{"message":"{'error': 'Team not found, passed team_id=nope'}"}}"#, "Team not found, passed team_id=nope"),
            (r#"{"error":{"message":"{'message': 'Team not found.'}"}}"#, "Team not found."),
            (r#"{"error":{"message":"{'error': \"Can't edit model.\"}"}}"#, "Can't edit model."),
            (r#"{"error":{"message":"{'error': 'It\\'s \\xe9 \\u20ac \\\\ \\nnew'}"}}"#, "It's é € \\  new"),
            (r#"{"error":{"message":{"error":"inner"}}}"#, "inner"),
            (r#"{"error":"text"}"#, "text"),
            (r#"{"detail":{"error":"Team not found"}}"#, "Team not found"),
            (r#"{"detail":"Not Found"}"#, "Not Found"),
            (
                r#"{"detail":[{"type":"missing","loc":["body","team_id"],"msg":"Field required"},{"type":"x","loc":["body",11],"msg":"bad"}]}"#,
                "body.team_id: Field required; body.11: bad",
            ),
            // No end, so it is left as it is.
            (r#"{"error":{"message":"{'error': 'cut"}}"#, "{'error': 'cut"),
        ];
        for (body, text) in cases {
            assert_eq!(said(body).message, text, "{body}");
        }
        let first = said(r#"{"detail":[{"type":"missing","loc":["body","team_id"],"msg":"Field required"}]}"#);
        assert_eq!(first.error_type.as_deref(), Some("missing"));
        assert_eq!(first.param.as_deref(), Some("body.team_id"));
        assert_eq!(said(r#"{"error":{"message":"m","param":"None"}}"#).param, None);
    }

    #[test]
    fn other_bodies_are_not_the_gateways_words() {
        for body in ["", "null", "[]", "<html>404</html>", "{}", r#"{"status":"healthy"}"#, r#"{"message":"no Route matched"}"#] {
            assert_eq!(envelope(body.as_bytes()), None, "{body}");
        }
    }

    fn error(method: &'static str, path: &str, kind: ErrorKind) -> Error {
        Error { method, path: path.to_owned(), kind }
    }

    fn answer(status: u16, body: &str) -> ErrorKind {
        from_answer(status, body.as_bytes(), None, &Scrubber::new(Vec::new()))
    }

    #[test]
    fn a_404_counts_only_in_the_gateways_words() {
        let gone = r#"{"detail":{"error":"Team not found, passed team_id=x"}}"#;
        assert_eq!(error("POST", "/team/delete", answer(404, gone)).class(), Class::NotFound);
        for body in ["<html>default backend - 404</html>", "", r#"{"detail":"Not Found"}"#] {
            assert_eq!(error("POST", "/team/delete", answer(404, body)).class(), Class::Transient, "{body}");
        }
    }

    #[test]
    fn foreign_answers_never_blame_the_object() {
        for status in [400, 404, 405, 409, 413, 429, 500, 502, 503, 504] {
            assert_eq!(error("POST", "/team/new", answer(status, "<html>")).class(), Class::Transient, "{status}");
        }
        assert_eq!(error("POST", "/team/new", answer(403, "<html>")).class(), Class::Credential);
    }

    #[test]
    fn effects_are_doubted_only_where_they_can_be() {
        let interrupted = ErrorKind::Interrupted { cause: "time".to_owned() };
        assert!(error("POST", "/team/new", interrupted.clone()).may_have_happened());
        assert!(!error("GET", "/team/info", interrupted).may_have_happened());
        assert!(!error("POST", "/team/new", ErrorKind::Unreachable { cause: String::new() }).may_have_happened());
        assert!(error("POST", "/team/new", answer(502, "<html>")).may_have_happened());
        assert!(error("POST", "/team/new", answer(500, r#"{"error":{"message":"boom"}}"#)).may_have_happened());
        assert!(!error("POST", "/team/new", answer(429, r#"{"error":{"message":"slow down"}}"#)).may_have_happened());
        assert!(!error("POST", "/team/new", answer(400, r#"{"error":{"message":"no"}}"#)).may_have_happened());
        let lost_database = r#"{"error":{"message":"Authentication Error, Can't reach database server at `x`","type":"auth_error"}}"#;
        assert!(error("POST", "/key/update", answer(400, lost_database)).may_have_happened());
    }

    #[test]
    fn messages_name_the_call_and_the_cure() {
        let text = error("POST", "/team/new", answer(400, r#"{"error":{"message":"m","type":"t","param":"p"}}"#)).to_string();
        assert_eq!(text, "LiteLLM POST /team/new: answered 400 (t, p): m");
        let text = error("GET", "/key/list", ErrorKind::Redirected { status: 301, location: Some("https://x/".to_owned()) }).to_string();
        assert_eq!(
            text,
            "LiteLLM GET /key/list: answered 301 pointing to https://x/; redirects are not followed, set the final address of the gateway"
        );
    }

    /// Every recorded error with the class it has to get.
    const RECORDED: &[(Class, &[&str])] = &[
        (
            Class::Transient,
            &[
                "chat-rpm-3",
                "chat-tpm-2",
                "chat-tpm-3",
                "chat-upstream-429",
                "chat-upstream-fail",
                "dbdown-chat-uncached-key",
                "dbdown-daily",
                "dbdown-health-readiness",
                "dbdown-key-generate",
                "dbdown-list",
                "dbdown-model-info",
                "dbdown-readiness-2",
                "dbdown-team-new",
                "dbdown-vkey-mgmt",
                "dbdown2-agg",
                "dbdown2-key-delete",
                "dbdown2-key-delete-tok",
                "dbdown2-key-info",
                "dbdown2-key-list",
                "dbdown2-key-update",
                "dbdown2-model-info",
                "dbdown2-model-new",
                "dbdown2-readiness",
                "dbdown2-slv2",
                "dbdown2-team-block",
                "dbdown2-team-list",
                "dbdown2-team-new-dup",
                "dbdown2-team-update",
                "methods-get-teamnew",
                "model-new-dup",
                "team-reset-spend",
            ],
        ),
        (
            Class::NotFound,
            &[
                "chat-orphan-team-key",
                "dbdown-delete",
                "dbdown-team-info",
                "key-block-404",
                "key-delete-alias-again",
                "key-delete-token-again",
                "key-delete-two",
                "key-info-404",
                "key-info-noarg",
                "key-update-404",
                "model-patch-404",
                "team-block-404",
                "team-delete-again",
                "team-delete-mix",
                "team-info-404",
                "team-info-deleted",
                "team-unblock-404",
                "team-update-404",
            ],
        ),
        (
            Class::Credential,
            &[
                "auth-bad",
                "auth-bad2",
                "chat-after-models-change",
                "chat-blk-orphan",
                "chat-blocked-by-update",
                "chat-blocked-key",
                "chat-bud-n",
                "chat-deleted-key",
                "chat-nodef-llama",
                "chat-one-mistral",
                "chat-zero-budget-2",
                "key-daily-as-team",
                "models-with-key-blocked",
                "rbac-vkey-key-gen",
                "rbac-vkey-team-info-other",
                "rbac-vkey-team-new",
                "svc2-chat",
            ],
        ),
        (Class::CustomKeysForbidden, &["custom-key-forbidden"]),
        (
            Class::AlreadyExists,
            &[
                "alias-empty2",
                "conc-alias-2",
                "conc-alias-3",
                "conc-team-1",
                "conc-team-2",
                "conc-team-3",
                "key-generate-dup-alias",
                "key-generate-dup-alias-other-team",
                "key-generate-dup-key-same-all",
                "key-update-alias-dup",
                "team-new-dup",
            ],
        ),
        (
            Class::Refused,
            &[
                "agg-reverse",
                "agg-toolong",
                "chat-nomodel",
                "global-spend-report",
                "key-delete-empty",
                "key-delete-none",
                "key-generate-badprefix",
                "key-generate-shortkey",
                "key-list-size-big",
                "key-regenerate",
                "key-rotate-newkey",
                "model-delete-again",
                "model-delete-cfg",
                "model-info-404",
                "model-patch-cfg",
                "model-update-404",
                "model-update-cfg",
                "prem-key-tags",
                "prem-team-guard",
                "prem-team-member-admin",
                "prem-team-tags",
                "spend-logs-v2-nodates",
                "team-daily-activity-baddate",
                "team-daily-activity-nodates",
                "team-info-noparam",
                "team-list-v2-big",
                "team-new-badtype",
                "team-new-malformed",
                "team-new-negbudget",
                "team-update-baddur",
                "team-update-blocked-null",
                "team-update-models-null",
                "team-update-neg",
                "team-update-noid",
            ],
        ),
    ];

    #[test]
    fn every_recorded_error_has_its_class() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/recordings/litellm");
        let mut seen = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let file = entry.unwrap().path();
            let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
            let recording: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
            let status = u16::try_from(recording["status"].as_u64().unwrap()).unwrap();
            if status < 400 {
                continue;
            }
            seen += 1;
            let request = &recording["request"];
            let path = request["path"].as_str().unwrap().split('?').next().unwrap();
            let method = if request["method"] == "GET" { "GET" } else { "POST" };
            let error = error(method, path, answer(status, &recording["body"].to_string()));
            let expected = RECORDED
                .iter()
                .find(|(_, names)| names.contains(&name.as_str()))
                .unwrap_or_else(|| panic!("{name}: {error} has no class in the table"));
            assert_eq!(error.class(), expected.0, "{name}: {error}");
            let text = error.to_string();
            assert!(!text.contains("{'") && !text.contains('\n'), "{name}: {text}");
            assert_eq!(error.status(), Some(status), "{name}");
        }
        let listed: usize = RECORDED.iter().map(|(_, names)| names.len()).sum();
        assert_eq!(seen, listed, "every name in the table is a recording");
    }

    proptest! {
        #[test]
        fn any_error_body_is_read_without_a_panic(body in proptest::collection::vec(any::<u8>(), 0..200), status in 400_u16..600) {
            let kind = from_answer(status, &body, None, &Scrubber::new(Vec::new()));
            let _ = error("POST", "/x", kind).class();
        }

        #[test]
        fn any_message_is_unwrapped_without_a_panic(text in "\\{['\"](error|message)['\"]: ['\"]?.{0,40}") {
            let _ = unwrap_python(&text);
        }
    }
}
