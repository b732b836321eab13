//! Which models count as gone: absence needs proof, since a file cut at a line end is a valid catalogue.
//!
//! A pure state machine over the reads of the file. What it remembers lives in memory only: after a restart every wait
//! begins anew, which errs on the side of keeping. What the offerings already know comes in with every read, so that a
//! restart over a cut file prunes nothing either.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rust_decimal::Decimal;

use super::{Catalogue, Model};
use crate::clock::after;
use crate::config::MaxShrink;

/// A model counts as gone after this many reads without it, besides the time.
const READS: u32 = 3;

/// Reads closer together than this are one read: many orders may look at the catalogue in the same moment.
const DISTINCT: Duration = Duration::from_secs(1);

/// What the offerings know about models, as Waldur shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remembered {
    /// Models that have components of ours, or are choices of the option `models`; without those that are `gone`.
    pub models: BTreeSet<String>,
    /// Those of them that are choices.
    pub choices: BTreeSet<String>,
    /// Models that are noted as gone: their hold is over.
    pub gone: BTreeSet<String>,
    /// Digests of catalogues that an operator accepted although they lost many models.
    pub accepted: BTreeSet<String>,
    /// The catalogue's monthly budget when the offering was last kept.
    pub max_budget: Option<Decimal>,
}

/// Why a catalogue is held: it lost too many models at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shrink {
    /// What it lost.
    pub missing: BTreeSet<String>,
    /// Of how many.
    pub of: usize,
    /// SHA-256 of the file, which `catalogue accept` lets through.
    pub digest: String,
}

impl fmt::Display for Shrink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<&str> = self.missing.iter().take(20).map(String::as_str).collect();
        let more = self.missing.len().saturating_sub(shown.len());
        write!(f, "the catalogue lost {} of {} models ({}", self.missing.len(), self.of, shown.join(", "))?;
        if more > 0 {
            write!(f, " and {more} more")?;
        }
        f.write_str("); nothing is pruned until the file is whole again or `llm-access-agent catalogue accept` lets it through")
    }
}

/// The catalogue as it is acted upon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The last good read that is not held, with the entries of what it misses too short a time to believe it.
    pub catalogue: Arc<Catalogue>,
    /// Models that were known, are served no more, and are proven to be gone.
    pub gone: BTreeSet<String>,
    /// Models that are served but have been `orderable: false` for longer than the hold: no project may call them, unless
    /// the offering includes them always.
    pub withdrawn: BTreeSet<String>,
    /// Models that are not in the catalogue but do not count as gone yet, and since when they are missed.
    pub missing: BTreeMap<String, Timestamp>,
    /// Models that lost their prices, or whose entry ends the file and lost its `orderable: false`, too short a time ago to
    /// believe it: they keep what they had. A file that was cut inside its last entry looks like that.
    pub doubted: BTreeSet<String>,
    pub(crate) sold: BTreeSet<String>,
    /// Set while too many models are missing at once.
    pub held: Option<Shrink>,
    /// Whether the last read was good.
    pub readable: bool,
}

impl Deref for View {
    type Target = Catalogue;
    fn deref(&self) -> &Catalogue {
        &self.catalogue
    }
}

impl View {
    /// Whether an offering, the gateway's models and the teams that are there may be changed after it. While the file cannot be
    /// believed they stay as they are: another process, or one before, may have told of a later good file than this one read.
    #[must_use]
    pub fn may_be_acted_upon(&self) -> bool {
        self.readable && self.held.is_none()
    }

    /// Whether what is told of this model may be changed: its entry is the file's, and not one of an earlier read, of which there
    /// may have been a later one elsewhere.
    #[must_use]
    pub fn is_settled(&self, model: &str) -> bool {
        !self.missing.contains_key(model) && !self.doubted.contains(model)
    }

    /// The view of a catalogue of which nothing is missing.
    #[must_use]
    pub fn of(catalogue: Catalogue) -> Self {
        Self {
            sold: catalogue.orderable(),
            catalogue: Arc::new(catalogue),
            gone: BTreeSet::new(),
            withdrawn: BTreeSet::new(),
            missing: BTreeMap::new(),
            doubted: BTreeSet::new(),
            held: None,
            readable: true,
        }
    }

    /// What projects may order: what the catalogue offers, and what it lost too short a time ago to believe it.
    #[must_use]
    pub fn orderable(&self) -> &BTreeSet<String> {
        &self.sold
    }

    /// Whether no project of an offering with these `always_include` is to call the model any more.
    #[must_use]
    pub fn is_stale(&self, model: &str, always_include: &[String]) -> bool {
        self.gone.contains(model) || (self.withdrawn.contains(model) && !always_include.iter().any(|name| name == model))
    }
}

