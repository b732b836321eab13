//! Names that follow from Waldur's uuids, so that a repeat finds what an earlier attempt made.

use std::fmt;

use uuid::Uuid;

use crate::secrets::Slot;
use crate::visible::is_unseen;

/// The LiteLLM team of a resource: its uuid, 32 hexadecimal digits.
#[must_use]
pub fn team_id(resource: Uuid) -> String {
    resource.simple().to_string()
}

/// The name people see for a team in the gateway: `<resource slug>-<first 8 digits of the uuid>`.
///
/// Only for people; it is set at creation and never repaired, since a slug can change.
#[must_use]
pub fn team_alias(slug: &str, resource: Uuid) -> String {
    let id = team_id(resource);
    let slug: String = slug.chars().filter(|c| !is_unseen(*c)).take(100).collect();
    format!("{}-{}", slug.trim(), id.get(..8).unwrap_or(&id))
}

/// A short reference that a customer can quote and an operator can search the log for.
#[must_use]
pub fn reference(subject: Uuid, detail: &str) -> String {
    let id = Uuid::new_v5(&subject, detail.as_bytes()).simple().to_string();
    id.get(..8).unwrap_or(&id).to_owned()
}

/// The alias of a key at the gateway: `<uuid>-<n>` for the project key (also Waldur's `client_id`), `<uuid>-chat-<n>`
/// for the chat key. Neither is ever used twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyAlias {
    /// The resource whose key it is.
    pub resource: Uuid,
    /// Which of the two keys.
    pub slot: Slot,
    /// Counts from 1 up; a replaced key takes the next number.
    pub number: u32,
}

impl KeyAlias {
    /// Reads an alias back; `None` for anything the agent would not have written for `resource`.
    #[must_use]
    pub fn parse(resource: Uuid, alias: &str) -> Option<Self> {
        let rest = alias.strip_prefix(&team_id(resource))?.strip_prefix('-')?;
        let (slot, digits) = match rest.strip_prefix("chat-") {
            Some(digits) => (Slot::Chat, digits),
            None => (Slot::Project, rest),
        };
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
        let number = plain.then(|| digits.parse().ok())??;
        Some(Self { resource, slot, number })
    }

    /// The alias that comes after every one in `taken` (of this resource and slot; others are ignored).
    #[must_use]
    pub fn next<'a>(resource: Uuid, slot: Slot, taken: impl IntoIterator<Item = &'a str>) -> Self {
        let highest = taken
            .into_iter()
            .filter_map(|alias| Self::parse(resource, alias))
            .filter(|alias| alias.slot == slot)
            .map(|alias| alias.number)
            .max();
        Self { resource, slot, number: highest.unwrap_or(0).saturating_add(1) }
    }
}

impl fmt::Display for KeyAlias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = team_id(self.resource);
        match self.slot {
            Slot::Project => write!(f, "{id}-{}", self.number),
            Slot::Chat => write!(f, "{id}-chat-{}", self.number),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const R: Uuid = Uuid::from_u128(0x1f2e_3d4c_5b6a_4798_8990_a1b2_c3d4_e5f6);

    #[test]
    fn an_alias_is_read_back_exactly_and_nothing_else_is_taken_for_one() {
        for (slot, number) in [(Slot::Project, 1), (Slot::Chat, 12)] {
            let alias = KeyAlias { resource: R, slot, number };
            assert_eq!(KeyAlias::parse(R, &alias.to_string()), Some(alias));
        }
        let id = team_id(R);
        for odd in ["", "--1", "-01", "-x", "-1-1", "-extra-1", "-chat", "-chat-", "-99999999999"] {
            assert_eq!(KeyAlias::parse(R, &format!("{id}{odd}")), None, "{odd}");
        }
        assert_eq!(KeyAlias::parse(Uuid::nil(), &format!("{id}-1")), None);
    }

    #[test]
    fn the_next_number_follows_the_highest_of_its_own_slot() {
        let id = team_id(R);
        let taken = [format!("{id}-2"), format!("{id}-chat-7"), format!("{id}-1"), "other".to_owned()];
        let next = |slot| KeyAlias::next(R, slot, taken.iter().map(String::as_str)).number;
        assert_eq!((next(Slot::Project), next(Slot::Chat)), (3, 8));
        assert_eq!(KeyAlias::next(R, Slot::Project, []).number, 1);
    }
}
