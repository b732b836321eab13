//! Every call of every step may fail in every way, or be the last thing the process does: afterwards the world is whole.
//!
//! Each story is run once to learn its calls; then once per call and fault. A killed process is a runtime that is dropped,
//! with all its tasks and sockets, and a fresh agent that knows nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use llm_access_agent::agent::Agent;
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::crash::{at_each, faults, runtime, stricken, survives, try_all};
use llm_access_tests::{Store, World};
use tokio::runtime::Runtime;
use uuid::Uuid;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Story {
    Create,
    Update,
    Pause,
    Terminate,
}

/// One world, with the process of the agent as a runtime of its own.
struct Run {
    world: World,
    resource: Option<Uuid>,
    order: Option<Uuid>,
    simulators: Runtime,
}

impl Run {
    fn new(story: Story, profile: Profile, store: Store, mint: bool) -> Self {
        let simulators = runtime();
        let world = simulators.block_on(World::with_store(profile, store));
        world.gateway.forbid_custom_keys(mint);
        let mut run = Self { world, resource: None, order: None, simulators };
        if story != Story::Create {
            let process = runtime();
            process.block_on(async {
                let agent = run.world.patient().await;
                let resource = run.world.sold(&agent, "aurora", &["kestrel-8b"]).await;
                run.world.gateway.chat(&run.world.key(resource, "project"), "kestrel-8b", "P=2000 C=1000").unwrap();
                run.world.advance(Duration::from_secs(40));
                run.resource = Some(resource);
            });
        }
        run.world.faults.reset_calls();
        run
    }

    /// What the customer does.
    fn begin(&mut self, story: Story) {
        match (story, self.resource) {
            (Story::Create, _) => {
                let (order, resource) = self.world.order("aurora", &["kestrel-8b"]);
                self.order = Some(order);
                self.resource = Some(resource);
            }
            (Story::Update, Some(resource)) => self.order = Some(self.world.waldur.update_limits(resource, &[("max_budget", "80")])),
            (Story::Pause, Some(resource)) => self.world.waldur.pause(resource, true),
            (Story::Terminate, Some(resource)) => self.order = Some(self.world.waldur.terminate(resource)),
            (_, None) => unreachable!(),
        }
    }

    fn is_over(&self, story: Story) -> bool {
        if story == Story::Pause {
            let id = self.resource.unwrap().simple().to_string();
            return self.world.gateway.team(&id).is_some_and(|team| team.blocked);
        }
        self.world.open_orders().is_empty()
    }

    async fn turn(&self, story: Story, agent: &Agent) {
        if story == Story::Pause {
            self.world.slow_beat(agent).await;
        } else {
            self.world.beat(agent).await;
        }
    }

    /// Runs to rest; a kill replaces the process.
    fn to_rest(&self, story: Story) -> Result<(), String> {
        let mut process = runtime();
        let mut agent = process.block_on(self.world.agent());
        for _ in 0..40 {
            let survived = survives(&mut process, &self.world, self.turn(story, &agent));
            if !survived {
                drop(agent);
                agent = process.block_on(self.world.agent());
            }
            if self.is_over(story) && survived {
                // Two slow beats: what drifted through the fault is repaired, and then nothing is left to do.
                process.block_on(async {
                    self.world.slow_beat(&agent).await;
                    self.world.advance(Duration::from_secs(700));
                    self.world.slow_beat(&agent).await;
                });
                if self.is_over(story) {
                    return Ok(());
                }
            }
            self.world.advance(Duration::from_secs(60));
        }
        Err(format!("not at rest: waiting {:?}, conditions {:?}", agent.schedule.waiting(), agent.conditions.all()))
    }

