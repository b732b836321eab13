#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;

use secrecy::ExposeSecret as _;

use super::*;

/// The least that is accepted.
const LEAST: &str = "\
waldur: {api_url: https://waldur.example.org/api/, token_file: /run/secrets/waldur-token}
gateway: {url: https://litellm.example.org, public_url: https://llm.example.org, key_file: /run/secrets/litellm-key}
catalogue: {file: /etc/llm-access/inference.yml}
offerings:
  - uuid: 00000000000000000000000000000042
secrets: {store: directory, path: /var/lib/llm-access}
";

fn vars(vars: &[(&str, &str)]) -> Vec<(String, String)> {
    vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn accepted(text: &str, env: &[(&str, &str)]) -> Loaded {
    load_text("agent.yml", text, &vars(env)).unwrap_or_else(|errors| panic!("{errors}"))
}

fn refused(text: &str, env: &[(&str, &str)]) -> Vec<String> {
    match load_text("agent.yml", text, &vars(env)) {
        Ok(loaded) => panic!("accepted: {loaded:?}"),
        Err(errors) => errors.to_string().lines().map(str::to_owned).collect(),
    }
}

/// The one problem of the least configuration with these lines after it.
fn only(lines: &str) -> String {
    let problems = refused(&format!("{LEAST}{lines}"), &[]);
    assert_eq!(problems.len(), 1, "{problems:#?}");
    problems[0].clone()
}

fn token(config: &Config) -> String {
    match &config.waldur.auth {
        WaldurAuth::Token(token) => token.read().unwrap().expose_secret().to_owned(),
        WaldurAuth::Oidc { .. } => panic!("not a token"),
    }
}

#[test]
fn defaults_are_as_documented() {
    let Loaded { config, warnings } = accepted(LEAST, &[]);
    assert_eq!(warnings, Vec::<String>::new());
    assert_eq!(config.owner, "00000000000000000000000000000042");
    assert_eq!(config.waldur.api_url.as_str(), "https://waldur.example.org/api/");
    assert_eq!(config.waldur.zone, "UTC");
    assert_eq!(config.waldur.timeout, seconds(30));
    assert!(matches!(&config.waldur.auth, WaldurAuth::Token(SecretRef::File(file)) if file.path == Path::new("/run/secrets/waldur-token")));
    assert_eq!(config.gateway.public_openai_url(), "https://llm.example.org/v1");
    assert_eq!(config.gateway.openai_url(), "https://litellm.example.org/v1");
    assert!(!config.gateway.manage_models && !config.gateway.allow_insecure_http);
    assert!(config.webui.is_none() && config.lease.is_none() && config.http.listen.is_none());
    assert_eq!(config.catalogue.hold, seconds(3600));
    assert_eq!(config.catalogue.max_shrink.share, Decimal::new(25, 2));
    assert_eq!(config.catalogue.max_shrink.models, 3);
    let offering = &config.offerings[0];
    assert_eq!(offering.billing, Billing::PerModel);
    assert_eq!((offering.token_unit.tokens(), offering.token_unit.label()), (1000, "1k"));
    assert_eq!(offering.currency, "EUR");
    assert_eq!(offering.limits, LimitsConfig::default());
    assert_eq!(offering.on_downscale, OnDownscale::Block);
    assert_eq!(offering.delivery.api_key_on_old_servers, ApiKeyDelivery::Hide);
    assert_eq!(offering.approval.terminate, ApprovalMode::Auto);
    assert_eq!(config.secrets, SecretsConfig::Directory { path: "/var/lib/llm-access".into() });
    let Intervals { orders, resources, offering, usage } = config.intervals;
    assert_eq!([orders, resources, offering, usage], [15, 60, 60, 600].map(seconds));
    assert_eq!((config.terminate.drain, config.terminate.settle), (seconds(180), seconds(15)));
    let usage = UsageConfig { late_days: 3, month_guard: seconds(900), failed_calls: FailedCalls::AsLedger };
    assert_eq!(config.usage, usage);
    assert_eq!(config.concurrency.orders, 16);
    assert_eq!((config.backoff.initial, config.backoff.max), (seconds(5), seconds(600)));
    assert_eq!(config.orphans.max_per_pass, 10);
    assert_eq!((config.log.format, config.log.level.as_str()), (LogFormat::Text, "info"));
}

#[test]
fn where_models_are_served_is_a_template_for_each_runtime() {
    let with = |more: &str| LEAST.replace("gateway: {", &format!("gateway: {{{more}, "));
    let text = with(
        "model_key_file: /run/secrets/model-key, api_base: {tei: 'https://tei.example.org/{served_name}/v1', cpu: 'http://10.0.0.7:8080/v1'}",
    );
    let gateway = accepted(&text, &[]).config.gateway;
    assert_eq!(
        gateway.api_base,
        ApiBases {
            vllm: "http://{name}-openai.inference.svc.cluster.local:8000/v1".into(),
            tei: "https://tei.example.org/{served_name}/v1".into(),
            cpu: "http://10.0.0.7:8080/v1".into(),
        }
    );
    assert!(gateway.model_key.is_some());
    for (wrong, why) in [
        ("'http://{model}.svc/v1'", "holds a placeholder other than"),
        ("vllm.svc:8000", "has to start with http:// or https://"),
        ("'http://me:pass@{name}.svc/v1'", "holds a user name or password"),
        ("'{name}'", "is not a URL"),
    ] {
        let errors = refused(&with(&format!("api_base: {{vllm: {wrong}}}")), &[]);
        assert!(errors.iter().any(|e| e.contains("gateway.api_base.vllm") && e.contains(why)), "{wrong}: {errors:?}");
    }
}

#[test]
fn how_usage_is_reported_is_checked() {
    let with = |usage: &str| format!("{LEAST}usage: {usage}\n");
    let text = with("{late_days: 0, month_guard: 0s, failed_calls: exclude}");
    let usage = UsageConfig { late_days: 0, month_guard: Duration::ZERO, failed_calls: FailedCalls::Exclude };
    assert_eq!(accepted(&text, &[]).config.usage, usage);
    for (wrong, why) in [
        ("{late_days: 29}", "usage.late_days: is more than 28"),
        ("{month_guard: 15}", "usage.month_guard: `15` is a duration without a unit"),
        ("{failed_calls: include}", "usage.failed_calls: `include` is not one of as_ledger, exclude"),
    ] {
        let errors = refused(&with(wrong), &[]);
        assert!(errors.iter().any(|e| e.contains(why)), "{wrong}: {errors:?}");
    }
}

#[test]
fn the_documented_example_is_accepted() {
    let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md")).unwrap();
    let example = docs.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let Loaded { config, warnings } = accepted(example, &[]);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("gateway.url: the credential goes to litellm.llm.svc over plain http"));
    let offering = &config.offerings[0];
    assert_eq!(offering.plans, ["standard"]);
    assert_eq!(offering.limits.max_budget.max, Some(Decimal::from(1000)));
    assert_eq!(offering.always_include, ["qwen3-embedding-0-6b"]);
    assert!(config.lease.is_some() && config.webui.is_some());

    let written = describe();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
    assert!(docs.contains(&written), "{path} is not up to date; it has to hold this table:\n{written}");
}

#[test]
fn every_mistake_is_listed_with_its_place() {
    let text = "\
owner: -icarus
waldur:
  api_url: waldur.example.org
  token: sk-marker
  zone: Europe/Atlantis
  tiemout: 30s
gateway:
  url: https://user:sk-marker@litellm.example.org
  public_url: https://llm.example.org/v1
  master_key: sk-marker
  manage_models: yes
  key_file: sk-marker-0123456789
  drain: 5m
catalogue:
  hold: 60
  hold: 1h
  max_shrink: {share: 1.5, models: 010}
offerings:
  - uuid: 0d9a1e3b-zzzz-4a2b-9f11-000000000000
    billing: per-model
    token_unit: 1m
    limits: {max_budget: {default: 20, max: 10}, tpm_limit: {default: 0}, rpm_limit: {max: 1.5}}
    approval: {create: automatic}
    always_include: [a, a, '']
  - uuid: 5f1d0000000000000000000000000001
    plans: standard
    on_downscale: {}
    delivery: [hide]
secrets: {store: kubernetes, chat_namespace: Open_WebUI, path: /x}
intervals: {orders: 0s, usage: ten}
terminate: {drain: 30s}
concurrency: {orders: 0}
backoff: {initial: 1h}
http: {listen: ':9090'}
colour: red
";
    assert_eq!(
        refused(text, &[]),
        [
            "agent.yml:1:8: owner: has to be 1 to 63 of letters, digits, -, _ and ., with a letter or digit at both ends, since it becomes a label",
            "agent.yml:3:3: waldur.token_file: is missing; name a file that holds the secret, or set LLM_ACCESS__WALDUR__TOKEN",
            "agent.yml:3:12: waldur.api_url: is not a URL: relative URL without a base; write it with http:// or https://",
            "agent.yml:4:3: waldur.token: a secret does not belong in this file; put it into a file of its own, name that in waldur.token_file, or set LLM_ACCESS__WALDUR__TOKEN",
            "agent.yml:5:9: waldur.zone: is not a known time zone; write an IANA name, as UTC or Europe/Athens",
            "agent.yml:6:3: waldur.tiemout: no such field; did you mean timeout?",
            "agent.yml:8:8: gateway.url: holds a user name or password; take them out of the URL and give credentials by file",
            "agent.yml:9:15: gateway.public_url: ends in /v1, which the agent adds; write it without",
            "agent.yml:10:3: gateway.master_key: a secret does not belong in this file; put it into a file of its own, name that in gateway.key_file, or set LLM_ACCESS__GATEWAY__KEY",
            "agent.yml:11:18: gateway.manage_models: `yes` is neither true nor false",
            "agent.yml:12:13: gateway.key_file: has to be the path of a file and looks like something else; write a path with a slash, as /run/secrets/name or ./name",
            "agent.yml:13:3: gateway.drain: no such field here; did you mean terminate.drain?",
            "agent.yml:15:3: catalogue.file: is missing; set it in the file or as LLM_ACCESS__CATALOGUE__FILE",
            "agent.yml:15:9: catalogue.hold: `60` is a duration without a unit; write 500ms, 15s, 10m, 1h or 2d",
            "agent.yml:16:3: catalogue.hold: is written twice; the first is on line 15; keep one",
            "agent.yml:17:23: catalogue.max_shrink.share: is more than 1, the whole catalogue; write 0.25 for a quarter",
            "agent.yml:17:36: catalogue.max_shrink.models: `010` has a leading zero, which some readers take for octal; write it without",
            "agent.yml:19:11: offerings[0].uuid: is not a UUID: write 32 hexadecimal digits, with or without hyphens",
            "agent.yml:20:14: offerings[0].billing: `per-model` is not one of per_model, spend; did you mean per_model?",
            "agent.yml:21:17: offerings[0].token_unit: `1m` is not one of 1, 1k, 1M; did you mean 1M?",
            "agent.yml:22:36: offerings[0].limits.max_budget.default: is larger than offerings[0].limits.max_budget.max (10)",
            "agent.yml:22:71: offerings[0].limits.tpm_limit.default: is 0, which the gateway does not enforce; write 1 or more, or leave it out",
            "agent.yml:22:92: offerings[0].limits.rpm_limit.max: is not a whole number",
            "agent.yml:23:24: offerings[0].approval.create: `automatic` is not one of auto, manual",
            "agent.yml:24:25: offerings[0].always_include[1]: is in the list twice; keep one",
            "agent.yml:24:28: offerings[0].always_include[2]: is empty; take it out",
            "agent.yml:26:12: offerings[1].plans: has to be a list, and is a single value",
            "agent.yml:27:19: offerings[1].on_downscale: names no limit; write max_budget, tpm_limit or rpm_limit, or the word block",
            "agent.yml:28:15: offerings[1].delivery: has to be a mapping, and is a list",
            "agent.yml:29:10: secrets.key_namespace: is missing; set it in the file or as LLM_ACCESS__SECRETS__KEY_NAMESPACE",
            "agent.yml:29:46: secrets.chat_namespace: is not a Kubernetes name: 1 to 63 of a-z, 0-9 and -, with a letter or digit at both ends",
            "agent.yml:29:64: secrets.path: belongs to store: directory; take it out, or choose that store",
            "agent.yml:30:21: intervals.orders: is 0; write a longer time",
            "agent.yml:30:32: intervals.usage: `ten` is not a duration; write a whole number and a unit: 500ms, 15s, 10m, 1h or 2d",
            "agent.yml:31:20: terminate.drain: 30s is under 90s, and usage that arrives late would not be billed; write 90s or more, or set terminate.allow_short_drain: true",
            "agent.yml:32:23: concurrency.orders: has to be from 1 to 1024",
            "agent.yml:33:20: backoff.initial: is longer than backoff.max (10m); write a shorter one",
            "agent.yml:34:16: http.listen: is not an address and a port; write 0.0.0.0:9090, or [::]:9090",
            "agent.yml:35:1: colour: no such field; there are: owner, waldur, gateway, webui, catalogue, offerings, secrets, intervals, terminate, rotation, usage, concurrency, backoff, http, page, traces, events, lease, orphans, log",
        ]
    );
}

#[test]
fn an_empty_file_says_what_is_missing() {
    for text in ["", "# nothing yet\n", "---\n"] {
        let fields: Vec<String> = refused(text, &[]).iter().map(|line| line.split(": ").nth(1).unwrap().to_owned()).collect();
        assert_eq!(
            fields,
            [
                "waldur.api_url",
                "waldur.token_file",
                "gateway.url",
                "gateway.public_url",
                "gateway.key_file",
                "catalogue.file",
                "offerings",
                "secrets.store"
            ],
            "{text:?}"
        );
    }
    assert!(refused("- a\n", &[])[0].starts_with("agent.yml:1:1: has to be a mapping, and is a list"), "{:?}", refused("- a\n", &[]));
    assert!(refused(&LEAST.replace("  - uuid: 00000000000000000000000000000042\n", "  []\n"), &[])[0].contains("at least one"));
}

#[test]
fn syntax_errors_have_a_place_and_stand_alone() {
    let problems = refused("waldur:\n  token: sk-marker\n gateway: {\n", &[]);
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].starts_with("agent.yml:3:"), "{problems:?}");
    assert!(refused("a: 1\n---\nb: 2\n", &[])[0].starts_with("agent.yml:2:1: a second document"));
    assert!(refused("waldur: *nowhere\n", &[])[0].contains("unknown anchor"));
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let errors = load(Some(Path::new("/nonexistent/agent.yml")), &vars(&[("LLM_ACCESS__WALDUR__TOKN", "x")])).unwrap_err();
    let lines: Vec<String> = errors.to_string().lines().map(str::to_owned).collect();
    assert!(lines[0].starts_with("/nonexistent/agent.yml: cannot be read: "), "{lines:?}");
    assert_eq!(lines[1], "LLM_ACCESS__WALDUR__TOKN: no such setting; did you mean LLM_ACCESS__WALDUR__TOKEN?");

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.yml");
    std::fs::write(&path, b"owner: a\nlog: {level: \xff}\n").unwrap();
    let errors = load(Some(&path), &[]).unwrap_err().to_string();
    assert_eq!(errors, format!("{}:2:14: is not UTF-8 text from here on; save the file as UTF-8", path.display()));

    std::fs::write(&path, format!("\u{feff}{LEAST}")).unwrap();
    assert_eq!(load(Some(&path), &[]).unwrap().config.offerings.len(), 1);
}

