//! Events and restarts in a real Kubernetes API.
#![cfg(feature = "real")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use llm_access_agent::secrets::Slot;
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::real::{Cluster, RealStore, RealWorld, Time, Variant};
use reqwest::Method;
use serde_json::{Value, json};

async fn world() -> RealWorld {
    RealWorld::start(Profile::Late2026, Variant::Default, RealStore::Kube, Time::Manual).await
}

fn cluster(world: &RealWorld) -> &Cluster {
    world.cluster.as_ref().unwrap()
}

fn events_on(world: &RealWorld) -> String {
    let own = &cluster(world).own;
    format!("events: {{enabled: true, pod_namespace: {own}, pod_name: agent-0, pod_uid: 5f1d8a53-7c1e-4a61-9f0e-2b9d5a3c7e10}}\n")
}

/// What `kubectl get events` shows of one object, one line for each.
async fn shown(cluster: &Cluster, namespace: &str, kind: &str, name: &str) -> Vec<String> {
    let selector = format!("involvedObject.kind={kind},involvedObject.name={name}");
    let columns = "custom-columns=T:.type,R:.reason,C:.reportingComponent,M:.message";
    let text = cluster.kubectl(&["-n", namespace, "get", "events", "--no-headers", "--field-selector", &selector, "-o", columns], "").await;
    text.lines().filter(|line| !line.contains("No resources found")).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_shows_what_was_done_to_a_secret_and_what_is_wrong_with_the_agent() {
    let world = world().await;
    let cluster = cluster(&world);
    let agent = world.agent_of(&world.config_text(&events_on(&world))).await;
    agent.secrets.events().follow_conditions();
    let resource = world.sold(&agent, "Seabird LLM", &["kestrel-8b"], &[("max_budget", "5")]).await;
    agent.rotate_keys(resource, &[Slot::Project], true).await.unwrap();
    let catalogue = std::fs::read_to_string(&agent.config.catalogue.file).unwrap();
    world.write("catalogue.yml", "");
    world.slow_beat(&agent).await;
    world.write("catalogue.yml", &catalogue);
    world.slow_beat(&agent).await;
    agent.settle().await;

    let id = resource.simple().to_string();
    let secrets = cluster.list(&cluster.keys).await;
    let secret = secrets.iter().find(|secret| secret["metadata"]["labels"]["llm-access.io/resource"] == id.as_str()).unwrap();
    let told = shown(cluster, &cluster.keys, "Secret", secret["metadata"]["name"].as_str().unwrap()).await;
    assert_eq!(told.len(), 2, "{told:#?}");
    for (reason, text) in [("KeyStored", format!("key {id}-1 is stored")), ("KeyReplaced", format!("key {id}-2 takes the place of {id}-1"))]
    {
        let line = told.iter().find(|line| line.contains(reason)).unwrap_or_else(|| panic!("{told:#?}"));
        assert!(line.starts_with("Normal") && line.contains(&text) && line.contains("llm-access.io/agent"), "{line}");
    }
    let told = shown(cluster, &cluster.own, "Pod", "agent-0").await;
    let of_catalogue: Vec<&String> = told.iter().filter(|line| line.contains("CatalogueUnreadable")).collect();
    assert_eq!(of_catalogue.len(), 2, "{told:#?}");
    assert!(of_catalogue.iter().any(|line| line.starts_with("Warning")) && of_catalogue.iter().any(|line| line.contains("no longer: ")));
    let all = cluster.kubectl(&["get", "events", "--all-namespaces", "-o", "yaml"], "").await;
    assert!(!all.contains(&world.key(resource, "project").await) && !all.contains(&world.key(resource, "chat").await));
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_is_rolled_out_once_for_each_change_and_needs_both_rights() {
    let world = world().await;
    let cluster = cluster(&world);
    let labels = json!({"app": "open-webui"});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "open-webui"},
        "spec": {"selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels, "annotations": {"example.org/keep": "yes"}},
            "spec": {"containers": [{"name": "open-webui", "image": "open-webui"}]},
        }},
    });
    let path = format!("apis/apps/v1/namespaces/{}/deployments", cluster.chat);
    cluster.write(Method::POST, &path, deployment).await;
    let now = async || cluster.read(&format!("{path}/open-webui")).await.unwrap();
    let generation = async || now().await["metadata"]["generation"].as_u64().unwrap();

    let text = world.config_text("");
    let keys = format!("key_namespace: {}}}", cluster.keys);
    assert!(text.contains(&keys));
    let text = text.replace(&keys, &keys.replace('}', ", restart: open-webui}"));
    let agent = world.agent_of(&text).await;
    let resource = world.sold(&agent, "Seabird LLM", &["kestrel-8b"], &[("max_budget", "5")]).await;
    // The Role as the chart renders it for a Deployment that is restarted, verb by verb.
    for verbs in [vec![], vec!["get"], vec!["patch"]] {
        allow(cluster, &verbs).await;
        world.slow_beat(&agent).await;
        let said: Vec<_> = agent.conditions.all().into_iter().filter(|(name, ..)| *name == "webui-not-restarted").collect();
        let missing = if verbs == ["get"] { "patch" } else { "get" };
        assert!(said.len() == 1 && said[0].2.message.contains(&format!("grant verb {missing} on deployments")), "{verbs:?}: {said:?}");
        assert_eq!(generation().await, 1, "{verbs:?}");
        world.advance(Duration::from_secs(601)).await;
    }
    allow(cluster, &["get", "patch"]).await;
    for _ in 0..2 {
        world.slow_beat(&agent).await;
        assert_eq!(generation().await, 2);
    }
    assert!(!agent.conditions.holds("webui-not-restarted"));
    agent.rotate_keys(resource, &[Slot::Chat], true).await.unwrap();
    for _ in 0..2 {
        world.slow_beat(&agent).await;
        assert_eq!(generation().await, 3);
    }
    let next = world.agent_of(&text).await;
    world.slow_beat(&next).await;
    assert_eq!(generation().await, 3);
    let template = now().await["spec"]["template"].clone();
    assert_eq!(template["metadata"]["annotations"]["example.org/keep"], "yes");
    assert!(template["metadata"]["annotations"]["llm-access.io/secret-hash"].as_str().is_some_and(|digest| digest.len() == 32));
    assert_eq!(template["spec"]["containers"][0]["image"], "open-webui");
    world.check().await;
}

