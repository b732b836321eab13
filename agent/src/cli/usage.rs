//! `usage report`, `usage backfill` and `usage audit`.

use clap::Subcommand;
use rust_decimal::Decimal;
use serde_json::json;
use uuid::Uuid;

use super::commands::Problem;
use super::print::{clean, plural, say, table};
use crate::agent::Agent;
use crate::domain::{BillingMonth, amount};
use crate::usage::audit::{Audit, AuditRow};
use crate::usage::pass::{Line, Pass, PassReport};
use crate::usage::report::{How, Outcome, shown_changes};

/// The most months filled in at once.
const MOST_MONTHS: usize = 24;

#[derive(Debug, Subcommand)]
pub enum UsageCommand {
    /// Report now what Waldur does not hold yet. The running agent does the same on its beat.
    Report {
        /// Only print what would be sent.
        #[arg(long)]
        dry_run: bool,
        /// Lower figures that are higher in Waldur than in the gateway's ledger.
        #[arg(long)]
        allow_decrease: bool,
        /// Only this resource.
        #[arg(long, value_name = "UUID")]
        resource: Option<Uuid>,
    },
    /// Report past months again, where the Waldur server takes them. Prints what would be sent; --apply sends it.
    Backfill {
        /// The first month, as 2026-10.
        #[arg(long, value_name = "YYYY-MM")]
        from: BillingMonth,
        /// The last month.
        #[arg(long, value_name = "YYYY-MM")]
        to: BillingMonth,
        /// Only this resource.
        #[arg(long, value_name = "UUID")]
        resource: Option<Uuid>,
        /// Send it. Broken off, it goes on where it stopped.
        #[arg(long)]
        apply: bool,
        /// Lower figures that are higher in Waldur than in the gateway's ledger.
        #[arg(long)]
        allow_decrease: bool,
    },
    /// Compare Waldur, the gateway's daily rows and its log of calls, per resource, model and month.
    ///
    /// Exit code 1 where a difference has no explanation.
    Audit {
        /// The month; the running one if left out.
        #[arg(long, value_name = "YYYY-MM")]
        month: Option<BillingMonth>,
        /// Only this resource.
        #[arg(long, value_name = "UUID")]
        resource: Option<Uuid>,
        /// As JSON.
        #[arg(long, conflicts_with = "csv")]
        json: bool,
        /// As comma-separated values.
        #[arg(long)]
        csv: bool,
    },
}

impl UsageCommand {
    /// Whether nothing is changed.
    pub fn only_reads(&self) -> bool {
        match self {
            Self::Report { dry_run, .. } => *dry_run,
            Self::Backfill { apply, .. } => !apply,
            Self::Audit { .. } => true,
        }
    }
}

/// Runs one of them.
pub async fn run(agent: &Agent, command: UsageCommand) -> Result<(), Problem> {
    match command {
        UsageCommand::Report { dry_run, allow_decrease, resource } => {
            let how = How { dry_run, allow_decrease, final_usage: false };
            let report = agent.usage_pass(&Pass { how, only: resource, months: None }).await?;
            known(agent, resource, &report)?;
            print_pass(&report)?;
            verdict(&[report])
        }
        UsageCommand::Backfill { from, to, resource, apply, allow_decrease } => {
            backfill(agent, from, to, resource, How { dry_run: !apply, allow_decrease, final_usage: false }).await
        }
        UsageCommand::Audit { month, resource, json, csv } => {
            let month = month.unwrap_or_else(|| BillingMonth::of(agent.clock.now()));
            let audit = agent.audit(month, resource).await?;
            match (json, csv) {
                (true, _) => say(as_json(&audit))?,
                (_, true) => say(as_csv(&audit))?,
                _ => print_audit(&audit)?,
            }
            match audit.unexplained() {
                0 => Ok(()),
                n => Err(failed(format!("{} of {month} without an explanation", plural(n, "difference")))),
            }
        }
    }
}

fn failed(message: String) -> Problem {
    Problem { code: 1, message }
}

fn known(agent: &Agent, resource: Option<Uuid>, report: &PassReport) -> Result<(), Problem> {
    match resource.filter(|_| report.resources == 0) {
        None => Ok(()),
        Some(id) => Err(Problem {
            code: super::EXIT_INPUT,
            message: format!(
                "resource {} is none of ours that lives: {} offerings were looked through; `llm-access-agent status` lists them",
                id.simple(),
                agent.config.offerings.len()
            ),
        }),
    }
}