#[test]
fn values_of_the_environment_are_kept_byte_for_byte() {
    for value in [
        "0123456789012345678901234567890123456789",
        "123456e7890123456789012345678901",
        "1.10",
        "true",
        "null",
        "~",
        "a,b",
        "[x]",
        "{x:y}",
        "0x1F",
        "Sk-MiXeD:#'\"",
    ] {
        let config = accepted(LEAST, &[("LLM_ACCESS__WALDUR__TOKEN", value)]).config;
        assert_eq!(token(&config), value);
    }
    for (uuid, simple) in [
        ("00000000000000000000000000000042", "00000000000000000000000000000042"),
        ("12345678-9012-3456-7890-123456789012", "12345678901234567890123456789012"),
        ("123456e7890123456789012345678901", "123456e7890123456789012345678901"),
    ] {
        let config = accepted(LEAST, &[("LLM_ACCESS__OFFERINGS__0__UUID", uuid)]).config;
        assert_eq!(config.offerings[0].uuid.simple().to_string(), simple);
        assert_eq!(config.owner, simple);
    }
    let config = accepted(LEAST, &[("LLM_ACCESS__OWNER", "1.10"), ("LLM_ACCESS__OFFERINGS__0__LIMITS__MAX_BUDGET__MAX", "1.10")]).config;
    assert_eq!(config.owner, "1.10");
    assert_eq!(config.offerings[0].limits.max_budget.max, Some(Decimal::new(11, 1)));
}

