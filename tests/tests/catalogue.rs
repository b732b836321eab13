//! The catalogue as files: what `catalogue validate` says of them, and how a running agent follows one that is mounted.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use llm_access_fixtures::waldur::Profile;
use llm_access_tests::World;
use serde_json::Value;

/// Runs `catalogue validate` where there is neither a configuration nor a peer: exit code, standard output, standard error.
fn validate(arguments: &[&str]) -> (i32, String, String) {
    let done =
        Command::new(env!("CARGO_BIN_EXE_agent-under-test")).args(["catalogue", "validate"]).args(arguments).env_clear().output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (done.status.code().unwrap(), text(&done.stdout), text(&done.stderr))
}

fn sample(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/catalogue").join(name).display().to_string()
}

fn written(folder: &Path, text: &str) -> String {
    let path = folder.join("inference.yml");
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn good_files_are_summed_up_and_exit_with_0() {
    let files = ["inventory.yml", "policy.yml", "devbox.yml", "anchors.yml"].map(sample);
    let (code, out, err) = validate(&files.each_ref().map(String::as_str));
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let lines: Vec<&str> = out.lines().map(|line| line.rsplit("catalogue/").next().unwrap()).collect();
    assert_eq!(
        lines,
        [
            "inventory.yml: 4 models: 3 orderable, 3 priced, 1 switched off",
            "policy.yml: 4 models: 3 orderable, 3 priced, 1 switched off, 20 per month by default",
            "devbox.yml: 1 model: 1 orderable, 1 priced, 0 switched off, 5 per month by default",
            "anchors.yml: 5 models: 5 orderable, 4 priced, 0 switched off",
        ]
    );
    let (code, out, _) = validate(&["--json", &files[3]]);
    assert_eq!(code, 0);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&report[0]["valid"], &report[0]["models"][3]["output_cost_per_token"]),
        (&Value::Bool(true), &Value::String("0.00000085".into()))
    );
}

#[test]
fn every_problem_is_told_with_line_and_column_and_exits_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(
        folder.path(),
        "inference:
  models:
    - name: a
      served_name: \"{{ model_name }}\"
      orderable: true
    - name: b
      served_name: b
      litellm_model_info: {input_cost_per_token: 1.0e-07}
    - name: c
      served_name: all-team-models
      orderable: true
      gpu_per_node: 010
    - {name: d, served_name: d, orderable: true, litellm_model_info: {input_cost_per_token: -1.0e-07, output_cost_per_token: \"0,5\"}}
    - {name: e, served_name: b, orderable: true, node_count: 2, gpu_per_node: 4, tensor_parallel_size: 8}
",
    );
    let (code, out, err) = validate(&[&file]);
    assert_eq!(code, 2, "{out}{err}");
    for place in [
        ":4:20: inference.models[0].served_name: holds a template",
        ":6:7: inference.models[1].orderable: is missing",
        ":8:50: inference.models[1].litellm_model_info",
        ":10:20: inference.models[2].served_name: is all-team-models",
        ":12:21: inference.models[2].gpu_per_node",
        ":13:",
        ":14:",
    ] {
        assert!(out.contains(place), "{place} in\n{out}");
    }
    let (code, out, _) = validate(&["--json", &file, &sample("policy.yml")]);
    assert_eq!(code, 2);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&report[0]["valid"], &report[1]["valid"]), (&Value::Bool(false), &Value::Bool(true)));
    assert_eq!((&report[0]["problems"][0]["line"], &report[0]["problems"][0]["column"]), (&Value::from(4), &Value::from(20)));
}

#[test]
fn templates_that_nobody_filled_in_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        "inference_models:\n  - name: a\n    served_name: {{ model_name }}\n",
        "inference_models:\n  - name: a\n    served_name: a\n    litellm_model_info: {input_cost_per_token: \"{{ price }}\", output_cost_per_token: 1}\n",
        "inference_models: \"{{ all_models }}\"\n",
        "inference_models:\n{% for model in models %}\n  - {name: a, served_name: a}\n{% endfor %}\n",
    ];
    for text in cases {
        let (code, out, err) = validate(&[&written(folder.path(), text)]);
        assert_eq!(code, 2, "{text}");
        assert!(out.contains("template"), "{text}\n{out}{err}");
    }
}

