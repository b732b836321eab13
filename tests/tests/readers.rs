//! `check` holds every reader of the catalogue against it: the gateway, the offering, the teams, and files that other systems
//! render. One line per difference, and an exit code that a pipeline notices.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use llm_access_agent::plan::deployment_id;
use llm_access_fixtures::litellm::Deployment;
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::program::command;
use llm_access_tests::{Store, World, catalogue};
use rust_decimal::Decimal;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;

/// What `check` printed, and its exit code.
struct Checked {
    code: Option<i32>,
    lines: Vec<String>,
}

impl Checked {
    fn failures(&self) -> Vec<&str> {
        self.lines.iter().filter_map(|line| line.strip_prefix("FAIL  ")).collect()
    }

    /// Asserts that exactly these are wrong; each is part of one line.
    #[track_caller]
    fn finds(&self, differences: &[&str]) {
        let failures = self.failures();
        assert_eq!(failures.len(), differences.len(), "{failures:#?}\n{}", self.lines.join("\n"));
        for difference in differences {
            assert_eq!(failures.iter().filter(|failure| failure.contains(difference)).count(), 1, "{difference:?} in {failures:#?}");
        }
        assert_eq!(self.code, Some(if differences.is_empty() { 0 } else { 2 }));
    }

    #[track_caller]
    fn tells(&self, words: &str) {
        assert!(self.lines.iter().any(|line| line.contains(words)), "{words:?} is missing in\n{}", self.lines.join("\n"));
    }
}

async fn check_with(config: &Path, args: &[&str], input: &str) -> Checked {
    run(config, &[&["check"], args].concat(), input).await
}

async fn run(config: &Path, args: &[&str], input: &str) -> Checked {
    let mut command = command(env!("CARGO_BIN_EXE_agent-under-test"));
    command.arg("--config").arg(config).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).await.unwrap();
    let output = tokio::time::timeout(Duration::from_secs(20), child.wait_with_output()).await.unwrap().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(!err.contains("panicked"), "{err}");
    Checked { code: output.status.code(), lines: String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect() }
}

async fn check(world: &World, args: &[&str]) -> Checked {
    check_with(&world.write("config.yml", &world.config_text("")), args, "").await
}

/// A world whose offering is as the catalogue says, with one project.
async fn kept(profile: Profile) -> (World, uuid::Uuid) {
    let world = World::in_real_time(profile, Store::Directory).await;
    let agent = world.agent().await;
    agent.offering_beat().await;
    let resource = world.sold(&agent, "llm", &["kestrel-8b", "heron-70b"]).await;
    agent.offering_beat().await;
    (world, resource)
}

#[tokio::test]
async fn a_world_that_agrees_passes_and_nothing_is_written() {
    for profile in llm_access_tests::PROFILES {
        let (world, _) = kept(profile).await;
        world.faults.reset_calls();
        let checked = check(&world, &[]).await;
        checked.finds(&[]);
        checked.tells("all 4 models of the catalogue are served, at its prices");
        checked.tells("choices, components and prices are as in the catalogue");
        checked.tells("1 team may call what was ordered");
        assert_eq!(world.writes(None), Vec::<String>::new());
    }
}

#[tokio::test]
async fn each_difference_at_the_gateway_is_one_line() {
    let (world, _) = kept(Profile::Late2026).await;
    world.ends_in_trouble("the gateway does not serve what was sold");
    world.gateway.remove_model("heron-70b");
    world.gateway.add_model("kestrel-8b", Some("0.00000022"), Some("0.00000085"));
    world.gateway.add_deployment("alias", "osprey", "openai/qwen2.5-0.5b", None, None);
    check(&world, &[]).await.finds(&[
        "model heron-70b is in the catalogue and not served",
        "model kestrel-8b: an input token costs 0.00000022 at the gateway (deployment cfg-kestrel-8b) and 0.00000021 in the catalogue",
        "model osprey is served by the gateway and not in the catalogue",
        "osprey, qwen2.5-0.5b are all openai/qwen2.5-0.5b upstream",
    ]);
}

#[tokio::test]
async fn where_the_agent_registers_models_what_it_has_left_to_do_is_told() {
    let (world, _) = kept(Profile::Late2026).await;
    for model in ["kestrel-8b", "heron-70b", "qwen2.5-0.5b", "qwen3-embedding-0-6b"] {
        world.gateway.remove_model(model);
    }
    let managing = world.config_text("").replace("gateway: {", "gateway: {manage_models: true, ");
    let config = world.write("managing.yml", &managing);
    let agent = llm_access_agent::agent::Agent::new(world.parse(&managing), world.clock.clone()).await.unwrap();
    agent.gateway_beat().await;
    check_with(&config, &[], "").await.finds(&[]);
    let ours =
        world.gateway.deployments().into_iter().find(|deployment| deployment.id == deployment_id(&world.owner, "kestrel-8b")).unwrap();
    world.gateway.put_deployment(&Deployment { output_price: Some(Decimal::ONE), ..ours });
    world.faults.reset_calls();
    check_with(&config, &[], "").await.finds(&[
        "change model kestrel-8b at the gateway: output price 1 → 0.00000085; a running agent does it at its next pass",
        "an output token costs 1 at the gateway",
    ]);
    let planned = run(&config, &["plan"], "").await;
    assert_eq!(planned.lines, ["gateway:", "  change model kestrel-8b at the gateway: output price 1 → 0.00000085"]);
    assert_eq!(planned.code, Some(0));
    assert_eq!(world.writes(None), Vec::<String>::new());
}

