//! Secrets in a real Kubernetes API with RBAC on, under the rights that the agent asks for and no others.
#![cfg(feature = "real")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use llm_access_agent::agent::Agent;
use llm_access_fixtures::faults::{Fault, Peer, Rule};
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::checker::hash;
use llm_access_tests::program::Program;
use llm_access_tests::real::{Cluster, Outage, RealStore, RealWorld, Right, Time, Variant, command, eventually, started, told};
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
fn condition(agent: &Agent, name: &str) -> Option<(jiff::Timestamp, String)> {
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
async fn every_right_of_the_roles_is_needed_and_its_lack_is_named() {
    let world = world(RealStore::Kube).await;
    let cluster = cluster(&world);
    let agent = world.agent().await;
    let mut shown = Vec::new();
    for right in cluster.rights().await {
        match right.resource.as_str() {
            "secrets" => orders_wait_for(&right, &world, &agent).await,
            "leases" => nobody_leads_without(&right, &world).await,
            "events" => nothing_is_told_without(&right, &world).await,
            other => panic!("no story shows what {other} is for"),
        }
        shown.push(format!("{} {}", right.verb, right.resource));
    }
    shown.sort();
    shown.dedup();
    assert_eq!(
        shown,
        [
            "create events",
            "create leases",
            "create secrets",
            "delete secrets",
            "get leases",
            "list secrets",
            "patch leases",
            "patch secrets"
        ]
    );
}

/// Without a right on Secrets an order waits, the condition names the right, and nobody is to blame.
async fn orders_wait_for(right: &Right, world: &RealWorld, agent: &Agent) {
    let (cluster, missing) = (cluster(world), &right.verb);
    let case = format!("{missing} in {}", right.namespace);
    let name = format!("{missing}-{}", right.namespace);
    let ending = if missing == "delete" { Some(world.sold(agent, &name, &["kestrel-8b"], &[]).await) } else { None };
    cluster.take(right).await;
    let order = match ending {
        Some(ending) => world.waldur.terminate(ending),
        None => world.waldur.order(world.offering, &world.project, &name, &["kestrel-8b"], &[]).0,
    };
    let mut said = Vec::new();
    for _ in 0..6 {
        world.advance(Duration::from_secs(60)).await;
        world.beat(agent).await;
        world.slow_beat(agent).await;
        said.extend(condition(agent, "secrets-denied"));
    }
    assert_eq!(world.waldur.order_state(order), "executing", "without {case}");
    assert_eq!(world.waldur.error_of(order), "");
    let wanted = format!("grant verb {missing} on secrets in namespace {}", right.namespace);
    assert!(said.last().is_some_and(|(_, message)| message.contains(&wanted)), "without {case}: {said:?}");
    // It is one fault from its beginning to its end, not a new one each beat.
    assert!(said.iter().all(|one| *one == said[0]), "without {case}: {said:#?}");

    cluster.give_back(right).await;
    world.advance(Duration::from_secs(1200)).await;
    world.run_to_rest(agent).await;
    world.slow_beat(agent).await;
    assert_eq!(world.waldur.order_state(order), "done", "with {case} again");
    assert_eq!(condition(agent, "secrets-denied"), None, "with {case} again");
    world.check().await;
}

/// Without the right to make events none is there, and everything else goes its way.
async fn nothing_is_told_without(right: &Right, world: &RealWorld) {
    let cluster = cluster(world);
    let more = format!("events: {{enabled: true, pod_namespace: {}, pod_name: agent-0, pod_uid: 5f1d8a53}}\n", cluster.own);
    let agent = world.agent_of(&world.config_text(&more)).await;
    agent.secrets.events().follow_conditions();
    let catalogue = std::fs::read_to_string(&agent.config.catalogue.file).unwrap();
    let path = format!("apis/events.k8s.io/v1/namespaces/{}/events", right.namespace);
    let events = async || cluster.read(&path).await.unwrap()["items"].as_array().unwrap().len();
    // A key is stored, and a condition comes and goes.
    let happen = async |name: &str| {
        world.sold(&agent, name, &["kestrel-8b"], &[]).await;
        world.write("catalogue.yml", "");
        world.slow_beat(&agent).await;
        world.write("catalogue.yml", &catalogue);
        world.slow_beat(&agent).await;
        agent.settle().await;
    };
    let before = events().await;
    cluster.take(right).await;
    happen(&format!("untold-{}", right.namespace)).await;
    assert_eq!(events().await, before, "without {right:?}");
    assert_eq!(condition(&agent, "secrets-denied"), None, "without {right:?}");
    cluster.give_back(right).await;
    happen(&format!("told-{}", right.namespace)).await;
    assert!(events().await > before, "with {right:?} again");
    world.check().await;
}

fn lease_path(cluster: &Cluster) -> String {
    format!("apis/coordination.k8s.io/v1/namespaces/{}/leases/llm-access-agent", cluster.own)
}

/// The configuration of a replica; `duration` is how long a silent holder keeps the Lease.
fn replica(world: &RealWorld, duration: &str) -> PathBuf {
    let more = format!(
        "intervals: {{orders: 1s, resources: 1s, offering: 1s, usage: 1s}}\nbackoff: {{initial: 1s, max: 2s}}\n\
         lease: {{namespace: {}, duration: {duration}}}\n",
        cluster(world).own
    );
    world.write("replica.yml", &world.config_text(&more))
}

/// What a replica said last about the Lease.
fn leads(daemon: &Program) -> bool {
    let log = daemon.log();
    log.lines().rfind(|line| line.contains("replica leads")).is_some_and(|line| line.contains("this replica leads"))
}

async fn until_it_leads(daemon: &Program) {
    eventually("a replica that leads", async || if leads(daemon) { Ok(()) } else { Err(daemon.to_string()) }).await;
}

/// Without a right on its Lease a replica stands by, and its log names the right.
async fn nobody_leads_without(right: &Right, world: &RealWorld) {
    let cluster = cluster(world);
    if right.verb == "create" && cluster.read(&lease_path(cluster)).await.is_some() {
        cluster.write(Method::DELETE, &lease_path(cluster), json!({})).await;
    }
    cluster.take(right).await;
    let config = replica(world, "6s");
    let wanted = format!("grant verb {} on leases in namespace {}", right.verb, cluster.own);
    let checked = command(&config, &["check"]).await.printed;
    assert!(checked.lines().any(|line| line.starts_with("FAIL  lease") && line.contains(&wanted)), "{checked}");
    let daemon = started(&config, &world.write("replica.log", ""));
    eventually("the name of the right", async || if daemon.log().contains(&wanted) { Ok(()) } else { Err(daemon.to_string()) }).await;
    assert!(!leads(&daemon), "{daemon}");
    cluster.give_back(right).await;
    until_it_leads(&daemon).await;
    assert_eq!(daemon.stop().await.0, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_roles_do_not_allow_is_refused() {
    let world = world(RealStore::KubeDirect).await;
    let cluster = cluster(&world);
    let agent = world.agent().await;
    let resource = world.sold(&agent, "guarded", &["kestrel-8b"], &[]).await;
    let secret = secret_of(&world, &cluster.keys, resource).await;
    let (keys, own) = (format!("api/v1/namespaces/{}", cluster.keys), format!("api/v1/namespaces/{}", cluster.own));
    let leases = format!("apis/coordination.k8s.io/v1/namespaces/{}/leases", cluster.own);
    let roles = "apis/rbac.authorization.k8s.io/v1";
    let calls = [
        (Method::GET, format!("{keys}/secrets/{}", name(&secret))),
        (Method::GET, format!("{keys}/secrets?watch=true&timeoutSeconds=1")),
        (Method::PUT, format!("{keys}/secrets/{}", name(&secret))),
        (Method::DELETE, format!("{keys}/secrets")),
        (Method::GET, format!("{own}/secrets")),
        (Method::POST, format!("{own}/secrets")),
        (Method::GET, "api/v1/secrets".into()),
        (Method::GET, "api/v1/namespaces/kube-system/secrets".into()),
        (Method::GET, format!("{keys}/configmaps")),
        (Method::GET, format!("{own}/pods")),
        (Method::POST, format!("{keys}/pods")),
        (Method::POST, format!("{own}/serviceaccounts/default/token")),
        (Method::POST, format!("{own}/events")),
        (Method::GET, "api/v1/namespaces".into()),
        (Method::POST, "api/v1/namespaces".into()),
        (Method::GET, "api/v1/nodes".into()),
        (Method::GET, leases.clone()),
        (Method::GET, format!("{leases}/of-somebody-else")),
        (Method::PATCH, format!("{leases}/of-somebody-else")),
        (Method::DELETE, format!("{leases}/llm-access-agent")),
        (Method::POST, leases.replace(&cluster.own, &cluster.keys)),
        (Method::PATCH, format!("{roles}/namespaces/{}/roles/llm-access-agent-secrets", cluster.keys)),
        (Method::POST, format!("{roles}/namespaces/{}/rolebindings", cluster.keys)),
        (Method::POST, format!("{roles}/clusterrolebindings")),
    ];
    for (method, path) in calls {
        let body = (method != Method::GET).then(|| json!({"metadata": {"name": name(&secret)}}));
        let (status, answer) = cluster.as_agent(method.clone(), &path, body.as_ref()).await;
        assert_eq!(status, 403, "{method} {path}: {answer}");
    }
    // All the while the agent needs none of it.
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_goes_or_is_gone_is_named_and_nothing_is_lost() {
    let world = world(RealStore::Kube).await;
    let cluster = cluster(&world);
    let agent = world.agent().await;
    let living = world.sold(&agent, "living", &["kestrel-8b"], &[]).await;
    let path = format!("api/v1/namespaces/{}", cluster.keys);
    let order = world.waldur.order(world.offering, &world.project, "late", &["kestrel-8b"], &[]).0;
    cluster.write(Method::DELETE, &path, json!({})).await;
    let waits = async |cure: &str| {
        for _ in 0..3 {
            world.advance(Duration::from_secs(120)).await;
            world.beat(&agent).await;
            world.slow_beat(&agent).await;
        }
        assert_eq!((world.waldur.order_state(order).as_str(), world.waldur.error_of(order).as_str()), ("executing", ""));
        let said: Vec<String> = agent.conditions.all().into_iter().map(|(.., condition)| condition.message).collect();
        assert!(said.iter().any(|message| message.contains(cure)), "{cure}: {said:?}");
    };
    waits(&format!("namespace {} is being deleted", cluster.keys)).await;
    world.chat(living, "project", "kestrel-8b", "P=1 C=1").await.unwrap();

    // Its end, which no controller brings about here.
    cluster.write(Method::PUT, &format!("{path}/finalize"), json!({"metadata": {"name": cluster.keys}, "spec": {"finalizers": []}})).await;
    eventually("the end of the namespace", async || if cluster.read(&path).await.is_none() { Ok(()) } else { Err(String::new()) }).await;
    waits(&format!("create namespace {}", cluster.keys)).await;

    cluster.write(Method::POST, "api/v1/namespaces", json!({"metadata": {"name": cluster.keys}})).await;
    world.advance(Duration::from_secs(1200)).await;
    world.run_to_rest(&agent).await;
    world.slow_beat(&agent).await;
    assert_eq!(world.waldur.order_state(order), "done");
    assert!(agent.conditions.all().is_empty(), "{:?}", agent.conditions.all());
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_token_is_replaced_in_its_file_and_nothing_is_restarted() {
    let world = world(RealStore::KubeDirect).await;
    let token = world.write("token", "expired");
    let kubeconfig = token.with_file_name("kubeconfig");
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    let in_file = text.replace(&format!("token: {}", told("KUBE_AGENT_TOKEN")), &format!("tokenFile: {}", token.display()));
    assert_ne!(in_file, text);
    world.write("kubeconfig", &in_file);
    let agent = world.agent().await;
    let (order, _) = world.waldur.order(world.offering, &world.project, "patient", &["kestrel-8b"], &[]);
    for _ in 0..3 {
        world.beat(&agent).await;
        world.advance(Duration::from_secs(120)).await;
    }
    assert_eq!((world.waldur.order_state(order).as_str(), world.waldur.error_of(order).as_str()), ("executing", ""));
    let (_, said) = condition(&agent, "secrets-denied").unwrap();
    assert!(said.contains("the token of the agent is not accepted"), "{said}");

    // The kubelet replaces it; the client looks into the file again once a minute.
    world.write("token", &told("KUBE_AGENT_TOKEN"));
    eventually("the done order", async || {
        world.beat(&agent).await;
        world.advance(Duration::from_secs(120)).await;
        match world.waldur.order_state(order).as_str() {
            "done" => Ok(()),
            state => Err(format!("{state}: {:?}", agent.conditions.all())),
        }
    })
    .await;
    assert_eq!(condition(&agent, "secrets-denied"), None);
    world.check().await;
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
    let config = replica(&world, "15s");
    let [first, second] = ["first.log", "second.log"].map(|log| world.write(log, ""));

    let first = started(&config, &first);
    until_it_leads(&first).await;
    let second = started(&config, &second);
    let done = async |name: &str, daemon: &Program| {
        let (order, _) = world.waldur.order(world.offering, &world.project, name, &["kestrel-8b"], &[]);
        eventually("the done order", async || match world.waldur.order_state(order).as_str() {
            "done" => Ok(()),
            state => Err(format!("{state}:{daemon}")),
        })
        .await;
    };
    done("with-the-first", &first).await;
    assert!(!leads(&second) && second.log().contains("another replica leads"), "{second}");
    let held_by = async || cluster.read(&lease_path(cluster)).await.unwrap()["spec"]["holderIdentity"].clone();
    let holder = held_by().await;

    // Stopped, the first gives the Lease back, and the second goes on at its next look.
    let began = Instant::now();
    let (code, _) = first.stop().await;
    assert_eq!((code, held_by().await != holder), (Some(0), true), "given back before it ended");
    until_it_leads(&second).await;
    println!("handed over within {:?} of SIGTERM", began.elapsed());
    done("with-the-second", &second).await;
    assert_ne!(held_by().await, holder);
    world.check().await;

    // Killed, the second cannot; it is waited out.
    let third = started(&config, &world.write("third.log", ""));
    let began = Instant::now();
    drop(second);
    until_it_leads(&third).await;
    println!("handed over within {:?} of SIGKILL", began.elapsed());
    done("with-the-third", &third).await;
    third.stop().await;
    world.check().await;
}

/// The leader stands still while a write of its is on the way; another takes over and does the work; then the write arrives.
async fn stands_still(peer: Peer, method: &str, path: &str) {
    let world = RealWorld::start(Profile::Late2026, Variant::Default, RealStore::Kube, Time::Real).await;
    let config = replica(&world, "3s");
    let first = started(&config, &world.write("first.log", ""));
    until_it_leads(&first).await;
    let second = started(&config, &world.write("second.log", ""));
    eventually(
        "a second that follows",
        async || if second.log().contains("another replica leads") { Ok(()) } else { Err(second.to_string()) },
    )
    .await;
    world.faults.add(Rule::new(Fault::Hold).peer(peer).method(method).path(path).once());
    let (order, _) = world.waldur.order(world.offering, &world.project, "aurora", &["kestrel-8b"], &[]);
    tokio::time::timeout(Duration::from_secs(60), world.faults.held()).await.unwrap_or_else(|_| panic!("{first}"));
    first.signal("STOP").await;
    eventually("the done order", async || match world.waldur.order_state(order).as_str() {
        "done" => Ok(()),
        state => Err(format!("{state}: {}", second.log())),
    })
    .await;
    assert!(leads(&second));
    world.faults.release();
    first.signal("CONT").await;
    eventually("a first that knows that it lost", async || if leads(&first) { Err(first.to_string()) } else { Ok(()) }).await;
    eventually("a world at rest", async || {
        let problems = world.problems().await;
        if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
    })
    .await;
    assert!(leads(&second) && !leads(&first), "{method} {path}");
    let done = world.faults.calls().into_iter().filter(|call| call.path.contains("set_state_done") && call.status == Some(200)).count();
    assert_eq!(done, 1, "{method} {path}");
    for daemon in [first, second] {
        assert_eq!(daemon.stop().await.0, Some(0));
    }
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_stood_still_before_a_write_of_a_secret_does_no_harm() {
    stands_still(Peer::Kube, "PATCH", "/secrets/").await;
    stands_still(Peer::Kube, "POST", "/secrets").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_stood_still_before_a_write_at_the_gateway_does_no_harm() {
    stands_still(Peer::LiteLlm, "POST", "/key/generate").await;
}
