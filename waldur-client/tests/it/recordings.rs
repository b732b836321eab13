//! Real answers, read through the whole client.

use std::fs;
use std::path::{Path, PathBuf};

use rust_decimal::Decimal;
use serde_json::{Value, json};
use waldur_client::{BillingType, Class, ErrorKind, OrderKind, OrderState, ResourceState};

use crate::server::{Reply, Server, uuid};

pub const OFFERING: &str = "f7c76de22a004005aba23e3c120302e5";
pub const PLAN: &str = "48ca3edf2c8c461faa7ca5e3870257aa";
pub const RESOURCE: &str = "cc1dc93b55dc44e498d80e9f482999f1";
pub const ORDER: &str = "d9c399dddbae4803aa42c7b68218cd5f";

/// One recorded exchange.
pub struct Recording {
    pub name: String,
    pub method: String,
    pub path: String,
    pub request: Value,
    pub status: u16,
    content_type: String,
    count: Option<String>,
    link: Option<String>,
    body: Value,
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/recordings/waldur")
}

fn names() -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

impl Recording {
    /// The recording whose name begins like this, e.g. `c019`.
    pub fn load(prefix: &str) -> Self {
        let name = names().into_iter().find(|name| name.starts_with(prefix)).unwrap_or_else(|| panic!("no recording {prefix}"));
        let text = fs::read_to_string(directory().join(&name)).unwrap();
        let json: Value = serde_json::from_str(&text).unwrap();
        let (request, response) = (&json["request"], &json["response"]);
        let url: url::Url = request["url"].as_str().unwrap().parse().unwrap();
        let header = |name: &str| response["headers"][name].as_str().map(str::to_owned);
        Self {
            name,
            method: request["method"].as_str().unwrap().to_owned(),
            path: url.path().to_owned(),
            request: request["body"].clone(),
            status: u16::try_from(response["status"].as_u64().unwrap()).unwrap(),
            content_type: header("Content-Type").unwrap_or_default(),
            count: header("X-Result-Count"),
            link: header("Link"),
            body: response["body"].clone(),
        }
    }

    pub fn reply(&self) -> Reply {
        let body = match &self.body {
            Value::String(text) if !self.content_type.contains("json") => text.clone(),
            body => body.to_string(),
        };
        let mut reply = Reply::new(self.status, body);
        if !self.content_type.is_empty() {
            reply = reply.header("content-type", &self.content_type);
        }
        for (name, value) in [("x-result-count", &self.count), ("link", &self.link)] {
            if let Some(value) = value {
                reply = reply.header(name, value);
            }
        }
        reply
    }

    /// A server that gives this answer at this address, and fails the test at any other.
    pub async fn serve(&self) -> Server {
        let (path, method, reply) = (self.path.clone(), self.method.clone(), self.reply());
        Server::start(move |seen, _| {
            if seen.path == path && seen.method == method {
                reply.clone()
            } else {
                Reply::json(500, json!({"detail": format!("unexpected {} {}", seen.method, seen.path)}))
            }
        })
        .await
    }
}

fn dec(text: &str) -> Decimal {
    text.parse().unwrap()
}

#[tokio::test]
async fn the_user() {
    // `users/me/` answers in the shape of a user.
    let mut recording = Recording::load("a005");
    recording.method = "GET".to_owned();
    recording.path = "/api/users/me/".to_owned();
    recording.status = 200;
    recording.body["permissions"] = json!([{
        "user_uuid": "3fddc4bc1ed547ab93a3977d8cdc1a7b", "role_name": "CUSTOMER.OWNER",
        "scope_type": "customer", "scope_uuid": "43084d6aee3e457a8823a84f7d8d726f",
        "scope_name": "Lab Compute Provider", "expiration_time": null,
    }]);
    let server = recording.serve().await;
    let me = server.client().me().await.unwrap();
    assert_eq!(me.username, "lab-agent");
    assert!(!me.is_staff);
    let role = &me.permissions[0];
    assert_eq!(role.role_name, "CUSTOMER.OWNER");
    assert_eq!(role.scope_type, "customer");
    assert_eq!(role.scope_uuid, Some(uuid("43084d6aee3e457a8823a84f7d8d726f")));
}

