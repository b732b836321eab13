//! Usage: what Waldur is told equals the gateway's ledger.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use llm_access_agent::agent::Agent;
use llm_access_agent::usage::pass::{Pass, PassReport};
use llm_access_agent::usage::report::{How, Outcome};
use llm_access_fixtures::faults::{Fault, Peer, Rule};
use llm_access_fixtures::litellm::Usage;
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::{PROFILES, World};
use rust_decimal::Decimal;
use uuid::Uuid;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn dec(text: &str) -> Decimal {
    text.parse().unwrap()
}

fn id(resource: Uuid) -> String {
    resource.simple().to_string()
}

/// A resource without keys of its own, for tests that put figures on the ledger by hand.
fn sold(world: &World, name: &str) -> Uuid {
    world.waldur.add_resource(world.offering, &world.project, name, &["kestrel-8b"], &[("max_budget", "50")])
}

/// Two components per model.
fn per_model(world: &World) {
    for model in ["kestrel-8b", "heron-70b", "qwen2_5-0_5b", "qwen3-embedding-0-6b"] {
        world.waldur.add_usage_component(world.offering, &format!("{model}:input"));
        world.waldur.add_usage_component(world.offering, &format!("{model}:output"));
    }
}

fn used(world: &World, resource: Uuid, model: &str, when: &str, prompt: u64, completion: u64, spend: &str) {
    let usage = Usage { prompt_tokens: prompt, completion_tokens: completion, cached_tokens: 0, spend: dec(spend) };
    world.gateway.add_usage(Some(&id(resource)), &format!("hash-{}", id(resource)), model, at(when), usage);
}

fn held(world: &World, resource: Uuid, month: &str) -> BTreeMap<String, String> {
    world.waldur.usages(resource, month).into_iter().map(|(kind, value)| (kind, value.to_string())).collect()
}

fn figure(world: &World, resource: Uuid, month: &str, kind: &str) -> String {
    held(world, resource, month).get(kind).cloned().unwrap_or_else(|| "none".into())
}

/// The usage calls to Waldur that change something.
fn sent(world: &World) -> Vec<String> {
    world.writes(Some(Peer::Waldur)).into_iter().filter(|call| call.contains("set_usage")).collect()
}

async fn pass(agent: &Agent) -> PassReport {
    agent.usage_beat().await.unwrap()
}

fn holds(agent: &Agent, name: &str) -> String {
    let found: Vec<String> = agent
        .conditions
        .all()
        .into_iter()
        .filter(|(n, ..)| *n == name)
        .map(|(_, subject, condition)| format!("{subject} {}", condition.message))
        .collect();
    found.join("; ")
}

#[tokio::test]
async fn every_call_is_on_the_bill_once_in_every_generation() {
    for profile in PROFILES {
        let world = World::new(profile).await;
        per_model(&world);
        let agent = world.agent().await;
        let a = world.sold(&agent, "aurora", &["kestrel-8b", "qwen2.5-0.5b"]).await;
        let b = world.sold(&agent, "borealis", &["heron-70b"]).await;
        let idle = world.sold(&agent, "idle", &["heron-70b"]).await;
        for slot in ["project", "chat"] {
            world.gateway.chat(&world.key(a, slot), "kestrel-8b", "P=1234 C=567").unwrap();
        }
        world.gateway.chat(&world.key(a, "project"), "qwen2.5-0.5b", "P=1000 C=1 CACHED=900").unwrap();
        world.gateway.embed(&world.key(a, "chat"), "qwen3-embedding-0-6b", "P=5000").unwrap();
        world.gateway.chat(&world.key(b, "project"), "heron-70b", "P=999 C=1").unwrap();
        world.gateway.chat(&world.key(b, "project"), "kestrel-8b", "P=9 C=9").unwrap_err();
        world.advance(Duration::from_secs(40));
        world.faults.reset_calls();

        let report = pass(&agent).await;
        assert_eq!((report.sent(), report.resources), (2, 3), "{:?}", report.lines);
        assert_eq!(sent(&world).len(), 2, "one call per resource and month");
        let expected = [
            ("input_tokens", "8.47"),
            ("kestrel-8b:input", "2.47"),
            ("kestrel-8b:output", "1.13"),
            ("output_tokens", "1.14"),
            ("qwen2_5-0_5b:input", "1.00"),
            ("qwen3-embedding-0-6b:input", "5.00"),
        ];
        let got = held(&world, a, "2026-11");
        for (kind, value) in expected {
            assert_eq!(got.get(kind).map(String::as_str), Some(value), "{profile:?} {kind}: {got:?}");
        }
        assert_eq!(figure(&world, b, "2026-11", "heron-70b:input"), "1.00");
        assert!(held(&world, idle, "2026-11").is_empty());

        // Nothing new: nothing is written, and Waldur is not even asked.
        world.faults.reset_calls();
        for _ in 0..3 {
            world.advance(Duration::from_secs(600));
            pass(&agent).await;
        }
        assert_eq!(sent(&world), Vec::<String>::new());
        assert!(!world.faults.calls().iter().any(|call| call.path.contains("component-usages")));
        // After a while it is, and still nothing is written.
        world.advance(Duration::from_secs(3600));
        pass(&agent).await;
        assert!(world.faults.calls().iter().any(|call| call.path.contains("component-usages")));
        // A new process knows nothing, reads, and writes nothing.
        pass(&world.agent().await).await;
        assert_eq!(sent(&world), Vec::<String>::new());

        world.gateway.chat(&world.key(b, "project"), "heron-70b", "P=1 C=0").unwrap();
        world.advance(Duration::from_secs(40));
        pass(&agent).await;
        // 1000 tokens are what 999 were rounded to; the spend did change in the fourth decimal only.
        assert_eq!(figure(&world, b, "2026-11", "heron-70b:input"), "1.00");
        world.check();
    }
}

#[tokio::test]
async fn late_2026_servers_get_usage_by_key_and_by_day() {
    let world = World::new(Profile::Late2026).await;
    per_model(&world);
    world.waldur.set_component_field(world.offering, "kestrel-8b:input", "spending_limit_periods", serde_json::json!(["day"]));
    let agent = world.agent().await;
    let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
    for (slot, tokens) in [("project", 2000), ("chat", 3000)] {
        world.gateway.chat(&world.key(resource, slot), "kestrel-8b", &format!("P={tokens} C=0")).unwrap();
    }
    world.set_time("2026-11-12T09:00:00Z");
    world.gateway.chat(&world.key(resource, "project"), "kestrel-8b", "P=500 C=0").unwrap();
    world.advance(Duration::from_secs(40));
    pass(&agent).await;
    let key = world.waldur.api_keys(resource).remove(0);
    assert_eq!(
        world.waldur.key_usages(key.uuid, "2026-11")["kestrel-8b:input"],
        dec("2.50"),
        "the chat key's tokens are not the project key's"
    );
    assert_eq!(figure(&world, resource, "2026-11", "kestrel-8b:input"), "5.50");
    for (period, part) in [("2026-11-10", "5.00"), ("2026-11-12", "0.50"), ("2026-11", "5.50")] {
        assert_eq!(world.waldur.daily_usage(resource, "kestrel-8b:input", period), dec(part), "{period}");
    }
    assert_eq!(world.waldur.daily_usage(resource, "spend", "2026-11"), Decimal::ZERO);
    world.faults.reset_calls();
    pass(&agent).await;
    assert_eq!(world.writes(None), Vec::<String>::new());
    // A process that knows nothing tells Waldur the keys' usage once more, and nothing else; the month that ended too.
    for n in 0..6 {
        sold(&world, &format!("idle-{n}"));
    }
    world.set_time("2026-12-02T09:00:00Z");
    world.gateway.chat(&world.key(resource, "project"), "kestrel-8b", "P=9000 C=0").unwrap();
    world.advance(Duration::from_secs(40));
    let fresh = world.agent().await;
    for _ in 0..2 {
        pass(&fresh).await;
    }
    assert_eq!(
        (
            world.waldur.key_usages(key.uuid, "2026-11")["kestrel-8b:input"],
            world.waldur.key_usages(key.uuid, "2026-12")["kestrel-8b:input"]
        ),
        (dec("2.50"), dec("9.00"))
    );
    let writes = world.writes(Some(Peer::Waldur));
    assert_eq!((sent(&world).len(), writes.iter().filter(|call| call.contains("report_usage")).count()), (1, 2), "{writes:?}");
    world
        .waldur
        .resources()
        .iter()
        .filter(|other| other.uuid != resource)
        .for_each(|other| world.waldur.put_resource_state(other.uuid, "Terminated"));
    world.check();
}

