//! The same work by the Python agent `waldur-site-agent` with its litellm plugin and by this one, on the same simulators.
//!
//! A deployment of the Python agent is three processes, one for orders, one for members and one for reports; this one is a
//! single process. What both do is counted and measured; asserted is only that both did it.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use llm_access_fixtures::litellm::Usage;
use llm_access_fixtures::waldur::Profile;

use crate::site::{MODELS, Process, Site, Store, pause};
use crate::table::Table;

/// What one process did until it came to rest.
struct Work {
    cpu: f64,
    memory: f64,
    calls: usize,
}

/// Waits until a process neither calls nor works, and gives what it did.
async fn rest(site: &Site, process: &Process) -> Work {
    let calls = || site.faults.count() + site.faults.other_calls().len();
    let waits = || site.faults.calls().iter().chain(&site.faults.other_calls()).any(|call| call.status.is_none());
    let (began, mut since, mut last) = (Instant::now(), Instant::now(), (0, 0.0));
    while since.elapsed() < Duration::from_secs(3) || calls() == 0 {
        assert!(began.elapsed() < Duration::from_secs(900), "still at work after {} calls", calls());
        let now = (calls(), process.cpu());
        if now.0 != last.0 || now.1 - last.1 > 0.015 || waits() {
            (last, since) = (now, Instant::now());
        }
        pause(100).await;
    }
    Work { cpu: process.cpu(), memory: process.memory(), calls: calls() }
}

/// One of the two agents on a site of its own.
struct Side<'a> {
    site: Site,
    /// The program, or the folder of the Python environment.
    program: &'a Path,
    python: bool,
}

impl Side<'_> {
    fn command(&self, mode: &str) -> Process {
        if !self.python {
            let only = match mode {
                "order_process" => "orders",
                "membership_sync" => "resources",
                _ => "usage",
            };
            return self.site.start(self.program, only, "");
        }
        let config = format!(
            "timezone: UTC\nlog_level: WARNING\nofferings:\n- name: LLM\n  waldur_api_url: \"{}\"\n  waldur_api_token: \"{}\"\n  waldur_offering_uuid: \"{}\"\n\
             \x20 backend_type: litellm\n  order_processing_backend: litellm\n  membership_sync_backend: litellm\n  reporting_backend: litellm-usage\n\
             \x20 backend_settings: {{api_url: \"{}\", api_token: \"{}\", models: [{}], resource_backend_id_source: uuid, component_metrics: {{input_tokens: input_tokens, output_tokens: output_tokens, spend: token_cost}}}}\n\
             \x20 backend_components:\n    input_tokens: {{measured_unit: tokens, accounting_type: usage, label: Input}}\n    output_tokens: {{measured_unit: tokens, accounting_type: usage, label: Output}}\n    spend: {{measured_unit: EUR, accounting_type: usage, label: Spend}}\n",
            self.site.waldur.api_url(),
            self.site.waldur.agent_token(),
            self.site.offering.simple(),
            self.site.gateway.url(),
            self.site.gateway.master_key(),
            MODELS.join(", "),
        );
        let config = self.site.write("site-agent.yml", &config);
        let heartbeat = self.site.folder.path().join("heartbeat");
        let mut command = Command::new(self.program.join("bin/waldur_site_agent"));
        Process::start(command.arg("-m").arg(mode).arg("-c").arg(config).env("WALDUR_SITE_AGENT_HEARTBEAT_PATH", heartbeat))
    }

    /// Runs one mode from its start until it comes to rest.
    async fn run(&self, mode: &str) -> Work {
        self.site.faults.reset_calls();
        let process = self.command(mode);
        rest(&self.site, &process).await
    }

    /// CPU seconds and memory at most of a program that only says how it is used.
    async fn help(&self) -> Work {
        let mut command = if self.python { Command::new(self.program.join("bin/waldur_site_agent")) } else { Command::new(self.program) };
        let process = Process::start(command.arg("--help"));
        let mut memory = 0.0_f64;
        while let Some(now) = process.memory_while_it_runs() {
            memory = memory.max(now);
            pause(2).await;
        }
        Work { cpu: process.cpu(), memory, calls: 0 }
    }
}

/// What one side took for all of it.
struct Figures {
    help: Work,
    idle: Work,
    create: Work,
    drift: Work,
    usage: Work,
}

