//! The gateway's ledger, split by team, model, day and key, and proven to be whole before it is believed.
//!
//! The pages are offsets into a table that grows while it is read, the lists of keys can be cut short, and metadata of keys
//! can be lost. So what the parts add up to is compared with three other figures: the total of their own row, the total of
//! their team, and the totals that the gateway adds up by itself. What does not add up is withheld, never guessed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use jiff::ToSpan as _;
use jiff::civil::Date;
use litellm_client::{Counts, DayPage};
use rust_decimal::Decimal;

use crate::domain::KeyAlias;
use crate::secrets::Slot;

/// A month of one team and one public model name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelTotals {
    /// Prompt tokens, cached ones included.
    pub input_tokens: Decimal,
    /// Completion tokens.
    pub output_tokens: Decimal,
    /// Spend in the gateway's currency.
    pub spend: Decimal,
    /// Calls that were answered; those that were refused or failed are not among them.
    pub requests: u64,
}

impl ModelTotals {
    fn add(&mut self, counts: &Counts) {
        // The whole ledger fits, or none of it is used.
        self.input_tokens = self.input_tokens.saturating_add(Decimal::from(counts.prompt_tokens));
        self.output_tokens = self.output_tokens.saturating_add(Decimal::from(counts.completion_tokens));
        self.spend = self.spend.saturating_add(counts.spend);
        self.requests = self.requests.saturating_add(counts.successful_requests);
    }

    /// The sum, or `None` when it would not fit.
    #[must_use]
    pub fn checked_add(&self, other: &Self) -> Option<Self> {
        Some(Self {
            input_tokens: self.input_tokens.checked_add(other.input_tokens)?,
            output_tokens: self.output_tokens.checked_add(other.output_tokens)?,
            spend: self.spend.checked_add(other.spend)?,
            requests: self.requests.saturating_add(other.requests),
        })
    }

    fn is_nothing(&self) -> bool {
        self.input_tokens.is_zero() && self.output_tokens.is_zero() && self.spend.is_zero()
    }
}

/// What one team used in some days.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TeamUse {
    /// By public model name; models without tokens and spend are left out.
    pub models: BTreeMap<String, ModelTotals>,
    /// The same by day.
    pub days: BTreeMap<Date, BTreeMap<String, ModelTotals>>,
    /// The same by key: its alias where the gateway still knows it, else its hash.
    pub keys: BTreeMap<String, BTreeMap<String, ModelTotals>>,
    /// The same by the kind of key: project, chat, or neither of ours.
    pub slots: BTreeMap<Option<Slot>, BTreeMap<String, ModelTotals>>,
    /// What of each model is in rows that belong to it and to others of one upstream model, and that nothing tells apart.
    pub untold: BTreeMap<String, ModelTotals>,
    /// Something of these days is withheld, so that figures can be too low.
    pub partial: bool,
}

/// The same without whose calls they were and when: all that the bill needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TeamTotals {
    /// As [`TeamUse::models`].
    pub models: BTreeMap<String, ModelTotals>,
    /// As [`TeamUse::untold`].
    pub untold: BTreeMap<String, ModelTotals>,
    /// As [`TeamUse::partial`].
    pub partial: bool,
}

/// Something of the ledger that did not add up and is not used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Withheld {
    /// The UTC day.
    pub date: Date,
    /// The public model name; `None` for all.
    pub model: Option<String>,
    /// The team; `None` for all.
    pub team: Option<String>,
    /// Why, with both figures.
    pub why: String,
}

impl fmt::Display for Withheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.date)?;
        if let Some(model) = &self.model {
            write!(f, " {model:?}")?;
        }
        if let Some(team) = &self.team {
            write!(f, " team {team}")?;
        }
        write!(f, ": {}", self.why)
    }
}

/// Totals that the gateway adds up by itself.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    models: BTreeMap<(Date, String), Counts>,
    teams: BTreeMap<(Date, String), Counts>,
    overflow: bool,
}

impl Totals {
    /// Of the days of an answer.
    #[must_use]
    pub fn of(days: &[DayPage]) -> Self {
        let mut totals = Self::default();
        for day in days {
            totals.take(day);
        }
        totals
    }

