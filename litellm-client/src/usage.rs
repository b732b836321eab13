//! The gateway's ledger: what was used per UTC day, public model name and key.

use std::fmt;

use jiff::civil::Date;
use rust_decimal::Decimal;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::Result;
use crate::client::{Answer, Call, Client, TOTALS_CAP, USAGE_PAGE_CAP, invalid};
use crate::error::ErrorKind;
use crate::number;

const PAGED: &str = "/team/daily/activity";
const AGGREGATED: &str = "/team/daily/activity/aggregated";

/// Ledger rows per page. The default of 10 splits every busy day; there is no upper limit (measured with this number). One
/// page is one look at the table, so the larger it is, the fewer rows can move while the pages are read.
const ROWS_PER_PAGE: u64 = 5000;
/// Ledger rows per page where a release refuses more.
const FEWER_ROWS: u64 = 1000;
/// More pages than any ledger fills: 20 million rows or more.
const MAX_PAGES: u64 = 20_000;

/// What was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub struct Counts {
    /// Input tokens, those read from a cache included.
    #[serde(deserialize_with = "number::count")]
    pub prompt_tokens: u64,
    /// Output tokens.
    #[serde(deserialize_with = "number::count")]
    pub completion_tokens: u64,
    /// Both.
    #[serde(deserialize_with = "number::count")]
    pub total_tokens: u64,
    /// Input tokens that were read from a cache.
    #[serde(default, deserialize_with = "number::count")]
    pub cache_read_input_tokens: u64,
    /// Calls that were answered.
    #[serde(deserialize_with = "number::count")]
    pub successful_requests: u64,
    /// Calls that failed or were refused; their tokens are the gateway's estimate.
    #[serde(deserialize_with = "number::count")]
    pub failed_requests: u64,
    /// All calls, refused ones included.
    #[serde(deserialize_with = "number::count")]
    pub api_requests: u64,
    /// The cost, in the gateway's currency, exactly as written.
    #[serde(deserialize_with = "number::decimal")]
    pub spend: Decimal,
}

impl Counts {
    /// The sum, or `None` when a number would not fit.
    #[must_use]
    pub fn checked_add(&self, other: &Self) -> Option<Self> {
        Some(Self {
            prompt_tokens: self.prompt_tokens.checked_add(other.prompt_tokens)?,
            completion_tokens: self.completion_tokens.checked_add(other.completion_tokens)?,
            total_tokens: self.total_tokens.checked_add(other.total_tokens)?,
            cache_read_input_tokens: self.cache_read_input_tokens.checked_add(other.cache_read_input_tokens)?,
            successful_requests: self.successful_requests.checked_add(other.successful_requests)?,
            failed_requests: self.failed_requests.checked_add(other.failed_requests)?,
            api_requests: self.api_requests.checked_add(other.api_requests)?,
            spend: self.spend.checked_add(other.spend)?,
        })
    }

    /// Whether two sums of the same rows agree: the counters exactly, the cost up to the noise of the gateway's own additions,
    /// which are binary (0.0023935 is recorded as 0.0023935000000000002). Noise means 1e-9, or 1e-12 of the cost if that is
    /// more.
    #[must_use]
    pub fn agrees_with(&self, other: &Self) -> bool {
        let counters = |counts: &Self| Self { spend: Decimal::ZERO, ..*counts };
        let noise = Decimal::new(1, 9).max(self.spend.abs().checked_mul(Decimal::new(1, 12)).unwrap_or_default());
        let difference = self.spend.checked_sub(other.spend).map(|difference| difference.abs());
        counters(self) == counters(other) && difference.is_some_and(|difference| difference <= noise)
    }
}

/// What one key used of one model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyUsage {
    /// The key's hash.
    pub hash: String,
    /// Its alias, also of a deleted key; `None` when the gateway lost it.
    pub alias: Option<String>,
    /// Its team, also of a deleted key or team; `None` when the gateway lost it.
    pub team_id: Option<String>,
    /// What it used.
    pub counts: Counts,
}

/// What was used of one public model name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelUsage {
    /// The public name. Calls refused before they were routed have an empty one or `unknown-model`.
    pub model_group: String,
    /// The whole use; the keys have to add up to it.
    pub totals: Counts,
    /// The use by key.
    pub keys: Vec<KeyUsage>,
}

/// What one page of the ledger says of one day. A day can be spread over pages; each holds a part, to be added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DayPage {
    /// The UTC day.
    pub date: Date,
    /// By public model name.
    pub models: Vec<ModelUsage>,
    /// By team: whole sums, and which keys took part.
    pub teams: Vec<TeamUsage>,
    /// All of this page's part of the day.
    pub totals: Counts,
}

/// What a team used of all models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TeamUsage {
    /// The team's id, also of a deleted team; `Unassigned` for keys without a team.
    pub team_id: String,
    /// The whole use.
    pub totals: Counts,
    /// The hashes of the keys that made it.
    pub keys: Vec<String>,
}