#[tokio::test]
async fn a_list_of_orders_takes_one_call() {
    let server = Recording::load("c010").serve().await;
    let orders = server.client().orders(uuid(OFFERING), &[OrderState::PendingConsumer]).await.unwrap();
    assert_eq!(orders.len(), 3);
    let order = &orders[2];
    assert_eq!(order.uuid, uuid(ORDER));
    assert_eq!(order.state, OrderState::PendingConsumer);
    assert_eq!(order.kind, OrderKind::Create);
    assert_eq!(order.resource, Some(uuid(RESOURCE)));
    assert_eq!(order.offering, Some(uuid(OFFERING)));
    assert_eq!(order.plan, Some(uuid(PLAN)));
    assert_eq!(order.limits["spend"], dec("50"));
    assert_eq!(order.attributes["available_models"], json!(["kestrel-8b", "heron-70b"]));
    assert_eq!(order.project_slug, "seabird--1");
    assert_eq!(order.customer_slug, "tern-res-1");
    assert_eq!(order.resource_name, "seabird-llm");
    assert_eq!(order.created.unwrap().to_string(), "2026-11-30T03:14:38.456127Z");
    assert!(orders[0].limits.is_empty());

    let seen = server.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].query("offering_uuid"), Some(OFFERING));
    assert_eq!(seen[0].query("state"), Some("pending-consumer"));
    assert_eq!(seen[0].query("page_size"), Some("100"));
    assert!(seen[0].query.contains(&("field".into(), "marketplace_resource_uuid".into())));
}

#[tokio::test]
async fn orders_in_their_states() {
    let cases = [
        ("c012", ORDER, OrderState::PendingProvider, OrderKind::Create),
        ("c019", ORDER, OrderState::Executing, OrderKind::Create),
        ("e011", "75763a27ae4448739045a77fa4f770c6", OrderState::Erred, OrderKind::Update),
    ];
    for (recording, order, state, kind) in cases {
        let server = Recording::load(recording).serve().await;
        let order = server.client().order(uuid(order)).await.unwrap();
        assert_eq!((&order.state, &order.kind), (&state, &kind), "{recording}");
        // The plugin's own uuid is not mistaken for the marketplace resource.
        assert_eq!(order.resource, Some(uuid(RESOURCE)), "{recording}");
    }
}

#[tokio::test]
async fn an_erred_update_keeps_limits_and_message() {
    let server = Recording::load("e003").serve().await;
    let orders = server.client().orders(uuid(OFFERING), &[]).await.unwrap();
    assert_eq!(orders[0].limits["spend"], dec("80"));
    assert!(orders[0].error_message.contains("schedule_updating"));
}

#[tokio::test]
async fn resources_in_their_states() {
    let read = async |recording: &str, resource: &str| {
        let server = Recording::load(recording).serve().await;
        server.client().resource(uuid(resource)).await.unwrap()
    };
    let creating = read("c020", RESOURCE).await;
    assert_eq!(creating.state, ResourceState::Creating);
    assert_eq!(creating.backend_id, "");

    let ok = read("c028", RESOURCE).await;
    assert_eq!(ok.state, ResourceState::Ok);
    assert_eq!(ok.backend_id, "team-7f3a");
    assert_eq!(ok.slug, "seabird--2");
    assert_eq!(ok.limits["spend"], dec("50"));
    assert_eq!(ok.backend_metadata["key_alias"], "seabird");
    assert_eq!(ok.customer_name, "Tern Research Group");
    assert!(ok.options.is_empty() && ok.report.is_empty() && ok.endpoints.is_empty());
    assert!(!ok.paused && !ok.downscaled);

    let reported = read("d031", RESOURCE).await;
    assert_eq!(reported.report[0].header, "Models");
    assert_eq!(reported.report[0].body, "kestrel-8b: 12.5k in");

    let terminated = read("e041", RESOURCE).await;
    assert_eq!(terminated.state, ResourceState::Terminated);

    let options = read("g019", "db23f35fd6ac4a96b7832a9f3695720e").await;
    assert_eq!(options.options["available_models"], json!(["heron-70b"]));
    assert_eq!(options.attributes["available_models"], json!(["kestrel-8b"]));

    let refused = read("i016", "1f0e9a1838004c9fa07d80517179f16e").await;
    assert_eq!(refused.state, ResourceState::Terminated);
    assert!(refused.limits.is_empty());
}

