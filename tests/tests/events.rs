//! Events in the cluster: what was done to Secrets and what is wrong with the agent is told once, where an operator of the cluster
//! looks; and whether or not it can be told, everything else goes its way.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use llm_access_agent::agent::Agent;
use llm_access_agent::secrets::{Slot, secret_name};
use llm_access_fixtures::faults::{Call, Fault, Peer, Rule};
use llm_access_fixtures::kube::EventView;
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::eventful::HOSTILE;
use llm_access_tests::{CHAT_NAMESPACE, KEY_NAMESPACE, World};
use tokio::process::Command;

const ON: &str = "events: {enabled: true, pod_namespace: llm-access, pod_name: agent-0, pod_uid: 5f1d8a53}\n";
const HOUR: Duration = Duration::from_secs(3600);

async fn started(world: &World) -> Agent {
    world.kube.add_namespace("llm-access");
    let agent = world.patient_with(&world.config_text(ON)).await;
    agent.secrets.events().follow_conditions();
    agent
}

/// The events since the last look, as `namespace Kind/name Type Reason`.
struct Told(usize);

impl Told {
    fn next(&mut self, world: &World) -> Vec<EventView> {
        let all = world.kube.events();
        let new = all[self.0..].to_vec();
        self.0 = all.len();
        new
    }

    fn lines(&mut self, world: &World) -> Vec<String> {
        let mut lines: Vec<String> =
            self.next(world).iter().map(|event| format!("{} {} {} {}", event.namespace, event.about, event.kind, event.reason)).collect();
        lines.sort();
        lines
    }
}

fn event_calls(world: &World) -> Vec<Call> {
    world.faults.calls().into_iter().filter(|call| call.path.contains("/events")).collect()
}

#[tokio::test]
async fn a_secret_tells_that_its_key_was_stored_and_replaced() {
    let world = World::new(Profile::Late2026).await;
    let agent = started(&world).await;
    let mut told = Told(0);
    let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
    let slug = world.waldur.resource(resource).slug;
    let [chat, key] = [Slot::Chat, Slot::Project].map(|slot| secret_name(slot, &slug, resource));
    let stored = [format!("{KEY_NAMESPACE} Secret/{key} Normal KeyStored"), format!("{CHAT_NAMESPACE} Secret/{chat} Normal KeyStored")];
    assert_eq!(told.lines(&world), stored);

    // No beat is news.
    for _ in 0..5 {
        world.beat(&agent).await;
        world.slow_beat(&agent).await;
        world.advance(HOUR);
    }
    assert_eq!(told.lines(&world), Vec::<String>::new());

    agent.rotate_keys(resource, &[], false).await.unwrap();
    agent.settle().await;
    let replaced = told.next(&world);
    assert_eq!(replaced.len(), 2, "{replaced:?}");
    for event in &replaced {
        let name = event.about.strip_prefix("Secret/").unwrap();
        assert_eq!((event.kind.as_str(), event.reason.as_str()), ("Normal", "KeyReplaced"));
        assert_eq!(event.uid, world.kube.secret(&event.namespace, name).map(|secret| secret.uid));
        assert!(event.note.contains("-2 takes the place of ") && event.note.ends_with("-1"), "{}", event.note);
    }
    world.advance(HOUR);
    world.slow_beat(&agent).await;
    assert_eq!(told.lines(&world), Vec::<String>::new(), "that the old keys end is no news of a Secret");
    world.check();
    for call in event_calls(&world) {
        assert!(!call.body.contains("sk-") && !call.body.contains("c2st"), "{}", call.body);
    }
}

