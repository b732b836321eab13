//! Whatever people call their projects and resources: access works, names of files and Secrets are legal, nothing is doubled.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use llm_access_fixtures::faults::Fault;
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::{PROFILES, Store, World, catalogue};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use uuid::Uuid;

/// Names that a person can type, or paste by accident.
fn odd_names() -> Vec<String> {
    let mut names: Vec<String> = [
        "",
        " ",
        ".",
        "..",
        "../../../etc/cron.d/x",
        "/",
        "Seabird acoustics, phase 2",
        "a.b.c",
        "a/b\\c",
        "quo\"te 'd' `id` $(id) %s {{x}} <b>",
        "two\nlines\r\nOPENAI_API_KEY=sk-smuggled",
        "OPENAI_API_KEY=sk-smuggled",
        "tab\tand\u{7}bell\u{1b}[31m",
        "\u{1f99c}\u{1f426}\u{200d}\u{2b1b}",
        "\u{202e}drawkcab\u{202c}",
        "\u{feff}mark",
        "Ærøskøbing ÄÖÜß 日本語 الاختبار",
        "-dashes-at-the-ends-",
        "UPPER_case",
        "semi;colon,comma",
        "null",
        "chat-1",
    ]
    .map(str::to_owned)
    .into();
    names.push("x".repeat(200));
    names.push("é ".repeat(100));
    names.push(format!("{}-", "long".repeat(12)));
    names
}

