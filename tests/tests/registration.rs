//! The gateway follows the catalogue: what is registered, changed and taken out there, what is left to people, and what a
//! damaged file or a broken gateway must not do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use llm_access_agent::agent::Agent;
use llm_access_agent::plan::deployment_id;
use llm_access_fixtures::faults::{Fault, Peer, Rule};
use llm_access_fixtures::litellm::Deployment;
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::{World, catalogue};
use rust_decimal::Decimal;

const MODELS: [&str; 4] = ["kestrel-8b", "heron-70b", "qwen2.5-0.5b", "qwen3-embedding-0-6b"];

/// More than the hold of a catalogue.
const HOLD: Duration = Duration::from_secs(3700);

fn dec(text: &str) -> Decimal {
    text.parse().unwrap()
}

/// A world whose gateway serves nothing yet.
async fn bare() -> World {
    let world = World::new(Profile::Late2026).await;
    for model in MODELS {
        world.gateway.remove_model(model);
    }
    world
}

/// A fresh agent that registers models.
async fn managing(world: &World) -> Agent {
    managing_with(world, "").await
}

async fn managing_with(world: &World, gateway: &str) -> Agent {
    let text = world.config_text("").replace("gateway: {", &format!("gateway: {{manage_models: true, {gateway}"));
    Agent::new(world.parse(&text), world.clock.clone()).await.unwrap()
}

/// What the gateway serves under a name; exactly one deployment.
fn served(world: &World, name: &str) -> Deployment {
    let found = all_served(world, name);
    assert_eq!(found.len(), 1, "{name}: {found:?}");
    found.into_iter().next().unwrap()
}

fn all_served(world: &World, name: &str) -> Vec<Deployment> {
    world.gateway.deployments().into_iter().filter(|deployment| deployment.name == name).collect()
}

fn names(world: &World) -> Vec<String> {
    let mut names: Vec<String> = world.gateway.deployments().into_iter().map(|deployment| deployment.name).collect();
    names.sort();
    names
}

fn writes(world: &World) -> Vec<String> {
    world.writes(Some(Peer::LiteLlm)).into_iter().filter(|write| write.contains("/model")).collect()
}

/// The message of a condition.
fn told(agent: &Agent, name: &str) -> String {
    let all = agent.conditions.all();
    let found: Vec<String> = all.iter().filter(|(held, ..)| *held == name).map(|(.., condition)| condition.message.clone()).collect();
    assert_eq!(found.len(), 1, "{name} in {all:?}");
    found.into_iter().next().unwrap()
}

fn is_quiet(agent: &Agent) {
    let about: Vec<_> = agent.conditions.all().into_iter().filter(|(name, ..)| name.starts_with("gateway")).collect();
    assert!(about.is_empty(), "{about:?}");
}

/// Beats until a model counts as gone: the time, and three distinct reads.
async fn hold_passes(world: &World, agent: &Agent) {
    for _ in 0..4 {
        agent.gateway_beat().await;
        world.advance(HOLD / 3);
    }
    agent.gateway_beat().await;
}

