//! Whatever a server sends, the client reads it or says that it cannot.

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use waldur_client::{ApiKey, ComponentUsage, Offering, Order, OrderKind, OrderState, Plan, Resource, ResourceState, User};

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,20}".prop_map(Value::from),
        "[0-9a-f]{32}".prop_map(Value::from),
        "-?[0-9]{0,35}\\.?[0-9]{0,35}(e-?[0-9]{1,3})?".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::hash_map(field_name(), inner, 0..6).prop_map(|map| Value::from(map.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

fn field_name() -> impl Strategy<Value = String> {
    let known = prop::sample::select(vec![
        "uuid",
        "state",
        "type",
        "limits",
        "options",
        "attributes",
        "report",
        "endpoints",
        "components",
        "plans",
        "prices",
        "future_prices",
        "usage",
        "billing_period",
        "permissions",
        "created",
        "paused",
        "marketplace_resource_uuid",
        "backend_metadata",
    ]);
    prop_oneof![3 => known.prop_map(str::to_owned), 1 => "\\PC{0,8}"]
}

/// An object with the fields of every model, any of them odd.
fn any_object() -> impl Strategy<Value = Value> {
    prop::collection::hash_map(field_name(), any_json(), 0..12).prop_map(|map| {
        let mut map: Map<String, Value> = map.into_iter().collect();
        map.insert("uuid".into(), "1f2e3d4c-5b6a-4798-8990-a1b2c3d4e5f6".into());
        Value::from(map)
    })
}

fn decode_all(text: &str) {
    let _ = serde_json::from_str::<User>(text);
    let _ = serde_json::from_str::<Vec<Order>>(text);
    let _ = serde_json::from_str::<Order>(text);
    let _ = serde_json::from_str::<Resource>(text);
    let _ = serde_json::from_str::<Offering>(text);
    let _ = serde_json::from_str::<Plan>(text);
    let _ = serde_json::from_str::<ComponentUsage>(text);
    let _ = serde_json::from_str::<ApiKey>(text);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_json_is_read_or_refused(value in any_json(), object in any_object()) {
        for value in [value, object] {
            decode_all(&value.to_string());
            decode_all(&json!([value]).to_string());
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,60}") {
        decode_all(&text);
    }

    #[test]
    fn words_of_later_servers_survive(word in "[a-zA-Z-]{1,20}") {
        let row = json!({"uuid": "1f2e3d4c5b6a47988990a1b2c3d4e5f6", "state": word, "type": word});
        let order: Order = serde_json::from_value(row.clone()).unwrap();
        prop_assert_eq!(order.state.as_str(), &word);
        prop_assert_eq!(order.kind.to_string(), word.clone());
        let resource: Resource = serde_json::from_value(row).unwrap();
        prop_assert_eq!(resource.state.as_str(), &word);
        prop_assert_eq!(OrderState::from(word.as_str()), order.state);
    }
}

#[test]
fn unknown_words_are_kept_apart_from_known_ones() {
    assert_eq!(OrderState::from("on-hold"), OrderState::Other("on-hold".into()));
    assert_eq!(OrderState::from("done"), OrderState::Done);
    assert_eq!(OrderKind::from("Restore"), OrderKind::Restore);
    assert_eq!(ResourceState::from("OK"), ResourceState::Ok);
}

#[test]
fn a_bare_row_is_a_row() {
    for text in [
        r#"{"uuid":"1f2e3d4c5b6a47988990a1b2c3d4e5f6"}"#,
        r#"{"uuid":"1f2e3d4c-5b6a-4798-8990-a1b2c3d4e5f6","state":null,"type":null,"limits":null,"options":null,
            "attributes":null,"report":null,"endpoints":null,"offering_uuid":null,"plan_uuid":"","paused":null,
            "backend_metadata":null,"created":null,"name":null,"later":{"than":"we know"}}"#,
    ] {
        let order: Order = serde_json::from_str(text).unwrap();
        let resource: Resource = serde_json::from_str(text).unwrap();
        assert_eq!(order.uuid, resource.uuid);
        assert_eq!(order, Order { uuid: order.uuid, ..Order::default() });
        assert_eq!(resource, Resource { uuid: order.uuid, ..Resource::default() });
    }
}

#[test]
fn numbers_may_be_texts_and_texts_numbers() {
    let text = r#"{"uuid":"1f2e3d4c5b6a47988990a1b2c3d4e5f6","name":17,"paused":"true","backend_id":4.50,
        "limits":{"a":"12.50","b":3,"c":1e-10,"d":null,"e":0.1,"f":100000000000000000000000000.1}}"#;
    let resource: Resource = serde_json::from_str(text).unwrap();
    assert_eq!(resource.name, "17");
    assert_eq!(resource.backend_id, "4.50");
    assert!(resource.paused);
    let limits: Vec<String> = resource.limits.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(limits, ["a=12.50", "b=3", "c=0.0000000001", "e=0.1", "f=100000000000000000000000000.1"]);
    let usage: ComponentUsage = serde_json::from_str(r#"{"type":"a","usage":7}"#).unwrap();
    assert_eq!(usage.usage.to_string(), "7");
}

#[test]
fn a_limit_that_is_no_number_is_an_error_and_not_left_out() {
    for limits in [json!({"spend": "lots"}), json!({"spend": {}}), json!({"spend": true}), json!("x")] {
        let row = json!({"uuid": "1f2e3d4c5b6a47988990a1b2c3d4e5f6", "limits": limits});
        assert!(serde_json::from_value::<Order>(row).is_err(), "{limits}");
    }
    assert!(serde_json::from_str::<ComponentUsage>(r#"{"type":"a","usage":null}"#).is_err());
}

#[test]
fn one_customer_cannot_make_the_list_unreadable() {
    let text = format!(
        r#"[{{"uuid":"1f2e3d4c5b6a47988990a1b2c3d4e5f6","attributes":{{"n":{},"deep":{}{}}},"limits":{{"a":{}}}}}]"#,
        "9".repeat(4000),
        "[".repeat(5000),
        "]".repeat(5000),
        "9".repeat(4000),
    );
    let orders: Vec<Order> = serde_json::from_str(&text).unwrap();
    assert_eq!(orders[0].attributes["n"].as_str().unwrap().len(), 4000);
    assert_eq!(orders[0].limits["a"], rust_decimal::Decimal::MAX);
}
