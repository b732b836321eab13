//! The documents name what the code has.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use llm_access_agent::rights::{MODEL_ROUTES, ROUTES, Route};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn sources(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(fs::read_to_string(path).unwrap());
        }
    }
}

/// The text of a string literal at the start of `text`.
fn literal(text: &str) -> Option<&str> {
    text.strip_prefix('"')?.split('"').next()
}

/// Everything after each place where `pattern` stands in `file`, with what is before.
fn places<'a>(file: &'a str, pattern: &str) -> Vec<(&'a str, &'a str)> {
    file.match_indices(pattern).map(|(at, found)| file.split_at(at + found.len())).collect()
}

/// The names of all conditions: given to `raise` as a literal or as a constant, or returned by a function that `raise` is
/// given: `condition`, `failing`, `refused`, `unreachable`.
fn conditions() -> BTreeSet<String> {
    let mut files = Vec::new();
    sources(&root().join("agent/src"), &mut files);
    let mut names = BTreeSet::new();
    for file in &files {
        for (before, rest) in places(file, "raise(") {
            let argument = rest.trim_start();
            if let Some(name) = literal(argument) {
                names.insert(name.to_owned());
                continue;
            }
            let name: String = argument.chars().take_while(|c| c.is_ascii_uppercase() || *c == '_').collect();
            if name.len() < 3 || !argument[name.len()..].starts_with(',') {
                continue;
            }
            // The nearest declaration before; else the one of the file, or of another.
            let declared = format!("const {name}: &str = ");
            let near = before.rsplit_once(&declared).or_else(|| file.split_once(&declared));
            let any = near.or_else(|| files.iter().find_map(|file| file.split_once(&declared)));
            names.insert(literal(any.unwrap_or_else(|| panic!("where is {name}?")).1).unwrap().to_owned());
        }
        for function in ["condition", "failing", "refused", "unreachable"] {
            for (_, rest) in places(file, &format!("fn {function}(self) -> &'static str {{"))
                .into_iter()
                .chain(places(file, &format!("fn {function}(&self) -> &'static str {{")))
            {
                let body = rest.split("\n    }\n").next().unwrap();
                names.extend(body.split("=> ").skip(1).filter_map(literal).map(ToOwned::to_owned));
            }
        }
    }
    names
}

#[test]
fn every_condition_has_its_row_with_a_cure() {
    let text = fs::read_to_string(root().join("docs/operations.md")).unwrap();
    let table = text.split_once("\n## Conditions\n").unwrap().1.split("\n## ").next().unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let mut documented = BTreeSet::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        assert!(cells.len() == 3 && cells.iter().all(|cell| !cell.is_empty()), "{row}");
        documented.extend(cells[0].split('`').filter(|name| !name.trim_matches([' ', ',']).is_empty()).map(ToOwned::to_owned));
    }
    assert!(documented.len() > 15, "{documented:?}");
    let used = conditions();
    let missing: Vec<_> = used.difference(&documented).collect();
    let unknown: Vec<_> = documented.difference(&used).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "without a row: {missing:?}; no condition of the agent: {unknown:?}");
}

#[test]
fn the_routes_of_a_narrow_key_are_those_of_the_code() {
    let text = fs::read_to_string(root().join("docs/security.md")).unwrap();
    let section = text.split_once("### A key of the agent's own").unwrap().1;
    let list = |after: &str| -> Vec<String> {
        let start = section.split_once(after).unwrap().1;
        let list = format!("[{}]", start.split(']').next().unwrap());
        serde_json::from_str(&list).unwrap()
    };
    let paths = |routes: &[Route]| routes.iter().map(|route| route.path.to_owned()).collect::<Vec<_>>();
    assert_eq!(list("\"allowed_routes\": ["), paths(&ROUTES));
    assert_eq!(list("```json\n["), paths(&MODEL_ROUTES));
}

#[test]
fn every_link_between_the_documents_leads_somewhere() {
    let mut pages = vec![root().join("README.md")];
    pages.extend(fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path()));
    let mut seen = 0;
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        for link in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
            .filter(|link| !link.contains("://") && !link.starts_with('#'))
        {
            seen += 1;
            let file = link.split('#').next().unwrap();
            assert!(page.parent().unwrap().join(file).exists(), "{}: {link}", page.display());
        }
    }
    assert!(seen > 3);
}

#[test]
fn every_test_that_the_invariants_name_is_there() {
    let text = fs::read_to_string(root().join("docs/invariants.md")).unwrap();
    let mut named = 0;
    for name in text.split('`').skip(1).step_by(2) {
        let Some((file, test)) = name.split_once("::") else { continue };
        named += 1;
        let source =
            fs::read_to_string(root().join("tests/tests").join(format!("{file}.rs"))).unwrap_or_else(|_| panic!("{name}: no such file"));
        let start = format!("fn {}", test.trim_end_matches(['…', '*']));
        assert!(source.contains(&start), "{name}");
    }
    assert!(named > 10);
}