#[tokio::test]
async fn the_models_of_the_catalogue_are_served_at_its_prices() {
    let world = bare().await;
    world.write("model-key", "sk-server-0001\n");
    let key = format!("model_key_file: {}, ", world.path("model-key").display());
    let agent = managing_with(&world, &key).await;
    agent.offering_beat().await;
    assert_eq!(names(&world), ["heron-70b", "kestrel-8b", "qwen2.5-0.5b", "qwen3-embedding-0-6b"]);
    assert_eq!(
        served(&world, "kestrel-8b"),
        Deployment {
            id: deployment_id(&world.owner, "kestrel-8b"),
            name: "kestrel-8b".into(),
            upstream: "openai/kestrel-8b".into(),
            api_base: "http://kestrel-8b-openai.inference.svc.cluster.local:8000/v1".into(),
            api_key: Some("sk-server-0001".into()),
            input_price: Some(dec("0.00000021")),
            output_price: Some(dec("0.00000085")),
            mode: None,
            db: true,
        }
    );
    let unpriced = served(&world, "qwen2.5-0.5b");
    assert_eq!((unpriced.input_price, unpriced.output_price), (None, None), "not priced yet is not free");
    let embedder = served(&world, "qwen3-embedding-0-6b");
    assert_eq!((embedder.input_price, embedder.output_price, embedder.mode.as_deref()), (Some(dec("0.00000002")), None, Some("embedding")));
    is_quiet(&agent);

    // It is sold, and costs what the catalogue says.
    let resource = world.sold(&agent, "llm", &["kestrel-8b"]).await;
    let usage = world.gateway.chat(&world.key(resource, "project"), "kestrel-8b", "P=1000 C=100").unwrap();
    assert_eq!(usage.spend, dec("0.000295"));

    // Nothing left to do means that nothing is written, by this process or the next.
    world.faults.reset_calls();
    for agent in [agent, managing_with(&world, &key).await] {
        agent.gateway_beat().await;
        agent.gateway_beat().await;
    }
    assert_eq!(writes(&world), Vec::<String>::new());
    assert_eq!(world.faults.count(), 4, "one look each: {:?}", world.faults.calls());
    world.check();
}

/// Whether a deployment is as it should be.
type Seen = fn(&Deployment) -> bool;

#[tokio::test]
async fn what_changes_in_the_catalogue_changes_at_the_gateway_by_one_call() {
    let world = bare().await;
    let agent = managing(&world).await;
    agent.gateway_beat().await;
    let before = catalogue(&["kestrel-8b", "heron-70b", "qwen2.5-0.5b"]);
    let steps: [(&str, &str, Seen); 6] = [
        ("input_cost_per_token: 0.00000021", "input_cost_per_token: 3.3e-07", |d| {
            d.input_price == Some(Decimal::new(33, 8)) && d.output_price == Some(Decimal::new(85, 8))
        }),
        ("litellm_model_info: {input_cost_per_token: 3.3e-07, output_cost_per_token: 0.00000085}", "litellm_model_info: {}", |d| {
            d.input_price.is_none() && d.output_price.is_none()
        }),
        ("litellm_model_info: {}", "litellm_model_info: {input_cost_per_token: 0, output_cost_per_token: 0}", |d| {
            d.input_price == Some(Decimal::ZERO)
        }),
        ("name: kestrel-8b, served_name: kestrel-8b", "name: kestrel-b200, served_name: kestrel-8b", |d| {
            d.api_base == "http://kestrel-b200-openai.inference.svc.cluster.local:8000/v1"
        }),
        (
            "served_name: kestrel-8b, litellm_model_info: {",
            "served_name: kestrel-8b, orderable: false, litellm_model_info: {mode: embedding, ",
            |d| d.mode.as_deref() == Some("embedding"),
        ),
        ("orderable: false, litellm_model_info: {mode: embedding, ", "litellm_model_info: {", |d| d.mode.as_deref() == Some("chat")),
    ];
    let mut text = before;
    for (from, to, is_so) in steps {
        assert!(text.contains(from), "{from} in {text}");
        text = text.replace(from, to);
        world.write("catalogue.yml", &text);
        // A model that lost its prices keeps them for the hold: a file that was cut looks the same.
        for _ in 0..3 {
            agent.catalogue();
            world.advance(Duration::from_secs(1300));
        }
        world.faults.reset_calls();
        agent.gateway_beat().await;
        let now = served(&world, "kestrel-8b");
        assert!(is_so(&now), "{to}: {now:?}");
        assert_eq!(writes(&world), [format!("PATCH /model/{}/update", now.id)], "{to}");
        world.faults.reset_calls();
        agent.gateway_beat().await;
        assert_eq!(writes(&world), Vec::<String>::new(), "{to}");
        is_quiet(&agent);
    }
    // A rotated key reaches every server, though the gateway never shows it.
    world.write("model-key", "sk-server-0002");
    let agent = managing_with(&world, &format!("model_key_file: {}, ", world.path("model-key").display())).await;
    agent.gateway_beat().await;
    assert!(world.gateway.deployments().iter().all(|deployment| deployment.api_key.as_deref() == Some("sk-server-0002")));
    world.faults.reset_calls();
    agent.gateway_beat().await;
    assert_eq!(writes(&world), Vec::<String>::new());
    // By hand in the gateway: it returns.
    let edited = Deployment { input_price: Some(dec("9")), api_base: "http://elsewhere/v1".into(), ..served(&world, "heron-70b") };
    world.gateway.put_deployment(&edited);
    agent.gateway_beat().await;
    let returned = served(&world, "heron-70b");
    assert_eq!(
        (returned.input_price, returned.api_base.as_str()),
        (Some(dec("0.000001")), "http://heron-70b-openai.inference.svc.cluster.local:8000/v1")
    );
}

