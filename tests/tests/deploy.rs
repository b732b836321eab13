//! What is deployed: manifests, image, alert rules and dashboard fit each other, the agent and the documentation.
//!
//! The manifests are rendered from the chart; `deploy/tools/run check` holds them against it with Helm itself.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, str};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Container, PodSpec, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use llm_access_agent::config::{self, ChatNamespaces, Config, SecretsConfig};
use llm_access_agent::telemetry::{METRICS, MetricKind, metrics_table};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&text(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every file below a folder with this ending.
fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![root().join(folder)]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_str().unwrap().ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Every object of the plain manifests.
fn objects() -> Vec<Value> {
    let mut all = Vec::new();
    for path in files("deploy/manifests", ".yaml") {
        if ["kustomization.yaml", "values.yaml"].iter().any(|name| path.ends_with(name)) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        all.extend(documents.into_iter().filter(|document| !document.is_null()));
    }
    all
}

/// The objects of one kind. A field that the type does not know would be lost on the way, and is found by that.
fn of_kind<T: DeserializeOwned + Serialize>(kind: &str) -> Vec<T> {
    let found: Vec<T> = objects().into_iter().filter(|object| object["kind"] == kind).map(typed).collect();
    assert!(!found.is_empty(), "no {kind}");
    found
}

fn typed<T: DeserializeOwned + Serialize>(object: Value) -> T {
    let typed: T = serde_json::from_value(object.clone()).unwrap_or_else(|error| panic!("{error}: {object}"));
    assert_eq!(serde_json::to_value(&typed).unwrap(), object, "a field is not of this type, or not written as the API server writes it");
    typed
}

fn one<T: DeserializeOwned + Serialize>(kind: &str) -> T {
    let mut found = of_kind(kind);
    assert_eq!(found.len(), 1, "{kind}");
    found.remove(0)
}

fn deployment() -> Deployment {
    one("Deployment")
}

fn pod() -> PodSpec {
    deployment().spec.unwrap().template.spec.unwrap()
}

fn container() -> Container {
    let mut containers = pod().containers;
    assert_eq!(containers.len(), 1);
    containers.remove(0)
}

/// The ConfigMap with the agent's configuration, as the text that the pod sees.
fn configuration() -> String {
    let maps: Vec<ConfigMap> = of_kind("ConfigMap");
    maps.into_iter().find_map(|map| map.data?.remove("config.yaml")).expect("no ConfigMap has config.yaml")
}

fn loaded(configuration: &str) -> Config {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.yaml");
    fs::write(&path, configuration).unwrap();
    config::load(Some(&path), &[]).unwrap_or_else(|errors| panic!("{errors}")).config
}

fn secret_namespaces(config: &Config) -> BTreeSet<String> {
    let SecretsConfig::Kubernetes { chat, key_namespace, .. } = &config.secrets else { panic!("not kept in the cluster") };
    let mut all = BTreeSet::from([key_namespace.clone()]);
    match chat {
        ChatNamespaces::One(namespace) => drop(all.insert(namespace.clone())),
        ChatNamespaces::PerProject(map) => all.extend(map.values().cloned()),
    }
    all
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ServiceMonitor {
    api_version: String,
    kind: String,
    metadata: Value,
    spec: ServiceMonitorSpec,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ServiceMonitorSpec {
    selector: Selector,
    namespace_selector: NamespaceSelector,
    endpoints: Vec<Endpoint>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Selector {
    match_labels: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NamespaceSelector {
    match_names: Vec<String>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Endpoint {
    port: String,
    path: String,
    interval: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    groups: Vec<Group>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    #[expect(dead_code, reason = "only its form is checked")]
    name: String,
    rules: Vec<Alert>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Alert {
    alert: String,
    expr: String,
    #[serde(default)]
    #[expect(dead_code, reason = "only its form is checked")]
    r#for: Option<String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

fn alerts() -> Vec<Alert> {
    let rules: Rules = serde_json::from_value(yaml("deploy/chart/files/alerts.yaml")).unwrap();
    rules.groups.into_iter().flat_map(|group| group.rules).collect()
}

#[test]
fn every_object_is_of_a_known_type_and_in_the_agents_namespace_or_where_secrets_go() {
    let config = loaded(&configuration());
    let mut kinds = BTreeMap::new();
    for object in objects() {
        let kind = object["kind"].as_str().unwrap().to_owned();
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_else(|| panic!("{kind} without a namespace")).to_owned();
        let elsewhere = matches!(kind.as_str(), "Role" | "RoleBinding") && secret_namespaces(&config).contains(&namespace);
        assert!(namespace == "llm-access" || elsewhere, "{kind} in {namespace}");
        assert_eq!(object["metadata"]["labels"]["app.kubernetes.io/part-of"], "llm-access", "{kind}");
        // This label with this value is the mark on what the agent itself makes; it must not find its own chart by it.
        assert_ne!(object["metadata"]["labels"]["app.kubernetes.io/managed-by"], "llm-access-agent", "{kind}");
        match kind.as_str() {
            "Deployment" => drop(typed::<Deployment>(object)),
            "ConfigMap" => drop(typed::<ConfigMap>(object)),
            "Service" => drop(typed::<Service>(object)),
            "ServiceAccount" => drop(typed::<ServiceAccount>(object)),
            "Role" => drop(typed::<Role>(object)),
            "RoleBinding" => drop(typed::<RoleBinding>(object)),
            "NetworkPolicy" => drop(typed::<NetworkPolicy>(object)),
            "PodDisruptionBudget" => drop(typed::<PodDisruptionBudget>(object)),
            "ServiceMonitor" => drop(typed::<ServiceMonitor>(object)),
            "PrometheusRule" => assert_eq!(object["spec"], yaml("deploy/chart/files/alerts.yaml")),
            other => panic!("a {other} is not among what the agent needs"),
        }
        *kinds.entry(kind).or_insert(0) += 1;
    }
    assert_eq!(kinds.len(), 10, "{kinds:?}");
}

#[test]
fn the_pod_is_restricted() {
    let (pod, container) = (pod(), container());
    let security = pod.security_context.unwrap();
    assert_eq!(security.run_as_non_root, Some(true));
    assert!(security.run_as_user.unwrap() >= 1000 && security.run_as_group.unwrap() >= 1000);
    assert_eq!(security.seccomp_profile.unwrap().type_, "RuntimeDefault");
    let own = container.security_context.unwrap();
    assert_eq!((own.allow_privilege_escalation, own.read_only_root_filesystem), (Some(false), Some(true)));
    let capabilities = own.capabilities.unwrap();
    assert_eq!((capabilities.drop.as_deref(), capabilities.add), (Some(["ALL".to_owned()].as_slice()), None));
    assert!(own.privileged.is_none() && own.run_as_user.is_none() && own.proc_mount.is_none());
    assert!(pod.host_network.is_none() && pod.host_pid.is_none() && pod.host_ipc.is_none() && pod.init_containers.is_none());
    for volume in pod.volumes.unwrap() {
        assert!(volume.config_map.is_some() || volume.secret.is_some(), "{} is neither a ConfigMap nor a Secret", volume.name);
    }
    for mount in container.volume_mounts.unwrap() {
        assert_eq!((mount.read_only, mount.sub_path), (Some(true), None), "{}", mount.mount_path);
    }
    // Credentials are files: a variable would be in the pod's description, and could not be rotated.
    assert!(container.env_from.is_none());
    let variables = container.env.unwrap_or_default();
    let (told, learnt): (Vec<_>, Vec<_>) = variables.into_iter().partition(|variable| variable.value.is_some());
    assert_eq!(told.into_iter().map(|variable| variable.name).collect::<Vec<_>>(), ["LLM_ACCESS_CONFIG"]);
    for variable in learnt {
        let from = variable.value_from.unwrap();
        assert!(from.field_ref.is_some() && from.secret_key_ref.is_none(), "{}", variable.name);
        assert!(variable.name.starts_with("LLM_ACCESS__EVENTS__POD_"), "{}", variable.name);
    }
    assert_eq!(pod.enable_service_links, Some(false));
    let resources = container.resources.unwrap();
    assert!(resources.limits.unwrap().contains_key("memory") && resources.requests.unwrap().len() == 2);
}

#[test]
fn the_account_may_do_what_the_client_asks_for_and_nothing_else() {
    // The verbs of a call are the first word of it: `self.on("list", …)`, `self.call("get")`.
    let verbs = |file: &str, before: &str| -> BTreeSet<String> {
        text(file).split(before).skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()).collect()
    };
    let secrets = verbs("k8s/src/secrets.rs", "self.on(\"");
    let leases = verbs("k8s/src/lease.rs", "self.call(\"");
    let events = verbs("k8s/src/events.rs", "self.call(\"");
    let deployments = verbs("k8s/src/deployments.rs", "self.on(\"");
    assert!(secrets.len() >= 4 && leases.len() == 3 && events.len() == 1, "{secrets:?} {leases:?} {events:?}");

    let config = loaded(&configuration());
    let lease = config.lease.clone().unwrap();
    let account = pod().service_account_name.unwrap();
    let accounts: Vec<ServiceAccount> = of_kind("ServiceAccount");
    assert_eq!(accounts.iter().map(|account| account.metadata.name.clone().unwrap()).collect::<Vec<_>>(), std::slice::from_ref(&account));
    assert_eq!(accounts[0].automount_service_account_token, Some(false), "only the agent's own pod gets the token");
    assert_eq!(pod().automount_service_account_token, Some(true));

    let (mut for_secrets, mut for_leases, mut for_events) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for role in of_kind::<Role>("Role") {
        let namespace = role.metadata.namespace.clone().unwrap();
        for PolicyRule { api_groups, resources, resource_names, verbs, non_resource_urls } in role.rules.unwrap() {
            let (groups, resources) = (api_groups.unwrap(), resources.unwrap());
            assert!(non_resource_urls.is_none());
            match (groups.join(",").as_str(), resources.join(",").as_str()) {
                ("", "secrets") => {
                    assert_eq!((verbs.into_iter().collect::<BTreeSet<_>>(), resource_names), (secrets.clone(), None));
                    assert!(for_secrets.insert(namespace.clone()), "twice in {namespace}");
                }
                ("events.k8s.io", "events") => {
                    assert_eq!((verbs.into_iter().collect::<BTreeSet<_>>(), resource_names), (events.clone(), None));
                    assert!(for_events.insert(namespace.clone()), "twice in {namespace}");
                }
                ("coordination.k8s.io", "leases") => {
                    assert_eq!(namespace, lease.namespace);
                    match verbs.join(",").as_str() {
                        "create" => assert_eq!(resource_names, None),
                        _ => {
                            assert_eq!(resource_names, Some(vec![lease.name.clone()]), "{verbs:?}");
                        }
                    }
                    for_leases.extend(verbs);
                }
                other => panic!("a right on {other:?} in {namespace}"),
            }
        }
    }
    assert_eq!(for_secrets, secret_namespaces(&config));
    assert_eq!(for_leases, leases);
    let mut places = secret_namespaces(&config);
    places.insert("llm-access".to_owned());
    assert_eq!(for_events, places);
    // Restarts are off, so that no right for them is here; the template grants what they take.
    let template = text("deploy/chart/templates/role-secrets.yaml");
    let granted = template.split_once("resources: [deployments]").unwrap().1.split_once("verbs: [").unwrap().1.split(']').next().unwrap();
    assert_eq!(granted.split(", ").map(str::to_owned).collect::<BTreeSet<_>>(), deployments);

    // Every Role is bound to the account in its own namespace, and nothing else is bound.
    let roles: BTreeSet<_> = of_kind::<Role>("Role").into_iter().map(|role| (role.metadata.namespace, role.metadata.name)).collect();
    let mut bound = BTreeSet::new();
    for binding in of_kind::<RoleBinding>("RoleBinding") {
        assert_eq!((binding.role_ref.kind.as_str(), binding.role_ref.api_group.as_str()), ("Role", "rbac.authorization.k8s.io"));
        let subjects = binding.subjects.unwrap();
        assert_eq!(subjects.len(), 1);
        assert_eq!(
            (subjects[0].kind.as_str(), subjects[0].name.as_str(), subjects[0].namespace.as_deref()),
            ("ServiceAccount", account.as_str(), Some("llm-access"))
        );
        bound.insert((binding.metadata.namespace, Some(binding.role_ref.name)));
    }
    assert_eq!(bound, roles);
}

#[test]
fn no_template_asks_for_rights_in_the_whole_cluster() {
    for path in files("deploy/chart/templates", "") {
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("ClusterRole"), "{}", path.display());
    }
}

#[test]
fn the_configuration_is_one_that_the_agent_takes_and_its_files_are_mounted() {
    let config = loaded(&configuration());
    let (pod, container) = (pod(), container());
    // What the pod sees: each file of each volume below the folder where it is mounted.
    let mut seen = BTreeMap::new();
    for mount in container.volume_mounts.unwrap() {
        let volume = pod.volumes.iter().flatten().find(|volume| volume.name == mount.name).unwrap();
        let items = match (&volume.config_map, &volume.secret) {
            (Some(map), None) => map.items.clone(),
            (None, Some(secret)) => {
                assert_eq!(secret.default_mode, Some(0o440), "{}", volume.name);
                secret.items.clone()
            }
            _ => panic!("{}", volume.name),
        };
        let names = items.map_or_else(|| vec!["config.yaml".to_owned()], |items| items.into_iter().map(|item| item.path).collect());
        seen.extend(names.into_iter().map(|name| (format!("{}/{name}", mount.mount_path), volume.secret.is_some())));
    }
    let told: Value = serde_saphyr::from_str(&configuration()).unwrap();
    for (pointer, secret) in [("/waldur/token_file", true), ("/gateway/key_file", true), ("/catalogue/file", false)] {
        let path = told.pointer(pointer).unwrap().as_str().unwrap();
        assert_eq!(seen.get(path), Some(&secret), "{pointer} is {path}, mounted are {seen:?}");
    }
    // The group of the volumes is the one that may read the credentials.
    let security = pod.security_context.unwrap();
    assert_eq!(security.fs_group, security.run_as_group);

    let arguments = container.args.unwrap();
    let path = container.env.unwrap().into_iter().find_map(|variable| variable.value).unwrap();
    assert!(seen.contains_key(path.as_str()), "{path}");
    assert!(container.command.is_none(), "the image's entry point is the agent");
    let output = Command::new(env!("CARGO_BIN_EXE_agent-under-test")).args(&arguments).arg("--help").output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));

    // Work in flight may end, a call to a peer included, before Kubernetes loses patience.
    let grace: i64 = arguments.iter().find_map(|argument| argument.strip_prefix("--grace=")).unwrap().parse().unwrap();
    let longest = config.waldur.timeout.max(config.gateway.timeout).as_secs();
    assert!(grace > i64::try_from(longest).unwrap() && pod.termination_grace_period_seconds.unwrap() >= grace + 5, "{grace}");
}

#[test]
fn probes_and_scrapes_reach_the_listener() {
    let listen = loaded(&configuration()).http.listen.unwrap();
    assert!(listen.ip().is_unspecified());
    let container = container();
    let ports = container.ports.unwrap();
    assert_eq!((ports.len(), ports[0].name.as_deref(), ports[0].container_port), (1, Some("metrics"), i32::from(listen.port())));
    for (probe, path) in [(container.liveness_probe, "/livez"), (container.readiness_probe, "/readyz")] {
        let probe = probe.unwrap().http_get.unwrap();
        assert_eq!((probe.path.as_deref(), probe.port), (Some(path), IntOrString::String("metrics".into())));
        assert!(text("agent/src/http.rs").contains(&format!(".route(\"{path}\"")));
    }

    let labels = deployment().spec.unwrap().template.metadata.unwrap().labels.unwrap();
    let selects =
        |selector: &BTreeMap<String, String>| !selector.is_empty() && selector.iter().all(|(key, value)| labels.get(key) == Some(value));
    assert!(selects(&deployment().spec.unwrap().selector.match_labels.unwrap()));
    let service: Service = one("Service");
    let spec = service.spec.unwrap();
    assert!(selects(&spec.selector.unwrap()));
    let port = &spec.ports.unwrap()[0];
    assert_eq!((port.name.as_deref(), &port.target_port), (Some("metrics"), &Some(IntOrString::String("metrics".into()))));
    let monitor: ServiceMonitor = one("ServiceMonitor");
    let of_service = service.metadata.labels.unwrap();
    assert!(monitor.spec.selector.match_labels.iter().all(|(key, value)| of_service.get(key) == Some(value)));
    assert_eq!(monitor.spec.namespace_selector.match_names, [service.metadata.namespace.unwrap()]);
    assert_eq!((monitor.spec.endpoints[0].port.as_str(), monitor.spec.endpoints[0].path.as_str()), ("metrics", "/metrics"));

    let policy: NetworkPolicy = one("NetworkPolicy");
    let spec = policy.spec.unwrap();
    assert!(selects(&spec.pod_selector.unwrap().match_labels.unwrap()));
    assert_eq!(spec.policy_types.unwrap(), ["Ingress", "Egress"]);
    let ingress = spec.ingress.unwrap();
    let ports = ingress[0].ports.as_ref().unwrap();
    assert_eq!((ingress.len(), ports.len(), &ports[0].port), (1, 1, &Some(IntOrString::String("metrics".into()))));
    let mut out = BTreeSet::new();
    for rule in spec.egress.unwrap() {
        let ports = rule.ports.expect("a rule without ports lets everything out");
        for port in ports {
            let Some(IntOrString::Int(number)) = port.port else { panic!("{port:?}") };
            out.insert((number, port.protocol.unwrap()));
        }
    }
    let expected = [(53, "TCP"), (53, "UDP"), (443, "TCP"), (4000, "TCP"), (6443, "TCP")];
    assert_eq!(out, expected.into_iter().map(|(port, protocol)| (port, protocol.to_owned())).collect());
    let gateway = loaded(&configuration()).gateway.url;
    assert!(
        out.contains(&(i32::from(gateway.port_or_known_default().unwrap()), "TCP".into())),
        "the gateway of the example cannot be reached"
    );
}

#[test]
fn replicas_have_a_lease_and_a_budget() {
    let spec = deployment().spec.unwrap();
    assert!(spec.replicas.unwrap() > 1);
    assert_eq!(spec.strategy.unwrap().type_.as_deref(), Some("RollingUpdate"));
    assert!(loaded(&configuration()).lease.is_some());
    let budget: PodDisruptionBudget = one("PodDisruptionBudget");
    let budget = budget.spec.unwrap();
    assert_eq!((budget.max_unavailable, budget.min_available), (Some(IntOrString::Int(1)), None));
    assert_eq!(budget.selector, Some(spec.selector));
}

fn merged(mut under: Value, over: &Value) -> Value {
    match (&mut under, over) {
        (Value::Object(map), Value::Object(more)) => {
            for (key, value) in more {
                let old = map.remove(key).unwrap_or(Value::Null);
                map.insert(key.clone(), merged(old, value));
            }
            under
        }
        _ => over.clone(),
    }
}

#[test]
fn the_overlay_to_copy_configures_what_the_manifests_mount() {
    let configuration = text("deploy/example/config.yml");
    let (ours, theirs) = (loaded(&configuration), loaded(&self::configuration()));
    assert_eq!(
        (secret_namespaces(&ours), ours.lease, ours.http.listen, ours.catalogue.file),
        (secret_namespaces(&theirs), theirs.lease, theirs.http.listen, theirs.catalogue.file)
    );
    let paths = |configuration: &str| -> Value {
        let told: Value = serde_saphyr::from_str(configuration).unwrap();
        json!([told["waldur"]["token_file"], told["gateway"]["key_file"]])
    };
    assert_eq!(paths(&configuration), paths(&self::configuration()));
    let catalogue = text("deploy/example/inference.yml");
    assert!(llm_access_agent::catalogue::parse(&catalogue, "inference.yml").is_ok());
}

#[test]
fn the_configuration_of_the_dev_box_is_one_that_the_agent_takes() {
    let (defaults, dev) = (yaml("deploy/chart/values.yaml"), yaml("deploy/chart/values-dev.yaml"));
    let derived = json!({"waldur": {"token_file": "/t"}, "gateway": {"key_file": "/k"}, "catalogue": {"file": "/c"}, "http": {"listen": "0.0.0.0:9090"}});
    let config = loaded(&merged(merged(derived, &defaults["config"]), &dev["config"]).to_string());
    assert_eq!((config.owner.as_str(), config.lease), ("dev", None));
    let catalogue = dev["catalogue"]["inline"].as_str().unwrap();
    let read = llm_access_agent::catalogue::parse(catalogue, "inference.yml").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(read.models.len(), 1);
}

/// The dotted paths of everything that has no further level, below `config` as well.
fn leaves(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) if !map.is_empty() && path != "metrics.dashboard.labels" => {
            for (key, value) in map {
                leaves(value, &if path.is_empty() { key.clone() } else { format!("{path}.{key}") }, found);
            }
        }
        _ => drop(found.insert(path.to_owned())),
    }
}

#[test]
fn every_value_is_documented_and_every_documented_value_exists() {
    let mut values = BTreeSet::new();
    leaves(&yaml("deploy/chart/values.yaml"), "", &mut values);
    let readme = text("deploy/chart/README.md");
    let table = readme.split("| Value | Default | Meaning |").nth(1).unwrap();
    let documented: BTreeSet<String> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split(" |").next())
        .flat_map(|cell| cell.split('`').step_by(2).map(str::to_owned).collect::<Vec<_>>())
        .filter(|name| !name.is_empty())
        .collect();
    let missing: Vec<_> = values.difference(&documented).collect();
    assert!(missing.is_empty(), "not in the README: {missing:?}");
    let gone: Vec<_> = documented.difference(&values).filter(|name| *name != "config").collect();
    assert!(gone.is_empty(), "not in values.yaml: {gone:?}");
}

/// Where the schema names every field of an object, it names those of values.yaml. The agent's own configuration is another matter.
fn same_fields(schema: &Value, value: &Value, path: &str) {
    if path == "values.config" {
        return;
    }
    let (Some(properties), Some(map)) = (schema["properties"].as_object(), value.as_object()) else {
        return;
    };
    if schema["additionalProperties"] == json!(false) {
        let ours: BTreeSet<&String> = map.keys().collect();
        // Helm's own, and what only makes sense when it is given.
        let theirs: BTreeSet<&String> = properties.keys().filter(|key| key.as_str() != "global").collect();
        assert_eq!(theirs, ours, "{path}");
    }
    for (key, schema) in properties {
        if let Some(value) = map.get(key) {
            same_fields(schema, value, &format!("{path}.{key}"));
        }
    }
}

#[test]
fn the_schema_knows_the_values_and_no_others() {
    let schema: Value = serde_json::from_str(&text("deploy/chart/values.schema.json")).unwrap();
    assert_eq!(schema["additionalProperties"], json!(false));
    same_fields(&schema, &yaml("deploy/chart/values.yaml"), "values");
}

/// The dotted paths of the fields that a schema lets be set. Every object names all of its fields.
fn settable(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    let shapes = schema["anyOf"].as_array().cloned().unwrap_or_default();
    for shape in shapes.iter().filter(|shape| shape["properties"].is_object()) {
        settable(shape, path, found);
    }
    if schema["items"]["properties"].is_object() {
        found.insert(path.to_owned());
        return settable(&schema["items"], &format!("{path}[]"), found);
    }
    let Some(properties) = schema["properties"].as_object() else {
        found.extend((!path.is_empty()).then(|| path.to_owned()));
        return;
    };
    assert_eq!(schema["additionalProperties"], json!(false), "{path} takes anything");
    for (key, schema) in properties.iter().filter(|(_, schema)| **schema != json!(false)) {
        settable(schema, &if path.is_empty() { key.clone() } else { format!("{path}.{key}") }, found);
    }
}

#[test]
fn the_schema_knows_the_agents_configuration_and_nothing_else() {
    let schema: Value = serde_json::from_str(&text("deploy/chart/values.schema.json")).unwrap();
    let mut settings = BTreeSet::new();
    settable(&schema["properties"]["config"], "", &mut settings);
    // Each row of the table of fields that may be in the file begins like this.
    let table = text("docs/configuration.md");
    let mut fields: BTreeSet<String> =
        table.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("`<br>")).map(|(field, _)| field.to_owned()).collect();
    assert!(fields.len() > 50);
    // What the chart itself says: where credentials and catalogue are mounted and which port is open.
    for derived in ["waldur.token_file", "gateway.key_file", "catalogue.file", "http.listen"] {
        assert!(fields.remove(derived), "{derived}");
    }
    let missing: Vec<_> = fields.difference(&settings).collect();
    assert!(missing.is_empty(), "add to properties.config of deploy/chart/values.schema.json: {missing:?}");
    let gone: Vec<_> = settings.difference(&fields).collect();
    assert!(gone.is_empty(), "no field of the configuration: {gone:?}");
}