    fn verify(&self, story: Story) -> Result<(), String> {
        let mut problems = llm_access_tests::checker::problems(&self.world);
        if let Some(order) = self.order {
            let state = self.world.waldur.order_state(order);
            if state != "done" {
                problems.push(format!("the order is {state}: {}", self.world.waldur.error_of(order)));
            }
        }
        let resource = self.resource.unwrap();
        let id = resource.simple().to_string();
        let keys = self.world.gateway.live_keys(&id).len();
        if keys != if story == Story::Terminate { 0 } else { 2 } {
            problems.push(format!("{keys} live keys"));
        }
        match story {
            Story::Create => {}
            Story::Update => {
                let budget = self.world.gateway.team(&id).and_then(|team| team.max_budget);
                if budget.map(|b| b.to_string()).as_deref() != Some("80") {
                    problems.push(format!("the budget is {budget:?}"));
                }
            }
            Story::Pause => {
                if self.world.gateway.verdict(&self.world.key(resource, "project"), "kestrel-8b").is_ok() {
                    problems.push("a paused key still works".into());
                }
            }
            Story::Terminate => {
                let usages = self.world.waldur.usages(resource, "2026-11");
                let told = (usages.get("input_tokens").map(ToString::to_string), usages.get("output_tokens").map(ToString::to_string));
                if told != (Some("2.00".into()), Some("1.00".into())) {
                    problems.push(format!("the final usage is {usages:?}"));
                }
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
    }
}

/// The number of peer calls of a clean run.
fn learn(story: Story, profile: Profile, store: Store, mint: bool) -> usize {
    let mut run = Run::new(story, profile, store, mint);
    run.begin(story);
    let process = runtime();
    let calls = process.block_on(async {
        let agent = run.world.agent().await;
        for _ in 0..10 {
            run.turn(story, &agent).await;
            if run.is_over(story) {
                return run.world.faults.count();
            }
            run.world.advance(Duration::from_secs(60));
        }
        panic!("{story:?} on {profile:?} does not end without faults: {:?} {:?}", agent.schedule.waiting(), agent.conditions.all());
    });
    run.verify(story).unwrap_or_else(|problem| panic!("{story:?} on {profile:?} without faults: {problem}"));
    process.shutdown_background();
    run.simulators.shutdown_background();
    calls
}

fn crash_everywhere(story: Story, profile: Profile, store: Store, mint: bool) {
    let calls = learn(story, profile, store, mint);
    assert!(calls > 3, "{story:?} makes {calls} calls");
    let name = format!("{story:?} on {profile:?} ({store:?}, mint {mint})");
    try_all(&name, 16, &at_each(1..=calls, &faults()), |(k, name, fault)| {
        let mut run = Run::new(story, profile, store, mint);
        run.world.faults.at_call(*k, fault.clone());
        run.begin(story);
        let outcome = run.to_rest(story).and_then(|()| run.verify(story));
        let call = stricken(&run.world);
        run.simulators.shutdown_background();
        outcome.map_err(|problem| format!("{name} at call {k} ({call}): {problem}"))
    });
}

macro_rules! crash {
    ($($name:ident: $story:ident, $profile:ident, $store:ident, $mint:literal;)+) => {$(
        #[test]
        fn $name() {
            crash_everywhere(Story::$story, Profile::$profile, Store::$store, $mint);
        }
    )+};
}

crash! {
    create_2024: Create, Y2024, Kube, false;
    create_8_0: Create, V8_0, Kube, false;
    create_late_2026: Create, Late2026, Kube, false;
    create_in_a_directory: Create, Late2026, Directory, false;
    create_where_the_gateway_makes_the_keys: Create, Late2026, Kube, true;
    update_2024: Update, Y2024, Kube, false;
    update_late_2026: Update, Late2026, Kube, false;
    pause_2024: Pause, Y2024, Kube, false;
    pause_late_2026: Pause, Late2026, Kube, false;
    terminate_2024: Terminate, Y2024, Kube, false;
    terminate_8_0: Terminate, V8_0, Kube, false;
    terminate_late_2026: Terminate, Late2026, Directory, false;
}
