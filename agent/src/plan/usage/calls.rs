//! What the gateway's log of calls adds to its ledger: which tokens are those of failed calls, and which of two public
//! names with one upstream model was called. It is believed where its calls add up to the ledger's own rows; the log can
//! be switched off, kept shorter than a month, or have lost what the ledger has.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use jiff::civil::Date;
use litellm_client::{Counts, LoggedCall};

use super::ledger::{Proven, Row, Withheld, add, shown};

/// The calls of teams on days, as far as they were looked for.
pub type Log = BTreeMap<(String, Date), Arc<LoggedDay>>;

/// By model.
type Parts<'a> = Vec<(&'a str, Counts)>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Cell {
    key: String,
    model: String,
}

/// The calls of one team on one day that were looked for.
#[derive(Clone, Debug, Default)]
pub struct LoggedDay {
    all: HashMap<Cell, Counts>,
    failed: HashMap<Cell, Counts>,
    total: Counts,
    unread: Option<String>,
}

impl LoggedDay {
    /// A day whose calls could not be read, and why.
    #[must_use]
    pub fn unread(why: String) -> Self {
        Self { unread: Some(why), ..Self::default() }
    }

    /// Takes one call.
    pub fn take(&mut self, call: &LoggedCall) {
        let one = Counts {
            prompt_tokens: call.prompt_tokens,
            completion_tokens: call.completion_tokens,
            successful_requests: u64::from(!call.failed),
            failed_requests: u64::from(call.failed),
            spend: call.spend,
            ..Counts::default()
        };
        let cell = Cell { key: call.key.clone(), model: call.name().to_owned() };
        let mut fits = add(&mut self.total, &one);
        if call.failed {
            fits &= add(self.failed.entry(cell.clone()).or_default(), &one);
        }
        fits &= add(self.all.entry(cell).or_default(), &one);
        if !fits {
            self.unread = Some("its figures are too large to be true".into());
        }
    }

    /// Whether as many failed calls are in it as the ledger has in these rows.
    #[must_use]
    pub fn has_failed(&self, ledger: &Counts) -> bool {
        self.unread.is_none() && self.total.failed_requests == ledger.failed_requests
    }

    /// Whether its calls add up to these rows of the ledger.
    #[must_use]
    pub fn has_all(&self, ledger: &Counts) -> bool {
        self.unread.is_none() && comparable(&self.total).agrees_with(&comparable(ledger))
    }

    /// The failed calls of a key to one of these models.
    fn failed(&self, key: &str, models: &BTreeSet<&str>) -> Result<Counts, String> {
        self.sum(&self.failed, key, models.iter().copied()).map(|(sum, _)| sum)
    }

    fn sum<'a>(
        &self,
        cells: &HashMap<Cell, Counts>,
        key: &str,
        models: impl IntoIterator<Item = &'a str>,
    ) -> Result<(Counts, Parts<'a>), String> {
        if let Some(why) = &self.unread {
            return Err(format!("the log of calls cannot be read: {why}"));
        }
        let mut sum = Counts::default();
        let mut parts = Vec::new();
        for model in models {
            let cell = Cell { key: key.to_owned(), model: model.to_owned() };
            if let Some(counts) = cells.get(&cell) {
                add(&mut sum, counts);
                parts.push((model, *counts));
            }
        }
        Ok((sum, parts))
    }

    /// The calls of a key to each of these models, where they add up to what the ledger has of all of them.
    fn split<'a>(&self, key: &str, models: impl IntoIterator<Item = &'a str>, ledger: &Counts) -> Result<Vec<(&'a str, Counts)>, String> {
        let (sum, mut parts) = self.sum(&self.all, key, models)?;
        if !comparable(&sum).agrees_with(&comparable(ledger)) {
            let calls = |counts: &Counts| counts.successful_requests.saturating_add(counts.failed_requests);
            return Err(format!(
                "the ledger has {} calls of one key with {}, and the log {} with {}",
                calls(ledger),
                shown(ledger),
                calls(&sum),
                shown(&sum)
            ));
        }
        // The noise of binary additions stays in the sum.
        if let Some((_, last)) = parts.last_mut() {
            let exact = ledger.spend.checked_sub(sum.spend).and_then(|noise| last.spend.checked_add(noise));
            last.spend = exact.unwrap_or(last.spend);
        }
        Ok(parts)
    }
}

/// What both stores have of a call.
fn comparable(counts: &Counts) -> Counts {
    Counts { total_tokens: 0, cache_read_input_tokens: 0, api_requests: 0, ..*counts }
}

impl Proven {
    /// By team and day, what the rows of these teams add up to that have failed calls in them, and something to bill.
    #[must_use]
    pub fn days_with_failed(&self, teams: &BTreeSet<String>) -> BTreeMap<(String, Date), Counts> {
        self.by_day(teams, |row| row.counts.failed_requests > 0)
    }

    /// By team and day, what the rows of these teams and models add up to.
    #[must_use]
    pub fn days_with(&self, teams: &BTreeSet<String>, models: &BTreeSet<String>) -> BTreeMap<(String, Date), Counts> {
        self.by_day(teams, |row| models.contains(self.models.text(row.model)))
    }

    /// The names of models that these teams used.
    #[must_use]
    pub fn models_of(&self, teams: &BTreeSet<String>) -> BTreeSet<String> {
        let used: BTreeSet<u32> = self.rows_of(teams).map(|(_, row)| row.model).collect();
        used.into_iter().map(|model| self.models.text(model).to_owned()).collect()
    }

