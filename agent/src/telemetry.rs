//! Logs and metrics.

use std::fmt::Write as _;
use std::io;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::layer::{Layer as _, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry};

use crate::config::{LogConfig, LogFormat};
use crate::visible::is_unseen;

/// What takes note of spans and events.
pub type Layer = Box<dyn tracing_subscriber::Layer<Registry> + Send + Sync>;

/// Starts the log on standard error. Control characters in messages are escaped by the formatter, so that a customer's text
/// cannot forge a line, and what else a terminal obeys by [`Lines`]; a reader that went away must not end the agent.
/// `quiet` keeps what is only informative out of the way of a command's own output, unless a level was chosen. `more` takes
/// note of everything beside the log, whatever its level.
///
/// # Errors
/// A level that is none.
pub fn log(config: &LogConfig, quiet: bool, more: Option<Layer>) -> Result<(), String> {
    let level = if quiet && config.level == "info" { "warn" } else { &config.level };
    let filter = EnvFilter::try_new(level).map_err(|error| format!("log.level: {error}; give one of error, warn, info, debug, trace"))?;
    let lines = tracing_subscriber::fmt::layer().log_internal_errors(false).with_writer(|| Lines);
    let lines: Layer = match config.format {
        LogFormat::Json => lines.json().flatten_event(true).with_filter(filter).boxed(),
        LogFormat::Text => lines.with_ansi(false).with_filter(filter).boxed(),
    };
    let layers: Vec<Layer> = std::iter::once(lines).chain(more).collect();
    tracing_subscriber::registry().with(layers).try_init().map_err(|error| error.to_string())
}

/// Standard error, with every character spelt out that would act instead of showing, such as those that turn the direction of
/// the text. Each write is one event with its line end.
struct Lines;

impl io::Write for Lines {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = text.strip_suffix('\n').unwrap_or(&text);
        if line.chars().any(is_unseen) {
            // As JSON spells it, which both formats can have.
            let mut shown = String::with_capacity(event.len());
            for character in line.chars() {
                if is_unseen(character) {
                    let mut units = [0; 2];
                    for unit in character.encode_utf16(&mut units) {
                        // Writing to a string cannot fail.
                        let _ = write!(shown, "\\u{unit:04x}");
                    }
                } else {
                    shown.push(character);
                }
            }
            shown.push('\n');
            io::Write::write_all(&mut io::stderr(), shown.as_bytes())?;
        } else {
            io::Write::write_all(&mut io::stderr(), event)?;
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::Write::flush(&mut io::stderr())
    }
}

/// Starts the metrics.
#[must_use]
pub fn metrics() -> Option<PrometheusHandle> {
    let handle = PrometheusBuilder::new().install_recorder().ok();
    // Afterwards: what is described before there is a recorder is lost.
    describe();
    handle
}

/// What a metric counts or shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows, from 0 at the start of the process.
    Counter,
    /// What is so now.
    Gauge,
}

impl MetricKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }
}

/// One metric of `/metrics`.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name, by Prometheus convention: the unit last, then `_total` for a counter.
    pub name: &'static str,
    /// What it is.
    pub kind: MetricKind,
    /// Its labels; none has a value that a customer chose.
    pub labels: &'static [&'static str],
    /// One sentence, shown in `/metrics` and in `docs/metrics.md`.
    pub about: &'static str,
}

const fn counter(name: &'static str, labels: &'static [&'static str], about: &'static str) -> Metric {
    Metric { name, kind: MetricKind::Counter, labels, about }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], about: &'static str) -> Metric {
    Metric { name, kind: MetricKind::Gauge, labels, about }
}

