//! Whatever is said to the agent, by a peer or in a file, is read or refused: no panic, no loss of digits, no end that never comes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use llm_access_tests::decoders::{Fed, read_catalogue, read_config};
use llm_access_tests::{World, catalogue, fixtures::waldur::Profile};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

/// Shapes that every peer has somewhere.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,20}".prop_map(Value::from),
        "-?[0-9]{0,40}\\.?[0-9]{0,40}(e-?[0-9]{1,12})?".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec(("[a-z_]{1,12}", inner), 0..5)
                .prop_map(|fields| Value::from(fields.into_iter().collect::<serde_json::Map<_, _>>())),
        ]
    })
}

/// What honest peers say, to be mangled.
fn honest() -> Vec<Value> {
    let team = json!({"team_id": "t", "team_alias": "a", "models": ["m"], "max_budget": 50.0, "spend": 1.35e-5, "tpm_limit": 1, "rpm_limit": null, "metadata": {"owner": "icarus"}, "blocked": false});
    let key = json!({"token": "a".repeat(64), "key_alias": "a", "team_id": "t", "models": [], "spend": 0, "metadata": {}});
    let counts = json!({"spend": 0.1, "prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, "successful_requests": 1, "failed_requests": 0, "api_requests": 1});
    let call = json!({"request_id": "r", "team_id": "t", "api_key": "h", "model_group": "m", "model": "m", "status": "success", "prompt_tokens": 1, "completion_tokens": 2, "spend": 1.35e-5, "startTime": "2026-11-10T09:00:00Z"});
    let uuid = "1f2e3d4c5b6a47988990a1b2c3d4e5f6";
    let metadata = json!({"name": "n", "namespace": "n", "uid": uuid, "resourceVersion": "1", "labels": {}, "annotations": {}, "creationTimestamp": "2026-11-10T09:00:00Z", "managedFields": [{"manager": "llm-access-agent", "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:OPENAI_API_KEY": {}}}}]});
    let data = json!({"OPENAI_API_KEY": "c2stMQ=="});
    vec![
        json!([{"uuid": uuid, "state": "executing", "type": "Create", "marketplace_resource_uuid": uuid, "limits": {"max_budget": 50}, "attributes": {"models": ["m"]}, "created": "2026-11-10T09:00:00Z"}]),
        json!({"uuid": uuid, "state": "OK", "limits": {"max_budget": "50.00"}, "options": {"models": ["m"]}, "backend_id": "x", "endpoints": [{"name": "n", "url": "u"}], "plans": [{"uuid": uuid, "prices": {"m:input": "0.1"}}], "components": [{"uuid": uuid, "type": "m:input", "billing_type": "usage"}], "permissions": []}),
        json!([{"uuid": uuid, "type": "m:input", "usage": "1.50", "billing_period": "2026-11-01", "date": "2026-11-10T09:00:00Z", "resource_uuid": uuid, "start": "2026-11-10T09:00:00Z", "end": null, "components": [{"type": "m:input", "usage": 1e-7}], "client_id": "c", "state": "Active"}]),
        json!({"access_token": "cafe", "expires_in": 300, "uuid": uuid, "username": "icarus", "is_staff": false, "permissions": [{"role_name": "OFFERING.MANAGER", "scope_type": "offering", "scope_uuid": uuid}]}),
        json!({"usages": [{"amount": ["too long"]}, "These components are invalid: m:input, m:output."], "daily_usages": ["no"], "detail": "no"}),
        json!({"teams": [team], "total": 1, "page": 1, "page_size": 100, "total_pages": 1, "status": "healthy", "db": "connected"}),
        json!({"key": "a".repeat(64), "keys": [key], "total_count": 1, "current_page": 1, "total_pages": 1, "team_id": "t", "team_info": team, "info": key}),
        json!({"data": [{"id": "m", "model_name": "m", "litellm_params": {"model": "openai/m", "input_cost_per_token": 2.1e-7}, "model_info": {"id": "i", "db_model": true, "mode": "chat"}}]}),
        json!({"data": [call], "total": 1, "page": 1, "total_is_capped": false}),
        json!({"results": [{"date": "2026-11-10", "metrics": counts, "breakdown": {"model_groups": {"m": {"metrics": counts, "api_key_breakdown": {"h": {"metrics": counts, "metadata": {"team_id": "t"}}}}}, "entities": {"t": {"metrics": counts, "api_key_breakdown": {"h": {}}}}}}], "metadata": {"page": 1, "total_pages": 1, "has_more": false}}),
        json!({"kind": "SecretList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": [{"metadata": metadata, "data": data}]}),
        json!({"metadata": metadata, "data": data, "spec": {"holderIdentity": "fed", "leaseDurationSeconds": 15, "leaseTransitions": 1, "template": {"metadata": {"annotations": {"a": "b"}}}}, "status": {"allowed": true}}),
        json!({"error": {"message": "{'error': 'no'}", "type": "t", "param": "p", "code": "400"}, "detail": "no", "kind": "Status", "status": "Failure", "reason": "Invalid", "details": {"causes": [{"reason": "FieldManagerConflict", "message": "conflict with \"x\"", "field": "f"}]}}),
    ]
}