#[test]
fn the_environment_wins_over_the_file() {
    let config = accepted(
        LEAST,
        &[
            ("LLM_ACCESS__GATEWAY__KEY", "sk-1"),
            ("LLM_ACCESS__GATEWAY__TIMEOUT", "500ms"),
            ("LLM_ACCESS__WEBUI__URL", "https://chat.example.org"),
            ("LLM_ACCESS__INTERVALS__ORDERS", ""),
            ("LLM_ACCESS__SECRETS__PATH", "/tmp/secrets"),
            ("LLM_ACCESS__LOG__FORMAT", "json"),
            ("LLM_ACCESS__OFFERINGS__0__ON_DOWNSCALE__TPM_LIMIT", "10"),
            ("LLM_ACCESS__OFFERINGS__1__UUID", "00000000000000000000000000000043"),
        ],
    )
    .config;
    assert_eq!(config.gateway.key.read().unwrap().expose_secret(), "sk-1");
    assert_eq!(config.gateway.timeout, Duration::from_millis(500));
    assert_eq!(config.webui.unwrap().url.as_str(), "https://chat.example.org/");
    assert_eq!(config.intervals.orders, seconds(15));
    assert_eq!(config.secrets, SecretsConfig::Directory { path: "/tmp/secrets".into() });
    assert_eq!(config.log.format, LogFormat::Json);
    assert_eq!(config.offerings[0].on_downscale, OnDownscale::Reduce(TeamLimits { tpm_limit: Some(10), ..TeamLimits::default() }));
    assert_eq!(config.offerings[1].uuid, Uuid::from_u128(0x43));
}

