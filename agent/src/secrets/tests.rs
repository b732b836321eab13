#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;

use llm_access_fixtures::clock::SimClock;
use llm_access_fixtures::faults::Faults;
use llm_access_fixtures::kube::Kube;
use llm_access_k8s::Secrets;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::config::ChatNamespaces;

pub(super) const RESOURCE_A: Uuid = Uuid::from_u128(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
const RESOURCE_B: Uuid = Uuid::from_u128(0xfedc_ba98_7654_3210_fedc_ba98_7654_3210);
const PROJECT_A: Uuid = Uuid::from_u128(7);
const KEY: &str = "sk-MARKER-0123456789abcdef";

pub(super) fn connection(slot: Slot) -> Connection {
    let alias = match slot {
        Slot::Project => format!("{}-1", RESOURCE_A.simple()),
        Slot::Chat => format!("{}-chat-1", RESOURCE_A.simple()),
    };
    Connection {
        slot,
        resource: RESOURCE_A,
        offering: Uuid::from_u128(3),
        project: Some(PROJECT_A),
        name: secret_name(slot, "genomics", RESOURCE_A),
        alias,
        number: 1,
        state: SecretState::Pending,
        key: KEY.into(),
        base_url: "https://llm.example.org/v1".to_owned(),
        models: vec!["qwen".to_owned(), "embed".to_owned()],
        embedder: (slot == Slot::Chat).then(|| "embed".to_owned()),
        order: Some(Uuid::from_u128(9)),
        rotation: Rotation::None,
    }
}

/// The same tests for both stores.
struct World {
    store: SecretStore,
    place: Place,
}

enum Place {
    Folder(TempDir),
    Cluster(Kube),
}

async fn folder() -> World {
    let dir = tempfile::tempdir().unwrap();
    let store = Directory::new(dir.path().join("secrets"), "icarus").unwrap();
    World { store: SecretStore::Directory(store), place: Place::Folder(dir) }
}

async fn kubernetes(kube: &Kube, owner: &str, chat: ChatNamespaces, keys: &str) -> SecretStore {
    rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
    let api =
        Secrets::connect(llm_access_k8s::Settings { api_url: Some(kube.url()), ..llm_access_k8s::Settings::default() }).await.unwrap();
    let namespaces = Namespaces { chat, keys: keys.to_owned() };
    SecretStore::Kubernetes(Kubernetes::new(api, owner, namespaces))
}

async fn cluster() -> World {
    let kube = Kube::start(SimClock::real(), Faults::new(), None).await.unwrap();
    kube.add_namespace("chat");
    kube.add_namespace("keys");
    let store = kubernetes(&kube, "icarus", ChatNamespaces::One("chat".to_owned()), "keys").await;
    World { store, place: Place::Cluster(kube) }
}

async fn both() -> [World; 2] {
    [folder().await, cluster().await]
}

impl World {
    /// The only Secret, as it is read to be changed. Seen among all it says the same.
    async fn one(&self) -> Stored {
        let all = self.store.list_all().await.unwrap();
        assert!(all.broken.is_empty(), "{:?}", all.broken);
        let [seen] = all.stored.as_slice() else { panic!("{:?}", all.stored) };
        let mut read = self.store.of_resource(seen.connection.resource, seen.connection.project).await.unwrap();
        let [one] = read.stored.as_slice() else { panic!("{:?}", read.stored) };
        assert_eq!((&one.connection, one.complete, one.created), (&seen.connection, seen.complete, seen.created));
        assert_eq!(one.digest(), seen.digest());
        read.stored.remove(0)
    }

    async fn one_broken(&self) -> Broken {
        let all = self.store.list_all().await.unwrap();
        assert!(all.stored.is_empty(), "{:?}", all.stored);
        let [seen] = all.broken.as_slice() else { panic!("{:?}", all.broken) };
        let mut read = self.store.of_resource(seen.resource.unwrap(), None).await.unwrap();
        let [one] = read.broken.as_slice() else { panic!("{:?}", read.broken) };
        assert_eq!((&one.name, one.slot, one.number, &one.why), (&seen.name, seen.slot, seen.number, &seen.why));
        read.broken.remove(0)
    }

    fn path(&self, name: &str) -> PathBuf {
        match &self.place {
            Place::Folder(dir) => dir.path().join("secrets").join(format!("{name}.env")),
            Place::Cluster(_) => panic!("no folder"),
        }
    }

    /// The variables as a reader of the Secret sees them.
    fn variables(&self, slot: Slot, name: &str) -> BTreeMap<String, String> {
        match &self.place {
            Place::Folder(_) => fs::read_to_string(self.path(name))
                .unwrap()
                .lines()
                .filter(|line| !line.starts_with('#'))
                .map(|line| line.split_once('=').unwrap())
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
            Place::Cluster(kube) => kube.secret(namespace(slot), name).unwrap().data,
        }
    }

    /// Somebody sets a variable, or removes it.
    fn meddle(&self, slot: Slot, name: &str, variable: &str, value: Option<&str>) {
        match &self.place {
            Place::Folder(_) => {
                let text = fs::read_to_string(self.path(name)).unwrap();
                let mut lines: Vec<String> =
                    text.lines().filter(|line| !line.starts_with(&format!("{variable}="))).map(str::to_owned).collect();
                lines.extend(value.map(|value| format!("{variable}={value}")));
                fs::write(self.path(name), lines.join("\n") + "\n").unwrap();
            }
            Place::Cluster(kube) => {
                kube.edit_as("kubectl-edit", namespace(slot), name, |edit| match value {
                    Some(value) => {
                        edit.data.insert(variable.to_owned(), value.to_owned());
                    }
                    None => {
                        edit.data.remove(variable);
                    }
                });
            }
        }
    }
}

impl World {
    /// The agent itself, in another version, changes labels, annotations and variables.
    fn other_version(&self, slot: Slot, name: &str, change: impl FnOnce(&mut BTreeMap<String, String>, &mut BTreeMap<String, String>)) {
        match &self.place {
            Place::Folder(_) => {
                let text = fs::read_to_string(self.path(name)).unwrap();
                let mut lines = text.lines();
                let first = [lines.next().unwrap(), lines.next().unwrap()].join("\n");
                let mut header: serde_json::Value = serde_json::from_str(lines.next().unwrap().trim_start_matches("# ")).unwrap();
                let mut marks = serde_json::from_value(header["annotations"].take()).unwrap();
                let mut data = self.variables(slot, name);
                change(&mut marks, &mut data);
                header["annotations"] = json!(marks);
                header["variables"] = json!(data.keys().collect::<Vec<_>>());
                let fields = ["format", "created", "labels", "annotations", "variables"];
                let fields = fields.map(|field| format!("{field:?}:{}", header[field])).join(",");
                let data: String = data.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
                fs::write(self.path(name), format!("{first}\n# {{{fields}}}\n{data}")).unwrap();
            }
            Place::Cluster(kube) => {
                kube.edit_as(AGENT, namespace(slot), name, |edit| change(&mut edit.annotations, &mut edit.data));
            }
        }
    }

    /// Labels and annotations.
    async fn marks(&self) -> BTreeMap<String, String> {
        match (&self.place, self.one().await) {
            (Place::Folder(_), stored) => {
                let text = fs::read_to_string(self.path(&stored.connection.name)).unwrap();
                let header: serde_json::Value = serde_json::from_str(text.lines().nth(2).unwrap().trim_start_matches("# ")).unwrap();
                serde_json::from_value(header["annotations"].clone()).unwrap()
            }
            (Place::Cluster(kube), stored) => kube.secret(namespace(stored.connection.slot), &stored.connection.name).unwrap().annotations,
        }
    }

    /// Changes with every write.
    fn version(&self, slot: Slot, name: &str) -> String {
        match &self.place {
            Place::Folder(_) => fs::metadata(self.path(name)).unwrap().ino().to_string(),
            Place::Cluster(kube) => kube.secret(namespace(slot), name).unwrap().resource_version.clone(),
        }
    }
}

#[tokio::test]
async fn what_a_later_version_wrote_is_understood_and_stays() {
    for world in both().await {
        let first = Connection { state: SecretState::Ready, ..connection(Slot::Chat) };
        world.store.create(&first).await.unwrap();
        assert_eq!(world.marks().await[FORMAT], CURRENT.to_string());
        let later = |marks: &mut BTreeMap<String, String>, data: &mut BTreeMap<String, String>| {
            marks.insert(FORMAT.to_owned(), "7".to_owned());
            marks.insert("llm-access.io/speech".to_owned(), "on".to_owned());
            data.insert("AUDIO_STT_OPENAI_API_KEY".to_owned(), KEY.to_owned());
            data.insert("AUDIO_STT_ENGINE".to_owned(), "openai".to_owned());
        };
        world.other_version(Slot::Chat, &first.name, later);
        let stored = world.one().await;
        assert_eq!((&stored.connection, stored.complete), (&first, true));
        let before = world.version(Slot::Chat, &first.name);
        world.store.update(&stored, &first).await.unwrap();
        assert_eq!(world.version(Slot::Chat, &first.name), before, "there is nothing to put right");

        // Another key: what held the old one holds it, what does not know keys stays as it is.
        let next = Connection { key: "sk-another".into(), number: 2, alias: "next".to_owned(), embedder: None, ..first.clone() };
        world.store.update(&stored, &next).await.unwrap();
        let now = world.one().await;
        assert_eq!((&now.connection, now.complete), (&next, true));
        let (marks, variables) = (world.marks().await, world.variables(Slot::Chat, &first.name));
        assert_eq!((marks[FORMAT].as_str(), marks["llm-access.io/speech"].as_str()), ("7", "on"));
        assert_eq!((variables["AUDIO_STT_OPENAI_API_KEY"].as_str(), variables["AUDIO_STT_ENGINE"].as_str()), ("sk-another", "openai"));
        assert!(
            !marks.contains_key(EMBEDDER) && !variables.contains_key("RAG_OPENAI_API_KEY"),
            "what this version knows, it keeps in order"
        );
        assert!(!variables.values().any(|value| value == KEY), "an old key does not stay behind");

        // A state that it does not know: the key is to be proven again, and is the same.
        world.other_version(Slot::Chat, &first.name, |marks, _| drop(marks.insert(STATE.to_owned(), "resting".to_owned())));
        assert_eq!(world.one().await.connection, Connection { state: SecretState::Pending, ..next });
    }
}

#[tokio::test]
async fn what_an_earlier_version_wrote_and_this_one_would_not_goes_once() {
    for world in both().await {
        let wanted = connection(Slot::Chat);
        world.store.create(&wanted).await.unwrap();
        world.other_version(Slot::Chat, &wanted.name, |marks, data| {
            marks.remove(FORMAT);
            marks.insert("llm-access.io/obsolete".to_owned(), "1".to_owned());
            data.insert("OPENAI_API_HOST".to_owned(), "old".to_owned());
        });
        let stored = world.one().await;
        assert_eq!((&stored.connection, stored.complete), (&wanted, false));
        world.store.update(&stored, &wanted).await.unwrap();
        assert!(world.one().await.complete);
        let marks = world.marks().await;
        assert_eq!((marks[FORMAT].as_str(), marks.contains_key("llm-access.io/obsolete")), ("1", false));
        assert!(!world.variables(Slot::Chat, &wanted.name).contains_key("OPENAI_API_HOST"));
    }
}

#[test]
fn all_names_that_are_written_are_known_as_ours() {
    for slot in [Slot::Project, Slot::Chat] {
        let retiring = Rotation::Retiring { hash: "0".repeat(64), until: Some(Timestamp::UNIX_EPOCH) };
        for rotation in [Rotation::Wanted { at_once: true }, retiring] {
            let draft = Draft::new(&Connection { rotation, ..connection(slot) }, &Later::default(), "icarus");
            let ours = |all: &BTreeMap<String, String>| all.keys().filter(|key| key.starts_with(PREFIX)).cloned().collect::<Vec<_>>();
            assert_eq!(ours(&draft.labels).iter().filter(|key| !LABELS.contains(&key.as_str())).count(), 0, "{:?}", draft.labels);
            let unknown: Vec<_> = ours(&draft.annotations).into_iter().filter(|key| !ANNOTATIONS.contains(&key.as_str())).collect();
            assert_eq!(unknown, Vec::<String>::new());
            let names: BTreeSet<&str> = draft.data.keys().map(String::as_str).collect();
            assert_eq!(names, slot.all_variables().iter().copied().collect());
        }
    }
}

fn namespace(slot: Slot) -> &'static str {
    match slot {
        Slot::Chat => "chat",
        Slot::Project => "keys",
    }
}

