//! The commands.

pub mod catalogue;
mod check;
pub mod commands;
pub mod components;
mod print;
mod readers;
mod usage;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use uuid::Uuid;

use crate::agent::Agent;
use crate::clock::Clock;
use crate::config::{self, Config, TokenUnit};
use crate::resources::Loop;
use crate::telemetry;

const EXIT_CODES: &str = "Exit codes: 0 done, 1 trouble with Waldur, the gateway or the Secrets, 2 what was given or found is wrong.";

/// Something the operator gave is wrong; nothing was done.
pub const EXIT_INPUT: u8 = 2;

/// Sells shared LLM access through a Waldur marketplace offering.
#[derive(Debug, Parser)]
#[command(name = "llm-access-agent", bin_name = "llm-access-agent", version, arg_required_else_help = true, after_help = EXIT_CODES)]
pub struct Cli {
    /// The configuration file.
    #[arg(long, short, global = true, env = "LLM_ACCESS_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Follow orders and keep resources as they should be, until stopped.
    Run {
        /// Only these, separated by commas.
        #[arg(long, value_delimiter = ',', value_name = "LOOP")]
        only: Vec<LoopName>,
        /// Longest wait for work in flight after SIGTERM.
        #[arg(long, default_value_t = 25, value_name = "SECONDS")]
        grace: u64,
    },
    /// Check configuration, peers, rights and offerings; say what is wrong, where, and the cure.
    Check {
        /// Also compare a file that another system renders from the catalogue.
        ///
        /// `LLM_ACCESS_MODELS` of a Deployment, `llmOffering`, `modelPricing` or `llm.models`; YAML or JSON, - for standard
        /// input. Can be repeated.
        #[arg(long = "reader", num_args = 1.., value_name = "FILE")]
        readers: Vec<PathBuf>,
    },
    /// Print what the next pass would do; change nothing.
    Plan,
    /// Print every resource with its team, keys, Secrets and budget.
    Status {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Work with single orders.
    Orders {
        #[command(subcommand)]
        command: OrdersCommand,
    },
    /// Report usage, fill in months, or compare Waldur with the gateway.
    Usage {
        #[command(subcommand)]
        command: usage::UsageCommand,
    },
    /// Work with keys.
    Keys {
        #[command(subcommand)]
        command: KeysCommand,
    },
    /// Take over a team under a resource's id that is not marked as ours.
    Adopt {
        /// Its uuid, as in Waldur and in the log.
        resource: Uuid,
    },
    /// The model catalogue.
    Catalogue {
        #[command(subcommand)]
        command: CatalogueCommand,
    },
    /// The components of the offerings.
    Components {
        #[command(subcommand)]
        command: ComponentsCommand,
    },
    /// Teams and Secrets of ours whose resource has ended, or is not shown by Waldur.
    Orphans {
        #[command(subcommand)]
        command: OrphansCommand,
    },
}

#[derive(Debug, Subcommand)]
enum OrdersCommand {
    /// Take up an erred order again, however often it has erred.
    Retry {
        /// Its uuid, as in Waldur and in the log.
        order: Uuid,
    },
}

#[derive(Debug, Subcommand)]
enum KeysCommand {
    /// Print the project's key of a resource. The output is secret.
    Show {
        /// Its uuid, as in Waldur and in the log.
        resource: Uuid,
        /// The key of Open WebUI instead.
        #[arg(long)]
        chat: bool,
    },
    /// Replace the keys of a resource: new keys go into its Secrets, the old ones serve on for `rotation.grace`.
    Rotate {
        /// Its uuid, as in Waldur and in the log.
        resource: Uuid,
        /// Only the key of Open WebUI.
        #[arg(long)]
        chat: bool,
        /// Only the project's key.
        #[arg(long)]
        project: bool,
        /// End the old keys as soon as the new ones work, as after a leak.
        #[arg(long)]
        now: bool,
    },
}

#[derive(Debug, Subcommand)]
enum CatalogueCommand {
    /// Check catalogues; needs neither configuration nor peers.
    Validate {
        /// The files.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// As JSON.
        #[arg(long)]
        json: bool,
        /// The unit that prices are kept in, as offerings[].token_unit.
        #[arg(long, value_enum, default_value_t = Unit::Thousand, value_name = "UNIT")]
        token_unit: Unit,
    },
    /// Let the catalogue through as it is now, although it lost many models at once.
    Accept,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Unit {
    /// One token.
    #[value(name = "1")]
    One,
    /// A thousand tokens.
    #[value(name = "1k")]
    Thousand,
    /// A million tokens.
    #[value(name = "1M")]
    Million,
}

#[derive(Debug, Subcommand)]
enum ComponentsCommand {
    /// Print every component: its model, state, price, use and what is known about it.
    List,
    /// Remove a component for good, or retire it where Waldur keeps it.
    Remove {
        /// The component's type, or a model: then all components of that model.
        key: String,
        /// Say what would be done; change nothing.
        #[arg(long)]
        dry_run: bool,
        /// Also where its model is in the catalogue, or there is usage this month.
        #[arg(long)]
        force: bool,
        /// Only in this offering.
        #[arg(long, value_name = "UUID")]
        offering: Option<Uuid>,
        /// Remove the rows of all terminated resources of the offering first, as staff.
        #[arg(long, requires = "staff_token_file")]
        unlink_terminated: bool,
        /// File with the API token of a staff user.
        #[arg(long, value_name = "FILE", requires = "unlink_terminated")]
        staff_token_file: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
enum OrphansCommand {
    /// Print them, with what Waldur says of each resource.
    List,
    /// Remove what is left of resources that Waldur shows as ended, or of the one named.
    Remove {
        /// One resource; what is left of it goes even when Waldur does not show it at all.
        resource: Option<Uuid>,
    },
}

impl Command {
    /// Whether nothing is changed, so that the log has nothing to tell but trouble.
    fn only_reads(&self) -> bool {
        match self {
            Self::Check { .. }
            | Self::Plan
            | Self::Status { .. }
            | Self::Keys { command: KeysCommand::Show { .. } }
            | Self::Orphans { command: OrphansCommand::List } => true,
            Self::Usage { command } => command.only_reads(),
            Self::Run { .. }
            | Self::Orders { .. }
            | Self::Keys { command: KeysCommand::Rotate { .. } }
            | Self::Adopt { .. }
            | Self::Orphans { command: OrphansCommand::Remove { .. } } => false,
            Self::Catalogue { command: CatalogueCommand::Validate { .. } } | Self::Components { command: ComponentsCommand::List } => true,
            Self::Components { command: ComponentsCommand::Remove { dry_run, .. } } => *dry_run,
            Self::Catalogue { command: CatalogueCommand::Accept } => false,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LoopName {
    Orders,
    Resources,
    Offering,
    Usage,
}

/// Runs one command and says how it ended: 0, 1 for trouble with peers, 2 for what the operator gave.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    // The agent waits for others nearly all of its time. More threads than two would only cost memory on large machines.
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(1, &format!("the runtime cannot start: {error}")),
    };
    let code = runtime.block_on(run(cli));
    // Work that did not end within the grace time must not hold the process.
    runtime.shutdown_timeout(Duration::from_millis(200));
    code
}

async fn run(cli: Cli) -> ExitCode {
    // What guards a repository has no configuration at hand.
    if let Command::Catalogue { command: CatalogueCommand::Validate { files, json, token_unit } } = &cli.command {
        let unit = match token_unit {
            Unit::One => TokenUnit::One,
            Unit::Thousand => TokenUnit::Thousand,
            Unit::Million => TokenUnit::Million,
        };
        return ended(catalogue::validate(files, unit, *json));
    }
    // One TLS provider for every client; a second one in the tree would make the first handshake panic.
    if rustls::crypto::aws_lc_rs::default_provider().install_default().is_err() {
        return fail(1, "another TLS provider is already installed");
    }
    let environment: Vec<(String, String)> =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))).collect();
    let loaded = match config::load(cli.config.as_deref(), &environment) {
        Ok(loaded) => loaded,
        Err(errors) => return fail(EXIT_INPUT, &errors.to_string()),
    };
    #[cfg(feature = "otel")]
    let (traces, layer) = match loaded.config.traces.as_ref().filter(|_| matches!(cli.command, Command::Run { .. })) {
        None => (None, None),
        Some(endpoint) => match crate::traces::start(endpoint, &loaded.config.owner) {
            Ok((traces, layer)) => (Some(traces), Some(layer)),
            Err(error) => return fail(EXIT_INPUT, &error),
        },
    };
    #[cfg(not(feature = "otel"))]
    let layer = None;
    if let Err(error) = telemetry::log(&loaded.config.log, cli.command.only_reads(), layer) {
        return fail(EXIT_INPUT, &error);
    }
    if !cli.command.only_reads() {
        for warning in &loaded.warnings {
            tracing::warn!("configuration: {warning}");
        }
    }
    let agent = match Agent::new(loaded.config, Clock::system()).await {
        Ok(agent) => agent,
        Err(error) => return fail(EXIT_INPUT, &error.to_string()),
    };
    let events = agent.secrets.events().clone();
    if cli.command.only_reads() {
        events.mute();
    }
    let outcome = match cli.command {
        Command::Run { only, grace } => {
            let code = daemon(agent, &only, Duration::from_secs(grace)).await;
            #[cfg(feature = "otel")]
            if let Some(traces) = traces {
                traces.end().await;
            }
            return code;
        }
        Command::Check { readers } => check::check(&agent, &loaded.warnings, &readers).await,
        Command::Plan => commands::plan(&agent).await,
        Command::Status { json } => commands::status(&agent, json).await,
        Command::Orders { command: OrdersCommand::Retry { order } } => commands::retry(&agent, order).await,
        Command::Usage { command } => usage::run(&agent, command).await,
        Command::Keys { command: KeysCommand::Show { resource, chat } } => commands::show_key(&agent, resource, chat).await,
        Command::Keys { command: KeysCommand::Rotate { resource, chat, project, now } } => {
            commands::rotate_keys(&agent, resource, (chat, project), now).await
        }
        Command::Adopt { resource } => commands::adopt(&agent, resource).await,
        Command::Catalogue { command: CatalogueCommand::Accept } => catalogue::accept(&agent).await,
        // Was done before a configuration was asked for.
        Command::Catalogue { command: CatalogueCommand::Validate { .. } } => Ok(()),
        Command::Components { command: ComponentsCommand::List } => components::list(&agent).await,
        Command::Components {
            command: ComponentsCommand::Remove { key, dry_run, force, offering, unlink_terminated: _, staff_token_file },
        } => {
            let order = components::Remove { key, offering, dry_run, force, unlink_with: staff_token_file };
            components::remove(&agent, &order).await
        }
        Command::Orphans { command: OrphansCommand::List } => commands::list_orphans(&agent).await,
        Command::Orphans { command: OrphansCommand::Remove { resource } } => commands::remove_orphans(&agent, resource).await,
    };
    events.flush().await;
    ended(outcome)
}

fn ended(outcome: Result<(), commands::Problem>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => fail(problem.code, &problem.message),
    }
}

fn fail(code: u8, message: &str) -> ExitCode {
    // Nobody may be reading any more; the exit code says it too.
    let _ = writeln!(std::io::stderr(), "llm-access-agent: {}", message.trim_end());
    ExitCode::from(code)
}

async fn daemon(agent: Agent, only: &[LoopName], grace: Duration) -> ExitCode {
    let stop = match signalled() {
        Ok(stop) => stop,
        Err(error) => return fail(1, &format!("signals cannot be waited for: {error}")),
    };
    let metrics = telemetry::metrics();
    agent.secrets.events().follow_conditions();
    if let Some(listen) = agent.config.http.listen
        && let Err(error) = crate::http::serve(listen, agent.clone(), metrics).await
    {
        return fail(EXIT_INPUT, &format!("http.listen: {listen} cannot be listened on: {error}"));
    }
    if let Some(listen) = agent.config.page.as_ref().map(|page| page.listen)
        && let Err(error) = crate::page::serve(listen, agent.clone()).await
    {
        return fail(EXIT_INPUT, &format!("page.listen: {listen} cannot be listened on: {error}"));
    }
    let loops: Vec<Loop> = if only.is_empty() {
        vec![Loop::Orders, Loop::Resources, Loop::Offering, Loop::Usage]
    } else {
        only.iter()
            .map(|name| match name {
                LoopName::Orders => Loop::Orders,
                LoopName::Resources => Loop::Resources,
                LoopName::Offering => Loop::Offering,
                LoopName::Usage => Loop::Usage,
            })
            .collect()
    };
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        owner = agent.config.owner,
        offerings = offerings(&agent.config),
        "llm-access-agent starts"
    );
    let lease = match crate::lease::elect(&agent).await {
        Ok(lease) => lease,
        Err(error) => return fail(EXIT_INPUT, &error.to_string()),
    };
    agent.run(&loops, stop, grace).await;
    if let Some(lease) = lease {
        // Handed over at once, instead of when it would expire.
        lease.release().await;
    }
    tracing::info!("stopped");
    ExitCode::SUCCESS
}

fn offerings(config: &Config) -> String {
    config.offerings.iter().map(|offering| offering.uuid.simple().to_string()).collect::<Vec<_>>().join(", ")
}

/// Resolves at the first SIGTERM or SIGINT from now on; a second one ends the process at once.
fn signalled() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut term, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! { _ = term.recv() => {}, _ = interrupt.recv() => {} }
        tokio::spawn(async move {
            // 128 and the number of the signal, as a shell tells it.
            let code = tokio::select! { _ = term.recv() => 143, _ = interrupt.recv() => 130 };
            tracing::warn!("second signal: ending at once");
            std::process::exit(code);
        });
    })
}