#[tokio::test]
async fn a_list_of_resources() {
    let server = Recording::load("g031").serve().await;
    let resources = server.client().resources(uuid(OFFERING), &[]).await.unwrap();
    assert_eq!(resources.len(), 3);
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn an_offering_with_components_and_plans() {
    let server = Recording::load("b004").serve().await;
    let offering = server.client().offering(uuid(OFFERING)).await.unwrap();
    assert_eq!(offering.name, "Shared LLM access");
    assert_eq!(offering.state, "Draft");
    assert_eq!(offering.kind, "Marketplace.Slurm");
    assert_eq!(offering.customer, Some(uuid("43084d6aee3e457a8823a84f7d8d726f")));
    assert_eq!(offering.components.len(), 5);
    let spend = &offering.components[1];
    assert_eq!(spend.kind, "spend");
    assert_eq!(spend.name, "Budget");
    assert_eq!(spend.billing_type, BillingType::Limit);
    assert_eq!(spend.measured_unit, "EUR");
    assert_eq!(spend.limit_period, "month");
    assert_eq!(spend.max_value, Some(dec("100000")));
    assert_eq!(spend.default_limit, Some(dec("50")));
    assert_eq!(spend.uuid, Some(uuid("8cca091fd290443b8b9738a063c0628c")));
    assert_eq!(offering.components[0].billing_type, BillingType::Fixed);
    assert_eq!(offering.components[2].billing_type, BillingType::Usage);
    assert_eq!(offering.options["options"]["available_models"]["choices"][1], "heron-70b");
    assert_eq!(offering.resource_options["order"], json!(["available_models"]));
    assert_eq!(offering.plugin_options["auto_approve_in_service_provider_projects"], false);
    let plan = &offering.plans[0];
    assert_eq!(plan.uuid, uuid(PLAN));
    assert_eq!(plan.name, "Standard");
    assert_eq!(plan.prices["kestrel-8b-input"], Decimal::ZERO);
    assert!(plan.future_prices.is_empty());

    let server = Recording::load("k013").serve().await;
    let offering = server.client().offering(uuid(OFFERING)).await.unwrap();
    assert_eq!(offering.backend_metadata["retired_components"], json!(["unused-input"]));
}

#[tokio::test]
async fn prices_are_exact_down_to_the_last_decimal() {
    let read = async |recording: &str| {
        let server = Recording::load(recording).serve().await;
        server.client().plan(uuid(PLAN)).await.unwrap()
    };
    assert_eq!(read("b018").await.prices["kestrel-8b-input"], dec("0.0003"));
    assert!(read("l002").await.future_prices.is_empty());
    let tiny = read("l004").await.future_prices;
    assert_eq!(tiny["kestrel-8b-input"], dec("0.0000000001"));
    assert_eq!(tiny.len(), 1, "prices that will not change have no entry");
    let zero = read("l006").await.future_prices;
    assert_eq!(zero["kestrel-8b-input"], Decimal::ZERO);
}

#[tokio::test]
async fn usages_of_a_month() {
    let server = Recording::load("d014").serve().await;
    let usages = server.client().usages(uuid(RESOURCE), "2026-11-17".parse().unwrap()).await.unwrap();
    let amounts: Vec<_> = usages.iter().map(|u| (u.kind.as_str(), u.usage)).collect();
    assert_eq!(amounts.len(), 4);
    assert_eq!(amounts[0], ("kestrel-8b-input", dec("11.00")));
    assert_eq!(amounts[2], ("kestrel-8b-output", dec("3.20")));
    assert_eq!(usages[0].billing_period, Some("2026-11-01".parse().unwrap()));
    let seen = server.seen();
    assert_eq!(seen[0].query("billing_period"), Some("2026-11-01"));
    assert_eq!(seen[0].query("resource_uuid"), Some(RESOURCE));
}

#[tokio::test]
async fn a_page_of_a_longer_list_is_not_the_list() {
    // Two rows of seven, the same again for every page.
    let server = Recording::load("e053").serve().await;
    let error = server.client().orders(uuid(OFFERING), &[]).await.unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Incomplete { .. }), "{error}");
    assert!(error.to_string().contains("counts 7") && error.to_string().contains("hold 2"), "{error}");
}

