//! Keys are replaced: on both Secret stores, on every server generation, and where the gateway makes the keys. Every call may
//! fail in every way, or be the last thing the process does: at rest there is one live key for each slot, and it is the one
//! in the Secret.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::Stdio;
use std::time::Duration;

use llm_access_agent::agent::Agent;
use llm_access_agent::rotation::NotRotated;
use llm_access_agent::secrets::Slot;
use llm_access_fixtures::faults::{Fault, Peer, Rule};
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::checker::hash;
use llm_access_tests::crash::{self, Story};
use llm_access_tests::{CHAT_NAMESPACE, PROFILES, Store, World, checker};
use uuid::Uuid;

/// Longer than an old key serves on.
const PAST_THE_GRACE: Duration = Duration::from_secs(700);

/// A resource that works, with some use.
async fn sold(world: &World) -> (Agent, Uuid) {
    let agent = world.patient().await;
    let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
    use_it(world, resource, "P=2000 C=1000");
    (agent, resource)
}

fn use_it(world: &World, resource: Uuid, tokens: &str) {
    world.gateway.chat(&world.key(resource, "project"), "kestrel-8b", tokens).unwrap();
    world.advance(Duration::from_secs(40));
}

/// The aliases of our live keys, sorted, without the resource's id.
fn live(world: &World, resource: Uuid) -> Vec<String> {
    let id = resource.simple().to_string();
    let mut aliases: Vec<String> =
        world.gateway.live_keys(&id).into_iter().map(|key| key.alias.unwrap().replace(&format!("{id}-"), "")).collect();
    aliases.sort();
    aliases
}

fn works(world: &World, key: &str) -> bool {
    world.gateway.verdict(key, "kestrel-8b").is_ok()
}

#[tokio::test]
async fn both_keys_get_the_next_number_and_the_old_ones_serve_out_their_time() {
    for (profile, store) in [
        (Profile::Y2024, Store::Directory),
        (Profile::V8_0, Store::Kube),
        (Profile::Late2026, Store::Kube),
        (Profile::Late2026, Store::Directory),
    ] {
        let world = World::with_store(profile, store).await;
        let (running, resource) = sold(&world).await;
        let old = ["chat", "project"].map(|slot| world.key(resource, slot));

        let rotated = world.patient().await.rotate_keys(resource, &[], false).await.unwrap();
        let new = ["chat", "project"].map(|slot| world.key(resource, slot));
        assert_eq!(live(&world, resource), ["1", "2", "chat-1", "chat-2"], "{profile:?} {store:?}");
        assert!(old.iter().chain(&new).all(|key| works(&world, key)) && old.iter().all(|key| !new.contains(key)));
        let told: Vec<_> = rotated.iter().map(|one| (one.slot, one.begun, one.old_until)).collect();
        let until = Some(world.clock.now() + Duration::from_secs(600));
        assert_eq!(told, [(Slot::Chat, true, until), (Slot::Project, true, until)]);
        if profile == Profile::Late2026 {
            let shown = world.waldur.api_keys(resource);
            let newest = shown.iter().find(|key| key.client_id == format!("{}-2", resource.simple()));
            assert_eq!(newest.map(|key| &key.key), Some(&new[1]), "{:?}", shown.len());
        }

        // Nothing is drift while the old keys serve, also for an agent that was there before.
        world.faults.reset_calls();
        for _ in 0..2 {
            world.slow_beat(&running).await;
            world.advance(Duration::from_secs(299));
        }
        assert_eq!(world.writes(None), Vec::<String>::new(), "{profile:?} {store:?}");
        assert!(old.iter().all(|key| works(&world, key)));

        world.advance(Duration::from_secs(3));
        world.slow_beat(&running).await;
        assert_eq!(live(&world, resource), ["2", "chat-2"], "{profile:?} {store:?}");
        assert!(!old.iter().any(|key| works(&world, key)));
        world.check();
        world.faults.reset_calls();
        world.slow_beat(&running).await;
        assert_eq!(world.writes(None), Vec::<String>::new(), "{profile:?} {store:?}");
    }
}

