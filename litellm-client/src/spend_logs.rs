//! The gateway's other ledger: one row per call, subject to its retention settings.

use std::collections::HashSet;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use rust_decimal::Decimal;
use serde::Deserialize;

use crate::Result;
use crate::client::{Call, Client, USAGE_PAGE_CAP, invalid};
use crate::number;

const PATH: &str = "/spend/logs/v2";
/// The most rows the gateway gives per page.
const ROWS_PER_PAGE: usize = 1000;
/// More pages than a month of calls fills: 100 million rows.
const MAX_PAGES: u64 = 100_000;

/// One call, as the log has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedCall {
    /// Its id; no two calls share one.
    pub id: String,
    /// The team; `None` where the key had none.
    pub team_id: Option<String>,
    /// The hash of the key.
    pub key: String,
    /// The public model name; empty for a call that was refused before it was routed.
    pub model_group: String,
    /// The model that was asked for upstream, or by the caller where no upstream was chosen.
    pub upstream: String,
    /// Whether it failed; its tokens are then the gateway's estimate.
    pub failed: bool,
    /// Input tokens.
    pub prompt_tokens: u64,
    /// Output tokens.
    pub completion_tokens: u64,
    /// The cost, exactly as written.
    pub spend: Decimal,
    /// When it began; this decides its day.
    pub started: Timestamp,
}

impl LoggedCall {
    /// The name under which the daily rows have it: the public one, or what the caller asked for where there is none
    /// (measured: a model that does not exist).
    #[must_use]
    pub fn name(&self) -> &str {
        if self.model_group.is_empty() { &self.upstream } else { &self.model_group }
    }
}

/// Which calls to read.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogFilter<'a> {
    /// Only those of this team.
    pub team_id: Option<&'a str>,
    /// Only those of this public model name.
    pub model_group: Option<&'a str>,
    /// Only those that failed.
    pub failed: bool,
}

#[derive(Deserialize)]
struct Page {
    data: Vec<Row>,
    #[serde(deserialize_with = "number::count")]
    total: u64,
    #[serde(deserialize_with = "number::count")]
    page: u64,
    /// The total is a lower bound: counting was cut short.
    #[serde(default)]
    total_is_capped: bool,
}

#[derive(Deserialize)]
struct Row {
    request_id: String,
    #[serde(default)]
    team_id: Option<String>,
    #[serde(default)]
    api_key: Option<String>,
    #[serde(default)]
    model_group: Option<String>,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    status: Option<String>,
    #[serde(deserialize_with = "number::count")]
    prompt_tokens: u64,
    #[serde(deserialize_with = "number::count")]
    completion_tokens: u64,
    #[serde(deserialize_with = "number::decimal")]
    spend: Decimal,
    #[serde(rename = "startTime")]
    started: Timestamp,
}

impl From<Row> for LoggedCall {
    fn from(row: Row) -> Self {
        Self {
            id: row.request_id,
            team_id: row.team_id.filter(|id| !id.is_empty()),
            key: row.api_key.unwrap_or_default(),
            model_group: row.model_group.unwrap_or_default(),
            upstream: row.model.unwrap_or_default(),
            failed: row.status.as_deref() == Some("failure"),
            prompt_tokens: row.prompt_tokens,
            completion_tokens: row.completion_tokens,
            spend: row.spend,
            started: row.started,
        }
    }
}

impl Client {
    /// Reads the calls that began on the days `from` to `to` (UTC, both included), each once, and gives them to `take`. Rows
    /// that are written meanwhile may or may not be among them.
    ///
    /// # Errors
    /// [`ErrorKind::Decode`](crate::ErrorKind::Decode) when a page is not a page,
    /// [`ErrorKind::Incomplete`](crate::ErrorKind::Incomplete) when the pages hold fewer calls than they count: what was
    /// taken before is worth nothing then.
    pub async fn spend_logs(&self, filter: LogFilter<'_>, from: Date, to: Date, mut take: impl FnMut(LoggedCall)) -> Result<()> {
        let span = Span::new(from, to)?;
        let mut seen = HashSet::new();
        // The least that must be there: what the first page counted.
        let mut promised = None;
        for wanted in 1..=MAX_PAGES {
            let answer = self.call(span.page(filter, wanted, "asc")).await?;
            let page: Page = answer.decode()?;
            if page.page != wanted {
                return Err(answer.incomplete(format!("asked for page {wanted}, got page {}", page.page)));
            }
            let promised = *promised.get_or_insert(page.total);
            let rows = page.data.len();
            for row in page.data {
                if !seen.insert(row.request_id.clone()) {
                    continue;
                }
                let call = LoggedCall::from(row);
                if filter.wants(&call) && span.holds(&call) {
                    take(call);
                }
            }
            let held = u64::try_from(seen.len()).unwrap_or(u64::MAX);
            let over = if page.total_is_capped { rows < ROWS_PER_PAGE } else { rows == 0 || held >= page.total };
            if over {
                if held < promised {
                    return Err(answer.incomplete(format!("the log counts {promised} calls and its pages hold {held}")));
                }
                return Ok(());
            }
        }
        Err(invalid("GET", PATH, "the pages do not end"))
    }