    /// Adds a part of a day.
    pub fn take(&mut self, day: &DayPage) {
        for model in &day.models {
            self.overflow |= !add(self.models.entry((day.date, model.model_group.clone())).or_default(), &model.totals);
        }
        for team in &day.teams {
            self.overflow |= !add(self.teams.entry((day.date, team.team_id.clone())).or_default(), &team.totals);
        }
    }
}

/// Teams of single days in one answer of totals.
const MOST_TEAM_DAYS: usize = 10_000;

/// How the gateway names the keys without a team.
const WITHOUT_TEAM: &str = "Unassigned";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Part {
    /// `None` where nobody knows the team.
    team: Option<u32>,
    date: Date,
    model: u32,
    key: u32,
}

/// Numbers in the place of texts that repeat in every row.
#[derive(Debug, Default)]
pub(super) struct Names {
    numbers: HashMap<String, u32>,
    texts: Vec<String>,
}

impl Names {
    pub(super) fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        self.numbers.insert(text.to_owned(), number);
        self.texts.push(text.to_owned());
        number
    }

    pub(super) fn text(&self, number: u32) -> &str {
        usize::try_from(number).ok().and_then(|at| self.texts.get(at)).map_or("", String::as_str)
    }
}

/// The rows as they are read, page by page.
#[derive(Debug, Default)]
pub struct Ledger {
    teams: Names,
    models: Names,
    keys: Names,
    aliases: HashMap<u32, String>,
    parts: HashMap<Part, Counts>,
    by_model: BTreeMap<(Date, u32), Counts>,
    by_team: BTreeMap<(Date, u32), Counts>,
    by_day: BTreeMap<Date, Counts>,
    /// Models of a day whose keys did not add up to them on some page.
    cut: BTreeSet<(Date, u32)>,
    overflow: bool,
    /// Whether any page told the totals of teams.
    teams_told: bool,
}

/// The sum, in place; `false` where it would not fit.
pub(super) fn add(sum: &mut Counts, more: &Counts) -> bool {
    match sum.checked_add(more) {
        Some(added) => {
            *sum = added;
            true
        }
        None => false,
    }
}

fn add_to(sums: &mut BTreeMap<String, ModelTotals>, model: &str, counts: &Counts) {
    match sums.get_mut(model) {
        Some(sum) => sum.add(counts),
        None => {
            let mut sum = ModelTotals::default();
            sum.add(counts);
            sums.insert(model.to_owned(), sum);
        }
    }
}

impl Ledger {
    /// Takes one part of a day. A day can come in many.
    pub fn take(&mut self, day: DayPage) {
        let date = day.date;
        // Whose row it is, not whose key it is now: keys move, and metadata of deleted keys gets lost.
        let mut made_by: HashMap<u32, Option<u32>> = HashMap::new();
        for team in &day.teams {
            self.teams_told = true;
            let number = self.teams.number(&team.team_id);
            for hash in &team.keys {
                let of = made_by.entry(self.keys.number(hash)).or_insert(Some(number));
                if *of != Some(number) {
                    *of = None;
                }
            }
        }
        let without_team = self.teams.number(WITHOUT_TEAM);
        for model in &day.models {
            let number = self.models.number(&model.model_group);
            let mut sum = Counts::default();
            let mut fits = true;
            for key in &model.keys {
                fits &= add(&mut sum, &key.counts);
                let hash = self.keys.number(&key.hash);
                let team = match made_by.get(&hash) {
                    Some(Some(team)) => Some(*team).filter(|team| *team != without_team),
                    Some(None) | None => key.team_id.as_deref().map(|team| self.teams.number(team)),
                };
                if let Some(alias) = key.alias.as_ref().filter(|_| !self.aliases.contains_key(&hash)) {
                    self.aliases.insert(hash, alias.clone());
                }
                let part = Part { team, date, model: number, key: hash };
                fits &= add(self.parts.entry(part).or_default(), &key.counts);
            }
            if !sum.agrees_with(&model.totals) {
                self.cut.insert((date, number));
            }
            fits &= add(self.by_model.entry((date, number)).or_default(), &model.totals);
            self.overflow |= !fits;
        }
        for team in &day.teams {
            let number = self.teams.number(&team.team_id);
            self.overflow |= !add(self.by_team.entry((date, number)).or_default(), &team.totals);
        }
        self.overflow |= !add(self.by_day.entry(date).or_default(), &day.totals);
    }

