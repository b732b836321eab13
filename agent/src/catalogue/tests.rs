#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;

use super::*;

fn fixture(name: &str) -> Catalogue {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/catalogue")).join(name);
    read(&path).unwrap_or_else(|errors| panic!("{errors}"))
}

fn problems(text: &str) -> Vec<String> {
    match parse(text, "c.yml") {
        Ok(catalogue) => panic!("accepted: {catalogue:?}"),
        Err(errors) => errors.problems.iter().map(ToString::to_string).collect(),
    }
}

fn only(text: &str) -> String {
    let problems = problems(text);
    assert_eq!(problems.len(), 1, "{problems:#?}");
    problems[0].clone()
}

/// One policy entry with these lines added to a sound one.
fn policy(lines: &str) -> String {
    format!("inference:\n  models:\n  - name: a\n    served_name: a\n    orderable: true\n{lines}")
}

fn orderable(catalogue: &Catalogue) -> Vec<&str> {
    let models = catalogue.models.iter().filter(|model| model.orderable);
    models.map(|model| model.served_name.as_str()).collect()
}

#[test]
fn both_shapes_give_the_same_models() {
    let inventory = fixture("inventory.yml");
    let policy = fixture("policy.yml");
    let names = ["kestrel-8b", "heron-70b", "qwen2.5-0.5b", "qwen3-embedding-0-6b"];
    for catalogue in [&inventory, &policy] {
        let served: Vec<&str> = catalogue.models.iter().map(|model| model.served_name.as_str()).collect();
        assert_eq!(served, names);
        assert_eq!(orderable(catalogue), names[..3]);
        assert_eq!(catalogue.disabled, ["osprey-14b"]);
        let heron = catalogue.model("heron-70b").unwrap();
        assert_eq!(heron.prices, Some(Prices { input: "0.00000021".parse().unwrap(), output: Some("0.00000085".parse().unwrap()) }));
        let embedder = catalogue.model("qwen3-embedding-0-6b").unwrap();
        assert!(embedder.embedding && !embedder.orderable);
        assert_eq!(embedder.prices.unwrap().output, None);
        let unpriced = catalogue.model("qwen2.5-0.5b").unwrap();
        assert_eq!((unpriced.prices, unpriced.name.as_str()), (None, "qwen2-5-0-5b-cpu"));
    }
    assert_eq!(inventory.max_budget, None);
    assert_eq!(policy.max_budget, Some(Decimal::from(20)));
    assert_ne!(inventory.digest, policy.digest);
    assert_eq!(inventory.digest.len(), 64);
}

#[test]
fn the_digest_is_of_the_content() {
    let text = "inference_models:\n- {name: a, served_name: a}\n";
    let digest = hex(&Sha256::digest(text.as_bytes()));
    assert_eq!(parse(text, "one.yml").unwrap().digest, digest);
    assert_eq!(parse(text, "two.yml").unwrap().digest, digest);
    assert_ne!(parse(&format!("{text}# more\n"), "one.yml").unwrap().digest, digest);
}

#[test]
fn names_are_kept_as_written() {
    let names = ["NO", "on", "yes", "1.10", "2.5", "1e3", "0123", "12345", "null", "0x1F", "true", "org/model:7b"];
    let entries: String = names.iter().map(|name| format!("- {{name: m, served_name: {name}, y: 1}}\n")).collect();
    let catalogue = parse(&format!("inference_models:\n{entries}"), "c.yml").unwrap();
    let served: Vec<&str> = catalogue.models.iter().map(|model| model.served_name.as_str()).collect();
    assert_eq!(served, names);
}

#[test]
fn foreign_fields_may_be_anything() {
    let text = "
y: NO
? [a, b]
: complex
anything: !vault |
  ciphertext
defaults: &defaults {gpu_per_node: 1, litellm_model_info: {input_cost_per_token: 0, output_cost_per_token: 0}}
inference_models:
- <<: *defaults
  name: a
  served_name: a
  extra_args: {--flag: [1, {x: y}], ? {k: v} : z}
  n: {n: n}
  autoscaling: {min: 010, min: twice}
";
    let catalogue = parse(text, "c.yml").unwrap();
    assert_eq!(catalogue.models.len(), 1);
    assert_eq!(catalogue.models[0].prices, Some(Prices { input: Decimal::ZERO, output: Some(Decimal::ZERO) }));
}

