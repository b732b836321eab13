//! Measures the real program against the simulators and prints one table: start, memory, calls and CPU.
//!
//! The agent is a process of its own, so its CPU time and memory are read from `/proc` without those of the simulators.
//! Use: `bench --agent PATH [--resources N] [--orders N] [--usage-resources N] [--only-usage] [--json]`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::float_arithmetic,
    clippy::cast_precision_loss,
    clippy::disallowed_methods,
    reason = "a tool for developers"
)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use llm_access_fixtures::clock::SimClock;
use llm_access_fixtures::faults::Faults;
use llm_access_fixtures::kube::Kube;
use llm_access_fixtures::litellm::{self, LiteLlm};
use llm_access_fixtures::waldur::{self, Profile, Project, Waldur};
use uuid::Uuid;

struct Site {
    faults: Faults,
    waldur: Waldur,
    gateway: LiteLlm,
    kube: Kube,
    offering: Uuid,
    project: Project,
    folder: tempfile::TempDir,
}

impl Site {
    async fn new(profile: Profile) -> Self {
        let (clock, faults) = (SimClock::real(), Faults::new());
        let waldur = Waldur::start(waldur::Options { profile, clock: clock.clone(), faults: faults.clone(), listen: None }).await;
        let gateway = LiteLlm::start(litellm::Options { clock: clock.clone(), faults: faults.clone(), listen: None }).await.unwrap();
        let kube = Kube::start(clock, faults.clone(), None).await.unwrap();
        kube.add_namespace("open-webui");
        kube.add_namespace("llm-keys");
        let offering = waldur.add_offering("Shared LLM access");
        waldur.set_models(offering, &["kestrel-8b"]);
        let project = waldur.add_project("Bench");
        let folder = tempfile::tempdir().unwrap();
        let site = Self { faults, waldur, gateway, kube, offering, project, folder };
        let write = |name: &str, text: &str| std::fs::write(site.folder.path().join(name), text).unwrap();
        write("token", &site.waldur.agent_token());
        write("key", &site.gateway.master_key());
        write("catalogue.yml", "inference_models:\n  - {name: kestrel-8b, served_name: kestrel-8b}\n");
        site
    }

    /// Starts the program with these beats.
    fn start(&self, agent: &PathBuf, intervals: &str, only: &str) -> Process {
        let dir = self.folder.path().display();
        let config = format!(
            "owner: bench\nwaldur: {{api_url: {}, token_file: {dir}/token}}\ngateway: {{url: {}, public_url: https://llm.example.org, key_file: {dir}/key}}\ncatalogue: {{file: {dir}/catalogue.yml}}\n\
             secrets: {{store: kubernetes, api_url: {}, chat_namespace: open-webui, key_namespace: llm-keys}}\nintervals: {intervals}\nlog: {{level: warn}}\n\
             offerings:\n  - uuid: {}\n    limits: {{allow_unlimited: true}}\n",
            self.waldur.api_url(),
            self.gateway.url(),
            self.kube.url(),
            self.offering
        );
        let path = self.folder.path().join("config.yml");
        std::fs::write(&path, config).unwrap();
        let child = Command::new(agent)
            .args(["--config", path.to_str().unwrap(), "run", "--only", only])
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        Process(child)
    }
}

struct Process(Child);

impl Process {
    /// CPU seconds used so far.
    fn cpu(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
        ticks / 100.0
    }

