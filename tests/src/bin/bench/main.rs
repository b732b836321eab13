//! Measures the real program against the simulators and prints one table: start, memory, calls and CPU, each beside its
//! budget.
//!
//! The agent is a process of its own, so its CPU time and memory are read from `/proc` without those of the simulators.
//!
//! Use: `bench --agent PATH [--only PART,…] [--resources N,…] [--orders N] [--json]`, `bench --compare BEFORE AFTER` with two
//! files that `--json` wrote. The parts: start, idle, create, orders, drift, files, usage, replan, size. With `--peer FOLDER`,
//! a Python environment with `waldur-site-agent`, that agent is measured beside this one instead.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::float_arithmetic,
    clippy::float_cmp,
    clippy::cast_precision_loss,
    clippy::disallowed_methods,
    reason = "a tool for developers"
)]

mod peer;
mod replan;
mod site;
mod table;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use llm_access_fixtures::faults::{Fault, Peer, Rule};
use llm_access_fixtures::litellm;
use llm_access_fixtures::waldur::Profile;
use site::{MODELS, Site, Store, pause, until};
use table::Table;
use uuid::Uuid;

#[tokio::main]
async fn main() {
    rustls::crypto::aws_lc_rs::default_provider().install_default().unwrap();
    let args: Vec<String> = std::env::args().collect();
    let place = |name: &str| args.iter().position(|arg| arg == name);
    let value = |name: &str| place(name).and_then(|i| args.get(i + 1)).map(String::as_str);
    if let Some(i) = place("--compare") {
        return table::compare(&args[i + 1], &args[i + 2]);
    }
    let agent = PathBuf::from(value("--agent").expect("--agent PATH"));
    let mut table = Table::default();
    if let Some(python) = value("--peer") {
        let count = value("--resources").map_or(50, |n| n.parse().unwrap());
        peer::compare(&agent, Path::new(python), count, &mut table).await;
        return if args.iter().any(|arg| arg == "--json") { table.print_json() } else { table.print() };
    }
    let numbers = |text: &str| text.split(',').map(|n| n.parse().unwrap()).collect::<Vec<usize>>();
    let sizes = numbers(value("--resources").unwrap_or("1000,2000,4000,10000"));
    let orders = numbers(value("--orders").unwrap_or("1000"))[0];
    let chosen: Option<BTreeSet<&str>> = value("--only").map(|parts| parts.split(',').collect());
    let is_chosen = |part: &str| chosen.as_ref().is_none_or(|chosen| chosen.contains(part));

    if is_chosen("size") {
        size(&agent, &mut table);
    }
    if is_chosen("start") {
        start(&agent, &mut table).await;
    }
    if is_chosen("idle") {
        idle(&agent, &mut table).await;
    }
    if is_chosen("create") {
        create(&agent, &mut table).await;
    }
    if is_chosen("orders") {
        waiting_orders(&agent, orders, &mut table).await;
    }
    if is_chosen("drift") {
        drift(&agent, Store::Kube, &sizes, &mut table).await;
    }
    if is_chosen("files") {
        drift(&agent, Store::Directory, &sizes, &mut table).await;
    }
    if is_chosen("usage") {
        for sold in &sizes {
            usage(&agent, *sold, 3, &mut table).await;
        }
        usage(&agent, 1000, 30, &mut table).await;
    }
    if is_chosen("replan") {
        replan::replan(&mut table);
    }
    if args.iter().any(|arg| arg == "--json") {
        table.print_json()
    } else {
        table.print()
    }
    if !table.is_met() {
        std::process::exit(1);
    }
}

/// The program as it is deployed, if it was built.
fn size(agent: &Path, table: &mut Table) {
    let deployed = agent.parent().and_then(Path::parent).map(|target| target.join("dist").join("llm-access-agent"));
    if let Some(found) = deployed.and_then(|path| std::fs::metadata(path).ok()) {
        table.note("size of the deployed program, MB", found.len() as f64 / 1_000_000.0);
    }
}

async fn start(agent: &Path, table: &mut Table) {
    let site = Site::new(Profile::Late2026, Store::Kube).await;
    let mut times = Vec::new();
    for _ in 0..5 {
        site.faults.reset_calls();
        let began = Instant::now();
        let _process = site.start(agent, "orders", "");
        until(20, 1, || site.faults.count() > 0).await;
        times.push(began.elapsed().as_secs_f64() * 1000.0);
    }
    times.sort_by(f64::total_cmp);
    table.budget("start to the first call, ms (the middle of 5)", times[2], 100.0);
}

