//! Plants the faults of `tests/sabotage` one at a time into a copy of the tree and runs the suites that have to find them.
//! With names as arguments only those. Ends with 1 where a fault is not found.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "this crate is test code")]

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use llm_access_tests::sabotage::{self, Planted};

/// The longest that one run of cargo may take.
const PATIENCE: Duration = Duration::from_secs(900);

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let planted: Vec<Planted> = sabotage::all().into_iter().filter(|p| wanted.is_empty() || wanted.contains(&p.name)).collect();
    assert!(!planted.is_empty(), "no fault has one of the names {wanted:?}");
    let copy = Copy::new();
    let mut lost = 0;
    for fault in &planted {
        let began = Instant::now();
        let honest = fs::read_to_string(copy.tree.join(&fault.file)).unwrap();
        let broken = match fault.broken(&copy.tree) {
            Ok(broken) => broken,
            Err(why) => {
                println!("NO LONGER FITS  {why}");
                lost += 1;
                continue;
            }
        };
        fs::write(copy.tree.join(&fault.file), broken).unwrap();
        let mut verdict = "found";
        for suite in &fault.suites {
            let arguments = Planted::cargo(suite);
            // What does not compile was found by nobody.
            let built = copy.runs(arguments.split(|argument| argument == "--").next().unwrap_or_default(), &["--no-run"], fault);
            if !built || copy.runs(&arguments, &[], fault) {
                println!("                by {suite}:");
                verdict = if built { "SURVIVES" } else { "DOES NOT COMPILE" };
                break;
            }
        }
        lost += usize::from(verdict != "found");
        println!("{verdict:<16}{} ({}; {} s): {}", fault.name, fault.suites.join(", "), began.elapsed().as_secs(), fault.what);
        std::io::stdout().flush().unwrap();
        fs::write(copy.tree.join(&fault.file), honest).unwrap();
    }
    println!("{} of {} faults found; what the suites said is in {}", planted.len() - lost, planted.len(), copy.logs.display());
    ExitCode::from(u8::from(lost > 0))
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

    /// Whether cargo ends well.
    fn runs(&self, arguments: &[String], more: &[&str], fault: &Planted) -> bool {
        let log = fs::File::options().create(true).append(true).open(self.logs.join(format!("{}.log", fault.name))).unwrap();
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
        // A test that waits for ever for what the fault prevents has found it too.
        let began = Instant::now();
        loop {
            if let Some(status) = running.try_wait().unwrap() {
                return status.success();
            }
            if began.elapsed() > PATIENCE {
                Command::new("/bin/sh").arg("-c").arg(format!("kill -KILL -- -{}", running.id())).status().unwrap();
                running.wait().unwrap();
                return false;
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
