//! Cleans text that came from a server before it becomes part of an error or a log line.

use secrecy::{ExposeSecret, SecretString};

/// Longest text kept from a server, in characters.
pub(crate) const MAX_CHARS: usize = 500;

const MASK: &str = "***";

/// Removes credentials and control characters from foreign text.
#[derive(Clone, Copy, Default)]
pub(crate) struct Scrub<'a> {
    known: &'a [&'a SecretString],
}

impl<'a> Scrub<'a> {
    /// A filter that knows the secrets of the call at hand, besides whatever looks like one.
    pub(crate) fn new(known: &'a [&'a SecretString]) -> Self {
        Self { known }
    }

    /// One line of at most [`MAX_CHARS`] characters. Masks first and cuts afterwards, so that half a
    /// secret cannot survive at the cut.
    pub(crate) fn clean(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in self.known {
            let secret = secret.expose_secret();
            if !secret.is_empty() {
                text = text.replace(secret, MASK);
            }
        }
        shorten(&one_line(&mask_lookalikes(&text)))
    }
}

/// Masks gateway keys (`sk-…`), Waldur tokens (40 hex digits) and JSON web tokens wherever they stand.
fn mask_lookalikes(text: &str) -> String {
    let part_of_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(part_of_word) {
        let (before, from) = rest.split_at(start);
        out.push_str(before);
        let end = from.find(|c| !part_of_word(c)).unwrap_or(from.len());
        let (word, after) = from.split_at(end);
        out.push_str(if looks_secret(word) { MASK } else { word });
        rest = after;
    }
    out.push_str(rest);
    out
}

fn looks_secret(word: &str) -> bool {
    let gateway_key = word.starts_with("sk-") && word.len() >= 8;
    let bare = word.trim_end_matches('.');
    let token = bare.len() == 40 && bare.bytes().all(|b| b.is_ascii_hexdigit());
    let jwt = word.starts_with("eyJ") && word.len() >= 20;
    gateway_key || token || jwt
}

fn one_line(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn shorten(text: &str) -> String {
    if text.chars().count() <= MAX_CHARS {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(MAX_CHARS - 1).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_secrets_and_lookalikes_are_masked() {
        let secret = SecretString::from("correct horse");
        let known = [&secret];
        let scrub = Scrub::new(&known);
        let token = "0123456789abcdef0123456789abcdef01234567";
        let text = format!("bad \"correct horse\", key=sk-abcdef12345, Token {token}. eyJhbGciOiJIUzI1NiJ9.e30.x ok");
        assert_eq!(scrub.clean(&text), "bad \"***\", key=***, Token *** *** ok");
    }

    #[test]
    fn uuids_and_plain_words_stay() {
        let text = "No Order 557255778e3d40baab2fbab86697522a in task-force desk-top";
        assert_eq!(Scrub::default().clean(text), text);
    }

    #[test]
    fn a_secret_across_the_cut_leaves_nothing_behind() {
        let secret = SecretString::from("tellnoone-tellnoone");
        let known = [&secret];
        let text = format!("{}tellnoone-tellnoone", "x ".repeat(248));
        let clean = Scrub::new(&known).clean(&text);
        assert!(!clean.contains("tell"), "{clean}");
        assert!(clean.chars().count() <= MAX_CHARS);
    }

    #[test]
    fn text_is_one_line_of_bounded_length() {
        let clean = Scrub::default().clean(&"ä\n\u{1b}[31m".repeat(1000));
        assert_eq!(clean.chars().count(), MAX_CHARS);
        assert!(!clean.chars().any(char::is_control));
    }
}
