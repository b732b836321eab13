//! Teams: one budget, one set of limits and models, and the keys that share them.

use jiff::Timestamp;
use rust_decimal::Decimal;
use serde::ser::{Error as _, SerializeMap};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::client::{Call, Client, invalid};
use crate::keys::{Key, KeyRow};
use crate::models::Models;
use crate::number;
use crate::page::{PAGE_SIZE, Pages};
use crate::{Error, Result};

const NEW: &str = "/team/new";
const UPDATE: &str = "/team/update";
const DELETE: &str = "/team/delete";
const LIST: &str = "/v2/team/list";
const INFO: &str = "/team/info";

/// What becomes of one field in an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Change<T> {
    /// It stays; the field is not sent.
    #[default]
    Keep,
    /// It is removed; an explicit null is sent.
    Clear,
    /// It becomes this.
    Set(T),
}

impl<T> Change<T> {
    /// Whether nothing changes.
    #[must_use]
    pub fn is_keep(&self) -> bool {
        matches!(self, Self::Keep)
    }
}

/// A team to create. What is `None` is sent as an explicit null; a gateway with `default_team_params` fills it in all the
/// same (measured), so read the team back.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTeam {
    /// The id; must not be blank, since the gateway would then make one up.
    pub team_id: String,
    /// The name people see; not unique.
    pub team_alias: String,
    /// The models the team may use.
    pub models: Models,
    /// The budget, in the gateway's currency.
    pub max_budget: Option<Decimal>,
    /// How often the spend counter starts again, such as `1mo`.
    pub budget_duration: Option<String>,
    /// Tokens per minute.
    pub tpm_limit: Option<u64>,
    /// Requests per minute.
    pub rpm_limit: Option<u64>,
    /// Whether the team starts blocked.
    pub blocked: bool,
    /// The marks of the owner.
    pub metadata: Map<String, Value>,
}

impl Serialize for NewTeam {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("team_id", &self.team_id)?;
        map.serialize_entry("team_alias", &self.team_alias)?;
        map.serialize_entry("models", &self.models)?;
        let budget = self.max_budget.map(number::json_number).transpose().map_err(S::Error::custom)?;
        map.serialize_entry("max_budget", &budget)?;
        map.serialize_entry("budget_duration", &self.budget_duration)?;
        map.serialize_entry("tpm_limit", &self.tpm_limit)?;
        map.serialize_entry("rpm_limit", &self.rpm_limit)?;
        map.serialize_entry("blocked", &self.blocked)?;
        map.serialize_entry("metadata", &self.metadata)?;
        map.end()
    }
}

/// Changes to a team; what is not named stays. An empty model list, a null one and a null `blocked`, which the gateway takes
/// for everything or answers with 500, cannot be expressed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TeamPatch {
    /// The models the team may use.
    pub models: Option<Models>,
    /// The budget.
    pub max_budget: Change<Decimal>,
    /// The budget's period. Setting it anew, even to the same value, moves the day the spend counter starts again.
    pub budget_duration: Change<String>,
    /// Tokens per minute.
    pub tpm_limit: Change<u64>,
    /// Requests per minute.
    pub rpm_limit: Change<u64>,
    /// Whether the team is blocked. Unlike `/team/block`, which can take a minute, this works at once (measured).
    pub blocked: Option<bool>,
    /// The whole metadata: the gateway replaces it, so entries of others must be in it.
    pub metadata: Option<Map<String, Value>>,
}

impl TeamPatch {
    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn entries<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        fn entry<M: SerializeMap, T: Serialize>(map: &mut M, name: &str, change: &Change<T>) -> Result<(), M::Error> {
            match change {
                Change::Keep => Ok(()),
                Change::Clear => map.serialize_entry(name, &()),
                Change::Set(value) => map.serialize_entry(name, value),
            }
        }
        if let Some(models) = &self.models {
            map.serialize_entry("models", models)?;
        }
        let budget = match self.max_budget {
            Change::Keep => Change::Keep,
            Change::Clear => Change::Clear,
            Change::Set(value) => Change::Set(number::json_number(value).map_err(M::Error::custom)?),
        };
        entry(map, "max_budget", &budget)?;
        entry(map, "budget_duration", &self.budget_duration)?;
        entry(map, "tpm_limit", &self.tpm_limit)?;
        entry(map, "rpm_limit", &self.rpm_limit)?;
        if let Some(blocked) = self.blocked {
            map.serialize_entry("blocked", &blocked)?;
        }
        if let Some(metadata) = &self.metadata {
            map.serialize_entry("metadata", metadata)?;
        }
        Ok(())
    }
}

impl Serialize for TeamPatch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.entries(&mut map)?;
        map.end()
    }
}

struct Update<'a> {
    team_id: &'a str,
    patch: &'a TeamPatch,
}

impl Serialize for Update<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("team_id", self.team_id)?;
        self.patch.entries(&mut map)?;
        map.end()
    }
}

#[derive(Serialize)]
struct Delete<'a> {
    team_ids: [&'a str; 1],
}

