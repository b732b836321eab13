//! Keeps secrets, control characters and endless texts out of what is shown to people.

use secrecy::{ExposeSecret, SecretString};

/// The longest text, in characters, that is kept from an answer of the gateway.
pub(crate) const MAX_CHARS: usize = 500;

const REDACTED: &str = "[redacted]";

/// A key written right behind a letter or digit is still taken for a key from this length on;
/// below it the letters are more likely part of a word such as `task-force`.
const GLUED_KEY_CHARS: usize = 16;

/// Removes the secrets of one call, and whatever looks like a LiteLLM key, from any text.
///
/// The gateway has been seen to echo whole keys in `message` and `param` (BerriAI/litellm issue 18731).
pub(crate) struct Scrubber {
    secrets: Vec<SecretString>,
}

impl Scrubber {
    pub(crate) fn new(secrets: Vec<SecretString>) -> Self {
        Self { secrets }
    }

    /// The text without secrets, on one line, at most [`MAX_CHARS`] characters long.
    pub(crate) fn clean(&self, text: &str) -> String {
        self.clean_to(text, MAX_CHARS)
    }

    pub(crate) fn clean_to(&self, text: &str, max_chars: usize) -> String {
        let mut text = text.to_owned();
        for secret in &self.secrets {
            let secret = secret.expose_secret();
            if !secret.is_empty() {
                text = text.replace(secret, REDACTED);
            }
        }
        shorten(&one_line(&redact_keys(&text)), max_chars)
    }
}

fn is_key_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

fn redact_keys(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("sk-") {
        let (before, found) = rest.split_at(at);
        let tail = found.trim_start_matches("sk-");
        let end = tail.find(|c| !is_key_char(c)).unwrap_or(tail.len());
        let glued = before.chars().next_back().or_else(|| out.chars().next_back()).is_some_and(char::is_alphanumeric);
        let is_key = end > 0 && (!glued || end >= GLUED_KEY_CHARS);
        out.push_str(before);
        if is_key {
            out.push_str("sk-");
            out.push_str(REDACTED);
            rest = tail.get(end..).unwrap_or_default();
        } else {
            out.push_str("sk-");
            rest = found.get("sk-".len()..).unwrap_or_default();
        }
    }
    out.push_str(rest);
    out
}

/// Line ends and control characters become single spaces: a message is one log line.
fn one_line(text: &str) -> String {
    let spaced: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    spaced.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn shorten(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        None => text.to_owned(),
        Some(_) => {
            let mut cut: String = text.chars().take(max_chars.saturating_sub(1)).collect();
            cut.push('…');
            cut
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrub(text: &str) -> String {
        Scrubber::new(vec![SecretString::from("master-secret")]).clean(text)
    }

    #[test]
    fn secrets_and_keys_are_removed() {
        assert_eq!(scrub("got master-secret!"), "got [redacted]!");
        assert_eq!(scrub("Key=sk-MARKER-1 no"), "Key=sk-[redacted] no");
        assert_eq!(scrub("sk-MARKER-1"), "sk-[redacted]");
        assert_eq!(scrub("sk-sk-MARKER-1"), "sk-[redacted]");
        assert_eq!(scrub("xsk-0123456789abcdef0123 y"), "xsk-[redacted] y");
    }

    #[test]
    fn words_and_the_bare_prefix_stay() {
        assert_eq!(scrub("a task-force"), "a task-force");
        assert_eq!(scrub("start with 'sk-'."), "start with 'sk-'.");
    }

    #[test]
    fn texts_are_one_short_line() {
        assert_eq!(scrub("a\n\nb\u{1b}[31m"), "a b [31m");
        assert_eq!(scrub(&"x".repeat(2000)).chars().count(), MAX_CHARS);
        assert_eq!(scrub(&"x".repeat(MAX_CHARS)).chars().count(), MAX_CHARS);
    }
}
