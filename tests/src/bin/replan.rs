//! Measures what one model that leaves the catalogue costs where many resources are sold: the CPU time of planning them all
//! anew, and whether anything is written beyond those that had the model. Exits with 1 where a budget is exceeded.
//!
//! Use: `replan [--resources N]`; one in a hundred has the model.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a tool for developers"
)]

use std::collections::BTreeSet;
use std::time::Duration;

use llm_access_fixtures::faults::Peer;
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::World;
use uuid::Uuid;

/// The most CPU time for planning one resource anew: a second for 10,000 of them. Fewer are measured, since the simulators
/// take long to fill, and planning looks at each by itself.
const BUDGET: Duration = Duration::from_micros(100);

/// CPU time of this thread so far.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split_whitespace().next().unwrap().parse().unwrap())
}

// One thread, so that planning, which awaits nothing here, is alone on the clock.
#[tokio::main(flavor = "current_thread")]
async fn main() {
    let args: Vec<String> = std::env::args().collect();
    let count: usize = args.iter().position(|a| a == "--resources").and_then(|i| args.get(i + 1)).map_or(2_000, |n| n.parse().unwrap());
    let world = World::new(Profile::Late2026).await;
    world.write("catalogue.yml", &llm_access_tests::catalogue(&["kestrel-8b", "heron-70b", "qwen2.5-0.5b", "m4", "m5"]));
    let agent = world.patient().await;
    agent.offering_beat().await;
    let mut had: BTreeSet<Uuid> = BTreeSet::new();
    for n in 0..count {
        let models: &[&str] = if n % 100 == 0 { &["kestrel-8b", "heron-70b"] } else { &["kestrel-8b"] };
        let resource = world.waldur.add_resource(world.offering, &world.project, &format!("llm-{n}"), models, &[]);
        if n % 100 == 0 {
            had.insert(resource);
        }
    }
    for _ in 0..5 {
        world.slow_beat(&agent).await;
    }
    let drift = agent.find_drift(&agent.read_world().await.unwrap()).await.unwrap();
    assert!(
        drift.drifted.is_empty() && drift.blocked.is_empty() && drift.compared == count,
        "{} of {} are not at rest",
        drift.drifted.len(),
        drift.compared
    );

    world.write("catalogue.yml", &llm_access_tests::catalogue(&["kestrel-8b", "qwen2.5-0.5b", "m4", "m5"]));
    for _ in 0..4 {
        agent.offering_beat().await;
        world.advance(Duration::from_secs(25 * 60));
    }
    let seen = agent.read_world().await.unwrap();
    let before = cpu();
    let drift = agent.find_drift(&seen).await.unwrap();
    let took = cpu().saturating_sub(before);
    let budget = BUDGET * u32::try_from(count).unwrap();
    assert_eq!(drift.drifted.iter().copied().collect::<BTreeSet<_>>(), had, "those that had the model, and no others");

    world.faults.reset_calls();
    world.slow_beat(&agent).await;
    let calls = world.faults.calls();
    let writes: Vec<_> = calls.iter().filter(|call| call.method != "GET").collect();
    let teams: BTreeSet<String> = writes.iter().filter(|call| call.path.contains("/team/update")).map(|call| call.body.clone()).collect();
    let others: Vec<&str> = writes
        .iter()
        .filter(|call| call.peer == Peer::LiteLlm && !had.iter().any(|id| call.body.contains(&id.simple().to_string())))
        .map(|call| call.path.as_str())
        .collect();
    println!("{count} resources planned anew after one model left: {} ms of CPU", took.as_millis());
    println!(
        "teams that had the model: {}; teams written: {}; writes in all: {}; other writes to the gateway: {}",
        had.len(),
        teams.len(),
        writes.len(),
        others.len()
    );
    if took > budget || teams.len() != had.len() || !others.is_empty() {
        println!("over the budget of {} ms, or written to others: {others:?}", budget.as_millis());
        std::process::exit(1);
    }
}
