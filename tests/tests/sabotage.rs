//! Every planted fault still fits into the tree. Whether the suites find them is asked by `make sabotage`, which takes long.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;

use llm_access_tests::sabotage;

#[test]
fn every_planted_fault_fits() {
    let planted = sabotage::all();
    assert!(planted.len() >= 15, "{}", planted.len());
    let tree = sabotage::tree();
    let mut problems = Vec::new();
    for fault in &planted {
        if let Err(why) = fault.broken(&tree) {
            problems.push(why);
        }
        if fault.suites.is_empty() {
            problems.push(format!("{}: no suite is named that finds it", fault.name));
        }
        for suite in fault.suites.iter().filter(|suite| !suite.contains(':')) {
            let program = suite.split(' ').next().unwrap_or_default();
            if !tree.join(format!("tests/tests/{program}.rs")).exists() {
                problems.push(format!("{}: there is no suite {program}", fault.name));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    let what: BTreeSet<&str> = planted.iter().map(|fault| fault.what.as_str()).collect();
    assert_eq!(what.len(), planted.len(), "each breaks something else");
}