#[test]
fn the_environment_is_enough() {
    let loaded = load(
        None,
        &vars(&[
            ("LLM_ACCESS__WALDUR__API_URL", "https://waldur.example.org/api"),
            ("LLM_ACCESS__WALDUR__OIDC__TOKEN_URL", "https://id.example.org/token"),
            ("LLM_ACCESS__WALDUR__OIDC__CLIENT_ID", "0042"),
            ("LLM_ACCESS__WALDUR__OIDC__CLIENT_SECRET", "s3"),
            ("LLM_ACCESS__GATEWAY__URL", "http://127.0.0.1:4000"),
            ("LLM_ACCESS__GATEWAY__PUBLIC_URL", "http://localhost:4000/llm"),
            ("LLM_ACCESS__GATEWAY__KEY_FILE", "./key"),
            ("LLM_ACCESS__CATALOGUE__FILE", "inference.yml"),
            ("LLM_ACCESS__OFFERINGS", "00000000000000000000000000000042, 5f1d0000-0000-0000-0000-000000000001"),
            ("LLM_ACCESS__OFFERINGS__1__PLANS", "small,large"),
            ("LLM_ACCESS__SECRETS__STORE", "kubernetes"),
            ("LLM_ACCESS__SECRETS__CHAT_NAMESPACE", "{\"5f1d0000000000000000000000000009\": \"chat-9\"}"),
            ("LLM_ACCESS__SECRETS__KEY_NAMESPACE", "llm-keys"),
            ("LLM_ACCESS_PORT", "tcp://10.0.0.1:80"),
            ("LLM_ACCESS_SERVICE_HOST", "10.0.0.1"),
            ("LLM_ACCESS_AGENT_PORT_9090_TCP", "tcp://10.0.0.1:9090"),
        ]),
    )
    .unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(loaded.warnings, Vec::<String>::new());
    let config = loaded.config;
    assert_eq!(config.waldur.api_url.as_str(), "https://waldur.example.org/api/");
    match &config.waldur.auth {
        WaldurAuth::Oidc { token_url, client_id, client_secret } => {
            assert_eq!(token_url.as_str(), "https://id.example.org/token");
            assert_eq!(client_id, "0042");
            assert_eq!(client_secret.read().unwrap().expose_secret(), "s3");
        }
        WaldurAuth::Token(_) => panic!("a token"),
    }
    assert_eq!(config.gateway.public_openai_url(), "http://localhost:4000/llm/v1");
    assert_eq!(config.offerings.len(), 2);
    assert_eq!(config.offerings[1].plans, ["small", "large"]);
    let SecretsConfig::Kubernetes { chat, key_namespace, .. } = config.secrets else { panic!("not kubernetes") };
    assert_eq!(key_namespace, "llm-keys");
    let project = Uuid::from_u128(0x5f1d_0000_0000_0000_0000_0000_0000_0009);
    assert_eq!(chat, ChatNamespaces::PerProject(BTreeMap::from([(project, "chat-9".to_owned())])));
}