    /// The days `from` to `to` (both included) in spans whose totals make an answer of some megabytes at most: each team of a
    /// day takes about a kilobyte, and they all come in one answer.
    #[must_use]
    pub fn spans(&self, from: Date, to: Date) -> Vec<(Date, Date)> {
        let teams = |date: Date| self.by_team.range((date, 0)..=(date, u32::MAX)).count();
        let mut spans: Vec<(Date, Date)> = Vec::new();
        let mut filled = 0;
        for date in from.series(1.day()).take_while(|date| *date <= to) {
            let more = teams(date);
            match spans.last_mut() {
                Some((_, last)) if filled + more <= MOST_TEAM_DAYS => *last = date,
                _ => {
                    spans.push((date, date));
                    filled = 0;
                }
            }
            filled += more;
        }
        spans
    }

    /// Compares everything with everything, and keeps what adds up. `after` are totals of all days, read after the pages,
    /// and `before` are those of `today`, read before them; today still grows.
    #[must_use]
    pub fn prove(self, before: Option<&Totals>, after: Option<&Totals>, today: Date) -> Proven {
        let mut withheld = BTreeSet::new();
        let mut days = BTreeSet::new();
        let mut models = BTreeSet::new();
        let mut teams = BTreeSet::new();
        let whole = |date: Date, why: String| Withheld { date, model: None, team: None, why };
        if self.overflow || before.is_some_and(|totals| totals.overflow) || after.is_some_and(|totals| totals.overflow) {
            for date in self.by_day.keys() {
                days.insert(*date);
                withheld.insert(whole(*date, "the gateway's figures are too large to be true".into()));
            }
        }
        for (date, model) in &self.cut {
            models.insert((*date, *model));
            withheld.insert(Withheld {
                date: *date,
                model: Some(self.models.text(*model).into()),
                team: None,
                why: "the keys of a row do not add up to the row".into(),
            });
        }
        let mut by_day: BTreeMap<Date, Counts> = BTreeMap::new();
        for ((date, _), counts) in &self.by_model {
            add(by_day.entry(*date).or_default(), counts);
        }
        for (date, told) in &self.by_day {
            let sum = by_day.get(date).copied().unwrap_or_default();
            if !bills_alike(&sum, told) {
                days.insert(*date);
                withheld.insert(whole(*date, format!("the models add up to {} and the day to {}", shown(&sum), shown(told))));
            }
        }
        if self.teams_told {
            let mut by_team: BTreeMap<(Date, u32), Counts> = BTreeMap::new();
            for (part, counts) in &self.parts {
                if let Some(team) = part.team {
                    add(by_team.entry((part.date, team)).or_default(), counts);
                }
            }
            let told = |at: &(Date, u32)| self.by_team.get(at).copied().unwrap_or_default();
            let all: BTreeSet<(Date, u32)> = by_team.keys().chain(self.by_team.keys()).copied().collect();
            for at in all {
                let (sum, told) = (by_team.get(&at).copied().unwrap_or_default(), told(&at));
                if self.teams.text(at.1) != WITHOUT_TEAM && !bills_alike(&sum, &told) {
                    teams.insert(at);
                    let why = format!("its models add up to {} and the team to {}", shown(&sum), shown(&told));
                    withheld.insert(Withheld { date: at.0, model: None, team: Some(self.teams.text(at.1).into()), why });
                }
            }
        }
        for (part, counts) in &self.parts {
            // Something else of the team may have been corrected by it, so that the rest of its day can be too much.
            if let Some(team) = part.team.filter(|_| below_nothing(counts.spend)) {
                teams.insert((part.date, team));
                withheld.insert(Withheld {
                    date: part.date,
                    model: Some(self.models.text(part.model).into()),
                    team: Some(self.teams.text(team).into()),
                    why: format!("a spend of {} is below nothing, so nothing of the team's day is used", counts.spend.normalize()),
                });
            }
        }
        if let Some(after) = after {
            let lower = |totals: Option<&BTreeMap<(Date, String), Counts>>, at: &(Date, String)| {
                totals.map(|totals| totals.get(at).copied().unwrap_or_default())
            };
            let mine: BTreeMap<(Date, String), Counts> =
                self.by_model.iter().map(|((date, model), counts)| ((*date, self.models.text(*model).to_owned()), *counts)).collect();
            for at in mine.keys().chain(after.models.keys()).collect::<BTreeSet<_>>() {
                let sum = mine.get(at).copied().unwrap_or_default();
                let most = after.models.get(at).copied().unwrap_or_default();
                if let Some(why) = disagreement(&sum, lower(before.map(|totals| &totals.models), at), &most, at.0 >= today) {
                    if let Some(model) = self.models.numbers.get(&at.1) {
                        models.insert((at.0, *model));
                    }
                    withheld.insert(Withheld { date: at.0, model: Some(at.1.clone()), team: None, why });
                }
            }
            if self.teams_told && !after.teams.is_empty() {
                let mine: BTreeMap<(Date, String), Counts> =
                    self.by_team.iter().map(|((date, team), counts)| ((*date, self.teams.text(*team).to_owned()), *counts)).collect();
                for at in mine.keys().chain(after.teams.keys()).collect::<BTreeSet<_>>() {
                    let sum = mine.get(at).copied().unwrap_or_default();
                    let most = after.teams.get(at).copied().unwrap_or_default();
                    if let Some(why) = disagreement(
                        &billed(&sum),
                        lower(before.map(|totals| &totals.teams), at).map(|counts| billed(&counts)),
                        &billed(&most),
                        at.0 >= today,
                    ) {
                        if let Some(team) = self.teams.numbers.get(&at.1) {
                            teams.insert((at.0, *team));
                        }
                        withheld.insert(Withheld { date: at.0, model: None, team: Some(at.1.clone()), why });
                    }
                }
            }
        }
        let mut proven = Proven {
            withheld: withheld.into_iter().collect(),
            names: self.teams,
            models: self.models,
            keys: self.keys,
            aliases: self.aliases,
            ..Proven::default()
        };
        proven.rows = self.parts.len();
        let mut all = Counts::default();
        let mut fits = true;
        for (part, counts) in self.parts {
            if days.contains(&part.date)
                || models.contains(&(part.date, part.model))
                || part.team.is_some_and(|team| teams.contains(&(part.date, team)))
            {
                continue;
            }
            match part.team {
                None => {
                    add(&mut proven.unattributed, &counts);
                }
                Some(team) => {
                    fits &= add(&mut all, &counts);
                    let row = Row { date: part.date, model: part.model, key: part.key, counts, group: None };
                    proven.teams.entry(team).or_default().push(row);
                }
            }
        }
        if !fits {
            proven.teams.clear();
            let why = "the gateway's figures of all days are too large to be true";
            proven.withheld.extend(self.by_day.into_keys().map(|date| whole(date, why.into())));
        }
        proven
    }
}

