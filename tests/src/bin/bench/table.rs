//! What was measured, as a table for people and as JSON for a comparison of two versions.

use serde_json::{Value, json};

/// The figures of one run, in the order in which they were measured.
#[derive(Default)]
pub struct Table {
    rows: Vec<Row>,
}

struct Row {
    name: String,
    value: f64,
    budget: Budget,
}

/// What a figure is held against.
#[derive(Clone, Copy)]
enum Budget {
    None,
    AtMost(f64),
    AtLeast(f64),
}

impl Budget {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::None => true,
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
        }
    }

    fn shown(self) -> String {
        match self {
            Self::None => String::new(),
            Self::AtMost(most) => format!("<= {}", shown(most)),
            Self::AtLeast(least) => format!(">= {}", shown(least)),
        }
    }
}

impl Table {
    /// A figure without a budget.
    pub fn note(&mut self, name: impl Into<String>, value: f64) {
        self.add(name.into(), value, Budget::None);
    }

    /// A figure that may be at most this.
    pub fn budget(&mut self, name: impl Into<String>, value: f64, most: f64) {
        self.add(name.into(), value, Budget::AtMost(most));
    }

    /// A figure that has to be this at least.
    pub fn at_least(&mut self, name: impl Into<String>, value: f64, least: f64) {
        self.add(name.into(), value, Budget::AtLeast(least));
    }

    fn add(&mut self, name: String, value: f64, budget: Budget) {
        // Some take minutes: what is known is shown at once.
        eprintln!("{name}: {}", shown(value));
        self.rows.push(Row { name, value, budget });
    }

    /// Whether every budget was kept.
    pub fn is_met(&self) -> bool {
        self.rows.iter().all(|row| row.budget.is_met(row.value))
    }

    /// Prints it for people.
    pub fn print(&self) {
        let width = width(self.rows.iter().map(|row| row.name.as_str()));
        println!("{}\n", machine());
        println!("{:<width$}  {:>9}  {:>9}", "", "measured", "budget");
        for Row { name, value, budget } in &self.rows {
            let verdict = match budget {
                Budget::None => "",
                budget if budget.is_met(*value) => "met",
                _ => "MISSED",
            };
            println!("{}", format!("{name:<width$}  {:>9}  {:>9}  {verdict}", shown(*value), budget.shown()).trim_end());
        }
    }

    /// Prints it for [`compare`].
    pub fn print_json(&self) {
        let row = |row: &Row| json!({"name": row.name, "value": row.value, "budget": row.budget.shown()});
        println!("{:#}", json!({"machine": machine(), "rows": self.rows.iter().map(row).collect::<Vec<_>>()}));
    }
}

/// Prints what changed from one run to another, both as [`Table::print_json`] wrote them.
pub fn compare(before: &str, after: &str) {
    let read = |path: &str| -> Value { serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap() };
    let (before, after) = (read(before), read(after));
    let rows = |of: &Value| -> Vec<(String, f64)> {
        let row = |row: &Value| (row["name"].as_str().unwrap().to_owned(), row["value"].as_f64().unwrap());
        of["rows"].as_array().unwrap().iter().map(row).collect()
    };
    let (old, new) = (rows(&before), rows(&after));
    let width = width(new.iter().chain(&old).map(|(name, _)| name.as_str()));
    println!("before: {}\nafter:  {}\n", before["machine"].as_str().unwrap(), after["machine"].as_str().unwrap());
    for (name, now) in &new {
        let Some((_, was)) = old.iter().find(|(other, _)| other == name) else {
            println!("{name:<width$}  {:>9}  {:>9}", "", shown(*now));
            continue;
        };
        let change = if *was == 0.0 { String::new() } else { format!("{:+.0} %", (now / was - 1.0) * 100.0) };
        println!("{}", format!("{name:<width$}  {:>9}  {:>9}  {change:>7}", shown(*was), shown(*now)).trim_end());
    }
    for (name, was) in old.iter().filter(|(name, _)| !new.iter().any(|(other, _)| other == name)) {
        println!("{name:<width$}  {:>9}", shown(*was));
    }
}

fn width<'a>(names: impl Iterator<Item = &'a str>) -> usize {
    names.map(|name| name.chars().count()).max().unwrap_or(0)
}

/// Three figures say enough.
fn shown(value: f64) -> String {
    match value {
        value if value == value.trunc() => format!("{value:.0}"),
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 1.0 => format!("{value:.2}"),
        value => format!("{value:.3}"),
    }
}

/// When, on what, and how busy it was besides.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map_or("unknown CPU", |(_, name)| name);
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let load = read("/proc/loadavg");
    let load = load.split(' ').take(3).collect::<Vec<_>>().join(" ");
    let date = jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC");
    let kernel = read("/proc/sys/kernel/osrelease");
    format!("{date}, {cores} cores of {model}, Linux {}, load at the end {load}", kernel.trim())
}
