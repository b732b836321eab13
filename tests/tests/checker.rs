//! Every rule of the checker can fail: each is broken by hand once, at rest or by a call that no agent may make.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use llm_access_agent::domain::{Direction, usage_component};
use llm_access_fixtures::faults::{Fault, Peer, Rule};
use llm_access_fixtures::litellm::Usage;
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::checker::{self, Planted};
use llm_access_tests::{CHAT_NAMESPACE, Store, World};
use rust_decimal::Decimal;
use serde_json::{Value, json};
use uuid::Uuid;

fn hex(uuid: Uuid) -> String {
    uuid.simple().to_string()
}

async fn sold() -> (World, Uuid) {
    let world = World::new(Profile::Late2026).await;
    let agent = world.patient().await;
    let resource = world.sold(&agent, "seabird-llm", &["kestrel-8b"]).await;
    world.check();
    (world, resource)
}

/// A call as an agent would make it.
async fn call(world: &World, peer: Peer, method: &str, path: &str, body: &Value) -> u16 {
    world.ends_in_trouble("no agent makes these calls");
    let (url, credential) = match peer {
        Peer::Waldur => (world.waldur.url(), format!("Token {}", world.waldur.agent_token())),
        Peer::LiteLlm => (world.gateway.url().clone(), format!("Bearer {}", world.gateway.master_key())),
        Peer::Kube => (world.kube.url(), String::new()),
    };
    let http = reqwest::Client::builder().user_agent("llm-access-agent/broken").no_proxy().build().unwrap();
    let mut request = http.request(method.parse().unwrap(), url.join(path).unwrap()).header("Authorization", credential);
    if !body.is_null() {
        request = request.header("Content-Type", "application/json").body(body.to_string());
    }
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    // A cut answer is one as well.
    drop(answer.text().await);
    status
}

#[track_caller]
fn assert_found(problems: &[String], words: &str, case: &str) {
    assert!(problems.iter().any(|problem| problem.contains(words)), "{case}: no {words:?} among {problems:#?}");
}

fn secret_of(world: &World, resource: Uuid, slot: &str) -> (String, String) {
    let prefix = if slot == "chat" { "llm-webui-" } else { "llm-key-" };
    let of_it = world
        .kube
        .secrets()
        .into_iter()
        .find(|secret| secret.name.starts_with(prefix) && secret.labels.get("llm-access.io/resource") == Some(&hex(resource)));
    of_it.map(|secret| (secret.namespace, secret.name)).unwrap()
}

type Break = fn(&World, Uuid);