#[tokio::test]
async fn a_model_that_left_is_taken_out_after_the_hold_and_returns_as_it_was() {
    let world = bare().await;
    let agent = managing(&world).await;
    agent.gateway_beat().await;
    let before = served(&world, "heron-70b");
    world.write("catalogue.yml", &catalogue(&["kestrel-8b", "qwen2.5-0.5b"]));
    for _ in 0..3 {
        agent.gateway_beat().await;
        world.advance(Duration::from_secs(900));
    }
    assert_eq!(served(&world, "heron-70b"), before, "missed for too short a time");
    world.advance(Duration::from_secs(1800));
    agent.gateway_beat().await;
    assert_eq!(names(&world), ["kestrel-8b", "qwen2.5-0.5b", "qwen3-embedding-0-6b"]);
    is_quiet(&agent);
    world.write("catalogue.yml", &catalogue(&["kestrel-8b", "heron-70b", "qwen2.5-0.5b"]));
    agent.gateway_beat().await;
    assert_eq!(served(&world, "heron-70b"), before);
}

#[tokio::test]
async fn a_model_that_left_while_no_agent_ran_is_held_and_then_taken_out() {
    let world = bare().await;
    managing(&world).await.gateway_beat().await;
    world.write("catalogue.yml", &catalogue(&["kestrel-8b", "qwen2.5-0.5b"]));
    let agent = managing(&world).await;
    agent.gateway_beat().await;
    assert_eq!(names(&world).len(), 4, "absence needs proof");
    hold_passes(&world, &agent).await;
    assert_eq!(names(&world), ["kestrel-8b", "qwen2.5-0.5b", "qwen3-embedding-0-6b"]);
}

#[tokio::test]
async fn a_damaged_catalogue_takes_nothing_out() {
    for damaged in ["", "inference_models:\n", "inference_models: []\n", "inference_models:\n  - {name: kes", "\u{0}\u{1}", &catalogue(&[])]
    {
        let world = bare().await;
        let agent = managing(&world).await;
        agent.gateway_beat().await;
        let before = world.gateway.deployments();
        world.write("catalogue.yml", damaged);
        world.faults.reset_calls();
        hold_passes(&world, &agent).await;
        assert_eq!(world.gateway.deployments(), before, "{damaged:?}");
        assert_eq!(writes(&world), Vec::<String>::new(), "{damaged:?}");
        // A process that never saw the whole file does no more.
        let agent = managing(&world).await;
        hold_passes(&world, &agent).await;
        assert_eq!(world.gateway.deployments(), before, "{damaged:?}");
    }
    let world = bare().await;
    let agent = managing(&world).await;
    agent.gateway_beat().await;
    std::fs::remove_file(world.path("catalogue.yml")).unwrap();
    hold_passes(&world, &agent).await;
    assert_eq!(names(&world).len(), 4);
}

