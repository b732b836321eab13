//! Plants the faults of `tests/sabotage` one at a time into a copy of the tree and runs the suites that have to find them.
//! With names as arguments only those. Each suite has to pass before, without any fault: one that fails anyhow finds nothing.
//! Ends with 1 where a fault is not found.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "this crate is test code")]

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use llm_access_tests::sabotage::{self, Planted, first_failure, slow_test};

/// The longest that one run of cargo may take.
const PATIENCE: Duration = Duration::from_secs(900);

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let planted: Vec<Planted> = sabotage::all().into_iter().filter(|p| wanted.is_empty() || wanted.contains(&p.name)).collect();
    assert!(!planted.is_empty(), "no fault has one of the names {wanted:?}");
    let copy = Copy::new();
    let suites: BTreeSet<&str> = planted.iter().flat_map(|fault| &fault.suites).map(String::as_str).collect();
    let red: BTreeSet<&str> = suites.into_iter().filter(|suite| is_red(&copy, suite)).collect();
    let mut lost = 0;
    for fault in &planted {
        let began = Instant::now();
        if fault.suites.iter().any(|suite| red.contains(suite.as_str())) {
            println!("{:<20}{}: {}", "ALREADY RED", fault.name, fault.what);
            lost += 1;
            continue;
        }
        let honest = fs::read_to_string(copy.tree.join(&fault.file)).unwrap();
        let broken = match fault.broken(&copy.tree) {
            Ok(broken) => broken,
            Err(why) => {
                println!("{:<20}{why}", "NO LONGER FITS");
                lost += 1;
                continue;
            }
        };
        fs::write(copy.tree.join(&fault.file), broken).unwrap();
        let mut verdict = "found";
        let mut by = Vec::new();
        for suite in &fault.suites {
            let ended = copy.run_suite(suite, &fault.name);
            by.push(format!("{suite}: {ended}"));
            match ended {
                Ended::Failed(_) => {}
                Ended::Never(_) => verdict = "found (never ended)",
                // What does not compile was found by nobody.
                Ended::Unbuilt => verdict = "DOES NOT COMPILE",
                Ended::Passed => verdict = "SURVIVES",
            }
            if !verdict.starts_with("found") {
                break;
            }
        }
        lost += usize::from(!verdict.starts_with("found"));
        println!("{verdict:<20}{} ({}; {} s): {}", fault.name, by.join("; "), began.elapsed().as_secs(), fault.what);
        std::io::stdout().flush().unwrap();
        fs::write(copy.tree.join(&fault.file), honest).unwrap();
    }
    println!("{} of {} faults found; what the suites said is in {}", planted.len() - lost, planted.len(), copy.logs.display());
    ExitCode::from(u8::from(lost > 0))
}

/// Whether a suite fails without any fault.
fn is_red(copy: &Copy, suite: &str) -> bool {
    let ended = copy.run_suite(suite, "honest");
    let red = !matches!(ended, Ended::Passed);
    if red {
        println!("{:<20}{suite}: {ended}", "ALREADY RED");
        std::io::stdout().flush().unwrap();
    }
    red
}

/// How a run of cargo ended.
enum Ended {
    Passed,
    /// With the name of the first test that failed, where one did.
    Failed(Option<String>),
    /// It was ended by us, with the name of a test that takes long.
    Never(Option<String>),
    Unbuilt,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("it passes"),
            Self::Failed(Some(test)) => f.write_str(test),
            Self::Failed(None) => f.write_str("it fails without a test's name"),
            Self::Never(Some(test)) => write!(f, "never ended, maybe because of {test}"),
            Self::Never(None) => f.write_str("never ended"),
            Self::Unbuilt => f.write_str("it does not compile"),
        }
    }
}

/// A copy of what git has of the tree, with its own target folder, both kept for the next run.
struct Copy {
    tree: PathBuf,
    logs: PathBuf,
    target: PathBuf,
}

impl Copy {
    fn new() -> Self {
        let folder = std::env::var_os("SABOTAGE_DIR").map_or_else(|| std::env::temp_dir().join("llm-access-sabotage"), PathBuf::from);
        let (tree, logs) = (folder.join("tree"), folder.join("logs"));
        let target = std::env::var_os("SABOTAGE_TARGET_DIR").map_or_else(|| folder.join("target"), PathBuf::from);
        fs::create_dir_all(&logs).unwrap();
        let from = sabotage::tree();
        let listed = Command::new("git").args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(&from).output();
        let listed = String::from_utf8(listed.expect("git lists the files").stdout).unwrap();
        let known: BTreeSet<PathBuf> = listed.split('\0').map(|name| tree.join(name)).collect();
        remove_unknown(&tree, &known);
        for name in listed.split('\0').filter(|name| !name.is_empty()) {
            copy(&from.join(name), &tree.join(name));
        }
        Self { tree, logs, target }
    }

    /// Builds a suite and runs it. `log` names the file to which is added what is said.
    fn run_suite(&self, suite: &str, log: &str) -> Ended {
        let arguments = Planted::cargo(suite);
        let built = self.run(arguments.split(|argument| argument == "--").next().unwrap_or_default(), &["--no-run"], log);
        if matches!(built, Ended::Passed) { self.run(&arguments, &[], log) } else { Ended::Unbuilt }
    }

    fn run(&self, arguments: &[String], more: &[&str], log: &str) -> Ended {
        let path = self.logs.join(format!("{log}.log"));
        let log = fs::File::options().create(true).append(true).open(&path).unwrap();
        let before = usize::try_from(log.metadata().unwrap().len()).unwrap();
        let said = || String::from_utf8_lossy(&fs::read(&path).unwrap().split_off(before)).into_owned();
        let mut running = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(arguments)
            .args(more)
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .process_group(0)
            .spawn()
            .unwrap();
        let began = Instant::now();
        loop {
            if let Some(status) = running.try_wait().unwrap() {
                return if status.success() { Ended::Passed } else { Ended::Failed(first_failure(&said())) };
            }
            // A test that waits for ever for what the fault prevents has found it too, and is told apart.
            if began.elapsed() > PATIENCE {
                Command::new("/bin/sh").arg("-c").arg(format!("kill -KILL -- -{}", running.id())).status().unwrap();
                running.wait().unwrap();
                return Ended::Never(slow_test(&said()));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// What an earlier copy had and the tree has no more would be built along.
fn remove_unknown(folder: &Path, known: &BTreeSet<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            remove_unknown(&path, known);
        } else if !known.contains(&path) {
            fs::remove_file(path).unwrap();
        }
    }
}

/// Copies a file that is new or different, so that cargo builds no more than it has to.
fn copy(from: &Path, to: &Path) {
    let Ok(content) = fs::read(from) else { return };
    if fs::read(to).is_ok_and(|there| there == content) {
        return;
    }
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::copy(from, to).unwrap();
}