async fn idle(agent: &Path, table: &mut Table) {
    let site = Site::new(Profile::Late2026, Store::Kube).await;
    let process = site.start(agent, "orders", "intervals: {orders: 100ms}\n");
    until(20, 10, || site.faults.count() > 5).await;
    site.faults.reset_calls();
    let cpu = process.cpu();
    pause(20_000).await;
    let (beats, cpu) = (site.faults.count() as f64, process.cpu() - cpu);
    let paths: BTreeSet<String> = site.faults.calls().into_iter().map(|call| call.path).collect();
    table.budget("idle order beat: calls", paths.len() as f64, 1.0);
    table.note("idle order beat: CPU, ms", cpu * 1000.0 / beats);
    drop(process);

    // Everything as it is deployed, with a little to look after.
    site.fill(100);
    rebuilt(&site, agent, 100).await;
    let process = site.start(agent, "orders,resources,offering,usage", "");
    pause(15_000).await;
    let cpu = process.cpu();
    pause(125_000).await;
    table.budget("at rest with 100 resources and default intervals: CPU, %", (process.cpu() - cpu) / 1.25, 1.0);
    table.budget("at rest with 100 resources: memory, MB", process.memory(), 30.0);
    table.note("at rest with 100 resources: memory at most, MB", process.most_memory());
}

async fn create(agent: &Path, table: &mut Table) {
    for (profile, most) in [(Profile::Y2024, 24.0), (Profile::Late2026, 28.0)] {
        let site = Site::new(profile, Store::Kube).await;
        let _process = site.start(agent, "orders", "intervals: {orders: 200ms}\n");
        for n in 0..2 {
            // What the server can do is learnt with the first.
            site.faults.reset_calls();
            let (order, _) = site.waldur.order(site.offering, &site.project, &format!("bench-{n}"), &["kestrel-8b"], &[]);
            until(20, 5, || site.waldur.order_state(order) == "done").await;
        }
        let calls = site.faults.calls();
        let lists = calls.iter().filter(|call| call.path.contains("state=executing")).count();
        table.budget(format!("create: calls ({profile:?})"), (calls.len() - lists + 1) as f64, most);
    }
}

/// Many orders that wait at the start, with some among them that fail or hang.
async fn waiting_orders(agent: &Path, count: usize, table: &mut Table) {
    for poisoned in [0, 20] {
        let site = Site::new(Profile::Late2026, Store::Kube).await;
        site.faults.set_latency(Duration::from_millis(20));
        let mut healthy: Vec<Uuid> = Vec::new();
        let every = (count + poisoned).checked_div(poisoned).unwrap_or(usize::MAX);
        for n in 0..count + poisoned {
            let (order, resource) = site.waldur.order(site.offering, &site.project, &format!("bench-{n}"), &["kestrel-8b"], &[]);
            if n % every != 0 || every == usize::MAX {
                healthy.push(order);
                continue;
            }
            // One in four never gets an answer, the others are refused.
            let refusal = r#"{"error":{"message":"no","type":"bad_request_error","param":null,"code":"400"}}"#;
            let fault = if n % (4 * every) == 0 { Fault::Hang { after_effect: false } } else { Fault::status(400, refusal) };
            site.faults.add(Rule::new(fault).peer(Peer::LiteLlm).path("/team/new").body(&resource.simple().to_string()));
        }
        let process = site.start(agent, "orders", "intervals: {orders: 1s}\n");
        let left = || {
            let open: BTreeSet<Uuid> =
                site.waldur.orders().into_iter().filter(|order| order.state != "done").map(|order| order.uuid).collect();
            healthy.iter().filter(|order| open.contains(order)).count()
        };
        let took = until(900, 250, || left() == 0).await;
        let which = if poisoned == 0 { format!("{count} orders") } else { format!("{count} orders among {poisoned} that fail or hang") };
        table.budget(format!("{which}, 20 ms per call: s"), took, 60.0);
        if poisoned == 0 {
            table.note(format!("{which}: orders per second"), count as f64 / took);
            table.note(format!("{which}: CPU of a create, ms"), process.cpu() * 1000.0 / count as f64);
            // A worker reads two namespaces at once, and meanwhile the open orders are listed.
            table.budget(format!("{which}, 16 at a time: calls in flight at most"), site.faults.in_flight_max() as f64, 33.0);
            table.note(format!("{which}: memory at most, MB"), process.most_memory());
        }
    }
}

/// Has the program make everything for the resources that are there, and waits until a pass writes nothing; the seconds.
async fn rebuilt(site: &Site, agent: &Path, count: usize) -> f64 {
    site.faults.reset_calls();
    let began = Instant::now();
    // Often enough to begin what was left out, seldom enough not to read everything all the time.
    let interval = 1 + count as u64 / 100;
    let process = site.start(agent, "resources", &format!("intervals: {{resources: {interval}s}}\n"));
    loop {
        site.faults.reset_calls();
        let before = site.gateway.all_live_keys().len();
        pause(2000 + interval * 1000).await;
        let seen = site.faults.calls();
        let passes = seen.iter().filter(|call| call.path.contains("/model/info") || call.path.contains("/v2/team/list?page=1&")).count();
        if before == 2 * count && passes >= 1 && seen.iter().all(|call| call.method == "GET") {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(3600), "{before} keys of {}", 2 * count);
    }
    drop(process);
    began.elapsed().as_secs_f64()
}