/// A team as the gateway shows it.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
pub struct Team {
    /// The id.
    pub team_id: String,
    /// The name people see.
    #[serde(default, rename = "team_alias")]
    pub alias: Option<String>,
    /// The models it may use, in the gateway's order. **Empty means all.**
    #[serde(default, deserialize_with = "null_is_default")]
    pub models: Vec<String>,
    /// The budget.
    #[serde(default, deserialize_with = "number::optional_budget")]
    pub max_budget: Option<Decimal>,
    /// The budget's period.
    #[serde(default)]
    pub budget_duration: Option<String>,
    /// When the spend counter starts again.
    #[serde(default, deserialize_with = "number::optional_timestamp")]
    pub budget_reset_at: Option<Timestamp>,
    /// Tokens per minute.
    #[serde(default, deserialize_with = "number::optional_limit")]
    pub tpm_limit: Option<u64>,
    /// Requests per minute.
    #[serde(default, deserialize_with = "number::optional_limit")]
    pub rpm_limit: Option<u64>,
    /// Whether it is blocked.
    #[serde(default, deserialize_with = "null_is_default")]
    pub blocked: bool,
    /// The budget's counter since its last reset, which can be a hair below zero. Not the usage of a month.
    #[serde(default, deserialize_with = "number::decimal_or_zero")]
    pub spend: Decimal,
    /// The metadata; null reads as empty.
    #[serde(default, deserialize_with = "null_is_default")]
    pub metadata: Map<String, Value>,
}

pub(crate) fn null_is_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[derive(Deserialize)]
struct TeamPage {
    teams: Vec<Team>,
    #[serde(deserialize_with = "number::count")]
    total: u64,
    #[serde(deserialize_with = "number::count")]
    page: u64,
}

#[derive(Deserialize)]
struct TeamInfo {
    team_id: String,
    team_info: Team,
    #[serde(deserialize_with = "null_is_default")]
    keys: Vec<KeyRow>,
}

fn checked(method: &'static str, path: &str, id: &str) -> Result<(), Error> {
    if id.trim().is_empty() {
        return Err(invalid(method, path, "the team id is blank"));
    }
    Ok(())
}

impl Client {
    /// One team, or the gateway's honest word that there is none: its list is empty **and** its total is 0. With the database
    /// down this call fails, unlike [`Client::team_with_keys`].
    ///
    /// # Errors
    /// [`ErrorKind::Incomplete`](crate::ErrorKind::Incomplete) when list and total contradict each other.
    pub async fn team(&self, id: &str) -> Result<Option<Team>> {
        checked("GET", LIST, id)?;
        let answer = self.call(Call::get(LIST).query("team_id", id)).await?;
        let page: TeamPage = answer.decode()?;
        if page.teams.is_empty() && page.total == 0 {
            return Ok(None);
        }
        let listed = page.teams.len();
        match page.teams.into_iter().find(|team| team.team_id == id) {
            Some(team) if page.total > 0 => Ok(Some(team)),
            _ => Err(answer.incomplete(format!("asked for team {id}, got {listed} teams and a total of {}", page.total))),
        }
    }

    /// One team with its keys (`GET /team/info`).
    ///
    /// # Errors
    /// Its 404 is [`Class::NotFound`](crate::Class::NotFound) and proves nothing: with the database down it is given for teams
    /// that exist (measured).
    pub async fn team_with_keys(&self, id: &str) -> Result<(Team, Vec<Key>)> {
        checked("GET", INFO, id)?;
        let answer = self.call(Call::get(INFO).query("team_id", id)).await?;
        let info: TeamInfo = answer.decode()?;
        if info.team_id != id || info.team_info.team_id != id {
            return Err(answer.incomplete(format!("asked for team {id}, got team {}", info.team_info.team_id)));
        }
        let keys = info.keys.into_iter().map(|row| row.into_key(&answer)).collect::<Result<_>>()?;
        Ok((info.team_info, keys))
    }

    /// All teams, whoever made them.
    ///
    /// # Errors
    /// [`ErrorKind::Incomplete`](crate::ErrorKind::Incomplete) when the pages do not add up to the total.
    pub async fn teams(&self) -> Result<Vec<Team>> {
        self.teams_as(|team| team).await
    }

    /// Like [`Client::teams`], keeping of each team only what `keep` makes of it: there may be ten thousands of them.
    ///
    /// # Errors
    /// As [`Client::teams`].
    pub async fn teams_as<U>(&self, keep: impl Fn(Team) -> U) -> Result<Vec<U>> {
        let mut pages = Pages::new();
        loop {
            // The id is unique, so the order has no ties; the time of creation, in milliseconds, has.
            let call = Call::get(LIST)
                .query("page", pages.next().to_string())
                .query("page_size", PAGE_SIZE.to_string())
                .query("sort_by", "team_id")
                .query("sort_order", "asc");
            let answer = self.call(call).await?;
            let page: TeamPage = answer.decode()?;
            if pages.add(&answer, (page.page, page.total), page.teams, |team| team.team_id.clone(), |team| Ok(keep(team)))? {
                return Ok(pages.into_rows());
            }
        }
    }