    /// Some of those calls, the latest first, in one answer: enough to see what there is, and no ground for sums.
    ///
    /// # Errors
    /// As [`Client::spend_logs`].
    pub async fn latest_calls(&self, filter: LogFilter<'_>, from: Date, to: Date) -> Result<Vec<LoggedCall>> {
        let span = Span::new(from, to)?;
        let page: Page = self.call(span.page(filter, 1, "desc")).await?.decode()?;
        Ok(page.data.into_iter().map(LoggedCall::from).filter(|call| filter.wants(call) && span.holds(call)).collect())
    }
}

impl LogFilter<'_> {
    fn wants(&self, call: &LoggedCall) -> bool {
        self.team_id.is_none_or(|id| call.team_id.as_deref() == Some(id))
            && self.model_group.is_none_or(|name| call.model_group == name)
            && (call.failed || !self.failed)
    }
}

/// The instants of some days. The gateway's end is inclusive and has whole seconds only, so the first second after it is
/// asked for and left out here.
struct Span {
    begin: Timestamp,
    end: Timestamp,
}

impl Span {
    fn new(from: Date, to: Date) -> Result<Self> {
        let (Some((begin, _)), Some((_, end))) = (day(from), day(to)) else {
            return Err(invalid("GET", PATH, "the days are out of range"));
        };
        if from > to {
            return Err(invalid("GET", PATH, "the first day is after the last"));
        }
        Ok(Self { begin, end })
    }

    fn holds(&self, call: &LoggedCall) -> bool {
        call.started >= self.begin && call.started < self.end
    }

    fn page(&self, filter: LogFilter<'_>, wanted: u64, order: &str) -> Call<'_> {
        let mut call = Call::get(PATH)
            .cap(USAGE_PAGE_CAP)
            .query("start_date", written(self.begin))
            .query("end_date", written(self.end))
            .query("sort_by", "startTime")
            .query("sort_order", order)
            .query("page", wanted.to_string())
            .query("page_size", ROWS_PER_PAGE.to_string());
        if let Some(team) = filter.team_id {
            call = call.query("team_id", team);
        }
        if let Some(model) = filter.model_group {
            call = call.query("model_group", model);
        }
        if filter.failed {
            call = call.query("status_filter", "failure");
        }
        call
    }
}

/// The first instant of a day and that of the next.
fn day(date: Date) -> Option<(Timestamp, Timestamp)> {
    let next = date.checked_add(1.day()).ok()?;
    let start = |date: Date| Some(date.to_zoned(TimeZone::UTC).ok()?.timestamp());
    Some((start(date)?, start(next)?))
}

/// As the gateway wants it; a plain date finds nothing (measured).
fn written(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S").to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    use crate::decode::mangle;
    use proptest::prelude::*;

    #[test]
    fn a_recorded_page_is_read() {
        let body = mangle::recorded("spend-logs-v2").to_string();
        let page: Page = crate::decode::decode(body.as_bytes()).unwrap();
        assert_eq!((page.total, page.page, page.total_is_capped), (8, 1, false));
        let call = LoggedCall::from(page.data.into_iter().next().unwrap());
        assert_eq!((call.team_id.as_deref(), call.model_group.as_str(), call.failed), (Some("t-use"), "llama-70b", false));
        assert_eq!((call.upstream.as_str(), call.name()), ("openai/llama-70b", "llama-70b"));
        assert_eq!((call.prompt_tokens, call.completion_tokens), (300, 40));
        assert_eq!(call.spend.to_string(), "0.00038");
        assert_eq!(call.started.to_string(), "2026-11-30T03:10:29.949Z");
    }

    #[test]
    fn days_are_written_as_the_gateway_reads_them() {
        let (begin, end) = day("2026-12-31".parse().unwrap()).unwrap();
        assert_eq!(written(begin), "2026-12-31 00:00:00");
        assert_eq!(written(end), "2027-01-01 00:00:00");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn strange_pages_are_read_without_a_panic(place in 0_usize..10_000, with in 0_usize..8) {
            let _ = mangle::read::<Page>("spend-logs-v2", place, with);
        }
    }
}
