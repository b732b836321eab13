//! Runs a story once to learn its calls, and then once per call and fault: every call may fail in every way, or be the last
//! thing the process does. A killed process is a runtime that is dropped, with all its tasks and sockets, and a fresh agent
//! that knows nothing.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use llm_access_agent::agent::Agent;
use llm_access_fixtures::faults::Fault;
use tokio::runtime::{Builder, Runtime};

use crate::World;

/// What goes wrong with a call.
#[must_use]
pub fn faults() -> Vec<(&'static str, Fault)> {
    let status = |status: u16, headers: &[(&str, &str)], body: &str, after_effect: bool| Fault::Status {
        status,
        headers: headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
        body: body.to_owned(),
        after_effect,
    };
    vec![
        ("refused", Fault::Refuse),
        ("lost answer", Fault::LoseAnswer),
        ("500 after the effect", status(500, &[("content-type", "application/json")], r#"{"detail":"Internal error"}"#, true)),
        ("502 with HTML", status(502, &[("content-type", "text/html")], "<html><body>Bad Gateway</body></html>", false)),
        (
            "429 with Retry-After",
            status(429, &[("retry-after", "7"), ("content-type", "application/json")], r#"{"detail":"slow down"}"#, false),
        ),
        ("401", status(401, &[("content-type", "application/json")], r#"{"detail":"Invalid token."}"#, false)),
        ("truncated", Fault::Truncate),
        ("hang before", Fault::Hang { after_effect: false }),
        ("hang after", Fault::Hang { after_effect: true }),
        ("killed before", Fault::Kill { after_effect: false }),
        ("killed after", Fault::Kill { after_effect: true }),
    ]
}

/// A process of its own, as far as tasks and sockets go.
#[must_use]
pub fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// A story that is told in turns.
pub trait Story: Sync {
    /// What there is before the first turn.
    fn prepare(&self) -> impl Future<Output = World>;
    /// What happens now; its calls are the ones that fail.
    fn begin(&self, world: &World);
    /// One turn of the agent.
    fn turn(&self, world: &World, agent: &Agent) -> impl Future<Output = ()>;
    /// Whether the agent knows of nothing that is left to do.
    fn is_at_rest(&self, agent: &Agent) -> bool;
    /// What the world looks like, without times and chance.
    fn picture(&self, world: &World) -> Vec<String>;
}

/// Turns until nothing more is written.
const MOST_TURNS: usize = 12;

fn tell<S: Story>(story: &S, fault: Option<(usize, &Fault)>) -> Result<(usize, Vec<String>), String> {
    let simulators = runtime();
    let mut process = runtime();
    let world = simulators.block_on(story.prepare());
    world.faults.reset_calls();
    if let Some((k, fault)) = fault {
        world.faults.at_call(k, fault.clone());
    }
    story.begin(&world);
    let mut agent = process.block_on(world.agent());
    let mut calls = 0;
    let mut outcome = Err("it does not come to rest".to_owned());
    for turn in 0..MOST_TURNS {
        let before = world.writes(None).len();
        let killed = process.block_on(async {
            tokio::select! {
                () = story.turn(&world, &agent) => false,
                () = world.faults.killed() => true,
            }
        });
        if turn == 0 {
            calls = world.faults.count();
        }
        if killed {
            let old = std::mem::replace(&mut process, runtime());
            drop(agent);
            old.shutdown_background();
            agent = process.block_on(world.agent());
        } else if turn > 0 && world.writes(None).len() == before && story.is_at_rest(&agent) {
            outcome = Ok((calls, story.picture(&world)));
            break;
        }
        world.advance(Duration::from_secs(60));
    }
    let outcome = outcome.map_err(|problem| {
        format!("{problem}: {:?}; last writes {:?}", agent.conditions.all(), world.writes(None).iter().rev().take(4).collect::<Vec<_>>())
    });
    process.shutdown_background();
    simulators.shutdown_background();
    outcome
}

/// Tells the story with every fault at every call; each time it must end as it does without one.
pub fn everywhere<S: Story>(name: &str, story: &S) {
    let (calls, expected) = tell(story, None).unwrap_or_else(|problem| panic!("{name} without faults: {problem}"));
    assert!(calls > 3, "{name} makes {calls} calls");
    let runs: Vec<(usize, &'static str, Fault)> =
        (1..=calls).flat_map(|k| faults().into_iter().map(move |(name, fault)| (k, name, fault))).collect();
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                while let Some((k, fault_name, fault)) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let problem = match tell(story, Some((*k, fault))) {
                        Ok((_, picture)) if picture == expected => continue,
                        Ok((_, picture)) => {
                            let lost: Vec<_> = expected.iter().filter(|line| !picture.contains(line)).collect();
                            let new: Vec<_> = picture.iter().filter(|line| !expected.contains(line)).collect();
                            format!("missing {lost:?}, instead {new:?}")
                        }
                        Err(problem) => problem,
                    };
                    failures.lock().unwrap().push(format!("{fault_name} at call {k}: {problem}"));
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{name}: {} of {} runs failed:\n{}", failures.len(), runs.len(), failures.join("\n"));
}
