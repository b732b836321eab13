//! Usage with a real LiteLLM proxy: what Waldur is told is what the model server counted, call by call.
#![cfg(feature = "real")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;

use futures::StreamExt;
use llm_access_agent::agent::Agent;
use llm_access_agent::domain::{BillingMonth, Direction, amount, usage_component};
use llm_access_agent::usage::audit::Reason;
use llm_access_agent::usage::pass::Pass;
use llm_access_agent::usage::report::How;
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::real::{RealStore, RealWorld, Time, Variant, eventually, pause, told};
use reqwest::Method;
use rust_decimal::Decimal;
use serde_json::{Value, json};
use uuid::Uuid;

const CHAT: [&str; 3] = ["kestrel-8b", "heron-70b", "qwen2.5-0.5b"];
const EMBEDDER: &str = "qwen3-embedding-0-6b";

/// Input and output tokens by resource and model, as the model server counted them.
type Counted = BTreeMap<(Uuid, String), (u64, u64)>;

/// The proxy that all tests share, stopped; it is started again with the end of the test at the latest.
struct Stopped;

impl Stopped {
    /// With SIGTERM: it writes what it still holds.
    fn gently() -> Self {
        proxy("stop");
        Self
    }

    /// With SIGKILL: what it still held is gone.
    fn killed() -> Self {
        let pid = std::fs::read_to_string(format!("{}/proxy-default.pid", told("STATE"))).unwrap();
        let killed = std::process::Command::new("kill").args(["-KILL", "--", &format!("-{}", pid.trim())]).status().unwrap();
        assert!(killed.success());
        proxy("stop");
        Self
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        proxy("start");
    }
}