#[test]
fn versions_agree() {
    let chart = yaml("deploy/chart/Chart.yaml");
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!((chart["version"].as_str(), chart["appVersion"].as_str()), (Some(version), Some(version)));
    assert!(container().image.unwrap().ends_with(&format!(":{version}")));
    let (dockerfile, toolchain) = (text("deploy/Dockerfile"), text("rust-toolchain.toml"));
    assert!(dockerfile.contains(&format!("ARG VERSION={version}\n")));
    let channel = toolchain.lines().find_map(|line| line.strip_prefix("channel = \"")).unwrap().trim_end_matches('"');
    assert!(dockerfile.contains(&format!("rust:{channel}-")) && dockerfile.contains(&format!("RUSTUP_TOOLCHAIN={channel}\n")), "{channel}");
}

#[test]
fn the_image_runs_the_agent_without_root_and_without_a_shell() {
    let dockerfile = text("deploy/Dockerfile");
    let joined = dockerfile.replace("\\\n", " ");
    let lines: Vec<(&str, &str)> = joined.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(' ')).collect();
    let of = |word: &str| lines.iter().filter(|(first, _)| *first == word).map(|(_, rest)| rest.trim()).collect::<Vec<_>>();
    let images = of("FROM");
    assert_eq!(images.len(), 2);
    assert!(images[1].contains("distroless/") && images[1].ends_with(":nonroot"), "{images:?}");
    assert!(images.iter().all(|image| image.contains(':') && !image.contains(":latest")), "{images:?}");
    let last = lines.iter().rposition(|(word, _)| *word == "FROM").unwrap();
    assert!(lines[last..].iter().all(|(word, _)| *word != "RUN"), "distroless has no shell to run anything");
    assert_eq!(of("ADD"), Vec::<&str>::new());

    let security = pod().security_context.unwrap();
    assert_eq!(of("USER"), [format!("{}:{}", security.run_as_user.unwrap(), security.run_as_group.unwrap())]);
    assert_eq!(of("ENTRYPOINT"), ["[\"/usr/local/bin/llm-access-agent\"]"]);
    let label = of("LABEL").join(" ");
    assert!(label.contains(&format!("org.opencontainers.image.base.name=\"{}\"", images[1])), "{label}");
    for key in ["title", "description", "licenses", "version", "revision"] {
        assert!(label.contains(&format!("org.opencontainers.image.{key}=")), "{key}");
    }
    let build = of("RUN").join(" ");
    assert!(build.contains("cargo build --locked --profile dist -p llm-access-agent") && build.contains("--no-install-recommends"));

    // The build sees every crate of the workspace; cargo would refuse to start without one.
    let ignored = text("deploy/Dockerfile.dockerignore");
    let manifest = text("Cargo.toml");
    let members = manifest.lines().find_map(|line| line.strip_prefix("members = [")).unwrap().trim_end_matches(']');
    for member in members.split(',').map(|member| member.trim().trim_matches('"')) {
        assert!(ignored.lines().any(|line| line == format!("!{member}")), "{member}");
    }
}

