//! Runs a story once to learn its calls, and then once per call and fault: every call may fail in every way, or be the last
//! thing the process does. A killed process is a runtime that is dropped, with all its tasks and sockets, and a fresh agent
//! that knows nothing.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use llm_access_agent::agent::Agent;
use llm_access_fixtures::faults::Fault;
use tokio::runtime::{Builder, Runtime};

use crate::{World, checker};

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

/// A turn that may be the last thing the process does; whether it was. Then there is another process, and nothing of the old
/// one goes on.
pub fn survives(process: &mut Runtime, world: &World, turn: impl Future<Output = ()>) -> bool {
    let killed = process.block_on(async {
        tokio::select! {
            () = turn => false,
            () = world.faults.killed() => true,
        }
    });
    if killed {
        std::mem::replace(process, runtime()).shutdown_background();
    }
    !killed
}

/// Every fault at each of these calls.
#[must_use]
pub fn at_each(calls: impl IntoIterator<Item = usize>, faults: &[(&'static str, Fault)]) -> Vec<(usize, &'static str, Fault)> {
    calls.into_iter().flat_map(|k| faults.iter().map(move |(name, fault)| (k, *name, fault.clone()))).collect()
}

/// The call that met a fault.
#[must_use]
pub fn stricken(world: &World) -> String {
    let call = world.faults.calls().into_iter().find(|call| call.fault);
    call.map(|call| format!("{} {}", call.method, call.path)).unwrap_or_default()
}

/// Tries every case, so many side by side, and names all that failed.
pub fn try_all<T: Sync>(name: &str, side_by_side: usize, cases: &[T], attempt: impl Fn(&T) -> Result<(), String> + Sync) {
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..side_by_side {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(problem) = attempt(case) {
                        failures.lock().unwrap().push(problem);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{name}: {} of {} runs failed:\n{}", failures.len(), cases.len(), failures.join("\n"));
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

/// Whether the peers answered: an agent that could not read them writes nothing, and there may be something left to do.
fn has_read(agent: &Agent) -> bool {
    !agent.conditions.all().iter().any(|(name, ..)| name.ends_with("-unread") || name.ends_with("-unreachable"))
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
        let survived = survives(&mut process, &world, story.turn(&world, &agent));
        if turn == 0 {
            calls = world.faults.count();
        }
        if !survived {
            drop(agent);
            agent = process.block_on(world.agent());
        } else if turn > 0 && world.writes(None).len() == before && has_read(&agent) && story.is_at_rest(&agent) {
            outcome = Ok((calls, story.picture(&world)));
            break;
        }
        world.advance(Duration::from_secs(60));
    }
    let outcome = outcome.map_err(|problem| {
        format!("{problem}: {:?}; last writes {:?}", agent.conditions.all(), world.writes(None).iter().rev().take(4).collect::<Vec<_>>())
    });
    let left = checker::in_the_end(&world);
    world.ends_in_trouble("what it leaves is told with the story");
    let outcome = if left.is_empty() { outcome } else { outcome.and(Err(left.join("; "))) };
    process.shutdown_background();
    simulators.shutdown_background();
    outcome
}

/// Tells the story with every fault at every call; each time it must end as it does without one.
pub fn everywhere<S: Story>(name: &str, story: &S) {
    let (calls, expected) = tell(story, None).unwrap_or_else(|problem| panic!("{name} without faults: {problem}"));
    assert!(calls > 3, "{name} makes {calls} calls");
    try_all(name, 16, &at_each(1..=calls, &faults()), |(k, fault_name, fault)| {
        let problem = match tell(story, Some((*k, fault))) {
            Ok((_, picture)) if picture == expected => return Ok(()),
            Ok((_, picture)) => {
                let lost: Vec<_> = expected.iter().filter(|line| !picture.contains(line)).collect();
                let new: Vec<_> = picture.iter().filter(|line| !expected.contains(line)).collect();
                format!("missing {lost:?}, instead {new:?}")
            }
            Err(problem) => problem,
        };
        Err(format!("{fault_name} at call {k}: {problem}"))
    });
}