#[test]
fn a_list_of_objects_may_come_from_a_variable() {
    let json = r#"[{"uuid": "00000000000000000000000000000007", "plans": ["0123", "1.10"], "token_unit": 1}]"#;
    let config = accepted(LEAST, &[("LLM_ACCESS__OFFERINGS", json)]).config;
    assert_eq!(config.offerings.len(), 1);
    assert_eq!(config.offerings[0].plans, ["0123", "1.10"]);
    assert_eq!(config.offerings[0].token_unit, TokenUnit::One);

    let json = r#"[{"uuid": "x", "biling": "spend"}]"#;
    assert_eq!(
        refused(LEAST, &[("LLM_ACCESS__OFFERINGS", json)]),
        [
            "LLM_ACCESS__OFFERINGS: offerings[0].biling: no such field; did you mean billing?",
            "LLM_ACCESS__OFFERINGS: offerings[0].uuid: is not a UUID: write 32 hexadecimal digits, with or without hyphens",
        ]
    );
    assert_eq!(refused(LEAST, &[("LLM_ACCESS__OFFERINGS", "[{")]), ["LLM_ACCESS__OFFERINGS: offerings: is not valid JSON"]);
}

#[test]
fn wrong_variables_are_named() {
    assert_eq!(
        refused(
            LEAST,
            &[
                ("LLM_ACCESS__CONCURRENCY__ORDERS", "16 "),
                ("LLM_ACCESS__OFFERINGS__7__BILLING", "spend"),
                ("LLM_ACCESS__WALDUR__TOKN", "sk-marker"),
                ("LLM_ACCESS__WALDUR__TOKEN", "sk-marker\nsk-marker"),
                ("LLM_ACCESS__GATEWAY__KEY", "sk-marker"),
                ("LLM_ACCESS__GATEWAY__KEY_FILE", "/run/key"),
            ]
        ),
        [
            "LLM_ACCESS__WALDUR__TOKN: no such setting; did you mean LLM_ACCESS__WALDUR__TOKEN?",
            "LLM_ACCESS__WALDUR__TOKEN: waldur.token: holds more than one line; it has to hold the secret on one line, with at most one line end after it",
            "LLM_ACCESS__GATEWAY__KEY: gateway.key: is set, and LLM_ACCESS__GATEWAY__KEY_FILE too; unset one",
            "LLM_ACCESS__OFFERINGS__7__BILLING: there is no offering 7: 1 are listed, counted from 0; use index 1 for a new one",
            "LLM_ACCESS__CONCURRENCY__ORDERS: concurrency.orders: `16 ` is not a whole number",
        ]
    );
}