async fn drift(agent: &Path, store: Store, sizes: &[usize], table: &mut Table) {
    let (profile, kept) = match store {
        Store::Kube => (Profile::Late2026, "in Kubernetes"),
        Store::Directory => (Profile::Y2024, "in files"),
    };
    let site = Site::new(profile, store).await;
    let mut before = 0;
    for &count in sizes {
        site.fill(count);
        let took = rebuilt(&site, agent, count).await;
        table.note(format!("{} resources more, Secrets {kept}: made anew in s", count - before), took);
        before = count;
        site.faults.reset_calls();
        // Long enough for the first pass to end, short enough to wait for the second.
        let process = site.start(agent, "resources", &format!("intervals: {{resources: {}s}}\n", 5 + count / 200));
        let first = site.beaten("resources", "").await;
        let what = format!("unchanged drift pass, {count} resources, Secrets {kept}");
        table.note(format!("{what}: calls of the first after a start"), site.faults.count() as f64);
        table.note(format!("{what}: CPU of the first, with the start, s"), process.cpu());
        site.faults.reset_calls();
        let before_it = process.cpu();
        site.beaten("resources", &first).await;
        let largest = count == 10_000;
        let figure = |table: &mut Table, name: &str, value: f64, most: f64| {
            let name = format!("{what}: {name}");
            if largest { table.budget(name, value, most) } else { table.note(name, value) }
        };
        figure(table, "calls", site.faults.count() as f64, 500.0);
        figure(table, "CPU, s", process.cpu() - before_it, 2.0);
        figure(table, "memory at most, MB", process.most_memory(), 150.0);
        table.budget(format!("{what}: writes"), site.writes() as f64, 0.0);
        table.note(format!("{what}: memory after, MB"), process.memory());
    }
}

async fn usage(agent: &Path, sold: usize, days: i8, table: &mut Table) {
    let site = Site::new(Profile::Late2026, Store::Kube).await;
    let today = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    // A month with enough days of rows: the running one, else the one before.
    let month = if today.day() >= days { today } else { today.first_of_month().yesterday().unwrap() };
    let mut rows = 0;
    for n in 0..sold {
        let resource = site.waldur.add_resource(site.offering, &site.project, &format!("bench-{n}"), &["kestrel-8b"], &[]);
        let team = resource.simple().to_string();
        for model in MODELS {
            for day in 1..=days.min(month.days_in_month()) {
                let date = jiff::civil::date(month.year(), month.month(), day);
                let at = date.at(0, 30, 0, 0).to_zoned(jiff::tz::TimeZone::UTC).unwrap().timestamp();
                let spend = rust_decimal::Decimal::new(1_234_567, 9);
                let usage = litellm::Usage { prompt_tokens: 1234, completion_tokens: 321, cached_tokens: 0, spend };
                site.gateway.add_usage(Some(&team), &format!("key-{team}"), model, at, usage);
                rows += 1;
            }
        }
    }
    let more = format!("intervals: {{usage: {}s}}\nusage: {{late_days: 28}}\n", 5 + sold / 200);
    // Components have to be there before there is something to report.
    let process = site.start(agent, "offering", "");
    site.beaten("offering", "").await;
    drop(process);
    let what = |pass: &str| format!("usage pass {pass}, {sold} resources, {rows} rows");
    let reporting = what("that reports all");
    site.faults.reset_calls();
    let process = site.start(agent, "usage", &more);
    site.beaten("usage", "").await;
    table.note(format!("{reporting}: CPU with the start of the program, s"), process.cpu());
    table.note(format!("{reporting}: memory at most, MB"), process.most_memory());
    table.note(format!("{reporting}: writes"), site.writes() as f64);
    // A pass that was given up is fast.
    table.budget(format!("{reporting}: resources left out"), (sold as f64 - site.writes() as f64).max(0.0), 0.0);
    drop(process);

    let process = site.start(agent, "usage", &more);
    let mut last = String::new();
    // What a process has seen Waldur hold, it does not read again at each pass.
    for pass in ["with nothing new, first of a process", "with nothing new"] {
        let before = process.cpu();
        site.faults.reset_calls();
        last = site.beaten("usage", &last).await;
        let name = what(pass);
        let is_large = pass == "with nothing new" && rows >= 150_000;
        let figure = |table: &mut Table, of: &str, value: f64, most: f64| {
            let name = format!("{name}: {of}");
            if is_large { table.budget(name, value, most) } else { table.note(name, value) }
        };
        table.note(format!("{name}: calls"), site.faults.count() as f64);
        figure(table, "CPU, s", process.cpu() - before, 2.0);
        figure(table, "memory at most, MB", process.most_memory(), 150.0);
        table.budget(format!("{name}: writes"), site.writes() as f64, 0.0);
    }
}
