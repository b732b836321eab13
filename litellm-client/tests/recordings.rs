//! The client against answers recorded from a real proxy.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use common::{Gateway, Reply, recording};
use litellm_client::{
    Change, Class, Counts, DeploymentPatch, Error, Key, KeyVerdict, Models, NewDeployment, NewKey, NewTeam, Readiness, TeamPatch, key_hash,
};
use rust_decimal::Decimal;
use secrecy::{ExposeSecret, SecretString};
use serde_json::Map;

fn dec(text: &str) -> Decimal {
    text.parse().unwrap()
}

const ALPHA: &str = "e8b79999bde47c59a2b6a5b7cff9ecd27f45051b290ed5cb08f1f0841da96718";

fn new_team(id: &str) -> NewTeam {
    NewTeam {
        team_id: id.to_owned(),
        team_alias: format!("{id}-alias"),
        models: Models::none(),
        max_budget: None,
        budget_duration: None,
        tpm_limit: None,
        rpm_limit: None,
        blocked: false,
        metadata: Map::new(),
    }
}

fn new_key(key: Option<&str>) -> NewKey {
    NewKey {
        team_id: "waldur-res-1".to_owned(),
        alias: "alpha-key".to_owned(),
        key: key.map(SecretString::from),
        metadata: Map::new(),
        blocked: false,
    }
}

#[tokio::test]
async fn a_team_is_found_in_the_list() {
    let gateway = Gateway::recorded("team-list-v2-byid").await;
    let team = gateway.client().team("waldur-res-1").await.unwrap().unwrap();
    assert_eq!(team.alias.as_deref(), Some("proj-alpha"));
    assert_eq!(team.models, ["llama-70b"]);
    assert_eq!((team.max_budget, team.tpm_limit, team.rpm_limit), (Some(dec("10")), Some(100_000), Some(1000)));
    assert_eq!(team.budget_duration.as_deref(), Some("30d"));
    assert_eq!(team.budget_reset_at, Some("2026-12-01T00:00:00Z".parse().unwrap()));
    assert!(!team.blocked);
    assert_eq!(team.metadata["waldur_resource_uuid"], "aaaa");
    let seen = gateway.only();
    assert_eq!((seen.method.as_str(), seen.path.as_str()), ("GET", "/v2/team/list"));
    assert_eq!(seen.param("team_id").as_deref(), Some("waldur-res-1"));
}