#[test]
fn prices_are_exact_and_what_waldur_cannot_hold_is_refused_with_the_value() {
    let folder = tempfile::tempdir().unwrap();
    let with = |price: &str| {
        written(
            folder.path(),
            &format!(
                "inference_models:\n  - {{name: a, served_name: a, litellm_model_info: {{input_cost_per_token: {price}, output_cost_per_token: 1.0e-13}}}}\n"
            ),
        )
    };
    for exact in ["5e-7", "0.0000005", "1e-13", "\"1e-13\"", "0", "0.0"] {
        let (code, out, _) = validate(&[&with(exact)]);
        assert_eq!(code, 0, "{exact}: {out}");
    }
    for wrong in ["1e-30", "1.0e-14", "0.000000150000000000000001", "\"0,5\"", ".nan", ".inf", "-0", "cheap"] {
        let (code, out, _) = validate(&[&with(wrong)]);
        assert_eq!(code, 2, "{wrong}: {out}");
        assert!(out.contains(":2:74: inference_models[0].litellm_model_info.input_cost_per_token"), "{wrong}: {out}");
    }
    let (_, out, _) = validate(&[&with("1.0e-14")]);
    assert!(out.contains("0.00000000000001 is 0.00000000001 per 1k tokens"), "{out}");
    assert_eq!(validate(&["--token-unit", "1M", &with("1.0e-14")]).0, 0);
    assert_eq!(validate(&["--token-unit", "1", &with("5e-7")]).0, 2, "the other price needs 13 decimals");
}

#[test]
fn files_that_are_no_catalogue_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    for (text, words) in [
        ("", "is empty"),
        ("---\n", "is empty"),
        ("# moved\n", "is empty"),
        ("services: {web: {image: nginx}}\n", "neither inference_models"),
        ("inference_model:\n  - {name: a, served_name: a}\n", "did you mean inference_models?"),
        ("inference_models:\n  - {name: a, served_name: a, enabled: false}\n", "lists no enabled model"),
        ("inference_models:\n  - {name: a\n", ""),
        ("\u{feff}inference_models: 3\n", "has to be a list"),
    ] {
        let (code, out, err) = validate(&[&written(folder.path(), text)]);
        assert_eq!(code, 2, "{text}");
        assert!(out.contains(words), "{text}: {out}{err}");
    }
    fs::write(folder.path().join("inference.yml"), b"inference_models: [\xff]\n").unwrap();
    let (code, out, _) = validate(&[&folder.path().join("inference.yml").display().to_string()]);
    assert!(code == 2 && out.contains("UTF-8"), "{out}");
    let (code, out, _) = validate(&["/nowhere/inference.yml"]);
    assert!(code == 2 && out.contains("/nowhere/inference.yml: cannot be read"), "{out}");
    let (code, _, err) = validate(&[]);
    assert!(code == 2 && err.contains("FILE"), "{err}");
}

#[tokio::test]
async fn a_mounted_catalogue_is_followed_when_its_folder_is_exchanged() {
    // As a cluster mounts a ConfigMap: the file is a link to ..data/file, and ..data a link to a folder that is exchanged.
    let world = World::new(Profile::Late2026).await;
    let mount = world.path("mount");
    let version = |name: &str, text: &str| -> PathBuf {
        let folder = mount.join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("inference.yml"), text).unwrap();
        folder
    };
    let text = |models: &[&str]| llm_access_tests::catalogue(models);
    version("..1", &text(&["kestrel-8b", "heron-70b", "qwen2.5-0.5b"]));
    symlink("..1", mount.join("..data")).unwrap();
    symlink("..data/inference.yml", mount.join("inference.yml")).unwrap();
    let config = world
        .config_text("")
        .replace(&world.path("catalogue.yml").display().to_string(), &mount.join("inference.yml").display().to_string());
    let agent = llm_access_agent::agent::Agent::new(world.parse(&config), world.clock.clone()).await.unwrap();
    agent.offering_beat().await;
    assert!(!world.waldur.models(world.offering).contains(&"m4".to_owned()));

    version("..2", &text(&["kestrel-8b", "heron-70b", "qwen2.5-0.5b", "m4"]));
    symlink("..2", mount.join("..new")).unwrap();
    fs::rename(mount.join("..new"), mount.join("..data")).unwrap();
    fs::remove_dir_all(mount.join("..1")).unwrap();
    agent.offering_beat().await;
    assert!(world.waldur.models(world.offering).contains(&"m4".to_owned()));
    assert!(!agent.conditions.holds("catalogue-unreadable"));

    // The moment in which nothing is there at all.
    fs::remove_file(mount.join("..data")).unwrap();
    agent.offering_beat().await;
    assert!(agent.conditions.holds("catalogue-unreadable"));
    assert!(world.waldur.models(world.offering).contains(&"m4".to_owned()));
    symlink("..2", mount.join("..data")).unwrap();
    world.advance(Duration::from_secs(60));
    agent.offering_beat().await;
    assert!(!agent.conditions.holds("catalogue-unreadable"));
}