async fn backfill(agent: &Agent, from: BillingMonth, to: BillingMonth, resource: Option<Uuid>, how: How) -> Result<(), Problem> {
    let current = BillingMonth::of(agent.clock.now());
    if from > to || to > current {
        return Err(Problem { code: super::EXIT_INPUT, message: format!("{from} to {to} is no range of months up to {current}") });
    }
    let months: Vec<BillingMonth> =
        std::iter::successors(Some(from), |month| (*month < to).then(|| month.next())).take(MOST_MONTHS + 1).collect();
    if months.len() > MOST_MONTHS {
        return Err(Problem {
            code: super::EXIT_INPUT,
            message: format!("{from} to {to} is more than {MOST_MONTHS} months; take fewer at once"),
        });
    }
    let mut reports = Vec::new();
    for (n, month) in months.iter().enumerate() {
        say(format_args!("[{}/{}] {month}", n + 1, months.len()))?;
        let report = agent.usage_pass(&Pass { how, only: resource, months: Some(vec![*month]) }).await?;
        known(agent, resource, &report)?;
        print_pass(&report)?;
        reports.push(report);
    }
    if how.dry_run && reports.iter().any(|report| report.lines.iter().any(|line| matches!(line.outcome, Ok(Outcome::Would(_))))) {
        say("nothing was sent; add --apply to send it")?;
    }
    verdict(&reports)
}

fn print_pass(report: &PassReport) -> Result<(), Problem> {
    if report.discarded {
        return say("the month ended while usage was read; nothing was reported, run it again");
    }
    let mut rows = Vec::new();
    for line in &report.lines {
        let mut tell = |what: String| {
            rows.push(vec![line.resource.simple().to_string(), line.slug.chars().take(40).collect(), line.month.to_string(), what])
        };
        if let Some(what) = told(line) {
            tell(what);
        }
        for lower in &line.lower {
            tell(format!("not lowered: {} is {:.2} in Waldur and {:.2} in the ledger", lower.kind, lower.held, lower.ledger));
        }
    }
    for withheld in &report.withheld {
        say(format_args!("withheld: {}", clean(&withheld.to_string())))?;
    }
    for merged in &report.merged {
        say(format_args!("not told apart: {}", clean(&merged.to_string())))?;
    }
    if rows.is_empty() {
        let months: Vec<String> = report.months.iter().map(ToString::to_string).collect();
        return say(format_args!(
            "{}: Waldur holds what the ledger shows for {} ({} ledger rows)",
            months.join(", "),
            plural(report.resources, "resource"),
            report.rows
        ));
    }
    say(table(&["RESOURCE", "SLUG", "MONTH", "USAGE"], &rows))
}

fn told(line: &Line) -> Option<String> {
    Some(match &line.outcome {
        Ok(Outcome::Equal) => return None,
        Ok(Outcome::Sent(changes)) => format!("sent: {}", shown_changes(changes)),
        Ok(Outcome::Would(changes)) => format!("would be sent: {}", shown_changes(changes)),
        Ok(Outcome::State(state)) => format!("waits: Waldur takes no usage of a resource that is {state}"),
        Ok(Outcome::Waits(changes)) => format!("waits for the end of the month in Waldur: {}", shown_changes(changes)),
        Ok(Outcome::Closed { why, unsent }) => format!("unreported: {}; {why}", shown_changes(unsent)),
        Err(failure) => format!("failed: {failure}"),
    })
}

fn verdict(reports: &[PassReport]) -> Result<(), Problem> {
    let lines = || reports.iter().flat_map(|report| &report.lines);
    let failures = lines().filter(|line| line.outcome.is_err()).count();
    let lower = lines().filter(|line| !line.lower.is_empty()).count();
    let withheld: usize = reports.iter().map(|report| report.withheld.len()).sum();
    if failures + lower + withheld == 0 {
        return Ok(());
    }
    Err(failed(format!(
        "{failures} failed, {lower} with figures that are higher in Waldur than in the ledger (look with `usage audit`, then --allow-decrease), {withheld} parts of the ledger withheld"
    )))
}

fn exact(value: Decimal) -> String {
    value.normalize().to_string()
}