#[tokio::test]
async fn what_stands_in_the_way_of_a_secret_is_told_there_and_again_after_an_hour() {
    let world = World::new(Profile::Late2026).await;
    let agent = started(&world).await;
    let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
    let mut told = Told(world.kube.events().len());
    let slug = world.waldur.resource(resource).slug;

    // Another manager writes a variable of ours.
    let chat = secret_name(Slot::Chat, &slug, resource);
    world.kube.edit_as("kubectl-edit", CHAT_NAMESPACE, &chat, |edit| {
        edit.data.insert("ENABLE_OPENAI_API".into(), "false".into());
    });
    let taken = format!("{CHAT_NAMESPACE} Secret/{chat} Warning FieldsTaken");
    for _ in 0..6 {
        world.slow_beat(&agent).await;
        world.advance(Duration::from_secs(590));
    }
    let events = told.lines(&world);
    assert_eq!(events, ["llm-access Pod/agent-0 Warning TakenSecret".to_owned(), taken.clone()]);
    let note = world.kube.events().into_iter().find(|event| event.reason == "FieldsTaken").unwrap().note;
    assert!(note.contains("kubectl-edit"), "{note}");
    for _ in 0..4 {
        world.slow_beat(&agent).await;
        world.advance(Duration::from_secs(590));
    }
    assert_eq!(told.lines(&world), [taken], "clusters forget events after an hour");

    // Something of others has the name that a new resource needs.
    let (order, other) = world.order("borealis", &["kestrel-8b"]);
    let name = secret_name(Slot::Project, &world.waldur.resource(other).slug, other);
    world.kube.edit_as("helm", KEY_NAMESPACE, &name, |edit| {
        edit.data.insert("theirs".into(), "yes".into());
    });
    for _ in 0..5 {
        world.beat(&agent).await;
        world.advance(Duration::from_secs(300));
    }
    assert_eq!(world.waldur.order_state(order), "executing");
    let lines = told.lines(&world);
    let chat = secret_name(Slot::Chat, &world.waldur.resource(other).slug, other);
    assert_eq!(
        lines,
        [
            "llm-access Pod/agent-0 Warning ForeignSecret".to_owned(),
            format!("{KEY_NAMESPACE} Secret/{name} Warning NotOurs"),
            format!("{CHAT_NAMESPACE} Secret/{chat} Normal KeyStored"),
        ]
    );
}

#[tokio::test]
async fn a_condition_is_told_at_the_pod_when_it_begins_and_when_it_ends() {
    let world = World::new(Profile::Late2026).await;
    let agent = started(&world).await;
    let mut told = Told(0);
    for name in HOSTILE {
        world.sold(&agent, name, &["kestrel-8b"]).await;
    }
    told.next(&world);
    let catalogue = std::fs::read_to_string(world.path("catalogue.yml")).unwrap();
    world.write("catalogue.yml", "");
    for _ in 0..4 {
        world.slow_beat(&agent).await;
        world.advance(HOUR);
    }
    let events = told.next(&world);
    assert_eq!(events.len(), 1, "{events:?}");
    let about = (events[0].about.as_str(), events[0].uid.as_deref(), events[0].kind.as_str(), events[0].reason.as_str());
    assert_eq!(about, ("Pod/agent-0", Some("5f1d8a53"), "Warning", "CatalogueUnreadable"));
    world.write("catalogue.yml", &catalogue);
    world.slow_beat(&agent).await;
    let events = told.next(&world);
    assert_eq!((events.len(), events[0].kind.as_str(), events[0].reason.as_str()), (1, "Normal", "CatalogueUnreadable"), "{events:?}");
    assert!(events[0].note.starts_with("no longer: "), "{}", events[0].note);

    // Many things at once are one piece of news, and what customers chose cannot write lines of its own.
    for resource in world.waldur.resources() {
        world.waldur.put_options(resource.uuid, None);
        world.waldur.rename_slug(resource.uuid, "x\n\u{202e}Normal KeyStored");
        world.gateway.edit_team(&resource.uuid.simple().to_string(), &serde_json::json!({"metadata": {"owner": "x\n\u{202e}y"}}));
        world.waldur.put_backend_id(resource.uuid, "x\n\u{202e}y");
    }
    world.advance(HOUR);
    for _ in 0..3 {
        world.slow_beat(&agent).await;
        world.advance(HOUR);
    }
    let events = told.next(&world);
    let of_backend: Vec<_> = events.iter().filter(|event| event.reason == "ForeignBackendId").collect();
    assert_eq!(of_backend.len(), 1, "{events:?}");
    assert!(events.iter().all(|event| !event.note.chars().any(|c| c.is_control() || c == '\u{202e}')), "{events:?}");

    // What comes and goes all the time is not told for ever.
    for _ in 0..200 {
        world.write("catalogue.yml", "");
        world.slow_beat(&agent).await;
        world.write("catalogue.yml", &catalogue);
        world.slow_beat(&agent).await;
        world.advance(Duration::from_secs(2));
    }
    let flapping = told.next(&world).into_iter().filter(|event| event.reason == "CatalogueUnreadable").count();
    assert!((2..=10).contains(&flapping), "{flapping}");
}