#[test]
fn nothing_is_not_a_catalogue() {
    for text in ["", "\n", "# comment only\n", "---\n", "~\n", "null\n"] {
        assert_eq!(only(text), "c.yml: is empty; an empty catalogue changes nothing, so list the models", "{text:?}");
    }
    assert_eq!(
        only("other: 1\n"),
        "c.yml:1:1: is no catalogue: it has neither inference_models: (inventory) nor inference: (environment policy) at its top"
    );
    assert_eq!(only("x: 1\ninferense_models: []\n"), "c.yml:2:1: inferense_models: is no catalogue; did you mean inference_models?");
    assert_eq!(only("inference_models:\n"), "c.yml:1:1: inference_models: holds nothing; list the models there");
    assert_eq!(only("- a\n"), "c.yml:1:1: has to start with inference_models: or inference:, and is a list");
    assert!(only("inference_models: []\n").starts_with("c.yml:1:19: inference_models: lists no enabled model"));
    assert!(
        only("inference_models:\n- {name: a, served_name: a, enabled: false}\n")
            .starts_with("c.yml:2:3: inference_models: lists no enabled model"),
        "{}",
        only("inference_models:\n- {name: a, served_name: a, enabled: false}\n")
    );
    assert_eq!(only("inference: {}\n"), "c.yml:1:12: inference.models: is missing; list the models there");
    assert_eq!(only("inference: {models: {a: b}}\n"), "c.yml:1:21: inference.models: has to be a list of models, and is a mapping");
    assert_eq!(
        only("inference_models: [x]\ninference: {models: []}\n"),
        "c.yml:2:12: inference: and inference_models are both there; keep one of them"
    );
    assert!(only("inference_models: [\n").contains("not valid YAML"));
    let missing = read(Path::new("/nonexistent/inference.yml")).unwrap_err().to_string();
    assert!(missing.starts_with("/nonexistent/inference.yml: cannot be read: "), "{missing}");
}

#[test]
fn every_problem_is_listed_with_its_place() {
    let text = "\
inference_models:
- name: a
  served_name: all
- served_name: '{{ model }}'
  name: b
- name: c
  served_name: ok
  gpu_per_node: 010
- name: d
  served_name: ok2
  node_count: 2
  gpu_per_node: 8
  tensor_parallel_size: 8
- name: e
  served_name: ok3
  gpu_per_node: 2
- name: f
  served_name: ok4
  enabled: yes
- name: g
- just text
- name: h
  served_name: [x]
- name: i
  served_name: dup
- name: j
  served_name: dup
- name: k
  served_name: ok5
  served_name: ok6
  runtime: gpu
";
    assert_eq!(
        problems(text),
        [
            "c.yml:3:16: inference_models[0].served_name: is all, which has a meaning of its own in the gateway or on the order form; choose another",
            "c.yml:4:16: inference_models[1].served_name: holds a template that nobody filled in; render the catalogue first",
            "c.yml:8:17: inference_models[2].gpu_per_node: has a leading zero, which some readers take for octal; write it without",
            "c.yml:11:15: inference_models[3].pipeline_parallel_size: is 1 on 2 nodes; with several nodes it has to equal node_count",
            "c.yml:16:17: inference_models[4].tensor_parallel_size: × pipeline_parallel_size is 1 × 1, and node_count × gpu_per_node is 1 × 2; both products have to be equal",
            "c.yml:19:12: inference_models[5].enabled: is neither true nor false",
            "c.yml:20:3: inference_models[6].served_name: is missing; every enabled model needs one",
            "c.yml:21:3: inference_models[7]: has to be a mapping, and is a single value",
            "c.yml:23:16: inference_models[8].served_name: has to be a single value, and is a list",
            "c.yml:27:16: inference_models[10].served_name: is the name of the model on line 25 too; every model has its own",
            "c.yml:30:3: inference_models[11].served_name: is written twice; the first is on line 29; keep one",
            "c.yml:31:12: inference_models[11].runtime: is not one of vllm, tei, cpu",
        ]
    );
}

#[test]
fn served_names_are_plain_and_not_magic() {
    for name in ["'*'", "all-team-models", "all-proxy-models", "no-default-models", "all"] {
        let text = format!("inference_models:\n- {{name: a, served_name: {name}}}\n");
        assert!(only(&text).contains("has a meaning of its own"), "{name}");
    }
    for name in ["''", "'a b'", "' a'", "'a,b'", "'a;b'", "\"a\\tb\"", "'{% x %}'", "'${MODEL}'"] {
        let text = format!("inference_models:\n- {{name: a, served_name: {name}}}\n");
        assert!(only(&text).starts_with("c.yml:2:26: inference_models[0].served_name: "), "{name}: {}", only(&text));
    }
    for name in ["", "~"] {
        let text = format!("inference_models:\n- {{name: a, served_name: {name}}}\n");
        assert!(only(&text).contains("is missing"), "{name}");
    }
}