/// Follows the reads of the catalogue.
#[derive(Debug)]
pub struct Watch {
    hold: Duration,
    max_shrink: MaxShrink,
    /// The last good read that was not held.
    effective: Option<Arc<Catalogue>>,
    /// The models that are relied upon: seen, or known to an offering, and not gone.
    relied_on: BTreeSet<String>,
    /// Those of them that may be ordered.
    orderable: BTreeSet<String>,
    gone: BTreeSet<String>,
    absent: BTreeMap<String, Wait>,
    withheld: BTreeMap<String, Wait>,
    doubted: BTreeMap<String, Wait>,
    /// Missing models whose loss was accepted, though they do not count as gone yet.
    let_go: BTreeSet<String>,
    /// While the monthly budget is missing that there was: without it teams could spend without bound.
    no_budget: Option<Wait>,
    last_read: Option<Timestamp>,
    view: Option<Arc<View>>,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    since: Timestamp,
    reads: u32,
}

impl Watch {
    /// A watch that has seen nothing.
    #[must_use]
    pub fn new(hold: Duration, max_shrink: MaxShrink) -> Self {
        Self {
            hold,
            max_shrink,
            effective: None,
            relied_on: BTreeSet::new(),
            orderable: BTreeSet::new(),
            gone: BTreeSet::new(),
            absent: BTreeMap::new(),
            withheld: BTreeMap::new(),
            doubted: BTreeMap::new(),
            let_go: BTreeSet::new(),
            no_budget: None,
            last_read: None,
            view: None,
        }
    }

    /// Takes one read of the file into account; `None` for one that failed or was empty, which changes nothing and lets every
    /// wait begin anew. Returns `None` until there was a good read.
    pub fn observe(&mut self, read: Option<&Catalogue>, now: Timestamp, remembered: &Remembered) -> Option<Arc<View>> {
        let Some(read) = read else {
            self.absent.clear();
            self.withheld.clear();
            self.doubted.clear();
            self.no_budget = None;
            let view = self.view.as_deref()?;
            if view.readable {
                self.view = Some(Arc::new(View { readable: false, ..view.clone() }));
            }
            return self.view.clone();
        };
        let served: BTreeSet<String> = read.models.iter().map(|model| model.served_name.clone()).collect();
        self.relied_on.extend(remembered.models.iter().cloned());
        self.relied_on.extend(served.iter().cloned());
        self.gone.extend(remembered.gone.iter().filter(|name| !served.contains(*name)).cloned());
        self.gone.retain(|name| !served.contains(name));
        self.relied_on.retain(|name| !self.gone.contains(name));
        self.let_go.retain(|name| !served.contains(name));

        // Only what nobody took out on purpose can have been lost by accident.
        let missing: BTreeSet<String> = self.relied_on.difference(&served).cloned().collect();
        if remembered.accepted.contains(&read.digest) {
            self.let_go.extend(missing.iter().cloned());
        }
        let lost: BTreeSet<String> =
            missing.iter().filter(|name| !read.disabled.contains(name) && !self.let_go.contains(*name)).cloned().collect();
        let held = self.is_too_much(lost.len()).then(|| Shrink { missing: lost, of: self.relied_on.len(), digest: read.digest.clone() });

        let distinct = self.last_read.is_none_or(|last| now >= after(last, DISTINCT));
        if distinct {
            self.last_read = Some(now);
        }
        wait_for(&mut self.absent, &missing, now, distinct);
        let withheld: BTreeSet<String> =
            read.models.iter().filter(|model| !model.orderable).map(|model| model.served_name.clone()).collect();
        wait_for(&mut self.withheld, &withheld, now, distinct);
        let over = |wait: &Wait| wait.reads >= READS && now >= after(wait.since, self.hold);
        if held.is_none() {
            let gone: Vec<String> = self.absent.iter().filter(|(_, wait)| over(wait)).map(|(name, _)| name.clone()).collect();
            for name in gone {
                self.absent.remove(&name);
                self.relied_on.remove(&name);
                self.let_go.remove(&name);
                self.gone.insert(name);
            }
        }
        let withdrawn =
            withheld.iter().filter(|name| remembered.gone.contains(*name) || self.withheld.get(*name).is_some_and(over)).cloned().collect();

        let poorer: BTreeSet<String> = self.effective.iter().flat_map(|effective| poorer(effective, read)).collect();
        wait_for(&mut self.doubted, &poorer, now, distinct);
        let doubted: BTreeSet<String> = self.doubted.iter().filter(|(_, wait)| !over(wait)).map(|(name, _)| name.clone()).collect();

        self.orderable.extend(remembered.choices.iter().cloned());
        self.orderable.retain(|name| !served.contains(name) && !read.disabled.contains(name) && !self.gone.contains(name));
        self.orderable.extend(read.orderable().into_iter().filter(|name| !doubted.contains(name)));
        let budget =
            self.effective.as_ref().map_or(remembered.max_budget, |effective| effective.max_budget).filter(|_| read.max_budget.is_none());
        self.no_budget = budget.map(|_| match self.no_budget {
            Some(wait) => Wait { reads: wait.reads.saturating_add(u32::from(distinct)), ..wait },
            None => Wait { since: now, reads: 1 },
        });
        let budget = budget.filter(|_| !self.no_budget.as_ref().is_some_and(over));
        let catalogue = match (&held, &self.effective) {
            (None, _) => {
                let catalogue = self.with_missing(self.with_doubted(read, &doubted));
                self.keep(Catalogue { max_budget: catalogue.max_budget.or(budget), ..catalogue })
            }
            (Some(_), Some(effective)) => Arc::clone(effective),
            // After a restart there is nothing but the file that lost so much.
            (Some(_), None) => Arc::new(Catalogue { max_budget: read.max_budget.or(remembered.max_budget), ..read.clone() }),
        };
        let missing: BTreeMap<String, Timestamp> = self.absent.iter().map(|(name, wait)| (name.clone(), wait.since)).collect();
        let mut sold = catalogue.orderable();
        // Those of the missing that may be ordered as before: nobody said that they should go.
        sold.extend(self.orderable.iter().filter(|name| missing.contains_key(*name)).cloned());
        let view = View { sold, catalogue, gone: self.gone.clone(), withdrawn, missing, doubted, held, readable: true };
        if self.view.as_deref() != Some(&view) {
            self.view = Some(Arc::new(view));
        }
        self.view.clone()
    }

