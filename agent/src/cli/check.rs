//! `check`: everything that can be found wrong before it hurts, with the place and the cure.

use std::collections::BTreeSet;
use std::path::PathBuf;

use uuid::Uuid;
use waldur_client::{Class, ErrorKind, Offering, ResourceState, User};

use super::EXIT_INPUT;
use super::commands::Problem;
use super::print::{clean, plural, say};
use super::readers;
use crate::agent::Agent;
use crate::config::{OfferingConfig, WaldurAuth};
use crate::domain::{BillingMonth, Direction, usage_component};
use crate::features::Feature;
use crate::gate::Peer;
use crate::plan::{Finding, Notes, Ownership, plan_offering, wanted_access};
use crate::rights::{self, Verdict};
use crate::tls;

/// What a provider's agent may do only with these rights; the role CUSTOMER.OWNER of the provider has all of them.
const ROLES: [&str; 3] = ["CUSTOMER.OWNER", "CUSTOMER.MANAGER", "OFFERING.MANAGER"];

/// The offering type whose orders an agent may end.
const OFFERING_TYPE: &str = "Marketplace.Slurm";

/// How a team that may call nothing is written at the gateway.
const NO_MODELS: &str = "no-default-models";

/// The cure where something else than Waldur's API answers.
const OTHER_SERVER: &str = "this is not a Waldur API; waldur.api_url must end in /api/";

#[derive(Default)]
struct Report {
    passed: usize,
    failed: usize,
    warned: usize,
    /// The first line that could not be printed.
    unwritten: Option<Problem>,
}

impl Report {
    fn ok(&mut self, what: &str, detail: impl AsRef<str>) {
        self.passed += 1;
        self.line("ok", what, detail.as_ref());
    }
    fn warn(&mut self, what: &str, detail: impl AsRef<str>) {
        self.warned += 1;
        self.line("warn", what, detail.as_ref());
    }
    fn fail(&mut self, what: &str, detail: impl AsRef<str>) {
        self.failed += 1;
        self.line("FAIL", what, detail.as_ref());
    }
    /// Each as soon as it is known, since a peer can take its time. What follows a first line is indented.
    fn line(&mut self, word: &str, what: &str, detail: &str) {
        let detail: Vec<String> = detail.lines().map(clean).collect();
        let printed = say(format_args!("{word:<4}  {what}: {}", detail.join("\n      ")));
        self.unwritten = self.unwritten.take().or(printed.err());
    }
    fn end(self) -> Result<(), Problem> {
        let failed = self.failed > 0;
        say(format_args!("{} ok, {}, {} failed", self.passed, plural(self.warned, "warning"), self.failed))?;
        match self.unwritten {
            _ if failed => Err(Problem {
                code: EXIT_INPUT,
                message: "check found what has to be put right first: the lines that begin with FAIL".into(),
            }),
            Some(problem) => Err(problem),
            None => Ok(()),
        }
    }
}

/// Runs every check, `files` of other readers of the catalogue among them; exit 2 where one fails.
pub async fn check(agent: &Agent, warnings: &[String], files: &[PathBuf]) -> Result<(), Problem> {
    let mut report = Report::default();
    report.ok("configuration", format!("owner {:?}, {}", agent.config.owner, plural(agent.config.offerings.len(), "offering")));
    for warning in warnings {
        report.warn("configuration", warning);
    }
    check_credentials(agent, &mut report);
    check_catalogue(agent, &mut report);
    if let Some(user) = check_waldur(agent, &mut report).await {
        check_offerings(agent, &user, &mut report).await;
    }
    check_gateway(agent, &mut report).await;
    check_teams(agent, &mut report).await;
    check_readers(agent, files, &mut report);
    match agent.secrets.check().await {
        Ok(detail) => report.ok("secrets", detail),
        Err(error) => report.fail("secrets", tls::with_cure(Peer::Secrets, error.to_string())),
    }
    match crate::lease::check(&agent.config).await {
        Ok(None) => {}
        Ok(Some(detail)) => report.ok("lease", detail),
        Err(problem) => report.fail("lease", problem),
    }
    match agent.secrets.check_events().await {
        None => {}
        Some(Ok(detail)) => report.ok("events", detail),
        // Nothing depends on them.
        Some(Err(error)) => report.warn("events", error.to_string()),
    }
    for restart in agent.check_restarts().await {
        match restart {
            Ok(detail) => report.ok("restarts", detail),
            Err(error) => report.fail("restarts", error),
        }
    }
    report.ok("optional features", features(agent));
    report.end()
}