/// Every place in a value, as JSON pointers.
fn places(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    match value {
        Value::Array(items) => items.iter().enumerate().for_each(|(n, item)| places(item, &format!("{at}/{n}"), all)),
        Value::Object(fields) => {
            fields.iter().for_each(|(name, field)| places(field, &format!("{at}/{}", name.replace('~', "~0").replace('/', "~1")), all));
        }
        _ => {}
    }
}

/// Honest answers with something strange at one place, anything, and bytes that are no JSON.
fn any_body() -> impl Strategy<Value = Vec<u8>> {
    let mangled = (0..honest().len(), any::<prop::sample::Index>(), any_json()).prop_map(|(which, place, strange)| {
        let mut body = honest()[which].clone();
        let mut all = Vec::new();
        places(&body, "", &mut all);
        *body.pointer_mut(place.get(&all[..]).as_str()).unwrap() = strange;
        body.to_string().into_bytes()
    });
    let cut = (0..honest().len(), any::<prop::sample::Index>(), prop::collection::vec(any::<u8>(), 0..8)).prop_map(|(which, at, more)| {
        let mut body = honest()[which].to_string().into_bytes();
        let at = at.index(body.len());
        body.splice(at..(at + more.len()).min(body.len()), more);
        body
    });
    prop_oneof![
        4 => mangled,
        2 => cut,
        1 => any_json().prop_map(|value| value.to_string().into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..200),
    ]
}

/// Runs a property; a failure says with what.
fn holds<S: Strategy>(cases: u32, strategy: S, property: impl Fn(S::Value)) {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(config)
        .run(&strategy, |value| {
            property(value);
            Ok(())
        })
        .unwrap();
}

#[test]
fn honest_answers_are_taken() {
    let fed = Fed::new();
    let mut asked: BTreeMap<(usize, &str), bool> = BTreeMap::new();
    for body in honest() {
        fed.answer(200, body.to_string().as_bytes());
        for (peer, all) in [fed.ask_waldur(), fed.ask_gateway(), fed.ask_kube()].into_iter().enumerate() {
            for (what, taken) in all {
                *asked.entry((peer, what)).or_default() |= taken;
            }
        }
    }
    // Else the properties below would be about the first line of a decoder.
    let never: Vec<_> = asked.into_iter().filter(|(_, taken)| !taken).collect();
    assert!(never.is_empty(), "nothing is taken of what is said to {never:?}");
}

/// The lists of Waldur whose answer is taken.
fn lists(fed: &Fed) -> Vec<&'static str> {
    fed.ask_waldur()
        .into_iter()
        .filter(|(what, taken)| *taken && ["orders", "resources", "api_keys"].contains(what))
        .map(|(what, _)| what)
        .collect()
}

#[test]
fn a_list_in_pages_is_taken_when_it_adds_up() {
    let fed = Fed::new();
    let row = |n: u8| json!([{"uuid": uuid::Uuid::from_bytes([n; 16])}]).to_string().into_bytes();
    let pages = [row(1), row(2), row(3)];
    for (count, taken) in [(Some("3"), true), (None, true), (Some("4"), false), (Some("two"), true)] {
        fed.answer_pages(200, count, &pages);
        assert_eq!(lists(&fed).len(), if taken { 3 } else { 0 }, "{count:?}");
    }
    // The same row twice where two are counted.
    fed.answer_pages(200, Some("2"), &[row(1), row(1)]);
    assert!(lists(&fed).is_empty());
}

#[test]
fn whatever_a_peer_says_is_read_or_refused() {
    let fed = Fed::new();
    let status = prop::sample::select(vec![200, 200, 200, 201, 204, 400, 401, 404, 409, 422, 500]);
    holds(300, (status, any_body()), |(status, body)| {
        fed.answer(status, &body);
        fed.ask_waldur();
        fed.ask_gateway();
        fed.ask_kube();
    });
}

