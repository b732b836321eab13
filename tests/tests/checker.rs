//! Every rule of the checker can fail: each is broken by hand once, at rest or by a call that no agent may make.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use llm_access_fixtures::faults::{Fault, Peer, Rule};
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::checker::{self, Planted};
use llm_access_tests::{CHAT_NAMESPACE, Store, World};
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
        ("the retired component osprey:input costs", |world, _| {
            world.waldur.add_usage_component(world.offering, "osprey:input");
            world.waldur.name_component(world.offering, "osprey:input", "[retired] osprey");
            world.waldur.set_price(world.offering, "osprey:input", "0.5".parse().unwrap());
        }),
    ];
    for (words, break_it) in cases {
        let (world, resource) = sold().await;
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

    // All was read; but the resource is in use.
    for (peer, path) in [(Peer::LiteLlm, &team), (Peer::Waldur, &row), (Peer::Waldur, &offering), (Peer::Kube, &secret)] {
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
    assert_seen(&world, "the team is still there");

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
}

#[tokio::test]
#[should_panic(expected = "an agent did what it may never do")]
async fn nobody_can_forget_to_look() {
    let world = World::new(Profile::V8_0).await;
    world.gateway.add_foreign_team("guests", &json!({"models": ["heron-70b"]}));
    call(&world, Peer::LiteLlm, "POST", "team/update", &json!({"team_id": "guests", "blocked": true})).await;
}