#[tokio::test]
async fn more_keys_than_the_aggregated_answer_lists_lose_nothing() {
    for page in [1, 10, usize::MAX] {
        let world = World::new(Profile::Y2024).await;
        world.gateway.set_ledger_page(page);
        let agent = world.agent().await;
        let ours: Vec<Uuid> = (0..3).map(|n| sold(&world, &format!("llm-{n}"))).collect();
        for resource in &ours {
            used(&world, *resource, "kestrel-8b", "2026-11-09T10:00:00Z", 1000, 0, "10.00");
        }
        let usage = |spend: &str| Usage { prompt_tokens: 1000, completion_tokens: 0, cached_tokens: 0, spend: dec(spend) };
        for n in 0..150 {
            world.gateway.add_usage(
                Some(&format!("foreign-{n}")),
                &format!("key-{n}"),
                "kestrel-8b",
                at("2026-11-09T10:00:00Z"),
                usage("10.00"),
            );
        }
        world.gateway.add_usage(Some("litellm-dashboard"), "ui", "kestrel-8b", at("2026-11-09T10:00:00Z"), usage("2.00"));
        world.gateway.add_usage(None, "lost", "kestrel-8b", at("2026-11-09T10:00:00Z"), usage("5.00"));
        let report = pass(&agent).await;
        assert_eq!(report.withheld, []);
        for resource in &ours {
            assert_eq!(figure(&world, *resource, "2026-11", "spend"), "10.00");
        }
        assert_eq!(report.foreign, 151);
        assert!(holds(&agent, "usage-unattributed").contains("1000 + 0 tokens, 5 spend"), "{}", holds(&agent, "usage-unattributed"));
    }
}

#[tokio::test]
async fn what_is_remembered_as_sent_was_seen_in_waldur() {
    for after_effect in [false, true] {
        for restart in [false, true] {
            let world = World::new(Profile::Y2024).await;
            world.set_time("2026-11-20T23:40:00Z");
            let mut agent = world.agent().await;
            let resource = sold(&world, "aurora");
            used(&world, resource, "kestrel-8b", "2026-11-20T10:00:00Z", 0, 0, "120.00");
            pass(&agent).await;
            assert_eq!(figure(&world, resource, "2026-11", "spend"), "120.00");
            used(&world, resource, "kestrel-8b", "2026-11-20T11:00:00Z", 0, 0, "11.75");
            let fault = Fault::Status { status: 502, headers: Vec::new(), body: String::new(), after_effect };
            world.faults.add(Rule::new(fault).peer(Peer::Waldur).path("set_usage").times(2));
            for _ in 0..2 {
                let report = pass(&agent).await;
                assert!(after_effect || report.failures().count() == 1);
                if restart {
                    agent = world.agent().await;
                }
                world.advance(Duration::from_secs(300));
            }
            pass(&agent).await;
            assert_eq!(figure(&world, resource, "2026-11", "spend"), "131.75", "after_effect {after_effect}, restart {restart}");
            world.faults.reset_calls();
            pass(&agent).await;
            assert_eq!(sent(&world), Vec::<String>::new());
        }
    }
}

#[tokio::test]
async fn a_month_of_small_days_adds_up() {
    let world = World::new(Profile::Y2024).await;
    let agent = world.agent().await;
    let resource = sold(&world, "aurora");
    for day in 1..=30 {
        world.set_time(&format!("2026-11-{day:02}T20:00:00Z"));
        used(&world, resource, "kestrel-8b", &format!("2026-11-{day:02}T10:00:00Z"), 0, 0, "0.3349");
        pass(&agent).await;
    }
    assert_eq!(figure(&world, resource, "2026-11", "spend"), "10.05");
    let world = World::new(Profile::Y2024).await;
    let agent = world.agent().await;
    let resource = sold(&world, "borealis");
    for (tokens, expected) in [(999, "1.00"), (1, "1.00"), (500, "1.50")] {
        used(&world, resource, "kestrel-8b", "2026-11-10T08:00:00Z", tokens, 0, "0.017707200000000003");
        pass(&agent).await;
        assert_eq!(figure(&world, resource, "2026-11", "input_tokens"), expected);
    }
    assert_eq!(figure(&world, resource, "2026-11", "spend"), "0.05");
    world.faults.reset_calls();
    used(&world, resource, "kestrel-8b", "2026-11-10T08:00:00Z", 0, 0, "-0.0000000000000000002");
    pass(&agent).await;
    assert_eq!(sent(&world), Vec::<String>::new());
}

#[tokio::test]
async fn a_figure_never_falls_by_itself() {
    let world = World::new(Profile::Late2026).await;
    let agent = world.agent().await;
    let resource = sold(&world, "aurora");
    used(&world, resource, "kestrel-8b", "2026-11-10T08:00:00Z", 5000, 2000, "3.00");
    pass(&agent).await;
    // The spend table was purged: the gateway shows less than before. Elsewhere somebody uses something.
    let purged = sold(&world, "borealis");
    let other = Agent::new(world.config(""), world.clock.clone()).await.unwrap();
    let gateway = World::new(Profile::Late2026).await;
    world.ends_in_trouble("its own ledger lost what was billed");
    let moved = Agent::new(
        world.parse(&world.config_text("").replace(world.gateway.url().as_str(), gateway.gateway.url().as_str()).replace(
            &format!("{}/gateway-key", world.path("").display().to_string().trim_end_matches('/')),
            gateway.path("gateway-key").to_str().unwrap(),
        )),
        world.clock.clone(),
    )
    .await
    .unwrap();
    let usage = Usage { prompt_tokens: 6000, completion_tokens: 1000, cached_tokens: 0, spend: dec("1.00") };
    gateway.gateway.add_usage(Some(&id(resource)), "k", "kestrel-8b", at("2026-11-10T08:00:00Z"), usage);
    world.faults.reset_calls();
    pass(&moved).await;
    assert_eq!(
        held(&world, resource, "2026-11"),
        BTreeMap::from([("input_tokens", "6.00"), ("output_tokens", "2.00"), ("spend", "3.00")].map(|(k, v)| (k.to_owned(), v.to_owned()))),
        "what grew is reported, what fell is kept"
    );
    let said = holds(&moved, "usage-lower");
    assert!(
        said.contains("output_tokens: Waldur holds 2.00, the ledger shows 1.00")
            && said.contains("spend: Waldur holds 3.00, the ledger shows 1.00"),
        "{said}"
    );
    // By the operator's word it falls.
    let how = How { allow_decrease: true, ..How::default() };
    moved.usage_pass(&Pass { how, ..Pass::default() }).await.unwrap();
    assert_eq!(figure(&world, resource, "2026-11", "spend"), "1.00");
    // And rises again where the ledger does.
    pass(&other).await;
    assert_eq!(figure(&world, resource, "2026-11", "spend"), "3.00");
    assert!(held(&world, purged, "2026-11").is_empty());
}