/// What the peers can do, as far as it is known without trying to write.
fn features(agent: &Agent) -> String {
    let named = |known: Option<bool>| {
        let names = Feature::ALL.into_iter().filter(|feature| agent.features.known(*feature) == known);
        names.map(Feature::as_str).collect::<Vec<_>>().join(", ")
    };
    let parts = [("there", Some(true)), ("not there, asked again hourly", Some(false)), ("learnt at first use", None)];
    parts
        .map(|(word, known)| (word, named(known)))
        .iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(word, names)| format!("{names}: {word}"))
        .collect::<Vec<_>>()
        .join("; ")
}

fn check_credentials(agent: &Agent, report: &mut Report) {
    let waldur = match &agent.config.waldur.auth {
        WaldurAuth::Token(secret) => ("waldur token", secret),
        WaldurAuth::Oidc { client_secret, .. } => ("waldur client secret", client_secret),
    };
    for (what, secret) in [waldur, ("gateway key", &agent.config.gateway.key)] {
        match secret.read() {
            Ok(value) if crate::secret_file::looks_base64(&value) => {
                report.warn(what, "looks base64-encoded; the file must hold the credential itself")
            }
            Ok(_) => report.ok(what, "readable"),
            Err(error) => report.fail(what, error.to_string()),
        }
    }
}

fn check_catalogue(agent: &Agent, report: &mut Report) {
    let file = agent.config.catalogue.file.display().to_string();
    let catalogue = match crate::catalogue::read(&agent.config.catalogue.file) {
        Ok(catalogue) => catalogue,
        Err(error) => return report.fail("catalogue", error.to_string()),
    };
    report.ok("catalogue", format!("{file}: {} models, {} orderable", catalogue.models.len(), catalogue.orderable().len()));
    let names: BTreeSet<&str> = catalogue.models.iter().map(|model| model.served_name.as_str()).collect();
    for offering in &agent.config.offerings {
        for name in offering.always_include.iter().filter(|name| !names.contains(name.as_str())) {
            report.fail(
                "catalogue",
                format!(
                    "offering {} always includes {name:?}, which the catalogue does not have; correct always_include",
                    offering.uuid.simple()
                ),
            );
        }
    }
}

async fn check_waldur(agent: &Agent, report: &mut Report) -> Option<User> {
    let url = agent.config.waldur.api_url.as_str();
    match agent.waldur.me().await {
        Ok(user) => {
            let roles: BTreeSet<String> = user.permissions.iter().map(|of| format!("{} of {:?}", of.role_name, of.scope_name)).collect();
            let listed = if roles.is_empty() { "none".to_owned() } else { roles.into_iter().collect::<Vec<_>>().join(", ") };
            report.ok("waldur", format!("{url} answers; user {} with roles {listed}", user.username));
            if user.is_staff {
                report.warn("waldur rights", "the user is staff and may do everything in Waldur; give the agent a user of its own, as CUSTOMER.OWNER of the provider's organization");
            } else if !user.permissions.iter().any(|of| ROLES.contains(&of.role_name.as_str())) {
                report.fail("waldur rights", "the user has no role on the provider; give it CUSTOMER.OWNER of the provider's organization");
            }
            Some(user)
        }
        Err(error) => {
            let tls = tls::cure(Peer::Waldur, &error.to_string());
            let cure = match error.class() {
                Class::Credential => "the token is not accepted; put a valid one into waldur.token_file",
                Class::NoSuchRoute | Class::Refused => OTHER_SERVER,
                _ if matches!(error.kind, ErrorKind::Decode { .. } | ErrorKind::Foreign { .. }) => OTHER_SERVER,
                _ => tls.as_deref().unwrap_or("is waldur.api_url right, and may this machine reach it?"),
            };
            report.fail("waldur", format!("{url}: {error}; {cure}"));
            None
        }
    }
}