/// Names in an expression that begin like ours.
fn metrics_of(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("llm_access_")).map(str::to_owned).collect()
}

fn known_metrics() -> BTreeSet<String> {
    METRICS.iter().map(|metric| metric.name.to_owned()).collect()
}

#[test]
fn metrics_are_documented_and_named_by_convention() {
    let table = metrics_table();
    assert!(text("docs/metrics.md").contains(&table), "docs/metrics.md does not hold this table:\n{table}");
    for metric in METRICS {
        assert_eq!(metric.kind == MetricKind::Counter, metric.name.ends_with("_total"), "{}", metric.name);
        assert!(metric.name.starts_with("llm_access_") && !metric.name.ends_with("_ms"), "{}", metric.name);
    }
    assert!(METRICS.is_sorted_by_key(|metric| metric.name));
    assert_eq!(known_metrics().len(), METRICS.len());
}

#[test]
fn metrics_in_the_source_are_those_in_the_list() {
    let mut used: BTreeMap<String, (MetricKind, BTreeSet<String>)> = BTreeMap::new();
    for folder in ["agent/src", "k8s/src", "waldur-client/src", "litellm-client/src"] {
        for path in files(folder, ".rs") {
            let source = fs::read_to_string(&path).unwrap();
            for (word, kind) in [("gauge!(", MetricKind::Gauge), ("counter!(", MetricKind::Counter), ("histogram!(", MetricKind::Gauge)] {
                for (at, _) in source.match_indices(word) {
                    if source[..at].ends_with("describe_") {
                        continue;
                    }
                    let call = &source[at + word.len()..];
                    let Some(rest) = call.trim_start().strip_prefix('"') else {
                        continue;
                    };
                    let name = rest.split('"').next().unwrap().to_owned();
                    let mut depth = 1;
                    let end = call.char_indices().find(|(_, c)| {
                        depth += match c {
                            '(' => 1,
                            ')' => -1,
                            _ => 0,
                        };
                        depth == 0
                    });
                    let call = &call[..end.unwrap().0];
                    let mut parts: Vec<&str> = call.split("=>").collect();
                    parts.pop();
                    let labels: BTreeSet<String> = parts
                        .into_iter()
                        .filter_map(|part| Some(part.trim_end().strip_suffix('"')?.rsplit('"').next()?.to_owned()))
                        .collect();
                    let entry = used.entry(name.clone()).or_insert_with(|| (kind, labels.clone()));
                    assert_eq!(*entry, (kind, labels), "{name} in {}", path.display());
                }
            }
        }
    }
    let listed: BTreeMap<String, (MetricKind, BTreeSet<String>)> = METRICS
        .iter()
        .map(|metric| (metric.name.to_owned(), (metric.kind, metric.labels.iter().map(|label| (*label).to_owned()).collect())))
        .collect();
    let unlisted: Vec<_> = used.iter().filter(|entry| listed.get(entry.0) != Some(entry.1)).collect();
    assert!(unlisted.is_empty(), "list them, as they are used, in METRICS of agent/src/telemetry.rs: {unlisted:?}");
    let unused: Vec<_> = listed.keys().filter(|name| !used.contains_key(*name)).collect();
    assert!(unused.is_empty(), "in METRICS, and nowhere used: {unused:?}");
}

