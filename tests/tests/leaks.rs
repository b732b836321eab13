//! No secret in anything that people or other programs read: logs at their most talkative, status, metrics, plans, errors,
//! comments, reports. Peers are made to repeat what they were sent, credentials and all.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::io;
use std::process::Stdio;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use llm_access_agent::agent::Agent;
use llm_access_agent::{http, page, telemetry};
use llm_access_fixtures::faults::{Fault, Rule};
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::{Store, World, checker};
use serde_json::json;
use tracing_subscriber::fmt::MakeWriter;
use uuid::Uuid;

/// Everything that was logged in this process.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self, since: usize) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()[since..]).into_owned()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;
    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

type Render = Box<dyn Fn() -> String + Send + Sync>;

/// Starts the log, at trace and for every crate, and the metrics; once.
fn watched() -> (Log, &'static Render) {
    static WATCHED: OnceLock<(Log, Render)> = OnceLock::new();
    let (log, render) = WATCHED.get_or_init(|| {
        let log = Log::default();
        let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_ansi(false).with_writer(log.clone()).finish();
        tracing_subscriber::util::SubscriberInitExt::init(subscriber);
        let metrics = telemetry::metrics().unwrap();
        (log, Box::new(move || metrics.render()))
    });
    (log.clone(), render)
}

/// Every secret of a world: the credentials, every key that ever travelled, and what Kubernetes makes of them.
fn secrets(world: &World) -> BTreeSet<String> {
    let (_, _, client_secret) = world.waldur.oidc();
    let mut secrets: BTreeSet<String> = [world.waldur.agent_token(), world.gateway.master_key(), client_secret].into();
    for call in world.faults.calls() {
        secrets.extend(words(&call.body).filter(|word| word.starts_with("sk-") && word.len() > 30).map(str::to_owned));
    }
    secrets.extend(world.gateway.writes().iter().filter_map(|write| write.body["key"].as_str()).map(str::to_owned));
    let encoded: Vec<String> = secrets.iter().map(|secret| base64(secret)).collect();
    secrets.extend(encoded);
    assert!(secrets.iter().all(|secret| secret.len() >= 14), "markers must not be words of their own: {secrets:?}");
    secrets
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')))
}

/// Without the last digits, which depend on what follows.
fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let whole = text.as_bytes().chunks_exact(3);
    whole
        .flat_map(|three| {
            let n = (usize::from(three[0]) << 16) | (usize::from(three[1]) << 8) | usize::from(three[2]);
            [18, 12, 6, 0].map(|shift| char::from(DIGITS[(n >> shift) & 63]))
        })
        .collect()
}

/// How keys, keys in base64 and bearer tokens start, and what they are longer than.
const ALIKE: [(&str, usize); 3] = [("sk-", 30), ("c2st", 20), ("eyJhbG", 20)];

/// The lines of `text` with a secret in them, or with something that looks like a key or a bearer token.
fn leaking(text: &str, secrets: &BTreeSet<String>) -> Vec<String> {
    let known: Vec<&String> = secrets.iter().filter(|secret| text.contains(secret.as_str())).collect();
    let alike = |line: &str| {
        ALIKE.iter().any(|(start, least)| line.contains(start) && words(line).any(|word| word.starts_with(start) && word.len() > *least))
    };
    let leaks = |line: &&str| known.iter().any(|secret| line.contains(secret.as_str())) || alike(line);
    text.lines().filter(leaks).map(|line| line.chars().take(1000).collect()).collect()
}