#[tokio::test]
async fn one_key_alone_leaves_the_other_as_it_is() {
    for (slot, name, left) in [(Slot::Chat, "chat", ["1", "chat-2"]), (Slot::Project, "project", ["2", "chat-1"])] {
        let world = World::new(Profile::Late2026).await;
        let (agent, resource) = sold(&world).await;
        let before = world.secrets(resource);
        agent.rotate_keys(resource, &[slot], false).await.unwrap();
        world.advance(PAST_THE_GRACE);
        world.slow_beat(&agent).await;
        assert_eq!(live(&world, resource), left);
        let after = world.secrets(resource);
        for other in ["chat", "project"] {
            assert_eq!(before[other] == after[other], other != name, "{name}: {other}");
        }
        // The variables are the same, but for the key.
        let names = |secrets: &std::collections::BTreeMap<String, std::collections::BTreeMap<String, String>>| {
            secrets[name].keys().cloned().collect::<Vec<_>>()
        };
        assert_eq!(names(&before), names(&after));
        world.check();
    }
}

#[tokio::test]
async fn after_a_leak_the_old_key_is_gone_when_the_command_ends() {
    for store in [Store::Kube, Store::Directory] {
        for makes_the_keys in [false, true] {
            let world = World::with_store(Profile::Late2026, store).await;
            world.gateway.forbid_custom_keys(makes_the_keys);
            let (agent, resource) = sold(&world).await;
            let old = world.key(resource, "project");
            let rotated = agent.rotate_keys(resource, &[Slot::Project], true).await.unwrap();
            assert_eq!((rotated[0].begun, rotated[0].old_until), (true, None));
            assert!(!works(&world, &old) && works(&world, &world.key(resource, "project")));
            assert_eq!(live(&world, resource), ["2", "chat-1"]);
            world.check();
        }
    }
}

#[tokio::test]
async fn a_repeat_within_the_grace_begins_nothing_but_a_leak_ends_every_earlier_key() {
    let world = World::new(Profile::Late2026).await;
    let (agent, resource) = sold(&world).await;
    let first = world.key(resource, "project");
    agent.rotate_keys(resource, &[Slot::Project], false).await.unwrap();
    let second = world.key(resource, "project");
    world.advance(Duration::from_secs(60));
    world.faults.reset_calls();
    let again = agent.rotate_keys(resource, &[Slot::Project], false).await.unwrap();
    assert_eq!((again[0].begun, world.key(resource, "project") == second, world.writes(None)), (false, true, Vec::new()));
    assert_eq!(again[0].old_until, Some(world.clock.now() + Duration::from_secs(540)));

    agent.rotate_keys(resource, &[Slot::Project], true).await.unwrap();
    assert!(!works(&world, &first) && !works(&world, &second));
    assert_eq!(live(&world, resource), ["3", "chat-1"]);
    world.check();
}

#[tokio::test]
async fn where_the_gateway_makes_the_keys_it_makes_the_next_ones_too() {
    for (profile, store) in [(Profile::Y2024, Store::Kube), (Profile::Late2026, Store::Directory)] {
        let world = World::with_store(profile, store).await;
        world.gateway.forbid_custom_keys(true);
        let (running, resource) = sold(&world).await;
        let old = world.key(resource, "project");
        // A process that has not met the gateway's refusal yet.
        world.patient().await.rotate_keys(resource, &[], false).await.unwrap();
        assert_eq!(live(&world, resource), ["1", "2", "chat-1", "chat-2"]);
        assert!(works(&world, &old) && works(&world, &world.key(resource, "project")));
        // And one that has.
        world.advance(PAST_THE_GRACE);
        world.slow_beat(&running).await;
        running.rotate_keys(resource, &[], false).await.unwrap();
        assert_eq!(live(&world, resource), ["2", "3", "chat-2", "chat-3"]);
        world.advance(PAST_THE_GRACE);
        world.slow_beat(&running).await;
        assert_eq!(live(&world, resource), ["3", "chat-3"]);
        world.check();
    }
}

#[tokio::test]
async fn what_was_used_with_either_key_is_billed() {
    for profile in PROFILES {
        let world = World::new(profile).await;
        let (agent, resource) = sold(&world).await;
        let old = world.key(resource, "project");
        agent.rotate_keys(resource, &[], false).await.unwrap();
        world.gateway.chat(&old, "kestrel-8b", "P=300 C=200").unwrap();
        use_it(&world, resource, "P=1000 C=1000");
        world.advance(PAST_THE_GRACE);
        world.slow_beat(&agent).await;
        assert!(!works(&world, &old));
        world.waldur.terminate(resource);
        world.run_to_rest(&agent, 9).await;
        let usages = world.waldur.usages(resource, "2026-11");
        assert_eq!(
            (usages["input_tokens"].to_string(), usages["output_tokens"].to_string()),
            ("3.30".into(), "2.20".into()),
            "{profile:?}"
        );
        world.check();
    }
}