#[tokio::test]
async fn a_world_that_is_not_as_it_must_be_is_found() {
    let cases: &[(&str, Break)] = &[
        ("has no team", |world, resource| assert!(world.gateway.delete_team(&hex(resource)))),
        ("Secrets hold", |world, resource| assert!(world.gateway.delete_key(&checker::hash(&world.key(resource, "chat"))))),
        ("has Secrets", |world, resource| {
            let (namespace, name) = secret_of(world, resource, "project");
            assert!(world.kube.delete(&namespace, &name));
        }),
        // Each holds the other's key.
        ("Secrets hold", |world, resource| {
            let (chat, project) = (world.key(resource, "chat"), world.key(resource, "project"));
            for (slot, variable, key) in [("chat", "OPENAI_API_KEYS", project), ("project", "OPENAI_API_KEY", chat)] {
                let (namespace, name) = secret_of(world, resource, slot);
                world.kube.edit_as("kubectl", &namespace, &name, |edit| drop(edit.data.insert(variable.into(), key)));
            }
        }),
        ("an empty model list allows every model", |world, resource| {
            world.gateway.edit_team(&hex(resource), &json!({"models": []})).unwrap();
        }),
        ("has the backend_id", |world, resource| world.waldur.put_backend_id(resource, "")),
        ("is paused, and its team is not blocked", |world, resource| world.waldur.pause(resource, true)),
        ("the project key gets", |world, resource| {
            assert!(world.gateway.block_key(&checker::hash(&world.key(resource, "project")), true));
        }),
        ("still has a team", |world, resource| world.waldur.put_resource_state(resource, "Terminated")),
        ("still has 2 keys", |world, resource| world.waldur.put_resource_state(resource, "Terminated")),
        ("still has Secrets", |world, resource| world.waldur.put_resource_state(resource, "Terminated")),
        ("is still executing", |world, resource| {
            world.waldur.staff_approve(world.waldur.update_limits(resource, &[("max_budget", "80")]));
        }),
        ("belongs to no resource", |world, _| {
            let metadata = json!({"managed_by": "llm-access-agent", "owner": "icarus"});
            world.gateway.add_foreign_team(&hex(Uuid::from_u128(7)), &json!({"models": ["kestrel-8b"], "metadata": metadata}));
        }),
        ("key stray-1 belongs to no resource", |world, _| {
            let other = hex(Uuid::from_u128(7));
            let key = world.gateway.add_foreign_key(&other, "stray-1");
            let metadata = json!({"managed_by": "llm-access-agent", "owner": "icarus", "resource": other});
            assert!(world.gateway.edit_key(&checker::hash(&key), &json!({"metadata": metadata})));
        }),
        ("Secret llm-key-stray belongs to no resource", |world, _| {
            world.kube.edit_as("llm-access-agent", CHAT_NAMESPACE, "llm-key-stray", |edit| {
                edit.labels.insert("app.kubernetes.io/managed-by".into(), "llm-access-agent".into());
                edit.labels.insert("llm-access.io/owner".into(), "icarus".into());
                edit.labels.insert("llm-access.io/resource".into(), hex(Uuid::from_u128(7)));
            });
        }),
        ("file llm-key-stray.env belongs to no resource", |world, _| {
            let signature = format!("# llm-access-agent owner=icarus resource={} slot=project\n", hex(Uuid::from_u128(7)));
            std::fs::create_dir_all(world.secrets_folder()).unwrap();
            std::fs::write(world.secrets_folder().join("llm-key-stray.env"), signature).unwrap();
        }),
        ("the retired component osprey:input costs", |world, _| {
            world.waldur.add_usage_component(world.offering, "osprey:input");
            world.waldur.name_component(world.offering, "osprey:input", "[retired] osprey");
            world.waldur.set_price(world.offering, "osprey:input", "0.5".parse().unwrap());
        }),
    ];
    for (words, break_it) in cases {
        let (world, resource) = sold().await;
        world.ends_in_trouble("it is broken by hand");
        break_it(&world, resource);
        assert_found(&checker::problems(&world), words, words);
    }
}

#[tokio::test]
async fn usage_that_is_billed_too_high_or_not_at_all_is_found() {
    let (world, resource) = sold().await;
    world.gateway.chat(&world.key(resource, "project"), "kestrel-8b", "P=2000 C=1000").unwrap();
    world.advance(std::time::Duration::from_secs(60));
    assert_found(&checker::unbilled(&world), "used 2 input_tokens in 2026-11, and is billed 0", "unbilled");
    drop(world.patient().await.usage_beat().await);
    assert_eq!(checker::unbilled(&world), Vec::<String>::new());
    world.check();
    // Told twice as much.
    let body = json!({"resource": hex(resource), "usages": [{"type": "input_tokens", "amount": "4.00"}]});
    assert_eq!(call(&world, Peer::Waldur, "POST", "api/marketplace-component-usages/set_usage/", &body).await, 201);
    assert_found(&checker::problems(&world), "is billed 4.00 input_tokens for 2026-11, and used 2", "overbilled");
}

#[tokio::test]
async fn what_an_ended_resource_used_of_a_model_is_asked_for() {
    let (world, resource) = sold().await;
    let agent = world.patient().await;
    agent.offering_beat().await;
    world.gateway.chat(&world.key(resource, "project"), "kestrel-8b", "P=2000 C=1000").unwrap();
    world.advance(std::time::Duration::from_secs(60));
    world.waldur.terminate(resource);
    world.run_to_rest(&agent, 9).await;
    assert_eq!(checker::unbilled(&world), Vec::<String>::new());
    // There was more than its end billed; and a component that came later could not be told of.
    world.waldur.add_usage_component(world.offering, "osprey:input");
    for model in ["kestrel-8b", "osprey"] {
        let usage = Usage { prompt_tokens: 5000, ..Usage::default() };
        world.gateway.add_usage(Some(&hex(resource)), "0", model, world.sim_clock.now(), usage);
    }
    let found = checker::unbilled(&world);
    assert_found(&found, "used 7 kestrel-8b:input in 2026-11, and is billed 2", "ended");
    assert!(!found.iter().any(|problem| problem.contains("osprey")), "{found:?}");
}