/// What the world shows of itself apart from the log.
async fn shown(world: &World, agent: &Agent, render: &Render) -> String {
    let at = page::serve(agent.config.page.as_ref().unwrap().listen, agent.clone()).await.unwrap();
    let page = reqwest::get(format!("http://{at}/")).await.unwrap().text().await.unwrap();
    assert!(page.contains("<h2 id=\"orders\">"), "{page}");
    let mut text = format!("{}\n{}\n{page}\n", http::status(agent), render());
    for (name, subject, condition) in agent.conditions.all() {
        text.push_str(&format!("{name} {subject} {condition:?}\n"));
    }
    for order in world.waldur.orders() {
        text.push_str(&format!("{order:?}\n"));
    }
    for resource in world.waldur.resources() {
        text.push_str(&format!("{resource:?}\n"));
    }
    text.push_str(&format!("{:?} {:?}\n", agent.config, agent.schedule.waiting()));
    for command in [&["plan"][..], &["status"], &["status", "--json"], &["check"], &["orphans", "list"]] {
        let mut program = tokio::process::Command::new(env!("CARGO_BIN_EXE_agent-under-test"));
        program
            .arg("--config")
            .arg(world.path("config.yml"))
            .args(command)
            .env("LLM_ACCESS__LOG__LEVEL", "trace")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = program.output().await.unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!said.is_empty(), "{command:?} says nothing: {}", String::from_utf8_lossy(&output.stderr));
        text.push_str(&said);
        text.push_str(&String::from_utf8_lossy(&output.stderr));
    }
    // Bodies of calls are held against what may be in them by the checker; here only what customers and staff read.
    for call in world.faults.calls().iter().filter(|call| {
        ["reject_by", "set_state_erred", "submit_report", "set_backend_metadata", "set_endpoints"]
            .iter()
            .any(|part| call.path.contains(part))
    }) {
        text.push_str(&format!("{} {}\n", call.path, call.body));
    }
    text
}

#[track_caller]
fn assert_tight(what: &str, text: &str, secrets: &BTreeSet<String>) {
    let lines = leaking(text, secrets);
    assert!(
        lines.is_empty(),
        "{what}: {} lines leak, such as\n{}",
        lines.len(),
        lines.iter().take(5).cloned().collect::<Vec<_>>().join("\n")
    );
}

async fn agent_of(world: &World, oidc: bool) -> Agent {
    let mut text = world.config_text("page: {listen: '127.0.0.1:0'}\n");
    if oidc {
        let (url, id, secret) = world.waldur.oidc();
        let file = world.write("client-secret", &secret);
        let token = format!("token_file: {}", world.path("waldur-token").display());
        assert!(text.contains(&token));
        text = text.replace(&token, &format!("oidc: {{token_url: {url}, client_id: {id}, client_secret_file: {}}}", file.display()));
    }
    world.patient_with(&text).await
}

/// Every few calls the peer answers `fault`; the others go through, so that every step is reached.
async fn stumble(world: &World, agent: &Agent, fault: &Fault, every: usize) {
    world.faults.reset_calls();
    for n in (1..600).filter(|n| n % every == 0) {
        world.faults.at_call(n, fault.clone());
    }
    for _ in 0..6 {
        world.beat(agent).await;
        world.slow_beat(agent).await;
        world.advance(Duration::from_secs(1800));
    }
    world.faults.clear();
}

/// Whether a customer may order something for it.
fn is_free(world: &World, resource: Uuid) -> bool {
    let open = world.open_orders().into_iter().any(|order| world.waldur.order_view(order).resource == resource);
    world.waldur.resource(resource).state == "OK" && !open
}