#[tokio::test]
async fn deployments_of_others_are_never_touched() {
    let world = bare().await;
    // One of the configuration file under a name of ours, one that somebody made through the API, and a public name that
    // shares its upstream model with ours.
    world.gateway.add_model("kestrel-8b", Some("0.5"), None);
    let by_hand = Deployment {
        id: "by-hand".into(),
        name: "heron-70b".into(),
        upstream: "openai/other".into(),
        api_base: "http://other/v1".into(),
        api_key: None,
        input_price: Some(dec("0.000001")),
        output_price: Some(dec("0.000002")),
        mode: None,
        db: true,
    };
    world.gateway.put_deployment(&by_hand);
    world.gateway.put_deployment(&Deployment {
        id: "osprey".into(),
        name: "osprey".into(),
        upstream: "openai/qwen2.5-0.5b".into(),
        ..by_hand.clone()
    });
    let others = world.gateway.deployments();
    let agent = managing(&world).await;
    for _ in 0..2 {
        agent.gateway_beat().await;
        assert_eq!(world.gateway.deployments()[..3], others, "as they were");
        assert_eq!(served(&world, "qwen2.5-0.5b").id, deployment_id(&world.owner, "qwen2.5-0.5b"));
        let not_ours = told(&agent, "gateway-model-not-ours");
        assert!(
            not_ours.contains("kestrel-8b is served by cfg-kestrel-8b") && not_ours.contains("heron-70b is served by by-hand"),
            "{not_ours}"
        );
        let price = told(&agent, "gateway-price");
        assert!(
            price.contains("kestrel-8b: an input token costs 0.5 at the gateway (deployment cfg-kestrel-8b) and 0.00000021"),
            "{price}"
        );
        assert!(told(&agent, "gateway-model-not-listed").contains("osprey"));
        assert!(told(&agent, "gateway-shared-upstream").contains("osprey, qwen2.5-0.5b are all openai/qwen2.5-0.5b"));
    }
    // Out of the way, ours comes; and what was said is over.
    world.gateway.remove_model("kestrel-8b");
    world.gateway.remove_model("heron-70b");
    world.gateway.remove_model("osprey");
    agent.gateway_beat().await;
    assert!(MODELS.iter().all(|model| served(&world, model).id == deployment_id(&world.owner, model)));
    is_quiet(&agent);
    // One that comes later beside ours is named, and ours stays.
    world.gateway.put_deployment(&by_hand);
    agent.gateway_beat().await;
    assert_eq!(all_served(&world, "heron-70b").len(), 2);
    assert!(told(&agent, "gateway-model-not-ours").contains("by our deployment and by by-hand"));
    // All of this survives that the models leave the catalogue.
    world.write("catalogue.yml", &catalogue(&["kestrel-8b", "qwen2.5-0.5b"]));
    hold_passes(&world, &agent).await;
    assert_eq!(served(&world, "heron-70b"), by_hand);
}

#[tokio::test]
async fn a_configuration_file_with_our_id_is_left_to_people() {
    let world = bare().await;
    let id = deployment_id(&world.owner, "kestrel-8b");
    world.gateway.add_deployment(&id, "kestrel-8b", "openai/else", Some("1"), Some("1"));
    let before = served(&world, "kestrel-8b");
    let agent = managing(&world).await;
    world.faults.reset_calls();
    agent.gateway_beat().await;
    assert_eq!(served(&world, "kestrel-8b"), before);
    assert!(!writes(&world).iter().any(|write| write.contains(&id)), "{:?}", writes(&world));
    assert!(told(&agent, "gateway-model-not-ours").contains(&id));
    assert!(told(&agent, "gateway-price").contains(&id));
}