#[tokio::test]
async fn one_component_that_waldur_refuses_is_named_and_the_rest_is_reported() {
    let named = r#"{"non_field_errors":["These components are invalid: heron-70b:input, kestrel-8b:output."]}"#;
    // The first of the batch, which is in alphabetical order.
    let placed = r#"{"usages":[{"amount":["Ensure that there are no more than 20 digits in total."]}]}"#;
    let silent = r#"{"non_field_errors":["Something is wrong."]}"#;
    for answer in [named, placed, silent] {
        let world = World::new(Profile::Y2024).await;
        per_model(&world);
        let agent = world.agent().await;
        let resource = sold(&world, "aurora");
        used(&world, resource, "heron-70b", "2026-11-10T08:00:00Z", 5000, 700, "3.00");
        used(&world, resource, "kestrel-8b", "2026-11-10T08:00:00Z", 4000, 0, "3.00");
        world.faults.add(Rule::new(Fault::status(400, answer)).peer(Peer::Waldur).path("set_usage").body("heron-70b:input"));
        let report = pass(&agent).await;
        assert_eq!(report.failures().count(), 0, "{answer}: {:?}", report.lines);
        let got = held(&world, resource, "2026-11");
        assert_eq!(got.get("kestrel-8b:input").map(String::as_str), Some("4.00"), "{answer}: {got:?}");
        assert_eq!(got.get("spend").map(String::as_str), Some("6.00"));
        assert!(!got.contains_key("heron-70b:input"));
        assert!(holds(&agent, "usage-component-refused").contains("heron-70b:input"));
        // It is not tried again with every pass, and the rest goes on.
        world.faults.reset_calls();
        pass(&agent).await;
        assert_eq!(sent(&world), Vec::<String>::new(), "{answer}");
        used(&world, resource, "kestrel-8b", "2026-11-10T08:00:00Z", 1000, 0, "0");
        pass(&agent).await;
        assert_eq!(sent(&world).len(), 1, "{answer}");
        assert_eq!(figure(&world, resource, "2026-11", "kestrel-8b:input"), "5.00");
        // An hour later it is, and by then Waldur takes it.
        world.faults.clear();
        world.advance(Duration::from_secs(3700));
        pass(&agent).await;
        assert_eq!(figure(&world, resource, "2026-11", "heron-70b:input"), "5.00");
    }
}

#[tokio::test]
async fn a_right_that_usage_lacks_is_named_and_is_no_fault_of_the_credential() {
    for profile in PROFILES {
        let world = World::new(profile).await;
        let agent = world.agent().await;
        let resource = sold(&world, "aurora");
        used(&world, resource, "kestrel-8b", "2026-11-10T08:00:00Z", 4000, 0, "3.00");
        let denied = r#"{"detail":"You do not have permission to perform this action."}"#;
        world.faults.add(Rule::new(Fault::status(403, denied)).peer(Peer::Waldur).path("set_usage"));
        pass(&agent).await;
        assert!(holds(&agent, "usage-refused").contains("set_usage"), "{profile:?}: {:?}", agent.conditions.all());
        assert!(!agent.conditions.holds("waldur-credential"), "{profile:?}: {:?}", agent.conditions.all());
        assert!(held(&world, resource, "2026-11").is_empty());
        world.faults.clear();
        pass(&agent).await;
        assert_eq!(figure(&world, resource, "2026-11", "spend"), "3.00", "{profile:?}");
        assert!(!agent.conditions.holds("usage-refused"));
    }
}

