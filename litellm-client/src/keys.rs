//! Keys: what opens the gateway for a customer. They are spoken of by their hash; the clear key travels only in the body that
//! registers it and in the header that tries it.

use std::fmt::Write as _;

use jiff::Timestamp;
use rust_decimal::Decimal;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::client::{Answer, Auth, Call, Client, invalid};
use crate::error::{Class, ErrorKind};
use crate::models::MAGIC;
use crate::number;
use crate::page::{PAGE_SIZE, Pages};
use crate::teams::null_is_default;
use crate::{Error, Result};

const GENERATE: &str = "/key/generate";
const DELETE: &str = "/key/delete";
const LIST: &str = "/key/list";
const INFO: &str = "/key/info";
const UPDATE: &str = "/key/update";
const MODELS: &str = "/v1/models";

/// The hash by which the gateway knows a key: SHA-256, lower-case hexadecimal.
#[must_use]
pub fn key_hash(key: &SecretString) -> String {
    let digest = Sha256::digest(key.expose_secret().as_bytes());
    digest.iter().fold(String::with_capacity(64), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// A key as the gateway shows it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Key {
    /// SHA-256 of the key (`token`).
    pub hash: String,
    /// The alias. Unique only by the gateway's check before it inserts: requests at the same time can make several.
    pub alias: Option<String>,
    /// The team it belongs to.
    pub team_id: Option<String>,
    /// Whether it is blocked.
    pub blocked: bool,
    /// Models of its own; empty means those of its team.
    pub models: Vec<String>,
    /// A budget of its own.
    pub max_budget: Option<Decimal>,
    /// Tokens per minute of its own.
    pub tpm_limit: Option<u64>,
    /// Requests per minute of its own.
    pub rpm_limit: Option<u64>,
    /// Requests at the same time of its own.
    pub max_parallel_requests: Option<u64>,
    /// When it ends.
    pub expires: Option<Timestamp>,
    /// The counter of its budget. Not its usage.
    pub spend: Decimal,
    /// The metadata; null reads as empty.
    pub metadata: Map<String, Value>,
    /// Whether it is deleted; the gateway still shows it.
    pub deleted: bool,
}

/// A bound that a key has of its own, beside those of its team. [`NewKey`] asks for none, but the proxy's settings
/// `default_key_generate_params` and `upperbound_key_generate_params` fill them in, and people set them by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OwnBound {
    /// Models.
    Models,
    /// A budget.
    Budget,
    /// Tokens per minute.
    Tokens,
    /// Requests per minute.
    Requests,
    /// Requests at the same time.
    Parallel,
    /// An end.
    End,
}

impl OwnBound {
    /// The field of a request that sets it; the end is set by a duration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Models => "models",
            Self::Budget => "max_budget",
            Self::Tokens => "tpm_limit",
            Self::Requests => "rpm_limit",
            Self::Parallel => "max_parallel_requests",
            Self::End => "duration",
        }
    }
}

impl Key {
    /// The bounds it has of its own.
    #[must_use]
    pub fn own_bounds(&self) -> Vec<OwnBound> {
        // The name of "what its team may call" is no bound.
        let narrowed = self.models.iter().any(|model| model != "all-team-models");
        [
            (OwnBound::Models, narrowed),
            (OwnBound::Budget, self.max_budget.is_some()),
            (OwnBound::Tokens, self.tpm_limit.is_some()),
            (OwnBound::Requests, self.rpm_limit.is_some()),
            (OwnBound::Parallel, self.max_parallel_requests.is_some()),
            (OwnBound::End, self.expires.is_some()),
        ]
        .into_iter()
        .filter_map(|(bound, has)| has.then_some(bound))
        .collect()
    }
}

