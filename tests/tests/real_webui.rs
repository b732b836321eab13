//! A real Open WebUI on the Secret of its project: a pod with `envFrom`, and nothing else that says where models are.
#![cfg(feature = "real")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use llm_access_agent::agent::Agent;
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::catalogue;
use llm_access_tests::checker::hash;
use llm_access_tests::port::ReservedPort;
use llm_access_tests::real::{RealStore, RealWorld, Time, Variant, command, eventually, told};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use uuid::Uuid;

/// More than the hold of a catalogue.
const HOLD: Duration = Duration::from_secs(3700);

/// The Open WebUI of one project. Its state outlives its processes, as a volume outlives its pods.
struct WebUi {
    folder: PathBuf,
    process: Option<Child>,
    url: String,
    port: ReservedPort,
    http: reqwest::Client,
}

impl WebUi {
    fn of(world: &RealWorld) -> Self {
        let port = ReservedPort::take();
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(60)).build().unwrap();
        let folder = world.write("webui-volume", "").with_file_name("webui");
        Self { folder, process: None, url: format!("http://{}", port.address), port, http }
    }

    /// A new process, with exactly these variables besides what any deployment brings along.
    async fn restart(&mut self, variables: &BTreeMap<String, String>) {
        if let Some(mut old) = self.process.take() {
            old.kill().await.unwrap();
        }
        let log = self.folder.with_extension("log");
        let file = std::fs::File::create(&log).unwrap();
        let mut start = Command::new(told("WEBUI"));
        start.arg(&self.folder).arg(self.port.address.port().to_string()).env_clear().envs(variables);
        start
            .env("PATH", std::env::var_os("PATH").unwrap())
            .envs(std::env::var_os("LLM_ACCESS_CACHE").map(|cache| ("LLM_ACCESS_CACHE", cache)));
        let start = start.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file).kill_on_drop(true);
        self.process = Some(start.spawn().unwrap());
        let health = format!("{}/health", self.url);
        eventually("a healthy Open WebUI", async || match self.http.get(&health).send().await {
            Ok(answer) if answer.status() == 200 => Ok(()),
            _ => Err(std::fs::read_to_string(&log).unwrap()),
        })
        .await;
    }

    async fn ask(&self, method: Method, path: &str, token: &str, body: Option<Value>) -> (u16, Value) {
        let mut request = self.http.request(method, format!("{}{path}", self.url));
        if !token.is_empty() {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        (status, answer.json().await.unwrap_or_default())
    }

    async fn signed_in(&self, email: &str, password: &str) -> String {
        let (status, answer) =
            self.ask(Method::POST, "/api/v1/auths/signin", "", Some(json!({"email": email, "password": password}))).await;
        assert_eq!(status, 200, "{answer}");
        answer["token"].as_str().unwrap().to_owned()
    }

    async fn admin(&self) -> String {
        self.signed_in("admin@example.org", "admin-of-this-run").await
    }

    /// Somebody of the project, without any right of an administrator.
    async fn member(&self) -> String {
        let account = json!({"name": "Iris", "email": "iris@example.org", "password": "member-of-this-run", "role": "user"});
        // 400: an earlier process made it.
        let (status, answer) = self.ask(Method::POST, "/api/v1/auths/add", &self.admin().await, Some(account)).await;
        assert!(matches!(status, 200 | 400), "{status} {answer}");
        self.signed_in("iris@example.org", "member-of-this-run").await
    }

    /// What a member may choose from.
    async fn models(&self) -> Vec<String> {
        let (status, answer) = self.ask(Method::GET, "/api/models", &self.member().await, None).await;
        assert_eq!(status, 200, "{answer}");
        let mut names: Vec<String> = answer["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    }

    /// What a member is answered; the status of a refusal.
    async fn chat(&self, model: &str, prompt: &str) -> Result<String, u16> {
        let member = self.member().await;
        let body = json!({"model": model, "stream": false, "messages": [{"role": "user", "content": prompt}]});
        match self.ask(Method::POST, "/api/chat/completions", &member, Some(body)).await {
            (200, answer) => Ok(answer["choices"][0]["message"]["content"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()),
            (status, _) => Err(status),
        }
    }
}

/// Waits until the proxy's log of calls shows this many successful ones with a key, and gives their prompt tokens. The log is
/// asked by team, and each row names the key that was billed.
async fn logged(world: &RealWorld, resource: Uuid, key: &str, calls: usize) -> Vec<u64> {
    let day = |hours: i64| (world.sim_clock.now() + jiff::SignedDuration::from_hours(hours)).strftime("%Y-%m-%d").to_string();
    let path = format!(
        "spend/logs/v2?team_id={}&start_date={}%2000:00:00&end_date={}%2023:59:59&page=1&page_size=100",
        resource.simple(),
        day(-24),
        day(24)
    );
    eventually("the rows of the key", async || {
        let answer = world.gateway.read(&path).await;
        let rows = answer["data"].as_array().unwrap();
        let of_key = |row: &&Value| row["api_key"] == hash(key) && row["status"] == "success";
        let mut tokens: Vec<u64> = rows.iter().filter(of_key).map(|row| row["prompt_tokens"].as_u64().unwrap()).collect();
        tokens.sort_unstable();
        if tokens.len() == calls { Ok(tokens) } else { Err(format!("{tokens:?} in {answer}")) }
    })
    .await
}

async fn sold(models: &[&str]) -> (RealWorld, Agent, Uuid) {
    let world = RealWorld::start(Profile::Late2026, Variant::Default, RealStore::KubeDirect, Time::Manual).await;
    let agent = world.agent().await;
    let resource = world.sold(&agent, "Seabird LLM", models, &[("max_budget", "5")]).await;
    (world, agent, resource)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_chats_through_open_webui_with_what_is_in_its_secret_and_nothing_else() {
    let (world, agent, resource) = sold(&["kestrel-8b", "heron-70b"]).await;
    let mut webui = WebUi::of(&world);
    webui.restart(&world.secrets(resource).await["chat"]).await;

    // The models of the project, without the one that is only for retrieval.
    assert_eq!(webui.models().await, ["heron-70b", "kestrel-8b"]);
    assert_eq!(webui.chat("kestrel-8b", "P=700 C=30").await.unwrap(), "Hello.");
    // What the gateway serves to others is not to be had, whoever asks.
    assert_eq!(webui.chat("qwen2.5-0.5b", "P=1 C=1").await, Err(400));
    let first = world.key(resource, "chat").await;
    assert_eq!(logged(&world, resource, &first, 1).await, [700]);
    assert_eq!(logged(&world, resource, &world.key(resource, "project").await, 0).await, [0_u64; 0]);
    // Retrieval goes the same way.
    let (_, retrieval) = webui.ask(Method::GET, "/api/v1/retrieval/embedding", &webui.admin().await, None).await;
    let base = world.secrets(resource).await["chat"]["OPENAI_API_BASE_URLS"].clone();
    assert_eq!(
        (&retrieval["RAG_EMBEDDING_ENGINE"], &retrieval["RAG_EMBEDDING_MODEL"], &retrieval["openai_config"]),
        (&json!("openai"), &json!("qwen3-embedding-0-6b"), &json!({"url": base, "key": first}))
    );

    // The chat key is replaced. Until it is restarted, Open WebUI goes on with the old one, which serves for its grace.
    let config = world.write("rotate.yml", &world.config_text(""));
    let rotated = command(&config, &["keys", "rotate", &resource.to_string(), "--chat"]).await;
    assert_eq!(rotated.code, Some(0), "{rotated:?}");
    let second = world.key(resource, "chat").await;
    assert_ne!(second, first);
    assert_eq!(webui.chat("kestrel-8b", "P=300 C=10").await.unwrap(), "Hello.");
    assert_eq!(logged(&world, resource, &first, 2).await, [300, 700]);
    // The same volume: what an earlier process was told is forgotten.
    webui.restart(&world.secrets(resource).await["chat"]).await;
    assert_eq!(webui.models().await, ["heron-70b", "kestrel-8b"]);
    assert_eq!(webui.chat("heron-70b", "P=50 C=5").await.unwrap(), "Hello.");
    assert_eq!(logged(&world, resource, &second, 1).await, [50]);
    world.advance(Duration::from_secs(900)).await;
    world.slow_beat(&agent).await;
    world.slow_beat(&agent).await;
    assert_eq!(world.gateway.chat(&base, &first, "kestrel-8b", "P=1 C=1").await.unwrap_err().0, 401);
    assert_eq!(webui.chat("kestrel-8b", "P=60 C=5").await.unwrap(), "Hello.");
    assert_eq!(logged(&world, resource, &second, 2).await, [50, 60]);
    world.check().await;

    // A model that leaves the project leaves the list with the next restart, and cannot be called before it either.
    world.waldur.put_options(resource, Some(json!({"models": ["heron-70b"]}).as_object().unwrap().clone()));
    world.slow_beat(&agent).await;
    assert!(webui.chat("kestrel-8b", "P=1 C=1").await.is_err());
    webui.restart(&world.secrets(resource).await["chat"]).await;
    assert_eq!(webui.models().await, ["heron-70b"]);
    assert_eq!(webui.chat("kestrel-8b", "P=1 C=1").await, Err(400));
    assert_eq!(webui.chat("heron-70b", "P=70 C=5").await.unwrap(), "Hello.");
    assert_eq!(logged(&world, resource, &second, 3).await, [50, 60, 70]);

    // What Waldur is told of it all is what the gateway's ledger holds, whichever key it went through.
    let ledger = world.ledger_shows(resource, 1180).await;
    assert_eq!(ledger.prompt_tokens, 1180);
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_whose_models_have_all_left_is_offered_none_and_no_public_address() {
    let (world, agent, resource) = sold(&["kestrel-8b"]).await;
    agent.offering_beat().await;
    world.write("catalogue.yml", &catalogue(&["heron-70b", "qwen2.5-0.5b"]));
    for _ in 0..4 {
        agent.offering_beat().await;
        world.slow_beat(&agent).await;
        world.advance(HOLD / 2).await;
    }
    let team = world.gateway.team(&resource.simple().to_string()).await.unwrap();
    assert_eq!(team["models"], json!(["qwen3-embedding-0-6b"]), "only what every project has for retrieval is left");
    let mut webui = WebUi::of(&world);
    webui.restart(&world.secrets(resource).await["chat"]).await;
    assert_eq!(webui.models().await, Vec::<String>::new());
    assert_eq!(webui.chat("kestrel-8b", "P=1 C=1").await, Err(400));
    let (_, connections) = webui.ask(Method::GET, "/openai/config", &webui.admin().await, None).await;
    assert_eq!(
        connections["OPENAI_API_BASE_URLS"],
        json!([world.secrets(resource).await["chat"]["OPENAI_API_BASE_URLS"]]),
        "{connections}"
    );

    // With the model back, so is the list.
    world.write("catalogue.yml", &catalogue(&["kestrel-8b", "heron-70b", "qwen2.5-0.5b"]));
    agent.offering_beat().await;
    world.slow_beat(&agent).await;
    webui.restart(&world.secrets(resource).await["chat"]).await;
    assert_eq!(webui.models().await, ["kestrel-8b"]);
    assert_eq!(webui.chat("kestrel-8b", "P=20 C=1").await.unwrap(), "Hello.");
    world.check().await;
}