#[tokio::test]
async fn an_answer_that_is_no_ledger_sends_nothing() {
    let json =
        |body: &str| Fault::Replace { status: 200, headers: vec![("content-type".into(), "application/json".into())], body: body.into() };
    let first_page_only = r#"{"results":[],"metadata":{"page":1,"total_pages":3,"has_more":false}}"#;
    let never_ends = r#"{"results":[],"metadata":{"page":1,"total_pages":1,"has_more":true}}"#;
    let nothing = r#"{"results":[],"metadata":{"page":1,"total_pages":0,"has_more":false}}"#;
    let answers = [
        json("[]"),
        json("{}"),
        json("null"),
        json(r#"{"error":{"message":"no","type":"x","code":"500"}}"#),
        json(first_page_only),
        json(never_ends),
        json(nothing),
        Fault::Replace { status: 200, headers: vec![("content-type".into(), "text/html".into())], body: "<html>login</html>".into() },
        Fault::status(503, ""),
        Fault::Truncate,
        Fault::Refuse,
    ];
    for answer in answers {
        for path in ["/team/daily/activity?", "/team/daily/activity/aggregated?"] {
            let world = World::new(Profile::Late2026).await;
            let agent = world.patient().await;
            let resource = sold(&world, "aurora");
            used(&world, resource, "kestrel-8b", "2026-11-09T08:00:00Z", 5000, 2000, "3.00");
            pass(&agent).await;
            used(&world, resource, "kestrel-8b", "2026-11-09T08:00:00Z", 5000, 2000, "3.00");
            world.faults.reset_calls();
            world.faults.add(Rule::new(answer.clone()).peer(Peer::LiteLlm).path(path));
            for _ in 0..2 {
                drop(agent.usage_beat().await);
            }
            assert_eq!(sent(&world), Vec::<String>::new(), "{answer:?} at {path}");
            assert_eq!(figure(&world, resource, "2026-11", "spend"), "3.00");
            assert!(
                agent.conditions.holds("usage-unread") || agent.conditions.holds("usage-withheld"),
                "{answer:?} at {path}: {:?}",
                agent.conditions.all()
            );
            world.faults.clear();
            pass(&agent).await;
            assert_eq!(figure(&world, resource, "2026-11", "spend"), "6.00");
            assert!(!agent.conditions.holds("usage-unread") && !agent.conditions.holds("usage-withheld"));
        }
    }
}

#[tokio::test]
async fn a_part_of_the_ledger_that_says_it_is_all_sends_nothing() {
    let world = World::new(Profile::Late2026).await;
    let agent = world.patient().await;
    let resource = sold(&world, "aurora");
    let team = id(resource);
    used(&world, resource, "kestrel-8b", "2026-11-09T08:00:00Z", 5000, 0, "3.00");
    let usage = Usage { prompt_tokens: 4000, completion_tokens: 0, cached_tokens: 0, spend: dec("2.00") };
    world.gateway.add_usage(Some(&team), "another-key", "kestrel-8b", at("2026-11-09T09:00:00Z"), usage);
    // The row of one of the two keys, as a page of its own would have it.
    let metrics = serde_json::json!({
        "prompt_tokens": 4000, "completion_tokens": 0, "total_tokens": 4000, "successful_requests": 1, "failed_requests": 0,
        "api_requests": 1, "spend": 2.0,
    });
    let day = |key: &str| {
        let keys = serde_json::json!({key: {"metrics": metrics, "metadata": {"key_alias": null, "team_id": team, "key_exists": true}}});
        let part = serde_json::json!({"metrics": metrics, "api_key_breakdown": keys});
        serde_json::json!({"date": "2026-11-09", "metrics": metrics, "breakdown": {"model_groups": {"kestrel-8b": part}, "entities": {&team: part}}})
    };
    let page = |page: u64, pages: u64, more: bool| {
        let body = serde_json::json!({"results": [day("another-key")], "metadata": {"page": page, "total_pages": pages, "has_more": more}});
        Fault::Replace { status: 200, headers: vec![("content-type".into(), "application/json".into())], body: body.to_string() }
    };
    // Said to be all; one of two and no more; the first one over and over.
    for (answer, name) in [(page(1, 1, false), "usage-withheld"), (page(1, 2, false), "usage-unread"), (page(1, 9, true), "usage-unread")] {
        world.faults.add(Rule::new(answer.clone()).peer(Peer::LiteLlm).path("/team/daily/activity?"));
        for _ in 0..2 {
            drop(agent.usage_beat().await);
        }
        assert!(sent(&world).is_empty() && held(&world, resource, "2026-11").is_empty(), "{answer:?}");
        assert!(agent.conditions.holds(name), "{answer:?}: {:?}", agent.conditions.all());
        world.faults.clear();
    }
    pass(&agent).await;
    assert_eq!(held(&world, resource, "2026-11"), parts(&[("input_tokens", "9.00"), ("spend", "5.00")]));
}

/// Reads of the log of calls.
fn log_reads(world: &World) -> usize {
    world.faults.calls().iter().filter(|call| call.path.starts_with("/spend/logs/v2")).count()
}

/// Two public names on one upstream model, each with an input component.
fn shared_upstream(world: &World) {
    world.ends_in_trouble("the checker's ledger does not tell models on one upstream apart, as the log does");
    for model in ["pub-a", "pub-b"] {
        world.gateway.add_deployment(&format!("dep-{model}"), model, "openai/shared-up", Some("0.000001"), Some("0.000001"));
        world.waldur.add_usage_component(world.offering, &format!("{model}:input"));
    }
}

fn parts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(kind, value)| ((*kind).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test]
async fn models_on_one_upstream_are_told_apart_by_their_calls() {
    let world = World::new(Profile::Late2026).await;
    shared_upstream(&world);
    per_model(&world);
    let agent = world.agent().await;
    let resource = sold(&world, "aurora");
    // The daily rows have all of it under pub-a.
    used(&world, resource, "pub-a", "2026-11-08T08:00:00Z", 500, 0, "0.005");
    used(&world, resource, "pub-a", "2026-11-09T08:00:00Z", 1000, 0, "0.01");
    used(&world, resource, "pub-b", "2026-11-09T08:00:00Z", 2000, 0, "0.02");
    used(&world, resource, "kestrel-8b", "2026-11-09T08:00:00Z", 4000, 0, "0.04");
    assert_eq!(world.gateway.daily_sum(&id(resource), "pub-b", "2026-11").prompt_tokens, 0);
    pass(&agent).await;
    let all = [("input_tokens", "7.50"), ("kestrel-8b:input", "4.00"), ("pub-a:input", "1.50"), ("pub-b:input", "2.00"), ("spend", "0.08")];
    assert_eq!(held(&world, resource, "2026-11"), parts(&all));
    assert!(!agent.conditions.holds("usage-shared-upstream"));
    // What is over is read once; a day that grew is read again, and no other.
    world.faults.reset_calls();
    pass(&agent).await;
    assert_eq!(log_reads(&world), 0);
    used(&world, resource, "pub-b", "2026-11-10T08:00:00Z", 300, 0, "0");
    pass(&agent).await;
    assert_eq!(figure(&world, resource, "2026-11", "pub-b:input"), "2.30");
    let days: Vec<String> =
        world.faults.calls().into_iter().filter(|call| call.path.starts_with("/spend/logs/v2")).map(|call| call.path).collect();
    assert!(days.len() == 2 && days.iter().all(|path| path.contains("start_date=2026-11-10")), "one for each of the two models: {days:?}");
    // Its final usage is told apart as well.
    used(&world, resource, "pub-b", "2026-11-10T08:30:00Z", 1700, 0, "0");
    world.waldur.terminate(resource);
    world.run_to_rest(&agent, 20).await;
    assert_eq!(figure(&world, resource, "2026-11", "pub-b:input"), "4.00");
    assert!(!agent.conditions.holds("unbilled"));
}

/// The end of a resource whose calls the log lacks: after forty minutes it still waits for them, and in the end it does without.
/// What it leaves unbilled.
async fn end_without_the_log(world: &World, agent: &Agent, resource: Uuid) -> String {
    let order = world.waldur.terminate(resource);
    for _ in 0..20 {
        world.beat(agent).await;
        world.advance(Duration::from_secs(120));
    }
    assert_eq!(world.waldur.order_state(order), "executing");
    world.run_to_rest(agent, 90).await;
    assert_eq!(world.waldur.order_state(order), "done");
    holds(agent, "unbilled")
}

#[tokio::test]
async fn models_on_one_upstream_are_billed_together_where_the_log_lacks_calls_and_never_too_much() {
    let world = World::new(Profile::Y2024).await;
    shared_upstream(&world);
    let agent = world.agent().await;
    let (whole, cut) = (sold(&world, "whole"), sold(&world, "cut"));
    for resource in [whole, cut] {
        used(&world, resource, "pub-a", "2026-11-08T08:00:00Z", 500, 0, "0.005");
        used(&world, resource, "pub-b", "2026-11-08T09:00:00Z", 500, 0, "0.005");
        used(&world, resource, "pub-a", "2026-11-09T08:00:00Z", 1000, 0, "0.01");
        used(&world, resource, "pub-b", "2026-11-09T08:00:00Z", 2000, 0, "0.02");
    }
    assert!(world.gateway.lose_call(&id(cut), "pub-b", false));
    pass(&agent).await;
    assert_eq!(
        held(&world, whole, "2026-11"),
        parts(&[("input_tokens", "4.00"), ("pub-a:input", "1.50"), ("pub-b:input", "2.50"), ("spend", "0.04")])
    );
    assert_eq!(
        held(&world, cut, "2026-11"),
        parts(&[("input_tokens", "4.00"), ("pub-a:input", "0.50"), ("pub-b:input", "0.50"), ("spend", "0.04")])
    );
    let said = holds(&agent, "usage-shared-upstream");
    let team = id(cut);
    for word in ["2026-11-09", "pub-a, pub-b", &team, "the ledger has 2 calls of one key with 3000 + 0 tokens", "the log 1 with 1000 + 0"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    assert!(!said.contains(&id(whole)) && !said.contains("2026-11-08"), "{said}");
    // The audit has evidence for its reason, and for nothing else.
    let audit = agent.audit("2026-11".parse().unwrap(), None).await.unwrap();
    assert_eq!((audit.unexplained(), audit.merged.len()), (0, 1), "{:?}", audit.rows);
    let reasons = |resource: Uuid, kind: &str| {
        let row = audit.rows.iter().find(|row| row.resource == resource && row.kind == kind).unwrap();
        row.reasons.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(reasons(cut, "pub-a:input")[0].contains("shared upstream: the daily rows have 3000 under this name"), "{:?}", audit.rows);
    assert_eq!(reasons(whole, "pub-a:input"), Vec::<String>::new());
    // Nothing of it is read again before an hour is over, whatever the log lacks.
    world.faults.reset_calls();
    pass(&agent).await;
    assert_eq!((log_reads(&world), sent(&world).len()), (0, 0));
    // An end does not wait for ever, and what it leaves unbilled is noted.
    let unbilled = end_without_the_log(&world, &agent, cut).await;
    assert!(unbilled.contains("does not tell them apart"), "{unbilled}");
    // With a log that was never kept.
    let world = World::new(Profile::Y2024).await;
    shared_upstream(&world);
    world.gateway.keep_log(false);
    let agent = world.agent().await;
    let resource = sold(&world, "aurora");
    used(&world, resource, "pub-a", "2026-11-09T08:00:00Z", 1000, 0, "0.01");
    used(&world, resource, "pub-b", "2026-11-09T08:00:00Z", 2000, 0, "0.02");
    pass(&agent).await;
    assert_eq!(held(&world, resource, "2026-11"), parts(&[("input_tokens", "3.00"), ("spend", "0.03")]));
}

#[tokio::test]
async fn a_model_that_shared_an_upstream_and_has_gone_is_still_told_apart() {
    for (restart, repointed) in [(false, false), (true, false), (false, true)] {
        let world = World::new(Profile::Late2026).await;
        shared_upstream(&world);
        let mut agent = world.agent().await;
        let (resource, cut) = (sold(&world, "aurora"), sold(&world, "cut"));
        // Before anything is used, so that only the look at the gateway tells later.
        used(&world, resource, "kestrel-8b", "2026-11-09T08:00:00Z", 1, 0, "0.001");
        pass(&agent).await;
        for resource in [resource, cut] {
            used(&world, resource, "pub-a", "2026-11-10T08:00:00Z", 1000, 0, "0.01");
            used(&world, resource, "pub-b", "2026-11-10T08:10:00Z", 2000, 0, "0.02");
        }
        world.gateway.lose_call(&id(cut), "pub-a", false);
        world.gateway.remove_model("pub-b");
        if repointed {
            world.gateway.add_deployment("dep-pub-b2", "pub-b", "openai/other-up", None, None);
        }
        world.set_time("2026-11-12T09:00:00Z");
        if restart {
            agent = world.agent().await;
        }
        used(&world, resource, "pub-a", "2026-11-12T08:00:00Z", 4000, 0, "0.04");
        pass(&agent).await;
        let got = held(&world, resource, "2026-11");
        assert_eq!(
            (got["pub-a:input"].as_str(), got["pub-b:input"].as_str()),
            ("5.00", "2.00"),
            "restart {restart}, repointed {repointed}"
        );
        let got = held(&world, cut, "2026-11");
        assert_eq!(got, parts(&[("input_tokens", "3.00"), ("spend", "0.03")]));
        assert!(holds(&agent, "usage-shared-upstream").contains(&id(cut)));
        // Nothing shared is not asked for again.
        world.faults.reset_calls();
        pass(&agent).await;
        assert_eq!(log_reads(&world), 0, "restart {restart}");
    }
}

#[tokio::test]
async fn the_log_of_calls_is_not_read_where_the_ledger_says_it_all() {
    for more in ["", "usage: {failed_calls: exclude}\n"] {
        let world = World::new(Profile::Y2024).await;
        per_model(&world);
        // Others share what they like, and their calls fail.
        shared_upstream(&world);
        world.gateway.add_foreign_team("others", &serde_json::json!({"models": ["pub-a", "pub-b"]}));
        let theirs = world.gateway.add_foreign_key("others", "others-1");
        for model in ["pub-a", "pub-b"] {
            world.gateway.chat(&theirs, model, "P=10 C=1").unwrap();
            world.gateway.chat(&theirs, model, "FAIL=500").unwrap_err();
        }
        let agent = world.agent_with(more).await;
        let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
        world.gateway.chat(&world.key(resource, "project"), "kestrel-8b", "P=1000 C=0").unwrap();
        world.gateway.chat(&world.key(resource, "project"), "heron-70b", "P=1000 C=0").unwrap_err();
        world.advance(Duration::from_secs(40));
        world.faults.reset_calls();
        pass(&agent).await;
        pass(&agent).await;
        assert_eq!(figure(&world, resource, "2026-11", "kestrel-8b:input"), "1.00");
        assert_eq!(log_reads(&world), 0, "{more}");
    }
}

#[tokio::test]
async fn what_happens_to_keys_teams_models_and_prices_leaves_the_bill_alone() {
    for profile in [Profile::Y2024, Profile::Late2026] {
        let world = World::new(profile).await;
        per_model(&world);
        let agent = world.agent().await;
        let resource = world.sold(&agent, "aurora", &["kestrel-8b", "heron-70b"]).await;
        let key = world.key(resource, "project");
        world.gateway.chat(&key, "kestrel-8b", "P=1000 C=0").unwrap();
        world.gateway.chat(&key, "heron-70b", "P=2000 C=0").unwrap();
        world.advance(Duration::from_secs(40));
        // A key dies and comes back; the team dies and comes back; a model is dropped; another gets dearer.
        let hash = world.gateway.live_keys(&id(resource)).remove(0).hash;
        world.gateway.delete_key(&hash);
        world.slow_beat(&agent).await;
        pass(&agent).await;
        assert_eq!(figure(&world, resource, "2026-11", "kestrel-8b:input"), "1.00");
        world.gateway.delete_team(&id(resource));
        pass(&agent).await;
        world.slow_beat(&agent).await;
        world.slow_beat(&agent).await;
        world.gateway.remove_model("heron-70b");
        world.gateway.remove_model("kestrel-8b");
        world.gateway.add_model("kestrel-8b", Some("0.00021"), Some("0.00085"));
        let key = world.key(resource, "project");
        world.gateway.chat(&key, "kestrel-8b", "P=1000 C=0").unwrap();
        world.advance(Duration::from_secs(40));
        pass(&agent).await;
        let got = held(&world, resource, "2026-11");
        assert_eq!((got["kestrel-8b:input"].as_str(), got["heron-70b:input"].as_str()), ("2.00", "2.00"), "{profile:?}");
        let spend = world.gateway.spend_of(&id(resource), "2026-11");
        assert_eq!(got["spend"], spend.round_dp(2).to_string());
        assert!(spend > dec("0.21"));
        assert!(!agent.conditions.holds("usage-unattributed") && !agent.conditions.holds("usage-lower"), "{:?}", agent.conditions.all());
        world.gateway.add_model("heron-70b", Some("0.000001"), Some("0.000002"));
        world.check();
    }
}

#[tokio::test]
async fn states_that_refuse_usage_are_known_beforehand() {
    let world = World::new(Profile::Y2024).await;
    let agent = world.agent().await;
    let resource = sold(&world, "aurora");
    used(&world, resource, "kestrel-8b", "2026-11-09T08:00:00Z", 1000, 0, "1");
    world.waldur.put_resource_state(resource, "Erred");
    for _ in 0..3 {
        let report = pass(&agent).await;
        assert!(matches!(report.lines[0].outcome, Ok(Outcome::State(_))));
    }
    assert_eq!(sent(&world), Vec::<String>::new());
    assert!(holds(&agent, "usage-waits").contains("Erred"));
    world.waldur.put_resource_state(resource, "OK");
    pass(&agent).await;
    assert_eq!(figure(&world, resource, "2026-11", "spend"), "1.00");
    assert!(!agent.conditions.holds("usage-waits"));
}

#[tokio::test]
async fn only_what_is_ours_is_billed() {
    let world = World::new(Profile::Y2024).await;
    let agent = world.agent().await;
    let theirs = sold(&world, "theirs");
    world.waldur.put_backend_id(theirs, "aurora-llm-1");
    used(&world, theirs, "kestrel-8b", "2026-11-09T08:00:00Z", 1000, 0, "1");
    pass(&agent).await;
    assert!(held(&world, theirs, "2026-11").is_empty());
    // A model that no component takes is named, not dropped in silence.
    for kind in ["input_tokens", "output_tokens", "spend"] {
        world.waldur.drop_component(world.offering, kind);
    }
    world.waldur.add_usage_component(world.offering, "heron-70b:input");
    let ours = sold(&world, "ours");
    used(&world, ours, "kestrel-8b", "2026-11-09T08:00:00Z", 1000, 0, "1");
    pass(&agent).await;
    assert!(holds(&agent, "usage-without-component").contains("kestrel-8b"));
    world.waldur.add_usage_component(world.offering, "kestrel-8b:input");
    pass(&agent).await;
    assert_eq!(figure(&world, ours, "2026-11", "kestrel-8b:input"), "1.00");
    assert!(!agent.conditions.holds("usage-without-component"));
}

#[tokio::test]
async fn failed_calls_cost_what_the_configuration_says() {
    for (failed_calls, expected) in [("as_ledger", "1.50"), ("exclude", "1.00")] {
        let world = World::new(Profile::Y2024).await;
        per_model(&world);
        let agent = world.agent_with(&format!("usage: {{failed_calls: {failed_calls}}}\n")).await;
        let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
        let key = world.key(resource, "project");
        world.gateway.chat(&key, "kestrel-8b", "P=1000 C=0").unwrap();
        for _ in 0..5 {
            world.gateway.chat(&key, "kestrel-8b", &format!("FAIL=500 {}", "word ".repeat(100))).unwrap_err();
        }
        world.advance(Duration::from_secs(40));
        pass(&agent).await;
        let ledger = world.gateway.daily_sum(&id(resource), "kestrel-8b", "2026-11");
        assert_eq!(ledger.failed_requests, 5);
        let got = figure(&world, resource, "2026-11", "kestrel-8b:input");
        let exact = Decimal::from(if failed_calls == "exclude" { 1000 } else { ledger.prompt_tokens });
        assert_eq!(got, llm_access_agent::domain::amount(exact, Decimal::from(1000)).to_string(), "{failed_calls}, about {expected}");
        assert!(ledger.prompt_tokens > 1000);
        let audit = agent.audit("2026-11".parse().unwrap(), None).await.unwrap();
        assert_eq!(audit.unexplained(), 0, "{:?}", audit.rows);
        let row = audit.rows.iter().find(|row| row.kind == "kestrel-8b:input").unwrap();
        assert_eq!(row.estimated, Decimal::from(ledger.prompt_tokens - 1000));
    }
}

#[tokio::test]
async fn failed_calls_are_excluded_only_where_the_log_has_as_many_of_them() {
    let exclude = "usage: {failed_calls: exclude}\n";
    let world = World::new(Profile::Late2026).await;
    per_model(&world);
    let agent = world.agent_with(exclude).await;
    let (whole, cut) =
        (world.sold(&agent, "whole", &["kestrel-8b", "heron-70b"]).await, world.sold(&agent, "cut", &["kestrel-8b", "heron-70b"]).await);
    for resource in [whole, cut] {
        let key = world.key(resource, "project");
        world.gateway.chat(&key, "kestrel-8b", "P=1000 C=0").unwrap();
        world.gateway.chat(&key, "heron-70b", "P=3000 C=0").unwrap();
        for _ in 0..3 {
            world.gateway.chat(&key, "kestrel-8b", "FAIL=500").unwrap_err();
        }
        // Of another key of the same team nothing is in doubt.
        world.gateway.chat(&world.key(resource, "chat"), "kestrel-8b", "P=500 C=0").unwrap();
    }
    world.advance(Duration::from_secs(40));
    // The log gets its rows later than the ledger: today it waits, and nothing is said.
    let empty = r#"{"data":[],"total":0,"page":1,"page_size":1000,"total_pages":0,"total_is_capped":false}"#;
    let answer = Fault::Replace { status: 200, headers: vec![("content-type".into(), "application/json".into())], body: empty.into() };
    let rule = world.faults.add(Rule::new(answer).peer(Peer::LiteLlm).path("/spend/logs/v2"));
    let report = pass(&agent).await;
    assert_eq!((report.withheld.len(), report.waiting, report.is_whole()), (0, 2, false));
    for resource in [whole, cut] {
        assert_eq!(figure(&world, resource, "2026-11", "kestrel-8b:input"), "0.50");
        assert_eq!(figure(&world, resource, "2026-11", "heron-70b:input"), "3.00");
    }
    world.faults.remove(rule);
    assert!(world.gateway.lose_call(&id(cut), "kestrel-8b", true));
    pass(&agent).await;
    assert_eq!(figure(&world, whole, "2026-11", "kestrel-8b:input"), "1.50");
    assert_eq!(figure(&world, cut, "2026-11", "kestrel-8b:input"), "0.50");
    assert!(!agent.conditions.holds("usage-withheld"));
    // The day is over, and the log still lacks one.
    world.set_time("2026-11-11T00:29:59Z");
    pass(&agent).await;
    assert!(!agent.conditions.holds("usage-withheld"));
    world.set_time("2026-11-11T00:30:00Z");
    let report = pass(&agent).await;
    let said = holds(&agent, "usage-withheld");
    let team = id(cut);
    for word in [
        "2026-11-10",
        "kestrel-8b",
        &team,
        "the ledger counts 3 failed calls of one key and the log of calls has 2",
        "1030 + 0 tokens",
        "usage.failed_calls",
    ] {
        assert!(said.contains(word), "{word}: {said}");
    }
    assert_eq!((report.withheld.len(), report.waiting), (1, 0));
    let audit = agent.audit("2026-11".parse().unwrap(), None).await.unwrap();
    assert_eq!((audit.withheld.len(), audit.unexplained()), (1, 1), "{:?}", audit.rows);
    // An end does not wait for it for ever.
    let unbilled = end_without_the_log(&world, &agent, cut).await;
    assert_eq!(figure(&world, cut, "2026-11", "kestrel-8b:input"), "0.50");
    assert!(unbilled.contains("3 failed calls"), "{unbilled}");
    // The log is gone, and a process that has seen it goes on; one that has not keeps what Waldur holds.
    world.gateway.forget_calls(at("2026-11-11T00:00:00Z"));
    let key = world.key(whole, "project");
    world.gateway.chat(&key, "kestrel-8b", "P=2000 C=0").unwrap();
    world.advance(Duration::from_secs(40));
    pass(&agent).await;
    assert_eq!(figure(&world, whole, "2026-11", "kestrel-8b:input"), "3.50");
    let fresh = world.agent_with(exclude).await;
    pass(&fresh).await;
    assert_eq!(figure(&world, whole, "2026-11", "kestrel-8b:input"), "3.50");
    assert!(holds(&fresh, "usage-withheld").contains(&id(whole)) && !fresh.conditions.holds("usage-lower"));
    // By the operator's word the ledger is billed as it is.
    pass(&world.agent().await).await;
    let ledger = world.gateway.daily_sum(&id(whole), "kestrel-8b", "2026-11").prompt_tokens;
    assert_eq!(
        figure(&world, whole, "2026-11", "kestrel-8b:input"),
        llm_access_agent::domain::amount(Decimal::from(ledger), Decimal::from(1000)).to_string()
    );
    assert_eq!(ledger, 3530);
}

#[tokio::test]
async fn a_log_that_cannot_be_read_holds_up_only_what_depends_on_it() {
    let json =
        |body: &str| Fault::Replace { status: 200, headers: vec![("content-type".into(), "application/json".into())], body: body.into() };
    let page = |page: u64, total: u64| {
        json(&format!(r#"{{"data":[],"total":{total},"page":{page},"page_size":1000,"total_pages":1,"total_is_capped":false}}"#))
    };
    let answers = [
        json("[]"),
        json("{}"),
        json(r#"{"error":{"message":"no"}}"#),
        page(1, 7),
        page(2, 0),
        Fault::status(500, "{}"),
        Fault::Truncate,
        Fault::Refuse,
    ];
    for answer in answers {
        let world = World::new(Profile::Y2024).await;
        per_model(&world);
        shared_upstream(&world);
        let agent = world.agent_with("usage: {failed_calls: exclude}\n").await;
        let resource = world.sold(&agent, "aurora", &["kestrel-8b", "heron-70b"]).await;
        let key = world.key(resource, "project");
        world.gateway.chat(&key, "kestrel-8b", "P=1000 C=0").unwrap();
        world.gateway.chat(&key, "kestrel-8b", "FAIL=500").unwrap_err();
        world.gateway.chat(&key, "heron-70b", "P=3000 C=0").unwrap();
        used(&world, resource, "pub-a", "2026-11-10T08:00:00Z", 100, 0, "0");
        used(&world, resource, "pub-b", "2026-11-10T08:00:00Z", 100, 0, "0");
        world.set_time("2026-11-11T09:00:00Z");
        world.faults.add(Rule::new(answer.clone()).peer(Peer::LiteLlm).path("/spend/logs/v2"));
        pass(&agent).await;
        assert_eq!(held(&world, resource, "2026-11"), parts(&[("heron-70b:input", "3.00"), ("input_tokens", "3.20")]), "{answer:?}");
        assert!(
            holds(&agent, "usage-withheld").contains("cannot be read") && holds(&agent, "usage-shared-upstream").contains("cannot be read"),
            "{answer:?}: {:?}",
            agent.conditions.all()
        );
        world.faults.clear();
        pass(&agent).await;
        let got = held(&world, resource, "2026-11");
        assert_eq!(
            (got["kestrel-8b:input"].as_str(), got["pub-a:input"].as_str(), got["pub-b:input"].as_str()),
            ("1.00", "0.10", "0.10"),
            "{answer:?}"
        );
        assert!(!agent.conditions.holds("usage-withheld") && !agent.conditions.holds("usage-shared-upstream"));
    }
}

#[tokio::test]
async fn a_spend_below_nothing_bills_nothing_of_its_day_and_is_named() {
    let world = World::new(Profile::Y2024).await;
    world.ends_in_trouble("a row below nothing hides from the checker's sum what was rightly billed");
    let agent = world.agent().await;
    let (odd, other) = (sold(&world, "odd"), sold(&world, "other"));
    for resource in [odd, other] {
        used(&world, resource, "kestrel-8b", "2026-11-08T08:00:00Z", 1000, 0, "1");
        used(&world, resource, "kestrel-8b", "2026-11-09T08:00:00Z", 1000, 0, "1");
    }
    used(&world, odd, "heron-70b", "2026-11-09T08:00:00Z", 1000, 0, "-2");
    pass(&agent).await;
    assert_eq!(held(&world, odd, "2026-11"), parts(&[("input_tokens", "1.00"), ("spend", "1.00")]));
    assert_eq!(held(&world, other, "2026-11"), parts(&[("input_tokens", "2.00"), ("spend", "2.00")]));
    let said = holds(&agent, "usage-withheld");
    assert!(said.contains("heron-70b") && said.contains(&id(odd)) && said.contains("a spend of -2 is below nothing"), "{said}");
}

#[tokio::test]
async fn two_agents_agree() {
    for profile in [Profile::Y2024, Profile::Late2026] {
        let world = World::new(profile).await;
        let (a, b) = (world.agent().await, world.agent().await);
        let resources: Vec<Uuid> = (0..6).map(|n| sold(&world, &format!("llm-{n}"))).collect();
        for round in 1..=5_u64 {
            for (n, resource) in (1..).zip(&resources) {
                used(&world, *resource, "kestrel-8b", "2026-11-09T08:00:00Z", n * 1000, 0, "1");
            }
            let _both = tokio::join!(a.usage_beat(), b.usage_beat());
            for (n, resource) in (1..).zip(&resources) {
                assert_eq!(figure(&world, *resource, "2026-11", "input_tokens"), format!("{}.00", n * round));
            }
        }
    }
}

/// A small random source, the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

#[tokio::test]
async fn any_stream_of_calls_faults_and_restarts_ends_with_the_ledger() {
    for seed in 1..=8_u64 {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let profile = PROFILES[usize::try_from(seed % 3).unwrap()];
        let world = World::new(profile).await;
        per_model(&world);
        world.gateway.set_ledger_page([1, 3, 10, 1000][usize::try_from(dice.roll(4)).unwrap()]);
        let mut agent = world.agent().await;
        let resources: Vec<Uuid> = (0..4).map(|n| sold(&world, &format!("llm-{n}"))).collect();
        for step in 0..30 {
            for _ in 0..dice.roll(6) {
                let resource = resources[usize::try_from(dice.roll(4)).unwrap()];
                let model = ["kestrel-8b", "heron-70b", "qwen2.5-0.5b"][usize::try_from(dice.roll(3)).unwrap()];
                let day = 1 + dice.roll(10);
                let usage = Usage {
                    prompt_tokens: dice.roll(5000),
                    completion_tokens: dice.roll(300),
                    cached_tokens: 0,
                    spend: Decimal::new(i64::try_from(dice.roll(1_000_000)).unwrap(), 7),
                };
                let key = format!("{}-{}", id(resource), dice.roll(3));
                world.gateway.add_usage(Some(&id(resource)), &key, model, at(&format!("2026-11-{day:02}T08:00:00Z")), usage);
            }
            match dice.roll(5) {
                0 => agent = world.agent().await,
                1 => {
                    let fault = match dice.roll(4) {
                        0 => Fault::LoseAnswer,
                        1 => Fault::Truncate,
                        2 => Fault::status(502, ""),
                        _ => Fault::Refuse,
                    };
                    world.faults.reset_calls();
                    world.faults.at_call(usize::try_from(1 + dice.roll(25)).unwrap(), fault);
                }
                2 => {
                    // Rows come while the pages are read.
                    let gateway = world.gateway.clone();
                    let resource = id(resources[0]);
                    let (day, key) = (1 + dice.roll(10), format!("late-{step}"));
                    world.faults.reset_calls();
                    world.faults.before_call(usize::try_from(1 + dice.roll(20)).unwrap(), move || {
                        let usage = Usage { prompt_tokens: 777, completion_tokens: 0, cached_tokens: 0, spend: Decimal::ONE };
                        gateway.add_usage(Some(&resource), &key, "kestrel-8b", at(&format!("2026-11-{day:02}T08:00:00Z")), usage);
                    });
                }
                _ => {}
            }
            drop(agent.usage_beat().await);
            // Never more than the ledger shows.
            for resource in &resources {
                let most = world.gateway.spend_of(&id(*resource), "2026-11") + dec("0.005");
                let told = world.waldur.usages(*resource, "2026-11").get("spend").copied().unwrap_or_default();
                assert!(told <= most, "seed {seed} step {step}: {told} of {most}");
            }
            world.advance(Duration::from_secs(60));
        }
        world.faults.clear();
        for _ in 0..2 {
            pass(&agent).await;
        }
        for resource in &resources {
            let got = held(&world, *resource, "2026-11");
            for (model, key) in [("kestrel-8b", "kestrel-8b"), ("heron-70b", "heron-70b"), ("qwen2.5-0.5b", "qwen2_5-0_5b")] {
                let sum = world.gateway.daily_sum(&id(*resource), model, "2026-11");
                for (side, tokens) in [("input", sum.prompt_tokens), ("output", sum.completion_tokens)] {
                    let expected = llm_access_agent::domain::amount(Decimal::from(tokens), Decimal::from(1000));
                    let told = got.get(&format!("{key}:{side}")).map_or_else(|| "0.00".to_owned(), Clone::clone);
                    assert_eq!(told, expected.to_string(), "seed {seed}: {model} {side}");
                }
            }
            let spend = llm_access_agent::domain::amount(world.gateway.spend_of(&id(*resource), "2026-11"), Decimal::ONE);
            assert_eq!(got.get("spend").map_or("0.00", String::as_str), spend.to_string(), "seed {seed}");
        }
        world.faults.reset_calls();
        pass(&agent).await;
        assert_eq!(sent(&world), Vec::<String>::new());
    }
}

/// The seeds of a story; `SEED=7` replays one.
fn seeds(count: u64) -> Vec<u64> {
    std::env::var("SEED").map_or_else(|_| (1..=count).collect(), |seed| vec![seed.parse().unwrap()])
}

/// Customers of one world, and what they used by resource and model: input and output tokens.
struct Customers {
    seed: u64,
    world: World,
    resources: Vec<Uuid>,
    made: BTreeMap<(Uuid, &'static str), (u64, u64)>,
    exclude: bool,
}

/// The models of the story: two of them share an upstream model.
const SOLD: [&str; 4] = ["pub-a", "pub-b", "kestrel-8b", "heron-70b"];

impl Customers {
    fn made(&mut self, resource: Uuid, model: &'static str, prompt: u64, completion: u64) {
        let sum = self.made.entry((resource, model)).or_default();
        *sum = (sum.0 + prompt, sum.1 + completion);
    }

    /// A call now, with a key of the resource; some fail.
    fn call(&mut self, dice: &mut Dice) {
        let resource = self.resources[usize::try_from(dice.roll(3)).unwrap()];
        let slot = ["project", "chat"][usize::try_from(dice.roll(2)).unwrap()];
        let model = SOLD[usize::try_from(dice.roll(4)).unwrap()];
        let (prompt, completion) = (dice.roll(5000), dice.roll(300));
        let key = self.world.key(resource, slot);
        // A model, a key or a team may be gone just now.
        if self.world.gateway.verdict(&key, model).is_err() {
            return;
        }
        if dice.roll(4) == 0 {
            self.world.gateway.chat(&key, model, "FAIL=503").unwrap_err();
            if !self.exclude {
                self.made(resource, model, 10, 0);
            }
        } else {
            self.world.gateway.chat(&key, model, &format!("P={prompt} C={completion} CACHED={}", prompt / 2)).unwrap();
            self.made(resource, model, prompt, completion);
        }
    }

    /// A call of an earlier day, by a key that nobody knows any more.
    fn late(&mut self, dice: &mut Dice) {
        let resource = self.resources[usize::try_from(dice.roll(3)).unwrap()];
        let model = SOLD[usize::try_from(2 + dice.roll(2)).unwrap()];
        let (prompt, completion) = (dice.roll(5000), dice.roll(300));
        used(&self.world, resource, model, &format!("2026-11-{:02}T08:00:00Z", 1 + dice.roll(9)), prompt, completion, "0.0123");
        self.made(resource, model, prompt, completion);
    }

    /// Compares what Waldur holds with what was used: never more, and at rest the same, but for the calls of models that are
    /// not told apart.
    fn compare(&self, at_rest: bool, cut: &[Uuid]) {
        let (seed, thousand) = (self.seed, Decimal::from(1000));
        for resource in &self.resources {
            let told = self.world.waldur.usages(*resource, "2026-11");
            let told = |kind: String| told.get(&kind).copied().unwrap_or_default();
            let mut all = (0, 0);
            for model in SOLD {
                let made = self.made.get(&(*resource, model)).copied().unwrap_or_default();
                all = (all.0 + made.0, all.1 + made.1);
                let exact = at_rest && !(model.starts_with("pub-") && cut.contains(resource));
                for (side, tokens) in [("input", made.0), ("output", made.1)] {
                    let (told, made) = (told(format!("{model}:{side}")), llm_access_agent::domain::amount(Decimal::from(tokens), thousand));
                    assert!(
                        told == made || (!exact && told < made),
                        "SEED={seed} {model}:{side} of {}: {told} of {made}",
                        resource.simple()
                    );
                }
            }
            for (side, tokens) in [("input", all.0), ("output", all.1)] {
                let (told, made) = (told(format!("{side}_tokens")), llm_access_agent::domain::amount(Decimal::from(tokens), thousand));
                assert!(told == made || (!at_rest && told < made), "SEED={seed} {side}_tokens of {}: {told} of {made}", resource.simple());
            }
            // Failed calls cost nothing here.
            let (told, made) = (told("spend".into()), self.world.gateway.owed(&id(*resource), "2026-11"));
            let made = llm_access_agent::domain::amount(made, Decimal::ONE);
            assert!(told == made || (!at_rest && told < made), "SEED={seed} spend of {}: {told} of {made}", resource.simple());
        }
    }
}

#[tokio::test]
async fn any_calls_losses_faults_and_restarts_end_with_what_was_used() {
    any_calls(false).await;
}

#[tokio::test]
async fn any_calls_losses_faults_and_restarts_end_with_what_was_used_but_for_failed_calls() {
    any_calls(true).await;
}

async fn any_calls(exclude: bool) {
    for seed in seeds(3) {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let world = World::new(PROFILES[usize::try_from(seed % 3).unwrap()]).await;
        per_model(&world);
        shared_upstream(&world);
        for model in ["pub-a", "pub-b"] {
            world.waldur.add_usage_component(world.offering, &format!("{model}:output"));
        }
        world.waldur.set_models(world.offering, &SOLD);
        world.write("catalogue.yml", &llm_access_tests::catalogue(&["kestrel-8b", "heron-70b", "pub-a", "pub-b"]));
        let config = if exclude { "usage: {failed_calls: exclude}\n" } else { "" };
        let mut agent = world.agent_with(config).await;
        let mut resources = Vec::new();
        for name in ["aurora", "borealis", "corona"] {
            resources.push(world.sold(&agent, name, &SOLD).await);
        }
        let mut here = Customers { seed, world, resources, made: BTreeMap::new(), exclude };
        let mut cut: Vec<Uuid> = Vec::new();
        for _ in 0..20 {
            for _ in 0..dice.roll(6) {
                here.call(&mut dice);
            }
            let world = &here.world;
            let resource = here.resources[usize::try_from(dice.roll(3)).unwrap()];
            world.faults.reset_calls();
            match dice.roll(12) {
                0 => agent = world.agent_with(config).await,
                1 | 2 => {
                    let fault = match dice.roll(5) {
                        0 => Fault::LoseAnswer,
                        1 => Fault::Truncate,
                        2 => Fault::status(502, ""),
                        3 => Fault::Replace {
                            status: 200,
                            headers: vec![("content-type".into(), "application/json".into())],
                            body: "{}".into(),
                        },
                        _ => Fault::Refuse,
                    };
                    world.faults.at_call(usize::try_from(1 + dice.roll(25)).unwrap(), fault);
                }
                3 => {
                    // A row comes while the pages are read.
                    let (gateway, team, prompt) = (world.gateway.clone(), id(resource), 1 + dice.roll(900));
                    let when = world.clock.now();
                    world.faults.before_call(usize::try_from(1 + dice.roll(6)).unwrap(), move || {
                        let usage = Usage { prompt_tokens: prompt, completion_tokens: 0, cached_tokens: 0, spend: Decimal::ONE };
                        gateway.add_usage(Some(&team), &format!("late-{team}"), "heron-70b", when, usage);
                    });
                    // Every pass makes so many calls.
                    drop(agent.usage_beat().await);
                    assert!(world.faults.count() >= 6, "{}", world.faults.count());
                    here.made(resource, "heron-70b", prompt, 0);
                }
                4 => world.gateway.set_ledger_page([1, 3, 10, 1000][usize::try_from(dice.roll(4)).unwrap()]),
                5 => {
                    let hash = world.gateway.live_keys(&id(resource)).first().map(|key| key.hash.clone());
                    hash.map(|hash| world.gateway.delete_key(&hash));
                    world.slow_beat(&agent).await;
                }
                6 => {
                    world.gateway.delete_team(&id(resource));
                    for _ in 0..2 {
                        world.slow_beat(&agent).await;
                    }
                }
                7 if world.gateway.lose_call(&id(resource), "pub-a", false) => cut.push(resource),
                8 => world.gateway.remove_model("pub-b"),
                9 => world.advance(Duration::from_secs(86_400)),
                10 => {
                    let other = world.agent_with(config).await;
                    drop(tokio::join!(agent.usage_beat(), other.usage_beat()));
                }
                11 => world.gateway.restart(),
                _ => {}
            }
            if dice.roll(2) == 0 {
                here.late(&mut dice);
            }
            drop(agent.usage_beat().await);
            here.compare(false, &cut);
            here.world.advance(Duration::from_secs(60));
        }
        here.world.faults.clear();
        // A day on, when no store has anything to come.
        here.world.advance(Duration::from_secs(2 * 86_400));
        for _ in 0..2 {
            pass(&agent).await;
        }
        here.compare(true, &cut);
        here.world.faults.reset_calls();
        pass(&agent).await;
        assert_eq!(sent(&here.world), Vec::<String>::new(), "seed {seed}");
        // Also what was used before an end.
        let last = here.resources[2];
        here.world.waldur.terminate(last);
        here.world.run_to_rest(&agent, 90).await;
        here.compare(true, &cut);
    }
}