#[tokio::test]
async fn two_environments_on_one_gateway_leave_each_other_alone() {
    let world = bare().await;
    let ours = managing(&world).await;
    let text = world.config_text("").replace("gateway: {", "gateway: {manage_models: true, ").replace("owner: icarus", "owner: delos");
    let text = text.replace("/catalogue.yml", "/delos.yml");
    world.write("delos.yml", &catalogue(&["kestrel-8b", "osprey-1b"]));
    let theirs = Agent::new(world.parse(&text), world.clock.clone()).await.unwrap();
    ours.gateway_beat().await;
    theirs.gateway_beat().await;
    ours.gateway_beat().await;
    assert_eq!(names(&world), ["heron-70b", "kestrel-8b", "osprey-1b", "qwen2.5-0.5b", "qwen3-embedding-0-6b"]);
    assert_eq!(served(&world, "osprey-1b").id, deployment_id("delos", "osprey-1b"));
    assert_ne!(deployment_id("delos", "osprey-1b"), deployment_id("icarus", "osprey-1b"));
    is_quiet(&ours);
    // What one drops, the other does not: it takes it over when the name is free.
    let kestrel = served(&world, "kestrel-8b").id;
    assert_eq!(kestrel, deployment_id("icarus", "kestrel-8b"));
    assert!(told(&theirs, "gateway-model-not-ours").contains(&kestrel));
    world.write("catalogue.yml", &catalogue(&["heron-70b", "qwen2.5-0.5b"]));
    hold_passes(&world, &ours).await;
    theirs.gateway_beat().await;
    assert_eq!(served(&world, "kestrel-8b").id, deployment_id("delos", "kestrel-8b"));
    assert_eq!(served(&world, "osprey-1b").id, deployment_id("delos", "osprey-1b"));
}

#[tokio::test]
async fn a_gateway_without_its_database_changes_nothing() {
    let world = bare().await;
    let agent = managing(&world).await;
    agent.gateway_beat().await;
    let before = world.gateway.deployments();
    world.gateway.set_database(false);
    world.write("catalogue.yml", &catalogue(&["kestrel-8b", "qwen2.5-0.5b", "osprey-1b"]));
    world.faults.reset_calls();
    hold_passes(&world, &agent).await;
    assert_eq!(writes(&world), Vec::<String>::new());
    assert!(told(&agent, "gateway-models-unread").contains("nothing is changed there"));
    world.gateway.set_database(true);
    assert_eq!(world.gateway.deployments(), before);
    agent.gateway_beat().await;
    is_quiet(&agent);
    assert!(all_served(&world, "osprey-1b").len() == 1, "{:?}", names(&world));
}

/// Makes, changes and takes out models with one fault at call `k` of the pass that changes most; returns how many calls that
/// pass is.
async fn story(world: &World, plan: Option<(usize, Fault)>) -> usize {
    let agent = managing(world).await;
    agent.gateway_beat().await;
    let text = catalogue(&["kestrel-8b", "qwen2.5-0.5b"]).replace("0.00000021", "0.00000042");
    world.write("catalogue.yml", &text);
    for _ in 0..3 {
        agent.gateway_beat().await;
        world.advance(HOLD / 3);
    }
    // The model that left is gone by now; one is new, one is changed in the catalogue and one by hand.
    let text =
        catalogue(&["kestrel-8b", "qwen2.5-0.5b", "osprey-1b"]).replace("0.00000021", "0.00000063").replace("0.00000085", "0.00000170");
    world.write("catalogue.yml", &text);
    world.gateway.put_deployment(&Deployment { output_price: Some(Decimal::ONE), ..served(world, "qwen2.5-0.5b") });
    world.faults.reset_calls();
    if let Some((k, fault)) = plan {
        world.faults.at_call(k, fault);
    }
    let killed = tokio::select! {
        () = agent.gateway_beat() => false,
        () = world.faults.killed() => true,
    };
    let calls = world.faults.count();
    world.faults.clear();
    // A process that goes on, or one that begins anew.
    let next = if killed { managing(world).await } else { agent };
    world.advance(Duration::from_secs(700));
    for _ in 0..5 {
        next.gateway_beat().await;
        world.advance(HOLD / 3);
    }
    is_quiet(&next);
    calls
}