#[tokio::test]
async fn a_running_agent_carries_out_what_the_command_only_began() {
    // The word on the Secret is all that a process left before it ended; the running agent works at the same time.
    for makes_the_keys in [false, true] {
        let world = World::new(Profile::Late2026).await;
        world.gateway.forbid_custom_keys(makes_the_keys);
        let (running, resource) = sold(&world).await;
        let command = world.patient().await;
        for _ in 0..3 {
            let number = |world: &World| live(world, resource).iter().filter_map(|alias| alias.parse::<u32>().ok()).max().unwrap();
            let before = number(&world);
            let (rotated, ()) = tokio::join!(command.rotate_keys(resource, &[], false), async {
                for _ in 0..4 {
                    world.slow_beat(&running).await;
                }
            });
            if let Err(NotRotated::Wrong(why)) = rotated {
                panic!("{why}");
            }
            world.advance(PAST_THE_GRACE);
            for _ in 0..3 {
                world.slow_beat(&running).await;
                world.advance(PAST_THE_GRACE);
            }
            assert!(number(&world) > before, "makes_the_keys={makes_the_keys}");
            world.check();
        }
    }
}

#[tokio::test]
async fn what_cannot_be_replaced_is_said_and_nothing_is_written() {
    let world = World::new(Profile::Late2026).await;
    let (agent, resource) = sold(&world).await;
    world.faults.reset_calls();
    world.waldur.put_resource_state(resource, "Updating");
    assert!(matches!(agent.rotate_keys(resource, &[], false).await, Err(NotRotated::Wrong(why)) if why.contains("Updating")));
    world.waldur.put_resource_state(resource, "OK");
    assert!(agent.rotate_keys(Uuid::from_u128(7), &[], false).await.is_err());
    // The gateway is down: a new key would not work, so none is chosen.
    let before = world.secrets(resource);
    world.gateway.set_database(false);
    assert!(matches!(agent.rotate_keys(resource, &[], false).await, Err(NotRotated::Failed(_))));
    world.gateway.set_database(true);
    assert_eq!((world.writes(None), world.secrets(resource)), (Vec::new(), before));
    world.check();
}

/// An operator replaces the project key, and repeats it until there is another, or never.
struct Rotation {
    profile: Profile,
    store: Store,
    makes_the_keys: bool,
    at_once: bool,
    repeats: bool,
}

impl Rotation {
    fn resource(world: &World) -> Uuid {
        world.waldur.resources()[0].uuid
    }

    fn number(world: &World) -> u32 {
        let resource = Self::resource(world);
        let held = hash(&world.key(resource, "project"));
        let key = world.gateway.live_keys(&resource.simple().to_string()).into_iter().find(|key| key.hash == held);
        key.and_then(|key| key.alias?.rsplit('-').next()?.parse().ok()).unwrap_or(0)
    }
}

impl Story for Rotation {
    async fn prepare(&self) -> World {
        let world = World::with_store(self.profile, self.store).await;
        world.gateway.forbid_custom_keys(self.makes_the_keys);
        sold(&world).await;
        world.write("began", &world.clock.now().to_string());
        world
    }

    fn begin(&self, _: &World) {}

    async fn turn(&self, world: &World, agent: &Agent) {
        let first = std::fs::read_to_string(world.path("began")).unwrap() == world.clock.now().to_string();
        if first || (self.repeats && Self::number(world) == 1) {
            drop(agent.rotate_keys(Self::resource(world), &[Slot::Project], self.at_once).await);
        } else {
            world.slow_beat(agent).await;
        }
        world.advance(PAST_THE_GRACE);
        world.slow_beat(agent).await;
    }

    fn is_at_rest(&self, _: &Agent) -> bool {
        true
    }

