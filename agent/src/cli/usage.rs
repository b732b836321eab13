//! `usage report`, `usage backfill` and `usage audit`.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Subcommand;
use rust_decimal::Decimal;
use serde_json::json;
use uuid::Uuid;

use super::commands::Problem;
use super::print::{clean, plural, say, table};
use crate::agent::Agent;
use crate::domain::{BillingMonth, amount};
use crate::usage::audit::{Audit, AuditRow};
use crate::usage::pass::{Line, Pass, PassReport, Progress};
use crate::usage::report::{How, Outcome, shown_changes};

/// The most months filled in at once.
const MOST_MONTHS: usize = 24;

#[derive(Debug, Subcommand)]
pub enum UsageCommand {
    /// Report now what Waldur does not hold yet. The running agent does the same on its beat.
    ///
    /// Exit code 1 where something stays unreported: a report that failed or has to wait, a month that Waldur takes nothing
    /// for any more, a figure that is not lowered, or a part of the ledger that does not add up.
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
    ///
    /// Exit code 1 where something stays unreported, as for `usage report`.
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
            let report = agent.usage_pass(&Pass { how, only: resource, ..Pass::default() }).await?;
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
    let mut bar = Bar::new(std::io::stderr());
    for (n, month) in months.iter().enumerate() {
        say(format_args!("[{}/{}] {month}", n + 1, months.len()))?;
        let pass = Pass { how, only: resource, months: Some(vec![*month]), ..Pass::default() };
        let report = bar.watch(agent, pass, &format!("[{}/{}] {month}", n + 1, months.len())).await?;
        known(agent, resource, &report)?;
        print_pass(&report)?;
        reports.push(report);
    }
    if how.dry_run && reports.iter().any(|report| report.lines.iter().any(|line| matches!(line.outcome, Ok(Outcome::Would(_))))) {
        say("nothing was sent; add --apply to send it")?;
    }
    if !how.dry_run && agent.conditions.holds("usage-misfiled") {
        say(format_args!("Waldur filed a past month under {current}; {current} is reported anew"))?;
        let report = agent.usage_pass(&Pass { how, only: resource, months: Some(vec![current]), ..Pass::default() }).await?;
        print_pass(&report)?;
        reports.push(report);
    }
    verdict(&reports)
}

/// A line on a terminal that says how far a pass has come. Elsewhere nothing is written.
struct Bar<W> {
    to: W,
    shown: bool,
}

impl<W: Write + IsTerminal> Bar<W> {
    fn new(to: W) -> Self {
        let shown = to.is_terminal();
        Self { to, shown }
    }
}

impl<W: Write> Bar<W> {
    /// Makes the pass, and says meanwhile how far it is.
    async fn watch(&mut self, agent: &Agent, pass: Pass, title: &str) -> Result<PassReport, Problem> {
        let progress = Arc::new(Progress::default());
        let pass = Pass { progress: Some(Arc::clone(&progress)), ..pass };
        let mut passing = std::pin::pin!(agent.usage_pass(&pass));
        let report = loop {
            self.draw(title, progress.done.load(Ordering::Relaxed), progress.of.load(Ordering::Relaxed));
            tokio::select! {
                report = &mut passing => break report,
                () = agent.clock.sleep(Duration::from_millis(200)) => {}
            }
        };
        self.wipe();
        Ok(report?)
    }

    /// Nobody fails for want of a progress bar.
    fn draw(&mut self, title: &str, done: usize, of: usize) {
        if self.shown {
            let words = if of == 0 { "reading the ledger".to_owned() } else { format!("{done} of {}", plural(of, "resource")) };
            let _ = write!(self.to, "\r\x1b[K{title}  {}  {words}", filled(done, of)).and_then(|()| self.to.flush());
        }
    }

    fn wipe(&mut self) {
        if self.shown {
            let _ = write!(self.to, "\r\x1b[K").and_then(|()| self.to.flush());
        }
    }
}

fn filled(done: usize, of: usize) -> String {
    const WIDTH: usize = 24;
    let part = done.min(of).saturating_mul(WIDTH).checked_div(of).unwrap_or(0);
    format!("[{}{}]", "#".repeat(part), "-".repeat(WIDTH - part))
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
    let count = |what: fn(&Line) -> bool| lines().filter(|line| what(line)).count();
    let sum = |what: fn(&PassReport) -> usize| reports.iter().map(what).sum::<usize>();
    let discarded = reports.iter().filter(|report| report.discarded).count();
    let left = [
        (count(|line| line.outcome.is_err()), "failed"),
        (count(|line| matches!(line.outcome, Ok(Outcome::State(_) | Outcome::Waits(_)))), "have to wait"),
        (count(|line| matches!(line.outcome, Ok(Outcome::Closed { .. }))), "of a month that Waldur takes nothing for any more"),
        (
            count(|line| !line.lower.is_empty()),
            "with figures that are higher in Waldur than in the ledger (look with `usage audit`, then --allow-decrease)",
        ),
        (sum(|report| report.withheld.len()), "parts of the ledger withheld"),
        (sum(|report| report.merged.len()), "parts of the ledger not told apart"),
        (discarded, "given up since the month ended meanwhile; run it again"),
    ];
    let words: Vec<String> = left.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    if words.is_empty() { Ok(()) } else { Err(failed(format!("not all is reported: {}", words.join(", ")))) }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_bar_is_drawn_over_and_wiped_and_nothing_is_written_where_nobody_looks() {
        let mut bar = Bar { to: Vec::new(), shown: true };
        bar.draw("[1/2] 2026-10", 0, 0);
        bar.draw("[1/2] 2026-10", 3, 4);
        bar.wipe();
        let text = String::from_utf8(bar.to).unwrap();
        assert!(text.starts_with("\r\x1b[K[1/2] 2026-10  [------------------------]  reading the ledger\r"), "{text:?}");
        assert!(text.contains("[##################------]  3 of 4 resources"), "{text:?}");
        assert!(text.ends_with("\r\x1b[K") && !text.contains('\n'), "{text:?}");

        let mut nobody = Bar { to: Vec::new(), shown: false };
        nobody.draw("x", 1, 2);
        nobody.wipe();
        assert_eq!(nobody.to, Vec::<u8>::new());
        assert_eq!((filled(5, 4), filled(1, 1)), (filled(4, 4), format!("[{}]", "#".repeat(24))));
    }
}