/// With `fault` at each call in turn, every model is served once in the end, as the catalogue says.
async fn survives(fault: Fault) {
    let is_right = |world: &World, what: &str| {
        let all = world.gateway.deployments();
        assert_eq!(names(world), ["kestrel-8b", "osprey-1b", "qwen2.5-0.5b", "qwen3-embedding-0-6b"], "{what}");
        let kestrel = served(world, "kestrel-8b");
        assert_eq!((kestrel.input_price, kestrel.output_price), (Some(dec("0.00000063")), Some(dec("0.0000017"))), "{what}: {all:?}");
        assert_eq!(served(world, "qwen2.5-0.5b").output_price, None, "{what}: {all:?}");
    };
    let world = bare().await;
    let calls = story(&world, None).await;
    is_right(&world, "no fault");
    assert_eq!(calls, 6, "a look, four writes, a look: {:?}", world.faults.calls());
    for k in 1..=calls {
        let world = bare().await;
        story(&world, Some((k, fault.clone()))).await;
        is_right(&world, &format!("call {k}, {fault:?}"));
    }
}

#[tokio::test]
async fn a_call_that_is_refused_is_made_up_for() {
    survives(Fault::Refuse).await;
    survives(Fault::status(500, "oops")).await;
    survives(Fault::status(429, "")).await;
}

#[tokio::test]
async fn a_lost_answer_is_made_up_for() {
    survives(Fault::LoseAnswer).await;
    survives(Fault::Truncate).await;
}

#[tokio::test]
async fn a_process_that_is_killed_before_a_call_is_made_up_for() {
    survives(Fault::Kill { after_effect: false }).await;
}

#[tokio::test]
async fn a_process_that_is_killed_after_a_call_is_made_up_for() {
    survives(Fault::Kill { after_effect: true }).await;
}

#[tokio::test]
async fn a_model_made_by_somebody_else_in_the_same_moment_is_read_back() {
    let world = bare().await;
    let agent = managing(&world).await;
    let other = managing(&world).await;
    // The other replica is faster by one call.
    let gateway = world.gateway.clone();
    let id = deployment_id(&world.owner, "kestrel-8b");
    world.faults.before_call(2, move || {
        gateway.put_deployment(&Deployment {
            id,
            name: "kestrel-8b".into(),
            upstream: "openai/kestrel-8b".into(),
            api_base: "http://kestrel-8b-openai.inference.svc.cluster.local:8000/v1".into(),
            api_key: Some("none".into()),
            input_price: Some(Decimal::new(21, 8)),
            output_price: Some(Decimal::new(85, 8)),
            mode: None,
            db: true,
        });
    });
    agent.gateway_beat().await;
    other.gateway_beat().await;
    world.advance(Duration::from_secs(700));
    agent.gateway_beat().await;
    is_quiet(&agent);
    assert_eq!(names(&world).len(), 4, "{:?}", names(&world));
}