    fn picture(&self, world: &World) -> Vec<String> {
        let resource = Self::resource(world);
        let mut picture = checker::problems(world);
        picture.push(format!("{} live keys", live(world, resource).len()));
        let number = Self::number(world);
        if self.repeats {
            picture.push(format!("replaced: {}", number > 1));
        }
        if !self.makes_the_keys && self.repeats {
            // No number is left out where the agent chooses the keys.
            picture.push(format!("keys {:?}", live(world, resource)));
        }
        let id = resource.simple().to_string();
        if self.profile == Profile::Late2026 {
            picture.push(format!(
                "shown in Waldur: {}",
                world.waldur.api_keys(resource).iter().any(|key| key.client_id == format!("{id}-{number}"))
            ));
        }
        picture
    }
}

macro_rules! crash {
    ($($name:ident: $profile:ident, $store:ident, $makes:literal, $at_once:literal, $repeats:literal;)+) => {$(
        #[test]
        fn $name() {
            crash::everywhere(stringify!($name), &Rotation { profile: Profile::$profile, store: Store::$store, makes_the_keys: $makes, at_once: $at_once, repeats: $repeats });
        }
    )+};
}

crash! {
    crash_late_2026: Late2026, Kube, false, false, true;
    crash_2024_in_a_directory_after_a_leak: Y2024, Directory, false, true, true;
    crash_where_the_gateway_makes_the_keys_and_nobody_asks_again: Late2026, Kube, true, false, false;
}

#[tokio::test]
async fn the_program_says_what_became_of_each_key() {
    let world = World::in_real_time(Profile::Late2026, Store::Directory).await;
    let agent = world.agent().await;
    let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
    let id = resource.simple().to_string();
    let config = world.write("config.yml", &world.config_text("rotation: {grace: 1h}\n"));
    let run = async |args: &[&str]| {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_agent-under-test"));
        command.arg("--config").arg(&config).args(["keys", "rotate"]).args(args).stdin(Stdio::null());
        let said = command.output().await.unwrap();
        (said.status.code(), String::from_utf8(said.stdout).unwrap(), String::from_utf8(said.stderr).unwrap())
    };
    let (code, out, err) = run(&[&id, "--project"]).await;
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(
        out.starts_with(&format!("project: key {id}-2 is new and works; Secret llm-key-"))
            && out.contains("the old one serves until 20")
            && out.lines().count() == 1,
        "{out}"
    );
    assert!(!out.contains("sk-") && !err.contains("sk-"), "{out}{err}");
    let (code, out, _) = run(&[&id, "--project"]).await;
    assert!(code == Some(0) && out.contains("no other was made"), "{out}");
    let (code, out, err) = run(&[&id, "--now"]).await;
    assert!(
        code == Some(0)
            && out.contains(&format!("chat: key {id}-chat-2"))
            && out.contains(&format!("project: key {id}-3"))
            && out.matches("no older one is left").count() == 2,
        "{out}{err}"
    );
    assert_eq!(live(&world, resource), ["3", "chat-2"]);
    let (code, _, err) = run(&[&Uuid::from_u128(7).simple().to_string()]).await;
    assert_ne!(code, Some(0), "{err}");
    world.check();
}

/// The configuration of an agent that restarts what reads chat Secrets.
fn restarting(world: &World, restart: &str) -> String {
    let text = world.config_text("");
    let secrets = "key_namespace: llm-keys}";
    assert!(text.contains(secrets));
    text.replace(secrets, &format!("key_namespace: llm-keys, restart: {restart}}}"))
}

const DEPLOYMENTS: &str = "/apis/apps/v1/";

fn rollouts(world: &World, name: &str) -> u64 {
    world.kube.deployment(CHAT_NAMESPACE, name).unwrap().1
}

/// The methods of the calls to Deployments since the log was last emptied.
fn deployment_calls(world: &World) -> Vec<String> {
    world.faults.calls().into_iter().filter(|call| call.path.contains(DEPLOYMENTS)).map(|call| call.method).collect()
}

