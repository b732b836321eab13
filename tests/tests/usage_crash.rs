//! Every call of a usage pass may fail in every way, or be the last thing the process does: afterwards Waldur holds what the
//! ledger shows, and at no time more.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use llm_access_fixtures::faults::Fault;
use llm_access_fixtures::litellm::Usage;
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::World;
use llm_access_tests::crash::{self, runtime};
use rust_decimal::Decimal;
use tokio::runtime::Runtime;
use uuid::Uuid;

/// What goes wrong with a call; besides the usual, an answer that is whole and says nothing.
fn faults() -> Vec<(&'static str, Fault)> {
    let headers = vec![("content-type".into(), "application/json".into())];
    let mut faults = crash::faults();
    faults.push(("an empty object", Fault::Replace { status: 200, headers, body: "{}".into() }));
    faults
}

struct Run {
    world: World,
    resources: Vec<Uuid>,
    simulators: Runtime,
}

/// The months' spend of every resource, as the ledger has it.
const MONTHS: [(&str, [i64; 2]); 2] = [("2026-11", [725, 310]), ("2026-12", [150, 0])];

impl Run {
    /// Two resources, in the first days of December, with figures of November that Waldur holds already in part.
    fn new(profile: Profile) -> Self {
        let simulators = runtime();
        let world = simulators.block_on(World::new(profile));
        let resources: Vec<Uuid> = (0..2)
            .map(|n| {
                world.waldur.add_resource(world.offering, &world.project, &format!("llm-{n}"), &["kestrel-8b"], &[("max_budget", "50")])
            })
            .collect();
        for (month, cents) in MONTHS {
            for (resource, cents) in resources.iter().zip(cents).filter(|(_, cents)| *cents > 0) {
                let usage = Usage { prompt_tokens: 1000, completion_tokens: 0, cached_tokens: 0, spend: Decimal::new(cents, 2) };
                world.gateway.add_usage(
                    Some(&resource.simple().to_string()),
                    &format!("k-{}", resource.simple()),
                    "kestrel-8b",
                    format!("{month}-01T00:30:00Z").parse().unwrap(),
                    usage,
                );
            }
        }
        if profile == Profile::Y2024 {
            world.set_time("2026-11-29T12:00:00Z");
            runtime_of_one_pass(&world);
        }
        world.set_time("2026-12-01T06:00:00Z");
        world.faults.reset_calls();
        Self { world, resources, simulators }
    }

    fn told(&self, resource: Uuid, month: &str) -> Decimal {
        self.world.waldur.usages(resource, month).get("spend").copied().unwrap_or_default()
    }

    fn verify(&self, at_rest: bool) -> Result<(), String> {
        for (month, cents) in MONTHS {
            for (resource, cents) in self.resources.iter().zip(cents) {
                let (told, ledger) = (self.told(*resource, month), Decimal::new(cents, 2));
                if told > ledger || (at_rest && told != ledger) {
                    return Err(format!("{month}: Waldur holds {told}, the ledger shows {ledger}"));
                }
            }
        }
        Ok(())
    }

    fn to_rest(&self) -> Result<(), String> {
        let mut process = runtime();
        let mut agent = process.block_on(self.world.agent());
        for _ in 0..6 {
            let killed = process.block_on(async {
                tokio::select! {
                    _ = agent.usage_beat() => false,
                    () = self.world.faults.killed() => true,
                }
            });
            if killed {
                let old = std::mem::replace(&mut process, runtime());
                drop(agent);
                old.shutdown_background();
                agent = process.block_on(self.world.agent());
            }
            self.verify(false)?;
            self.world.advance(Duration::from_secs(600));
        }
        let writes = self.world.faults.calls().iter().filter(|call| call.path.contains("set_usage")).count();
        process.block_on(async { drop(agent.usage_beat().await) });
        let more = self.world.faults.calls().iter().filter(|call| call.path.contains("set_usage")).count() - writes;
        if more > 0 {
            return Err(format!("{more} reports at rest"));
        }
        self.verify(true)
    }
}

fn runtime_of_one_pass(world: &World) {
    let process = runtime();
    process.block_on(async { world.agent().await.usage_beat().await.unwrap() });
    process.shutdown_background();
}

fn crash_everywhere(profile: Profile) {
    let clean = Run::new(profile);
    runtime_of_one_pass(&clean.world);
    clean.verify(true).unwrap();
    let calls = clean.world.faults.count();
    assert!(calls > 8, "{calls}");
    let runs: Vec<(usize, &'static str, Fault)> =
        (1..=calls).flat_map(|k| faults().into_iter().map(move |(name, fault)| (k, name, fault))).collect();
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while let Some((k, name, fault)) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let run = Run::new(profile);
                    run.world.faults.at_call(*k, fault.clone());
                    if let Err(problem) = run.to_rest() {
                        let call = run
                            .world
                            .faults
                            .calls()
                            .into_iter()
                            .find(|call| call.fault)
                            .map(|call| format!("{} {}", call.method, call.path))
                            .unwrap_or_default();
                        failures.lock().unwrap().push(format!("{name} at call {k} ({call}): {problem}"));
                    }
                    run.simulators.shutdown_background();
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{profile:?}: {} of {} runs failed:\n{}", failures.len(), runs.len(), failures.join("\n"));
}

#[test]
fn a_pass_may_end_anywhere_2024() {
    crash_everywhere(Profile::Y2024);
}

#[test]
fn a_pass_may_end_anywhere_8_0() {
    crash_everywhere(Profile::V8_0);
}

#[test]
fn a_pass_may_end_anywhere_late_2026() {
    crash_everywhere(Profile::Late2026);
}