/// A key row; `/key/info` leaves out the hash that was asked for.
#[derive(Deserialize)]
pub(crate) struct KeyRow {
    #[serde(default)]
    token: Option<String>,
    /// Rows of deleted keys have one; a key deleted twice is there twice.
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    key_alias: Option<String>,
    #[serde(default)]
    team_id: Option<String>,
    #[serde(default, deserialize_with = "null_is_default")]
    blocked: bool,
    #[serde(default, deserialize_with = "null_is_default")]
    models: Vec<String>,
    #[serde(default, deserialize_with = "number::optional_budget")]
    max_budget: Option<Decimal>,
    #[serde(default, deserialize_with = "number::optional_limit")]
    tpm_limit: Option<u64>,
    #[serde(default, deserialize_with = "number::optional_limit")]
    rpm_limit: Option<u64>,
    #[serde(default, deserialize_with = "number::optional_limit")]
    max_parallel_requests: Option<u64>,
    #[serde(default, deserialize_with = "number::optional_timestamp")]
    expires: Option<Timestamp>,
    #[serde(default, deserialize_with = "number::decimal_or_zero")]
    spend: Decimal,
    #[serde(default, deserialize_with = "null_is_default")]
    metadata: Map<String, Value>,
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    deleted_at: Option<String>,
}

impl KeyRow {
    fn with_hash(self, hash: String) -> Key {
        Key {
            hash,
            deleted: self.deleted_at.is_some() || self.status.as_deref() == Some("deleted"),
            alias: self.key_alias,
            team_id: self.team_id,
            blocked: self.blocked,
            models: self.models,
            max_budget: self.max_budget,
            tpm_limit: self.tpm_limit,
            rpm_limit: self.rpm_limit,
            max_parallel_requests: self.max_parallel_requests,
            expires: self.expires,
            spend: self.spend,
            metadata: self.metadata,
        }
    }

    pub(crate) fn into_key(mut self, answer: &Answer) -> Result<Key> {
        match self.token.take() {
            Some(hash) => Ok(self.with_hash(hash)),
            None => Err(answer.fail(ErrorKind::Decode { at: "keys[].token".to_owned(), cause: "a key without its hash".to_owned() })),
        }
    }

    fn identity(&self) -> String {
        self.id.as_ref().or(self.token.as_ref()).cloned().unwrap_or_default()
    }
}

/// A key to register. It has no models, budget or limits of its own: it shares its team's.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// The team; the gateway takes a team that does not exist, so look first.
    pub team_id: String,
    /// The alias.
    pub alias: String,
    /// The key itself (`sk-` and at least 16 characters), or `None` to have the gateway choose.
    pub key: Option<SecretString>,
    /// The marks of the owner.
    pub metadata: Map<String, Value>,
    /// Whether the key starts blocked.
    pub blocked: bool,
}

#[derive(Serialize)]
struct Generate<'a> {
    team_id: &'a str,
    key_alias: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    metadata: &'a Map<String, Value>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    blocked: bool,
}

/// A key the gateway says it registered.
#[derive(Debug, Clone)]
pub struct GeneratedKey {
    /// The key.
    pub key: SecretString,
    /// Its hash.
    pub hash: String,
}

#[derive(Deserialize)]
struct Generated {
    key: SecretString,
    #[serde(default)]
    token: Option<String>,
}

#[derive(Serialize)]
struct Delete<'a> {
    keys: &'a [String],
}

#[derive(Deserialize)]
struct KeyPage {
    keys: Vec<KeyRow>,
    #[serde(deserialize_with = "number::count")]
    total_count: u64,
    #[serde(deserialize_with = "number::count")]
    current_page: u64,
}

#[derive(Deserialize)]
struct KeyInfo {
    key: String,
    info: KeyRow,
}

/// What the gateway says about the key that a call was made with.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnKey {
    /// What it may call: paths (with everything below them), beginnings that end in `*`, and names of groups of paths. Empty
    /// where its user's role alone decides.
    pub allowed_routes: Vec<String>,
}

#[derive(Deserialize)]
struct OwnKeyInfo {
    info: OwnKeyRow,
}

#[derive(Deserialize)]
struct OwnKeyRow {
    #[serde(default, deserialize_with = "null_is_default")]
    allowed_routes: Vec<String>,
}

#[derive(Deserialize)]
struct ModelList {
    data: Vec<ModelId>,
}

#[derive(Deserialize)]
struct ModelId {
    id: String,
}

/// What the gateway says to a customer's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyVerdict {
    /// It works, for these models. Answered from memory for up to a minute after a change.
    Works(Vec<String>),
    /// The key or its team is blocked.
    Blocked,
    /// No such key.
    Unknown,
    /// It is known and refused for another reason.
    Refused {
        /// The gateway's words.
        message: String,
    },
}