#[tokio::test]
async fn without_the_right_or_an_answer_everything_else_goes_its_way() {
    let world = World::new(Profile::Late2026).await;
    for namespace in [CHAT_NAMESPACE, KEY_NAMESPACE, "llm-access"] {
        world.kube.deny("create", "events", namespace);
    }
    let agent = started(&world).await;
    let first = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
    world.slow_beat(&agent).await;
    assert_eq!(world.kube.events(), [], "the right is needed");
    assert!(agent.conditions.all().iter().all(|(name, ..)| !name.starts_with("secrets")), "{:?}", agent.conditions.all());
    let fault = world.faults.add(
        Rule::new(Fault::Status { status: 500, headers: Vec::new(), body: "no".into(), after_effect: false })
            .peer(Peer::Kube)
            .path("/events"),
    );
    world.kube.allow_all();
    agent.rotate_keys(first, &[], true).await.unwrap();
    world.sold(&agent, "borealis", &["kestrel-8b"]).await;
    world.faults.remove(fault);
    assert_eq!(world.kube.events(), []);
    assert!(agent.conditions.all().is_empty(), "{:?}", agent.conditions.all());
    world.sold(&agent, "corona", &["kestrel-8b"]).await;
    assert_eq!(world.kube.events().len(), 2, "as soon as it can be told, it is");
    world.check();
}

#[tokio::test]
async fn nothing_waits_for_an_event() {
    let world = World::new(Profile::Late2026).await;
    let agent = started(&world).await;
    world.faults.add(Rule::new(Fault::Hold).peer(Peer::Kube).path("/events"));
    let (order, _) = world.order("aurora", &["kestrel-8b"]);
    agent.order_beat().await;
    agent.tasks.close();
    agent.tasks.wait().await;
    assert_eq!(world.waldur.order_state(order), "done", "while no event was answered");
    world.faults.release();
    agent.settle().await;
    assert_eq!(world.kube.events().len(), 2);
}

#[tokio::test]
async fn commands_that_look_tell_nothing_and_check_says_what_is_missing() {
    let world = World::in_real_time(Profile::Late2026, llm_access_tests::Store::Kube).await;
    world.kube.add_namespace("llm-access");
    let text = world.config_text(ON).replace("timeout: 400ms", "timeout: 30s");
    let config = world.write("config.yml", &text);
    world.write("catalogue.yml", "");
    let run = async |command: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_agent-under-test")).arg("--config").arg(&config).arg(command).output().await.unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let ok = run("check").await;
    assert!(ok.lines().any(|line| line.starts_with("ok") && line.contains("events") && line.contains("may be made in")), "{ok}");
    for command in ["plan", "status"] {
        run(command).await;
    }
    assert_eq!(event_calls(&world), []);
    world.kube.deny("create", "events", KEY_NAMESPACE);
    let missing = run("check").await;
    let line = missing.lines().find(|line| line.contains("events")).unwrap();
    assert!(line.starts_with("warn") && line.contains(&format!("grant verb create on events in namespace {KEY_NAMESPACE}")), "{line}");
}

#[tokio::test]
async fn they_are_off_until_they_are_turned_on() {
    let world = World::new(Profile::Late2026).await;
    let agent = world.patient().await;
    agent.secrets.events().follow_conditions();
    let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
    agent.rotate_keys(resource, &[], true).await.unwrap();
    world.write("catalogue.yml", "");
    world.slow_beat(&agent).await;
    assert_eq!((event_calls(&world), world.kube.events()), (Vec::new(), Vec::new()));
}