/// The roles of a user that count for this offering: one on another organization or offering says nothing.
fn roles_on<'a>(user: &'a User, offering: &Offering) -> BTreeSet<&'a str> {
    let counts = |scope: Uuid| scope == offering.uuid || offering.customer.is_none_or(|provider| scope == provider);
    user.permissions.iter().filter(|of| of.scope_uuid.is_none_or(counts)).map(|of| of.role_name.as_str()).collect()
}

fn check_rights(user: &User, offering: &Offering, what: &str, report: &mut Report) {
    let roles = roles_on(user, offering);
    if user.is_staff || !user.permissions.iter().any(|of| ROLES.contains(&of.role_name.as_str())) {
        // Said already, for all offerings.
    } else if !ROLES.iter().any(|role| roles.contains(role)) {
        report.fail(what, "the user has no role on its provider, only on others; give it CUSTOMER.OWNER of the provider's organization");
    } else if !roles.contains("CUSTOMER.OWNER") {
        report.warn(
            what,
            "the user is not CUSTOMER.OWNER of its provider; older servers refuse order approval and price changes to lesser roles",
        );
    }
}

async fn check_offerings(agent: &Agent, user: &User, report: &mut Report) {
    for settings in &agent.config.offerings {
        let uuid = settings.uuid.simple();
        let what = format!("offering {uuid}");
        let offering = match agent.waldur.offering(settings.uuid).await {
            Ok(offering) => offering,
            Err(error) if error.class() == Class::NotFound => {
                report.fail(
                    &what,
                    "does not exist or may not be seen by this user; correct offerings[].uuid or give the user a role on its provider",
                );
                continue;
            }
            Err(error) => {
                report.fail(&what, error.to_string());
                continue;
            }
        };
        if offering.kind == OFFERING_TYPE {
            report.ok(&what, format!("{:?}, {}", offering.name, offering.state));
        } else {
            report.fail(
                &what,
                format!("is of type {}; only {OFFERING_TYPE} lets an agent end orders. Make an offering of that type", offering.kind),
            );
        }
        check_rights(user, &offering, &what, report);
        let kinds: BTreeSet<&str> = offering.components.iter().map(|component| component.kind.as_str()).collect();
        for limit in ["max_budget", "tpm_limit", "rpm_limit"].into_iter().filter(|limit| !kinds.contains(limit)) {
            report.warn(&what, format!("has no component {limit}, so customers cannot order that limit; the default applies"));
        }
        if let Some(catalogue) = agent.catalogue() {
            let aggregate = ["input_tokens", "output_tokens", "spend"].iter().any(|kind| kinds.contains(kind));
            let housed =
                |name: &str| [Direction::Input, Direction::Output].iter().any(|d| kinds.contains(usage_component(name, *d).as_str()));
            let homeless: Vec<&str> =
                catalogue.models.iter().map(|m| m.served_name.as_str()).filter(|name| !aggregate && !housed(name)).collect();
            if !homeless.is_empty() {
                report.warn(&what, format!("has no usage component for {}; their usage cannot be billed", homeless.join(", ")));
            }
        }
        check_sold(agent, settings, &offering, &what, report);
        match agent.refresh_governed(settings.uuid).await {
            Ok(true) => report.warn(&what, "has enable_api_key_provisioning on: Waldur governs keys one by one, which this agent does not serve yet; only the chat key is made"),
            Ok(false) => {}
            Err(failure) => report.fail(&what, failure.to_string()),
        }
        if let Err(failure) = agent.api_keys(waldur_client::ApiKeyFilter { offering: Some(settings.uuid), resource: None }).await {
            report.fail(&what, format!("its API keys cannot be listed: {failure}"));
        }
        match agent.waldur.resources(settings.uuid, &[ResourceState::Ok]).await {
            Ok(resources) => report.ok(&what, format!("{} resources OK", resources.len())),
            Err(error) => report.fail(&what, format!("its resources cannot be listed: {error}")),
        }
    }
}

