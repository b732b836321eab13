//! From a model's served name to the type of a Waldur usage component, for ever the same.
//!
//! Waldur allows `[A-Za-z0-9_/:-]` and 50 characters in a component type, and no dot (which many model names have). So a
//! dot becomes `_`, and a name that could then be mistaken for another one (it has a `_` of its own, a character that is
//! not allowed, must be cut, or ends as such a suffix does) gets a suffix made of its own hash. The result depends on the
//! name alone.

use sha2::{Digest, Sha256};

/// Which side of a model's usage a component counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// Prompt tokens, cached ones included.
    Input,
    /// Completion tokens.
    Output,
}

/// Room for the longest suffix, `:output`, within Waldur's 50 characters.
const LONGEST_KEY: usize = 50 - ":output".len();

/// So much of a name's hash tells it from others.
const HASH_BYTES: usize = 4;

/// The component key of a model, at most 43 characters.
#[must_use]
pub fn component_key(served_name: &str) -> String {
    let plain: String = served_name.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '-' | '/') { c } else { '_' }).collect();
    let unambiguous = served_name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '/' | '.'));
    let like_a_suffix =
        plain.rsplit_once('_').is_some_and(|(_, end)| end.len() == 2 * HASH_BYTES && end.bytes().all(|b| b.is_ascii_hexdigit()));
    if unambiguous && plain.len() <= LONGEST_KEY && !plain.is_empty() && !like_a_suffix {
        return plain;
    }
    let hash: String = Sha256::digest(served_name.as_bytes()).iter().take(HASH_BYTES).map(|b| format!("{b:02x}")).collect();
    let stem: String = plain.chars().take(LONGEST_KEY - 1 - hash.len()).collect();
    format!("{stem}_{hash}")
}

/// The usage component of one side of a model: `<key>:input` or `<key>:output`.
#[must_use]
pub fn usage_component(served_name: &str, direction: Direction) -> String {
    let side = match direction {
        Direction::Input => "input",
        Direction::Output => "output",
    };
    format!("{}:{side}", component_key(served_name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn common_names_stay_readable() {
        assert_eq!(usage_component("kestrel-8b", Direction::Input), "kestrel-8b:input");
        assert_eq!(component_key("qwen2.5-0.5b"), "qwen2_5-0_5b");
        assert_eq!(component_key("meta/heron-70b"), "meta/heron-70b");
        assert_ne!(component_key("a.b"), component_key("a_b"));
        assert_ne!(component_key("a:input"), component_key("a_input"));
    }

    #[test]
    fn a_name_that_ends_as_a_suffix_does_is_no_other_name() {
        let hashed = component_key("a_b");
        assert_ne!(component_key(&hashed.replace('_', ".")), hashed);
    }

    proptest! {
        #[test]
        fn every_type_is_legal_and_names_never_share_one(a in "\\PC{0,80}", b in "[a-z._:/-]{0,60}") {
            for name in [&a, &b] {
                let kind = usage_component(name, Direction::Output);
                prop_assert!(kind.len() <= 50);
                prop_assert!(kind.chars().all(|c| c.is_ascii_alphanumeric() || "_-/:".contains(c)));
            }
            if a != b {
                prop_assert_ne!(component_key(&a), component_key(&b));
            }
        }
    }
}
