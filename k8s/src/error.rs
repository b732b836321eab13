//! What can go wrong, and what each failure asks of the caller.

use std::error::Error as StdError;
use std::time::Duration;

use kube::core::Status;

use crate::client::Answer;

/// What a failure asks of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// No usable answer: try again later.
    Transient,
    /// The site's credential, role or configuration: nothing will work until an operator acts.
    Denied,
    /// Somebody else wrote: read again and plan anew.
    Conflict,
    /// The object was refused; the same object will be refused again.
    Invalid,
    /// The namespace or the object does not exist.
    NotFound,
}

/// A failed call to the Kubernetes API. No variant ever carries a value of a Secret.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// No usable answer: unreachable, too slow, overloaded, or not understood.
    #[error("cannot {what}: {why}; it is tried again")]
    Transient {
        /// The call, as `verb resource namespace/name`.
        what: String,
        /// The cause.
        why: String,
        /// The status of the answer, when there was one.
        status: Option<u16>,
        /// How long the server asks us to wait.
        retry_after: Option<Duration>,
        /// False only when the request certainly had no effect.
        may_have_happened: bool,
    },
    /// 401 or 403, or the credential itself cannot be read.
    #[error("not allowed to {what}: {why}; {remedy}")]
    Denied {
        /// The call, as `verb resource namespace/name`.
        what: String,
        /// The cause in the server's words.
        why: String,
        /// What an operator has to do.
        remedy: String,
    },
    /// 409: the object changed since it was read, or another field manager owns what we want to set.
    #[error("conflict on {what}: {why}")]
    Conflict {
        /// The call, as `verb resource namespace/name`.
        what: String,
        /// The cause, naming the fields when there are any.
        why: String,
        /// The field managers that own them; empty when only the version was stale.
        managers: Vec<String>,
    },
    /// 400, 413 or 422, or refused here before it was sent.
    #[error("cannot {what}: the object is refused: {why}")]
    Invalid {
        /// The call, as `verb resource namespace/name`.
        what: String,
        /// The cause.
        why: String,
    },
    /// 404: the namespace or the object does not exist.
    #[error("cannot {what}: {why}; create namespace {namespace} or correct the configuration")]
    NotFound {
        /// The call, as `verb resource namespace/name`.
        what: String,
        /// The namespace of the call.
        namespace: String,
        /// The cause in the server's words.
        why: String,
    },
    /// No client can be made from the settings.
    #[error("cannot use the Kubernetes API: {why}; set the kubeconfig and its context, or run in a pod with a service account")]
    Settings {
        /// The cause.
        why: String,
    },
}

impl Error {
    /// What this failure asks of the caller.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Transient { .. } => Class::Transient,
            Self::Denied { .. } | Self::Settings { .. } => Class::Denied,
            Self::Conflict { .. } => Class::Conflict,
            Self::Invalid { .. } => Class::Invalid,
            Self::NotFound { .. } => Class::NotFound,
        }
    }

    /// Whether the request may have had its effect although the call failed. The cure is to read again.
    #[must_use]
    pub fn may_have_happened(&self) -> bool {
        matches!(self, Self::Transient { may_have_happened: true, .. })
    }

    /// An answer that came but makes no sense. For a write the effect is unknown.
    pub(crate) fn not_understood(call: &Call<'_>, why: impl std::fmt::Display) -> Self {
        Self::Transient {
            what: call.to_string(),
            why: format!("the answer is not understood: {why}"),
            status: None,
            retry_after: None,
            may_have_happened: call.writes(),
        }
    }

    pub(crate) fn invalid(call: &Call<'_>, why: impl Into<String>) -> Self {
        Self::Invalid { what: call.to_string(), why: why.into() }
    }

    pub(crate) fn timed_out(call: &Call<'_>, after: Duration) -> Self {
        Self::Transient {
            what: call.to_string(),
            why: format!("no answer within {after:?}"),
            status: None,
            retry_after: None,
            may_have_happened: call.writes(),
        }
    }

    pub(crate) fn from_kube(call: &Call<'_>, error: kube::Error) -> Self {
        match error {
            kube::Error::Auth(cause) => Self::Denied {
                what: call.to_string(),
                why: format!("no credential: {}", chain(&cause)),
                remedy: "make the token or kubeconfig of the agent readable".to_owned(),
            },
            other => {
                let refused = is_connect_failure(&other);
                Self::Transient {
                    what: call.to_string(),
                    why: chain(&other),
                    status: None,
                    retry_after: None,
                    may_have_happened: call.writes() && !refused,
                }
            }
        }
    }

    /// An answer that is not a success.
    pub(crate) fn from_answer(call: &Call<'_>, answer: &Answer) -> Self {
        let status: Status = serde_json::from_slice(&answer.body).unwrap_or_else(|_| Status::failure("", ""));
        let what = call.to_string();
        // A request that the server cannot decode is quoted in its answer, with what stands around the fault.
        let why = if matches!(answer.status, 400 | 415) && call.resource == "secrets" {
            format!("the server answers {} {} (its text is left out, since it can quote the Secret)", answer.status, plain(&status.reason))
        } else {
            plain(if status.message.is_empty() { &status.reason } else { &status.message })
        };
        let details = status.details.as_ref();
        let causes = details.map(|details| details.causes.as_slice()).unwrap_or_default();
        match answer.status {
            401 => Self::Denied {
                what,
                why: if why.is_empty() { "401 Unauthorized".to_owned() } else { why },
                remedy: "the token of the agent is not accepted: renew it or correct the kubeconfig".to_owned(),
            },
            403 => {
                let remedy = if why.contains("exceeded quota") {
                    format!("raise the quota of namespace {}", call.namespace)
                } else if why.contains("being terminated") {
                    format!("namespace {} is being deleted: create it again or correct the configuration", call.namespace)
                } else {
                    call.right()
                };
                Self::Denied { what, why, remedy }
            }
            404 => Self::NotFound { what, namespace: call.namespace.to_owned(), why },
            // A quota that changed meanwhile also answers 409: the object does not exist then.
            409 if call.verb == "create" && status.reason != "AlreadyExists" => {
                Self::Transient { what, why, status: Some(409), retry_after: None, may_have_happened: false }
            }
            409 => {
                let mut managers: Vec<String> = causes
                    .iter()
                    .filter(|cause| cause.reason == "FieldManagerConflict")
                    .filter_map(|cause| quoted(&cause.message))
                    .collect();
                managers.sort();
                managers.dedup();
                Self::Conflict { what, why, managers }
            }
            // Another object has taken the name since.
            422 if causes.iter().any(|cause| cause.field == "metadata.uid") => {
                Self::Conflict { what, why: "it was deleted and made again".to_owned(), managers: Vec::new() }
            }
            400 | 405 | 413 | 415 | 422 => Self::Invalid { what, why },
            // Never followed: the token would go along.
            code @ 300..400 => Self::Transient {
                what,
                why: format!(
                    "the server answers {code}, a redirect to {}; it is not followed: correct the server in the kubeconfig",
                    plain(answer.location.as_deref().unwrap_or("nowhere"))
                ),
                status: Some(code),
                retry_after: None,
                may_have_happened: false,
            },
            code => Self::Transient {
                what,
                why: format!("the server answers {code} {why}"),
                status: Some(code),
                retry_after: answer
                    .retry_after
                    .or_else(|| details.map(|details| u64::from(details.retry_after_seconds)))
                    .filter(|seconds| *seconds > 0)
                    .map(Duration::from_secs),
                may_have_happened: call.writes() && code != 429 && code >= 500,
            },
        }
    }
}