#[tokio::test]
async fn an_offering_that_is_not_as_the_catalogue_says_is_found() {
    let price = |text: &str| text.parse::<Decimal>().unwrap();
    let sold = BTreeMap::from([
        ("kestrel-8b", Some((price("0.00000021"), price("0.00000085")))),
        ("heron-70b", Some((price("0.000001"), price("0.000002")))),
        ("qwen2.5-0.5b", None),
    ]);
    let always = BTreeMap::from([("qwen3-embedding-0-6b", price("0.00000002"))]);
    let cases: &[(&str, Touch)] = &[
        ("the form for orders is to offer", |world| world.waldur.set_models(world.offering, &["kestrel-8b", "heron-70b", "all"])),
        ("the form for resources is to offer", |world| {
            let (orders, mut resources) = world.waldur.forms(world.offering);
            resources["options"]["models"]["choices"] = json!(["kestrel-8b", "heron-70b", "qwen2.5-0.5b", "all", "all"]);
            world.waldur.set_forms(world.offering, orders, resources);
        }),
        ("there is no component heron-70b:output", |world| world.waldur.drop_component(world.offering, "heron-70b:output")),
        ("the component heron-70b:output is to cost 0.002", |world| world.waldur.set_price(world.offering, "heron-70b:output", 1.into())),
        ("is to cost 0 and costs 1 in the end", |world| {
            world.waldur.set_price(world.offering, &usage_component("qwen2.5-0.5b", Direction::Input), 1.into());
        }),
        ("the component qwen3-embedding-0-6b:input is to cost 0.00002", |world| {
            world.waldur.set_price(world.offering, "qwen3-embedding-0-6b:input", 0.into());
        }),
        ("the component spend is to cost 0", |world| world.waldur.set_price(world.offering, "spend", 1.into())),
    ];
    for (words, touch) in cases {
        let world = World::new(Profile::V8_0).await;
        world.patient().await.offering_beat().await;
        assert_eq!(checker::unsold(&world, &sold, &always), Vec::<String>::new());
        // A price that is to come counts.
        world.waldur.clear_future_prices(world.offering);
        touch(&world);
        assert_found(&checker::unsold(&world, &sold, &always), words, words);
    }
}

#[tokio::test]
async fn what_is_shown_to_customers_is_looked_at() {
    let (world, resource) = sold().await;
    let path = format!("api/marketplace-provider-resources/{}/set_endpoints/", hex(resource));
    assert_eq!(call(&world, Peer::Waldur, "POST", &path, &json!({"endpoints": []})).await, 200);
    assert_found(&checker::problems(&world), "the customer sees neither", "endpoints");

    let (world, resource) = sold().await;
    let body = json!({"resource": hex(resource), "client_id": format!("{}-9", hex(resource)), "api_key": "sk-0123456789012345678901234567890123456789"});
    assert!(call(&world, Peer::Waldur, "POST", "api/marketplace-resource-api-keys/report_created/", &body).await < 300);
    assert_found(&checker::problems(&world), "Waldur shows keys", "a key that is none");
}

type Touch = fn(&World);

#[tokio::test]
async fn what_was_done_to_things_of_others_is_found() {
    let other = hex(Uuid::from_u128(0x0dae_da15));
    let cases: &[(&str, Store, Touch)] = &[
        ("team guests", Store::Kube, |world| drop(world.gateway.edit_team("guests", &json!({"max_budget": 6})))),
        ("key Some(\"guest-1\")", Store::Kube, |world| {
            let key = world.gateway.live_keys("guests").remove(0);
            assert!(world.gateway.delete_key(&key.hash));
        }),
        ("Secret llm-webui-else", Store::Kube, |world| assert!(world.kube.delete(CHAT_NAMESPACE, "llm-webui-else"))),
        ("Secret llm-webui-labyrinth", Store::Kube, |world| {
            world.kube.edit_as("x", CHAT_NAMESPACE, "llm-webui-labyrinth", |edit| drop(edit.data.insert("A".into(), "b".into())));
        }),
        ("other.env", Store::Directory, |world| std::fs::write(world.secrets_folder().join("other.env"), "").unwrap()),
        ("component gpu_hours", Store::Kube, |world| world.waldur.set_price(world.offering, "gpu_hours", 2.into())),
        ("component gpu_hours", Store::Kube, |world| world.waldur.name_component(world.offering, "gpu_hours", "x")),
        ("resource skua", Store::Kube, |world| {
            let theirs = world.waldur.resources().into_iter().find(|r| r.backend_id.starts_with("skua")).unwrap();
            world.waldur.put_backend_id(theirs.uuid, "");
        }),
    ];
    for (words, store, touch) in cases {
        let world = World::with_store(Profile::V8_0, *store).await;
        let planted = Planted::into(&world);
        assert_eq!(planted.problems(&world), Vec::<String>::new());
        assert!(world.gateway.team(&other).is_some());
        touch(&world);
        assert_found(&planted.problems(&world), words, words);
    }
}