#[test]
fn a_policy_states_what_may_be_ordered() {
    let text = "\
inference:
  models:
  - {name: a, served_name: a}
  - {name: b, served_name: b, orderable: maybe}
  - {name: c, served_name: c, orderable: true, runtime: tei}
  - {name: d, served_name: d, orderable: true, runtime: cpu}
  - {name: e, served_name: e, orderable: false, runtime: cpu}
  - {name: f, served_name: f, enabled: false}
";
    assert_eq!(
        problems(text),
        [
            "c.yml:3:5: inference.models[0].orderable: is missing; write true or false on every served model",
            "c.yml:4:42: inference.models[1].orderable: is neither true nor false",
            "c.yml:5:42: inference.models[2].orderable: is true for an embedding model; projects order models that generate",
            "c.yml:7:5: inference.models[4].runtime: is cpu, as is the model on line 6; an environment has one CPU server at most",
        ]
    );
}

#[test]
fn an_inventory_orders_what_generates() {
    let text = "\
inference_models:
- {name: a, served_name: a}
- {name: b, served_name: b, orderable: false}
- {name: c, served_name: c, litellm_model_info: {mode: embedding}}
- {name: d, served_name: d, runtime: tei}
- {name: e, served_name: e, enabled: false}
- {name: e, served_name: e}
";
    let catalogue = parse(text, "c.yml").unwrap();
    assert_eq!(orderable(&catalogue), ["a", "e"]);
    assert_eq!(catalogue.models.len(), 5);
    // Another entry serves the name, so nothing was switched off.
    assert!(catalogue.disabled.is_empty());
}

#[test]
fn prices_come_in_pairs_and_are_exact() {
    let info = |fields: &str| policy(&format!("    litellm_model_info: {{{fields}}}\n"));
    for fields in ["input_cost_per_token: 1e-7", "output_cost_per_token: 1e-7", "input_cost_per_token: 1e-7, output_cost_per_token: ~"] {
        assert!(only(&info(fields)).contains("stands alone"), "{fields}");
    }
    for (price, wrong) in [
        ("-1e-7", "is negative"),
        ("-0", "is negative"),
        ("'0,5'", "write a point"),
        (".nan", "is not a decimal number"),
        (".inf", "is not a decimal number"),
        ("1e-30", "more digits"),
        ("'1e-30'", "more digits"),
        ("free", "is not a decimal number"),
        ("[1]", "has to be a single value"),
    ] {
        let problem = only(&info(&format!("input_cost_per_token: {price}, output_cost_per_token: 1")));
        assert!(
            problem.starts_with("c.yml:6:48: inference.models[0].litellm_model_info.input_cost_per_token: ") && problem.contains(wrong),
            "{price}: {problem}"
        );
    }
    let text = info("input_cost_per_token: 0.000000150000000000000001, output_cost_per_token: '5e-7'");
    let prices = parse(&text, "c.yml").unwrap().models[0].prices.unwrap();
    assert_eq!(prices.input.to_string(), "0.000000150000000000000001");
    assert_eq!(prices.output.unwrap().to_string(), "0.0000005");
    // Not priced yet is not free.
    assert_eq!(parse(&policy(""), "c.yml").unwrap().models[0].prices, None);
}

#[test]
fn the_budget_is_a_plain_amount() {
    let with = |budget: &str| format!("inference:\n  budget: {budget}\n  models: [{{name: a, served_name: a, orderable: true}}]\n");
    assert_eq!(parse(&with("{max_budget_eur: 12.50}"), "c.yml").unwrap().max_budget, Some(Decimal::new(125, 1)));
    assert_eq!(parse(&with("{other: x}"), "c.yml").unwrap().max_budget, None);
    assert_eq!(parse(&with(""), "c.yml").unwrap().max_budget, None);
    for budget in ["{max_budget_eur: -1}", "{max_budget_eur: lots}", "{max_budget_eur: [1]}", "7"] {
        assert!(only(&with(budget)).starts_with("c.yml:2:"), "{budget}");
    }
}

#[test]
fn a_file_cut_short_is_either_broken_or_shorter() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/catalogue/inventory.yml")).unwrap();
    let whole = parse(&text, "c.yml").unwrap();
    for (end, _) in text.char_indices() {
        // Whatever the cut, no entry is added; a shorter list is the caller's to hold.
        if let Ok(cut) = parse(&text[..end], "c.yml") {
            let entries = whole.models.len() + whole.disabled.len();
            assert!((1..=entries).contains(&cut.models.len()), "cut at {end}");
        }
    }
}
