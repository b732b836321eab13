//! Secrets against the simulator. With `LLM_ACCESS_TEST_KUBECONFIG` the tests that need no faults run against that cluster
//! instead, in a namespace `llm-access-test-<n>` each, which must exist and may be written to.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::time::Duration;

use llm_access_fixtures::clock::SimClock;
use llm_access_fixtures::faults::{Fault, Faults, Peer, Rule};
use llm_access_fixtures::kube::Kube;
use llm_access_k8s::{Class, Created, Draft, Error, Secrets, Settings, Stored};
use secrecy::ExposeSecret as _;

const MARKER: &str = "sk-MARKER-0123456789";

struct Simulated {
    kube: Kube,
    faults: Faults,
    secrets: Secrets,
}

async fn simulated() -> Simulated {
    rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
    let faults = Faults::new();
    let kube = Kube::start(SimClock::real(), faults.clone(), None).await.unwrap();
    kube.add_namespace("chat");
    let secrets = Secrets::connect(Settings { api_url: Some(kube.url()), ..Settings::default() }).await.unwrap();
    Simulated { kube, faults, secrets }
}

/// A cluster, simulated or real, as us and as somebody else.
struct Cluster {
    namespace: String,
    ours: Secrets,
    other: Secrets,
    _kube: Option<Kube>,
}

async fn cluster(namespace: &str) -> Cluster {
    rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
    let mut settings = Settings::default();
    let mut kept = None;
    if let Some(path) = std::env::var_os("LLM_ACCESS_TEST_KUBECONFIG") {
        settings.kubeconfig = Some(path.into());
    } else {
        let kube = Kube::start(SimClock::real(), Faults::new(), None).await.unwrap();
        kube.add_namespace(namespace);
        settings.api_url = Some(kube.url());
        kept = Some(kube);
    }
    let ours = Secrets::connect(settings.clone()).await.unwrap();
    settings.field_manager = "kubectl-edit".to_owned();
    let other = Secrets::connect(settings).await.unwrap();
    let cluster = Cluster { namespace: namespace.to_owned(), ours, other, _kube: kept };
    for stored in cluster.ours.list(namespace, &BTreeMap::new()).await.unwrap() {
        cluster.ours.delete(&stored).await.unwrap();
    }
    cluster
}