/// A call, for messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) verb: &'static str,
    pub(crate) resource: &'static str,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
}

impl Call<'_> {
    /// How to get the right to it.
    pub(crate) fn right(&self) -> String {
        let Self { verb, resource, namespace, .. } = self;
        format!("grant verb {verb} on {resource} in namespace {namespace} to the agent's service account by a Role and a RoleBinding")
    }

    fn writes(&self) -> bool {
        !matches!(self.verb, "get" | "list")
    }
}

impl std::fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.verb, self.resource, self.namespace)?;
        if !self.name.is_empty() {
            write!(f, "/{}", self.name)?;
        }
        Ok(())
    }
}

/// An error and its causes in one line. Transport errors hide "connection refused" two causes deep.
pub(crate) fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = plain(&error.to_string());
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = plain(&cause.to_string());
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

/// A server's or proxy's words, without secrets and control characters and not without end.
fn plain(text: &str) -> String {
    const LONGEST: usize = 400;
    let text = masked(text);
    let mut short: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST).collect();
    if text.chars().nth(LONGEST).is_some() {
        short.push('…');
    }
    short
}

/// Hides keys of the gateway, in clear and as a Secret spells them, and bearer tokens: an admission webhook that refuses an
/// object may quote it.
fn masked(text: &str) -> String {
    let part_of_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+' | '/' | '=');
    // `c2st` is `sk-` in base64.
    let looks_secret = |word: &str| {
        word.starts_with("sk-") && word.len() >= 8
            || word.contains("c2st") && word.len() >= 16
            || word.starts_with("eyJ") && word.len() >= 20
    };
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(part_of_word) {
        let (before, from) = rest.split_at(start);
        let end = from.find(|c| !part_of_word(c)).unwrap_or(from.len());
        let (word, after) = from.split_at(end);
        out.push_str(before);
        out.push_str(if looks_secret(word) { "***" } else { word });
        rest = after;
    }
    out.push_str(rest);
    out
}

fn quoted(message: &str) -> Option<String> {
    let (_, rest) = message.split_once('"')?;
    let (name, _) = rest.split_once('"')?;
    Some(name.to_owned())
}

/// Whether no connection came about, so that the server cannot have seen the request.
fn is_connect_failure(error: &(dyn StdError + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(cause) = next {
        if let Some(io) = cause.downcast_ref::<std::io::Error>()
            && io.kind() == std::io::ErrorKind::ConnectionRefused
        {
            return true;
        }
        if cause.to_string().contains("client error (Connect)") {
            return true;
        }
        next = cause.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_quotes_of_a_secret_is_hidden() {
        let said = r#"admission webhook "x" denied llm-keys/llm-key-sk-1: "OPENAI_API_KEY":"c2stNjQyOWRhNzEzYzcwZDJj==" is sk-6429da713c70d2c, Bearer eyJhbGciOiJIUzI1NiJ9.e30.abc"#;
        assert_eq!(plain(said), r#"admission webhook "x" denied llm-keys/llm-key-sk-1: "OPENAI_API_KEY":"***" is ***, Bearer ***"#);
    }
}