// Only the fields below are kept; the other breakdowns of a row (by upstream, provider, endpoint, key, entity), five sixths
// of the bytes, are skipped while parsing.

#[derive(Deserialize)]
struct Page {
    results: Vec<Day>,
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(deserialize_with = "number::count")]
    page: u64,
    #[serde(deserialize_with = "number::count")]
    total_pages: u64,
    has_more: bool,
}

#[derive(Deserialize)]
struct Day {
    date: Date,
    metrics: Counts,
    breakdown: Breakdown,
}

#[derive(Deserialize)]
struct Breakdown {
    #[serde(deserialize_with = "entries")]
    model_groups: Vec<(String, Group)>,
    #[serde(default, deserialize_with = "entries")]
    entities: Vec<(String, Entity)>,
}

#[derive(Deserialize)]
struct Entity {
    metrics: Counts,
    #[serde(default, deserialize_with = "entries")]
    api_key_breakdown: Vec<(String, de::IgnoredAny)>,
}

#[derive(Deserialize)]
struct Group {
    metrics: Counts,
    #[serde(deserialize_with = "entries")]
    api_key_breakdown: Vec<(String, KeyPart)>,
}

#[derive(Deserialize)]
struct KeyPart {
    metrics: Counts,
    #[serde(default)]
    metadata: Option<KeyMetadata>,
}

#[derive(Deserialize, Default)]
struct KeyMetadata {
    #[serde(default)]
    key_alias: Option<String>,
    #[serde(default)]
    team_id: Option<String>,
}

/// The entries of an object in the order they stand.
fn entries<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, T)>, D::Error> {
    struct Entries<T>(std::marker::PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
        type Value = Vec<(String, T)>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut all: Self::Value = Vec::with_capacity(map.size_hint().unwrap_or(0));
            while let Some(entry) = map.next_entry()? {
                all.push(entry);
            }
            // The same name twice in one object is no ledger; the sums would depend on how it is read.
            let mut names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
            names.sort_unstable();
            if names.windows(2).any(|pair| matches!(pair, [a, b] if a == b)) {
                return Err(de::Error::custom("the same name twice"));
            }
            Ok(all)
        }
    }
    deserializer.deserialize_map(Entries(std::marker::PhantomData))
}

impl From<Day> for DayPage {
    fn from(day: Day) -> Self {
        Self {
            date: day.date,
            totals: day.metrics,
            teams: day
                .breakdown
                .entities
                .into_iter()
                .map(|(team_id, entity)| TeamUsage {
                    team_id,
                    totals: entity.metrics,
                    keys: entity.api_key_breakdown.into_iter().map(|(hash, _)| hash).collect(),
                })
                .collect(),
            models: day
                .breakdown
                .model_groups
                .into_iter()
                .map(|(model_group, group)| ModelUsage {
                    model_group,
                    totals: group.metrics,
                    keys: group
                        .api_key_breakdown
                        .into_iter()
                        .map(|(hash, part)| {
                            let metadata = part.metadata.unwrap_or_default();
                            KeyUsage { hash, alias: metadata.key_alias, team_id: metadata.team_id, counts: part.metrics }
                        })
                        .collect(),
                })
                .collect(),
        }
    }
}

impl Client {
    /// The ledger rows of the days `from` to `to` (UTC, both included) for the teams, or for all when `team_ids` is empty, read
    /// page by page to the end. Pages are offsets into a table that grows: a day that is not over can come twice or with a gap,
    /// so compare with [`Client::daily_totals`].
    ///
    /// # Errors
    /// [`ErrorKind::Decode`] when a page is not a page, [`ErrorKind::Incomplete`] when the pages contradict each other. Never a
    /// part of the rows.
    pub async fn daily_activity(&self, team_ids: &[&str], from: Date, to: Date) -> Result<Vec<DayPage>> {
        let mut days = Vec::new();
        self.daily_activity_each(team_ids, from, to, |day| days.push(day)).await?;
        Ok(days)
    }

    /// Like [`Client::daily_activity`], with each part given to `take` as soon as it is read, so that a large ledger is
    /// never in memory as a whole. What was taken before an error is worth nothing. Returns the number of pages.
    ///
    /// # Errors
    /// As [`Client::daily_activity`].
    pub async fn daily_activity_each(&self, team_ids: &[&str], from: Date, to: Date, mut take: impl FnMut(DayPage)) -> Result<u64> {
        let filter = filter(PAGED, team_ids, from, to)?;
        let mut size = ROWS_PER_PAGE;
        let mut wanted = 1;
        loop {
            let mut call = Call::get(PAGED).cap(USAGE_PAGE_CAP).query("page", wanted.to_string()).query("page_size", size.to_string());
            call.query.extend(filter.iter().cloned());
            let mut answer = match self.call(call).await {
                Err(error) if wanted == 1 && size > FEWER_ROWS && is_page_too_large(&error) => {
                    size = FEWER_ROWS;
                    continue;
                }
                answer => answer?,
            };
            let Page { results, metadata } = answer.decode()?;
            answer.free();
            if metadata.page != wanted {
                return Err(answer.incomplete(format!("asked for page {wanted}, got page {}", metadata.page)));
            }
            let (empty, more) = (results.is_empty(), metadata.has_more);
            if (more && empty) || more != (metadata.total_pages > wanted) {
                return Err(answer.incomplete(format!(
                    "page {wanted} of {} has {} results and says has_more={more}",
                    metadata.total_pages,
                    results.len()
                )));
            }
            for day in results {
                take(checked(&answer, day, from, to)?);
            }
            if !more {
                return Ok(wanted);
            }
            if wanted == MAX_PAGES {
                return Err(answer.incomplete("the pages do not end"));
            }
            wanted += 1;
        }
    }