    /// Creates a team. Success says that the gateway took the call; read the team back.
    ///
    /// # Errors
    /// [`Class::AlreadyExists`](crate::Class::AlreadyExists) when the id is taken.
    pub async fn create_team(&self, team: &NewTeam) -> Result<()> {
        checked("POST", NEW, &team.team_id)?;
        self.call(Call::post(NEW, team)?).await.map(drop)
    }

    /// Changes a team; an empty patch makes no call. Success says that the gateway took the call; read the team back.
    ///
    /// # Errors
    /// An unknown team is [`Class::NotFound`](crate::Class::NotFound), unproven.
    pub async fn update_team(&self, id: &str, patch: &TeamPatch) -> Result<()> {
        checked("POST", UPDATE, id)?;
        if patch.is_empty() {
            return Ok(());
        }
        self.call(Call::post(UPDATE, &Update { team_id: id, patch })?).await.map(drop)
    }

    /// Deletes a team and, with it, its keys. Its usage rows stay.
    ///
    /// # Errors
    /// The 404 for a team that is not there is [`Class::NotFound`](crate::Class::NotFound) and proves nothing: with the database
    /// down it is given for teams that exist (measured). Confirm with [`Client::team`].
    pub async fn delete_team(&self, id: &str) -> Result<()> {
        checked("POST", DELETE, id)?;
        self.call(Call::post(DELETE, &Delete { team_ids: [id] })?).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn metadata(text: &str) -> Map<String, Value> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_new_team_says_everything_it_wants() {
        let team = NewTeam {
            team_id: "1f2e".to_owned(),
            team_alias: "aurora-1f2e".to_owned(),
            models: Models::new(["b".to_owned(), "a".to_owned()]),
            max_budget: Some(Decimal::new(1250, 2)),
            budget_duration: Some("1mo".to_owned()),
            tpm_limit: Some(1000),
            rpm_limit: None,
            blocked: false,
            metadata: metadata(r#"{"managed_by":"x"}"#),
        };
        assert_eq!(
            serde_json::to_string(&team).unwrap(),
            r#"{"team_id":"1f2e","team_alias":"aurora-1f2e","models":["a","b"],"max_budget":12.5,"budget_duration":"1mo","tpm_limit":1000,"rpm_limit":null,"blocked":false,"metadata":{"managed_by":"x"}}"#
        );
        let bare =
            NewTeam { models: Models::none(), max_budget: None, budget_duration: None, tpm_limit: None, metadata: Map::new(), ..team };
        assert_eq!(
            serde_json::to_string(&bare).unwrap(),
            r#"{"team_id":"1f2e","team_alias":"aurora-1f2e","models":["no-default-models"],"max_budget":null,"budget_duration":null,"tpm_limit":null,"rpm_limit":null,"blocked":false,"metadata":{}}"#
        );
    }

    fn update(patch: &TeamPatch) -> String {
        serde_json::to_string(&Update { team_id: "t", patch }).unwrap()
    }

    #[test]
    fn an_update_names_only_what_changes() {
        let nothing = TeamPatch::default();
        assert!(nothing.is_empty());
        assert_eq!(update(&nothing), r#"{"team_id":"t"}"#);
        assert_eq!(serde_json::to_string(&nothing).unwrap(), "{}");

        let tpm = TeamPatch { tpm_limit: Change::Set(1000), ..TeamPatch::default() };
        assert!(!tpm.is_empty());
        assert_eq!(update(&tpm), r#"{"team_id":"t","tpm_limit":1000}"#);

        let cleared = TeamPatch {
            max_budget: Change::Clear,
            budget_duration: Change::Clear,
            tpm_limit: Change::Clear,
            rpm_limit: Change::Clear,
            ..TeamPatch::default()
        };
        assert_eq!(update(&cleared), r#"{"team_id":"t","max_budget":null,"budget_duration":null,"tpm_limit":null,"rpm_limit":null}"#);

        let set = TeamPatch {
            models: Some(Models::none()),
            max_budget: Change::Set("1000000000000000.10".parse().unwrap()),
            budget_duration: Change::Set("1mo".to_owned()),
            rpm_limit: Change::Set(u64::MAX),
            blocked: Some(true),
            metadata: Some(metadata(r#"{"a":[],"b":"77"}"#)),
            ..TeamPatch::default()
        };
        assert_eq!(
            update(&set),
            r#"{"team_id":"t","models":["no-default-models"],"max_budget":1000000000000000.1,"budget_duration":"1mo","rpm_limit":18446744073709551615,"blocked":true,"metadata":{"a":[],"b":"77"}}"#
        );
    }

    #[test]
    fn numbers_others_keep_in_the_metadata_survive_a_rewrite() {
        let text = r#"{"price":0.017707200000000003,"tiny":-2e-19}"#;
        assert_eq!(serde_json::to_string(&metadata(text)).unwrap(), text);
    }

    use crate::decode::mangle;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn strange_teams_are_read_without_a_panic(place in 0_usize..10_000, with in 0_usize..8) {
            let _ = mangle::read::<TeamPage>("team-list-v2-byid", place, with);
            let _ = mangle::read::<TeamInfo>("team-info-bud", place, with);
        }
    }
}