impl Cluster {
    async fn read(&self) -> Stored {
        let mut all = self.ours.list(&self.namespace, &BTreeMap::new()).await.unwrap();
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    /// Somebody else changes and adds variables; what he does not name stays.
    async fn edited_by_other(&self, data: &[(&str, &str)]) {
        let base = self.read().await;
        let mut edit = draft(&base.name, data);
        edit.labels.clear();
        edit.annotations.clear();
        self.other.overwrite(&base, &edit).await.unwrap();
    }
}

fn draft(name: &str, data: &[(&str, &str)]) -> Draft {
    Draft {
        name: name.to_owned(),
        labels: BTreeMap::from([("llm-access.io/owner".to_owned(), "icarus".to_owned())]),
        annotations: BTreeMap::from([("llm-access.io/state".to_owned(), "pending".to_owned())]),
        data: data.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect(),
    }
}

fn plain(stored: &Stored) -> BTreeMap<&str, &str> {
    stored.data.iter().map(|(key, value)| (key.as_str(), value.expose_secret())).collect()
}

#[tokio::test]
async fn a_create_never_overwrites() {
    let cluster = cluster("llm-access-test-1").await;
    let first = draft("llm-key-a", &[("A", "one")]);
    assert_eq!(cluster.ours.create(&cluster.namespace, &first).await.unwrap(), Created::Made);
    let second = draft("llm-key-a", &[("A", "two")]);
    assert_eq!(cluster.ours.create(&cluster.namespace, &second).await.unwrap(), Created::Exists);
    let stored = cluster.read().await;
    assert_eq!(plain(&stored), BTreeMap::from([("A", "one")]));
    assert_eq!(stored.labels["llm-access.io/owner"], "icarus");
    assert!(stored.owned.contains("A"));
    assert!(stored.created.is_some());
}

#[tokio::test]
async fn a_list_shows_what_the_labels_select() {
    let cluster = cluster("llm-access-test-2").await;
    cluster.ours.create(&cluster.namespace, &draft("a", &[("A", "1")])).await.unwrap();
    let mut foreign = draft("b", &[("A", "1")]);
    foreign.labels.insert("llm-access.io/owner".to_owned(), "daedalus".to_owned());
    cluster.ours.create(&cluster.namespace, &foreign).await.unwrap();
    let ours = BTreeMap::from([("llm-access.io/owner".to_owned(), "icarus".to_owned())]);
    let found = cluster.ours.list(&cluster.namespace, &ours).await.unwrap();
    assert_eq!(found.iter().map(|stored| stored.name.as_str()).collect::<Vec<_>>(), ["a"]);
    assert!(cluster.ours.list("no-such-namespace", &ours).await.unwrap().is_empty());
}

#[tokio::test]
async fn an_apply_replaces_ours_and_keeps_theirs() {
    let cluster = cluster("llm-access-test-3").await;
    cluster.ours.create(&cluster.namespace, &draft("a", &[("KEY", "old"), ("RAG", "old")])).await.unwrap();
    cluster.edited_by_other(&[("PROXY", "http://proxy")]).await;
    let mut wanted = draft("a", &[("KEY", "new")]);
    wanted.annotations = BTreeMap::from([("llm-access.io/alias".to_owned(), "x".to_owned())]);
    cluster.ours.apply(&cluster.read().await, &wanted).await.unwrap();
    let stored = cluster.read().await;
    assert_eq!(plain(&stored), BTreeMap::from([("KEY", "new"), ("PROXY", "http://proxy")]));
    assert!(!stored.annotations.contains_key("llm-access.io/state"), "an annotation of ours that is not wanted goes");
    assert_eq!(stored.annotations["llm-access.io/alias"], "x");
    // And once more, now that an apply of ours is on record.
    cluster.ours.apply(&stored, &draft("a", &[("KEY", "newer"), ("RAG", "on")])).await.unwrap();
    cluster.ours.apply(&cluster.read().await, &draft("a", &[("KEY", "newest")])).await.unwrap();
    assert_eq!(plain(&cluster.read().await), BTreeMap::from([("KEY", "newest"), ("PROXY", "http://proxy")]));
}

#[tokio::test]
async fn an_apply_of_the_same_changes_nothing() {
    let cluster = cluster("llm-access-test-4").await;
    let same = draft("a", &[("KEY", "v")]);
    cluster.ours.create(&cluster.namespace, &same).await.unwrap();
    let before = cluster.read().await;
    cluster.ours.apply(&before, &same).await.unwrap();
    assert_eq!(cluster.read().await.resource_version, before.resource_version);
}

#[tokio::test]
async fn a_late_writer_gets_a_conflict() {
    let cluster = cluster("llm-access-test-5").await;
    cluster.ours.create(&cluster.namespace, &draft("a", &[("KEY", "v")])).await.unwrap();
    let early = cluster.read().await;
    cluster.ours.apply(&early, &draft("a", &[("KEY", "winner")])).await.unwrap();
    let late = cluster.ours.apply(&early, &draft("a", &[("KEY", "loser")])).await.unwrap_err();
    assert!(matches!(&late, Error::Conflict { managers, .. } if managers.is_empty()), "{late}");
    let delete = cluster.ours.delete(&early).await.unwrap_err();
    assert_eq!(delete.class(), Class::Conflict);
    assert_eq!(plain(&cluster.read().await)["KEY"], "winner");
}

#[tokio::test]
async fn another_manager_is_named_and_only_a_repair_overrules_it() {
    let cluster = cluster("llm-access-test-6").await;
    cluster.ours.create(&cluster.namespace, &draft("a", &[("KEY", "ours")])).await.unwrap();
    cluster.edited_by_other(&[("KEY", "theirs")]).await;
    let base = cluster.read().await;
    let error = cluster.ours.apply(&base, &draft("a", &[("KEY", "ours")])).await.unwrap_err();
    assert!(matches!(&error, Error::Conflict { managers, .. } if managers.contains(&"kubectl-edit".to_owned())), "{error}");
    assert!(error.to_string().contains(".data.KEY"), "{error}");
    assert_eq!(plain(&cluster.read().await)["KEY"], "theirs");
    cluster.ours.overwrite(&base, &draft("a", &[("KEY", "repaired")])).await.unwrap();
    assert_eq!(plain(&cluster.read().await)["KEY"], "repaired");
}

#[tokio::test]
async fn a_deleted_secret_is_neither_revived_nor_mistaken() {
    let cluster = cluster("llm-access-test-7").await;
    cluster.ours.create(&cluster.namespace, &draft("a", &[("KEY", "v")])).await.unwrap();
    let old = cluster.read().await;
    cluster.ours.delete(&old).await.unwrap();
    cluster.ours.delete(&old).await.unwrap();
    let error = cluster.ours.apply(&old, &draft("a", &[("KEY", "w")])).await.unwrap_err();
    assert_eq!(error.class(), Class::Conflict);
    assert!(cluster.ours.list(&cluster.namespace, &BTreeMap::new()).await.unwrap().is_empty());
    cluster.ours.create(&cluster.namespace, &draft("a", &[("KEY", "again")])).await.unwrap();
    assert_eq!(cluster.ours.delete(&old).await.unwrap_err().class(), Class::Conflict);
    assert_eq!(cluster.ours.apply(&old, &draft("a", &[("KEY", "w")])).await.unwrap_err().class(), Class::Conflict);
    let mut mixed = cluster.read().await;
    mixed.uid.clone_from(&old.uid);
    assert_eq!(cluster.ours.apply(&mixed, &draft("a", &[("KEY", "w")])).await.unwrap_err().class(), Class::Conflict);
    assert_eq!(plain(&cluster.read().await)["KEY"], "again");
}

#[tokio::test]
async fn what_the_server_refuses_is_invalid_and_a_missing_namespace_is_named() {
    let cluster = cluster("llm-access-test-8").await;
    let mut label = draft("a", &[("KEY", "v")]);
    label.labels.insert("llm-access.io/owner".to_owned(), "no spaces".to_owned());
    assert_eq!(cluster.ours.create(&cluster.namespace, &label).await.unwrap_err().class(), Class::Invalid);
    let long = draft("a", &[("KEY", &"x".repeat(1_100_000))]);
    assert_eq!(cluster.ours.create(&cluster.namespace, &long).await.unwrap_err().class(), Class::Invalid);
    let error = cluster.ours.create("no-such-namespace", &draft("a", &[("KEY", "v")])).await.unwrap_err();
    assert_eq!(error.class(), Class::NotFound);
    assert!(error.to_string().contains("create namespace no-such-namespace"), "{error}");
}

#[tokio::test]
async fn a_probe_leaves_nothing_behind() {
    let cluster = cluster("llm-access-test-9").await;
    cluster.ours.probe(&cluster.namespace).await.unwrap();
    assert!(cluster.ours.list(&cluster.namespace, &BTreeMap::new()).await.unwrap().is_empty());
    let error = cluster.ours.probe("no-such-namespace").await.unwrap_err();
    assert_eq!(error.class(), Class::NotFound, "{error}");
}

#[tokio::test]
async fn illegal_names_and_empty_variables_are_never_sent() {
    let world = simulated().await;
    for name in ["", "..", "a/b", "A", "-a", "a?x=y", &"a".repeat(64)] {
        let error = world.secrets.create("chat", &draft(name, &[("KEY", "v")])).await.unwrap_err();
        assert_eq!(error.class(), Class::Invalid, "{name}");
    }
    for data in [&[][..], &[("KEY", "")][..], &[("KEY", "v"), ("URL", "")][..]] {
        let error = world.secrets.create("chat", &draft("a", data)).await.unwrap_err();
        assert_eq!(error.class(), Class::Invalid);
    }
    assert_eq!(world.secrets.list("../default", &BTreeMap::new()).await.unwrap_err().class(), Class::Invalid);
    assert_eq!(world.faults.count(), 0);
}

#[tokio::test]
async fn a_long_list_comes_in_pages_and_starts_again_once() {
    let world = simulated().await;
    for n in 0..1001 {
        world.kube.edit_as("seed", "chat", &format!("s{n:04}"), |edit| {
            edit.data.insert("A".to_owned(), n.to_string());
        });
    }
    let all = world.secrets.list("chat", &BTreeMap::new()).await.unwrap();
    assert_eq!(all.len(), 1001);
    assert_eq!(world.faults.count(), 3);
    // The tokens of the first attempt are too old on its second page: six calls, of which the first two were in vain.
    let gone = Fault::status(410, r#"{"kind":"Status","status":"Failure","reason":"Expired","code":410,"message":"too old"}"#);
    world.faults.add(Rule::new(gone.clone()).path("continue=").once());
    world.faults.reset_calls();
    assert_eq!(world.secrets.list("chat", &BTreeMap::new()).await.unwrap().len(), 1001);
    assert_eq!(world.faults.count(), 5);
    world.faults.add(Rule::new(gone).path("continue="));
    assert_eq!(world.secrets.list("chat", &BTreeMap::new()).await.unwrap_err().class(), Class::Transient);
    world.faults.clear();
    world.faults.add(Rule::new(Fault::Truncate).path("continue=").once());
    assert_eq!(world.secrets.list("chat", &BTreeMap::new()).await.unwrap_err().class(), Class::Transient);
}

#[tokio::test]
async fn an_answer_that_is_no_list_is_a_failed_read() {
    let world = simulated().await;
    for body in ["{}", "", "null", "<html>", r#"{"kind":"Status","items":[]}"#, r#"{"kind":"SecretList","items":[{}]}"#] {
        let fault = Fault::status(200, body);
        let rule = world.faults.add(Rule::new(fault));
        let error = world.secrets.list("chat", &BTreeMap::new()).await.unwrap_err();
        assert_eq!(error.class(), Class::Transient, "{body}: {error}");
        assert!(!error.may_have_happened());
        world.faults.remove(rule);
    }
}

#[tokio::test]
async fn failures_say_what_they_ask_for() {
    let world = simulated().await;
    world.kube.deny("list", "secrets", "chat");
    let error = world.secrets.list("chat", &BTreeMap::new()).await.unwrap_err();
    assert_eq!(error.class(), Class::Denied);
    assert!(error.to_string().contains("grant verb list on secrets in namespace chat"), "{error}");
    let error = world.secrets.probe("chat").await.unwrap_err();
    assert_eq!(error.class(), Class::Denied);
    world.kube.allow_all();
    world.kube.deny("delete", "secrets", "chat");
    let error = world.secrets.probe("chat").await.unwrap_err();
    assert!(error.to_string().contains("grant verb delete"), "{error}");
    world.kube.require_token(Some("secret-token"));
    let error = world.secrets.list("chat", &BTreeMap::new()).await.unwrap_err();
    assert_eq!(error.class(), Class::Denied);
    assert!(error.to_string().contains("renew"), "{error}");
    let busy =
        Fault::Status { status: 429, headers: vec![("Retry-After".to_owned(), "7".to_owned())], body: String::new(), after_effect: false };
    world.faults.add(Rule::new(busy));
    let error = world.secrets.create("chat", &draft("a", &[("KEY", "v")])).await.unwrap_err();
    assert!(matches!(error, Error::Transient { retry_after: Some(after), .. } if after == Duration::from_secs(7)));
    assert!(!error.may_have_happened());
}

#[tokio::test]
async fn a_lost_write_is_known_as_possible() {
    let world = simulated().await;
    let faults: [(Fault, bool); 4] = [
        (Fault::LoseAnswer, true),
        (Fault::Refuse, false),
        (Fault::Truncate, true),
        (Fault::Status { status: 500, headers: Vec::new(), body: String::new(), after_effect: true }, true),
    ];
    for (n, (fault, made)) in faults.into_iter().enumerate() {
        let name = format!("s{n}");
        world.faults.add(Rule::new(fault.clone()).peer(Peer::Kube).method("POST").once());
        let error = world.secrets.create("chat", &draft(&name, &[("KEY", "v")])).await.unwrap_err();
        assert_eq!(error.class(), Class::Transient, "{error}");
        assert!(error.may_have_happened(), "{fault:?}");
        assert_eq!(world.kube.secret("chat", &name).is_some(), made, "{fault:?}");
    }
    let url = world.kube.url();
    drop(world);
    let nobody = Secrets::connect(Settings { api_url: Some(url), ..Settings::default() }).await.unwrap();
    let error = nobody.create("chat", &draft("a", &[("KEY", "v")])).await.unwrap_err();
    assert_eq!(error.class(), Class::Transient, "{error}");
    assert!(!error.may_have_happened(), "{error}");
}

#[tokio::test]
async fn a_call_that_hangs_ends_at_its_deadline() {
    let world = simulated().await;
    let secrets = Secrets::connect(Settings { api_url: Some(world.kube.url()), timeout: Duration::from_millis(50), ..Settings::default() })
        .await
        .unwrap();
    world.faults.add(Rule::new(Fault::Hang { after_effect: true }));
    let error = secrets.create("chat", &draft("a", &[("KEY", "v")])).await.unwrap_err();
    assert!(error.may_have_happened());
    assert!(error.to_string().contains("no answer within"), "{error}");
}

#[tokio::test]
async fn a_first_apply_beside_a_bystander_does_not_fight_our_own_create() {
    let world = simulated().await;
    world.secrets.create("chat", &draft("a", &[("KEY", "v")])).await.unwrap();
    world.kube.edit_as("kubectl-label", "chat", "a", |edit| {
        edit.labels.insert("team".to_owned(), "blue".to_owned());
    });
    let base = world.secrets.list("chat", &BTreeMap::new()).await.unwrap().remove(0);
    world.secrets.apply(&base, &draft("a", &[("KEY", "w")])).await.unwrap();
    let now = world.kube.secret("chat", "a").unwrap();
    assert_eq!(now.data["KEY"], "w");
    assert_eq!(now.labels["team"], "blue");
}

#[tokio::test]
async fn no_value_of_a_secret_gets_into_a_text() {
    let world = simulated().await;
    let secret = draft("a", &[("KEY", MARKER)]);
    assert!(!format!("{secret:?}").contains("MARKER"));
    world.secrets.create("chat", &secret).await.unwrap();
    let stored = world.secrets.list("chat", &BTreeMap::new()).await.unwrap().remove(0);
    assert!(!format!("{stored:?}").contains("MARKER"));
    // A server that cannot decode a request quotes it.
    let echo = format!(
        r#"{{"kind":"Status","status":"Failure","reason":"BadRequest","code":400,"message":"cannot be handled as a Secret: bigger context ...|{MARKER}|..."}}"#
    );
    world.faults.add(Rule::new(Fault::status(400, &echo)));
    let error = world.secrets.apply(&stored, &draft("a", &[("KEY", "other")])).await.unwrap_err();
    assert_eq!(error.class(), Class::Invalid);
    assert!(!format!("{error} {error:?}").contains("MARKER"));
    world.faults.clear();
    let garbled = format!(r#"{{"kind":"SecretList","items":[{{"data":{{"KEY":"{MARKER}"}},"metadata":"{MARKER}"}}]}}"#);
    world.faults.add(Rule::new(Fault::status(200, &garbled)));
    let error = world.secrets.list("chat", &BTreeMap::new()).await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains("MARKER"), "{error}");
    for call in world.faults.calls() {
        assert!(!call.path.contains("MARKER"));
        assert!(call.agent.starts_with("llm-access-agent/"));
    }
}