fn reasons(row: &AuditRow) -> String {
    let mut words: Vec<String> = row.reasons.iter().map(ToString::to_string).collect();
    if row.unexplained {
        words.push("UNEXPLAINED".into());
    }
    if !row.estimated.is_zero() {
        words.push(format!("{} of it estimated for failed calls", exact(row.estimated)));
    }
    words.join("; ")
}

fn cells(row: &AuditRow) -> Vec<String> {
    vec![
        row.resource.simple().to_string(),
        row.slug.chars().take(40).collect(),
        row.model.clone().unwrap_or_else(|| "all".into()),
        row.kind.clone(),
        row.waldur.map_or_else(|| "-".into(), |waldur| format!("{waldur:.2}")),
        format!("{:.2}", amount(row.daily, Decimal::ONE)),
        format!("{:.2}", amount(row.log, Decimal::ONE)),
        exact(row.daily_exact),
        exact(row.log_exact),
        reasons(row),
    ]
}

const COLUMNS: [&str; 10] = ["RESOURCE", "SLUG", "MODEL", "COMPONENT", "WALDUR", "DAILY", "LOG", "DAILY EXACT", "LOG EXACT", "REASON"];

fn print_audit(audit: &Audit) -> Result<(), Problem> {
    for withheld in &audit.withheld {
        say(format_args!("not billed: {}", clean(&withheld.to_string())))?;
    }
    for merged in &audit.merged {
        say(format_args!("not told apart: {}", clean(&merged.to_string())))?;
    }
    let lost = &audit.unattributed;
    if lost.prompt_tokens + lost.completion_tokens > 0 || !lost.spend.is_zero() {
        say(format_args!(
            "on nobody's bill, since the gateway lost the team of the key: {} + {} tokens, {} spend",
            lost.prompt_tokens,
            lost.completion_tokens,
            exact(lost.spend)
        ))?;
    }
    if audit.rows.is_empty() {
        return say(format_args!("{}: no usage anywhere", audit.month));
    }
    let rows: Vec<Vec<String>> = audit.rows.iter().map(cells).collect();
    say(table(&COLUMNS, &rows))?;
    let differ = audit.rows.iter().filter(|row| row.differs()).count();
    say(format_args!(
        "{}: {}, {} with a difference, {} unexplained",
        audit.month,
        plural(audit.rows.len(), "figure"),
        differ,
        audit.unexplained()
    ))
}

fn as_json(audit: &Audit) -> serde_json::Value {
    let rows: Vec<_> = audit
        .rows
        .iter()
        .map(|row| {
            json!({
                "resource": row.resource.simple().to_string(), "slug": row.slug, "model": row.model, "component": row.kind,
                "waldur": row.waldur.map(|waldur| format!("{waldur:.2}")), "daily": format!("{:.2}", row.daily), "log": format!("{:.2}", row.log),
                "daily_exact": exact(row.daily_exact), "log_exact": exact(row.log_exact), "estimated_for_failed_calls": exact(row.estimated),
                "differs": row.differs(), "unexplained": row.unexplained, "reasons": row.reasons.iter().map(ToString::to_string).collect::<Vec<_>>(),
            })
        })
        .collect();
    let lost = &audit.unattributed;
    json!({
        "month": audit.month.to_string(), "rows": rows, "unexplained": audit.unexplained(),
        "withheld": audit.withheld.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "not_told_apart": audit.merged.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "unattributed": {"input_tokens": lost.prompt_tokens, "output_tokens": lost.completion_tokens, "spend": exact(lost.spend)},
    })
}

/// Comma-separated values, as RFC 4180 has them. A text that a spreadsheet would take for a formula gets a quote in front.
fn as_csv(audit: &Audit) -> String {
    let field = |text: &str| {
        let text = if text.starts_with(['=', '+', '@']) { format!("'{text}") } else { text.to_owned() };
        if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
    };
    let head = std::iter::once("month".to_owned()).chain(COLUMNS.map(|column| column.to_lowercase().replace(' ', "_")));
    let mut lines = vec![head.collect::<Vec<_>>().join(",")];
    let month = audit.month.to_string();
    for row in &audit.rows {
        let cells: Vec<String> = std::iter::once(month.clone()).chain(cells(row)).map(|cell| field(&cell)).collect();
        lines.push(cells.join(","));
    }
    lines.join("\n")
}