/// What an agent did that it may never do, and forgives it.
#[track_caller]
fn assert_seen(world: &World, words: &str) {
    assert_found(&world.watch.problems(), words, words);
    world.watch.forgive();
}

#[tokio::test]
async fn calls_that_touch_what_is_not_ours_are_seen() {
    let (world, resource) = sold().await;
    let _planted = Planted::into(&world);
    let guest = world.gateway.live_keys("guests").remove(0);
    for (path, body, words) in [
        ("team/update", json!({"team_id": "guests", "blocked": true}), "a team of somebody else"),
        ("key/update", json!({"key": guest.hash, "max_budget": 1}), "a key of somebody else is changed"),
        ("key/delete", json!({"keys": [guest.hash]}), "a key of somebody else is deleted"),
        ("team/update", json!({"team_id": hex(resource), "models": []}), "an empty model list"),
        ("team/delete", json!({"team_ids": ["guests"]}), "a team of somebody else"),
    ] {
        // Told before it happens, so that it is seen even where the gateway refuses.
        world.watch.forgive();
        call(&world, Peer::LiteLlm, "POST", path, &body).await;
        assert_seen(&world, words);
    }
    let path = format!("api/v1/namespaces/{CHAT_NAMESPACE}/secrets/llm-webui-else");
    call(&world, Peer::Kube, "DELETE", &path, &Value::Null).await;
    assert_seen(&world, "a Secret of somebody else");

    let theirs = world.waldur.resources().into_iter().find(|r| r.backend_id.starts_with("skua")).unwrap().uuid;
    let path = format!("api/marketplace-provider-resources/{}/set_backend_id/", hex(theirs));
    call(&world, Peer::Waldur, "POST", &path, &json!({"backend_id": hex(theirs)})).await;
    assert_seen(&world, "a resource of another agent");
    world.waldur.put_backend_id(theirs, "skua-llm-1");
    let body = json!({"resource": hex(theirs), "usages": [{"type": "input_tokens", "amount": "1.00"}]});
    call(&world, Peer::Waldur, "POST", "api/marketplace-component-usages/set_usage/", &body).await;
    assert_seen(&world, "usage of a resource of another agent");
}