/// Lets the agent's account do this with the Deployment, and nothing else.
async fn allow(cluster: &Cluster, verbs: &[&str]) {
    let name = "open-webui";
    let rule = json!({"apiGroups": ["apps"], "resources": ["deployments"], "resourceNames": [name], "verbs": verbs});
    let rules: Vec<Value> = if verbs.is_empty() { Vec::new() } else { vec![rule] };
    let metadata = json!({"name": "restart"});
    let roles = format!("apis/rbac.authorization.k8s.io/v1/namespaces/{}", cluster.chat);
    if cluster.read(&format!("{roles}/roles/restart")).await.is_some() {
        cluster.write(Method::PATCH, &format!("{roles}/roles/restart"), json!({"rules": rules})).await;
    } else {
        cluster.write(Method::POST, &format!("{roles}/roles"), json!({"metadata": metadata, "rules": rules})).await;
        let binding = json!({
            "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "restart"},
            "subjects": [{"kind": "ServiceAccount", "name": "agent", "namespace": "llm-access"}],
        });
        cluster.write(Method::POST, &format!("{roles}/rolebindings"), binding).await;
    }
    // The authorizer hears of it a moment later.
    llm_access_tests::real::eventually("the change of rights", async || {
        for verb in ["get", "patch"] {
            let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": {
                "namespace": cluster.chat, "verb": verb, "group": "apps", "resource": "deployments", "name": name,
            }}});
            let path = "apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
            let (_, answer) = cluster.as_agent(Method::POST, path, Some(&review)).await;
            if answer["status"]["allowed"] != verbs.contains(&verb) {
                return Err(answer.to_string());
            }
        }
        Ok(())
    })
    .await;
}