#[test]
fn every_alert_has_a_run_book_and_a_test_and_asks_for_metrics_that_exist() {
    let operations = text("docs/operations.md");
    let tests = yaml("deploy/alerts-test.yaml");
    let of_alerts: Vec<&Value> =
        tests["tests"].as_array().unwrap().iter().flat_map(|test| test["alert_rule_test"].as_array().into_iter().flatten()).collect();
    let alerts = alerts();
    assert!(alerts.len() >= 10);
    for Alert { alert, expr, labels, annotations, .. } in &alerts {
        let metrics = metrics_of(expr);
        assert!(!metrics.is_empty() && metrics.is_subset(&known_metrics()), "{alert}: {metrics:?}");
        assert!(matches!(labels["severity"].as_str(), "critical" | "warning" | "info") && labels.len() == 1, "{alert}");
        assert!(!annotations["summary"].is_empty() && !annotations["description"].is_empty(), "{alert}");
        assert_eq!(annotations["runbook"], format!("docs/operations.md#{}", alert.to_lowercase()));
        assert!(operations.contains(&format!("\n### {alert}\n")), "{alert} has no run-book in docs/operations.md");
        let outcomes: BTreeSet<bool> = of_alerts
            .iter()
            .filter(|test| test["alertname"] == alert.as_str())
            .map(|test| !test["exp_alerts"].as_array().unwrap().is_empty())
            .collect();
        assert_eq!(outcomes, BTreeSet::from([false, true]), "{alert} needs a test in which it fires and one in which it does not");
        // A replica that stands by keeps the figures of the time when it led.
        let remembered = [
            "llm_access_condition",
            "llm_access_resources_drifted",
            "llm_access_oldest_open_order_timestamp_seconds",
            "llm_access_components_retired",
            "llm_access_usage_behind",
            "llm_access_usage_last_pass_timestamp_seconds",
            "llm_access_budget_resets_overdue",
        ];
        if remembered.iter().any(|name| metrics.contains(*name)) {
            assert!(metrics.contains("llm_access_leading"), "{alert} would take a standby replica at its word");
        }
        // Conditions that are named are conditions that operators are told of.
        for matcher in expr.split("condition=").skip(1) {
            let names = matcher.trim_start_matches('~').trim_start_matches('"').split('"').next().unwrap();
            for name in names
                .replace("(waldur|gateway|secrets)-", "waldur-")
                .replace("waldur-(unreachable|failing)", "waldur-unreachable|waldur-failing")
                .split('|')
            {
                assert!(
                    operations.contains(&format!("`{}", name.trim_end_matches(".*"))),
                    "{alert}: {name} is no condition of docs/operations.md"
                );
            }
        }
    }
    let names: BTreeSet<&str> = alerts.iter().map(|alert| alert.alert.as_str()).collect();
    assert_eq!(names.len(), alerts.len());
    assert!(of_alerts.iter().all(|test| names.contains(test["alertname"].as_str().unwrap())));
}