/// Every metric of the agent, by name. `docs/metrics.md`, the alert rules and the dashboard are held against this list.
pub const METRICS: &[Metric] = &[
    counter("llm_access_actions_total", &["action"], "Actions carried out at a peer"),
    gauge("llm_access_budget_resets_overdue", &[], "Resources whose budget the gateway should have reset over an hour ago and has not"),
    gauge("llm_access_catalogue_models", &[], "Models of the catalogue in force"),
    gauge("llm_access_catalogue_models_missing", &[], "Models in force that the catalogue file no longer has"),
    gauge("llm_access_catalogue_shrink_held", &[], "1 while a catalogue that lost many models is held until it is accepted"),
    gauge("llm_access_components_retired", &["offering"], "Components of models that are gone, which Waldur refuses to remove"),
    gauge("llm_access_condition", &["condition"], "1 while a condition of this name holds for anything, 0 once it no longer does"),
    gauge(
        "llm_access_gateway_differences",
        &["kind"],
        "Models that the gateway serves otherwise than the catalogue says, by the kind of difference",
    ),
    gauge("llm_access_last_beat_timestamp_seconds", &["loop"], "When a loop last ended a beat, in seconds since 1970"),
    gauge("llm_access_leading", &[], "1 while this replica holds the Lease, 0 while another does; absent where no Lease is configured"),
    gauge(
        "llm_access_oldest_open_order_timestamp_seconds",
        &["offering"],
        "When the oldest open order was made, in seconds since 1970; 0 without one",
    ),
    gauge("llm_access_open_orders", &["offering"], "Open orders in the last beat"),
    counter("llm_access_order_turns_total", &["kind", "outcome"], "Turns of orders: each observes, plans and applies once"),
    counter("llm_access_orders_erred_total", &[], "Orders set to erred"),
    counter("llm_access_orders_rejected_total", &[], "Orders rejected"),
    gauge("llm_access_prices_pending", &["offering"], "Prices that Waldur holds for the first of a month to come"),
    gauge("llm_access_resources", &[], "Resources compared in the last slow beat"),
    gauge(
        "llm_access_resources_by_spent_share",
        &["percent"],
        "Resources that have spent at least this share of their monthly budget: 50, 80, 90 or 100 percent",
    ),
    gauge("llm_access_resources_drifted", &[], "Resources that differed from what they should be in the last slow beat"),
    gauge("llm_access_resources_without_models", &[], "Resources left without any model, since all that they ordered are gone"),
    counter("llm_access_unbilled_total", &[], "Final usages of a resource and month that could not be reported"),
    gauge("llm_access_usage_behind", &[], "Resources and months whose usage differed and could not be reported in the last usage pass"),
    gauge("llm_access_usage_foreign_teams", &[], "Teams with usage in the ledger that are no resource of ours"),
    gauge(
        "llm_access_usage_last_pass_timestamp_seconds",
        &[],
        "When the last usage pass that read everything began, in seconds since 1970",
    ),
    gauge(
        "llm_access_usage_months_unreported",
        &[],
        "Months of resources that are over and were not wholly reported, until the month after is over too",
    ),
    counter("llm_access_usage_passes_total", &["outcome"], "Usage passes: done, partly, discarded at midnight, failed"),
    counter("llm_access_usage_reported_total", &[], "Reports of a resource and month that were sent and read back"),
    gauge("llm_access_usage_rows", &[], "Ledger rows that the last usage pass added up"),
    gauge("llm_access_usage_unattributed_tokens", &[], "Tokens of keys whose team the gateway no longer knows; on nobody's bill"),
    gauge("llm_access_usage_withheld", &[], "Parts of the ledger that did not add up in the last usage pass and were not reported"),
];

/// [`METRICS`] as a Markdown table. `docs/metrics.md` holds it.
#[must_use]
pub fn metrics_table() -> String {
    let mut out = String::from("| Metric | Kind | Labels | Meaning |\n|---|---|---|---|\n");
    for metric in METRICS {
        let labels = metric.labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
        // Writing to a String cannot fail.
        let _ = writeln!(out, "| `{}` | {} | {labels} | {} |", metric.name, metric.kind.as_str(), metric.about);
    }
    out
}

fn describe() {
    for metric in METRICS {
        match metric.kind {
            MetricKind::Gauge => metrics::describe_gauge!(metric.name, metric.about),
            MetricKind::Counter => {
                metrics::describe_counter!(metric.name, metric.about);
                // A series that begins with its first event shows no increase, so that nobody would be alarmed.
                if metric.labels.is_empty() {
                    metrics::counter!(metric.name).absolute(0);
                }
            }
        }
    }
}