/// Nothing where `/key/info` says that it does not know the key; its other refusals stay errors.
fn unknown_key<T>(error: Error) -> Result<Option<T>> {
    match &error.kind {
        ErrorKind::Status { status: 404, error_type: Some(kind), .. }
            if &**kind == "not_found_error" && error.class() == Class::NotFound =>
        {
            Ok(None)
        }
        _ => Err(error),
    }
}

impl Client {
    /// One key by its hash. A deleted key is still there, with [`Key::deleted`] set; `None` is the gateway's word that it never
    /// saw this key (with its database down the call fails).
    ///
    /// # Errors
    /// As for every call.
    pub async fn key(&self, hash: &str) -> Result<Option<Key>> {
        if !is_hash(hash) {
            return Err(invalid("GET", INFO, "keys are asked for by their SHA-256 in lower-case hexadecimal, never in clear"));
        }
        let answer = self.exchange(Call::get(INFO).query("key", hash)).await?;
        if !answer.is_success() {
            return unknown_key(answer.error());
        }
        let found: KeyInfo = answer.decode()?;
        let other = found.info.token.as_deref().is_some_and(|token| token != hash);
        if found.key != hash || other {
            return Err(answer.incomplete("asked for one key, got another"));
        }
        Ok(Some(found.info.with_hash(hash.to_owned())))
    }

    /// The key of our own calls; `None` for the master key, which stands in no table.
    ///
    /// # Errors
    /// As for every call.
    pub async fn own_key(&self) -> Result<Option<OwnKey>> {
        // Without a parameter it answers about the key in the header, so that nothing of it comes into an address.
        let answer = self.exchange(Call::get(INFO)).await?;
        if !answer.is_success() {
            return unknown_key(answer.error());
        }
        let found: OwnKeyInfo = answer.decode()?;
        Ok(Some(OwnKey { allowed_routes: found.info.allowed_routes }))
    }

    /// All keys that are not deleted, whoever made them.
    ///
    /// # Errors
    /// [`ErrorKind::Incomplete`] when the pages do not add up to the total.
    pub async fn keys(&self) -> Result<Vec<Key>> {
        self.keys_as(|key| key).await
    }

    /// Like [`Client::keys`], keeping of each key only what `keep` makes of it: there may be ten thousands of them.
    ///
    /// # Errors
    /// As [`Client::keys`].
    pub async fn keys_as<U>(&self, keep: impl Fn(Key) -> U) -> Result<Vec<U>> {
        self.list_keys(&[], keep).await
    }

    /// The keys of a team that are not deleted.
    ///
    /// # Errors
    /// As [`Client::keys`].
    pub async fn keys_of_team(&self, team_id: &str) -> Result<Vec<Key>> {
        let mut keys = self.list_keys(&[("team_id", team_id)], |key| key).await?;
        keys.retain(|key| key.team_id.as_deref() == Some(team_id));
        Ok(keys)
    }

    /// The keys with exactly this alias that are not deleted; there can be several.
    ///
    /// # Errors
    /// As [`Client::keys`].
    pub async fn keys_by_alias(&self, alias: &str) -> Result<Vec<Key>> {
        let mut keys = self.list_keys(&[("key_alias", alias)], |key| key).await?;
        // Other releases look for the alias anywhere in the text.
        keys.retain(|key| key.alias.as_deref() == Some(alias));
        Ok(keys)
    }

    /// The deleted keys of a team. One that was deleted, registered again and deleted again is there twice.
    ///
    /// # Errors
    /// As [`Client::keys`].
    pub async fn deleted_keys_of_team(&self, team_id: &str) -> Result<Vec<Key>> {
        let mut keys = self.list_keys(&[("team_id", team_id), ("status", "deleted")], |key| key).await?;
        keys.retain(|key| key.team_id.as_deref() == Some(team_id));
        for key in &mut keys {
            key.deleted = true;
        }
        Ok(keys)
    }