#[test]
fn whatever_stands_on_the_pages_of_a_list_is_read_or_refused() {
    let fed = Fed::new();
    let status = prop::sample::select(vec![200, 200, 200, 200, 404, 500]);
    let count = prop::sample::select(vec![
        None,
        Some("0"),
        Some("1"),
        Some("2"),
        Some("3"),
        Some("7"),
        Some("-1"),
        Some("18446744073709551616"),
        Some("x"),
    ]);
    holds(150, (status, count, prop::collection::vec(any_body(), 1..4)), |(status, count, pages)| {
        fed.answer_pages(status, count, &pages);
        fed.ask_waldur();
        fed.ask_gateway();
    });
}

#[test]
fn a_login_is_taken_however_long_it_is_said_to_last() {
    let fed = Fed::new();
    for life in [json!(-1), json!(0), json!(0.5), json!("300"), json!(null), json!(u64::MAX), json!("79228162514264337593543950335")] {
        fed.answer(200, json!({"access_token": "cafe", "expires_in": life}).to_string().as_bytes());
        assert!(fed.ask_waldur().contains(&("login", true)), "{life}");
    }
}

/// Numbers at the end of what a machine counts to.
#[test]
fn a_lease_that_was_handed_over_very_often_is_taken_all_the_same() {
    let fed = Fed::new();
    let spec = json!({"holderIdentity": "", "leaseDurationSeconds": u64::MAX, "leaseTransitions": u64::MAX});
    fed.answer(200, json!({"metadata": {"resourceVersion": "1"}, "spec": spec}).to_string().as_bytes());
    assert!(fed.ask_kube().contains(&("lease", true)));
}

/// A text with one piece of it replaced, doubled or left out.
fn mangled(text: String) -> impl Strategy<Value = Vec<u8>> {
    let bytes = text.into_bytes();
    let strange = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..12),
        prop::sample::select(vec![
            ": ",
            "- ",
            "&a ",
            "*a",
            "{",
            "[",
            "}",
            "]",
            "!!binary ",
            "<<: *a",
            "|",
            "'",
            "\"",
            "#",
            "---\n",
            "\t",
            "\n",
            "1e999",
            ".inf",
            "~",
            "0x1f",
            "\u{feff}"
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
    ];
    (any::<prop::sample::Index>(), 0..30_usize, strange).prop_map(move |(at, len, more)| {
        let at = at.index(bytes.len());
        let mut mangled = bytes.clone();
        mangled.splice(at..(at + len).min(bytes.len()), more);
        mangled
    })
}

#[tokio::test]
async fn whatever_stands_in_a_file_is_read_or_refused() {
    let world = World::new(Profile::Late2026).await;
    let (config, models) = (world.config_text(""), catalogue(&["kestrel-8b", "heron-70b", "qwen2.5-0.5b"]));
    assert!(read_config(config.as_bytes()) && read_catalogue(models.as_bytes()));
    holds(500, mangled(config), |bytes| {
        read_config(&bytes);
    });
    holds(1000, mangled(models), |bytes| {
        read_catalogue(&bytes);
    });
    holds(500, prop::collection::vec(any::<u8>(), 0..200), |bytes| {
        read_config(&bytes);
        read_catalogue(&bytes);
    });
}

/// Few bytes that stand for many: they must cost neither time nor memory.
#[test]
fn a_file_that_unfolds_is_refused_in_time() {
    let mut laughs = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for n in 1..30 {
        let last = format!("*a{}, ", n - 1).repeat(10);
        laughs.push_str(&format!("a{n}: &a{n} [{last}]\n"));
    }
    let files = [
        laughs.clone(),
        format!("{laughs}inference_models: *a29\n"),
        format!("inference_models: {}{}", "[".repeat(100_000), "]".repeat(100_000)),
        format!("inference_models: {}", "{a: ".repeat(100_000)),
        format!("inference_models:\n{}", (0..20_000).map(|n| format!("{}- \n", " ".repeat(n % 3000))).collect::<String>()),
        format!("inference_models: [{{name: {}}}]", "x".repeat(1 << 20)),
        format!("inference_models: [{{name: a, served_name: a, litellm_model_info: {{input_cost_per_token: {}}}}}]", "9".repeat(1 << 20)),
    ];
    for file in files {
        let began = Instant::now();
        assert!(!read_catalogue(file.as_bytes()), "{:.80}", file);
        assert!(!read_config(file.as_bytes()), "{:.80}", file);
        assert!(began.elapsed() < Duration::from_secs(20), "{:.80}: {:?}", file, began.elapsed());
    }
}