#[tokio::test]
async fn a_deletion_without_a_good_reading_is_seen() {
    let (world, resource) = sold().await;
    let id = hex(resource);
    let team = format!("v2/team/list?team_id={id}");
    let keys = format!("team/info?team_id={id}");
    let row = format!("api/marketplace-provider-resources/{id}/");
    let hash = checker::hash(&world.key(resource, "project"));
    let (namespace, name) = secret_of(&world, resource, "project");
    let secret = format!("api/v1/namespaces/{namespace}/secrets/{name}");
    let offering = format!("api/marketplace-provider-offerings/{}/", hex(world.offering));
    world.waldur.add_usage_component(world.offering, "osprey:input");

    // Nothing was read in this pass, or only what was cut, lost or refused.
    for fault in [None, Some(Fault::Truncate), Some(Fault::status(503, "busy")), Some(Fault::status(200, "[]"))] {
        drop(world.watch.pass());
        if let Some(fault) = &fault {
            world.faults.add(Rule::new(fault.clone()).method("GET"));
            call(&world, Peer::LiteLlm, "GET", &team, &Value::Null).await;
            call(&world, Peer::LiteLlm, "GET", &keys, &Value::Null).await;
            call(&world, Peer::Waldur, "GET", &row, &Value::Null).await;
            call(&world, Peer::Waldur, "GET", &offering, &Value::Null).await;
            call(&world, Peer::Kube, "GET", &secret, &Value::Null).await;
            world.faults.clear();
        }
        // The peers refuse them, so that there is something to delete the next time.
        world.faults.add(Rule::new(Fault::status(503, "busy")));
        call(&world, Peer::LiteLlm, "POST", "key/delete", &json!({"keys": [hash]})).await;
        assert_seen(&world, "a key is deleted without a good reading");
        call(&world, Peer::LiteLlm, "POST", "team/delete", &json!({"team_ids": [id]})).await;
        assert_seen(&world, "a team is deleted without a good reading");
        call(&world, Peer::Kube, "DELETE", &secret, &Value::Null).await;
        assert_seen(&world, "a Secret is deleted without a good reading");
        let path = format!("{offering}remove_offering_component/");
        call(&world, Peer::Waldur, "POST", &path, &json!({"uuid": "x"})).await;
        assert_seen(&world, "a component is removed without a good reading");
        world.faults.clear();
    }

    // A list of other keys, a key that was made for another team and a team without its keys say nothing of this one.
    drop(world.watch.pass());
    world.gateway.add_foreign_team("guests", &json!({"models": ["heron-70b"]}));
    for path in ["key/list?team_id=guests", &format!("key/list?team_id={id}&status=deleted"), &team] {
        assert_eq!(call(&world, Peer::LiteLlm, "GET", path, &Value::Null).await, 200);
    }
    call(&world, Peer::LiteLlm, "POST", "key/generate", &json!({"team_id": "guests", "key_alias": "guest-7"})).await;
    world.faults.add(Rule::new(Fault::status(503, "busy")).path("key/delete"));
    call(&world, Peer::LiteLlm, "POST", "key/delete", &json!({"keys": [hash]})).await;
    assert_seen(&world, "a key is deleted without a good reading");
    for path in [&keys, &format!("key/list?team_id={id}"), &format!("key/info?key={hash}")] {
        drop(world.watch.pass());
        assert_eq!(call(&world, Peer::LiteLlm, "GET", path, &Value::Null).await, 200);
        call(&world, Peer::LiteLlm, "POST", "key/delete", &json!({"keys": [hash]})).await;
        assert_eq!(world.watch.problems(), Vec::<String>::new(), "{path}");
    }
    world.faults.clear();

    // All was read; but the resource is in use.
    for (peer, path) in
        [(Peer::LiteLlm, &team), (Peer::LiteLlm, &keys), (Peer::Waldur, &row), (Peer::Waldur, &offering), (Peer::Kube, &secret)]
    {
        assert_eq!(call(&world, peer, "GET", path, &Value::Null).await, 200);
    }
    call(&world, Peer::LiteLlm, "POST", "key/delete", &json!({"keys": [hash]})).await;
    call(&world, Peer::Kube, "DELETE", &secret, &Value::Null).await;
    assert_eq!(world.watch.problems(), Vec::<String>::new());
    call(&world, Peer::LiteLlm, "POST", "team/delete", &json!({"team_ids": [id]})).await;
    assert_seen(&world, "the team of a resource that is OK is deleted");
}

#[tokio::test]
async fn orders_that_are_ended_too_early_or_were_left_to_people_are_seen() {
    let (world, resource) = sold().await;
    let ends = |order: Uuid, action: &str| format!("api/marketplace-orders/{}/{action}/", hex(order));
    let end = world.waldur.terminate(resource);
    world.waldur.staff_approve(end);
    call(&world, Peer::Waldur, "POST", &ends(end, "set_state_done"), &Value::Null).await;
    for words in ["an end is done and the team is still there", "2 of its keys are still there", "2 of its Secrets are still there"] {
        assert_found(&world.watch.problems(), words, words);
    }
    world.watch.forgive();

    let (order, _) = world.order("early", &["kestrel-8b"]);
    world.waldur.staff_approve(order);
    call(&world, Peer::Waldur, "POST", &ends(order, "set_state_done"), &Value::Null).await;
    assert_seen(&world, "there is no team");

    let (world, resource) = sold().await;
    let end = world.waldur.terminate(resource);
    world.waldur.staff_approve(end);
    let body = json!({"error_message": "x", "error_traceback": ""});
    call(&world, Peer::Waldur, "POST", &ends(end, "set_state_erred"), &body).await;
    assert_seen(&world, "an end is set erred");

    let world = World::new(Profile::Late2026).await;
    let text = world.config_text("").replace("    limits:", "    approval: {create: manual}\n    limits:");
    drop(world.patient_with(&text).await);
    let (order, _) = world.order("waits", &["kestrel-8b"]);
    call(&world, Peer::Waldur, "POST", &ends(order, "approve_by_provider"), &Value::Null).await;
    assert_seen(&world, "left to people");
}

