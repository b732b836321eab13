//! What customers see, with a real LiteLLM proxy on PostgreSQL as the gateway.
#![cfg(feature = "real")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use llm_access_fixtures::faults::{Fault, Peer, Rule};
use llm_access_fixtures::litellm_conformance;
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::checker::hash;
use llm_access_tests::real::{Outage, RealStore, RealWorld, Time, Variant, command, eventually, started, told};
use reqwest::Method;
use serde_json::{Value, json};

/// A drain that waits out the rows of this proxy, which come within ten seconds.
const SHORT: &str = "terminate: {drain: 12s, settle: 4s, allow_short_drain: true}\n";

fn number(value: &Value) -> String {
    value.as_f64().map_or_else(|| value.to_string(), |number| number.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_orders_uses_changes_and_ends_access() {
    let world = RealWorld::start(Profile::Late2026, Variant::Default, RealStore::Directory, Time::Real).await;
    let agent = world.agent_of(&world.config_text(SHORT)).await;
    let (order, resource) = world.waldur.order(world.offering, &world.project, "seabird-llm", &["kestrel-8b"], &[("max_budget", "5")]);
    world.beat(&agent).await;
    assert_eq!(world.waldur.order_state(order), "done", "{:?}", agent.conditions.all());
    world.check().await;
    let id = resource.simple().to_string();
    let team = world.gateway.team(&id).await.unwrap();
    assert_eq!((number(&team["max_budget"]), number(&team["rpm_limit"])), ("5".into(), "600".into()));

    // What was delivered is all one needs, and it is good for what was ordered only.
    let mut tokens = 0;
    for slot in ["project", "chat"] {
        let answer = world.chat(resource, slot, "kestrel-8b", "P=100 C=20").await.unwrap();
        assert_eq!(answer["usage"]["prompt_tokens"], 100);
        tokens += 100;
        let (status, why) = world.chat(resource, slot, "heron-70b", "P=1 C=1").await.unwrap_err();
        assert_eq!(status, 403, "{why}");
    }
    let chat = &world.secrets(resource).await["chat"];
    let embedded = world
        .gateway
        .embed(&chat["RAG_OPENAI_API_BASE_URL"], &chat["RAG_OPENAI_API_KEY"], &chat["RAG_EMBEDDING_MODEL"], "P=50")
        .await
        .unwrap();
    assert_eq!(embedded["usage"]["prompt_tokens"], 50);
    tokens += 50;

    // Paused: refused at once. Unpaused: as before.
    world.waldur.pause(resource, true);
    world.slow_beat(&agent).await;
    for slot in ["project", "chat"] {
        let (status, why) = world.chat(resource, slot, "kestrel-8b", "P=1 C=1").await.unwrap_err();
        assert!(status == 401 && why.contains("is blocked"), "{status} {why}");
    }
    world.waldur.pause(resource, false);
    world.slow_beat(&agent).await;
    world.chat(resource, "project", "kestrel-8b", "P=100 C=20").await.unwrap();
    tokens += 100;

    // Fewer requests per minute.
    let keys = (world.key(resource, "project").await, world.key(resource, "chat").await);
    let order = world.waldur.update_limits(resource, &[("max_budget", "5"), ("rpm_limit", "2")]);
    world.run_to_rest(&agent).await;
    assert_eq!(world.waldur.order_state(order), "done");
    let refused =
        eventually("a refusal of too many requests", async || match world.chat(resource, "project", "kestrel-8b", "P=100 C=20").await {
            Err(refusal) => Ok(refusal),
            Ok(_) => {
                tokens += 100;
                Err("an answer".to_owned())
            }
        })
        .await;
    assert_eq!(refused.0, 429, "{}", refused.1);

    // More models, more requests, and a budget that one call exceeds.
    let order = world.waldur.update_limits(resource, &[("max_budget", "0.02")]);
    world.run_to_rest(&agent).await;
    assert_eq!(world.waldur.order_state(order), "done");
    world.waldur.update_options(resource, &json!({"models": ["heron-70b", "kestrel-8b"]}));
    world.run_to_rest(&agent).await;
    world.slow_beat(&agent).await;
    let team = world.gateway.team(&id).await.unwrap();
    assert_eq!((number(&team["max_budget"]), number(&team["rpm_limit"])), ("0.02".into(), "600".into()));
    assert!(world.secrets(resource).await["chat"]["OPENAI_API_CONFIGS"].contains("heron-70b"));
    world.check().await;
    let refused =
        eventually("a refusal for the budget", async || match world.chat(resource, "project", "heron-70b", "P=15000 C=2500").await {
            Err(refusal) => Ok(refusal),
            Ok(_) => {
                tokens += 15_000;
                Err("an answer".to_owned())
            }
        })
        .await;
    assert!(refused.1.starts_with("budget_exceeded"), "{refused:?}");
    assert_eq!((world.key(resource, "project").await, world.key(resource, "chat").await), keys, "changes keep the keys");

    // Nothing left to do means that nothing is written.
    world.slow_beat(&agent).await;
    world.faults.reset_calls();
    for _ in 0..3 {
        world.slow_beat(&agent).await;
        world.beat(&agent).await;
    }
    assert_eq!(world.writes(), Vec::<String>::new());

    // The end.
    let order = world.waldur.terminate(resource);
    world.beat(&agent).await;
    assert_eq!(world.waldur.order_state(order), "executing", "calls in flight are waited out");
    let url = format!("{}v1", world.gateway.url);
    let (status, why) = world.gateway.chat(&url, &keys.0, "kestrel-8b", "P=1 C=1").await.unwrap_err();
    assert!(status == 401 && why.contains("is blocked"), "{status} {why}");
    world.run_to_rest(&agent).await;
    assert_eq!(world.waldur.order_state(order), "done");
    assert_eq!(world.waldur.resource(resource).state, "Terminated");
    let ledger = world.gateway.ledger(&id).await;
    assert!(ledger.prompt_tokens >= tokens, "{ledger:?}, of which {tokens} were answered");
    assert_eq!(world.usages(resource), ledger.amounts(false));
    for key in [&keys.0, &keys.1] {
        let (status, why) = world.gateway.chat(&url, key, "kestrel-8b", "P=1 C=1").await.unwrap_err();
        assert!(status == 401 && why.starts_with("token_not_found_in_db"), "{status} {why}");
    }
    assert!(world.gateway.team(&id).await.is_none());
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_outage_delays_orders_and_spoils_none() {
    let world = RealWorld::start(Profile::Late2026, Variant::Default, RealStore::Directory, Time::Manual).await;
    let agent = world.agent().await;
    let ending = world.sold(&agent, "ending", &["kestrel-8b"], &[("max_budget", "5")]).await;
    let staying = world.sold(&agent, "staying", &["kestrel-8b"], &[("max_budget", "5")]).await;
    world.chat(ending, "project", "kestrel-8b", "P=2000 C=300").await.unwrap();
    let ledger = world.ledger_shows(ending, 2000).await;

    // One order is half through, one is being ended, and one comes during the outage.
    let terminate = world.waldur.terminate(ending);
    world.beat(&agent).await;
    world.faults.add(Rule::new(Fault::status(503, "")).peer(Peer::LiteLlm).path("/key/generate"));
    let (half, half_resource) = world.waldur.order(world.offering, &world.project, "half", &["kestrel-8b"], &[("max_budget", "5")]);
    world.beat(&agent).await;
    world.faults.clear();
    assert!(world.gateway.team(&half_resource.simple().to_string()).await.is_some());
    let outage = Outage::of("database").await;
    let (late, late_resource) = world.waldur.order(world.offering, &world.project, "late", &["heron-70b"], &[("max_budget", "5")]);
    let update = world.waldur.update_limits(staying, &[("max_budget", "7")]);
    for _ in 0..6 {
        world.advance(Duration::from_secs(300)).await;
        world.beat(&agent).await;
        world.slow_beat(&agent).await;
    }
    for order in [terminate, half, late, update] {
        assert_eq!(world.waldur.order_state(order), "executing", "{:?}", agent.schedule.waiting());
        assert_eq!(world.waldur.error_of(order), "");
    }
    for resource in [ending, half_resource, late_resource] {
        assert_eq!(world.usages(resource).len(), 0, "nothing was read that could be reported");
    }
    assert!(world.secrets(ending).await.len() == 2, "nothing is removed before its usage is known");

    outage.over();
    eventually("a ready proxy", async || {
        let (status, answer) = world.gateway.ask(Method::GET, world.gateway.url.join("health/readiness").unwrap().as_str(), "", None).await;
        if status == 200 { Ok(()) } else { Err(answer.to_string()) }
    })
    .await;
    world.advance(Duration::from_secs(1200)).await;
    world.run_to_rest(&agent).await;
    for order in [terminate, half, late, update] {
        assert_eq!(world.waldur.order_state(order), "done");
    }
    assert_eq!(world.waldur.resource(ending).state, "Terminated");
    assert_eq!(world.usages(ending), ledger.amounts(false));
    assert_eq!(number(&world.gateway.team(&staying.simple().to_string()).await.unwrap()["max_budget"]), "7");
    // One team and two keys each, which work.
    world.check().await;
    for (resource, model) in [(half_resource, "kestrel-8b"), (late_resource, "heron-70b")] {
        for slot in ["project", "chat"] {
            world.chat(resource, slot, model, "P=1 C=1").await.unwrap();
        }
    }
    assert!(
        !agent.conditions.holds("gateway-credential") && !agent.conditions.holds("gateway-unreachable"),
        "{:?}",
        agent.conditions.all()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_agent_is_replaced_at_every_write_of_a_create_and_of_an_end() {
    let world = RealWorld::start(Profile::V8_0, Variant::Default, RealStore::Directory, Time::Manual).await;
    let models = &["kestrel-8b"];
    let gateway_writes = || world.faults.calls().into_iter().filter(|call| call.peer == Peer::LiteLlm && call.method == "POST").count();
    // The calls of a create that goes well: one team, two keys.
    let (_, first) = world.waldur.order(world.offering, &world.project, "first", models, &[]);
    world.process().await.run_to_rest(&world).await;
    let creating = gateway_writes();
    assert!(creating >= 3, "{:?}", world.faults.calls());
    let mut resources = vec![first];
    for k in 1..=creating {
        for fault in [Fault::Kill { after_effect: true }, Fault::LoseAnswer] {
            let kills = usize::from(matches!(fault, Fault::Kill { .. }));
            world.faults.add(Rule::new(fault).peer(Peer::LiteLlm).method("POST").nth(k).once());
            let (order, resource) = world.waldur.order(world.offering, &world.project, &format!("create-{k}-{kills}"), models, &[]);
            assert_eq!(world.process().await.run_to_rest(&world).await, kills);
            world.faults.clear();
            assert_eq!(world.waldur.order_state(order), "done");
            resources.push(resource);
        }
    }
    world.check().await;

    // Block, two keys, team.
    for (k, resource) in resources.into_iter().enumerate().take(5) {
        if k > 0 {
            world.faults.add(Rule::new(Fault::Kill { after_effect: true }).peer(Peer::LiteLlm).method("POST").nth(k).once());
        }
        let order = world.waldur.terminate(resource);
        let killed = world.process().await.run_to_rest(&world).await;
        world.faults.clear();
        assert_eq!(killed, usize::from(k > 0), "kill at write {k}");
        assert_eq!(world.waldur.order_state(order), "done");
    }
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_at_the_same_time_do_not_get_into_each_others_way() {
    let world = RealWorld::start(Profile::Late2026, Variant::Default, RealStore::Directory, Time::Manual).await;
    let agent = world.agent().await;
    let orders: Vec<_> =
        (0..12).map(|n| world.waldur.order(world.offering, &world.project, &format!("many-{n}"), &["kestrel-8b"], &[])).collect();
    world.run_to_rest(&agent).await;
    for (order, _) in &orders {
        assert_eq!(world.waldur.order_state(*order), "done");
    }
    assert!(world.faults.in_flight_max() > 4, "they were carried out one after the other");
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_proxy_gives_every_team_and_nobody_ordered_is_cleared() {
    let world = RealWorld::start(Profile::Late2026, Variant::TeamDefaults, RealStore::Directory, Time::Manual).await;
    let agent = world.agent_of(&world.config_text_with("{allow_unlimited: true}", "")).await;
    let unlimited = world.sold(&agent, "unlimited", &["kestrel-8b"], &[]).await;
    let capped = world.sold(&agent, "capped", &["kestrel-8b"], &[("max_budget", "12.5")]).await;
    let caps = async |resource: uuid::Uuid| {
        let team = world.gateway.team(&resource.simple().to_string()).await.unwrap();
        (team["max_budget"].clone(), team["tpm_limit"].clone(), team["rpm_limit"].clone(), team["budget_duration"].clone())
    };
    assert_eq!(caps(unlimited).await, (json!(null), json!(null), json!(null), json!("1mo")));
    assert_eq!(caps(capped).await, (json!(12.5), json!(null), json!(null), json!("1mo")));
    // A cap nobody ordered would refuse this, and so would one that comes back.
    world.chat(unlimited, "project", "kestrel-8b", "P=1500 C=10").await.unwrap();
    world.faults.reset_calls();
    for _ in 0..10 {
        world.slow_beat(&agent).await;
    }
    assert_eq!(world.writes(), Vec::<String>::new());
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_chooses_keys_itself_is_served_too() {
    let world = RealWorld::start(Profile::Late2026, Variant::NoCustomKeys, RealStore::Directory, Time::Manual).await;
    let agent = world.agent().await;
    let resource = world.sold(&agent, "minted", &["kestrel-8b"], &[("max_budget", "5")]).await;
    world.check().await;
    for slot in ["project", "chat"] {
        world.chat(resource, slot, "kestrel-8b", "P=1 C=1").await.unwrap();
    }
    assert!(!agent.conditions.holds("gateway-credential"), "{:?}", agent.conditions.all());
    world.slow_beat(&agent).await;
    world.faults.reset_calls();
    world.slow_beat(&agent).await;
    assert_eq!(world.writes(), Vec::<String>::new());

    // Killed when the proxy has made a key that is stored nowhere yet: what cannot be recovered is deleted.
    // The first call of a fresh agent is refused, since it brings a key; the next two make keys.
    let lost =
        [(2, Fault::Kill { after_effect: true }), (3, Fault::Kill { after_effect: true }), (2, Fault::LoseAnswer), (3, Fault::LoseAnswer)];
    for (n, (call, fault)) in lost.into_iter().enumerate() {
        let kills = usize::from(matches!(fault, Fault::Kill { .. }));
        world.faults.reset_calls();
        world.faults.add(Rule::new(fault).peer(Peer::LiteLlm).path("/key/generate").nth(call).once());
        let (order, _) = world.waldur.order(world.offering, &world.project, &format!("killed-{n}"), &["kestrel-8b"], &[]);
        assert_eq!(world.process().await.run_to_rest(&world).await, kills, "round {n}");
        assert!(world.faults.calls().iter().any(|call| call.fault), "the fault was never met");
        world.faults.clear();
        assert_eq!(world.waldur.order_state(order), "done");
        world.check().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_administrator_broke_by_hand_comes_back() {
    let world = RealWorld::start(Profile::Late2026, Variant::Default, RealStore::Directory, Time::Manual).await;
    let agent = world.agent().await;
    let resource = world.sold(&agent, "drifting", &["kestrel-8b"], &[("max_budget", "5")]).await;
    let id = resource.simple().to_string();
    let before = world.secrets(resource).await;

    // A limit, the mark among other entries, the models.
    world.gateway.write("team/update", json!({"team_id": id, "max_budget": 900, "models": [], "metadata": {"cost_centre": "77"}})).await;
    world.slow_beat(&agent).await;
    let team = world.gateway.team(&id).await.unwrap();
    assert_eq!(team["metadata"]["cost_centre"], "77");
    assert_eq!((number(&team["max_budget"]), &team["models"]), ("5".into(), &json!(["kestrel-8b", "qwen3-embedding-0-6b"])));
    world.check().await;

    // A key; and the team with all its keys. Both come back with the values that people have already.
    world.gateway.write("key/delete", json!({"keys": [hash(&before["project"]["OPENAI_API_KEY"])]})).await;
    world.slow_beat(&agent).await;
    world.check().await;
    world.gateway.write("team/delete", json!({"team_ids": [id]})).await;
    world.slow_beat(&agent).await;
    world.check().await;
    assert_eq!(world.secrets(resource).await, before);
    world.chat(resource, "project", "kestrel-8b", "P=1 C=1").await.unwrap();

    // A team of somebody else under the id of a new resource is left alone.
    let (order, foreign) = world.waldur.order(world.offering, &world.project, "foreign", &["kestrel-8b"], &[]);
    let foreign_id = foreign.simple().to_string();
    world.gateway.write("team/new", json!({"team_id": foreign_id, "team_alias": "somebody", "models": ["heron-70b"]})).await;
    world.beat(&agent).await;
    world.advance(Duration::from_secs(60)).await;
    world.beat(&agent).await;
    assert_eq!(world.waldur.order_state(order), "executing");
    assert!(agent.conditions.holds("foreign-team"), "{:?}", agent.conditions.all());
    let team = world.gateway.team(&foreign_id).await.unwrap();
    assert_eq!((&team["models"], &team["metadata"]["owner"]), (&json!(["heron-70b"]), &Value::Null));
    world.gateway.write("team/delete", json!({"team_ids": [foreign_id]})).await;
    world.advance(Duration::from_secs(600)).await;
    world.run_to_rest(&agent).await;
    assert_eq!(world.waldur.order_state(order), "done");
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_simulators_questions_have_the_same_answers_here() {
    rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
    let verdicts = litellm_conformance::suite(&Variant::Default.url(), &told("LITELLM_MASTER_KEY")).await;
    assert!(verdicts.len() > 20);
    let wrong: Vec<String> = verdicts.into_iter().filter_map(|(name, verdict)| Some(format!("{name}: {}", verdict.err()?))).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_serves_an_order_from_check_to_sigterm() {
    let world = RealWorld::start(Profile::V8_0, Variant::Default, RealStore::Directory, Time::Real).await;
    let more = format!(
        "{SHORT}intervals: {{orders: 1s, resources: 1s, offering: 1s, usage: 1s}}\nbackoff: {{initial: 1s, max: 2s}}\nhttp: {{listen: \"127.0.0.1:0\"}}\n"
    );
    let config = world.write("agent.yml", &world.config_text(&more));
    let log = world.write("agent.log", "");
    let one_off = async |arguments: &[&str]| {
        let outcome = command(&config, arguments).await;
        assert_eq!(outcome.code, Some(0), "{arguments:?}: {outcome:?}");
        outcome.printed
    };

    let said = one_off(&["check"]).await;
    assert!(said.contains("0 failed"), "{said}");
    let said = one_off(&["plan"]).await;
    assert!(said.contains("create component kestrel-8b:input"), "{said}");
    let (order, resource) = world.waldur.order(world.offering, &world.project, "seabird-llm", &["kestrel-8b"], &[("max_budget", "5")]);
    let id = resource.simple().to_string();
    let said = one_off(&["plan"]).await;
    assert!(said.contains(&order.simple().to_string()) && said.contains("approve it"), "{said}");
    assert_eq!(world.writes(), Vec::<String>::new(), "so far it was only looked at");

    let daemon = started(&config, &log);
    eventually("the done order", async || match world.waldur.order_state(order).as_str() {
        "done" => Ok(()),
        state => Err(format!("{state}:{daemon}")),
    })
    .await;
    world.check().await;
    let port = daemon.port().await;
    for path in ["livez", "readyz", "status", "metrics"] {
        let (status, answer) = world.gateway.ask(Method::GET, &format!("http://127.0.0.1:{port}/{path}"), "", None).await;
        assert_eq!(status, 200, "{path}: {answer}");
    }
    let mut shown = Vec::new();
    for arguments in [&["keys", "show", &id][..], &["keys", "show", &id, "--chat"]] {
        shown.push(one_off(arguments).await.trim_end().to_owned());
    }
    assert_eq!(shown, [world.key(resource, "project").await, world.key(resource, "chat").await]);
    let url = format!("{}v1", world.gateway.url);
    for key in &shown {
        world.gateway.chat(&url, key, "kestrel-8b", "P=1200 C=40").await.unwrap();
    }
    eventually("a plan with nothing in it", async || {
        let said = one_off(&["plan"]).await;
        if said.contains("nothing to do: 1 resource") { Ok(()) } else { Err(said) }
    })
    .await;
    let said = one_off(&["status"]).await;
    assert!(said.contains(&id[..8]) && shown.iter().all(|key| !said.contains(key)), "{said}");

    // What was used reaches Waldur while the resource lives.
    let ledger = world.ledger_shows(resource, 2400).await;
    eventually("the reported usage", async || {
        let told = world.usages(resource);
        if told == ledger.amounts(true) { Ok(()) } else { Err(format!("{told:?}:{daemon}")) }
    })
    .await;

    // Asked to stop in the middle of an order, it ends it first or leaves it to the next start.
    world.faults.add(Rule::new(Fault::Slow(Duration::from_secs(2))).peer(Peer::LiteLlm).path("/team/new").once());
    let (second, _) = world.waldur.order(world.offering, &world.project, "second", &["kestrel-8b"], &[]);
    eventually("the second order under way", async || {
        let begun = world.faults.calls().into_iter().any(|call| call.path.contains("/team/new") && call.fault);
        if begun { Ok(()) } else { Err(daemon.to_string()) }
    })
    .await;
    let (code, said) = daemon.stop().await;
    assert!(code == Some(0) && said.contains("stopped"), "{code:?} {said}");
    let secrets = shown.iter().chain([&world.gateway.master]).cloned().chain([world.waldur.agent_token()]);
    for secret in secrets {
        assert!(!said.contains(&secret), "a secret is in the log");
    }

    // The next start carries on, and ends what is ordered to end.
    let daemon = started(&config, &log);
    let terminate = world.waldur.terminate(resource);
    eventually("both orders done", async || {
        let states = (world.waldur.order_state(second), world.waldur.order_state(terminate));
        if states == ("done".into(), "done".into()) { Ok(()) } else { Err(format!("{states:?}:{daemon}")) }
    })
    .await;
    let (code, _) = daemon.stop().await;
    assert_eq!(code, Some(0));
    assert_eq!(world.usages(resource), world.gateway.ledger(&id).await.amounts(true));
    assert!(world.usages(resource)["input_tokens"] >= "2.4".parse().unwrap());
    world.check().await;
    let said = one_off(&["orphans", "list"]).await;
    assert!(said.contains("nothing of ours"), "{said}");
}