    /// What was read, and the entries of models that are missed too short a time to be gone. One that is switched off on
    /// purpose is still served, but not sold any more.
    fn with_missing(&self, read: Catalogue) -> Catalogue {
        let disabled = read.disabled.clone();
        let mut catalogue = read;
        if self.absent.is_empty() {
            return catalogue;
        }
        // Each at its old place, so that nothing that lists models in this order changes.
        let mut at = 0;
        for model in self.effective.iter().flat_map(|effective| &effective.models) {
            if self.absent.contains_key(&model.served_name) {
                let orderable = model.orderable && !disabled.contains(&model.served_name);
                catalogue.models.insert(at, Model { orderable, ..model.clone() });
                at += 1;
            } else if let Some(place) = catalogue.models.iter().position(|there| there.served_name == model.served_name) {
                at = place + 1;
            }
        }
        catalogue
    }

    /// What was read, with the prices and the `orderable` that doubted models had before.
    fn with_doubted(&self, read: &Catalogue, doubted: &BTreeSet<String>) -> Catalogue {
        let mut catalogue = read.clone();
        for model in catalogue.models.iter_mut().filter(|model| doubted.contains(&model.served_name)) {
            if let Some(before) = self.effective.as_ref().and_then(|effective| effective.model(&model.served_name)) {
                model.prices = model.prices.or(before.prices);
                model.orderable &= before.orderable;
            }
        }
        catalogue
    }

    fn keep(&mut self, catalogue: Catalogue) -> Arc<Catalogue> {
        match &self.effective {
            Some(effective) if **effective == catalogue => Arc::clone(effective),
            _ => Arc::clone(self.effective.insert(Arc::new(catalogue))),
        }
    }

    fn is_too_much(&self, lost: usize) -> bool {
        let (lost_n, all) = (Decimal::from(lost), Decimal::from(self.relied_on.len()));
        lost_n > Decimal::from(self.max_shrink.models) || lost_n > all * self.max_shrink.share
    }
}

/// Models whose entry says less than before in a way that would make them free, or sell what was not for sale.
fn poorer(before: &Catalogue, read: &Catalogue) -> Vec<String> {
    let last = read.models.last().map(|model| model.served_name.as_str());
    let is_poorer = |old: &&Model| {
        read.model(&old.served_name).is_some_and(|new| {
            let unpriced = old.prices.is_some() && new.prices.is_none();
            let opened = !old.orderable && new.orderable && last == Some(new.served_name.as_str());
            unpriced || opened
        })
    };
    before.models.iter().filter(is_poorer).map(|model| model.served_name.clone()).collect()
}

/// Begins, goes on with, or ends a wait for each name.
fn wait_for(waits: &mut BTreeMap<String, Wait>, names: &BTreeSet<String>, now: Timestamp, distinct: bool) {
    waits.retain(|name, _| names.contains(name));
    for name in names {
        match waits.get_mut(name) {
            Some(wait) if distinct => wait.reads = wait.reads.saturating_add(1),
            Some(_) => {}
            None => {
                waits.insert(name.clone(), Wait { since: now, reads: 1 });
            }
        }
    }
}