#[test]
fn secrets_are_never_shown() {
    let inline = "
webui: {url: 'https://sk-marker@chat.example.org', api_key: sk-marker}
lease: {namespace: sk-marker_0123456789, password: sk-marker, sk-marker-0123456789012345678901234567}
log: {level: sk-marker, format: sk-marker-0123456789}
http: {listen: sk-marker}
intervals: {orders: sk-marker-0123456789}
";
    let text = LEAST
        .replace("token_file: /run/secrets/waldur-token", "token: sk-marker, zone: sk-marker, api_key: sk-marker")
        .replace("00000000000000000000000000000042", "sk-marker")
        + inline;
    let env = vars(&[
        ("LLM_ACCESS__GATEWAY__KEY", "sk-marker sk-marker"),
        ("LLM_ACCESS__GATEWAY__KEI", "sk-marker"),
        ("LLM_ACCESS__OFFERINGS__0__PLANS", "[sk-marker"),
        ("LLM_ACCESS__CATALOGUE__MAX_SHRINK__SHARE", "sk-marker-0123456789"),
    ]);
    let errors = load_text("agent.yml", &text, &env).unwrap_err();
    assert!(errors.problems.len() >= 12, "{errors}");
    let shown = format!("{errors}\n{errors:?}");
    assert!(!shown.contains("marker"), "{errors}");

    let loaded = accepted(LEAST, &[("LLM_ACCESS__GATEWAY__KEY", "sk-marker"), ("LLM_ACCESS__WALDUR__TOKEN", "sk-marker")]);
    assert!(!format!("{loaded:?}").contains("marker"));
}

#[test]
fn credentials_need_https_off_loopback() {
    let http = LEAST
        .replace("https://litellm.example.org", "http://litellm.llm.svc:4000")
        .replace("https://waldur.example.org", "http://waldur.example.org");
    assert_eq!(
        refused(&http, &[]),
        [
            "agent.yml:1:19: waldur.api_url: would send the credential to waldur.example.org over plain http; write https, or set waldur.allow_insecure_http: true",
            "agent.yml:2:16: gateway.url: would send the credential to litellm.llm.svc over plain http; write https, or set gateway.allow_insecure_http: true",
        ]
    );
    let Loaded { config, warnings } = accepted(&format!("{http}http: {{allow_insecure_http: true}}\n"), &[]);
    assert!(config.waldur.allow_insecure_http && config.gateway.allow_insecure_http);
    assert_eq!(warnings.len(), 2);
    let env = [("LLM_ACCESS__GATEWAY__ALLOW_INSECURE_HTTP", "true")];
    assert_eq!(refused(&http, &env).len(), 1);
    for host in ["127.0.0.1:4000", "localhost:4000", "[::1]:4000", "127.8.8.8"] {
        let text = LEAST.replace("https://litellm.example.org", &format!("'http://{host}'"));
        assert_eq!(accepted(&text, &[]).warnings, Vec::<String>::new(), "{host}");
    }
}

#[test]
fn urls_are_plain() {
    for (url, wrong) in [
        ("chat.example.org", "is not a URL"),
        ("ftp://chat.example.org", "is neither an http nor an https URL"),
        ("https://a@chat.example.org", "holds a user name"),
        ("https://chat.example.org/?key=sk-marker", "holds a query"),
        ("https://chat.example.org/#x", "holds a query or fragment"),
        ("https://", "is not a URL"),
    ] {
        let problem = only(&format!("webui: {{url: '{url}'}}\n"));
        assert!(problem.starts_with("agent.yml:7:14: webui.url: "), "{problem}");
        assert!(problem.contains(wrong) && !problem.contains("marker"), "{problem}");
    }
}

