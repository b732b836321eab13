//! What must hold in every world: at any moment ([`Watch`]), and at rest ([`problems`]). See docs/invariants.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::SignedDuration;
use llm_access_agent::config::{ApiKeyDelivery, ApprovalMode, Config, LimitsConfig, OnDownscale, SecretsConfig};
use llm_access_agent::domain::{BillingMonth, Direction, ModelRequest, usage_component};
use llm_access_agent::orders::OUR_ERROR;
use llm_access_fixtures::faults::{Call, Peer, Witness};
use llm_access_fixtures::kube::{Kube, SecretView};
use llm_access_fixtures::litellm::{KeyView, LiteLlm, TeamView};
use llm_access_fixtures::waldur::{OrderView, Profile, ResourceView, Waldur};
use rust_decimal::{Decimal, RoundingStrategy};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::{CHAT_NAMESPACE, Store, World, start_time};

/// The sha256 of a key in hexadecimal, as the gateway addresses it.
#[must_use]
pub fn hash(key: &str) -> String {
    Sha256::digest(key.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Checks every invariant, and says all that are broken.
pub fn check(world: &World) {
    let problems = problems(world);
    assert!(problems.is_empty(), "the world is not as it must be:\n{}", problems.join("\n"));
}

/// What is broken at rest, and what was broken on the way.
#[must_use]
pub fn problems(world: &World) -> Vec<String> {
    let mut problems = world.watch.problems();
    for order in world.waldur.orders().iter().filter(|order| order.state == "executing") {
        let resource = world.waldur.resource(order.resource);
        if resource.offering == world.offering && !is_foreign(&resource) {
            problems.push(format!("order {} of {} is still executing", order.kind, resource.slug));
        }
    }
    problems.extend(standing(world, &|_| true));
    problems
}

/// What is broken of a world that a test leaves, maybe while orders are carried out. What the test itself put there for agents
/// that only look, or bill, is as it put it.
#[must_use]
pub(crate) fn in_the_end(world: &World) -> Vec<String> {
    if !world.watch.called() {
        return Vec::new();
    }
    standing(world, &|resource| world.watch.made_team(resource))
}

/// What is broken of all that no order is at work on; of living resources only of those in `served`.
fn standing(world: &World, served: &dyn Fn(Uuid) -> bool) -> Vec<String> {
    let mut problems = Vec::new();
    let orders = world.waldur.orders();
    let teams: BTreeMap<String, _> = world.gateway.teams().into_iter().map(|team| (team.team_id.clone(), team)).collect();
    for resource in world.waldur.resources().into_iter().filter(|r| r.offering == world.offering && !is_foreign(r)) {
        let of_it: Vec<&OrderView> = orders.iter().filter(|order| order.resource == resource.uuid).collect();
        // What an agent is at work on may be in any state.
        if of_it.iter().any(|order| order.state == "executing") {
            continue;
        }
        match stage(&resource, &of_it) {
            Stage::Serves if !served(resource.uuid) => {}
            Stage::Serves => problems.extend(of_living(world, &resource, teams.get(&resource.uuid.simple().to_string()))),
            Stage::Ended => problems.extend(of_ended(world, &resource, &teams)),
            Stage::LeftToPeople => {}
        }
    }
    problems.extend(of_nobody(world));
    problems.extend(of_retired(world));
    problems.extend(overbilled(world));
    problems
}

/// What has our mark and is of no resource that Waldur knows.
fn of_nobody(world: &World) -> Vec<String> {
    let known: BTreeSet<Uuid> = world.waldur.resources().iter().map(|r| r.uuid).collect();
    let unknown = |id: &str| Uuid::parse_str(id).is_ok_and(|id| !known.contains(&id));
    let ours = |metadata: &Value| metadata["managed_by"] == OURS && metadata["owner"] == world.owner.as_str();
    let mut found = Vec::new();
    let teams = world.gateway.teams().into_iter().filter(|team| team.metadata["owner"] == world.owner.as_str());
    found.extend(teams.filter(|team| unknown(&team.team_id)).map(|team| format!("team {}", team.team_id)));
    let keys = world.gateway.all_live_keys().into_iter().filter(|key| ours(&key.metadata));
    let lost = keys.filter(|key| key.metadata["resource"].as_str().is_some_and(unknown));
    found.extend(lost.map(|key| format!("key {}", key.alias.unwrap_or(key.hash))));
    for secret in world.kube.secrets() {
        let label = |name: &str| secret.labels.get(name).map(String::as_str).unwrap_or_default();
        let ours = label("app.kubernetes.io/managed-by") == OURS && label("llm-access.io/owner") == world.owner;
        if ours && unknown(label("llm-access.io/resource")) {
            found.push(format!("Secret {}", secret.name));
        }
    }
    for file in fs::read_dir(world.secrets_folder()).into_iter().flatten().flatten() {
        let text = fs::read_to_string(file.path()).unwrap_or_default();
        let signed = text.lines().next().and_then(|line| line.strip_prefix(SIGNATURE)).unwrap_or_default();
        let said =
            |name: &str| signed.split(' ').filter_map(|part| part.split_once('=')).find(|(of, _)| *of == name).map(|(_, value)| value);
        if said("owner") == Some(&world.owner) && said("resource").is_some_and(unknown) {
            found.push(format!("file {}", file.file_name().to_string_lossy()));
        }
    }
    found.into_iter().map(|what| format!("{what} belongs to no resource")).collect()
}

/// Where a resource is in its life.
enum Stage {
    /// It has to work.
    Serves,
    /// Nothing of it may be left.
    Ended,
    /// An order that the agent set erred waits for people or for its next attempt; anything may be there.
    LeftToPeople,
}

fn stage(resource: &ResourceView, orders: &[&OrderView]) -> Stage {
    let last = orders.last();
    match resource.state.as_str() {
        "OK" => Stage::Serves,
        "Erred" if last.is_some_and(|order| order.error_message.starts_with(OUR_ERROR)) => Stage::LeftToPeople,
        "Erred" if last.is_some_and(|order| order.state == "erred" && matches!(order.kind.as_str(), "Create" | "Restore")) => Stage::Ended,
        "Erred" => Stage::Serves,
        _ => Stage::Ended,
    }
}

/// Another agent's.
fn is_foreign(resource: &ResourceView) -> bool {
    !resource.backend_id.is_empty() && Uuid::parse_str(&resource.backend_id).ok() != Some(resource.uuid)
}

fn our_keys(world: &World, id: &str) -> Vec<KeyView> {
    world.gateway.live_keys(id).into_iter().filter(|key| key.metadata["managed_by"] == "llm-access-agent").collect()
}

fn of_ended(world: &World, resource: &ResourceView, teams: &BTreeMap<String, TeamView>) -> Vec<String> {
    let mut problems = Vec::new();
    let id = resource.uuid.simple().to_string();
    let name = format!("resource {} ({})", resource.slug, resource.state);
    let (keys, secrets) = (our_keys(world, &id), world.secrets(resource.uuid));
    if teams.get(&id).is_some_and(|team| team.metadata["owner"] == world.owner.as_str()) {
        problems.push(format!("{name} still has a team"));
    }
    if !keys.is_empty() {
        problems.push(format!("{name} still has {} keys", keys.len()));
    }
    if !secrets.is_empty() {
        problems.push(format!("{name} still has Secrets {:?}", secrets.keys()));
    }
    problems
}

fn of_living(world: &World, resource: &ResourceView, team: Option<&TeamView>) -> Vec<String> {
    let mut problems = Vec::new();
    let id = resource.uuid.simple().to_string();
    let name = format!("resource {} ({})", resource.slug, resource.state);
    let (keys, secrets) = (our_keys(world, &id), world.secrets(resource.uuid));
    if resource.backend_id != id {
        problems.push(format!("{name} has the backend_id {:?}", resource.backend_id));
    }
    let Some(team) = team else {
        problems.push(format!("{name} has no team"));
        return problems;
    };
    if team.models.is_empty() {
        problems.push(format!("{name}: an empty model list allows every model"));
    }
    if resource.paused && !team.blocked {
        problems.push(format!("{name} is paused, and its team is not blocked"));
    }
    if secrets.keys().collect::<Vec<_>>() != ["chat", "project"] {
        problems.push(format!("{name} has Secrets {:?}", secrets.keys()));
        return problems;
    }
    let stored: BTreeMap<String, String> =
        ["chat", "project"].map(|slot| (world.key_in(&secrets, slot).map_or_else(String::new, |key| hash(&key)), slot.to_owned())).into();
    let live: BTreeMap<String, String> = keys.iter().map(|key| (key.hash.clone(), slot_of(&id, key))).collect();
    if stored.len() != 2 || keys.len() != 2 || stored != live {
        let live: Vec<_> = keys.iter().map(|k| (&k.alias, &k.hash)).collect();
        problems.push(format!("{name}: Secrets hold {stored:?}, the gateway {live:?}"));
        return problems;
    }
    let model = team.models.iter().find(|model| *model != "no-default-models");
    if let (Some(model), false) = (model, team.blocked) {
        for slot in ["chat", "project"] {
            if let Err((status, message)) = world.gateway.verdict(&world.key(resource.uuid, slot), model) {
                // A budget that is spent is no fault of the key.
                if !message.contains("udget") {
                    problems.push(format!("{name}: the {slot} key gets {status} {message} for {model}"));
                }
            }
        }
    }
    // Waldur lets no provider end a key on its own: one that was lost stays listed, and the newest is the one that works.
    let known = world.waldur.api_keys(resource.uuid);
    let serving = known.iter().filter(|key| key.state == "OK");
    let newest = serving.max_by_key(|key| key.client_id.rsplit('-').next().and_then(|n| n.parse::<u32>().ok()));
    if !known.is_empty() && newest.map(|key| &key.key) != Some(&world.key(resource.uuid, "project")) {
        problems.push(format!("{name}: Waldur shows keys {:?}", known.iter().map(|k| (&k.client_id, &k.state)).collect::<Vec<_>>()));
    }
    if resource.endpoints.is_empty() && resource.report.is_empty() {
        problems.push(format!("{name}: the customer sees neither endpoints nor a report"));
    }
    problems
}

/// Which of a team's two keys this is, by its alias: `<team>-<n>` or `<team>-chat-<n>`.
fn slot_of(team: &str, key: &KeyView) -> String {
    let rest = key.alias.as_deref().and_then(|alias| alias.strip_prefix(team)).unwrap_or_default();
    if rest.starts_with("-chat-") { "chat" } else { "project" }.into()
}

/// Nobody pays for a component that could not be removed.
fn of_retired(world: &World) -> Vec<String> {
    let prices = world.waldur.prices(world.offering);
    let components = world.waldur.components(world.offering);
    let retired = components.iter().filter(|(_, (name, _))| name.starts_with("[retired] "));
    retired
        .filter_map(|(kind, _)| Some((kind, prices.get(kind)?)))
        .filter(|(_, price)| !price.future.unwrap_or(price.price).is_zero())
        .map(|(kind, price)| format!("the retired component {kind} costs {price:?}"))
        .collect()
}

/// Every month from the start of the world to now.
fn months(world: &World) -> Vec<BillingMonth> {
    BillingMonth::span(start_time().min(world.sim_clock.now()), world.sim_clock.now())
}

/// What the ledger says of a team's month, by the type of component, in the units of [`World::config_text`].
fn ledger(world: &World, team: &str, month: BillingMonth) -> BTreeMap<String, Decimal> {
    let round = |value: Decimal| value.round_dp_with_strategy(2, RoundingStrategy::MidpointAwayFromZero);
    let mut amounts = BTreeMap::new();
    let (mut input, mut output) = (Decimal::ZERO, Decimal::ZERO);
    for model in world.gateway.used_models(team) {
        let sum = world.gateway.daily_sum(team, &model, &month.to_string());
        let (prompt, completion) = (Decimal::from(sum.prompt_tokens), Decimal::from(sum.completion_tokens));
        input += prompt;
        output += completion;
        amounts.insert(usage_component(&model, Direction::Input), round(prompt / Decimal::ONE_THOUSAND));
        amounts.insert(usage_component(&model, Direction::Output), round(completion / Decimal::ONE_THOUSAND));
    }
    amounts.insert("input_tokens".into(), round(input / Decimal::ONE_THOUSAND));
    amounts.insert("output_tokens".into(), round(output / Decimal::ONE_THOUSAND));
    amounts.insert("spend".into(), round(world.gateway.spend_of(team, &month.to_string())));
    amounts
}

/// Figures in Waldur that are higher than the ledger's, except those that somebody else put there.
fn overbilled(world: &World) -> Vec<String> {
    let mut problems = Vec::new();
    for resource in world.waldur.resources().into_iter().filter(|r| r.offering == world.offering && !is_foreign(r)) {
        let id = resource.uuid.simple().to_string();
        for month in months(world) {
            let right = ledger(world, &id, month);
            for (kind, told) in world.waldur.usages(resource.uuid, &month.to_string()) {
                let owed = right.get(&kind).copied().unwrap_or_default();
                if told > owed && world.watch.told(resource.uuid, &kind, told) {
                    problems.push(format!("resource {} is billed {told} {kind} for {month}, and used {owed}", resource.slug));
                }
            }
        }
    }
    problems
}

/// What the ledger shows of the running month, and of the one before while Waldur takes it, and Waldur does not hold: to be
/// empty after usage passes over a world at rest, and after every end.
#[must_use]
pub fn unbilled(world: &World) -> Vec<String> {
    let mut problems = Vec::new();
    let now = world.sim_clock.now();
    let running = BillingMonth::of(now);
    let late = running.start().checked_add(SignedDuration::from_hours(3 * 24)).is_ok_and(|until| now < until);
    let orders = world.waldur.orders();
    let components = world.waldur.components(world.offering);
    for resource in world.waldur.resources().into_iter().filter(|r| r.offering == world.offering && !is_foreign(r)) {
        let id = resource.uuid.simple().to_string();
        let last = orders.iter().rfind(|order| order.resource == resource.uuid);
        let ended = resource.state == "Terminated" && last.is_some_and(|order| order.kind == "Terminate" && order.state == "done");
        if !ended && resource.state != "OK" {
            continue;
        }
        let dated = world.profile != Profile::Y2024 && late && !ended;
        for month in months(world).into_iter().filter(|month| *month == running || (dated && *month == running.previous())) {
            if !resource.backend_metadata.get("llm_access").map_or(&Value::Null, |ours| &ours["unbilled"][month.to_string()]).is_null() {
                continue;
            }
            let told = world.waldur.usages(resource.uuid, &month.to_string());
            for (kind, owed) in ledger(world, &id, month) {
                // A component may have come after the last figures of a resource that has ended were told.
                let was_there = !ended || !kind.contains(':') || world.watch.billed_with(resource.uuid, &kind);
                let takes = components.get(&kind).is_some_and(|(_, billing)| billing == "usage") && was_there;
                let told = told.get(&kind).copied().unwrap_or_default();
                if takes && told < owed {
                    problems.push(format!(
                        "resource {} ({}) used {owed} {kind} in {month}, and is billed {told}",
                        resource.slug, resource.state
                    ));
                }
            }
        }
    }
    problems
}

/// What of the offering is not as a catalogue says: the models that may be ordered, with their prices per token where they have
/// some, and the embedders that every team may call. To be empty after passes that believed the catalogue.
#[must_use]
pub fn unsold(world: &World, sold: &BTreeMap<&str, Option<(Decimal, Decimal)>>, always: &BTreeMap<&str, Decimal>) -> Vec<String> {
    let mut problems = Vec::new();
    let mut choices: BTreeSet<&str> = sold.keys().copied().collect();
    if !choices.is_empty() {
        choices.insert("all");
    }
    let forms = world.waldur.forms(world.offering);
    for (what, form) in [("orders", &forms.0), ("resources", &forms.1)] {
        let there = form.pointer("/options/models/choices").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let offered: BTreeSet<&str> = there.iter().filter_map(Value::as_str).collect();
        if offered != choices || there.len() != choices.len() {
            problems.push(format!("the form for {what} is to offer {choices:?} and offers {there:?}"));
        }
    }
    let mut prices: BTreeMap<String, Decimal> =
        ["input_tokens", "output_tokens", "spend"].map(|kind| (kind.to_owned(), Decimal::ZERO)).into();
    prices.extend(always.iter().map(|(name, input)| (usage_component(name, Direction::Input), *input)));
    for (name, price) in sold {
        // Not priced yet is free.
        let (input, output) = price.unwrap_or_default();
        prices.insert(usage_component(name, Direction::Input), input);
        prices.insert(usage_component(name, Direction::Output), output);
    }
    let components = world.waldur.components(world.offering);
    let held = world.waldur.prices(world.offering);
    for (kind, per_token) in prices {
        if components.get(&kind).is_none_or(|(_, billing)| billing != "usage") {
            problems.push(format!("there is no component {kind}"));
        }
        let (price, held) = (per_token * Decimal::ONE_THOUSAND, held.get(&kind));
        let costs = held.map_or(Decimal::ZERO, |held| held.future.unwrap_or(held.price));
        if costs != price {
            problems.push(format!("the component {kind} is to cost {price} and costs {costs} in the end"));
        }
    }
    problems
}

/// What of others stands in a world and has to stand there in the end as it was made.
#[derive(Debug)]
pub struct Planted {
    teams: Vec<TeamView>,
    keys: Vec<KeyView>,
    secrets: Vec<SecretView>,
    file: Option<(PathBuf, String)>,
    component: (String, String),
    resource: ResourceView,
}

const FOREIGN_COMPONENT: &str = "gpu_hours";

impl Planted {
    /// Puts things of others into a world: at the gateway, among the Secrets, on the offering and beside its resources.
    #[must_use]
    pub fn into(world: &World) -> Self {
        let other = Uuid::from_u128(0x0dae_da15).simple().to_string();
        world.gateway.add_foreign_team("guests", &json!({"team_alias": "guests", "models": ["heron-70b"], "max_budget": 5}));
        let theirs = json!({"managed_by": "llm-access-agent", "owner": "daedalus", "offering": other, "resource": other, "project": other, "customer": other});
        world.gateway.add_foreign_team(&other, &json!({"team_alias": "labyrinth", "models": ["heron-70b"], "metadata": theirs}));
        world.gateway.add_foreign_key("guests", "guest-1");
        world.gateway.add_foreign_key(&other, &format!("{other}-1"));
        for (name, manager, owner) in [("llm-webui-else", "helm", "icarus"), ("llm-webui-labyrinth", "llm-access-agent", "daedalus")] {
            world.kube.edit_as("helm", CHAT_NAMESPACE, name, |edit| {
                edit.labels.insert("app.kubernetes.io/managed-by".into(), manager.into());
                edit.labels.insert("llm-access.io/owner".into(), owner.into());
                edit.labels.insert("llm-access.io/resource".into(), other.clone());
                edit.data.insert("OPENAI_API_KEYS".into(), "somebody-elses".into());
            });
        }
        let file = (world.store == Store::Directory).then(|| {
            let file = world.secrets_folder().join("other.env");
            fs::create_dir_all(world.secrets_folder()).unwrap();
            fs::write(&file, "OPENAI_API_KEY=somebody-elses\n").unwrap();
            (file, "OPENAI_API_KEY=somebody-elses\n".to_owned())
        });
        world.waldur.add_usage_component(world.offering, FOREIGN_COMPONENT);
        world.waldur.set_price(world.offering, FOREIGN_COMPONENT, Decimal::from(3));
        let resource = world.waldur.add_resource(world.offering, &world.project, "skua", &["kestrel-8b"], &[("max_budget", "50")]);
        world.waldur.put_backend_id(resource, "skua-llm-1");
        let teams: Vec<TeamView> = ["guests", &other].iter().filter_map(|id| world.gateway.team(id)).collect();
        Self {
            keys: teams.iter().flat_map(|team| world.gateway.live_keys(&team.team_id)).collect(),
            teams,
            secrets: world.kube.secrets(),
            file,
            component: world.waldur.components(world.offering)[FOREIGN_COMPONENT].clone(),
            resource: world.waldur.resource(resource),
        }
    }

    /// What is not as it was.
    #[must_use]
    pub fn problems(&self, world: &World) -> Vec<String> {
        let mut problems = Vec::new();
        let mut same = |what: String, same: bool| {
            if !same {
                problems.push(format!("{what} is somebody else's and was changed"));
            }
        };
        for team in &self.teams {
            same(format!("team {}", team.team_id), world.gateway.team(&team.team_id).as_ref() == Some(team));
        }
        for key in &self.keys {
            let team = key.team_id.as_deref().unwrap_or_default();
            same(format!("key {:?}", key.alias), world.gateway.live_keys(team).contains(key));
        }
        for secret in &self.secrets {
            same(format!("Secret {}", secret.name), world.kube.secret(&secret.namespace, &secret.name).as_ref() == Some(secret));
        }
        if let Some((file, text)) = &self.file {
            same(format!("file {}", file.display()), fs::read_to_string(file).ok().as_ref() == Some(text));
        }
        let price = world.waldur.prices(world.offering).get(FOREIGN_COMPONENT).copied();
        same(
            format!("component {FOREIGN_COMPONENT}"),
            world.waldur.components(world.offering).get(FOREIGN_COMPONENT) == Some(&self.component)
                && price.is_some_and(|price| price.future.unwrap_or(price.price) == Decimal::from(3)),
        );
        let resource = world.waldur.resource(self.resource.uuid);
        same(format!("resource {}", resource.slug), resource == self.resource);
        problems
    }
}

/// Sees every call of the agents as it arrives, with the peers as they are then, and notes what no agent may ever do.
pub struct Watch {
    waldur: Waldur,
    gateway: LiteLlm,
    kube: Kube,
    /// Where a world with the directory store keeps Secrets.
    folder: PathBuf,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// The owner strings of this world's agents.
    owners: BTreeSet<String>,
    /// Kinds of orders that every agent's configuration leaves to people, by offering.
    manual: BTreeMap<Uuid, BTreeSet<&'static str>>,
    /// What the agents' configurations say of limits, by offering.
    limits: BTreeMap<Uuid, Vec<(LimitsConfig, OnDownscale)>>,
    /// What every team of an offering may call, by any configuration.
    always: BTreeMap<Uuid, BTreeSet<String>>,
    /// Folders of Secrets that configurations name.
    folders: BTreeSet<PathBuf>,
    /// Whether an agent may show a key in a report.
    reports_keys: bool,
    /// Keys and credentials that travelled.
    secrets: BTreeSet<String>,
    /// What could be read in this pass.
    read: BTreeSet<String>,
    /// Executing orders of which an agent saw in this pass that all is as it has to be.
    fulfilled: BTreeSet<Uuid>,
    /// Whether a read of this pass may have been answered with what was there before.
    stale: bool,
    /// Passes under way.
    passes: usize,
    /// An operator's command is under way, which may do more than an agent by itself.
    by_word: usize,
    /// What the agents told Waldur: resource, component, amount.
    told: BTreeSet<(Uuid, String, Decimal)>,
    /// The components of each offering when this pass began.
    components: BTreeMap<Uuid, BTreeSet<String>>,
    /// The components that there were, when usage of a resource was last told, before that pass.
    billed_with: BTreeMap<Uuid, BTreeSet<String>>,
    /// Whether any agent made a call.
    called: bool,
    /// Teams that agents asked for.
    teams: BTreeSet<String>,
    problems: Vec<String>,
}

/// A pass, until it is dropped: what is deleted in it must have been read in it.
pub struct Pass(Arc<Watch>);

impl Drop for Pass {
    fn drop(&mut self) {
        let mut seen = self.0.seen.lock().unwrap();
        seen.passes -= 1;
    }
}

/// An operator's word, until it is dropped.
pub struct Word(Arc<Watch>);

impl Drop for Word {
    fn drop(&mut self) {
        self.0.seen.lock().unwrap().by_word -= 1;
    }
}

const OURS: &str = "llm-access-agent";
/// The start of a file that holds a key.
const SIGNATURE: &str = "# llm-access-agent ";

impl Watch {
    pub(crate) fn new(waldur: &Waldur, gateway: &LiteLlm, kube: &Kube, folder: PathBuf) -> Arc<Self> {
        Arc::new(Self { waldur: waldur.clone(), gateway: gateway.clone(), kube: kube.clone(), folder, seen: Mutex::default() })
    }

    /// Takes an agent's settings into account.
    pub(crate) fn knows(&self, config: &Config) {
        let mut seen = self.seen.lock().unwrap();
        seen.owners.insert(config.owner.clone());
        if let SecretsConfig::Directory { path } = &config.secrets {
            seen.folders.insert(path.clone());
        }
        for offering in &config.offerings {
            seen.always.entry(offering.uuid).or_default().extend(offering.always_include.iter().cloned());
            let limits = (offering.limits, offering.on_downscale.clone());
            let known = seen.limits.entry(offering.uuid).or_default();
            if !known.contains(&limits) {
                known.push(limits);
            }
            seen.reports_keys |= offering.delivery.api_key_on_old_servers == ApiKeyDelivery::Report;
            let approval = offering.approval;
            let kinds = [("Create", approval.create), ("Update", approval.update), ("Terminate", approval.terminate)];
            let manual: BTreeSet<&'static str> =
                kinds.into_iter().filter(|(_, mode)| *mode == ApprovalMode::Manual).map(|(kind, _)| kind).collect();
            seen.manual.entry(offering.uuid).and_modify(|all| all.retain(|kind| manual.contains(kind))).or_insert(manual);
        }
    }

    pub(crate) fn knows_owner(&self, owner: &str) {
        self.seen.lock().unwrap().owners.insert(owner.to_owned());
    }

    /// A pass begins; where none is under way, what was read before no longer counts.
    #[must_use]
    pub fn pass(self: &Arc<Self>) -> Pass {
        let mut seen = self.seen.lock().unwrap();
        if seen.passes == 0 {
            seen.read.clear();
            seen.fulfilled.clear();
            seen.stale = false;
            let offerings: BTreeSet<Uuid> = self.waldur.resources().iter().map(|row| row.offering).collect();
            seen.components =
                offerings.into_iter().map(|offering| (offering, self.waldur.components(offering).into_keys().collect())).collect();
        }
        seen.passes += 1;
        drop(seen);
        Pass(Arc::clone(self))
    }

    /// An operator's command begins that may do what an agent by itself may not: take a team over, or remove what Waldur
    /// does not show.
    #[must_use]
    pub fn by_word(self: &Arc<Self>) -> Word {
        self.seen.lock().unwrap().by_word += 1;
        Word(Arc::clone(self))
    }

    /// What was seen that may never be.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        self.seen.lock().unwrap().problems.clone()
    }

    /// Whether any agent was here.
    pub(crate) fn called(&self) -> bool {
        self.seen.lock().unwrap().called
    }

    /// Whether an agent asked for the team of this resource.
    pub(crate) fn made_team(&self, resource: Uuid) -> bool {
        self.seen.lock().unwrap().teams.contains(&resource.simple().to_string())
    }

    /// Forgets what was seen: a test that provokes it, or has told it.
    pub fn forgive(&self) {
        self.seen.lock().unwrap().problems.clear();
    }

    /// Whether an agent told Waldur this figure.
    fn told(&self, resource: Uuid, kind: &str, amount: Decimal) -> bool {
        self.seen.lock().unwrap().told.contains(&(resource, kind.to_owned(), amount))
    }

    /// Whether a component was there before the pass in which usage of a resource was last told.
    fn billed_with(&self, resource: Uuid, kind: &str) -> bool {
        self.seen.lock().unwrap().billed_with.get(&resource).is_some_and(|kinds| kinds.contains(kind))
    }

    /// The lines of a text that hold a secret of this world.
    #[must_use]
    pub fn leaks_in(&self, text: &str) -> Vec<String> {
        let mut secrets = self.seen.lock().unwrap().secrets.clone();
        secrets.extend(self.stored());
        let leaks = |line: &&str| key_like(line) || secrets.iter().any(|secret| line.contains(secret.as_str()));
        text.lines().filter(leaks).map(|line| line.chars().take(400).collect()).collect()
    }

    /// The keys in the cluster.
    fn stored(&self) -> Vec<String> {
        self.kube.secrets().into_iter().flat_map(|secret| secret.data.into_values()).filter(|value| value.starts_with("sk-")).collect()
    }

    fn is_ours(seen: &Seen, metadata: &Value) -> bool {
        metadata["managed_by"] == OURS && metadata["owner"].as_str().is_some_and(|owner| seen.owners.contains(owner))
    }

    fn problem(seen: &mut Seen, call: &Call, what: &str) {
        let path = call.path.split('?').next().unwrap_or_default();
        seen.problems.push(format!("call {} ({} {path}): {what}", call.n, call.method));
    }

    fn judge_secrets(&self, seen: &mut Seen, call: &Call) {
        seen.secrets.extend([self.waldur.agent_token(), self.gateway.master_key()]);
        let body_may = (seen.reports_keys && call.path.contains("submit_report"))
            || ["/key/generate", "report_created", "set_key", "/model/new", "/model/update"].iter().any(|part| call.path.contains(part));
        if call.path.contains("/key/generate")
            && let Some(key) = json(&call.body)["key"].as_str()
        {
            seen.secrets.insert(key.to_owned());
        }
        let shown = if call.peer == Peer::Kube { self.judge_values(seen, call) } else { call.body.clone() };
        let leaks = |text: &str| key_like(text) || seen.secrets.iter().any(|secret| text.contains(secret.as_str()));
        // What is not the values of a Secret is read by many, in whatever form.
        let encoded = |text: &str| call.peer == Peer::Kube && seen.secrets.iter().any(|secret| text.contains(&STANDARD.encode(secret)));
        if leaks(&call.path) {
            Self::problem(seen, call, "a secret leaked into the address");
        } else if !body_may && (leaks(&shown) || encoded(&shown)) {
            Self::problem(seen, call, "a secret leaked into the body");
        }
    }

    /// The values of a Secret may hold keys, and nothing that the agent itself signs in with. Gives the rest of the object.
    fn judge_values(&self, seen: &mut Seen, call: &Call) -> String {
        let Value::Object(mut object) = json(&call.body) else { return call.body.clone() };
        if secret_of(&call.path).is_none() {
            return call.body.clone();
        }
        let credentials = [self.waldur.agent_token(), self.gateway.master_key()];
        for section in ["data", "stringData"] {
            let values = object.remove(section).unwrap_or_default();
            for value in values.as_object().into_iter().flat_map(|values| values.values()).filter_map(Value::as_str) {
                let decoded = STANDARD.decode(value).ok().and_then(|bytes| String::from_utf8(bytes).ok()).filter(|_| section == "data");
                let value = decoded.unwrap_or_else(|| value.to_owned());
                if credentials.iter().any(|credential| value.contains(credential.as_str())) {
                    Self::problem(seen, call, "a credential of the agent leaked into a Secret");
                }
                if value.starts_with("sk-") {
                    seen.secrets.insert(value);
                }
            }
        }
        Value::Object(object).to_string()
    }

    fn judge_gateway(&self, seen: &mut Seen, call: &Call) {
        let body = json(&call.body);
        let path = call.path.split('?').next().unwrap_or_default();
        match path {
            "/team/new" | "/team/update" if body["models"].as_array().is_some_and(Vec::is_empty) => {
                Self::problem(seen, call, "an empty model list allows every model");
            }
            _ => {}
        }
        match path {
            "/team/new" => {
                seen.teams.extend(body["team_id"].as_str().map(str::to_owned));
            }
            "/team/update" | "/team/block" | "/team/unblock" => {
                let id = body["team_id"].as_str().unwrap_or_default();
                self.judge_team(seen, call, id);
            }
            "/team/delete" => {
                for id in body["team_ids"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                    self.judge_team(seen, call, id);
                    let shown = self.waldur.resources().into_iter().find(|r| r.uuid.simple().to_string() == id);
                    if seen.by_word == 0 && !(seen.read.contains(&format!("team {id}")) && seen.read.contains(&format!("resource {id}"))) {
                        Self::problem(seen, call, "a team is deleted without a good reading of it and of its resource");
                    }
                    // An end may be called off between the last look at its order and this.
                    let was_to_end = seen.read.contains(&format!("end of {id}"));
                    if seen.by_word == 0 && !was_to_end && shown.is_some_and(|r| r.state == "OK") {
                        Self::problem(seen, call, "the team of a resource that is OK is deleted");
                    }
                }
            }
            "/key/delete" => {
                for hash in body["keys"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                    self.judge_key(seen, call, hash);
                }
            }
            "/key/update" => {
                let hash = body["key"].as_str().unwrap_or_default();
                if self.gateway.all_live_keys().iter().any(|key| key.hash == hash && !Self::is_ours(seen, &key.metadata)) {
                    Self::problem(seen, call, "a key of somebody else is changed");
                }
            }
            _ => {}
        }
    }

    /// By its mark, or where that was lost by what Waldur says.
    fn is_our_team(&self, seen: &Seen, team: &TeamView) -> bool {
        let marked = team.metadata["managed_by"] == OURS;
        let known = || self.waldur.resources().iter().any(|resource| resource.backend_id == team.team_id);
        Self::is_ours(seen, &team.metadata) || (!marked && known())
    }

    /// A team that is there has to be ours.
    fn judge_team(&self, seen: &mut Seen, call: &Call, id: &str) {
        if seen.by_word == 0 && self.gateway.team(id).is_some_and(|team| !self.is_our_team(seen, &team)) {
            Self::problem(seen, call, "a team of somebody else is changed");
        }
    }

    fn judge_key(&self, seen: &mut Seen, call: &Call, hash: &str) {
        let Some(key) = self.gateway.all_live_keys().into_iter().find(|key| key.hash == hash) else { return };
        let team = key.team_id.clone().unwrap_or_default();
        let state = self.waldur.resources().into_iter().find(|r| r.uuid.simple().to_string() == team).map(|r| r.state);
        // With a team go all its keys.
        let ends = self.gateway.team(&team).is_some_and(|team| self.is_our_team(seen, &team)) && state.as_deref() != Some("OK");
        if seen.by_word == 0 && !Self::is_ours(seen, &key.metadata) && !ends {
            Self::problem(seen, call, &format!("a key of somebody else is deleted; its team's resource is {state:?}"));
        }
        if !seen.read.contains(&format!("key {hash}")) {
            Self::problem(seen, call, "a key is deleted without a good reading of it");
        }
    }

    fn judge_kube(&self, seen: &mut Seen, call: &Call) {
        let Some((namespace, name)) = secret_of(&call.path) else { return };
        if name.is_empty() || call.path.contains("dryRun=All") {
            return;
        }
        let Some(there) = self.kube.secret(namespace, name) else { return };
        let label = |name: &str| there.labels.get(name).map(String::as_str).unwrap_or_default();
        if label("app.kubernetes.io/managed-by") != OURS || !seen.owners.contains(label("llm-access.io/owner")) {
            Self::problem(seen, call, "a Secret of somebody else is changed");
        }
        let read = seen.read.contains(&format!("secret {namespace}/{name}")) || seen.read.contains(&format!("secret {namespace}/"));
        if call.method == "DELETE" && !read {
            Self::problem(seen, call, "a Secret is deleted without a good reading of it");
        }
    }

    fn judge_waldur(&self, seen: &mut Seen, call: &Call) {
        let path = call.path.split('?').next().unwrap_or_default();
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let [.., kind, id, action] = parts[..] else {
            if path.ends_with("/marketplace-component-usages/set_usage/") {
                self.note_told(seen, call);
            }
            return;
        };
        let id = Uuid::parse_str(id).ok();
        match kind {
            "marketplace-orders" => {
                let Some(order) = self.waldur.orders().into_iter().find(|order| Some(order.uuid) == id) else { return };
                let offering = self.waldur.resource(order.resource).offering;
                let manual = seen.manual.get(&offering).is_some_and(|kinds| kinds.contains(order.kind.as_str()));
                if manual && matches!(action, "approve_by_provider" | "reject_by_provider") && order.state == "pending-provider" {
                    Self::problem(seen, call, "an order is decided that was left to people");
                }
                if action == "set_state_erred" && order.kind == "Terminate" {
                    Self::problem(seen, call, "an end is set erred");
                }
                if action == "set_state_done" && order.state == "executing" {
                    self.judge_done(seen, call, &order);
                }
            }
            "marketplace-provider-resources" => {
                if self.waldur.resources().iter().any(|resource| Some(resource.uuid) == id && is_foreign(resource)) {
                    Self::problem(seen, call, "a resource of another agent is changed");
                }
            }
            "marketplace-provider-offerings" if action == "remove_offering_component" => {
                if !seen.read.contains(&format!("offering {}", id.unwrap_or_default().simple())) {
                    Self::problem(seen, call, "a component is removed without a good reading of its offering");
                }
            }
            _ => {
                if path.ends_with("/marketplace-component-usages/set_usage/") {
                    self.note_told(seen, call);
                }
            }
        }
    }

    /// An order is done when the world matches it, not before. What changed since an agent saw that it does is not its fault.
    fn judge_done(&self, seen: &mut Seen, call: &Call, order: &OrderView) {
        if seen.stale || seen.fulfilled.contains(&order.uuid) {
            return;
        }
        let what = if order.kind == "Terminate" { "an end" } else { "an order" };
        for missed in self.missed(seen, order) {
            Self::problem(seen, call, &format!("{what} is done and {missed}"));
        }
    }

    /// An agent read the keys of a team, one of which it may just have made.
    fn note_keys(&self, team: Option<&str>) {
        let keys = self.gateway.live_keys(team.unwrap_or_default());
        self.seen.lock().unwrap().read.extend(keys.into_iter().map(|key| format!("key {}", key.hash)));
    }

    /// An agent looked at a resource: is what its order asks for there by now?
    fn note_look(&self, seen: &mut Seen, resource: &str) {
        let Ok(resource) = Uuid::parse_str(resource) else { return };
        for order in self.waldur.orders_of(resource) {
            if order.state == "executing" && self.missed(seen, &order).is_empty() {
                seen.fulfilled.insert(order.uuid);
            }
        }
    }

    /// What a customer would miss, or go on paying for, if this order were done now.
    fn missed(&self, seen: &Seen, order: &OrderView) -> Vec<String> {
        // Waldur may have lost the row meanwhile.
        let Some(resource) = self.waldur.resources().into_iter().find(|row| row.uuid == order.resource) else { return Vec::new() };
        let id = order.resource.simple().to_string();
        let team = self.gateway.team(&id);
        let held = self.held(seen, &id);
        let mut keys = self.gateway.live_keys(&id);
        keys.retain(|key| Self::is_ours(seen, &key.metadata));
        if order.kind == "Terminate" {
            let team = team.filter(|team| self.is_our_team(seen, team)).map(|_| "the team is still there".to_owned());
            let keys = (!keys.is_empty()).then(|| format!("{} of its keys are still there", keys.len()));
            let held = (!held.is_empty()).then(|| format!("{} of its Secrets are still there", held.len()));
            return team.into_iter().chain(keys).chain(held).collect();
        }
        let same = order.limits.is_empty() || order.limits == resource.limits;
        if order.kind == "Update" && same && !order.attributes.contains_key("new_options") {
            return Vec::new();
        }
        let Some(team) = team else { return vec!["there is no team".into()] };
        let mut missed = missed_limits(seen, order, &resource, &team);
        let places = order.attributes.get("new_options").and_then(Value::as_object).into_iter();
        let places = places.chain([&resource.options, &order.attributes, &resource.attributes]);
        if let (ModelRequest::Named(mut names), Some(always)) = (ModelRequest::read(places), seen.always.get(&resource.offering)) {
            names.extend(always.iter().cloned().chain(["no-default-models".to_owned()]));
            let more = team.models.iter().filter(|model| !names.contains(*model));
            missed.extend(more.map(|model| format!("its team may call {model}, which was not ordered")));
        }
        let governed = self.waldur.plugin_option(resource.offering, "enable_api_key_provisioning") == true;
        let slots: &[&str] = if governed { &["chat"] } else { &["chat", "project"] };
        for slot in slots {
            missed.extend(missed_key(slot, &id, &held, &keys));
        }
        missed
    }

    /// The Secrets of a resource, in the cluster and in folders.
    fn held(&self, seen: &Seen, id: &str) -> Vec<Held> {
        let in_cluster = self.kube.labelled("llm-access.io/resource", id).into_iter();
        let ours = in_cluster.filter(|secret| secret.labels.get("app.kubernetes.io/managed-by").is_some_and(|manager| manager == OURS));
        let mut held: Vec<Held> = ours.map(|secret| Held::of(&secret.name, &secret.annotations, &secret.data)).collect();
        let folders: BTreeSet<&PathBuf> = seen.folders.iter().chain([&self.folder]).collect();
        for file in folders.into_iter().flat_map(fs::read_dir).flatten().flatten() {
            let name = file.file_name().to_string_lossy().into_owned();
            let text = fs::read_to_string(file.path()).unwrap_or_default();
            if name.ends_with(".env") && text.starts_with(SIGNATURE) && text.contains(id) {
                held.push(Held::in_file(&name, &text));
            }
        }
        held
    }

    fn note_told(&self, seen: &mut Seen, call: &Call) {
        let body = json(&call.body);
        let Some(resource) = body["resource"].as_str().and_then(|id| Uuid::parse_str(id).ok()) else { return };
        if self.waldur.resources().iter().any(|row| row.uuid == resource && is_foreign(row)) {
            Self::problem(seen, call, "usage of a resource of another agent is reported");
        }
        let there = self.waldur.resources().into_iter().find(|row| row.uuid == resource);
        if let Some(kinds) = there.and_then(|row| seen.components.get(&row.offering).cloned()) {
            seen.billed_with.insert(resource, kinds);
        }
        for usage in body["usages"].as_array().into_iter().flatten() {
            let amount = match &usage["amount"] {
                Value::String(text) => text.parse().ok(),
                other => other.to_string().parse().ok(),
            };
            if let (Some(kind), Some(amount)) = (usage["type"].as_str(), amount) {
                seen.told.insert((resource, kind.to_owned(), amount));
            }
        }
    }
}

/// A Secret of a resource, as far as it counts here.
struct Held {
    slot: &'static str,
    /// The sha256 of its key; nothing where it has none.
    hash: Option<String>,
    ready: bool,
    /// The sha256 of the key before, while that may still be used.
    retiring: Option<String>,
}

impl Held {
    fn of(name: &str, annotations: &BTreeMap<String, String>, data: &BTreeMap<String, String>) -> Self {
        let key = data.get("OPENAI_API_KEY").or_else(|| data.get("OPENAI_API_KEYS"));
        Self {
            slot: if name.starts_with("llm-webui-") { "chat" } else { "project" },
            hash: key.map(|key| hash(key)),
            ready: annotations.get("llm-access.io/state").is_some_and(|state| state == "ready"),
            retiring: annotations.get("llm-access.io/retiring-key-sha256").cloned(),
        }
    }

    /// The same of a file: a line of JSON holds the annotations.
    fn in_file(name: &str, text: &str) -> Self {
        let header = text.lines().find_map(|line| line.strip_prefix("# {"));
        let header: Value = header.and_then(|rest| serde_json::from_str(&format!("{{{rest}")).ok()).unwrap_or_default();
        let annotations = serde_json::from_value(header["annotations"].clone()).unwrap_or_default();
        let pairs = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
        Self::of(name, &annotations, &pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }
}

/// Caps of a team that are not those of an order, and whether it may be used at all. Of agents that differ in their settings
/// each may be right.
fn missed_limits(seen: &Seen, order: &OrderView, resource: &ResourceView, team: &TeamView) -> Vec<String> {
    let known = seen.limits.get(&resource.offering).map(Vec::as_slice).unwrap_or_default();
    let ordered = if order.limits.is_empty() { &resource.limits } else { &order.limits };
    let mut missed = Vec::new();
    let caps = [
        ("max_budget", team.max_budget),
        ("tpm_limit", team.tpm_limit.map(Decimal::from)),
        ("rpm_limit", team.rpm_limit.map(Decimal::from)),
    ];
    for (name, has) in caps {
        let cap = |limits: &LimitsConfig, on_downscale: &OnDownscale| {
            let (default, reduced) = match (name, on_downscale) {
                // The catalogue may say another than the configuration.
                ("max_budget", OnDownscale::Reduce(reduced)) => (has, reduced.max_budget),
                ("max_budget", _) => (has, None),
                ("tpm_limit", OnDownscale::Reduce(reduced)) => (limits.tpm_limit.default_after(None), reduced.tpm_limit.map(Decimal::from)),
                ("tpm_limit", _) => (limits.tpm_limit.default_after(None), None),
                (_, OnDownscale::Reduce(reduced)) => (limits.rpm_limit.default_after(None), reduced.rpm_limit.map(Decimal::from)),
                _ => (limits.rpm_limit.default_after(None), None),
            };
            let cap = ordered.get(name).copied().or(default);
            cap.into_iter().chain(reduced.filter(|_| resource.downscaled)).min()
        };
        if !known.is_empty() && known.iter().all(|(limits, on_downscale)| cap(limits, on_downscale) != has) {
            missed.push(format!("its team has the {name} {has:?}, and {:?} was ordered", ordered.get(name)));
        }
    }
    let asked = ordered.get("max_budget").is_some_and(Decimal::is_zero) || resource.paused || resource.downscaled;
    if team.blocked && !asked && team.max_budget != Some(Decimal::ZERO) {
        missed.push("its team is blocked, and nothing asks for that".into());
    }
    missed
}

/// What is wrong with one of the two keys of a team that works.
fn missed_key(slot: &str, team: &str, held: &[Held], keys: &[KeyView]) -> Vec<String> {
    let of_it: Vec<&Held> = held.iter().filter(|held| held.slot == slot).collect();
    let [secret] = of_it[..] else { return vec![format!("there are {} {slot} Secrets", of_it.len())] };
    let mut missed = Vec::new();
    if !secret.ready {
        missed.push(format!("its {slot} Secret is not ready"));
    }
    let live: Vec<&KeyView> = keys.iter().filter(|key| slot_of(team, key) == slot).collect();
    if !live.iter().any(|key| secret.hash.as_ref() == Some(&key.hash)) {
        missed.push(format!("the key in its {slot} Secret is not registered"));
    }
    let known = [&secret.hash, &secret.retiring];
    let others = live.iter().filter(|key| known.iter().all(|hash| hash.as_ref() != Some(&key.hash))).count();
    if others > 0 {
        missed.push(format!("{others} other {slot} keys are there"));
    }
    missed
}

impl Witness for Watch {
    fn arrives(&self, call: &Call) {
        let mut seen = self.seen.lock().unwrap();
        seen.called = true;
        self.judge_secrets(&mut seen, call);
        if call.method == "GET" {
            return;
        }
        match call.peer {
            Peer::LiteLlm => self.judge_gateway(&mut seen, call),
            Peer::Kube => self.judge_kube(&mut seen, call),
            Peer::Waldur => self.judge_waldur(&mut seen, call),
        }
    }

    fn is_answered(&self, call: &Call) {
        let good = call.status.is_some_and(|status| (200..300).contains(&status)) && !call.spoilt;
        if !good {
            return;
        }
        if call.fault && call.method == "GET" {
            self.seen.lock().unwrap().stale = true;
        }
        let (path, query) = call.path.split_once('?').unwrap_or((&call.path, ""));
        let last = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        let told = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        let read = match (call.peer, call.method.as_str()) {
            (Peer::LiteLlm, "GET") if matches!(path, "/team/info" | "/v2/team/list") => {
                format!("team {}", told("team_id").unwrap_or_default())
            }
            (Peer::LiteLlm, "GET") if path == "/key/list" && told("status").is_none() => return self.note_keys(told("team_id")),
            (Peer::LiteLlm, "GET") if path == "/key/info" => format!("key {}", told("key").unwrap_or_default()),
            (Peer::LiteLlm, "POST") if path == "/key/generate" => return self.note_keys(json(&call.body)["team_id"].as_str()),
            (Peer::Kube, "GET") => match secret_of(path) {
                Some((namespace, name)) => format!("secret {namespace}/{name}"),
                None => return,
            },
            (Peer::Waldur, "GET") if path.contains("/marketplace-provider-resources/") => format!("resource {last}"),
            (Peer::Waldur, "GET") if path.contains("/marketplace-provider-offerings/") => format!("offering {last}"),
            (Peer::Waldur, "GET") if path.contains("/marketplace-orders/") => {
                let order = Uuid::parse_str(last).ok().and_then(|id| self.waldur.orders().into_iter().find(|order| order.uuid == id));
                match order.filter(|order| order.kind == "Terminate" && order.state == "executing") {
                    Some(order) => format!("end of {}", order.resource.simple()),
                    None => return,
                }
            }
            _ => return,
        };
        if path == "/team/info" {
            self.note_keys(told("team_id"));
        }
        let mut seen = self.seen.lock().unwrap();
        if let Some(id) = read.strip_prefix("team ").or_else(|| read.strip_prefix("resource ")) {
            self.note_look(&mut seen, id);
        }
        seen.read.insert(read);
    }
}

/// The namespace and name in the path of a Secret; no name where all are meant.
fn secret_of(path: &str) -> Option<(&str, &str)> {
    let path = path.split('?').next().unwrap_or_default();
    let (namespace, rest) = path.strip_prefix("/api/v1/namespaces/")?.split_once("/secrets")?;
    Some((namespace, rest.trim_start_matches('/')))
}

/// Whether a text holds what looks like a key.
fn key_like(text: &str) -> bool {
    text.contains("sk-")
        && text
            .split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_')))
            .any(|word| word.starts_with("sk-") && word.len() > 30)
}

fn json(body: &str) -> Value {
    serde_json::from_str(body).unwrap_or_default()
}