#[test]
fn the_dashboard_shows_metrics_that_exist() {
    let dashboard: Value = serde_json::from_str(&text("deploy/chart/files/dashboard.json")).unwrap();
    let maps: Vec<ConfigMap> = of_kind("ConfigMap");
    let rendered = maps.into_iter().find_map(|map| map.data?.remove("llm-access-agent.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&rendered).unwrap(), dashboard);

    let panels = dashboard["panels"].as_array().unwrap();
    let (mut shown, mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()));
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(x < 24 && taken.insert((x, y)), "{} overlaps or is too wide", panel["title"]);
            }
        }
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            assert!(expression.contains("namespace=~\"$namespace\""), "{expression}");
            shown.extend(metrics_of(expression));
        }
    }
    let unknown: Vec<_> = shown.difference(&known_metrics()).cloned().collect();
    assert!(unknown.is_empty() && shown.len() >= 12, "{unknown:?}");
    let variables: Vec<&str> =
        dashboard["templating"]["list"].as_array().unwrap().iter().map(|variable| variable["name"].as_str().unwrap()).collect();
    assert_eq!(variables, ["datasource", "namespace"]);
}

#[test]
fn values_in_the_manifests_are_only_examples() {
    let values = yaml("deploy/manifests/values.yaml");
    let mut hosts = Vec::new();
    fn collect(value: &Value, hosts: &mut Vec<String>) {
        match value {
            Value::String(text) if text.starts_with("http") => hosts.push(url::Url::parse(text).unwrap().host_str().unwrap().to_owned()),
            Value::Object(map) => map.values().for_each(|value| collect(value, hosts)),
            Value::Array(list) => list.iter().for_each(|value| collect(value, hosts)),
            _ => {}
        }
    }
    collect(&values, &mut hosts);
    assert!(!hosts.is_empty() && hosts.iter().all(|host| host.ends_with(".example.org") || host.ends_with(".svc")), "{hosts:?}");
    let _: &Map<String, Value> = values.as_object().unwrap();
}