#[test]
fn short_drains_need_a_word_and_warn() {
    assert!(only("terminate: {drain: 89s}\n").contains("is under 90s"));
    assert_eq!(accepted(&format!("{LEAST}terminate: {{drain: 90s}}\n"), &[]).warnings, Vec::<String>::new());
    let Loaded { config, warnings } = accepted(&format!("{LEAST}terminate: {{drain: 0s, settle: 0s, allow_short_drain: true}}\n"), &[]);
    assert_eq!((config.terminate.drain, config.terminate.settle), (Duration::ZERO, Duration::ZERO));
    assert!(warnings[0].starts_with("terminate.drain: 0ms is under 90s"), "{warnings:?}");
}

#[test]
fn offerings_are_distinct_and_share_a_currency() {
    let more = |lines: &str| LEAST.replace("secrets:", &format!("{lines}secrets:"));
    assert_eq!(
        refused(&more("  - uuid: 00000000-0000-0000-0000-000000000042\n    currency: USD\n"), &[]),
        [
            "agent.yml:6:11: offerings[1].uuid: is the same as offerings[0].uuid; list each offering once",
            "agent.yml:7:15: offerings[1].currency: differs from offerings[0].currency (EUR); an environment has one currency",
        ]
    );
}

#[test]
fn a_downscaled_resource_gets_reduced_limits() {
    let with = |value: &str| LEAST.replace("0042\n", &format!("0042\n    on_downscale: {value}\n"));
    let downscale = |value: &str| accepted(&with(value), &[]).config.offerings[0].on_downscale.clone();
    assert_eq!(downscale("block"), OnDownscale::Block);
    assert_eq!(
        downscale("{max_budget: 0.5, rpm_limit: 10}"),
        OnDownscale::Reduce(TeamLimits { max_budget: Some(Decimal::new(5, 1)), tpm_limit: None, rpm_limit: Some(10) })
    );
    for value in ["reduce", "[block]", "{tpm_limit: 0}", "{tpm: 5, tpm_limit: 5}"] {
        assert_eq!(refused(&with(value), &[]).len(), 1, "{value}");
    }
}

#[test]
fn stores_have_their_own_fields() {
    let store = |fields: &str| LEAST.replace("{store: directory, path: /var/lib/llm-access}", &format!("{{{fields}}}"));
    let chat = |fields: &str| match accepted(&store(fields), &[]).config.secrets {
        SecretsConfig::Kubernetes { chat, .. } => chat,
        SecretsConfig::Directory { .. } => panic!("a directory"),
    };
    assert_eq!(chat("store: kubernetes, chat_namespace: open-webui, key_namespace: keys"), ChatNamespaces::One("open-webui".to_owned()));
    assert_eq!(
        chat("store: kubernetes, key_namespace: keys, chat_namespace: {00000000000000000000000000000007: chat-7}"),
        ChatNamespaces::PerProject(BTreeMap::from([(Uuid::from_u128(7), "chat-7".to_owned())]))
    );
    for (fields, count) in [
        ("store: kubernetes, key_namespace: keys, chat_namespace: {x: chat-7}", 2),
        ("store: kubernetes, key_namespace: keys, chat_namespace: {00000000000000000000000000000007: Chat}", 2),
        ("store: kubernetes, chat_namespace: a, key_namespace: b, api_url: 'http://10.0.0.1'", 1),
        ("store: kubernetes, chat_namespace: a, key_namespace: b, api_url: 'http://127.0.0.1:1', context: c", 1),
        ("store: directory", 1),
        ("store: vault", 1),
        ("path: /x", 1),
    ] {
        let problems = refused(&store(fields), &[]);
        assert_eq!(problems.len(), count, "{fields}: {problems:#?}");
    }
}

#[test]
fn anchors_may_be_used() {
    let text = LEAST.replace(
        "  - uuid: 00000000000000000000000000000042\n",
        "  - &one {uuid: 00000000000000000000000000000042, billing: spend, approval: &mode {create: manual}}\n  - {<<: *one, uuid: 00000000000000000000000000000043, approval: *mode}\n",
    );
    let config = accepted(&text, &[]).config;
    let second = &config.offerings[1];
    assert_eq!((second.uuid, second.billing), (Uuid::from_u128(0x43), Billing::Spend));
    assert_eq!(second.approval.create, ApprovalMode::Manual);
}

#[test]
fn sign_in_is_by_token_or_oidc() {
    let both = LEAST.replace(
        "token_file: /run/secrets/waldur-token",
        "token_file: /t, oidc: {token_url: 'https://id.example.org/token', client_id: a, client_secret_file: /s}",
    );
    assert_eq!(refused(&both, &[]), ["agent.yml:1:64: waldur: has a token and oidc; keep one of them"]);
    let partial = LEAST.replace("token_file: /run/secrets/waldur-token", "oidc: {client_secret: sk-marker}");
    let problems = refused(&partial, &[]);
    assert_eq!(problems.len(), 4, "{problems:#?}");
    assert!(problems.iter().any(|line| line.contains("name that in waldur.oidc.client_secret_file")), "{problems:#?}");
}