/// What Waldur sells against what the catalogue offers: choices, components and prices.
fn check_sold(agent: &Agent, settings: &OfferingConfig, offering: &Offering, what: &str, report: &mut Report) {
    agent.remember(offering);
    let Some(view) = agent.catalogue() else { return };
    let plan = match plan_offering(&agent.shop(settings, &view), offering) {
        Ok(plan) => plan,
        Err(why) => return report.fail(what, why),
    };
    let changes = plan.actions.len();
    if changes > 0 && Notes::read(offering).owner.is_none() {
        report.ok(
            what,
            format!("not kept by an agent yet; the offering loop of `run` makes {}, which `plan` shows", plural(changes, "change")),
        );
    } else {
        for action in &plan.actions {
            report.fail(what, format!("not as the catalogue says: {action}; a running agent does it at its next pass"));
        }
    }
    let month = BillingMonth::of(agent.clock.now()).next().first_day();
    let mut pending = 0;
    for finding in &plan.findings {
        match finding {
            Finding::Pending { kind, plan, now, then } => {
                pending += 1;
                report.ok(what, format!("plan {plan}: {kind} costs {now} and {then} later: pending until {month}"));
            }
            Finding::NoSuchPlan(name) => report.fail(what, format!("has no plan {name:?}; correct offerings[].plans")),
            Finding::NotOurs { kind, billing } => report.fail(
                what,
                format!("component {kind} is charged as {billing}, so somebody else made it; remove it, or change its accounting type"),
            ),
            Finding::Retired { kind, reason } => {
                report.ok(what, format!("component {kind} is retired, since Waldur does not remove it: {reason}"))
            }
        }
    }
    if changes == 0 {
        let waiting = if pending == 0 { String::new() } else { format!(", {} pending until {month}", plural(pending, "price")) };
        report.ok(what, format!("choices, components and prices are as in the catalogue{waiting}"));
    }
}

async fn check_gateway(agent: &Agent, report: &mut Report) {
    let url = agent.config.gateway.url.as_str();
    match agent.gateway.readiness().await {
        Ok(readiness) if readiness.db_connected => report.ok("gateway", format!("{url} is ready, database connected")),
        Ok(_) => report.fail("gateway", format!("{url} answers but its database is not connected; nothing can be made there")),
        Err(error) => {
            let tls = tls::cure(Peer::Gateway, &error.to_string());
            let cure = tls.as_deref().unwrap_or("is gateway.url right, and may this machine reach it?");
            return report.fail("gateway", format!("{url}: {error}; {cure}"));
        }
    }
    match agent.gateway.teams().await {
        Ok(teams) => report.ok("gateway key", format!("may list teams ({})", teams.len())),
        Err(error) => report.fail(
            "gateway key",
            format!(
                "{error}; gateway.key_file must hold the master key or a key of a proxy_admin user with the routes of docs/security.md"
            ),
        ),
    }
    check_gateway_rights(agent, report).await;
    let compared = match agent.compare_gateway().await {
        Ok(compared) => compared,
        Err(error) => return report.fail("gateway models", error.to_string()),
    };
    let Some(catalogue) = agent.catalogue() else { return };
    for action in &compared.left {
        report.fail("gateway models", format!("not as the catalogue says: {action}; a running agent does it at its next pass"));
    }
    for difference in &compared.differences {
        report.fail("gateway models", difference.to_string());
    }
    if compared.left.is_empty() && compared.differences.is_empty() {
        report.ok("gateway models", format!("all {} models of the catalogue are served, at its prices", catalogue.models.len()));
    }
}

/// What the key may call against what the agent calls, as far as the gateway tells. Nothing is tried.
async fn check_gateway_rights(agent: &Agent, report: &mut Report) {
    const WHAT: &str = "gateway rights";
    let key = match agent.gateway.own_key().await {
        Ok(Some(key)) => key,
        Ok(None) => {
            return report
                .ok(WHAT, "the master key may do everything; docs/security.md tells how to make a key that may do only what is needed");
        }
        Err(error) => return report.fail(WHAT, format!("what the key may call cannot be asked: {error}")),
    };
    match rights::judge(&key, agent.config.gateway.manage_models) {
        Verdict::Narrow => {
            report.ok(WHAT, format!("the key may call the {} routes that are needed and no others", key.allowed_routes.len()))
        }
        Verdict::Wide(more) => report.ok(WHAT, format!("the key may call what is needed, and more: {}", more.join(", "))),
        Verdict::Unrestricted => report
            .ok(WHAT, "the key may call every route that its user's role allows; docs/security.md has the list of those that are needed"),
        Verdict::Groups(groups) => report.ok(
            WHAT,
            format!(
                "the key has groups of routes ({}), of which only the gateway knows the members; docs/security.md has a narrow list",
                groups.join(", ")
            ),
        ),
        Verdict::Missing(missing) => {
            for route in missing {
                report.fail(
                    WHAT,
                    format!("the key may not call {}, which is needed for {}; add it to its allowed_routes", route.path, route.purpose),
                );
            }
        }
    }
}

