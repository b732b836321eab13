//! Secrets in a real Kubernetes API with RBAC on, under the rights that the agent asks for and no others.
#![cfg(feature = "real")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use llm_access_fixtures::faults::{Fault, Peer, Rule};
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::checker::hash;
use llm_access_tests::real::{Cluster, Daemon, Outage, RealStore, RealWorld, Time, VERBS, Variant, eventually};
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

async fn world(store: RealStore) -> RealWorld {
    RealWorld::start(Profile::Late2026, Variant::Default, store, Time::Manual).await
}

fn cluster(world: &RealWorld) -> &Cluster {
    world.cluster.as_ref().unwrap()
}

/// The name and version of a resource's Secret in one namespace.
async fn secret_of(world: &RealWorld, namespace: &str, resource: Uuid) -> Value {
    let id = resource.simple().to_string();
    let mut found: Vec<Value> = cluster(world)
        .list(namespace)
        .await
        .into_iter()
        .filter(|secret| secret["metadata"]["labels"]["llm-access.io/resource"] == id.as_str())
        .collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

fn name(secret: &Value) -> &str {
    secret["metadata"]["name"].as_str().unwrap()
}

/// What the agent says is wrong under one name, with since when.
fn condition(agent: &llm_access_agent::agent::Agent, name: &str) -> Option<(jiff::Timestamp, String)> {
    agent.conditions.all().into_iter().find(|(n, ..)| *n == name).map(|(.., condition)| (condition.since, condition.message))
}

#[tokio::test(flavor = "multi_thread")]
async fn access_lives_and_ends_with_secrets_in_two_namespaces() {
    let world = RealWorld::start(Profile::Y2024, Variant::Default, RealStore::KubeDirect, Time::Manual).await;
    let cluster = cluster(&world);
    let agent = world.agent().await;
    let resource = world.sold(&agent, "Seabird LLM", &["kestrel-8b"], &[("max_budget", "5")]).await;
    world.check().await;
    for (namespace, prefix) in [(&cluster.chat, "llm-webui-"), (&cluster.keys, "llm-key-")] {
        let secret = secret_of(&world, namespace, resource).await;
        assert!(name(&secret).starts_with(prefix), "{}", name(&secret));
        assert_eq!((&secret["type"], &secret["metadata"]["annotations"]["llm-access.io/state"]), (&json!("Opaque"), &json!("ready")));
        let managers: Vec<&Value> = secret["metadata"]["managedFields"].as_array().unwrap().iter().map(|entry| &entry["manager"]).collect();
        assert!(managers.iter().all(|manager| *manager == "llm-access-agent"), "{managers:?}");
    }
    for slot in ["project", "chat"] {
        world.chat(resource, slot, "kestrel-8b", "P=1000 C=20").await.unwrap();
    }

    // An idle pass leaves the Secrets as they are, so that nothing that reads them restarts.
    let version = secret_of(&world, &cluster.chat, resource).await["metadata"]["resourceVersion"].clone();
    world.slow_beat(&agent).await;
    world.slow_beat(&agent).await;
    assert_eq!(secret_of(&world, &cluster.chat, resource).await["metadata"]["resourceVersion"], version);

    // A changed list of models arrives in both Secrets, and the keys stay.
    let keys = (world.key(resource, "project").await, world.key(resource, "chat").await);
    world.waldur.put_options(resource, Some(json!({"models": ["kestrel-8b", "heron-70b"]}).as_object().unwrap().clone()));
    world.slow_beat(&agent).await;
    let secrets = world.secrets(resource).await;
    assert!(secrets["chat"]["OPENAI_API_CONFIGS"].contains("heron-70b") && secrets["project"]["OPENAI_MODELS"].contains("heron-70b"));
    assert_eq!((world.key(resource, "project").await, world.key(resource, "chat").await), keys);
    world.chat(resource, "chat", "heron-70b", "P=500 C=20").await.unwrap();
    let ledger = world.ledger_shows(resource, 2500).await;
    world.check().await;

    let order = world.waldur.terminate(resource);
    world.run_to_rest(&agent).await;
    assert_eq!(world.waldur.order_state(order), "done");
    assert_eq!(world.usages(resource), ledger.amounts(false));
    for namespace in [&cluster.chat, &cluster.keys] {
        assert!(cluster.list(namespace).await.iter().all(|secret| secret["type"] == "kubernetes.io/service-account-token"));
    }
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_named_and_no_order_is_to_blame() {
    let world = world(RealStore::Kube).await;
    let cluster = cluster(&world);
    let agent = world.agent().await;
    let ending = world.sold(&agent, "ending", &["kestrel-8b"], &[]).await;
    for missing in ["create", "patch", "list", "delete"] {
        let verbs: Vec<&str> = VERBS.into_iter().filter(|verb| *verb != missing).collect();
        cluster.allow(&cluster.keys, &verbs).await;
        let order = match missing {
            "delete" => world.waldur.terminate(ending),
            _ => world.waldur.order(world.offering, &world.project, &format!("without-{missing}"), &["kestrel-8b"], &[]).0,
        };
        let mut said = Vec::new();
        for _ in 0..6 {
            world.advance(Duration::from_secs(60)).await;
            world.beat(&agent).await;
            world.slow_beat(&agent).await;
            said.extend(condition(&agent, "secrets-denied"));
        }
        assert_eq!(world.waldur.order_state(order), "executing", "without {missing}");
        assert_eq!(world.waldur.error_of(order), "");
        let wanted = format!("grant verb {missing} on secrets in namespace {}", cluster.keys);
        assert!(said.last().is_some_and(|(_, message)| message.contains(&wanted)), "without {missing}: {said:?}");
        // It is one fault from its beginning to its end, not a new one each beat.
        assert!(said.iter().all(|one| *one == said[0]), "without {missing}: {said:#?}");

        cluster.allow(&cluster.keys, &VERBS).await;
        world.advance(Duration::from_secs(1200)).await;
        world.run_to_rest(&agent).await;
        world.slow_beat(&agent).await;
        assert_eq!(world.waldur.order_state(order), "done", "with {missing} again");
        assert_eq!(condition(&agent, "secrets-denied"), None, "with {missing} again");
        world.check().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_by_another_field_manager_is_named_and_not_overwritten() {
    let world = world(RealStore::Kube).await;
    let cluster = cluster(&world);
    let agent = world.agent().await;
    let resource = world.sold(&agent, "edited", &["kestrel-8b"], &[]).await;
    let secret = secret_of(&world, &cluster.keys, resource).await;
    let (name, ours) = (name(&secret), secret["data"]["OPENAI_BASE_URL"].as_str().unwrap());
    let theirs = "aHR0cHM6Ly9leGFtcGxlLm9yZy92MQ==";
    cluster.kubectl(&["-n", &cluster.keys, "edit", "secret", name], &format!("sed -i s,{ours},{theirs},")).await;
    assert_eq!(cluster.secret(&cluster.keys, name).await.unwrap()["data"]["OPENAI_BASE_URL"], theirs);

    world.faults.reset_calls();
    for _ in 0..3 {
        world.slow_beat(&agent).await;
        world.advance(Duration::from_secs(5)).await;
    }
    assert_eq!(cluster.secret(&cluster.keys, name).await.unwrap()["data"]["OPENAI_BASE_URL"], theirs);
    let said: String = agent.conditions.all().into_iter().map(|(.., condition)| condition.message).collect();
    assert!(said.contains("kubectl-edit") && said.contains(name) && said.contains("OPENAI_BASE_URL"), "{said:?}");
    let tries = world.writes().len();
    assert!(tries <= 6, "{tries} writes for something that only a person can resolve");

    // Undone by the same person, all is well.
    cluster.kubectl(&["-n", &cluster.keys, "edit", "secret", name], &format!("sed -i s,{theirs},{ours},")).await;
    world.advance(Duration::from_secs(1200)).await;
    world.slow_beat(&agent).await;
    world.slow_beat(&agent).await;
    assert!(agent.conditions.all().is_empty(), "{:?}", agent.conditions.all());
    world.check().await;

    // A key that somebody else chose is never taken over: a new one takes its place, and the old one dies.
    let old = world.key(resource, "project").await;
    let data = secret["data"]["OPENAI_API_KEY"].as_str().unwrap();
    cluster
        .kubectl(&["-n", &cluster.keys, "edit", "secret", name], &format!("sed -i s,{data},c2stY2hvc2VuLWJ5LXNvbWVib2R5LWVsc2U=,"))
        .await;
    world.slow_beat(&agent).await;
    let new = world.key(resource, "project").await;
    assert!(new != old && new != "sk-chosen-by-somebody-else");
    world.check().await;
    world.chat(resource, "project", "kestrel-8b", "P=1 C=1").await.unwrap();
    let url = format!("{}v1", world.gateway.url);
    assert_eq!(world.gateway.chat(&url, &old, "kestrel-8b", "P=1 C=1").await.unwrap_err().0, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_of_somebody_else_under_our_name_is_left_alone() {
    let world = world(RealStore::Kube).await;
    let cluster = cluster(&world);
    let agent = world.agent().await;
    let (order, resource) = world.waldur.order(world.offering, &world.project, "taken", &["kestrel-8b"], &[]);
    let slug = world.waldur.resource(resource).slug;
    let name = llm_access_agent::secrets::secret_name(llm_access_agent::secrets::Slot::Project, &slug, resource);
    let path = format!("api/v1/namespaces/{}/secrets", cluster.keys);
    let foreign = cluster
        .write(
            Method::POST,
            &path,
            json!({"metadata": {"name": name, "labels": {"app": "other"}}, "data": {"OPENAI_API_KEY": "c2stZm9yZWlnbg=="}}),
        )
        .await;
    for _ in 0..3 {
        world.beat(&agent).await;
        world.advance(Duration::from_secs(60)).await;
    }
    assert_eq!(world.waldur.order_state(order), "executing");
    let (_, said) = condition(&agent, "foreign-secret").unwrap();
    assert!(said.contains(&name), "{said}");
    assert_eq!(cluster.secret(&cluster.keys, &name).await.unwrap()["metadata"]["resourceVersion"], foreign["metadata"]["resourceVersion"]);
    assert!(world.gateway.team(&resource.simple().to_string()).await.is_none(), "nothing is sold before its key is stored");

    cluster.write(Method::DELETE, &format!("{path}/{name}"), json!({})).await;
    world.advance(Duration::from_secs(1200)).await;
    world.run_to_rest(&agent).await;
    assert_eq!(world.waldur.order_state(order), "done");
    assert_eq!(condition(&agent, "foreign-secret"), None);
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_agent_is_replaced_at_every_call_to_the_cluster() {
    let world = world(RealStore::Kube).await;
    let calls = || world.faults.calls().into_iter().filter(|call| call.peer == Peer::Kube).count();
    world.waldur.order(world.offering, &world.project, "first", &["kestrel-8b"], &[]);
    assert_eq!(world.process().await.run_to_rest(&world).await, 0);
    let creating = calls();
    assert!(creating >= 6, "two Secrets stored, read back and made ready: {:?}", world.faults.calls());
    let mut last = None;
    for k in 1..=creating {
        world.faults.add(Rule::new(Fault::Kill { after_effect: true }).peer(Peer::Kube).nth(k).once());
        let (order, resource) = world.waldur.order(world.offering, &world.project, &format!("killed-{k}"), &["kestrel-8b"], &[]);
        assert_eq!(world.process().await.run_to_rest(&world).await, 1, "killed at call {k}");
        world.faults.clear();
        assert_eq!(world.waldur.order_state(order), "done");
        last = Some(resource);
    }
    world.check().await;

    // The two deletes of an end, with their answers lost.
    world.faults.add(Rule::new(Fault::LoseAnswer).peer(Peer::Kube).method("DELETE").times(2));
    let order = world.waldur.terminate(last.unwrap());
    assert_eq!(world.process().await.run_to_rest(&world).await, 0);
    assert_eq!(world.waldur.order_state(order), "done");
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_of_an_ended_resource_is_removed_and_nothing_else() {
    let world = world(RealStore::Kube).await;
    let cluster = cluster(&world);
    let agent = world.agent().await;
    let mut ended = Vec::new();
    for n in 0..2 {
        ended.push(world.sold(&agent, &format!("ended-{n}"), &["kestrel-8b"], &[]).await);
    }
    let living = world.sold(&agent, "living", &["kestrel-8b"], &[]).await;
    // The same labels but another owner, and no labels at all.
    let path = format!("api/v1/namespaces/{}/secrets", cluster.keys);
    let mut labels = secret_of(&world, &cluster.keys, ended[0]).await["metadata"]["labels"].clone();
    labels["llm-access.io/owner"] = json!("somebody-else");
    cluster.write(Method::POST, &path, json!({"metadata": {"name": "of-another-owner", "labels": labels}})).await;
    cluster.write(Method::POST, &path, json!({"metadata": {"name": "unmarked"}})).await;

    for resource in &ended {
        world.waldur.put_resource_state(*resource, "Terminated");
    }
    world.slow_beat(&agent).await;
    let left: Vec<String> = cluster.list(&cluster.keys).await.iter().map(|secret| name(secret).to_owned()).collect();
    let project = secret_of(&world, &cluster.keys, living).await;
    assert_eq!(left, [name(&project), "of-another-owner", "unmarked"]);
    for name in ["of-another-owner", "unmarked"] {
        cluster.write(Method::DELETE, &format!("{path}/{name}"), json!({})).await;
    }
    world.check().await;

    // One that was deleted by hand comes back with a new key, and the old key dies.
    let old = world.key(living, "project").await;
    cluster.write(Method::DELETE, &format!("{path}/{}", name(&project)), json!({})).await;
    world.slow_beat(&agent).await;
    world.check().await;
    assert_ne!(world.key(living, "project").await, old);
    let hashes: Vec<Value> = world.gateway.keys(&living.simple().to_string()).await.iter().map(|key| key["token"].clone()).collect();
    assert!(!hashes.contains(&json!(hash(&old))));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_the_api_delays_orders_and_spoils_none() {
    let world = world(RealStore::KubeDirect).await;
    let agent = world.agent().await;
    let living = world.sold(&agent, "living", &["kestrel-8b"], &[]).await;
    let outage = Outage::of("apiserver").await;
    let (order, _) = world.waldur.order(world.offering, &world.project, "late", &["kestrel-8b"], &[]);
    let terminate = world.waldur.terminate(living);
    for _ in 0..4 {
        world.beat(&agent).await;
        world.slow_beat(&agent).await;
        world.advance(Duration::from_secs(120)).await;
    }
    assert_eq!((world.waldur.order_state(order), world.waldur.order_state(terminate)), ("executing".into(), "executing".into()));
    assert_eq!(world.waldur.error_of(order), "");
    assert!(world.gateway.team(&living.simple().to_string()).await.is_some());
    let said: String = agent.conditions.all().into_iter().map(|(.., condition)| condition.message).collect();
    assert!(said.contains("secrets"), "{said:?}");
    outage.over();
    world.advance(Duration::from_secs(1200)).await;
    world.run_to_rest(&agent).await;
    assert_eq!((world.waldur.order_state(order), world.waldur.order_state(terminate)), ("done".into(), "done".into()));
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_replicas_one_acts_and_the_other_takes_over() {
    let world = RealWorld::start(Profile::Late2026, Variant::Default, RealStore::KubeDirect, Time::Real).await;
    let cluster = cluster(&world);
    let more = format!(
        "intervals: {{orders: 1s, resources: 1s, offering: 1s, usage: 1s}}\nbackoff: {{initial: 1s, max: 2s}}\n\
         lease: {{namespace: {}}}\n",
        cluster.own
    );
    let config = world.write("replica.yml", &world.config_text(&more));
    let [first, second] = ["first.log", "second.log"].map(|log| world.write(log, ""));
    let leads = |daemon: &Daemon| daemon.log().contains("this replica leads");

    let first = Daemon::start(&config, &first);
    eventually("the first replica to lead", async || if leads(&first) { Ok(()) } else { Err(first.log()) }).await;
    let second = Daemon::start(&config, &second);
    let done = async |name: &str, daemon: &Daemon| {
        let (order, _) = world.waldur.order(world.offering, &world.project, name, &["kestrel-8b"], &[]);
        eventually("the done order", async || match world.waldur.order_state(order).as_str() {
            "done" => Ok(()),
            state => Err(format!("{state}: {}", daemon.log())),
        })
        .await;
    };
    done("with-the-first", &first).await;
    assert!(!leads(&second) && second.log().contains("another replica leads"), "{}", second.log());
    let path = format!("apis/coordination.k8s.io/v1/namespaces/{}/leases/llm-access-agent", cluster.own);
    let held_by = async || cluster.read(&path).await.unwrap()["spec"]["holderIdentity"].clone();
    let holder = held_by().await;

    // Stopped, the first gives the Lease back, and the second goes on.
    let (code, _) = first.stop().await;
    assert_eq!(code, Some(0));
    done("with-the-second", &second).await;
    assert!(leads(&second));
    assert_ne!(held_by().await, holder);
    world.check().await;

    // Killed, the second cannot; it is waited out.
    let third = Daemon::start(&config, &world.write("third.log", ""));
    drop(second);
    done("with-the-third", &third).await;
    third.stop().await;
    world.check().await;
}
