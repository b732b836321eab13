//! A key for the agent that may call exactly some routes of the gateway, made as docs/security.md says.

use llm_access_agent::rights::{MODEL_ROUTES, ROUTES};
use serde_json::{Value, json};
use url::Url;

/// Every route of `docs/security.md`, those for `gateway.manage_models` last.
#[must_use]
pub fn all_routes() -> Vec<&'static str> {
    ROUTES.iter().chain(&MODEL_ROUTES).map(|route| route.path).collect()
}

/// What a refusal of this route says, where it is not the path itself.
#[must_use]
pub fn as_refused(route: &str) -> &str {
    if route == "/model/llma-*" { "/model/{id}/update" } else { route }
}

/// Makes an administrator of this name, and a key of his that may call these routes only.
pub async fn narrow_key(gateway: &Url, master: &str, user: &str, routes: &[&str]) -> String {
    rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let post = async |path: &str, body: Value| -> Value {
        let request = http.post(gateway.join(path).unwrap()).bearer_auth(master).header("content-type", "application/json");
        let answer = request.body(body.to_string()).send().await.unwrap();
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        assert_eq!(status, 200, "{path}: {text}");
        serde_json::from_str(&text).unwrap()
    };
    post("user/new", json!({"user_id": user, "user_role": "proxy_admin", "auto_create_key": false})).await;
    let made = post("key/generate", json!({"user_id": user, "key_alias": user, "allowed_routes": routes})).await;
    made["key"].as_str().unwrap().to_owned()
}