#[tokio::test]
async fn every_recorded_refusal_has_a_class_and_a_text() {
    let mut refusals = 0;
    for name in names() {
        let recording = Recording::load(&name);
        if recording.status < 400 {
            continue;
        }
        refusals += 1;
        let server = Server::always(recording.reply()).await;
        let error = server.client().set_order_done(uuid(ORDER)).await.unwrap_err();
        let class = match recording.status {
            401 | 403 => Class::Credential,
            404 if recording.content_type.contains("html") => Class::NoSuchRoute,
            404 => Class::NotFound,
            405 => Class::NoSuchRoute,
            409 => Class::Conflict,
            500 => Class::Transient,
            _ => Class::Refused,
        };
        assert_eq!(error.class(), class, "{name}: {error}");
        assert_eq!(error.status(), Some(recording.status));
        assert_eq!(error.may_have_happened(), recording.status == 500, "{name}");
        let ErrorKind::Status { message, .. } = &error.kind else {
            panic!("{name}: {error:?}");
        };
        assert!(!message.is_empty() || recording.body == "", "{name}");
        assert!(!message.contains(['{', '<', '\n']), "{name}: {message}");
    }
    assert!(refusals > 20, "{refusals}");
}

#[tokio::test]
async fn the_five_shapes_of_errors_give_their_text() {
    let cases = [
        ("c017", "Valid states for operation: pending-provider."),
        ("d036", "The component heron-70b input tokens cannot be removed because it is already used"),
        ("d003", "usages[0].amount: Ensure that there are no more than 2 decimal places."),
        ("d005", "These components are invalid: nosuch-input."),
        ("c014", "state: Select a valid choice. nosuch is not one of the available choices."),
        ("e006", "Server Error (500)"),
        ("d022", "Not Found"),
    ];
    for (recording, text) in cases {
        let server = Server::always(Recording::load(recording).reply()).await;
        let error = server.client().set_order_done(uuid(ORDER)).await.unwrap_err();
        let ErrorKind::Status { message, html, .. } = &error.kind else {
            panic!("{error:?}");
        };
        assert_eq!(message, text, "{recording}");
        assert_eq!(*html, matches!(recording, "e006" | "d022"), "{recording}");
    }
    let list = Reply::json(400, json!(["Pending order for resource already exists."]));
    let server = Server::always(list).await;
    let error = server.client().set_order_done(uuid(ORDER)).await.unwrap_err();
    let ErrorKind::Status { message, fields, .. } = &error.kind else {
        panic!("{error:?}");
    };
    assert_eq!(message, "Pending order for resource already exists.");
    assert_eq!(&fields[""][0], message);
}

#[tokio::test]
async fn the_key_of_a_refusal_is_kept() {
    let server = Server::always(Recording::load("d036").reply()).await;
    let error = server.client().remove_component(uuid(OFFERING), uuid(RESOURCE)).await.unwrap_err();
    let ErrorKind::Status { fields, .. } = &error.kind else {
        panic!("{error:?}");
    };
    assert!(fields["details"][0].ends_with("already used"));
}