/// The names of Secrets and files, and what may not be in any of them.
fn assert_legal(world: &World, case: &str) -> Vec<String> {
    let names: Vec<String> = match world.store {
        Store::Kube => world.kube.secrets().into_iter().map(|secret| secret.name).collect(),
        Store::Directory => {
            let entries = fs::read_dir(world.secrets_folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let (files, others): (Vec<String>, Vec<String>) = entries.partition(|name| name.ends_with(".env"));
            assert!(others.iter().all(|name| name.starts_with('.')), "{case}: {others:?}");
            for file in &files {
                let text = fs::read_to_string(world.secrets_folder().join(file)).unwrap();
                for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
                    let name = line.split_once('=').map(|(name, _)| name).unwrap_or_default();
                    assert!(!name.is_empty() && name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'), "{case}: {file}: {line}");
                }
            }
            files.into_iter().map(|name| name.trim_end_matches(".env").to_owned()).collect()
        }
    };
    for name in &names {
        let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        assert!(
            (1..=63).contains(&name.len()) && name.bytes().all(legal) && !name.starts_with('-') && !name.ends_with('-'),
            "{case}: {name:?}"
        );
    }
    names
}

/// Every slot of every living resource once.
fn assert_one_each(world: &World, resources: usize, case: &str) {
    let names = assert_legal(world, case);
    assert_eq!(names.len(), 2 * resources, "{case}: {names:?}");
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{case}: {names:?}");
    assert_eq!(world.gateway.all_live_keys().len(), 2 * resources, "{case}");
}

async fn sell_under_odd_names(profile: Profile, store: Store) {
    let world = World::with_store(profile, store).await;
    let agent = world.patient().await;
    let names = odd_names();
    let mut resources = Vec::new();
    for name in &names {
        let project = world.waldur.add_project(name);
        let (_, resource) = world.waldur.order(world.offering, &project, name, &["kestrel-8b"], &[("max_budget", "50")]);
        world.waldur.rename_slug(resource, name);
        resources.push(resource);
    }
    world.run_to_rest(&agent, 5).await;
    for (name, resource) in names.iter().zip(&resources) {
        assert_eq!(world.waldur.resource(*resource).state, "OK", "{name:?}");
        let key = world.key(*resource, "project");
        assert!(key.starts_with("sk-") && !key.contains("smuggled"), "{name:?}");
        world.gateway.chat(&key, "kestrel-8b", "P=1 C=1").unwrap();
    }
    assert_one_each(&world, names.len(), &format!("{profile:?} {store:?}"));
    world.check();

    // Waldur's people rename everything; then the customers change and end what they have.
    let keys: Vec<String> = resources.iter().map(|resource| world.key(*resource, "project")).collect();
    let rotated = names.iter().cycle().skip(7);
    for (resource, name) in resources.iter().zip(rotated) {
        world.waldur.rename_slug(*resource, name);
    }
    world.faults.reset_calls();
    world.slow_beat(&agent).await;
    assert_eq!(world.writes(None), Vec::<String>::new(), "another slug is no drift");
    for resource in &resources {
        world.waldur.update_limits(*resource, &[("max_budget", "60")]);
    }
    world.run_to_rest(&agent, 5).await;
    assert_one_each(&world, names.len(), "after the update");
    let now: Vec<String> = resources.iter().map(|resource| world.key(*resource, "project")).collect();
    assert_eq!(now, keys, "a new slug keeps the key");
    world.check();

    for resource in &resources {
        world.waldur.terminate(*resource);
    }
    world.run_to_rest(&agent, 9).await;
    assert_one_each(&world, 0, "after the end");
    world.check();
}

#[tokio::test]
async fn a_name_of_any_kind_works_from_order_to_end() {
    sell_under_odd_names(Profile::Late2026, Store::Kube).await;
}

#[tokio::test]
async fn a_name_of_any_kind_works_with_files() {
    sell_under_odd_names(Profile::Y2024, Store::Directory).await;
}

#[tokio::test]
async fn two_projects_and_two_resources_may_share_a_name() {
    for store in [Store::Kube, Store::Directory] {
        let world = World::with_store(Profile::V8_0, store).await;
        let agent = world.patient().await;
        let customer = world.project.customer;
        let twin = world.waldur.add_project_of(customer, &world.project.name);
        let other = world.waldur.add_project(&world.project.name);
        let order = |project| world.waldur.order(world.offering, project, "llm", &["kestrel-8b"], &[("max_budget", "50")]).1;
        let resources = [order(&world.project), order(&twin), order(&other)];
        for resource in resources {
            world.waldur.rename_slug(resource, "llm");
        }
        world.run_to_rest(&agent, 5).await;
        let keys: BTreeSet<String> = resources.iter().flat_map(|r| [world.key(*r, "project"), world.key(*r, "chat")]).collect();
        assert_eq!(keys.len(), 6);
        assert_one_each(&world, 3, "twins");
        world.check();
        world.waldur.terminate(resources[1]);
        world.run_to_rest(&agent, 9).await;
        assert_one_each(&world, 2, "after one of the twins ended");
        assert_eq!((world.secrets(resources[0]).len(), world.secrets(resources[1]).len(), world.secrets(resources[2]).len()), (2, 0, 2));
        world.check();
    }
}

#[tokio::test]
async fn the_first_eight_digits_of_two_resources_may_be_the_same() {
    // Then slug and uuid8 give one name for two resources: neither may take the other's Secret for its own.
    for store in [Store::Kube, Store::Directory] {
        let world = World::with_store(Profile::V8_0, store).await;
        let agent = world.patient().await;
        let (_, resource) = world.order("llm", &["kestrel-8b"]);
        world.waldur.rename_slug(resource, "llm");
        let id = resource.simple().to_string();
        let name = format!("llm-key-llm-{}", id.get(..8).unwrap());
        let squatter = llm_access_agent::secrets::Connection {
            slot: llm_access_agent::secrets::Slot::Project,
            resource: Uuid::from_u128(resource.as_u128() ^ 1),
            offering: world.offering,
            project: None,
            name: name.clone(),
            alias: "x-1".into(),
            number: 1,
            state: llm_access_agent::secrets::SecretState::Ready,
            key: "sk-another-resources-key".to_owned().into(),
            base_url: "https://llm.example.org/v1".into(),
            models: vec!["kestrel-8b".into()],
            embedder: None,
            order: None,
            rotation: llm_access_agent::secrets::Rotation::None,
        };
        agent.secrets.create(&squatter).await.unwrap();
        for _ in 0..4 {
            world.beat(&agent).await;
            world.advance(Duration::from_secs(600));
        }
        assert!(agent.conditions.holds("foreign-secret"), "{:?}", agent.conditions.all());
        assert_eq!(world.open_orders().len(), 1, "said, not solved by taking what is another's");
        let there = agent.secrets.of_resource(squatter.resource, None).await.unwrap().stored;
        assert_eq!(there.len(), 1, "{store:?}");
        assert!(there[0].connection == squatter);
        // Named anew, it goes through.
        world.waldur.rename_slug(resource, "llm-two");
        world.run_to_rest(&agent, 5).await;
        assert_eq!(world.secrets(resource).len(), 2);
        assert!(!agent.conditions.holds("foreign-secret"), "{:?}", agent.conditions.all());
        let there = agent.secrets.of_resource(squatter.resource, None).await.unwrap().stored;
        agent.secrets.delete(&there[0]).await.unwrap();
        world.check();
    }
}

#[tokio::test]
async fn models_keep_their_dots_and_slashes_and_nonsense_is_rejected_in_one_line() {
    for profile in PROFILES {
        let world = World::new(profile).await;
        for name in ["meta/heron:70b", "NO", "1.10"] {
            world.gateway.add_model(name, Some("0.000001"), Some("0.000002"));
        }
        world.write(
            "catalogue.yml",
            &catalogue(&["kestrel-8b", "qwen2.5-0.5b", "meta/heron:70b", "NO", "1.10"]).replace("name: meta/heron:70b, ", "name: heron, "),
        );
        world.waldur.set_forms(world.offering, json!({}), json!({}));
        let agent = world.patient().await;
        let order = |models: Value| {
            let attributes = json!({"name": "llm", "models": models}).as_object().unwrap().clone();
            world.waldur.order_with_attributes(
                world.offering,
                &world.project,
                attributes,
                json!({"max_budget": 50}).as_object().unwrap().clone(),
            )
        };
        let good = ["qwen2.5-0.5b", "meta/heron:70b", "NO", "1.10"];
        let (_, resource) = order(json!([" qwen2.5-0.5b ", "meta/heron:70b", "NO", "1.10\n", "", "NO"]));
        world.run_to_rest(&agent, 5).await;
        let team = world.gateway.team(&resource.simple().to_string()).unwrap();
        assert_eq!(
            team.models.iter().map(String::as_str).filter(|m| *m != "qwen3-embedding-0-6b").collect::<BTreeSet<_>>(),
            BTreeSet::from(good)
        );
        for model in good {
            world.gateway.chat(&world.key(resource, "chat"), model, "P=1 C=1").unwrap();
        }
        world.check();

        for nonsense in odd_names().into_iter().filter(|name| !name.trim().is_empty()).chain([
            "*".into(),
            "all-proxy-models".into(),
            "no-default-models".into(),
        ]) {
            let (order, resource) = order(json!([nonsense]));
            world.beat(&agent).await;
            assert_eq!(world.waldur.order_state(order), "rejected", "{nonsense:?}");
            let sent = world.faults.calls().into_iter().rfind(|call| call.path.contains("reject_by_provider")).unwrap();
            let comment =
                serde_json::from_str::<Value>(&sent.body).unwrap()["provider_rejection_comment"].as_str().unwrap_or_default().to_owned();
            assert!(
                comment.contains("Reference:") && comment.chars().count() < 600 && !comment.chars().any(char::is_control),
                "{nonsense:?}: {comment:?}"
            );
            assert_eq!(world.waldur.resource(resource).state, "Terminated");
        }
        let (empty, _) = order(json!(["", "  "]));
        world.beat(&agent).await;
        assert_eq!(world.waldur.order_state(empty), "rejected");
        world.check();
    }
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// The process dies at a call of a create, and Waldur's people rename the resource before the next one starts.
fn rename_between_crash_and_restart(profile: Profile, store: Store, mint: bool) {
    let simulators = runtime();
    for after_effect in [false, true] {
        for k in 2..40 {
            let case = format!("{profile:?} {store:?} mint={mint}: killed at call {k}, after_effect={after_effect}");
            let world = simulators.block_on(World::with_store(profile, store));
            world.gateway.forbid_custom_keys(mint);
            let (order, resource) = world.order("seabird-llm", &["kestrel-8b"]);
            world.faults.at_call(k, Fault::Kill { after_effect });
            let process = runtime();
            let killed = process.block_on(async {
                let agent = world.patient().await;
                tokio::select! {
                    () = world.beat(&agent) => false,
                    () = world.faults.killed() => true,
                }
            });
            // A process that is dropped closes its sockets and does nothing more.
            drop(process);
            if !killed {
                assert!(k > 15, "{case}: over already");
                break;
            }
            world.waldur.rename_slug(resource, "another name/after all");
            let process = runtime();
            process.block_on(async {
                let agent = world.patient().await;
                world.run_to_rest(&agent, 6).await;
                world.slow_beat(&agent).await;
                world.faults.reset_calls();
                world.slow_beat(&agent).await;
                assert_eq!(world.writes(None), Vec::<String>::new(), "{case}");
            });
            assert_eq!(world.waldur.order_state(order), "done", "{case}");
            assert_one_each(&world, 1, &case);
            let problems = llm_access_tests::checker::problems(&world);
            assert!(problems.is_empty(), "{case}: {problems:#?}");
        }
    }
}

#[test]
fn a_slug_may_change_between_crash_and_restart() {
    rename_between_crash_and_restart(Profile::Late2026, Store::Kube, false);
}

#[test]
fn a_slug_may_change_between_crash_and_restart_with_files() {
    rename_between_crash_and_restart(Profile::Y2024, Store::Directory, false);
}

#[test]
fn a_slug_may_change_between_crash_and_restart_at_a_gateway_that_makes_the_keys() {
    rename_between_crash_and_restart(Profile::Late2026, Store::Kube, true);
}
