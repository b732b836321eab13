//! What one model that leaves the catalogue costs where many resources are sold: the CPU time of planning them all anew, and
//! whether anything is written beyond those that had the model.

use std::collections::BTreeSet;
use std::time::Duration;

use llm_access_fixtures::faults::Peer;
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::World;
use uuid::Uuid;

use crate::table::Table;

/// Resources. The budget is a second for 10,000 of them, and planning looks at each by itself.
const COUNT: usize = 2_000;

/// CPU time of this thread so far.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split_whitespace().next().unwrap().parse().unwrap())
}

/// On one thread, so that planning, which awaits nothing here, is alone on the clock.
pub fn replan(table: &mut Table) {
    std::thread::scope(|scope| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        scope.spawn(move || runtime.block_on(measure(table))).join().unwrap();
    });
}

/// One in a hundred resources has the model.
async fn measure(table: &mut Table) {
    let count = COUNT;
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
    let what = format!("{count} resources planned anew after a model left");
    table.budget(format!("{what}: CPU, ms"), took.as_secs_f64() * 1000.0, count as f64 / 10.0);
    let spared = had.len().saturating_sub(teams.len()) + teams.len().saturating_sub(had.len());
    table.budget(format!("{what}: teams wrongly written or left"), spared as f64, 0.0);
    table.budget(format!("{what}: other writes to the gateway"), others.len() as f64, 0.0);
}