#[tokio::test]
async fn open_webui_is_restarted_once_for_each_change_of_its_secret() {
    let world = World::new(Profile::Late2026).await;
    world.kube.add_deployment(CHAT_NAMESPACE, "open-webui");
    let text = restarting(&world, "open-webui");
    let agent = world.patient_with(&text).await;
    let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
    assert_eq!(rollouts(&world, "open-webui"), 1);
    world.slow_beat(&agent).await;
    assert_eq!(rollouts(&world, "open-webui"), 2, "nobody can tell what it was started with");

    // The template carries our digest, nothing secret, and what others put there.
    let (template, _) = world.kube.deployment(CHAT_NAMESPACE, "open-webui").unwrap();
    let annotations = template["metadata"]["annotations"].as_object().unwrap();
    assert_eq!(annotations.keys().collect::<Vec<_>>(), ["example.org/keep", "llm-access.io/secret-hash"]);
    let digest = annotations["llm-access.io/secret-hash"].as_str().unwrap();
    let key = world.key(resource, "chat");
    assert!(digest.len() == 32 && !hash(&key).contains(digest) && !key.contains(digest), "{digest}");

    // An idle pass asks and writes nothing; neither does a change that no pod reads.
    world.faults.reset_calls();
    for _ in 0..3 {
        world.slow_beat(&agent).await;
        world.advance(PAST_THE_GRACE);
    }
    world.waldur.update_limits(resource, &[("max_budget", "80")]);
    world.run_to_rest(&agent, 5).await;
    world.slow_beat(&agent).await;
    assert_eq!((deployment_calls(&world), rollouts(&world, "open-webui")), (Vec::new(), 2));

    // A new key and another list of models: once each, and after the key works.
    let rotated = agent.rotate_keys(resource, &[Slot::Chat], false).await.unwrap();
    assert!(rotated[0].begun);
    world.slow_beat(&agent).await;
    assert_eq!(rollouts(&world, "open-webui"), 3);
    assert!(works(&world, &world.key(resource, "chat")));
    world.advance(PAST_THE_GRACE);
    world.slow_beat(&agent).await;
    world.slow_beat(&agent).await;
    assert_eq!(rollouts(&world, "open-webui"), 3, "the end of the old key changes nothing that pods read");
    world.waldur.update_options(resource, &serde_json::json!({"models": ["kestrel-8b", "heron-70b"]}));
    world.run_to_rest(&agent, 5).await;
    world.slow_beat(&agent).await;
    world.slow_beat(&agent).await;
    assert_eq!(rollouts(&world, "open-webui"), 4);

    // An agent that starts finds what was done. A tool that puts the template back has replaced the pods itself.
    let next = world.patient_with(&text).await;
    world.faults.reset_calls();
    world.slow_beat(&next).await;
    assert_eq!((deployment_calls(&world), rollouts(&world, "open-webui")), (vec!["GET".to_owned()], 4));
    world.kube.replace_deployment(CHAT_NAMESPACE, "open-webui");
    world.slow_beat(&next).await;
    assert_eq!(rollouts(&world, "open-webui"), 5);
    world.check();
}

#[tokio::test]
async fn a_restart_waits_for_a_key_that_works() {
    let world = World::new(Profile::Late2026).await;
    world.kube.add_deployment(CHAT_NAMESPACE, "open-webui");
    let agent = world.patient_with(&restarting(&world, "open-webui")).await;
    let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
    world.slow_beat(&agent).await;
    let rule = world.faults.add(Rule::new(Fault::status(503, "busy")).peer(Peer::LiteLlm).path("/key/generate"));
    assert!(agent.rotate_keys(resource, &[Slot::Chat], false).await.is_err());
    for _ in 0..3 {
        world.slow_beat(&agent).await;
        world.advance(PAST_THE_GRACE);
    }
    assert_eq!(rollouts(&world, "open-webui"), 2, "the Secret holds a key that the gateway does not know");
    world.faults.remove(rule);
    world.slow_beat(&agent).await;
    world.slow_beat(&agent).await;
    assert_eq!(rollouts(&world, "open-webui"), 3);
    world.advance(PAST_THE_GRACE);
    world.slow_beat(&agent).await;
    assert_eq!(rollouts(&world, "open-webui"), 3);
    world.check();
}