fn proxy(command: &str) {
    let output = std::process::Command::new(told("PEERS")).args(["proxy", command, "default"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

struct Site {
    world: RealWorld,
    agent: Agent,
    resources: Vec<Uuid>,
    keys: BTreeMap<(Uuid, &'static str), String>,
    month: BillingMonth,
}

impl Site {
    async fn new(more: &str) -> Self {
        let world = RealWorld::start(Profile::Late2026, Variant::Default, RealStore::Directory, Time::Real).await;
        for model in CHAT.into_iter().chain([EMBEDDER]) {
            for direction in [Direction::Input, Direction::Output] {
                world.waldur.add_usage_component(world.offering, &usage_component(model, direction));
            }
        }
        let agent = world.agent_of(&world.config_text(more)).await;
        let mut resources = Vec::new();
        let mut keys = BTreeMap::new();
        for name in ["aurora", "borealis", "corona"] {
            let resource = world.sold(&agent, name, &CHAT, &[("max_budget", "100"), ("rpm_limit", "100000")]).await;
            for slot in ["project", "chat"] {
                keys.insert((resource, slot), world.key(resource, slot).await);
            }
            resources.push(resource);
        }
        let month = BillingMonth::of(world.clock.now());
        Self { world, agent, resources, keys, month }
    }

    /// Calls of every kind; what was answered is counted by what the answers say.
    async fn calls(&self, count: usize, failing: bool, counted: &mut Counted) {
        let base = format!("{}v1", self.world.gateway.url);
        let base = &base;
        let calls = (0..count).map(|n| async move {
            let resource = self.resources[n % 3];
            let key = &self.keys[&(resource, if n % 2 == 0 { "project" } else { "chat" })];
            let model = CHAT[n % 7 % 3];
            let (prompt, completion) = (100 + n, 10 + n % 5);
            match n % 5 {
                0 => {
                    let answer = self.world.gateway.embed(base, key, EMBEDDER, &format!("P={prompt}")).await.unwrap();
                    assert_eq!(answer["usage"]["prompt_tokens"], prompt);
                    Some((resource, EMBEDDER, (prompt, 0)))
                }
                1 => {
                    let body = json!({"model": model, "stream": true, "stream_options": {"include_usage": true}, "messages": [{"role": "user", "content": format!("P={prompt} C={completion}")}]});
                    let (status, answer) = self.world.gateway.ask(Method::POST, &format!("{base}/chat/completions"), key, Some(body)).await;
                    let text = answer.as_str().unwrap_or_default().to_owned();
                    assert!(status == 200 && text.contains("[DONE]"), "{status} {text}");
                    Some((resource, model, (prompt, completion)))
                }
                2 if failing => {
                    self.world.gateway.chat(base, key, model, &format!("FAIL=503 {}", "word ".repeat(40))).await.unwrap_err();
                    None
                }
                3 => {
                    self.world.gateway.chat(base, key, model, &format!("P={prompt} C={completion} CACHED=60")).await.unwrap();
                    Some((resource, model, (prompt, completion)))
                }
                _ => {
                    let answer = self.world.gateway.chat(base, key, model, &format!("P={prompt} C={completion}")).await.unwrap();
                    assert_eq!(answer["usage"]["completion_tokens"], completion);
                    Some((resource, model, (prompt, completion)))
                }
            }
        });
        let answered: Vec<_> = futures::stream::iter(calls).buffer_unordered(6).collect().await;
        for (resource, model, (prompt, completion)) in answered.into_iter().flatten() {
            let sum = counted.entry((resource, model.to_owned())).or_default();
            sum.0 += u64::try_from(prompt).unwrap();
            sum.1 += u64::try_from(completion).unwrap();
        }
    }

    /// Calls that are refused before any model is reached: a model that nobody has, and one that the team has not. They are
    /// failed calls in both stores, without tokens.
    async fn refused(&self) {
        let base = format!("{}v1", self.world.gateway.url);
        for key in self.keys.values() {
            for model in ["nobody-has-it", "not-the-teams"] {
                self.world.gateway.chat(&base, key, model, "P=100 C=10").await.unwrap_err();
            }
        }
    }

    /// What Waldur holds for a model of a resource.
    fn told(&self, resource: Uuid, model: &str, direction: Direction) -> Decimal {
        self.world.waldur.usages(resource, &self.month.to_string()).get(&usage_component(model, direction)).copied().unwrap_or_default()
    }

    /// Passes until the daily rows hold as many calls as were answered, and a pass after that.
    async fn settle(&self, answered: u64) {
        eventually("the rows of all calls", async || {
            let mut successful = 0;
            for resource in &self.resources {
                successful += self.successful(*resource).await;
            }
            if successful >= answered { Ok(()) } else { Err(format!("{successful} of {answered} calls")) }
        })
        .await;
        // Rows of failed calls come by the same flush, or the next one.
        for _ in 0..40 {
            pause().await;
        }
        let report = self.agent.usage_beat().await.unwrap();
        assert_eq!((report.failures().count(), report.withheld.clone()), (0, Vec::new()), "{:?}", report.lines);
    }

    /// Compares Waldur with what was counted, plus what the proxy guessed for failed calls where that is billed; how much it
    /// guessed.
    async fn compare(&self, agent: &Agent, counted: &Counted, with_guesses: bool) -> Decimal {
        let audit = agent.audit(self.month, None).await.unwrap();
        assert_eq!(audit.unexplained(), 0, "{:?}", audit.rows.iter().filter(|row| row.unexplained).collect::<Vec<_>>());
        let mut estimated = Decimal::ZERO;
        for resource in &self.resources {
            for model in CHAT.into_iter().chain([EMBEDDER]) {
                let (prompt, completion) = counted.get(&(*resource, model.to_owned())).copied().unwrap_or_default();
                for (direction, tokens) in [(Direction::Input, prompt), (Direction::Output, completion)] {
                    let kind = usage_component(model, direction);
                    let row = audit.rows.iter().find(|row| row.resource == *resource && row.kind == kind);
                    let guessed = row.map(|row| row.estimated).unwrap_or_default();
                    estimated += guessed;
                    let billed = Decimal::from(tokens) + if with_guesses { guessed } else { Decimal::ZERO };
                    let told = self.told(*resource, model, direction);
                    assert_eq!(
                        told,
                        amount(billed, Decimal::from(1000)),
                        "{} {kind}: {tokens} counted, {guessed} guessed",
                        resource.simple()
                    );
                }
            }
        }
        estimated
    }

    async fn successful(&self, resource: Uuid) -> u64 {
        let (from, to) = (self.month.first_day(), self.month.last_day());
        let answer = self
            .world
            .gateway
            .read(&format!("team/daily/activity?team_ids={}&start_date={from}&end_date={to}&page_size=1000", resource.simple()))
            .await;
        answer["metadata"]["total_successful_requests"].as_u64().unwrap()
    }

    /// Takes one call out of the gateway's log, as though it had been lost.
    fn lose_a_logged_call(&self, resource: Uuid, model: &str, status: &str) {
        let statement = format!(
            "DELETE FROM \"LiteLLM_SpendLogs\" WHERE request_id IN (SELECT request_id FROM \"LiteLLM_SpendLogs\" WHERE team_id = '{}' AND model_group = '{model}' AND status = '{status}' LIMIT 1)",
            resource.simple()
        );
        let script = format!("{}/real/litellm/postgres.sh", env!("CARGO_MANIFEST_DIR"));
        let output = std::process::Command::new("bash")
            .args(["-c", r#". "$1"; psql_at "$2" litellm_default -c "$3""#, "bash", &script, &told("DATABASE_PORT"), &statement])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// The log of calls, tokens by model.
    async fn logged(&self, resource: Uuid) -> BTreeMap<String, (u64, u64)> {
        let (from, to) = (self.month.first_day(), self.month.last_day());
        let mut sums: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for page in 1..50 {
            let answer = self
                .world
                .gateway
                .read(&format!(
                    "spend/logs/v2?team_id={}&start_date={from}%2000:00:00&end_date={to}%2023:59:59&page={page}&page_size=1000",
                    resource.simple()
                ))
                .await;
            let rows: &Vec<Value> = answer["data"].as_array().unwrap();
            for row in rows {
                let sum = sums.entry(row["model_group"].as_str().unwrap_or_default().to_owned()).or_default();
                sum.0 += row["prompt_tokens"].as_u64().unwrap();
                sum.1 += row["completion_tokens"].as_u64().unwrap();
            }
            if rows.is_empty() {
                break;
            }
        }
        sums
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_model_server_counted_is_what_waldur_holds() {
    let site = Site::new("").await;
    let mut counted = Counted::new();
    site.calls(150, true, &mut counted).await;
    site.refused().await;
    // The proxy is stopped gently and started again, with calls before and after.
    drop(Stopped::gently());
    site.calls(150, true, &mut counted).await;
    site.settle(240).await;
    let estimated = site.compare(&site.agent, &counted, true).await;
    assert!(estimated > Decimal::ZERO, "the proxy guesses tokens of failed calls");
    // Nothing new: nothing is written.
    site.world.faults.reset_calls();
    site.agent.usage_beat().await.unwrap();
    assert_eq!(site.world.writes(), Vec::<String>::new());
    // Without the guesses, it is what the model server counted and nothing else.
    let exact = site.world.agent_of(&site.world.config_text("usage: {failed_calls: exclude}\n")).await;
    let how = How { allow_decrease: true, ..How::default() };
    let report = exact.usage_pass(&Pass { how, ..Pass::default() }).await.unwrap();
    assert_eq!((report.failures().count(), report.withheld.clone(), report.waiting), (0, Vec::new(), 0), "{:?}", report.lines);
    assert_eq!(site.compare(&exact, &counted, false).await, estimated);
    // A failed call that the log has lost: what it is part of stays as it is in Waldur, and the rest goes on.
    let (resource, model) = (site.resources[2], "kestrel-8b");
    site.lose_a_logged_call(resource, model, "failure");
    let fresh = site.world.agent_of(&site.world.config_text("usage: {failed_calls: exclude}\n")).await;
    let report = fresh.usage_beat().await.unwrap();
    assert_eq!((report.failures().count(), report.waiting), (0, 1), "{:?}", report.lines);
    for resource in &site.resources {
        for (model, direction) in [(model, Direction::Input), ("heron-70b", Direction::Input)] {
            let (prompt, _) = counted.get(&(*resource, model.to_owned())).copied().unwrap_or_default();
            assert_eq!(site.told(*resource, model, direction), amount(Decimal::from(prompt), Decimal::from(1000)));
        }
    }
}

/// Two public names on one upstream model, served by the proxy for as long as a test lasts.
const SHARED: [&str; 2] = ["pub-usage-a", "pub-usage-b"];

#[tokio::test(flavor = "multi_thread")]
async fn two_public_names_on_one_upstream_are_told_apart_by_the_log() {
    let site = Site::new("").await;
    let gateway = &site.world.gateway;
    let (resource, other) = (site.resources[0], site.resources[1]);
    for name in SHARED {
        let params = json!({"model": "openai/shared-usage", "api_base": format!("{}/v1", told("UPSTREAM_URL")), "api_key": "k", "input_cost_per_token": 0.000001, "output_cost_per_token": 0.000001});
        gateway.write("model/new", json!({"model_name": name, "litellm_params": params, "model_info": {"id": format!("db-{name}")}})).await;
        for direction in [Direction::Input, Direction::Output] {
            site.world.waldur.add_usage_component(site.world.offering, &usage_component(name, direction));
        }
    }
    for resource in [resource, other] {
        gateway.write("team/update", json!({"team_id": resource.simple().to_string(), "models": SHARED})).await;
    }
    let base = format!("{}v1", gateway.url);
    let mut counted: BTreeMap<(Uuid, &str), u64> = BTreeMap::new();
    for n in 0..24_u64 {
        let resource = if n % 3 == 0 { other } else { resource };
        let key = &site.keys[&(resource, if n < 12 { "project" } else { "chat" })];
        let name = SHARED[usize::try_from(n % 2).unwrap()];
        // Its first call may come before the proxy knows of the model or the team's new list.
        let answer = eventually("a chat", async || {
            gateway.chat(&base, key, name, &format!("P={} C=7", 1000 + n)).await.map_err(|refusal| refusal.1)
        })
        .await;
        assert_eq!(answer["usage"]["prompt_tokens"], 1000 + n);
        *counted.entry((resource, name)).or_default() += 1000 + n;
    }
    site.settle(24).await;
    let ledger = gateway.ledger(&resource.simple().to_string()).await;
    assert!(ledger.models.values().any(|(prompt, _)| *prompt > 10_000), "the daily rows have both under one: {:?}", ledger.models);
    let compare = |counted: &BTreeMap<(Uuid, &str), u64>| {
        for ((resource, name), tokens) in counted {
            assert_eq!(site.told(*resource, name, Direction::Input), amount(Decimal::from(*tokens), Decimal::from(1000)), "{name}");
        }
    };
    compare(&counted);
    // One of them goes, and with it the agent that has seen it.
    gateway.write("model/delete", json!({"id": format!("db-{}", SHARED[1])})).await;
    gateway.chat(&base, &site.keys[&(resource, "project")], SHARED[0], "P=3000 C=7").await.unwrap();
    *counted.entry((resource, SHARED[0])).or_default() += 3000;
    site.settle(25).await;
    let fresh = site.world.agent().await;
    let report = fresh.usage_beat().await.unwrap();
    assert_eq!((report.failures().count(), report.merged.clone(), report.is_whole()), (0, Vec::new(), true), "{:?}", report.lines);
    compare(&counted);
    let audit = fresh.audit(site.month, None).await.unwrap();
    assert!(
        audit.rows.iter().filter(|row| row.model.as_deref().is_some_and(|model| SHARED.contains(&model))).all(|row| !row.differs()),
        "{:?}",
        audit.rows
    );
    // A call that the log has lost leaves the sums alone, and the models as they are.
    site.lose_a_logged_call(resource, SHARED[1], "success");
    let fresh = site.world.agent().await;
    assert!(!fresh.usage_beat().await.unwrap().lines.iter().any(|line| !line.lower.is_empty()));
    compare(&counted);
    gateway.write("model/delete", json!({"id": format!("db-{}", SHARED[0])})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_proxy_lost_in_one_place_is_named_to_the_token() {
    let site = Site::new("").await;
    let mut counted = Counted::new();
    site.calls(60, false, &mut counted).await;
    site.settle(60).await;
    site.calls(40, false, &mut counted).await;
    drop(Stopped::killed());
    site.calls(20, false, &mut counted).await;
    // Everything that will ever be written is written some seconds later.
    for _ in 0..60 {
        pause().await;
    }
    // What a kill loses is chance, and often the same in both stores; one call is surely in the daily rows only.
    site.lose_a_logged_call(site.resources[0], "kestrel-8b", "success");
    let report = site.agent.usage_beat().await.unwrap();
    assert_eq!((report.failures().count(), report.withheld.clone()), (0, Vec::new()), "{:?}", report.lines);
    let audit = site.agent.audit(site.month, None).await.unwrap();
    let mut lost = 0_usize;
    for resource in &site.resources {
        let (daily, log) = (site.world.gateway.ledger(&resource.simple().to_string()).await, site.logged(*resource).await);
        for model in CHAT.into_iter().chain([EMBEDDER]) {
            let rows = daily.models.get(model).copied().unwrap_or_default();
            let calls = log.get(model).copied().unwrap_or_default();
            for (direction, in_rows, in_calls) in [(Direction::Input, rows.0, calls.0), (Direction::Output, rows.1, calls.1)] {
                let kind = usage_component(model, direction);
                let row = audit.rows.iter().find(|row| row.resource == *resource && row.kind == kind);
                let missing = Decimal::from(in_calls) - Decimal::from(in_rows);
                assert_eq!(
                    site.told(*resource, model, direction),
                    amount(Decimal::from(in_rows), Decimal::from(1000)),
                    "Waldur holds what the daily rows have"
                );
                let named = row.map(|row| row.reasons.clone()).unwrap_or_default();
                if missing.is_zero() {
                    assert_eq!(named, [], "{kind}");
                } else {
                    lost += 1;
                    // Calls of the last half hour: those that only the log has could still arrive.
                    let lag = named.iter().any(|reason| matches!(reason, Reason::Lag(_))) && missing > Decimal::ZERO;
                    assert!(lag || named == [Reason::LostFlush(missing)], "{kind}: {missing} missing, {named:?}");
                    assert_eq!(row.unwrap().log_exact - row.unwrap().daily_exact, missing);
                }
            }
        }
    }
    assert_eq!(audit.unexplained(), 0, "{:?}", audit.rows);
    assert!(lost >= 2, "input and output of the call that was taken out of the log");
}