    async fn list_keys<U>(&self, filter: &[(&'static str, &str)], keep: impl Fn(Key) -> U) -> Result<Vec<U>> {
        if filter.iter().any(|(_, value)| value.is_empty()) {
            return Err(invalid("GET", LIST, "an empty filter would list every key"));
        }
        let mut pages = Pages::new();
        loop {
            // Unsorted, the gateway gives the newest first and breaks ties by the hash: an order without ties, which none of
            // its sort columns has.
            let mut call = Call::get(LIST)
                .query("return_full_object", "true")
                .query("size", PAGE_SIZE.to_string())
                .query("page", pages.next().to_string());
            for (name, value) in filter {
                call = call.query(name, *value);
            }
            let answer = self.call(call).await?;
            let page: KeyPage = answer.decode()?;
            let keep = |row: KeyRow| row.into_key(&answer).map(&keep);
            if pages.add(&answer, (page.current_page, page.total_count), page.keys, KeyRow::identity, keep)? {
                return Ok(pages.into_rows());
            }
        }
    }

    /// Registers a key. **Success proves nothing for a key of our own choice**: for one that is registered already, in whatever
    /// team, the gateway answers 200 with the new fields and changes nothing (BerriAI/litellm issue 20494). Read it back with
    /// [`Client::key`] and compare team and alias.
    ///
    /// # Errors
    /// [`Class::AlreadyExists`] when the alias is taken, [`Class::CustomKeysForbidden`] where the gateway takes no chosen keys.
    pub async fn generate_key(&self, new: &NewKey) -> Result<GeneratedKey> {
        if new.team_id.trim().is_empty() || new.alias.trim().is_empty() {
            return Err(invalid("POST", GENERATE, "the team id or the alias is blank"));
        }
        let body = Generate {
            team_id: &new.team_id,
            key_alias: &new.alias,
            key: new.key.as_ref().map(ExposeSecret::expose_secret),
            metadata: &new.metadata,
            blocked: new.blocked,
        };
        let answer = self.call(Call::post(GENERATE, &body)?.secret(new.key.as_ref())).await?;
        let generated = answer.decode::<Generated>();
        let Some(own) = &new.key else {
            let generated = generated?;
            let hash = generated.token.filter(|token| is_hash(token)).unwrap_or_else(|| key_hash(&generated.key));
            return Ok(GeneratedKey { key: generated.key, hash });
        };
        // Our own key is known, so an answer without a body is as good as one with it.
        if generated.is_ok_and(|generated| generated.key.expose_secret() != own.expose_secret()) {
            return Err(answer.incomplete("registered one key, got another"));
        }
        Ok(GeneratedKey { key: own.clone(), hash: key_hash(own) })
    }

    /// Takes bounds of its own away from a key, so that only its team's hold. Nothing else about it changes.
    ///
    /// # Errors
    /// [`Class::NotFound`] when there is no such key.
    pub async fn clear_own_bounds(&self, hash: &str, bounds: &[OwnBound]) -> Result<()> {
        if bounds.is_empty() {
            return Ok(());
        }
        if !is_hash(hash) {
            return Err(invalid("POST", UPDATE, "keys are changed by their SHA-256 in lower-case hexadecimal"));
        }
        self.call(Call::post(UPDATE, &cleared(hash, bounds))?).await.map(drop)
    }

    /// Deletes keys by their hashes; none to delete makes no call. The gateway lists names as deleted that never existed when at
    /// least one did, so success says nothing about each: read them back.
    ///
    /// # Errors
    /// [`Class::NotFound`] when it knows none of them.
    pub async fn delete_keys(&self, hashes: &[String]) -> Result<()> {
        if hashes.is_empty() {
            return Ok(());
        }
        if !hashes.iter().all(|hash| is_hash(hash)) {
            return Err(invalid("POST", DELETE, "keys are deleted by their SHA-256 in lower-case hexadecimal"));
        }
        self.call(Call::post(DELETE, &Delete { keys: hashes })?).await.map(drop)
    }

    /// Tries a customer's key with `GET /v1/models`, which costs nothing and is not billed.
    ///
    /// # Errors
    /// Only for what says nothing about the key. A refusal is about that key, never about our own credential, and is a
    /// [`KeyVerdict`].
    pub async fn models_of_key(&self, key: &SecretString) -> Result<KeyVerdict> {
        let answer = self.exchange(Call::get(MODELS).auth(Auth::Key(key))).await?;
        if answer.is_success() {
            let list: ModelList = answer.decode()?;
            let models = list
                .data
                .into_iter()
                .map(|model| model.id)
                // The proxy lists names such as `all-proxy-models` as if they were models.
                .filter(|id| !MAGIC.contains(&id.as_str()))
                .collect();
            return Ok(KeyVerdict::Works(models));
        }
        verdict(&answer, answer.error())
    }
}

/// A null clears a bound; for a key, unlike for a team, no models of its own are those of its team.
fn cleared(hash: &str, bounds: &[OwnBound]) -> Map<String, Value> {
    let mut body = Map::new();
    body.insert("key".to_owned(), Value::String(hash.to_owned()));
    for bound in bounds {
        let none = match bound {
            OwnBound::Models => Value::Array(Vec::new()),
            _ => Value::Null,
        };
        body.insert(bound.as_str().to_owned(), none);
    }
    body
}

fn verdict(answer: &Answer, error: Error) -> Result<KeyVerdict> {
    let class = error.class();
    match error.kind {
        ErrorKind::Status { status, error_type, message, .. } if class != Class::Transient && status < 500 => {
            if error_type.as_deref() == Some("token_not_found_in_db") {
                Ok(KeyVerdict::Unknown)
            } else if status == 401 && message.contains("is blocked") {
                Ok(KeyVerdict::Blocked)
            } else {
                Ok(KeyVerdict::Refused { message })
            }
        }
        ErrorKind::Foreign { status: status @ (401 | 403 | 407), excerpt, .. } => {
            Err(answer.incomplete(format!("something in front of the gateway answered {status} ({excerpt})")))
        }
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn the_hash_is_the_gateways() {
        // From the recorded key-info-hash exchange.
        assert_eq!(
            key_hash(&SecretString::from("sk-alpha-explicit-0001")),
            "e8b79999bde47c59a2b6a5b7cff9ecd27f45051b290ed5cb08f1f0841da96718"
        );
    }

    #[test]
    fn a_key_inherits_everything_from_its_team() {
        let body = Generate { team_id: "t", key_alias: "t-1", key: None, metadata: &Map::new(), blocked: false };
        assert_eq!(serde_json::to_string(&body).unwrap(), r#"{"team_id":"t","key_alias":"t-1","metadata":{}}"#);
        let body = Generate { key: Some("sk-x"), blocked: true, ..body };
        assert_eq!(serde_json::to_string(&body).unwrap(), r#"{"team_id":"t","key_alias":"t-1","key":"sk-x","metadata":{},"blocked":true}"#);
    }

    #[test]
    fn only_the_bounds_a_key_has_are_cleared() {
        let key = Key {
            models: vec!["kestrel-8b".to_owned()],
            max_budget: Some(Decimal::ONE),
            expires: Some(Timestamp::UNIX_EPOCH),
            ..Key::default()
        };
        assert_eq!(
            Value::Object(cleared("h", &key.own_bounds())),
            serde_json::json!({"key": "h", "models": [], "max_budget": null, "duration": null})
        );
        let team = Key { models: vec!["all-team-models".to_owned()], ..Key::default() };
        assert_eq!(team.own_bounds(), []);
    }

    #[test]
    fn debug_shows_no_key() {
        let new = NewKey {
            team_id: "t".to_owned(),
            alias: "a".to_owned(),
            key: Some(SecretString::from("sk-MARKER")),
            metadata: Map::new(),
            blocked: false,
        };
        let generated = GeneratedKey { key: SecretString::from("sk-MARKER"), hash: "h".to_owned() };
        assert!(!format!("{new:?} {generated:?}").contains("MARKER"));
    }

    use crate::decode::mangle;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn strange_keys_are_read_without_a_panic(place in 0_usize..10_000, with in 0_usize..8) {
            let _ = mangle::read::<KeyPage>("key-list-sort", place, with);
            let _ = mangle::read::<KeyInfo>("key-info-hash", place, with);
            let _ = mangle::read::<Generated>("key-generate", place, with);
            let _ = mangle::read::<ModelList>("v1-models-all", place, with);
        }
    }
}