/// Only what is billed: calls that were refused before they reached a model are in some breakdowns and not in others, and
/// have nothing but their number.
fn billed(counts: &Counts) -> Counts {
    Counts { failed_requests: 0, api_requests: 0, ..*counts }
}

fn bills_alike(a: &Counts, b: &Counts) -> bool {
    billed(a).agrees_with(&billed(b))
}

pub(super) fn shown(counts: &Counts) -> String {
    format!("{} + {} tokens, {} spend", counts.prompt_tokens, counts.completion_tokens, counts.spend.normalize())
}

/// Whether a cost is below nothing by more than the noise of binary additions.
pub(super) fn below_nothing(spend: Decimal) -> bool {
    spend < Decimal::new(-1, 9)
}

/// Why a sum over pages cannot be right; `None` where it can.
fn disagreement(sum: &Counts, least: Option<Counts>, most: &Counts, grows: bool) -> Option<String> {
    if !grows {
        return (!sum.agrees_with(most))
            .then(|| format!("the pages add up to {} and the gateway's own total is {}", shown(sum), shown(most)));
    }
    let least = least.unwrap_or_default();
    let between = at_most(&least, sum) && at_most(sum, most);
    (!between)
        .then(|| format!("the pages add up to {}, which is not between {} before and {} after", shown(sum), shown(&least), shown(most)))
}

/// Whether no counter of `a` is above that of `b`, cost up to the noise of binary additions.
fn at_most(a: &Counts, b: &Counts) -> bool {
    let counters = |c: &Counts| {
        [
            c.prompt_tokens,
            c.completion_tokens,
            c.total_tokens,
            c.cache_read_input_tokens,
            c.successful_requests,
            c.failed_requests,
            c.api_requests,
        ]
    };
    let cheap =
        a.spend <= b.spend || Counts { spend: a.spend, ..Counts::default() }.agrees_with(&Counts { spend: b.spend, ..Counts::default() });
    cheap && counters(a).iter().zip(counters(b)).all(|(a, b)| *a <= b)
}