#[tokio::test]
async fn a_restart_survives_lost_answers_and_a_crash_without_being_done_twice() {
    for fault in [Fault::LoseAnswer, Fault::Truncate, Fault::status(500, "no"), Fault::Refuse] {
        for method in ["GET", "PATCH"] {
            let world = World::new(Profile::Late2026).await;
            world.kube.add_deployment(CHAT_NAMESPACE, "open-webui");
            let text = restarting(&world, "open-webui");
            let agent = world.patient_with(&text).await;
            world.sold(&agent, "aurora", &["kestrel-8b"]).await;
            world.faults.add(Rule::new(fault.clone()).peer(Peer::Kube).method(method).path(DEPLOYMENTS).once());
            world.slow_beat(&agent).await;
            let raised = agent.conditions.holds("webui-not-restarted");
            assert!(raised || rollouts(&world, "open-webui") == 2, "{fault:?} {method}");
            // Whoever goes on: the same process once its time has come, or the next one at once.
            let agent = if method == "GET" {
                world.advance(Duration::from_secs(601));
                agent
            } else {
                world.patient_with(&text).await
            };
            world.slow_beat(&agent).await;
            world.slow_beat(&agent).await;
            assert_eq!(rollouts(&world, "open-webui"), 2, "{fault:?} {method}");
            assert!(!agent.conditions.holds("webui-not-restarted"), "{:?}", agent.conditions.all());
        }
    }
}

#[tokio::test]
async fn each_project_has_its_own_and_what_is_not_named_is_left_alone() {
    let world = World::new(Profile::Late2026).await;
    let (other, third) = (world.waldur.add_project("Tides"), world.waldur.add_project("Ice"));
    for name in ["chat-seabird", "chat-tides", "chat-ice"] {
        world.kube.add_deployment(CHAT_NAMESPACE, name);
    }
    let map = format!("{{{}: chat-seabird, {}: chat-tides}}", world.project.uuid, other.uuid);
    let agent = world.patient_with(&restarting(&world, &map)).await;
    let mut resources = Vec::new();
    for project in [&world.project, &world.project, &other, &third] {
        let (_, resource) = world.waldur.order(world.offering, project, "llm", &["kestrel-8b"], &[("max_budget", "50")]);
        resources.push(resource);
    }
    world.run_to_rest(&agent, 5).await;
    world.slow_beat(&agent).await;
    let all = || ["chat-seabird", "chat-tides", "chat-ice"].map(|name| rollouts(&world, name));
    assert_eq!(all(), [2, 2, 1], "two resources of a project are one restart");
    agent.rotate_keys(resources[1], &[], false).await.unwrap();
    world.slow_beat(&agent).await;
    agent.rotate_keys(resources[3], &[], false).await.unwrap();
    world.slow_beat(&agent).await;
    assert_eq!(all(), [3, 2, 1]);
    assert!(agent.conditions.all().is_empty(), "{:?}", agent.conditions.all());
    world.advance(PAST_THE_GRACE);
    world.slow_beat(&agent).await;
    assert_eq!(all(), [3, 2, 1]);
    world.check();
}

#[tokio::test]
async fn a_deployment_that_is_missing_or_may_not_be_restarted_is_a_condition_and_nothing_more() {
    let world = World::new(Profile::Late2026).await;
    let agent = world.patient_with(&restarting(&world, "open-webui")).await;
    let message = || agent.conditions.all().into_iter().find(|(name, ..)| *name == "webui-not-restarted").map(|(_, _, one)| one.message);
    world.sold(&agent, "aurora", &["kestrel-8b"]).await;
    world.faults.reset_calls();
    for _ in 0..3 {
        world.slow_beat(&agent).await;
    }
    assert!(message().unwrap().contains("there is no such Deployment; correct secrets.restart"), "{:?}", message());
    assert_eq!(deployment_calls(&world).len(), 1, "it is not asked for at every beat");

    for verb in ["get", "patch"] {
        world.kube.add_deployment(CHAT_NAMESPACE, "open-webui");
        world.kube.deny(verb, "deployments", CHAT_NAMESPACE);
        world.advance(Duration::from_secs(601));
        world.slow_beat(&agent).await;
        let said = message().unwrap();
        assert!(said.contains(&format!("grant verb {verb} on deployments in namespace {CHAT_NAMESPACE}")), "{said}");
        assert_eq!(rollouts(&world, "open-webui"), 1, "{verb} is needed");
        world.kube.allow_all();
    }
    let second = world.sold(&agent, "borealis", &["kestrel-8b"]).await;
    world.advance(Duration::from_secs(601));
    world.slow_beat(&agent).await;
    assert_eq!((rollouts(&world, "open-webui"), message()), (2, None));
    assert_eq!(world.waldur.resource(second).state, "OK");
    world.check();
}