#[tokio::test]
async fn each_difference_at_the_offering_is_one_line() {
    let (world, _) = kept(Profile::Late2026).await;
    world.waldur.set_models(world.offering, &["kestrel-8b", "osprey", "all"]);
    world.waldur.drop_component(world.offering, "heron-70b:output");
    world.waldur.set_component_field(world.offering, "kestrel-8b:input", "measured_unit", json!("pieces"));
    let checked = check(&world, &[]).await;
    checked.finds(&[
        "set the choices of `models` on the order form",
        "set the choices of `models` on resources",
        "create component heron-70b:output",
        "change component kestrel-8b:input: unit",
        "set prices of plan",
    ]);
}

#[tokio::test]
async fn a_price_that_waits_for_the_first_is_pending_and_no_difference() {
    let (world, _) = kept(Profile::Late2026).await;
    let text = catalogue(&["kestrel-8b", "heron-70b", "qwen2.5-0.5b"]).replace("0.00000085", "0.00000095");
    world.write("catalogue.yml", &text);
    world.gateway.add_model("kestrel-8b", Some("0.00000021"), Some("0.00000095"));
    assert!(!check(&world, &[]).await.failures().is_empty(), "the offering is to be changed");
    world.agent().await.offering_beat().await;
    let checked = check(&world, &[]).await;
    checked.finds(&[]);
    checked.tells("kestrel-8b:output costs 0.00085 and 0.00095 later: pending until ");
    checked.tells("1 price pending until ");
}

#[tokio::test]
async fn each_difference_at_a_team_is_one_line() {
    let (world, resource) = kept(Profile::Late2026).await;
    world.ends_in_trouble("a team was changed by hand, and no pass came after it");
    let id = resource.simple().to_string();
    world.gateway.edit_team(&id, &json!({"models": ["kestrel-8b", "qwen2.5-0.5b", "osprey", "qwen3-embedding-0-6b"]}));
    let checked = check(&world, &[]).await;
    checked.finds(&[
        "may call qwen2.5-0.5b, which was not ordered",
        "may call osprey, which the catalogue does not list",
        "may not call heron-70b, which was ordered",
    ]);
    assert!(checked.failures().iter().all(|line| line.starts_with(&format!("teams: team {id} (resource "))), "{:?}", checked.failures());
    world.gateway.edit_team(&id, &json!({"models": []}));
    let checked = check(&world, &[]).await;
    assert!(checked.failures().iter().any(|line| line.contains("may call every model")), "{:?}", checked.failures());
}

#[tokio::test]
async fn files_of_other_readers_are_compared() {
    let (world, _) = kept(Profile::Late2026).await;
    let deployment = world.write(
        "metallo-env.yaml",
        "spec:\n  containers:\n    - env:\n        - name: LLM_ACCESS_MODELS\n          value: kestrel-8b,heron-70b,qwen2.5-0.5b\n",
    );
    let values = world.write(
        "waldur-values.yaml",
        "pharos:\n  llmOffering:\n    models: [kestrel-8b, heron-70b, qwen2.5-0.5b]\n    modelPricing:\n      kestrel-8b: {input: 2.1e-07, output: 8.5e-07}\n      heron-70b: {input: 1.0e-06, output: 2.0e-06}\n      qwen2.5-0.5b: {input: 0, output: 0}\n",
    );
    let (deployment, values) = (deployment.to_str().unwrap(), values.to_str().unwrap());
    let checked = check(&world, &["--reader", deployment, values]).await;
    checked.finds(&[]);
    checked.tells(&format!("{deployment}: as in the catalogue: LLM_ACCESS_MODELS"));
    checked.tells("llmOffering.models, modelPricing");
    // Each by itself, and both against a catalogue that moved on.
    world.write("catalogue.yml", &catalogue(&["kestrel-8b", "heron-70b"]).replace("0.00000085", "0.00000086"));
    world.gateway.remove_model("qwen2.5-0.5b");
    let checked = check(&world, &["--reader", deployment, "--reader", values]).await;
    let readers: Vec<&str> = checked.failures().into_iter().filter(|line| line.starts_with("reader: ")).collect();
    assert_eq!(
        readers,
        [
            format!("reader: {deployment}:5: LLM_ACCESS_MODELS lists model qwen2.5-0.5b, which the catalogue does not list"),
            format!("reader: {values}:3: llmOffering.models lists model qwen2.5-0.5b, which the catalogue does not list"),
            format!("reader: {values}:5: modelPricing: the output price of model kestrel-8b is 0.00000085 and 0.00000086 in the catalogue"),
            format!("reader: {values}:7: modelPricing has model qwen2.5-0.5b, which the catalogue does not list"),
        ]
    );
    assert_eq!(checked.code, Some(2));
}

#[tokio::test]
async fn a_deployment_is_read_from_standard_input_and_wrong_files_are_named() {
    let (world, _) = kept(Profile::Late2026).await;
    let config = world.write("config.yml", &world.config_text(""));
    let live = r#"{"kind": "Deployment", "spec": {"template": {"spec": {"containers": [{"env": [{"name": "LLM_ACCESS_MODELS", "value": "kestrel-8b,heron-70b"}]}]}}}}"#;
    check_with(&config, &["--reader", "-"], live).await.finds(&["standard input:1: LLM_ACCESS_MODELS lacks model qwen2.5-0.5b"]);
    let broken = world.write("broken.yaml", "a: [\n");
    let other = world.write("other.yaml", "a: 1\n");
    let args = ["--reader", "/nosuch.yaml", broken.to_str().unwrap(), other.to_str().unwrap()];
    check_with(&config, &args, "").await.finds(&["/nosuch.yaml: cannot be read", "not valid YAML", "says nothing about models"]);
}