#[test]
fn risks_are_allowed_with_a_warning() {
    let text = LEAST.replace("0042\n", "0042\n    delivery: {api_key_on_old_servers: report}\n    limits: {max_budget: {default: 0}}\n");
    let warnings = accepted(&text.replace("/api/", "/"), &[]).warnings;
    assert_eq!(warnings.len(), 3, "{warnings:#?}");
    assert!(warnings[0].contains("does not end in /api/"), "{warnings:#?}");
}

#[test]
fn a_log_level_is_a_level_or_a_filter() {
    for level in ["warn", "info,llm_access_agent=debug", "llm_access_agent::orders=trace"] {
        let config = accepted(&format!("{LEAST}log: {{level: '{level}'}}\n"), &[]).config;
        assert_eq!(config.log.level, level);
    }
    for level in ["loud", "a=loud", "''"] {
        assert!(only(&format!("log: {{level: {level}}}\n")).starts_with("agent.yml:7:14: log.level: "), "{level}");
    }
}

#[test]
fn the_page_stays_on_loopback_unless_more_is_allowed() {
    let page = |text: &str| format!("{LEAST}page: {text}\n");
    for listen in ["127.0.0.1:9091", "'[::1]:9091'", "127.1.2.3:1"] {
        let Loaded { config, warnings } = accepted(&page(&format!("{{listen: {listen}}}")), &[]);
        assert!(config.page.is_some() && warnings.is_empty(), "{listen}: {warnings:?}");
    }
    let Loaded { config, warnings } = accepted(&page("{listen: '0.0.0.0:9091', allow_remote: true, hosts: [status.example.org]}"), &[]);
    assert_eq!(config.page.unwrap().hosts, ["status.example.org"]);
    assert!(warnings.len() == 1 && warnings[0].contains("asks for no password"), "{warnings:?}");
    for (text, wrong) in [
        ("{listen: '0.0.0.0:9091'}", "is not on loopback, and the page asks for no password"),
        ("{listen: '[::]:9091'}", "is not on loopback"),
        ("{listen: 'localhost'}", "is not an address and a port; write 127.0.0.1:9091"),
        ("{allow_remote: true}", "page.listen: is missing"),
        ("{listen: 127.0.0.1:9091, hosts: ['https://status.example.org/']}", "which is no host name"),
        ("{listen: 127.0.0.1:9091, host: [a]}", "page.host: "),
    ] {
        let problems = refused(&page(text), &[]);
        assert!(problems.len() == 1 && problems[0].contains(wrong), "{text}: {problems:?}");
    }
}

#[test]
fn events_and_restarts_need_the_cluster_that_holds_the_secrets() {
    let kube = |more: &str, tail: &str| {
        let secrets = format!("{{store: kubernetes, chat_namespace: open-webui, key_namespace: llm-keys{more}}}");
        LEAST.replace("{store: directory, path: /var/lib/llm-access}", &secrets) + tail
    };
    let Loaded { config, .. } = accepted(&kube(", restart: open-webui", "events: {enabled: true}\n"), &[]);
    assert_eq!(config.events, Some(EventsConfig { pod: None }));
    assert_eq!(config.restart, Some(RestartConfig::One("open-webui".into())));
    let project = Uuid::from_u128(7);
    let Loaded { config, .. } = accepted(
        &kube(&format!(", restart: {{{project}: chat-a}}"), "events: {enabled: true, pod_name: agent-0, pod_namespace: llm-access}\n"),
        &[("LLM_ACCESS__EVENTS__POD_UID", "5f1d8a53-7c1e-4a61-9f0e-2b9d5a3c7e10")],
    );
    assert_eq!(config.events.as_ref().unwrap().pod.as_ref().unwrap().name, "agent-0");
    let restart = config.restart.unwrap();
    assert_eq!((restart.of(Some(project)), restart.of(Some(Uuid::from_u128(8))), restart.of(None)), (Some("chat-a"), None, None));
    // Named by the chart, whether or not events are on.
    assert_eq!(accepted(&kube("", "events: {pod_name: a, pod_namespace: b, pod_uid: c}\n"), &[]).config.events, None);
    for (text, wrong) in [
        (kube("", "events: {enabled: true, pod_name: agent-0}\n"), "needs events.pod_namespace and events.pod_uid beside it"),
        (kube(", restart: Open_WebUI", ""), "secrets.restart: "),
        (kube(", restart: {}", ""), "names no project; write the name of a Deployment"),
        (format!("{LEAST}events: {{enabled: true}}\n"), "needs secrets.store: kubernetes"),
    ] {
        let problems = refused(&text, &[]);
        assert!(problems.len() == 1 && problems[0].contains(wrong), "{text}: {problems:?}");
    }
}
