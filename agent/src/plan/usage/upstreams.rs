//! Which public names stood before the same upstream model, and when. The gateway's ledger has one row per team, day, key
//! and upstream model, under the public name that was called first, so that it says nothing of the other.

use std::collections::{BTreeMap, BTreeSet};

use jiff::ToSpan;
use jiff::civil::Date;

/// What was seen is kept for so many days: the running month, the one before, and some.
const KEPT_FOR: i64 = 70;

/// What was seen of public names and their upstream models. It is memory only: after a restart the names that have gone are
/// looked up in the gateway's log of calls again.
#[derive(Clone, Debug, Default)]
pub struct Upstreams {
    /// From which day to which a name had an upstream model, by both.
    seen: BTreeMap<(String, String), (Date, Date)>,
    /// The day of the last look, and what was there then.
    looked: Option<Date>,
    there: BTreeSet<(String, String)>,
}

impl Upstreams {
    /// Takes what the gateway serves today, as public name and upstream model. What is new may have come at any time since
    /// the last look, and before the first one; what is gone may have gone just now.
    pub fn look<'a>(&mut self, deployments: impl IntoIterator<Item = (&'a str, Option<&'a str>)>, today: Date) {
        let since = self.looked.unwrap_or(Date::MIN);
        for was in std::mem::take(&mut self.there) {
            if let Some((_, last)) = self.seen.get_mut(&was) {
                *last = today.max(*last);
            }
        }
        for (name, upstream) in deployments {
            if let Some(upstream) = upstream {
                self.saw(name, upstream, since, today);
                self.there.insert((upstream.to_owned(), name.to_owned()));
            }
        }
        self.looked = Some(today);
        let kept = today.checked_sub(KEPT_FOR.days()).unwrap_or(Date::MIN);
        self.seen.retain(|_, (_, last)| *last >= kept);
    }

    /// Takes what the log of calls shows: `name` had this upstream model up to `last`.
    pub fn was(&mut self, name: &str, upstream: &str, last: Date) {
        self.saw(name, upstream, Date::MIN, last);
    }

    fn saw(&mut self, name: &str, upstream: &str, first: Date, last: Date) {
        let span = self.seen.entry((upstream.to_owned(), name.to_owned())).or_insert((first, last));
        *span = (span.0.min(first), span.1.max(last));
    }

    /// Whether anything is known of a name on `day` or later.
    #[must_use]
    pub fn knows(&self, name: &str, day: Date) -> bool {
        self.seen.iter().any(|((_, known), (_, last))| known == name && *last >= day)
    }

    /// The names that cannot be told apart on a day, in groups.
    #[must_use]
    pub fn shared_on(&self, day: Date) -> Vec<BTreeSet<String>> {
        let mut by_upstream: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for ((upstream, name), (first, last)) in &self.seen {
            if *first <= day && day <= *last {
                by_upstream.entry(upstream).or_default().insert(name);
            }
        }
        let mut groups: Vec<BTreeSet<String>> = Vec::new();
        for names in by_upstream.into_values().filter(|names| names.len() > 1) {
            // A name with two upstream models joins the others of both.
            let mut group: BTreeSet<String> = names.into_iter().map(str::to_owned).collect();
            groups.retain(|other| {
                let apart = other.is_disjoint(&group);
                if !apart {
                    group.extend(other.iter().cloned());
                }
                apart
            });
            groups.push(group);
        }
        groups
    }
}
