//! Absence needs proof: what a damaged, cut or changed file may do, and when.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rust_decimal::Decimal;

use super::{Catalogue, Remembered, View, Watch, parse};
use crate::clock::after;
use crate::config::MaxShrink;

const HOUR: Duration = Duration::from_secs(3600);

fn catalogue(lines: &[&str]) -> Catalogue {
    let entries: String = lines
        .iter()
        .map(|line| {
            let (name, more) = line.split_once(' ').map_or((*line, String::new()), |(name, more)| (name, format!(", {more}")));
            format!("  - {{name: {name}, served_name: {name}{more}}}\n")
        })
        .collect();
    parse(&format!("inference_models:\n{entries}"), "catalogue.yml").unwrap()
}

struct Site {
    watch: Watch,
    now: Timestamp,
    remembered: Remembered,
}

impl Site {
    fn new() -> Self {
        let shrink = MaxShrink { share: Decimal::new(25, 2), models: 3 };
        Self { watch: Watch::new(HOUR, shrink), now: "2026-11-10T09:00:00Z".parse().unwrap(), remembered: Remembered::default() }
    }
    fn read(&mut self, catalogue: &Catalogue) -> Arc<View> {
        self.watch.observe(Some(catalogue), self.now, &self.remembered).unwrap()
    }
    fn later(&mut self, by: Duration) {
        self.now = after(self.now, by);
    }
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn an_absent_model_changes_nothing_until_the_hold_and_three_reads_are_over() {
    let whole = catalogue(&["a", "b", "c", "d", "e"]);
    let less = catalogue(&["a", "b", "c", "d"]);
    let mut site = Site::new();
    site.read(&whole);
    let view = site.read(&less);
    assert_eq!((&view.gone, view.held.clone()), (&set(&[]), None));
    assert_eq!(*view.orderable(), whole.orderable());
    assert!(view.model("e").is_some(), "its entry is still acted upon");

    site.later(HOUR);
    assert_eq!(site.read(&less).gone, set(&[]), "two reads are not enough");
    assert_eq!(site.read(&less).gone, set(&[]), "and a read in the same moment is the same read");
    site.later(Duration::from_secs(60));
    let view = site.read(&less);
    assert_eq!(view.gone, set(&["e"]));
    assert_eq!(*view.orderable(), less.orderable());

    let view = site.read(&whole);
    assert_eq!((&view.gone, view.orderable()), (&set(&[]), &whole.orderable()));
}

#[test]
fn what_a_file_that_lost_too_much_says_besides_is_not_acted_upon_before_or_after_a_restart() {
    let priced = |price: &str| format!("a litellm_model_info: {{input_cost_per_token: {price}, output_cost_per_token: {price}}}");
    let (before, after) = (priced("0.000001"), priced("0.000002"));
    let (whole, cut) = (catalogue(&[&before, "b", "c", "d", "e", "f"]), catalogue(&[&after, "b"]));
    let mut site = Site::new();
    assert!(site.read(&whole).may_be_acted_upon());
    let view = site.read(&cut);
    assert!(view.held.is_some() && !view.may_be_acted_upon());
    let prices = |catalogue: &Catalogue| catalogue.model("a").unwrap().prices;
    assert_eq!(prices(&view), prices(&whole));
    assert!(prices(&whole).is_some() && prices(&cut) != prices(&whole));
    let mut restarted = Site::new();
    restarted.remembered.models = set(&["a", "b", "c", "d", "e", "f"]);
    assert!(restarted.read(&cut).held.is_some() && !restarted.read(&cut).may_be_acted_upon());
    assert!(restarted.read(&whole).may_be_acted_upon());
    // Another process may have told of a later good file than the one this process knows.
    assert!(!restarted.read(&cut).may_be_acted_upon());
}

#[test]
fn a_model_that_comes_back_waits_a_whole_hour_again() {
    let whole = catalogue(&["a", "b", "c", "d", "e"]);
    let less = catalogue(&["a", "b", "c", "d"]);
    let mut site = Site::new();
    for read in [&whole, &less, &less, &less, &whole, &less, &less, &less] {
        assert_eq!(site.read(read).gone, set(&[]));
        site.later(Duration::from_secs(1000));
    }
    site.later(HOUR);
    assert_eq!(site.read(&less).gone, set(&["e"]));
}

#[test]
fn an_unreadable_file_leaves_everything_as_it_was_and_restarts_the_waits() {
    let whole = catalogue(&["a", "b", "c", "d", "e"]);
    let less = catalogue(&["a", "b", "c", "d"]);
    let mut site = Site::new();
    assert!(site.watch.observe(None, site.now, &site.remembered).is_none(), "nothing was ever read");
    site.read(&whole);
    for _ in 0..3 {
        site.read(&less);
        site.later(Duration::from_secs(1700));
    }
    let before = site.read(&less);
    assert_eq!(before.gone, set(&["e"]));
    let unreadable = site.watch.observe(None, site.now, &site.remembered).unwrap();
    assert!(!unreadable.readable);
    assert_eq!((&unreadable.gone, &unreadable.catalogue), (&before.gone, &before.catalogue));

    let mut site = Site::new();
    site.read(&whole);
    site.read(&less);
    site.later(HOUR);
    site.watch.observe(None, site.now, &site.remembered);
    for _ in 0..3 {
        assert_eq!(site.read(&less).gone, set(&[]));
        site.later(Duration::from_secs(60));
    }
}

#[test]
fn a_file_cut_at_a_line_end_is_held_for_ever_and_let_through_by_its_digest_alone() {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
    let (whole, cut) = (catalogue(&names), catalogue(&names[..1]));
    let mut site = Site::new();
    site.read(&whole);
    for _ in 0..50 {
        let view = site.read(&cut);
        let held = view.held.clone().unwrap();
        assert_eq!((held.missing.len(), held.of), (11, 12));
        assert_eq!((&view.gone, view.orderable(), view.models.len()), (&set(&[]), &whole.orderable(), 12));
        site.later(HOUR);
    }
    site.remembered.accepted = set(&["another digest"]);
    assert!(site.read(&cut).held.is_some());
    site.remembered.accepted = set(&[&cut.digest]);
    let view = site.read(&cut);
    assert_eq!(view.held, None);
    assert_eq!(view.gone.len(), 11, "the hour was over long ago");

    // What was let through stays through, whatever is edited afterwards.
    let edited = catalogue(&["a", "m"]);
    let view = site.read(&edited);
    assert_eq!((view.held.clone(), view.gone.len()), (None, 11));
}

#[test]
fn accepting_within_the_hour_does_not_shorten_it_and_survives_an_edit() {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let mut site = Site::new();
    site.read(&catalogue(&names));
    let cut = catalogue(&names[..4]);
    assert!(site.read(&cut).held.is_some());
    site.remembered.accepted = set(&[&cut.digest]);
    assert_eq!(site.read(&cut).gone, set(&[]));
    let edited = catalogue(&["a", "b", "c", "d", "x"]);
    site.remembered.accepted = set(&[]);
    for _ in 0..3 {
        let view = site.read(&edited);
        assert_eq!((view.held.clone(), &view.gone), (None, &set(&[])));
        site.later(Duration::from_secs(1100));
    }
    site.later(Duration::from_secs(1100));
    assert_eq!(site.read(&edited).gone, set(&["e", "f", "g", "h"]));
}

#[test]
fn small_losses_add_up_until_each_is_proven() {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let mut site = Site::new();
    site.read(&catalogue(&names));
    for lost in 1..=2 {
        assert_eq!(site.read(&catalogue(&names[..8 - lost])).held, None, "{lost} of 8");
        site.later(Duration::from_secs(60));
    }
    assert!(site.read(&catalogue(&names[..5])).held.is_some(), "3 of 8 are more than a quarter");
}

#[test]
fn a_restart_over_a_cut_file_prunes_nothing_of_what_the_offering_knows() {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let mut site = Site::new();
    let cut = catalogue(&names[..2]);
    let view = site.read(&cut);
    assert_eq!((view.held.clone(), &view.gone), (None, &set(&[])), "nothing is known yet, and so nothing is gone");
    site.remembered =
        Remembered { models: set(&names), choices: set(&names[..7]), max_budget: Some(Decimal::TEN), ..Remembered::default() };
    for _ in 0..5 {
        site.later(HOUR);
        let view = site.read(&cut);
        assert_eq!((view.held.clone().map(|held| held.missing.len()), &view.gone), (Some(6), &set(&[])));
        assert_eq!(*view.orderable(), set(&names[..7]));
    }
    // A fresh process that reads offering and file at once also keeps the budget that the cut may have taken.
    let remembered = site.remembered.clone();
    let mut site = Site { remembered, ..Site::new() };
    assert_eq!(site.read(&cut).max_budget, Some(Decimal::TEN));
}

#[test]
fn what_was_noted_as_gone_stays_gone_over_a_restart_and_is_no_loss() {
    let mut site = Site::new();
    site.remembered = Remembered { models: set(&["a", "b"]), gone: set(&["x", "y", "z", "v", "w"]), ..Remembered::default() };
    let view = site.read(&catalogue(&["a", "b"]));
    assert_eq!((view.held.clone(), view.gone.len()), (None, 5));
    let view = site.read(&catalogue(&["a", "b", "x"]));
    assert!(!view.gone.contains("x") && view.orderable().contains("x"));
}

#[test]
fn what_is_switched_off_on_purpose_is_no_longer_sold_at_once_and_gone_after_the_hold() {
    let mut site = Site::new();
    site.read(&catalogue(&["a", "b", "c"]));
    let off = catalogue(&["a", "b enabled: false", "c orderable: false"]);
    let view = site.read(&off);
    assert_eq!(view.held, None, "two of three, but on purpose");
    assert_eq!(*view.orderable(), set(&["a"]));
    assert!(!view.is_stale("b", &[]) && !view.is_stale("c", &[]));
    for _ in 0..3 {
        site.later(Duration::from_secs(1300));
        site.read(&off);
    }
    let view = site.read(&off);
    assert!(view.is_stale("b", &[]) && view.is_stale("c", &[]));
    assert!(!view.is_stale("c", &["c".to_owned()]), "an offering that always includes it keeps it");
    assert!(view.model("c").is_some() && view.model("b").is_none());
}

#[test]
fn a_budget_that_left_the_file_holds_as_long_as_a_model_would() {
    let with = Catalogue { max_budget: Some(Decimal::TEN), ..catalogue(&["a", "b"]) };
    let without = Catalogue { digest: "cut".into(), ..catalogue(&["a", "b"]) };
    // After a restart the offering remembers it.
    for restarted in [false, true] {
        let mut site = Site::new();
        if restarted {
            site.remembered.max_budget = Some(Decimal::TEN);
        } else {
            site.read(&with);
        }
        for _ in 0..3 {
            assert_eq!(site.read(&without).max_budget, Some(Decimal::TEN), "a file cut before the budget lifts nobody's");
            site.later(HOUR / 4);
        }
        site.watch.observe(None, site.now, &site.remembered);
        assert_eq!(site.read(&without).max_budget, Some(Decimal::TEN));
        site.later(HOUR);
        assert_eq!(site.read(&without).max_budget, Some(Decimal::TEN), "a failed read lets the wait begin anew");
        site.later(HOUR);
        assert_eq!(site.read(&without).max_budget, None);
        assert_eq!(site.read(&without).max_budget, None, "and it stays away, whatever the offering still remembers");
        assert_eq!(site.read(&with).max_budget, Some(Decimal::TEN));
        let twenty = Catalogue { max_budget: Some(Decimal::from(20)), ..with.clone() };
        assert_eq!(site.read(&twenty).max_budget, Some(Decimal::from(20)), "another budget counts at once");
    }
}

#[test]
fn a_file_cut_inside_its_last_entry_makes_nothing_free_and_sells_nothing() {
    const PRICED: &str = "litellm_model_info: {input_cost_per_token: 2.1e-07, output_cost_per_token: 8.5e-07}";
    let whole = catalogue(&["a", &format!("b {PRICED}"), &format!("c orderable: false, {PRICED}")]);
    let cut = catalogue(&["a", "b", "c"]);
    let mut site = Site::new();
    site.read(&whole);
    for _ in 0..4 {
        let view = site.read(&cut);
        assert_eq!(view.doubted, set(&["b", "c"]));
        assert_eq!(view.model("b").unwrap().prices, whole.model("b").unwrap().prices);
        assert_eq!(*view.orderable(), set(&["a", "b"]));
        site.later(Duration::from_secs(1000));
    }
    let view = site.read(&cut);
    assert_eq!((&view.doubted, view.model("b").unwrap().prices), (&set(&[]), None), "after the hold it is meant");
    assert_eq!(*view.orderable(), set(&["a", "b", "c"]));

    // What is said outright counts at once: a new price, and an entry in the middle that is put on sale.
    let mut site = Site::new();
    site.read(&catalogue(&["a orderable: false", &format!("b {PRICED}")]));
    let view = site.read(&catalogue(&["a", "b litellm_model_info: {input_cost_per_token: 1.0e-07, output_cost_per_token: 1.0e-07}"]));
    assert!(view.doubted.is_empty());
    assert_eq!(*view.orderable(), set(&["a", "b"]));
    assert_eq!(view.model("b").unwrap().prices.unwrap().input, "0.0000001".parse().unwrap());
}
