//! The same worlds in every run: see `llm_access_tests::worlds`. `make soak` lives others.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use llm_access_tests::worlds::{Plan, live, report};

/// How many worlds `make test` lives, from seed 1 on; half a minute on two cores.
const WORLDS: u64 = 60;

#[test]
fn worlds_come_to_rest_and_are_as_they_must_be() {
    let next = AtomicU64::new(1);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let plan = Plan::of(next.fetch_add(1, Ordering::Relaxed));
                    if plan.seed > WORLDS {
                        return;
                    }
                    let end = live(&plan);
                    if !end.problems.is_empty() {
                        failed.lock().unwrap().push((plan, end));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    let seeds: Vec<u64> = failed.iter().map(|(plan, _)| plan.seed).collect();
    if let Some((plan, end)) = failed.first() {
        panic!("{} of {WORLDS} worlds failed: {seeds:?}; the first of them, made small:\n{}", failed.len(), report(plan, end, 80));
    }
}

#[test]
fn a_seed_stands_for_one_plan() {
    for seed in 1..200 {
        assert_eq!(Plan::of(seed), Plan::of(seed));
    }
    assert_ne!(Plan::of(1).steps, Plan::of(2).steps);
}