#[derive(Debug)]
pub(super) struct Row {
    pub(super) date: Date,
    pub(super) model: u32,
    pub(super) key: u32,
    pub(super) counts: Counts,
    /// The models of which it can be, where it is not known to be of its own.
    pub(super) group: Option<usize>,
}

impl Row {
    /// Whether there is anything in it that is billed.
    pub(super) fn bills(&self) -> bool {
        self.counts.prompt_tokens > 0 || self.counts.completion_tokens > 0 || !self.counts.spend.is_zero()
    }
}

/// The part of the ledger that adds up.
#[derive(Debug, Default)]
pub struct Proven {
    pub(super) names: Names,
    pub(super) models: Names,
    pub(super) keys: Names,
    aliases: HashMap<u32, String>,
    pub(super) teams: HashMap<u32, Vec<Row>>,
    /// Models that the ledger does not tell apart.
    pub(super) groups: Vec<BTreeSet<String>>,
    /// What did not add up.
    pub withheld: Vec<Withheld>,
    /// Rows whose failed calls the log does not have, although it should by now.
    pub unproven: Vec<Withheld>,
    /// The same of days of which the log can still get some.
    pub waiting: Vec<Withheld>,
    /// Models of one upstream model that the log does not tell apart, although it should by now. Their sum is right.
    pub merged: Vec<Withheld>,
    /// What keys used whose team nobody knows any more. It is on nobody's bill.
    pub unattributed: Counts,
    /// How many parts were read.
    pub rows: usize,
}

impl Proven {
    /// The teams that used something.
    pub fn teams(&self) -> impl Iterator<Item = &str> {
        self.teams.keys().map(|team| self.names.text(*team))
    }

    /// The totals of one team from the first day to the last, both included: what is billed, without whose calls they were and
    /// when.
    #[must_use]
    pub fn totals(&self, team: &str, first: Date, last: Date) -> TeamTotals {
        let mut totals = TeamTotals { partial: self.is_partial(team, first, last), ..TeamTotals::default() };
        for row in self.rows_between(team, first, last) {
            let model = self.models.text(row.model);
            add_to(&mut totals.models, model, &row.counts);
            for name in row.group.and_then(|group| self.groups.get(group)).into_iter().flatten() {
                let untold = totals.untold.entry(name.clone()).or_default();
                if name == model {
                    untold.add(&row.counts);
                }
            }
        }
        totals.models.retain(|_, sum| !sum.is_nothing());
        totals
    }

    /// What one team used from the first day to the last, both included.
    #[must_use]
    pub fn team(&self, team: &str, first: Date, last: Date) -> TeamUse {
        let TeamTotals { models, untold, partial } = self.totals(team, first, last);
        let mut used = TeamUse { models, untold, partial, ..TeamUse::default() };
        let resource = uuid::Uuid::parse_str(team).ok();
        let mut slots: HashMap<u32, (Option<Slot>, String)> = HashMap::new();
        for row in self.rows_between(team, first, last) {
            let (slot, key) = slots.entry(row.key).or_insert_with(|| {
                let alias = self.aliases.get(&row.key);
                let slot = alias.and_then(|alias| KeyAlias::parse(resource?, alias)).map(|alias| alias.slot);
                (slot, alias.cloned().unwrap_or_else(|| self.keys.text(row.key).to_owned()))
            });
            let sums =
                [used.days.entry(row.date).or_default(), used.keys.entry(key.clone()).or_default(), used.slots.entry(*slot).or_default()];
            for sum in sums {
                add_to(sum, self.models.text(row.model), &row.counts);
            }
        }
        used
    }

    fn rows_between(&self, team: &str, first: Date, last: Date) -> impl Iterator<Item = &Row> {
        let rows = self.names.numbers.get(team).and_then(|number| self.teams.get(number));
        rows.into_iter().flatten().filter(move |row| row.date >= first && row.date <= last)
    }

    fn is_partial(&self, team: &str, first: Date, last: Date) -> bool {
        let of_days = |held: &&Withheld| held.date >= first && held.date <= last;
        let all = self.withheld.iter().chain(&self.unproven).chain(&self.waiting);
        all.filter(of_days).any(|held| held.team.as_deref().is_none_or(|of| of == team))
    }
}
