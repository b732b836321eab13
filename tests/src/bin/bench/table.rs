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
    /// The budget: the value is met up to this.
    most: Option<f64>,
}

impl Table {
    /// A figure without a budget.
    pub fn note(&mut self, name: impl Into<String>, value: f64) {
        self.add(name.into(), value, None);
    }

    /// A figure that may be at most this.
    pub fn budget(&mut self, name: impl Into<String>, value: f64, most: f64) {
        self.add(name.into(), value, Some(most));
    }

    fn add(&mut self, name: String, value: f64, most: Option<f64>) {
        // Some take minutes: what is known is shown at once.
        eprintln!("{name}: {}", shown(value));
        self.rows.push(Row { name, value, most });
    }

    /// Whether every budget was kept.
    pub fn is_met(&self) -> bool {
        self.rows.iter().all(|row| row.most.is_none_or(|most| row.value <= most))
    }

    /// Prints it for people.
    pub fn print(&self) {
        let width = width(self.rows.iter().map(|row| row.name.as_str()));
        println!("{}\n", machine());
        println!("{:<width$}  {:>9}  {:>9}", "", "measured", "at most");
        for Row { name, value, most } in &self.rows {
            let budget = most.map(shown).unwrap_or_default();
            let verdict = most.map(|most| if *value <= most { "met" } else { "MISSED" }).unwrap_or_default();
            println!("{}", format!("{name:<width$}  {:>9}  {budget:>9}  {verdict}", shown(*value)).trim_end());
        }
    }

    /// Prints it for [`compare`].
    pub fn print_json(&self) {
        let row = |row: &Row| json!({"name": row.name, "value": row.value, "most": row.most});
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