    /// Memory in MB: now, and at its highest.
    fn memory(&self) -> (f64, f64) {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let kb =
            |name: &str| status.lines().find(|l| l.starts_with(name)).unwrap().split_whitespace().nth(1).unwrap().parse::<f64>().unwrap();
        (kb("VmRSS:") / 1024.0, kb("VmHWM:") / 1024.0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Waits until `done`, at most `limit`; how long it took.
async fn until(limit: Duration, mut done: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < limit, "not done within {limit:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    began.elapsed()
}

fn clock_date() -> jiff::civil::Date {
    jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date()
}

#[tokio::main]
async fn main() {
    rustls::crypto::aws_lc_rs::default_provider().install_default().unwrap();
    let args: Vec<String> = std::env::args().collect();
    let value = |name: &str| args.iter().position(|a| a == name).and_then(|i| args.get(i + 1)).cloned();
    let agent = PathBuf::from(value("--agent").expect("--agent PATH"));
    let resources: usize = value("--resources").map_or(10_000, |n| n.parse().unwrap());
    let orders: usize = value("--orders").map_or(1_000, |n| n.parse().unwrap());
    let usage_resources: usize = value("--usage-resources").map_or(1_000, |n| n.parse().unwrap());
    let mut rows: Vec<(String, String)> = Vec::new();
    let only_usage = args.iter().any(|a| a == "--only-usage");

    if !only_usage {
        let site = Site::new(Profile::Late2026).await;
        let began = Instant::now();
        let process = site.start(&agent, "{orders: 1s, resources: 1h}", "orders");
        until(Duration::from_secs(20), || site.faults.count() > 0).await;
        rows.push(("start to first peer call, ms".into(), format!("{}", began.elapsed().as_millis())));
        tokio::time::sleep(Duration::from_secs(4)).await;
        let cpu = process.cpu();
        site.faults.reset_calls();
        tokio::time::sleep(Duration::from_secs(10)).await;
        let calls = site.faults.count().max(1);
        rows.push(("CPU of an idle order beat, ms".into(), format!("{:.2}", (process.cpu() - cpu) * 1000.0 / calls as f64)));
        rows.push(("memory at rest, MB".into(), format!("{:.1}", process.memory().0)));
    }
    for profile in [Profile::Y2024, Profile::Late2026].into_iter().filter(|_| !only_usage) {
        let site = Site::new(profile).await;
        let _process = site.start(&agent, "{orders: 200ms, resources: 1h}", "orders");
        for n in 0..2 {
            site.faults.reset_calls();
            let (order, _) = site.waldur.order(site.offering, &site.project, &format!("bench-{n}"), &["kestrel-8b"], &[]);
            until(Duration::from_secs(20), || site.waldur.order_state(order) == "done").await;
        }
        let calls = site.faults.calls();
        let lists = calls.iter().filter(|call| call.path.contains("state=executing")).count();
        rows.push((format!("peer calls of a create ({profile:?})"), format!("{}", calls.len() - lists + 1)));
    }
    if !only_usage {
        let site = Site::new(Profile::Late2026).await;
        site.faults.set_latency(Duration::from_millis(20));
        for n in 0..orders {
            site.waldur.order(site.offering, &site.project, &format!("bench-{n}"), &["kestrel-8b"], &[]);
        }
        let process = site.start(&agent, "{orders: 1s, resources: 1h}", "orders");
        let open = || site.waldur.orders().iter().filter(|o| matches!(o.state.as_str(), "pending-provider" | "executing")).count();
        let took = until(Duration::from_secs(600), || open() == 0).await;
        rows.push((format!("{orders} orders with 20 ms peers, s"), format!("{:.1}", took.as_secs_f64())));
        rows.push((format!("{orders} orders: CPU, s"), format!("{:.2}", process.cpu())));
        rows.push((format!("{orders} orders: most calls in flight"), site.faults.in_flight_max().to_string()));
    }
    if !only_usage {
        let site = Site::new(Profile::Y2024).await;
        for n in 0..resources {
            site.waldur.add_resource(site.offering, &site.project, &format!("bench-{n}"), &["kestrel-8b"], &[]);
        }
        let process = site.start(&agent, "{orders: 1h, resources: 3s}", "resources");
        let built = until(Duration::from_secs(1800), || site.gateway.all_live_keys().len() == 2 * resources).await;
        rows.push((format!("{resources} lost resources rebuilt, s"), format!("{:.1}", built.as_secs_f64())));
        // The pass after the last repair still writes; measure the one after it.
        tokio::time::sleep(Duration::from_secs(20)).await;
        drop(process);
        site.faults.reset_calls();
        let process = site.start(&agent, "{orders: 1h, resources: 1h}", "resources");
        let mut last = (0, Instant::now());
        until(Duration::from_secs(120), || {
            let count = site.faults.count();
            if count != last.0 {
                last = (count, Instant::now());
            }
            count > 10 && last.1.elapsed() > Duration::from_secs(3)
        })
        .await;
        let mut by_path: BTreeMap<String, usize> = BTreeMap::new();
        for call in site.faults.calls() {
            *by_path.entry(format!("{} {}", call.method, call.path.split('?').next().unwrap_or_default())).or_default() += 1;
        }
        let writes = site.faults.calls().iter().filter(|call| call.method != "GET").count();
        rows.push((format!("drift pass, {resources} resources: calls"), site.faults.count().to_string()));
        rows.push((format!("drift pass, {resources} resources: writes"), writes.to_string()));
        rows.push((format!("drift pass, {resources} resources: CPU, s"), format!("{:.2}", process.cpu())));
        let (now, most) = process.memory();
        rows.push((format!("drift pass, {resources} resources: memory after, MB"), format!("{now:.0}")));
        rows.push((format!("drift pass, {resources} resources: memory at most, MB"), format!("{most:.0}")));
        eprintln!("{by_path:?}");
    }
    for sold in [usage_resources / 2, usage_resources] {
        let site = Site::new(Profile::Late2026).await;
        let today = clock_date();
        // A month with thirty days of rows: the running one at its end, else the one before.
        let month = if today.day() >= 30 { today } else { today.first_of_month().yesterday().unwrap() };
        let mut count = 0;
        for n in 0..sold {
            let resource = site.waldur.add_resource(site.offering, &site.project, &format!("bench-{n}"), &["kestrel-8b"], &[]);
            let team = resource.simple().to_string();
            for model in ["kestrel-8b", "heron-70b", "qwen2.5-0.5b", "qwen3-embedding-0-6b", "osprey-3b"] {
                for day in 1..=month.days_in_month().min(30) {
                    let at = jiff::civil::date(month.year(), month.month(), day)
                        .at(0, 30, 0, 0)
                        .to_zoned(jiff::tz::TimeZone::UTC)
                        .unwrap()
                        .timestamp();
                    let usage = litellm::Usage {
                        prompt_tokens: 1234,
                        completion_tokens: 321,
                        cached_tokens: 0,
                        spend: rust_decimal::Decimal::new(1_234_567, 9),
                    };
                    site.gateway.add_usage(Some(&team), &format!("key-{team}"), model, at, usage);
                    count += 1;
                }
            }
        }
        let intervals = "{orders: 1h, resources: 1h, usage: 1h}\nusage: {late_days: 28}";
        for pass in ["that reports all", "with nothing new"] {
            site.faults.reset_calls();
            let process = site.start(&agent, intervals, "usage");
            let mut last = (0, Instant::now());
            until(Duration::from_secs(300), || {
                let calls = site.faults.count();
                if calls != last.0 || site.faults.calls().len() < calls {
                    last = (calls, Instant::now());
                }
                calls > 5 && last.1.elapsed() > Duration::from_secs(12)
            })
            .await;
            let writes = site.faults.calls().iter().filter(|call| call.method != "GET").count();
            rows.push((format!("usage pass {pass}, {count} rows: CPU, s"), format!("{:.2}", process.cpu())));
            rows.push((format!("usage pass {pass}, {count} rows: memory at most, MB"), format!("{:.0}", process.memory().1)));
            rows.push((format!("usage pass {pass}, {count} rows: writes"), writes.to_string()));
        }
    }

    if args.iter().any(|a| a == "--json") {
        let map: serde_json::Map<String, serde_json::Value> = rows.into_iter().map(|(name, value)| (name, value.into())).collect();
        println!("{}", serde_json::Value::Object(map));
    } else {
        let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        for (name, value) in rows {
            println!("{name:<width$}  {value:>8}");
        }
    }
}