#[tokio::test]
async fn a_team_is_gone_only_when_list_and_total_say_so() {
    let page = |teams: &str, total: u64| {
        Reply::json(200, format!(r#"{{"teams":{teams},"total":{total},"page":1,"page_size":10,"total_pages":1}}"#))
    };
    let gateway = Gateway::always(page("[]", 0)).await;
    assert_eq!(gateway.client().team("t").await.unwrap(), None);
    for (teams, total) in [("[]", 1), (r#"[{"team_id":"t"}]"#, 0), (r#"[{"team_id":"other"}]"#, 1)] {
        let gateway = Gateway::always(page(teams, total)).await;
        let error = gateway.client().team("t").await.unwrap_err();
        assert_eq!(error.class(), Class::Transient, "{teams} {total}: {error}");
    }
    for body in ["null", "[]", "{}", r#"{"teams":[]}"#, r#"{"total":0,"page":1}"#, r#"{"teams":null,"total":0,"page":1}"#, ""] {
        let gateway = Gateway::always(Reply::json(200, body)).await;
        assert_eq!(gateway.client().team("t").await.unwrap_err().class(), Class::Transient, "{body}");
    }
    let gateway = Gateway::recorded("dbdown-list").await;
    assert_eq!(gateway.client().team("t").await.unwrap_err().class(), Class::Transient);
}

#[tokio::test]
async fn a_404_of_team_info_is_not_absence() {
    for name in ["dbdown-team-info", "team-info-404"] {
        let gateway = Gateway::recorded(name).await;
        let error = gateway.client().team_with_keys("t-dbk").await.unwrap_err();
        assert_eq!(error.class(), Class::NotFound, "{name}");
    }
}

#[tokio::test]
async fn team_info_brings_the_keys() {
    let gateway = Gateway::recorded("team-info-bud").await;
    let (team, keys) = gateway.client().team_with_keys("t-bud").await.unwrap();
    assert_eq!((team.team_id.as_str(), team.max_budget), ("t-bud", Some(dec("0.001"))));
    let [key] = keys.as_slice() else { panic!("{keys:?}") };
    assert_eq!(key.hash, "6c8f7ad403811bead46021ce96aa8e63a12f79b1529f475a721dc1a235b428c3");
    assert_eq!((key.alias.as_deref(), key.team_id.as_deref()), (Some("t-bud-k"), Some("t-bud")));
    assert!(!key.deleted && !key.blocked);

    // Another team than the one asked for.
    let error = gateway.client().team_with_keys("t-other").await.unwrap_err();
    assert_eq!(error.class(), Class::Transient);
}

#[tokio::test]
async fn odd_team_ids_travel_encoded() {
    let gateway = Gateway::recorded("team-info-slash").await;
    let id = recording("team-info-slash")["body"]["team_id"].as_str().unwrap().to_owned();
    gateway.client().team_with_keys(&id).await.unwrap();
    assert_eq!(gateway.only().param("team_id"), Some(id));
}

#[tokio::test]
async fn metadata_null_reads_as_empty() {
    let data = recording("team-update-metadata-null")["body"]["data"].clone();
    assert!(data["metadata"].is_null());
    let id = data["team_id"].as_str().unwrap().to_owned();
    let body = serde_json::json!({"teams": [data], "total": 1, "page": 1});
    let gateway = Gateway::always(Reply::json(200, body.to_string())).await;
    let team = gateway.client().team(&id).await.unwrap().unwrap();
    assert!(team.metadata.is_empty());
}

#[tokio::test]
async fn creating_a_team() {
    let gateway = Gateway::recorded("team-new").await;
    gateway.client().create_team(&new_team("t")).await.unwrap();
    let seen = gateway.only();
    assert_eq!((seen.method.as_str(), seen.path.as_str()), ("POST", "/team/new"));
    assert!(seen.body.contains(r#""models":["no-default-models"]"#), "{}", seen.body);
    for name in ["team-new-dup", "conc-team-1"] {
        let gateway = Gateway::recorded(name).await;
        let error = gateway.client().create_team(&new_team("t")).await.unwrap_err();
        assert_eq!(error.class(), Class::AlreadyExists, "{name}");
        assert!(!error.may_have_happened(), "{name}");
    }
    let gateway = Gateway::recorded("dbdown-team-new").await;
    let error = gateway.client().create_team(&new_team("t")).await.unwrap_err();
    assert_eq!(error.class(), Class::Transient);
    assert!(error.may_have_happened());
}

#[tokio::test]
async fn a_blank_team_id_is_never_sent() {
    let gateway = Gateway::recorded("team-new").await;
    let client = gateway.client();
    let mut errors: Vec<Error> = Vec::new();
    for id in ["", " "] {
        errors.push(client.create_team(&new_team(id)).await.unwrap_err());
        errors.push(client.update_team(id, &TeamPatch { blocked: Some(true), ..TeamPatch::default() }).await.unwrap_err());
        errors.push(client.delete_team(id).await.unwrap_err());
        errors.push(client.team(id).await.unwrap_err());
        errors.push(client.team_with_keys(id).await.unwrap_err());
    }
    errors.push(client.keys_of_team("").await.unwrap_err());
    errors.push(client.keys_by_alias("").await.unwrap_err());
    for error in errors {
        assert_eq!(error.class(), Class::Refused, "{error}");
        assert!(!error.may_have_happened(), "{error}");
    }
    assert!(gateway.seen().is_empty());
}

#[tokio::test]
async fn updating_a_team() {
    let gateway = Gateway::recorded("team-update-null-budget").await;
    let client = gateway.client();
    client.update_team("waldur-res-1", &TeamPatch::default()).await.unwrap();
    assert!(gateway.seen().is_empty(), "an empty patch is no call");
    let patch = TeamPatch { max_budget: Change::Clear, ..TeamPatch::default() };
    client.update_team("waldur-res-1", &patch).await.unwrap();
    assert_eq!(gateway.only().body, r#"{"team_id":"waldur-res-1","max_budget":null}"#);
    let gateway = Gateway::recorded("team-update-404").await;
    assert_eq!(gateway.client().update_team("x", &patch).await.unwrap_err().class(), Class::NotFound);
    let gateway = Gateway::recorded("dbdown2-team-update").await;
    assert_eq!(gateway.client().update_team("x", &patch).await.unwrap_err().class(), Class::Transient);
}

#[tokio::test]
async fn deleting_a_team() {
    let gateway = Gateway::recorded("team-delete").await;
    gateway.client().delete_team("blk").await.unwrap();
    assert_eq!(gateway.only().body, r#"{"team_ids":["blk"]}"#);
    for name in ["dbdown-delete", "team-delete-again"] {
        let gateway = Gateway::recorded(name).await;
        assert_eq!(gateway.client().delete_team("blk").await.unwrap_err().class(), Class::NotFound, "{name}");
    }
}

#[tokio::test]
async fn a_key_by_its_hash() {
    let gateway = Gateway::recorded("key-info-hash").await;
    let key = gateway.client().key(ALPHA).await.unwrap().unwrap();
    let expected = Key {
        hash: ALPHA.to_owned(),
        alias: Some("alpha-key".to_owned()),
        team_id: Some("waldur-res-1".to_owned()),
        models: vec!["llama-70b".to_owned()],
        max_budget: Some(dec("3")),
        tpm_limit: Some(5000),
        rpm_limit: Some(50),
        metadata: serde_json::from_str(r#"{"waldur_order":"o1"}"#).unwrap(),
        ..Key::default()
    };
    assert_eq!(key, expected);
    assert_eq!(gateway.only().param("key").as_deref(), Some(ALPHA));

    let other = "0".repeat(64);
    assert_eq!(gateway.client().key(&other).await.unwrap_err().class(), Class::Transient, "another key's answer");

    let gateway = Gateway::recorded("key-info-404").await;
    assert_eq!(gateway.client().key(ALPHA).await.unwrap(), None);
    for name in ["dbdown2-key-info", "team-reset-spend", "team-info-404"] {
        let gateway = Gateway::recorded(name).await;
        gateway.client().key(ALPHA).await.unwrap_err();
    }
}

#[tokio::test]
async fn a_deleted_key_is_still_shown() {
    let mut body = recording("key-info-after-team-delete")["body"].clone();
    body["key"] = ALPHA.into();
    let gateway = Gateway::always(Reply::json(200, body.to_string())).await;
    let key = gateway.client().key(ALPHA).await.unwrap().unwrap();
    assert!(key.deleted);
    assert_eq!(key.team_id.as_deref(), Some("blk"));
}

#[tokio::test]
async fn a_clear_key_never_gets_into_an_address() {
    let gateway = Gateway::recorded("key-info-hash").await;
    let error = gateway.client().key("sk-MARKER-clear").await.unwrap_err();
    assert_eq!(error.class(), Class::Refused);
    assert!(!error.to_string().contains("MARKER"));
    gateway.client().delete_keys(&["sk-MARKER-clear".to_owned()]).await.unwrap_err();
    assert!(gateway.seen().is_empty());
}

#[tokio::test]
async fn lists_of_keys() {
    let gateway = Gateway::recorded("key-list-sort").await;
    let keys = gateway.client().keys_of_team("t-use").await.unwrap();
    assert_eq!(keys.iter().map(|k| k.alias.as_deref().unwrap()).collect::<Vec<_>>(), ["t-use-a", "t-use-b"]);
    let seen = gateway.only();
    assert_eq!(seen.param("team_id").as_deref(), Some("t-use"));
    assert_eq!(seen.param("return_full_object").as_deref(), Some("true"));
    assert_eq!(seen.param("size").as_deref(), Some("100"));

    // Filters that are not kept are applied here.
    assert_eq!(gateway.client().keys_of_team("t-other").await.unwrap(), []);
    assert_eq!(gateway.client().keys_by_alias("t-use").await.unwrap(), []);
    assert_eq!(gateway.client().keys_by_alias("t-use-b").await.unwrap().len(), 1);
    assert_eq!(gateway.client().keys().await.unwrap().len(), 2);
    let deleted = gateway.client().deleted_keys_of_team("t-use").await.unwrap();
    assert!(deleted.len() == 2 && deleted.iter().all(|key| key.deleted));
    assert_eq!(gateway.seen().last().unwrap().param("status").as_deref(), Some("deleted"));

    // The list of hashes another form of the call gives is no list of keys.
    let gateway = Gateway::recorded("key-list-alias").await;
    assert_eq!(gateway.client().keys().await.unwrap_err().class(), Class::Transient);
    // The first page of five, as if it were all.
    let gateway = Gateway::recorded("key-list-team-full").await;
    assert_eq!(gateway.client().keys().await.unwrap_err().class(), Class::Transient);
    let gateway = Gateway::recorded("key-list-alias-sub").await;
    assert_eq!(gateway.client().keys().await.unwrap(), []);
    let gateway = Gateway::recorded("dbdown2-key-list").await;
    assert_eq!(gateway.client().keys().await.unwrap_err().class(), Class::Transient);
}

#[tokio::test]
async fn registering_a_key() {
    let own = "sk-alpha-explicit-0001";
    let gateway = Gateway::recorded("key-generate").await;
    let generated = gateway.client().generate_key(&new_key(Some(own))).await.unwrap();
    assert_eq!(generated.hash, ALPHA);
    assert_eq!(generated.key.expose_secret(), own);
    let body = gateway.only().body;
    assert_eq!(body, format!(r#"{{"team_id":"waldur-res-1","key_alias":"alpha-key","key":"{own}","metadata":{{}}}}"#));

    // Another key than ours.
    let error = gateway.client().generate_key(&new_key(Some("sk-other-key-0000000002"))).await.unwrap_err();
    assert!(error.may_have_happened());
    assert!(!error.to_string().contains("explicit"), "{error}");

    let gateway = Gateway::recorded("custom-key-forbidden").await;
    let error = gateway.client().generate_key(&new_key(Some(own))).await.unwrap_err();
    assert_eq!(error.class(), Class::CustomKeysForbidden);
    assert!(!error.may_have_happened());

    let gateway = Gateway::recorded("custom-key-forbidden-generated").await;
    let generated = gateway.client().generate_key(&new_key(None)).await.unwrap();
    assert_eq!(generated.hash, "2c2ed6c3db20916d41d101761ebabfdf0a9ff4407a7bcab3bf420fb8a0ed4ec4");
    assert!(!gateway.only().body.contains("\"key\""));

    for name in ["key-generate-dup-alias", "conc-alias-2"] {
        let gateway = Gateway::recorded(name).await;
        let error = gateway.client().generate_key(&new_key(None)).await.unwrap_err();
        assert_eq!(error.class(), Class::AlreadyExists, "{name}");
    }
    // This one looks like success and is none: only reading back tells.
    let gateway = Gateway::recorded("key-generate-dup-key").await;
    assert_eq!(gateway.client().generate_key(&new_key(Some(own))).await.unwrap().hash, ALPHA);
}

#[tokio::test]
async fn deleting_keys() {
    let gateway = Gateway::recorded("key-delete-token").await;
    gateway.client().delete_keys(&[]).await.unwrap();
    assert!(gateway.seen().is_empty(), "none to delete is no call");
    gateway.client().delete_keys(&[ALPHA.to_owned()]).await.unwrap();
    assert_eq!(gateway.only().body, format!(r#"{{"keys":["{ALPHA}"]}}"#));
    let gateway = Gateway::recorded("key-delete-token-again").await;
    assert_eq!(gateway.client().delete_keys(&[ALPHA.to_owned()]).await.unwrap_err().class(), Class::NotFound);
    let gateway = Gateway::recorded("dbdown2-key-delete-tok").await;
    assert_eq!(gateway.client().delete_keys(&[ALPHA.to_owned()]).await.unwrap_err().class(), Class::Transient);
}

#[tokio::test]
async fn what_a_key_may_do() {
    let key = SecretString::from("sk-MARKER-customer-0001");
    let works = |models: &[&str]| KeyVerdict::Works(models.iter().map(|m| (*m).to_owned()).collect());
    let cases = [
        ("models-with-key", works(&["llama-70b"])),
        ("v1-models-nodef", works(&[])),
        ("v1-models-all", works(&["llama-70b", "mistral-small", "unpriced", "mocky"])),
        ("models-with-key-blocked", KeyVerdict::Blocked),
        ("chat-blocked-key", KeyVerdict::Blocked),
        ("auth-bad", KeyVerdict::Unknown),
        ("chat-deleted-key", KeyVerdict::Unknown),
    ];
    for (name, verdict) in cases {
        let gateway = Gateway::recorded(name).await;
        assert_eq!(gateway.client().models_of_key(&key).await.unwrap(), verdict, "{name}");
        let seen = gateway.only();
        assert_eq!((seen.path.as_str(), seen.authorization.as_deref()), ("/v1/models", Some("Bearer sk-MARKER-customer-0001")));
    }
    for name in ["chat-orphan-team-key", "chat-bud-n", "auth-bad2", "svc2-chat"] {
        let gateway = Gateway::recorded(name).await;
        let verdict = gateway.client().models_of_key(&key).await.unwrap();
        assert!(matches!(verdict, KeyVerdict::Refused { .. }), "{name}: {verdict:?}");
    }
    for name in ["dbdown-vkey-mgmt", "chat-rpm-3", "dbdown2-key-info"] {
        let gateway = Gateway::recorded(name).await;
        let error = gateway.client().models_of_key(&key).await.unwrap_err();
        assert_eq!(error.class(), Class::Transient, "{name}");
    }
    // A login page in front of the gateway says nothing about the key, nor about our credential.
    let gateway = Gateway::always(Reply::text(401, "<html>login</html>")).await;
    assert_eq!(gateway.client().models_of_key(&key).await.unwrap_err().class(), Class::Transient);
}

#[tokio::test]
async fn readiness_is_asked_without_a_key() {
    let gateway = Gateway::recorded("health-readiness").await;
    assert_eq!(gateway.client().readiness().await.unwrap(), Readiness { healthy: true, db_connected: true });
    assert_eq!(gateway.only().authorization, None);
    for name in ["dbdown-health-readiness", "dbdown2-readiness"] {
        let gateway = Gateway::recorded(name).await;
        assert_eq!(gateway.client().readiness().await.unwrap(), Readiness { healthy: false, db_connected: false }, "{name}");
    }
    for reply in [Reply::text(503, "<html>"), Reply::json(200, "{}"), Reply::text(200, "ok"), Reply::text(404, "")] {
        let gateway = Gateway::always(reply).await;
        assert_eq!(gateway.client().readiness().await.unwrap_err().class(), Class::Transient);
    }
}

fn new_deployment(id: &str) -> NewDeployment {
    NewDeployment {
        id: id.to_owned(),
        model_name: "kestrel-8b".to_owned(),
        upstream_model: "openai/kestrel-8b".to_owned(),
        api_base: "http://kestrel-8b.svc:8000/v1".to_owned(),
        api_key: SecretString::from("sk-MARKER-server-0001"),
        input_cost_per_token: Some(dec("0.00000021")),
        output_cost_per_token: None,
        mode: Some("embedding".to_owned()),
        key_mark: "1a2b3c4d".to_owned(),
    }
}

#[tokio::test]
async fn a_deployment_is_sent_with_exact_prices_where_they_count() {
    let gateway = Gateway::recorded("model-new-marked").await;
    let client = gateway.client();
    client.create_deployment(&new_deployment("llma-1")).await.unwrap();
    let seen = gateway.only();
    assert_eq!((seen.method.as_str(), seen.path.as_str()), ("POST", "/model/new"));
    assert_eq!(
        seen.body,
        concat!(
            r#"{"model_name":"kestrel-8b","litellm_params":{"model":"openai/kestrel-8b","#,
            r#""api_base":"http://kestrel-8b.svc:8000/v1","api_key":"sk-MARKER-server-0001","#,
            r#""input_cost_per_token":0.00000021},"#,
            r#""model_info":{"id":"llma-1","mode":"embedding","llm_access_key":"1a2b3c4d"}}"#
        )
    );
    assert!(!format!("{:?}", new_deployment("x")).contains("MARKER"));
    let blank = client.create_deployment(&new_deployment(" ")).await;
    assert_eq!(blank.unwrap_err().class(), Class::Refused);
    assert_eq!(gateway.seen().len(), 1, "a blank id is not sent");
}

#[tokio::test]
async fn a_deployment_that_is_there_fails_like_a_broken_database() {
    for name in ["model-new-dup", "dbdown2-model-new"] {
        let gateway = Gateway::recorded(name).await;
        let error = gateway.client().create_deployment(&new_deployment("llma-1")).await.unwrap_err();
        assert_eq!(error.class(), Class::Transient, "{name}: {error}");
        assert!(error.may_have_happened());
    }
}

#[tokio::test]
async fn a_change_of_a_deployment_clears_with_null_and_names_its_id() {
    let gateway = Gateway::recorded("model-patch-clear").await;
    let client = gateway.client();
    let patch = DeploymentPatch {
        input_cost_per_token: Change::Set(dec("0.0000003")),
        output_cost_per_token: Change::Clear,
        api_key: Some((SecretString::from("sk-MARKER-server-0002"), "ffff".to_owned())),
        ..DeploymentPatch::default()
    };
    client.update_deployment("llma-1", &patch).await.unwrap();
    let seen = gateway.only();
    assert_eq!((seen.method.as_str(), seen.path.as_str()), ("PATCH", "/model/llma-1/update"));
    assert_eq!(
        seen.body,
        concat!(
            r#"{"litellm_params":{"api_key":"sk-MARKER-server-0002","input_cost_per_token":0.0000003,"#,
            r#""output_cost_per_token":null},"model_info":{"id":"llma-1","llm_access_key":"ffff"}}"#
        )
    );
    for id in ["", "a/b", "a?b", "..", "a b"] {
        let refused = client.update_deployment(id, &patch).await.unwrap_err();
        assert_eq!(refused.class(), Class::Refused, "{id}");
    }
    assert_eq!(gateway.seen().len(), 1);
    for (name, class) in [("model-patch-404", Class::NotFound), ("model-patch-cfg", Class::Refused)] {
        let gateway = Gateway::recorded(name).await;
        let error = gateway.client().update_deployment("llma-1", &patch).await.unwrap_err();
        assert_eq!(error.class(), class, "{error}");
        assert!(!error.to_string().contains("MARKER"));
    }
}

#[tokio::test]
async fn a_deployment_is_deleted_by_its_id() {
    let gateway = Gateway::recorded("model-delete").await;
    gateway.client().delete_deployment("llma-1").await.unwrap();
    let seen = gateway.only();
    assert_eq!((seen.path.as_str(), seen.body.as_str()), ("/model/delete", r#"{"id":"llma-1"}"#));
    for name in ["model-delete-again", "model-delete-cfg"] {
        let gateway = Gateway::recorded(name).await;
        let error = gateway.client().delete_deployment("llma-1").await;
        assert_eq!(error.unwrap_err().class(), Class::Refused, "{name}");
    }
}

#[tokio::test]
async fn model_prices_are_exact() {
    let gateway = Gateway::recorded("model-info").await;
    let models = gateway.client().model_info().await.unwrap();
    let prices: Vec<_> = models
        .iter()
        .map(|m| (m.model_name.as_str(), m.upstream_model.as_deref().unwrap(), m.input_cost_per_token, m.output_cost_per_token))
        .collect();
    assert_eq!(
        prices,
        [
            ("llama-70b", "openai/llama-70b", Some(dec("0.000001")), Some(dec("0.000002"))),
            ("mistral-small", "openai/mistral-small", Some(dec("0.00001")), Some(dec("0.00003"))),
            ("unpriced", "openai/unpriced-xyz", None, None),
            ("mocky", "openai/gpt-4o-mini", Some(dec("0.00000015")), Some(dec("0.0000006"))),
        ]
    );
    assert_eq!(models[0].id.as_deref(), Some("cfg-llama-70b"));
    assert_eq!(models[3].mode.as_deref(), Some("chat"));
    assert_eq!(models[0].own_input_cost, Some(dec("0.000001")));
    assert!(!models[0].db_model);
    assert_eq!(models[0].api_base.as_deref(), Some("http://127.0.0.1:55443/v1"));
    let gateway = Gateway::recorded("dbdown-model-info").await;
    assert_eq!(gateway.client().model_info().await.unwrap_err().class(), Class::Transient);
    // What answers from memory while the database is down is no catalogue.
    let gateway = Gateway::recorded("dbdown2-models").await;
    gateway.client().model_info().await.unwrap_err();
}

fn day() -> jiff::civil::Date {
    jiff::civil::date(2026, 11, 30)
}

fn sum<'a>(counts: impl IntoIterator<Item = &'a Counts>) -> Counts {
    counts.into_iter().fold(Counts::default(), |sum, part| sum.checked_add(part).unwrap())
}

#[tokio::test]
async fn daily_rows_add_up_exactly() {
    let gateway = Gateway::recorded("team-daily-activity").await;
    let days = gateway.client().daily_activity(&["t-use"], day(), day()).await.unwrap();
    let [page] = days.as_slice() else { panic!("{days:?}") };
    assert_eq!(page.date, day());
    assert_eq!(page.totals.spend, dec("0.007523500000000001"));
    assert_eq!((page.totals.prompt_tokens, page.totals.cache_read_input_tokens), (1700, 60));
    assert_eq!((page.totals.successful_requests, page.totals.failed_requests, page.totals.api_requests), (7, 1, 8));
    for model in &page.models {
        let parts = sum(model.keys.iter().map(|key| &key.counts));
        assert!(parts.agrees_with(&model.totals), "{}: {parts:?}", model.model_group);
        assert!(model.keys.iter().all(|key| key.team_id.as_deref() == Some("t-use")));
    }
    // The gateway adds in binary and its total ends in a stray digit; ours does not.
    let parts = sum(page.models.iter().flat_map(|m| &m.keys).map(|k| &k.counts));
    assert_eq!(parts.spend, dec("0.0075235"));
    let models = sum(page.models.iter().map(|m| &m.totals));
    assert_eq!(models.spend, parts.spend);
    assert!(models.agrees_with(&page.totals));
    let one_more = Counts { total_tokens: parts.total_tokens + 1, ..parts };
    assert!(!one_more.agrees_with(&parts));
    let dearer = Counts { spend: parts.spend + dec("0.00000001"), ..parts };
    assert!(!dearer.agrees_with(&parts));
    let seen = gateway.only();
    assert_eq!(seen.path, "/team/daily/activity");
    assert_eq!(seen.param("team_ids").as_deref(), Some("t-use"));
    assert_eq!((seen.param("start_date"), seen.param("end_date")), (Some("2026-11-30".to_owned()), Some("2026-11-30".to_owned())));
    assert_eq!((seen.param("page").as_deref(), seen.param("page_size").as_deref()), (Some("1"), Some("5000")));
    assert_eq!(seen.param("timezone"), None);
}

#[tokio::test]
async fn a_deleted_team_keeps_its_rows() {
    let gateway = Gateway::recorded("daily-deleted-team").await;
    let days = gateway.client().daily_activity(&[], day(), day()).await.unwrap();
    let key = &days[0].models[0].keys[0];
    assert_eq!((key.alias.as_deref(), key.team_id.as_deref()), (Some("t-del2-k"), Some("t-del")));
    assert_eq!(gateway.only().param("team_ids"), None);
}

#[tokio::test]
async fn pages_of_one_day_are_parts_of_it() {
    // The recorded pages 1 and 2 of 3, the second as if it were the last.
    let gateway = Gateway::start(|seen| match seen.param("page").as_deref() {
        Some("1") => Reply::recorded("team-daily-activity-p1"),
        _ => {
            let mut reply = Reply::recorded("team-daily-activity-p2");
            let text = String::from_utf8(reply.body).unwrap();
            assert!(text.contains("\"has_more\": true") && text.contains("\"total_pages\": 3"));
            let text = text.replace("\"has_more\": true", "\"has_more\": false").replace("\"total_pages\": 3", "\"total_pages\": 2");
            reply.body = text.into_bytes();
            reply
        }
    })
    .await;
    let days = gateway.client().daily_activity(&["t-use"], day(), day()).await.unwrap();
    assert_eq!(days.len(), 2);
    assert_eq!(days[0].totals.spend, dec("0.0023935000000000002"));
    assert_eq!(gateway.seen().len(), 2);
}

#[tokio::test]
async fn a_page_that_is_none_is_never_an_empty_ledger() {
    let gateway = Gateway::recorded("team-daily-activity-empty-range").await;
    assert_eq!(gateway.client().daily_activity(&["t-use"], day(), day()).await.unwrap(), []);
    let recorded = [
        // Page 99 in answer to page 1, and page 1 of 3 for ever.
        "team-daily-activity-p99",
        "team-daily-activity-p1",
        "dbdown-daily",
        "dbdown2-agg",
    ];
    for name in recorded {
        let gateway = Gateway::recorded(name).await;
        let error = gateway.client().daily_activity(&["t-use"], day(), day()).await.unwrap_err();
        assert_eq!(error.class(), Class::Transient, "{name}: {error}");
    }
    let metadata = r#""metadata":{"page":1,"total_pages":1,"has_more":false}"#;
    let bodies = [
        "null".to_owned(),
        "[]".to_owned(),
        "{}".to_owned(),
        r#"{"results":[]}"#.to_owned(),
        format!("{{{metadata}}}"),
        format!(r#"{{"results":null,{metadata}}}"#),
        r#"{"results":[],"metadata":{"page":1,"total_pages":1,"has_more":true}}"#.to_owned(),
        r#"{"results":[],"metadata":{"page":1,"total_pages":3,"has_more":false}}"#.to_owned(),
        r#"{"results":[],"metadata":{"page":1,"total_pages":1}}"#.to_owned(),
        format!(r#"{{"results":[{{"date":"2026-11-30"}}],{metadata}}}"#),
    ];
    for body in bodies {
        let gateway = Gateway::always(Reply::json(200, body.as_str())).await;
        let error = gateway.client().daily_activity(&[], day(), day()).await.unwrap_err();
        assert_eq!(error.class(), Class::Transient, "{body}: {error}");
    }
    // A day nobody asked for.
    let gateway = Gateway::recorded("team-daily-activity").await;
    let december = jiff::civil::date(2026, 12, 1);
    assert_eq!(gateway.client().daily_activity(&[], december, december).await.unwrap_err().class(), Class::Transient);
    // A key that is no administrator's.
    let gateway = Gateway::recorded("key-daily-as-team").await;
    assert_eq!(gateway.client().daily_activity(&[], day(), day()).await.unwrap_err().class(), Class::Credential);
}

#[tokio::test]
async fn totals_of_a_day_come_in_one_answer_or_not_at_all() {
    let gateway = Gateway::recorded("team-daily-activity-agg").await;
    let days = gateway.client().daily_totals(&["t-use"], day(), day()).await.unwrap().unwrap();
    assert_eq!(days[0].totals.total_tokens, 2400);
    assert_eq!(gateway.only().path, "/team/daily/activity/aggregated");
    let gateway = Gateway::recorded("team-reset-spend").await;
    assert_eq!(gateway.client().daily_totals(&[], day(), day()).await.unwrap(), None);
    for name in ["dbdown2-agg", "agg-toolong", "key-daily-as-team"] {
        let gateway = Gateway::recorded(name).await;
        gateway.client().daily_totals(&[], day(), day()).await.unwrap_err();
    }
}

#[tokio::test]
async fn senseless_ranges_and_team_ids_are_not_sent() {
    let gateway = Gateway::recorded("team-daily-activity-empty-range").await;
    let client = gateway.client();
    client.daily_activity(&[], day(), jiff::civil::date(2026, 11, 29)).await.unwrap_err();
    client.daily_activity(&["a,b"], day(), day()).await.unwrap_err();
    client.daily_totals(&[""], day(), day()).await.unwrap_err();
    assert!(gateway.seen().is_empty());
}

#[test]
fn hashes_agree_with_the_gateway() {
    let body = recording("key-generate")["body"].clone();
    let key = SecretString::from(body["key"].as_str().unwrap());
    assert_eq!(key_hash(&key), body["token"].as_str().unwrap());
}
