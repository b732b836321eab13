//! Logs and metrics.

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{LogConfig, LogFormat};

/// Starts the log on standard error. Control characters in messages are escaped by the formatter, so that a customer's text
/// cannot forge a line; a reader that went away must not end the agent.
/// `quiet` keeps what is only informative out of the way of a command's own output, unless a level was chosen.
///
/// # Errors
/// A level that is none.
pub fn log(config: &LogConfig, quiet: bool) -> Result<(), String> {
    let level = if quiet && config.level == "info" { "warn" } else { &config.level };
    let filter = EnvFilter::try_new(level).map_err(|error| format!("log.level: {error}; give one of error, warn, info, debug, trace"))?;
    let registry = tracing_subscriber::registry().with(filter);
    let started = match config.format {
        LogFormat::Json => registry.with(tracing_subscriber::fmt::layer().log_internal_errors(false).json().flatten_event(true).with_writer(std::io::stderr)).try_init(),
        LogFormat::Text => registry.with(tracing_subscriber::fmt::layer().log_internal_errors(false).with_ansi(false).with_writer(std::io::stderr)).try_init(),
    };
    started.map_err(|error| error.to_string())
}

/// Starts the metrics.
#[must_use]
pub fn metrics() -> Option<PrometheusHandle> {
    describe();
    PrometheusBuilder::new().install_recorder().ok()
}

fn describe() {
    metrics::describe_gauge!("llm_access_condition", "1 while a condition of this name holds");
    metrics::describe_gauge!("llm_access_open_orders", "Open orders by offering");
    metrics::describe_gauge!("llm_access_resources", "Resources compared in the last slow beat");
    metrics::describe_gauge!("llm_access_resources_drifted", "Resources that differed in the last slow beat");
    metrics::describe_gauge!("llm_access_last_beat_timestamp_seconds", "When a loop last ended a beat");
    metrics::describe_counter!("llm_access_actions_total", "Actions carried out, by name");
    metrics::describe_counter!("llm_access_order_turns_total", "Turns of orders, by kind and outcome");
    metrics::describe_counter!("llm_access_orders_erred_total", "Orders set to erred");
    metrics::describe_counter!("llm_access_orders_rejected_total", "Orders rejected");
    metrics::describe_counter!("llm_access_unbilled_total", "Final usages that could not be reported");
}