/// What projects may call against what they ordered and what the catalogue lists.
async fn check_teams(agent: &Agent, report: &mut Report) {
    const WHAT: &str = "teams";
    let world = match agent.read_world().await {
        Ok(world) => world,
        // The peer that failed was named already.
        Err(error) => return report.warn(WHAT, format!("could not be compared with the catalogue: {error}")),
    };
    let Some(view) = agent.catalogue() else { return };
    let (mut compared, mut differing) = (0, 0);
    for (offering, resource) in world.resources.values() {
        let Some(settings) = agent.offering(*offering) else { continue };
        let seen = world.view(*offering, resource, 0);
        let Some(team) = seen.team.as_ref().filter(|_| seen.ownership(&agent.config.owner) == Ownership::Ours) else { continue };
        compared += 1;
        let rules = agent.rules(settings, &view);
        let wanted = wanted_access(&rules, &seen.resource, None, &team.models).ok().and_then(|wanted| wanted.models);
        let name = format!("team {} (resource {})", team.team_id, seen.resource.slug);
        let held: BTreeSet<&str> = team.models.iter().map(String::as_str).filter(|model| *model != NO_MODELS).collect();
        let mut lines = Vec::new();
        if team.models.is_empty() {
            lines.push(format!("{name} may call every model of the gateway"));
        }
        for model in &held {
            if view.model(model).is_none() {
                lines.push(format!("{name} may call {model}, which the catalogue does not list"));
            } else if wanted.as_ref().is_some_and(|wanted| !wanted.contains(*model)) {
                lines.push(format!("{name} may call {model}, which was not ordered"));
            }
        }
        for model in wanted.iter().flatten().filter(|model| !held.contains(model.as_str())) {
            lines.push(format!("{name} may not call {model}, which was ordered"));
        }
        differing += usize::from(!lines.is_empty());
        lines.iter().for_each(|line| report.fail(WHAT, line));
    }
    if differing == 0 {
        report.ok(WHAT, format!("{} may call what was ordered", plural(compared, "team")));
    }
}

/// What other systems rendered from the same catalogue.
fn check_readers(agent: &Agent, files: &[PathBuf], report: &mut Report) {
    if files.is_empty() {
        return;
    }
    let Ok(catalogue) = crate::catalogue::read(&agent.config.catalogue.file) else {
        return report.fail("readers", "cannot be compared with a catalogue that cannot be read");
    };
    for file in files {
        let compared = readers::compare_file(file, &catalogue);
        if compared.differences.is_empty() {
            let found = compared.found.into_iter().collect::<Vec<_>>().join(", ");
            report.ok("reader", format!("{}: as in the catalogue: {found}", file.display()));
        }
        for difference in compared.differences {
            report.fail("reader", difference);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use waldur_client::Permission;

    #[test]
    fn a_role_counts_where_it_was_given() {
        let [provider, offering, other] = [1, 2, 3].map(Uuid::from_u128);
        let offering = Offering { uuid: offering, customer: Some(provider), ..Offering::default() };
        let role = |name: &str, scope: Option<Uuid>| Permission { role_name: name.into(), scope_uuid: scope, ..Permission::default() };
        let permissions = vec![
            role("CUSTOMER.OWNER", Some(other)),
            role("OFFERING.MANAGER", Some(offering.uuid)),
            role("CUSTOMER.MANAGER", Some(provider)),
            role("CUSTOMER.SUPPORT", None),
        ];
        let user = User { permissions, ..User::default() };
        assert_eq!(roles_on(&user, &offering), BTreeSet::from(["CUSTOMER.MANAGER", "CUSTOMER.SUPPORT", "OFFERING.MANAGER"]));
        // A server that does not name the provider: every role may be on it.
        let nameless = Offering { customer: None, ..offering };
        assert!(roles_on(&user, &nameless).contains("CUSTOMER.OWNER"));
    }
}
