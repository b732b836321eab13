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