    fn rows_of<'a>(&'a self, teams: &'a BTreeSet<String>) -> impl Iterator<Item = (&'a str, &'a Row)> {
        let named = self.teams.iter().map(|(team, rows)| (self.names.text(*team), rows)).filter(|(team, _)| teams.contains(*team));
        named.flat_map(|(team, rows)| rows.iter().filter(|row| row.bills()).map(move |row| (team, row)))
    }

    fn by_day(&self, teams: &BTreeSet<String>, wanted: impl Fn(&Row) -> bool) -> BTreeMap<(String, Date), Counts> {
        let mut days: BTreeMap<(String, Date), Counts> = BTreeMap::new();
        for (team, row) in self.rows_of(teams).filter(|(_, row)| wanted(row)) {
            // All rows together fit.
            add(days.entry((team.to_owned(), row.date)).or_default(), &row.counts);
        }
        days
    }

    /// Gives each of these models, which the ledger does not tell apart, its own calls on the days that are in `log`. Where
    /// the calls of a key do not add up to the ledger, only the sum of the models is known; days before `settled` have no
    /// excuse for it.
    pub fn tell_apart(&mut self, models: &BTreeSet<String>, log: &Log, settled: Date) {
        let members: BTreeMap<u32, &str> = models.iter().map(|model| (self.models.number(model), model.as_str())).collect();
        let group = self.groups.len();
        self.groups.push(models.clone());
        for (team, rows) in &mut self.teams {
            let team = self.names.text(*team);
            let logged: BTreeMap<Date, &LoggedDay> = of_team(log, team).collect();
            let concerned = |row: &Row| members.contains_key(&row.model) && row.bills() && logged.contains_key(&row.date);
            let mut sums: BTreeMap<(Date, u32), Counts> = BTreeMap::new();
            for row in rows.iter().filter(|row| concerned(row)) {
                add(sums.entry((row.date, row.key)).or_default(), &row.counts);
            }
            let mut told = Vec::new();
            for ((date, key), sum) in &sums {
                let Some(day) = logged.get(date) else { continue };
                match day.split(self.keys.text(*key), members.values().copied(), sum) {
                    Ok(parts) => {
                        let number = |name: &str| members.iter().find(|(_, member)| **member == name).map(|(number, _)| *number);
                        told.extend(
                            parts.into_iter().filter_map(|(name, counts)| {
                                Some(Row { date: *date, model: number(name)?, key: *key, counts, group: None })
                            }),
                        );
                    }
                    Err(why) if *date < settled => self.merged.push(Withheld {
                        date: *date,
                        model: Some(models.iter().cloned().collect::<Vec<_>>().join(", ")),
                        team: Some(team.to_owned()),
                        why,
                    }),
                    Err(_) => {}
                }
            }
            let split: BTreeSet<(Date, u32)> = told.iter().map(|row: &Row| (row.date, row.key)).collect();
            rows.retain(|row| !(concerned(row) && split.contains(&(row.date, row.key))));
            for row in rows.iter_mut().filter(|row| concerned(row)) {
                row.group = Some(group);
            }
            rows.append(&mut told);
        }
        self.merged.sort();
    }

    /// Takes failed calls out again on the days that are in `log`: the gateway counts estimated tokens for them. They are
    /// taken out of a row where the log has as many of them as the row; else nothing of the row is used, and on days before
    /// `settled` that is said.
    pub fn without_failed(&mut self, log: &Log, settled: Date) {
        for (team, rows) in &mut self.teams {
            let team = self.names.text(*team);
            let logged: BTreeMap<Date, &LoggedDay> = of_team(log, team).collect();
            rows.retain_mut(|row| {
                let Some(day) = logged.get(&row.date).filter(|_| row.counts.failed_requests > 0 && row.bills()) else { return true };
                let own = self.models.text(row.model);
                let models = match row.group.and_then(|group| self.groups.get(group)) {
                    Some(group) => group.iter().map(String::as_str).collect(),
                    None => BTreeSet::from([own]),
                };
                let why = match day.failed(self.keys.text(row.key), &models).and_then(|failed| less(&row.counts, &failed)) {
                    Ok(counts) => {
                        row.counts = counts;
                        return true;
                    }
                    Err(why) => why,
                };
                let held = Withheld { date: row.date, model: Some(own.to_owned()), team: Some(team.to_owned()), why };
                if row.date < settled {
                    self.unproven.push(held)
                } else {
                    self.waiting.push(held)
                }
                false
            });
        }
        self.unproven.sort();
        self.waiting.sort();
    }
}

/// The days of one team.
fn of_team<'a>(log: &'a Log, team: &str) -> impl Iterator<Item = (Date, &'a LoggedDay)> {
    log.range((team.to_owned(), Date::MIN)..=(team.to_owned(), Date::MAX)).map(|((_, date), day)| (*date, day.as_ref()))
}

/// A row without its failed calls.
fn less(row: &Counts, failed: &Counts) -> Result<Counts, String> {
    let (theirs, ours) = (row.failed_requests, failed.failed_requests);
    if theirs != ours {
        return Err(format!(
            "the ledger counts {theirs} failed calls of one key and the log of calls has {ours}, so that their tokens cannot be taken out, and {} stay unbilled; see that the gateway keeps its log for the whole month, or bill as the ledger has it (usage.failed_calls)",
            shown(row)
        ));
    }
    let tokens = row.prompt_tokens.checked_sub(failed.prompt_tokens).zip(row.completion_tokens.checked_sub(failed.completion_tokens));
    let spend = row.spend.checked_sub(failed.spend).filter(|spend| !super::ledger::below_nothing(*spend));
    match (tokens, spend) {
        (Some((prompt_tokens, completion_tokens)), Some(spend)) => {
            Ok(Counts { prompt_tokens, completion_tokens, failed_requests: 0, spend, ..*row })
        }
        _ => Err(format!("the log has failed calls of {} and the ledger only {} altogether", shown(failed), shown(row))),
    }
}