#[tokio::test]
async fn a_change_that_the_gateway_does_not_keep_is_told_and_not_repeated_at_every_beat() {
    let world = bare().await;
    // Says yes and does nothing.
    world.faults.add(Rule::new(Fault::status(200, "{}")).peer(Peer::LiteLlm).path("/model/new").body("heron-70b"));
    // Cannot store models at all.
    world.faults.add(
        Rule::new(Fault::status(400, r#"{"error":{"message":"{'error': 'Set STORE_MODEL_IN_DB'}","type":"auth_error","code":"400"}}"#))
            .peer(Peer::LiteLlm)
            .path("/model/new")
            .body("qwen2.5"),
    );
    let agent = managing(&world).await;
    agent.gateway_beat().await;
    let said = told(&agent, "gateway-model-not-kept");
    assert!(said.contains("register model heron-70b") && said.contains("does not show it") && said.contains("STORE_MODEL_IN_DB"), "{said}");
    assert!(told(&agent, "gateway-model-missing").contains("heron-70b"));
    assert_eq!(names(&world), ["kestrel-8b", "qwen3-embedding-0-6b"], "the others are registered all the same");
    world.faults.reset_calls();
    for _ in 0..9 {
        world.advance(Duration::from_secs(60));
        agent.gateway_beat().await;
    }
    assert_eq!(writes(&world), Vec::<String>::new());
    assert!(told(&agent, "gateway-model-not-kept").contains("heron-70b"));
    world.faults.clear();
    world.advance(Duration::from_secs(61));
    agent.gateway_beat().await;
    assert_eq!(names(&world).len(), 4);
    is_quiet(&agent);
}

#[tokio::test]
async fn a_replica_that_has_not_heard_of_a_model_yet_does_no_harm() {
    let world = bare().await;
    let agent = managing(&world).await;
    agent.gateway_beat().await;
    let before = world.gateway.deployments();
    // A listing without the new models, as of a moment ago.
    world.faults.add(Rule::new(Fault::status(200, r#"{"data":[]}"#)).peer(Peer::LiteLlm).path("/model/info").times(2));
    agent.gateway_beat().await;
    assert_eq!(world.gateway.deployments(), before);
    agent.gateway_beat().await;
    is_quiet(&agent);
    assert_eq!(world.gateway.deployments(), before);
}

#[tokio::test]
async fn without_manage_models_differences_are_told_and_nothing_is_written() {
    let world = World::new(Profile::Y2024).await;
    let agent = world.agent().await;
    agent.offering_beat().await;
    is_quiet(&agent);
    world.gateway.remove_model("heron-70b");
    world.gateway.add_model("kestrel-8b", Some("0.00000021"), Some("0.0000008500001"));
    world.gateway.add_model("qwen2.5-0.5b", Some("0.1"), None);
    world.gateway.add_deployment("alias", "kestrel", "openai/kestrel-8b", None, None);
    world.gateway.add_deployment("any", "openai/*", "openai/*", None, None);
    world.faults.reset_calls();
    agent.gateway_beat().await;
    agent.gateway_beat().await;
    assert_eq!(writes(&world), Vec::<String>::new());
    assert!(told(&agent, "gateway-model-missing").contains("heron-70b"));
    let listed = told(&agent, "gateway-model-not-listed");
    assert!(listed.contains("model kestrel ") && !listed.contains('*'), "{listed}");
    let prices = told(&agent, "gateway-price");
    assert!(
        prices.contains("an output token costs 0.0000008500001 at the gateway (deployment cfg-kestrel-8b) and 0.00000085 in the catalogue"),
        "{prices}"
    );
    assert!(prices.contains("qwen2.5-0.5b: an input token costs 0.1") && prices.contains("not priced in the catalogue"), "{prices}");
    assert!(told(&agent, "gateway-shared-upstream").contains("kestrel, kestrel-8b"));
    // Put right by hand, it is over.
    world.gateway.add_model("heron-70b", Some("0.000001"), Some("0.000002"));
    world.gateway.add_model("kestrel-8b", Some("0.00000021"), Some("0.00000085"));
    world.gateway.add_model("qwen2.5-0.5b", None, None);
    world.gateway.remove_model("kestrel");
    agent.gateway_beat().await;
    is_quiet(&agent);
}

#[tokio::test]
async fn a_follower_registers_nothing() {
    let world = bare().await;
    let agent = managing(&world).await;
    agent.leading.store(false, std::sync::atomic::Ordering::Release);
    agent.gateway_beat().await;
    assert_eq!(names(&world), Vec::<String>::new());
}

#[tokio::test]
async fn a_key_file_that_cannot_be_read_registers_nothing() {
    let world = bare().await;
    let agent = managing_with(&world, &format!("model_key_file: {}, ", world.path("nosuch").display())).await;
    agent.gateway_beat().await;
    assert_eq!(names(&world), Vec::<String>::new());
    assert!(told(&agent, "gateway-models-unread").contains("nosuch"));
    world.write("nosuch", "sk-server-0001");
    agent.gateway_beat().await;
    assert_eq!(names(&world).len(), 4);
    is_quiet(&agent);
}