#[tokio::test]
async fn what_is_stored_is_read_back() {
    for world in both().await {
        for slot in [Slot::Project, Slot::Chat] {
            let wanted = connection(slot);
            assert_eq!(world.store.create(&wanted).await.unwrap(), Created::Made);
            let listed = world.store.of_resource(RESOURCE_A, Some(PROJECT_A)).await.unwrap();
            let stored = listed.stored.iter().find(|stored| stored.connection.slot == slot).unwrap();
            assert_eq!(stored.connection, wanted);
            assert!(stored.complete);
            assert!(stored.created.is_some());
        }
        assert_eq!(world.store.list_all().await.unwrap().stored.len(), 2);
        let none = world.store.of_resource(RESOURCE_B, None).await.unwrap();
        assert!(none.stored.is_empty() && none.broken.is_empty());
    }
}

#[test]
fn the_variables_are_those_that_were_measured() {
    let plain = |connection: &Connection| -> Vec<String> {
        connection.variables().iter().map(|(key, value)| format!("{key}={}", value.expose_secret())).collect()
    };
    let mut chat = connection(Slot::Chat);
    chat.base_url.push('/');
    assert_eq!(
        plain(&chat),
        [
            "BYPASS_MODEL_ACCESS_CONTROL=true".to_owned(),
            "ENABLE_OLLAMA_API=false".to_owned(),
            "ENABLE_OPENAI_API=true".to_owned(),
            "ENABLE_PERSISTENT_CONFIG=false".to_owned(),
            "OPENAI_API_BASE_URLS=https://llm.example.org/v1".to_owned(),
            r#"OPENAI_API_CONFIGS={"0":{"auth_type":"bearer","connection_type":"external","enable":true,"model_ids":["qwen"]}}"#.to_owned(),
            format!("OPENAI_API_KEYS={KEY}"),
            "RAG_EMBEDDING_ENGINE=openai".to_owned(),
            "RAG_EMBEDDING_MODEL=embed".to_owned(),
            "RAG_OPENAI_API_BASE_URL=https://llm.example.org/v1".to_owned(),
            format!("RAG_OPENAI_API_KEY={KEY}"),
        ]
    );
    chat.embedder = None;
    assert!(!plain(&chat).iter().any(|line| line.starts_with("RAG_")));
    chat.models.clear();
    assert!(plain(&chat).iter().any(|line| line.contains(r#""enable":false"#)));
    let mut project = connection(Slot::Project);
    assert_eq!(
        plain(&project),
        [format!("OPENAI_API_KEY={KEY}"), "OPENAI_BASE_URL=https://llm.example.org/v1".to_owned(), "OPENAI_MODELS=qwen,embed".to_owned(),]
    );
    project.models.clear();
    assert_eq!(plain(&project).len(), 2, "nothing is written empty");
}

#[tokio::test]
async fn a_create_never_overwrites_and_a_foreign_thing_is_left_alone() {
    for world in both().await {
        let wanted = connection(Slot::Project);
        match &world.place {
            Place::Folder(_) => {
                fs::write(world.path(&wanted.name), "OPENAI_API_KEY=theirs\n").unwrap();
            }
            Place::Cluster(kube) => kube.edit_as("helm", "keys", &wanted.name, |edit| {
                edit.data.insert("OPENAI_API_KEY".to_owned(), "theirs".to_owned());
            }),
        }
        assert_eq!(world.store.create(&wanted).await.unwrap(), Created::Exists);
        let listed = world.store.list_all().await.unwrap();
        assert!(listed.stored.is_empty() && listed.broken.is_empty());
        let variables = world.variables(Slot::Project, &wanted.name);
        assert_eq!(variables["OPENAI_API_KEY"], "theirs");
        assert_eq!(variables.len(), 1);
    }
}

#[tokio::test]
async fn two_owners_never_see_each_other() {
    let world = cluster().await;
    let Place::Cluster(kube) = &world.place else { panic!() };
    world.store.create(&connection(Slot::Project)).await.unwrap();
    for owner in ["daedalus", "Ikaros / Χ", "icarus-2"] {
        let other = kubernetes(kube, owner, ChatNamespaces::One("chat".to_owned()), "keys").await;
        assert!(other.list_all().await.unwrap().stored.is_empty());
    }
    let world = folder().await;
    world.store.create(&connection(Slot::Project)).await.unwrap();
    let path = world.path("x").parent().unwrap().to_owned();
    let other = SecretStore::Directory(Directory::new(path, "daedalus").unwrap());
    let listed = other.list_all().await.unwrap();
    assert!(listed.stored.is_empty() && listed.broken.is_empty());
    assert_eq!(other.create(&connection(Slot::Project)).await.unwrap(), Created::Exists);
}

#[tokio::test]
async fn an_update_follows_and_keeps_what_others_added() {
    for world in both().await {
        let first = connection(Slot::Chat);
        world.store.create(&first).await.unwrap();
        world.meddle(Slot::Chat, &first.name, "HTTP_PROXY", Some("http://proxy"));
        let stored = world.one().await;
        assert!(stored.complete, "what others add does not matter");
        let next = Connection {
            key: "sk-another".into(),
            number: 2,
            alias: "next".to_owned(),
            state: SecretState::Ready,
            embedder: None,
            models: vec!["llama".to_owned()],
            order: None,
            name: secret_name(Slot::Chat, "renamed", RESOURCE_A),
            ..first.clone()
        };
        world.store.update(&stored, &next).await.unwrap();
        let now = world.one().await;
        assert_eq!(now.connection, Connection { name: first.name.clone(), ..next });
        assert!(now.complete);
        assert_eq!(now.created, stored.created);
        let variables = world.variables(Slot::Chat, &first.name);
        assert_eq!(variables["HTTP_PROXY"], "http://proxy");
        assert_eq!(variables["OPENAI_API_KEYS"], "sk-another");
        assert!(!variables.contains_key("RAG_OPENAI_API_KEY"), "an old key does not stay behind");
    }
}

#[tokio::test]
async fn an_update_to_the_same_writes_nothing() {
    let world = cluster().await;
    let Place::Cluster(kube) = &world.place else { panic!() };
    let wanted = connection(Slot::Chat);
    world.store.create(&wanted).await.unwrap();
    let stored = world.one().await;
    let before = kube.secret("chat", &wanted.name).unwrap().resource_version;
    world.store.update(&stored, &wanted).await.unwrap();
    assert_eq!(kube.secret("chat", &wanted.name).unwrap().resource_version, before);
    let world = folder().await;
    world.store.create(&wanted).await.unwrap();
    let stored = world.one().await;
    let before = fs::metadata(world.path(&wanted.name)).unwrap().ino();
    world.store.update(&stored, &wanted).await.unwrap();
    assert_eq!(fs::metadata(world.path(&wanted.name)).unwrap().ino(), before);
}

#[tokio::test]
async fn of_two_writers_one_wins() {
    for world in both().await {
        let wanted = connection(Slot::Project);
        let (one, two) = tokio::join!(world.store.create(&wanted), world.store.create(&wanted));
        let mut outcomes = [one.unwrap(), two.unwrap()];
        outcomes.sort_by_key(|created| *created == Created::Exists);
        assert_eq!(outcomes, [Created::Made, Created::Exists]);

        let stored = world.one().await;
        let change = |n: u32| Connection { number: n, ..wanted.clone() };
        let (first, second) = (change(2), change(3));
        let (one, two) = tokio::join!(world.store.update(&stored, &first), world.store.update(&stored, &second));
        let (winner, loser) = if one.is_ok() { (2, two) } else { (3, one) };
        assert!(matches!(loser.unwrap_err(), StoreError::Conflict { .. }));
        assert_eq!(world.one().await.connection.number, winner);
        assert!(matches!(world.store.delete(&stored).await.unwrap_err(), StoreError::Conflict { .. }));
        let now = world.one().await;
        world.store.delete(&now).await.unwrap();
        world.store.delete(&now).await.unwrap();
        let late = world.store.update(&now, &wanted).await.unwrap_err();
        assert!(matches!(late, StoreError::Conflict { .. }), "{late}");
        assert!(world.store.list_all().await.unwrap().stored.is_empty());
    }
}

#[tokio::test]
async fn a_lost_or_changed_key_is_broken_and_replaced_by_another() {
    for (variable, value) in [("OPENAI_API_KEY", None), ("OPENAI_API_KEY", Some("")), ("OPENAI_API_KEY", Some("sk-chosen-by-somebody"))] {
        for world in both().await {
            let wanted = connection(Slot::Project);
            world.store.create(&wanted).await.unwrap();
            world.meddle(Slot::Project, &wanted.name, variable, value);
            let broken = world.one_broken().await;
            assert_eq!(broken.resource, Some(RESOURCE_A));
            assert_eq!(broken.slot, Some(Slot::Project));
            assert_eq!(broken.number, Some(1));
            assert!(broken.why.contains("OPENAI_API_KEY"), "{}", broken.why);
            let next = Connection { key: "sk-fresh".into(), number: 2, ..wanted.clone() };
            world.store.replace_broken(&broken, &next).await.unwrap();
            let now = world.one().await;
            assert_eq!(now.connection, next);
            assert!(now.complete);
        }
    }
}

#[tokio::test]
async fn another_variable_that_was_changed_is_incomplete_and_the_key_survives() {
    for world in both().await {
        let wanted = connection(Slot::Chat);
        world.store.create(&wanted).await.unwrap();
        for variable in ["OPENAI_API_KEYS", "ENABLE_PERSISTENT_CONFIG", "RAG_OPENAI_API_BASE_URL"] {
            world.meddle(Slot::Chat, &wanted.name, variable, None);
            let stored = world.one().await;
            assert!(!stored.complete, "{variable}");
            assert_eq!(stored.connection, wanted);
            world.store.update(&stored, &wanted).await.unwrap();
            assert!(world.one().await.complete, "{variable}");
        }
    }
}

#[tokio::test]
async fn a_variable_that_somebody_claims_is_reported_with_his_name() {
    let world = cluster().await;
    let wanted = connection(Slot::Chat);
    world.store.create(&wanted).await.unwrap();
    world.meddle(Slot::Chat, &wanted.name, "ENABLE_OLLAMA_API", Some("true"));
    let stored = world.one().await;
    assert!(!stored.complete);
    let error = world.store.update(&stored, &wanted).await.unwrap_err();
    assert!(matches!(error, StoreError::Taken { .. }));
    assert!(error.to_string().contains("kubectl-edit"), "{error}");
}

#[tokio::test]
async fn a_secret_of_ours_without_its_marks_is_still_listed() {
    let world = cluster().await;
    let wanted = connection(Slot::Project);
    world.store.create(&wanted).await.unwrap();
    let Place::Cluster(kube) = &world.place else { panic!() };
    kube.edit_as("kubectl-edit", "keys", &wanted.name, |edit| {
        edit.annotations.clear();
        edit.labels.remove(RESOURCE);
    });
    let listed = world.store.list_all().await.unwrap();
    assert!(listed.stored.is_empty());
    assert_eq!((&listed.broken[0].name, listed.broken[0].resource), (&wanted.name, None));
    // Nothing is written on a look in passing.
    let refused = world.store.delete_broken(&listed.broken[0]).await.unwrap_err();
    assert!(matches!(refused, StoreError::Conflict { .. }), "{refused}");
    assert!(kube.secret("keys", &wanted.name).is_some());

    let world = folder().await;
    world.store.create(&wanted).await.unwrap();
    let text = fs::read_to_string(world.path(&wanted.name)).unwrap();
    fs::write(world.path(&wanted.name), text.replace("# {", "# {broken")).unwrap();
    let broken = world.one_broken().await;
    assert_eq!((broken.resource, broken.slot), (Some(RESOURCE_A), Some(Slot::Project)));
    let next = Connection { number: 2, key: "sk-new".into(), ..wanted.clone() };
    world.store.replace_broken(&broken, &next).await.unwrap();
    assert_eq!(world.one().await.connection, next);
    assert!(!fs::read_to_string(world.path(&wanted.name)).unwrap().contains("MARKER"));
}

#[tokio::test]
async fn what_would_break_the_variables_is_refused() {
    let good = connection(Slot::Chat);
    let bad = [
        Connection { key: "".into(), ..good.clone() },
        Connection { key: "sk-a;sk-b".into(), ..good.clone() },
        Connection { key: "sk-a\n".into(), ..good.clone() },
        Connection { key: "sk-\u{7}".into(), ..good.clone() },
        Connection { base_url: String::new(), ..good.clone() },
        Connection { base_url: "https://a/v1;https://b/v1".to_owned(), ..good.clone() },
        Connection { base_url: "https://a/v1\nENABLE_OPENAI_API=false".to_owned(), ..good.clone() },
        Connection { models: vec!["a\nb".to_owned()], ..good.clone() },
        Connection { models: vec!["a,b".to_owned()], ..good.clone() },
        Connection { name: "../escape".to_owned(), ..good.clone() },
        Connection { name: String::new(), ..good.clone() },
    ];
    for world in both().await {
        world.store.create(&good).await.unwrap();
        let stored = world.one().await;
        for bad in &bad {
            let error = world.store.create(bad).await.unwrap_err();
            assert!(matches!(error, StoreError::Invalid { .. }), "{error}");
            assert!(!error.to_string().contains("sk-"), "{error}");
            if is_dns_label(&bad.name) {
                let error = world.store.update(&stored, bad).await.unwrap_err();
                assert!(matches!(error, StoreError::Invalid { .. }), "{error}");
            }
        }
        assert_eq!(world.one().await.connection, good);
    }
}

#[tokio::test]
async fn the_key_is_in_no_debug_text() {
    for world in both().await {
        world.store.create(&connection(Slot::Project)).await.unwrap();
        let stored = world.one().await;
        assert!(!format!("{stored:?}").contains("MARKER"));
        world.meddle(Slot::Project, &stored.connection.name, "OPENAI_BASE_URL", Some("sk-MARKER"));
        world.meddle(Slot::Project, &stored.connection.name, "OPENAI_API_KEY", Some("sk-MARKER-2"));
        let broken = world.one_broken().await;
        assert!(!format!("{broken:?}").contains("MARKER"));
    }
}

#[tokio::test]
async fn files_and_folder_are_for_the_agent_alone() {
    let world = folder().await;
    let wanted = connection(Slot::Project);
    world.store.create(&wanted).await.unwrap();
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().mode() & 0o7777;
    let path = world.path(&wanted.name);
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(path.parent().unwrap()), 0o700);
    let stored = world.one().await;
    world.store.update(&stored, &Connection { number: 2, ..wanted.clone() }).await.unwrap();
    assert_eq!(mode(&path), 0o600);
    let said = world.store.check().await.unwrap();
    assert!(!said.contains("chmod"), "{said}");
    fs::set_permissions(path.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    assert!(world.store.check().await.unwrap().contains("chmod 700"));
    let left: Vec<_> = fs::read_dir(path.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with(".lock-"))
        .collect();
    assert_eq!(left, [format!("{}.env", wanted.name)]);
}

#[tokio::test]
async fn what_a_crash_left_is_ignored_and_swept() {
    let world = folder().await;
    let wanted = connection(Slot::Project);
    world.store.create(&wanted).await.unwrap();
    let folder = world.path("x").parent().unwrap().to_owned();
    let left = folder.join(format!(".tmp-{}-1-0", wanted.name));
    fs::write(&left, "half a fi").unwrap();
    // A writer that is still at work holds its file.
    let busy = folder.join(".tmp-busy-2-0");
    let held = fs::File::create(&busy).unwrap();
    held.lock().unwrap();
    // And the crash of a create between link and unlink.
    let linked = folder.join(".tmp-linked-3-0");
    fs::hard_link(world.path(&wanted.name), &linked).unwrap();
    assert_eq!(world.one().await.connection, wanted);
    assert!(!left.exists() && !linked.exists());
    assert!(busy.exists());
    assert!(world.path(&wanted.name).exists());
}

#[tokio::test]
async fn a_folder_that_cannot_be_used_is_named_with_the_cure() {
    let world = folder().await;
    let folder = world.path("x").parent().unwrap().to_owned();
    fs::remove_dir_all(&folder).unwrap();
    fs::write(&folder, "a file").unwrap();
    for error in [
        world.store.create(&connection(Slot::Project)).await.unwrap_err(),
        world.store.list_all().await.unwrap_err(),
        world.store.check().await.unwrap_err(),
        Directory::new(folder.clone(), "icarus").unwrap_err(),
        Directory::new(folder.join("below"), "icarus").unwrap_err(),
    ] {
        assert!(matches!(error, StoreError::Denied { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(folder.to_str().unwrap()), "{text}");
        assert!(text.contains("secrets.path"), "{text}");
    }
}

#[tokio::test]
async fn each_project_has_its_own_namespace_and_an_unknown_one_is_an_error() {
    let kube = Kube::start(SimClock::real(), Faults::new(), None).await.unwrap();
    for namespace in ["chat-a", "chat-b", "keys"] {
        kube.add_namespace(namespace);
    }
    let map = BTreeMap::from([(PROJECT_A, "chat-a".to_owned()), (Uuid::from_u128(8), "chat-b".to_owned())]);
    let store = kubernetes(&kube, "icarus", ChatNamespaces::PerProject(map), "keys").await;
    let chat = connection(Slot::Chat);
    store.create(&chat).await.unwrap();
    store.create(&connection(Slot::Project)).await.unwrap();
    assert!(kube.secret("chat-a", &chat.name).is_some());
    let unknown = Connection { project: Some(Uuid::from_u128(99)), ..chat.clone() };
    let error = store.create(&unknown).await.unwrap_err();
    assert!(matches!(error, StoreError::Denied { .. }));
    assert!(error.to_string().contains("secrets.chat_namespace"), "{error}");
    for project in [Some(PROJECT_A), Some(Uuid::from_u128(99)), None] {
        assert_eq!(store.of_resource(RESOURCE_A, project).await.unwrap().stored.len(), 2);
    }
}

#[tokio::test]
async fn one_namespace_for_both_is_read_once() {
    let faults = Faults::new();
    let kube = Kube::start(SimClock::real(), faults.clone(), None).await.unwrap();
    let store = kubernetes(&kube, "icarus", ChatNamespaces::One("default".to_owned()), "default").await;
    store.create(&connection(Slot::Chat)).await.unwrap();
    store.create(&connection(Slot::Project)).await.unwrap();
    faults.reset_calls();
    assert_eq!(store.list_all().await.unwrap().stored.len(), 2);
    assert_eq!(store.of_resource(RESOURCE_A, Some(PROJECT_A)).await.unwrap().stored.len(), 2);
    assert_eq!(faults.count(), 2);
}

#[tokio::test]
async fn a_check_names_what_is_missing() {
    let world = cluster().await;
    let Place::Cluster(kube) = &world.place else { panic!() };
    assert!(world.store.check().await.unwrap().contains("chat, keys"));
    kube.deny("patch", "secrets", "keys");
    let error = world.store.check().await.unwrap_err().to_string();
    assert!(error.contains("grant verb patch") && error.contains("namespace keys"), "{error}");
    kube.allow_all();
    kube.remove_namespace("keys");
    let error = world.store.check().await.unwrap_err().to_string();
    assert!(error.contains("create namespace keys"), "{error}");
    assert!(kube.secrets().is_empty());
}

#[test]
fn owners_become_labels_without_meeting() {
    assert_eq!(owner_label("icarus"), "icarus");
    let long = "x".repeat(64);
    let odd = ["", "a b", "-a", "Χ", long.as_str(), "sha256-abc", "a\n"];
    let labels: BTreeSet<String> = odd.iter().map(|owner| owner_label(owner)).collect();
    assert_eq!(labels.len(), odd.len());
    for label in labels {
        assert!(label.len() <= 63 && label.starts_with("sha256-"));
    }
}

proptest! {
    #[test]
    fn any_slug_gives_a_legal_name(slug in any::<String>(), id in any::<u128>(), chat in any::<bool>()) {
        let resource = Uuid::from_u128(id);
        let slot = if chat { Slot::Chat } else { Slot::Project };
        let name = secret_name(slot, &slug, resource);
        prop_assert!(is_dns_label(&name), "{}", name);
        prop_assert!(name.ends_with(&short(resource)));
        prop_assert!(!name.contains("--"));
    }
}

#[test]
fn names_are_readable() {
    let name = |slug: &str| secret_name(Slot::Project, slug, RESOURCE_A);
    assert_eq!(name("genomics"), "llm-key-genomics-01234567");
    assert_eq!(name(""), "llm-key-01234567");
    assert_eq!(name("../../etc/passwd"), "llm-key-etc-passwd-01234567");
    assert_eq!(name("🚀 Große.Sache"), "llm-key-gro-e-sache-01234567");
    assert_eq!(name(&"a".repeat(200)).len(), 63);
    assert_eq!(secret_name(Slot::Chat, &"a-".repeat(200), RESOURCE_A).len(), 62);
}

#[tokio::test]
async fn where_a_replacement_stands_is_read_back_and_a_word_about_another_key_is_none() {
    let until = "2026-11-30T10:00:00Z".parse().unwrap();
    let retiring = |until| Rotation::Retiring { hash: sha256(KEY.as_bytes()), until };
    for world in both().await {
        let first = connection(Slot::Project);
        world.store.create(&first).await.unwrap();
        for (number, rotation) in [
            (1, Rotation::Wanted { at_once: false }),
            (1, Rotation::Wanted { at_once: true }),
            (2, retiring(None)),
            (2, retiring(Some(until))),
            (2, Rotation::None),
        ] {
            let next = Connection { number, rotation, ..first.clone() };
            let stored = world.one().await;
            world.store.update(&stored, &next).await.unwrap();
            let read = world.one().await;
            assert_eq!(read.connection, next);
            assert!(read.complete);
        }
    }
    let parse = |wanted| Rotation::parse(Some(wanted), None, None, 2);
    assert_eq!(parse("now:2"), Rotation::Wanted { at_once: true });
    for odd in ["now:1", "now", "2", "later:2", "now:2:2", ""] {
        assert_eq!(parse(odd), Rotation::None, "{odd}");
    }
    // A time that cannot be read keeps no key alive.
    assert_eq!(Rotation::parse(None, Some("00"), Some("soon"), 2), Rotation::None);
}