async fn measure(side: &Side<'_>, count: usize) -> Figures {
    let help = side.help().await;
    let idle = side.run("order_process").await;
    let orders: Vec<_> = (0..count)
        .map(|n| {
            side.site
                .waldur
                .order(side.site.offering, &side.site.project, &format!("bench-{n}"), &["kestrel-8b"], &[("max_budget", "50")])
                .0
        })
        .collect();
    let create = side.run("order_process").await;
    for order in orders {
        assert_eq!(side.site.waldur.order_state(order), "done", "{}", side.site.waldur.error_of(order));
    }
    // The first pass writes what an order left open.
    side.run("membership_sync").await;
    let drift = side.run("membership_sync").await;
    let now = jiff::Timestamp::now();
    for key in side.site.gateway.all_live_keys() {
        let usage =
            Usage { prompt_tokens: 1234, completion_tokens: 321, cached_tokens: 0, spend: rust_decimal::Decimal::new(1_234_567, 9) };
        side.site.gateway.add_usage(key.team_id.as_deref(), &key.hash, "kestrel-8b", now, usage);
    }
    if !side.python {
        // Its own components are there after a pass over the offering; the other agent's are part of every offering here.
        let process = side.site.start(side.program, "offering", "");
        rest(&side.site, &process).await;
    }
    let usage = side.run("report").await;
    let month = now.strftime("%Y-%m").to_string();
    for resource in side.site.waldur.resources() {
        assert!(!side.site.waldur.usages(resource.uuid, &month).is_empty(), "no usage was reported");
    }
    Figures { help, idle, create, drift, usage }
}

/// Measures both and adds rows to the table.
pub async fn compare(agent: &Path, python: &Path, count: usize, table: &mut Table) {
    let side = async |program: &Path, is_python: bool| {
        let site = Site::new(Profile::Late2026, Store::Directory).await;
        measure(&Side { site, program, python: is_python }, count).await
    };
    let ours = side(agent, false).await;
    let theirs = side(python, true).await;
    // Nothing of ours takes no time at all, only less than the clock shows.
    let ratio = |theirs: f64, ours: f64| theirs / ours.max(0.01);
    let mut row = |what: &str, theirs: f64, ours: f64| {
        table.note(format!("{what}: Python"), theirs);
        table.note(format!("{what}: this"), ours);
        table.note(format!("{what}: times"), ratio(theirs, ours));
    };
    row("--help, CPU s", theirs.help.cpu, ours.help.cpu);
    row("--help, memory MB", theirs.help.memory, ours.help.memory);
    row("start and an idle order pass, CPU s", theirs.idle.cpu, ours.idle.cpu);
    let each = |work: &Work, idle: &Work| (work.cpu - idle.cpu).max(0.0) / count as f64 * 1000.0;
    row("a create by itself, CPU ms", each(&theirs.create, &theirs.idle), each(&ours.create, &ours.idle));
    let calls = |work: &Work, idle: &Work| (work.calls - idle.calls) as f64 / count as f64;
    row("a create, calls to Waldur and the gateway", calls(&theirs.create, &theirs.idle), calls(&ours.create, &ours.idle));
    row(&format!("{count} creates, with the start, CPU s"), theirs.create.cpu, ours.create.cpu);
    row(&format!("comparing {count} resources, with the start, CPU s"), theirs.drift.cpu, ours.drift.cpu);
    row(&format!("comparing {count} resources, calls"), theirs.drift.calls as f64, ours.drift.calls as f64);
    row(&format!("usage of {count} resources, with the start, CPU s"), theirs.usage.cpu, ours.usage.cpu);
    row(&format!("usage of {count} resources, calls"), theirs.usage.calls as f64, ours.usage.calls as f64);
    let all = |of: &Figures| of.create.cpu + of.drift.cpu + of.usage.cpu;
    // Three processes are one deployment of theirs, and one of ours does the work of all three.
    let at_rest = (
        theirs.create.memory + theirs.drift.memory + theirs.usage.memory,
        ours.create.memory.max(ours.drift.memory).max(ours.usage.memory),
    );
    for (what, (theirs, ours), least) in
        [("creates, comparison and usage, CPU s", (all(&theirs), all(&ours)), 20.0), ("at rest, all processes, memory MB", at_rest, 5.0)]
    {
        table.note(format!("{what}: Python"), theirs);
        table.note(format!("{what}: this"), ours);
        table.at_least(format!("{what}: times"), ratio(theirs, ours), least);
    }
    let ours_for_a_create = calls(&ours.create, &ours.idle);
    assert!(ours_for_a_create <= 21.0, "a create takes {ours_for_a_create} calls to Waldur and the gateway");
    assert!(ours.drift.calls < theirs.drift.calls, "a comparison takes more calls than the other agent's");
}