async fn nothing_leaks(profile: Profile, store: Store, oidc: bool) {
    let (log, render) = watched();
    // Other tests of this process log into the same place.
    let since = log.0.lock().unwrap().len();
    let world = World::with_store(profile, store).await;
    let agent = agent_of(&world, oidc).await;
    let case = format!("{profile:?} {store:?} oidc={oidc}");
    let mut known = BTreeSet::new();
    let (_, first) = world.order("first", &["kestrel-8b"]);
    world.run_to_rest(&agent, 5).await;
    known.extend(secrets(&world));
    assert!(known.len() > 8, "{case}: {known:?}");
    for (n, fault) in [
        Fault::Echo(400),
        Fault::Echo(422),
        Fault::Echo(500),
        Fault::Echo(403),
        Fault::Echo(409),
        Fault::Echo(200),
        Fault::Truncate,
        Fault::LoseAnswer,
    ]
    .iter()
    .enumerate()
    {
        // A new order, a change, and keys and Secrets to repair.
        world.order(&format!("llm-{n}"), &["kestrel-8b"]);
        if is_free(&world, first) {
            world.waldur.update_limits(first, &[("max_budget", &format!("6{n}"))]);
        }
        for key in world.gateway.live_keys(&first.simple().to_string()) {
            world.gateway.delete_key(&key.hash);
        }
        stumble(&world, &agent, fault, 3 + n % 3).await;
        known.extend(secrets(&world));
    }
    // What each call of a single order says when it is refused.
    for path in ["/key/generate", "/v1/models", "/team/new", "/secrets", "report_created", "submit_report"] {
        for status in [400, 422] {
            let rule = world.faults.add(Rule::new(Fault::Echo(status)).path(path));
            world.order(&format!("one{path}"), &["kestrel-8b"]);
            for _ in 0..3 {
                world.beat(&agent).await;
                world.advance(Duration::from_secs(1800));
            }
            known.extend(secrets(&world));
            assert_tight(&format!("{case}: {path} {status}: shown"), &http::status(&agent).to_string(), &known);
            world.faults.remove(rule);
        }
    }
    // Our own credentials refused, then a rotation.
    let rule = world.faults.add(Rule::new(Fault::Echo(401)));
    world.beat(&agent).await;
    world.slow_beat(&agent).await;
    world.faults.remove(rule);
    world.advance(Duration::from_secs(1800));

    // With something left to plan.
    let id = first.simple().to_string();
    for key in world.gateway.live_keys(&id) {
        world.gateway.delete_key(&key.hash);
    }
    world.gateway.edit_team(&id, &json!({"tpm_limit": 1}));
    known.extend(secrets(&world));
    assert_tight(&format!("{case}: shown"), &shown(&world, &agent, render).await, &known);
    for _ in 0..8 {
        world.beat(&agent).await;
        world.slow_beat(&agent).await;
        world.advance(Duration::from_secs(3600));
    }
    for resource in world.waldur.resources() {
        if is_free(&world, resource.uuid) {
            world.waldur.terminate(resource.uuid);
        }
    }
    stumble(&world, &agent, &Fault::Echo(400), 4).await;
    known.extend(secrets(&world));
    assert_tight(&format!("{case}: shown at the end"), &shown(&world, &agent, render).await, &known);
    let text = log.text(since);
    for part in ["TRACE", "DEBUG", "order done", "the order is set to erred", "refuses"] {
        assert!(text.contains(part), "{case}: not watched closely enough: no {part}");
    }
    assert_tight(&format!("{case}: log"), &text, &known);
    let broken: Vec<String> = checker::problems(&world).into_iter().filter(|problem| problem.contains("leaked")).collect();
    assert!(broken.is_empty(), "{case}: {broken:?}");
}

macro_rules! cases {
    ($($name:ident: $profile:ident, $store:ident, $oidc:literal;)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            nothing_leaks(Profile::$profile, Store::$store, $oidc).await;
        }
    )*};
}

cases! {
    nothing_leaks_with_a_2024_server: Y2024, Kube, false;
    nothing_leaks_with_a_2024_server_and_files: Y2024, Directory, false;
    nothing_leaks_with_an_8_0_server: V8_0, Kube, false;
    nothing_leaks_with_an_8_0_server_and_files_and_bearer_tokens: V8_0, Directory, true;
    nothing_leaks_with_a_late_2026_server: Late2026, Kube, false;
    nothing_leaks_with_a_late_2026_server_and_files_and_bearer_tokens: Late2026, Directory, true;
}

#[test]
fn the_search_finds_what_it_is_for() {
    let known: BTreeSet<String> = ["s3cret-of-the-platform".to_owned(), base64("s3cret-of-the-platform")].into();
    assert_eq!(base64("Man"), "TWFu");
    for line in [
        "x s3cret-of-the-platformy",
        "data: czNjcmV0LW9mLXRoZS1wbGF0Zm9ybQ==",
        "key=sk-0123456789abcdef0123456789abcdef",
        "Bearer eyJhbGciOiJIUzI1NiJ9.e30.abc",
        "c2stMDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
    ] {
        assert_eq!(leaking(&format!("good\n{line}\n"), &known), [line]);
    }
    assert!(leaking("sk-short eyJpbnYi c2st 0123456789abcdef team 2ca87c1484134ef4b64555318e1845e1", &known).is_empty());
}
