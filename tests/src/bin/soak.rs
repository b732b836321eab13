//! Lives worlds through from fresh seeds until the time is over or one of them is not as it must be: `make soak MINUTES=n`.
//! `SEED=n make soak` lives one again, and tells everything that happened in it.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use llm_access_tests::worlds::{Plan, live, report};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().filter(|text| !text.is_empty()).and_then(|text| text.parse().ok())
}

fn main() -> ExitCode {
    if let Some(seed) = number("SEED") {
        return again(seed);
    }
    let minutes = number("MINUTES").unwrap_or(10);
    let threads = number("THREADS").unwrap_or(4);
    #[expect(clippy::disallowed_methods, reason = "each soak begins somewhere else")]
    let first = number("FIRST").unwrap_or_else(|| u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or_default() * 1000);
    let keep_going = number("KEEP_GOING").is_some();
    println!("worlds from seed {first} on, for {minutes} minutes");
    let (began, time) = (Instant::now(), Duration::from_secs(minutes * 60));
    let (next, lived, calls, most) = (AtomicU64::new(first), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let (stop, failed) = (AtomicBool::new(false), Mutex::new(0));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) && began.elapsed() < time {
                    let plan = Plan::of(next.fetch_add(1, Ordering::Relaxed));
                    let end = live(&plan);
                    lived.fetch_add(1, Ordering::Relaxed);
                    calls.fetch_add(end.calls as u64, Ordering::Relaxed);
                    most.fetch_max(end.passes as u64, Ordering::Relaxed);
                    if !end.problems.is_empty() {
                        let mut failed = failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                        *failed += 1;
                        if keep_going {
                            println!("seed {}: {}", plan.seed, end.problems.join("; ").chars().take(600).collect::<String>());
                        } else if !stop.swap(true, Ordering::Relaxed) {
                            println!("{}", report(&plan, &end, 80));
                        }
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    println!(
        "{} worlds lived, {} calls, at most {} passes to rest, {failed} failed, in {:?}",
        lived.into_inner(),
        calls.into_inner(),
        most.into_inner(),
        began.elapsed()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn again(seed: u64) -> ExitCode {
    let plan = Plan::of(seed);
    println!("{plan}");
    let end = live(&plan);
    println!("{}", end.story);
    if end.problems.is_empty() {
        println!("seed {seed}: at rest after {} passes, {} calls", end.passes, end.calls);
        return ExitCode::SUCCESS;
    }
    println!("{}", if number("SHRINK") == Some(0) { end.problems.join("\n") } else { report(&plan, &end, 200) });
    ExitCode::FAILURE
}