/// A world in which an order is carried out but for its end, which Waldur refuses; with the order and the path that ends it.
async fn all_but_done(store: Store) -> (World, Uuid, String) {
    let world = World::with_store(Profile::Late2026, store).await;
    let agent = world.patient().await;
    let (order, resource) = world.order("seabird-llm", &["kestrel-8b"]);
    world.faults.add(Rule::new(Fault::status(503, "busy")).path("set_state_done"));
    world.beat(&agent).await;
    assert_eq!(world.waldur.order_state(order), "executing");
    assert_eq!(world.watch.problems(), Vec::<String>::new());
    // What was read for it no longer counts.
    drop(world.watch.pass());
    (world, resource, format!("api/marketplace-orders/{}/set_state_done/", hex(order)))
}

/// Lets the Secret of a slot say that its key is not ready.
fn unready(world: &World, resource: Uuid, slot: &str) {
    if world.store == Store::Kube {
        let (namespace, name) = secret_of(world, resource, slot);
        world.kube.edit_as("kubectl", &namespace, &name, |edit| {
            drop(edit.annotations.insert("llm-access.io/state".into(), "pending".into()));
        });
        return;
    }
    let files = std::fs::read_dir(world.secrets_folder()).unwrap().map(|file| file.unwrap().path());
    let prefix = if slot == "chat" { "llm-webui-" } else { "llm-key-" };
    let file = files.into_iter().find(|file| file.file_name().unwrap().to_str().unwrap().starts_with(prefix)).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    let said = text.replace(r#""llm-access.io/state":"ready""#, r#""llm-access.io/state":"pending""#);
    assert_ne!(said, text);
    std::fs::write(file, said).unwrap();
}

#[tokio::test]
async fn an_order_that_is_done_before_its_customer_has_what_was_ordered_is_seen() {
    let cases: &[(&str, Break)] = &[
        ("an order is done and there is no team", |world, resource| assert!(world.gateway.delete_team(&hex(resource)))),
        ("the key in its chat Secret is not registered", |world, resource| {
            assert!(world.gateway.delete_key(&checker::hash(&world.key(resource, "chat"))));
        }),
        ("there are 0 project Secrets", |world, resource| {
            let (namespace, name) = secret_of(world, resource, "project");
            assert!(world.kube.delete(&namespace, &name));
        }),
        ("its project Secret is not ready", |world, resource| unready(world, resource, "project")),
        ("1 other chat keys are there", |world, resource| {
            let key = world.gateway.add_foreign_key(&hex(resource), &format!("{}-chat-2", hex(resource)));
            let metadata = json!({"managed_by": "llm-access-agent", "owner": "icarus", "resource": hex(resource)});
            assert!(world.gateway.edit_key(&checker::hash(&key), &json!({"metadata": metadata})));
        }),
        ("its team has the max_budget Some(20)", |world, resource| {
            drop(world.gateway.edit_team(&hex(resource), &json!({"max_budget": 20})));
        }),
        ("its team has the tpm_limit Some(77)", |world, resource| drop(world.gateway.edit_team(&hex(resource), &json!({"tpm_limit": 77})))),
        ("its team has the rpm_limit None", |world, resource| drop(world.gateway.edit_team(&hex(resource), &json!({"rpm_limit": null})))),
        ("its team may call heron-70b, which was not ordered", |world, resource| {
            drop(world.gateway.edit_team(&hex(resource), &json!({"models": ["kestrel-8b", "heron-70b", "qwen3-embedding-0-6b"]})));
        }),
        ("its team is blocked", |world, resource| drop(world.gateway.edit_team(&hex(resource), &json!({"blocked": true})))),
    ];
    for (words, break_it) in cases {
        let (world, resource, done) = all_but_done(Store::Kube).await;
        break_it(&world, resource);
        call(&world, Peer::Waldur, "POST", &done, &Value::Null).await;
        assert_seen(&world, words);
    }
    let (world, resource, done) = all_but_done(Store::Directory).await;
    call(&world, Peer::Waldur, "POST", &done, &Value::Null).await;
    assert_eq!(world.watch.problems(), Vec::<String>::new());
    unready(&world, resource, "chat");
    call(&world, Peer::Waldur, "POST", &done, &Value::Null).await;
    assert_seen(&world, "its chat Secret is not ready");

    // What an agent saw is its business, and not what somebody did since.
    let (world, resource, done) = all_but_done(Store::Kube).await;
    call(&world, Peer::LiteLlm, "GET", &format!("team/info?team_id={}", hex(resource)), &Value::Null).await;
    world.gateway.delete_team(&hex(resource));
    call(&world, Peer::Waldur, "POST", &done, &Value::Null).await;
    assert_eq!(world.watch.problems(), Vec::<String>::new());

    // An update.
    let (world, resource) = sold().await;
    let update = world.waldur.update_limits(resource, &[("max_budget", "80")]);
    world.waldur.staff_approve(update);
    let done = format!("api/marketplace-orders/{}/set_state_done/", hex(update));
    call(&world, Peer::Waldur, "POST", &done, &Value::Null).await;
    assert_seen(&world, "its team has the max_budget Some(50), and Some(80) was ordered");
}

#[tokio::test]
async fn secrets_where_they_do_not_belong_are_seen() {
    let (world, resource) = sold().await;
    for secret in [world.key(resource, "chat"), world.waldur.agent_token(), world.gateway.master_key()] {
        call(&world, Peer::LiteLlm, "GET", &format!("key/info?key={secret}"), &Value::Null).await;
        assert_seen(&world, "a secret leaked into the address");
        let path = format!("api/marketplace-provider-resources/{}/set_backend_metadata/", hex(resource));
        call(&world, Peer::Waldur, "POST", &path, &json!({"backend_metadata": {"key": secret}})).await;
        assert_seen(&world, "a secret leaked into the body");
        assert_eq!(world.watch.leaks_in(&format!("good\nbad {secret}\n")).len(), 1);
    }

    let key = world.key(resource, "chat");
    let encoded = |text: &str| STANDARD.encode(text);
    let secrets = format!("api/v1/namespaces/{CHAT_NAMESPACE}/secrets");
    let secret = |more: Value| {
        let mut secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "llm-webui-x"}, "type": "Opaque"});
        secret.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        secret
    };
    let events = format!("apis/events.k8s.io/v1/namespaces/{CHAT_NAMESPACE}/events");
    let leases = format!("apis/coordination.k8s.io/v1/namespaces/{CHAT_NAMESPACE}/leases");
    for (path, body) in [
        (&secrets, secret(json!({"metadata": {"name": "llm-webui-x", "labels": {"key": key}}}))),
        (&secrets, secret(json!({"metadata": {"name": "llm-webui-x", "annotations": {"key": encoded(&key)}}}))),
        // A key that nobody has seen before.
        (
            &secrets,
            secret(json!({"data": {"A": encoded("sk-new-1")}, "metadata": {"name": "llm-webui-x", "annotations": {"key": "sk-new-1"}}})),
        ),
        (&events, json!({"note": format!("stored {key}")})),
        (&leases, json!({"spec": {"holderIdentity": key}})),
    ] {
        call(&world, Peer::Kube, "POST", path, &body).await;
        assert_seen(&world, "a secret leaked into the body");
    }
    for section in ["data", "stringData"] {
        let value = |text: &str| if section == "data" { encoded(text) } else { text.to_owned() };
        call(&world, Peer::Kube, "POST", &secrets, &secret(json!({section: {"OPENAI_API_KEYS": value(&key)}}))).await;
        assert_eq!(world.watch.problems(), Vec::<String>::new());
        for credential in [world.waldur.agent_token(), world.gateway.master_key()] {
            call(&world, Peer::Kube, "POST", &secrets, &secret(json!({section: {"A": value(&credential)}}))).await;
            assert_seen(&world, "a credential of the agent leaked into a Secret");
        }
    }
}

#[tokio::test]
#[should_panic(expected = "an agent did what it may never do")]
async fn nobody_can_forget_to_look() {
    let world = World::new(Profile::V8_0).await;
    world.gateway.add_foreign_team("guests", &json!({"models": ["heron-70b"]}));
    call(&world, Peer::LiteLlm, "POST", "team/update", &json!({"team_id": "guests", "blocked": true})).await;
}

#[tokio::test]
#[should_panic(expected = "the test leaves a world that is not as it must be")]
async fn nobody_can_leave_a_world_that_is_broken() {
    let (world, resource) = sold().await;
    world.gateway.delete_team(&hex(resource));
}

#[tokio::test]
async fn a_world_that_ends_in_trouble_says_so() {
    let (world, resource) = sold().await;
    world.ends_in_trouble("its team is gone");
    world.gateway.delete_team(&hex(resource));
}