    /// The same days with whole sums per day and model, in one answer; at most 400 days. The lists of keys are cut short, so
    /// they do not add up. `None` where the gateway's release has no such call (1.83 has not).
    ///
    /// # Errors
    /// As [`Client::daily_activity`].
    pub async fn daily_totals(&self, team_ids: &[&str], from: Date, to: Date) -> Result<Option<Vec<DayPage>>> {
        let mut call = Call::get(AGGREGATED).cap(TOTALS_CAP).query("api_key_limit", "1");
        call.query.extend(filter(AGGREGATED, team_ids, from, to)?);
        let mut answer = self.exchange(call).await?;
        if !answer.is_success() {
            let error = answer.error();
            return match &error.kind {
                // FastAPI's word for a path it does not have.
                ErrorKind::Status { status: 404, message, .. } if message == "Not Found" => Ok(None),
                _ => Err(error),
            };
        }
        let Page { results, metadata } = answer.decode()?;
        answer.free();
        if metadata.has_more {
            return Err(answer.incomplete("an answer without pages says that there is more"));
        }
        let days = results.into_iter().map(|day| checked(&answer, day, from, to));
        days.collect::<Result<_>>().map(Some)
    }
}

fn filter(path: &str, team_ids: &[&str], from: Date, to: Date) -> Result<Vec<(&'static str, String)>> {
    if from > to {
        return Err(invalid("GET", path, "the first day is after the last"));
    }
    let mut filter = vec![("start_date", from.to_string()), ("end_date", to.to_string())];
    if !team_ids.is_empty() {
        if team_ids.iter().any(|id| id.trim().is_empty() || id.contains(',')) {
            return Err(invalid("GET", path, "a team id is blank or holds a comma"));
        }
        filter.push(("team_ids", team_ids.join(",")));
    }
    Ok(filter)
}

/// 422 is how the framework refuses a parameter.
fn is_page_too_large(error: &crate::Error) -> bool {
    matches!(error.kind, ErrorKind::Status { status: 422, .. })
}

fn checked(answer: &Answer, day: Day, from: Date, to: Date) -> Result<DayPage> {
    if day.date < from || day.date > to {
        return Err(answer.incomplete(format!("asked for {from} to {to}, got {}", day.date)));
    }
    Ok(day.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    use crate::decode::mangle;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn strange_days_are_read_without_a_panic(place in 0_usize..10_000, with in 0_usize..8) {
            let _ = mangle::read::<Page>("daily-deleted-team", place, with);
        }
    }

    #[test]
    fn no_counter_is_read_as_nothing() {
        let recorded = mangle::recorded("daily-deleted-team");
        let metrics = "/results/0/breakdown/model_groups/llama-70b/metrics";
        for name in
            ["spend", "prompt_tokens", "completion_tokens", "total_tokens", "successful_requests", "failed_requests", "api_requests"]
        {
            let mut body = recorded.clone();
            body.pointer_mut(metrics).unwrap()[name] = serde_json::Value::Null;
            crate::decode::decode::<Page>(body.to_string().as_bytes()).err().unwrap();
            let mut body = recorded.clone();
            body.pointer_mut(metrics).unwrap().as_object_mut().unwrap().remove(name).unwrap();
            let mistake = crate::decode::decode::<Page>(body.to_string().as_bytes()).err().unwrap();
            assert_eq!(mistake.at, "results[0].breakdown.model_groups.llama-70b.metrics", "{name}");
        }
    }

    #[test]
    fn a_name_twice_is_no_ledger() {
        let counts = r#"{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0,"successful_requests":0,"failed_requests":0,"api_requests":0,"spend":0}"#;
        let group = format!(r#""m":{{"metrics":{counts},"api_key_breakdown":{{}}}}"#);
        let page = |groups: &str| {
            format!(
                r#"{{"results":[{{"date":"2026-11-30","metrics":{counts},"breakdown":{{"model_groups":{{{groups}}}}}}}],"metadata":{{"page":1,"total_pages":1,"has_more":false}}}}"#
            )
        };
        crate::decode::decode::<Page>(page(&group).as_bytes()).ok().unwrap();
        assert!(crate::decode::decode::<Page>(page(&format!("{group},{group}")).as_bytes()).is_err());
    }
}
