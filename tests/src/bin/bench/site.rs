//! Three simulators with one offering, and the program that serves it as a process of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use llm_access_fixtures::clock::SimClock;
use llm_access_fixtures::faults::Faults;
use llm_access_fixtures::kube::Kube;
use llm_access_fixtures::litellm::{self, LiteLlm};
use llm_access_fixtures::waldur::{self, Profile, Project, Waldur};
use llm_access_tests::port::ReservedPort;
use uuid::Uuid;

/// The models that are sold and used.
pub const MODELS: [&str; 5] = ["kestrel-8b", "heron-70b", "qwen2.5-0.5b", "qwen3-embedding-0-6b", "osprey-3b"];

/// Where the agent of a site keeps Secrets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Store {
    Kube,
    Directory,
}

/// One environment in real time.
pub struct Site {
    pub faults: Faults,
    pub waldur: Waldur,
    pub gateway: LiteLlm,
    pub offering: Uuid,
    pub project: Project,
    pub folder: tempfile::TempDir,
    kube: Kube,
    store: Store,
    /// Where the program serves its metrics.
    port: ReservedPort,
}

impl Site {
    pub async fn new(profile: Profile, store: Store) -> Self {
        let (clock, faults) = (SimClock::real(), Faults::new());
        let waldur = Waldur::start(waldur::Options { profile, clock: clock.clone(), faults: faults.clone(), listen: None }).await;
        let gateway = LiteLlm::start(litellm::Options { clock: clock.clone(), faults: faults.clone(), listen: None }).await.unwrap();
        let kube = Kube::start(clock, faults.clone(), None).await.unwrap();
        kube.add_namespace("open-webui");
        kube.add_namespace("llm-keys");
        let offering = waldur.add_offering("Shared LLM access");
        waldur.set_models(offering, &MODELS);
        for model in MODELS {
            gateway.remove_model(model);
            gateway.add_model(model, None, None);
        }
        let project = waldur.add_project("Bench");
        let folder = tempfile::tempdir().unwrap();
        let port = ReservedPort::take();
        let site = Self { faults, waldur, gateway, offering, project, folder, kube, store, port };
        let models: String = MODELS.iter().map(|name| format!("  - {{name: {name}, served_name: {name}}}\n")).collect();
        site.write("token", &site.waldur.agent_token());
        site.write("key", &site.gateway.master_key());
        site.write("catalogue.yml", &format!("inference_models:\n{models}"));
        site
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Resources without anything at the gateway, until there are this many.
    pub fn fill(&self, count: usize) {
        for n in self.waldur.resources().len()..count {
            self.waldur.add_resource(self.offering, &self.project, &format!("bench-{n}"), &["kestrel-8b"], &[]);
        }
    }

    /// Starts the program with these loops and this at the end of its configuration.
    pub fn start(&self, agent: &Path, only: &str, more: &str) -> Process {
        let dir = self.folder.path().display();
        let secrets = match self.store {
            Store::Kube => {
                format!("{{store: kubernetes, api_url: {}, chat_namespace: open-webui, key_namespace: llm-keys}}", self.kube.url())
            }
            Store::Directory => format!("{{store: directory, path: {dir}/secrets}}"),
        };
        let config = format!(
            "owner: bench\nwaldur: {{api_url: {}, token_file: {dir}/token}}\ngateway: {{url: {}, public_url: https://llm.example.org, key_file: {dir}/key}}\n\
             catalogue: {{file: {dir}/catalogue.yml}}\nsecrets: {secrets}\nlog: {{level: error}}\nhttp: {{listen: \"{}\"}}\nconcurrency: {{orders: 16}}\n\
             offerings:\n  - uuid: {}\n    limits: {{allow_unlimited: true}}\n{more}",
            self.waldur.api_url(),
            self.gateway.url(),
            self.port.address,
            self.offering
        );
        let path = self.write("config.yml", &config);
        Process::start(Command::new(agent).arg("--config").arg(path).args(["run", "--only", only]))
    }

    /// Writes among the calls that were counted.
    pub fn writes(&self) -> usize {
        self.faults.calls().iter().filter(|call| call.method != "GET").count()
    }

    /// Waits until the program says that a beat of this loop has ended, another one than it `said` before. Gives its words.
    pub async fn beaten(&self, which: &str, said: &str) -> String {
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let ended = format!("llm_access_last_beat_timestamp_seconds{{loop=\"{which}\"}}");
        let began = Instant::now();
        loop {
            let answer = http.get(format!("http://{}/metrics", self.port.address)).send().await;
            if let Ok(answer) = answer
                && let Ok(text) = answer.text().await
                && let Some(line) = text.lines().find(|line| line.starts_with(&ended) && *line != said)
            {
                return line.to_owned();
            }
            assert!(began.elapsed() < Duration::from_secs(1200), "no beat of {which} ended");
            pause(100).await;
        }
    }
}

/// The program.
pub struct Process(Child);

impl Process {
    pub fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap())
    }

    /// CPU seconds used so far.
    pub fn cpu(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
        ticks / 100.0
    }

    /// Memory in MB now.
    pub fn memory(&self) -> f64 {
        self.megabytes("VmRSS:")
    }

    /// Memory in MB at its highest.
    pub fn most_memory(&self) -> f64 {
        self.megabytes("VmHWM:")
    }

    /// Memory in MB at its highest; nothing once it has ended. Its CPU time can still be read then.
    pub fn memory_while_it_runs(&self) -> Option<f64> {
        self.look("VmHWM:")
    }

    fn megabytes(&self, name: &str) -> f64 {
        self.look(name).expect("it runs")
    }

    fn look(&self, name: &str) -> Option<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).ok()?;
        let line = status.lines().find(|line| line.starts_with(name))?;
        Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1024.0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Waits until `done`, looking every few milliseconds, at most `limit`; how many seconds it took.
pub async fn until(limit: u64, every: u64, mut done: impl FnMut() -> bool) -> f64 {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(limit), "not done within {limit} s");
        pause(every).await;
    }
    began.elapsed().as_secs_f64()
}

/// Real time passes.
pub async fn pause(milliseconds: u64) {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}
