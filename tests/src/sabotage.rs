//! Faults that are planted into the agent one at a time, to see that the suites find them: `tests/sabotage/*.fault`.
//!
//! A file begins with a line that says what is broken. Then come `file:`, the file it is broken in, and `suite:`, once for each
//! suite that has to fail: a program of `tests/tests` (with a part of a test's name behind it where that is enough), or
//! `PACKAGE:` and a part of a name for the tests of another package. The text between `--- old` and `--- new` is replaced by
//! what follows; it must be there exactly once.

use std::fs;
use std::path::{Path, PathBuf};

/// One fault.
#[derive(Clone, Debug)]
pub struct Planted {
    /// The name of its file.
    pub name: String,
    /// What is broken.
    pub what: String,
    /// Where, from the top of the tree.
    pub file: PathBuf,
    /// The suites that have to fail.
    pub suites: Vec<String>,
    old: String,
    new: String,
}

impl Planted {
    fn parse(name: &str, text: &str) -> Option<Self> {
        let (head, change) = text.split_once("--- old\n")?;
        let (old, new) = change.split_once("--- new\n")?;
        let values = |key: &str| -> Vec<String> {
            head.lines().filter_map(|line| line.strip_prefix(key)).map(|value| value.trim().to_owned()).collect()
        };
        Some(Self {
            name: name.to_owned(),
            what: head.lines().next()?.to_owned(),
            file: values("file:").first()?.into(),
            suites: values("suite:"),
            old: old.strip_suffix('\n')?.to_owned(),
            new: new.trim_end_matches('\n').to_owned(),
        })
    }

    /// The file with the fault in it.
    ///
    /// # Errors
    /// The text to be replaced is not there exactly once.
    pub fn broken(&self, tree: &Path) -> Result<String, String> {
        let text = fs::read_to_string(tree.join(&self.file)).map_err(|error| format!("{}: {}: {error}", self.name, self.file.display()))?;
        match text.matches(&self.old).count() {
            1 => Ok(text.replacen(&self.old, &self.new, 1)),
            n => Err(format!(
                "{}: its text is {n} times in {}; write the fault anew for what stands there now",
                self.name,
                self.file.display()
            )),
        }
    }

    /// The arguments of cargo that run one of its suites.
    #[must_use]
    pub fn cargo(suite: &str) -> Vec<String> {
        let (tests, filter) = suite.split_once(' ').unwrap_or((suite, ""));
        let mut arguments: Vec<&str> = vec!["test", "-q"];
        match tests.split_once(':') {
            Some((package, part)) => {
                arguments.extend(["-p", if package == "agent" { "llm-access-agent" } else { package }, "--"]);
                arguments.extend([part].iter().filter(|part| !part.is_empty()));
            }
            None => arguments.extend(["-p", "llm-access-tests", "--test", tests, "--"]),
        }
        arguments.extend([filter].iter().filter(|filter| !filter.is_empty()));
        arguments.into_iter().map(str::to_owned).collect()
    }
}

/// The top of the source tree.
#[must_use]
pub fn tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All faults, by name.
#[must_use]
pub fn all() -> Vec<Planted> {
    let mut files: Vec<PathBuf> = fs::read_dir(tree().join("tests/sabotage")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "fault"));
    files.sort();
    files
        .iter()
        .map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy();
            Planted::parse(&name, &fs::read_to_string(path).unwrap())
                .unwrap_or_else(|| panic!("{} is not written as a fault", path.display()))
        })
        .collect()
}

/// The name of the first test that failed, from what a run of cargo said.
#[must_use]
pub fn first_failure(said: &str) -> Option<String> {
    let told = said.lines().find_map(|line| line.strip_prefix("---- ")?.strip_suffix(" stdout ----"));
    // A test that said nothing stands only in the list at the end.
    let listed = || said.split("\nfailures:\n").filter_map(|list| list.lines().next()?.strip_prefix("    ")).next();
    told.or_else(listed).map(str::to_owned)
}

/// The name of the last test of which it was said that it takes long.
#[must_use]
pub fn slow_test(said: &str) -> Option<String> {
    let mut slow = said.lines().filter_map(|line| line.strip_prefix("test ")?.split_once(" has been running for over "));
    slow.next_back().map(|(name, _)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failed_test_is_named() {
        let said = "running 3 tests\n.F.\nfailures:\n\n---- a::b stdout ----\nlast words\n---- agent-0, process 7\n\n\nfailures:\n    a::b\n    c\n\ntest result: FAILED.\n";
        assert_eq!(first_failure(said).as_deref(), Some("a::b"));
        assert_eq!(first_failure("F\nfailures:\n\nfailures:\n    silent\n    z\n\n").as_deref(), Some("silent"));
        assert_eq!(first_failure("error: could not compile\n"), None);
        assert_eq!(first_failure("test result: ok. 3 passed\n"), None);
    }

    #[test]
    fn a_test_that_takes_long_is_named() {
        let said = "running 2 tests\ntest first has been running for over 60 seconds\n.test last has been\ntest second has been running for over 60 seconds\n";
        assert_eq!(slow_test(said).as_deref(), Some("second"));
        assert_eq!(slow_test("..\n"), None);
    }
}
