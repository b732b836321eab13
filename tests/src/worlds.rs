//! Worlds from seeds: customers, administrators, faults at every peer, restarts and month ends, in an order that one number
//! decides. When the trouble is over the world has to come to rest within [`PASSES`] passes, and to be as it must be.
//!
//! A [`Plan`] is what one seed stands for. What an actor picks is said as a number and resolved when its turn comes, so that
//! a plan still makes sense after some of its steps were left out, which is how a failing one is made small.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use llm_access_agent::agent::Agent;
use llm_access_agent::catalogue::View;
use llm_access_agent::cli::commands;
use llm_access_agent::clock::Clock;
use llm_access_agent::config;
use llm_access_agent::domain::BillingMonth;
use llm_access_agent::resources::Loop;
use llm_access_fixtures::faults::{Fault, Peer, Rule};
use llm_access_fixtures::kube::Kube;
use llm_access_fixtures::litellm::LiteLlm;
use llm_access_fixtures::waldur::{Profile, Project, ResourceView, Waldur};
use rust_decimal::Decimal;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tracing::Dispatch;
use uuid::Uuid;

use crate::{CHAT_NAMESPACE, KEY_NAMESPACE, PROFILES, Store, World, checker, crash};

/// A world comes to rest within so many passes after the trouble is over: a beat of every loop of every agent, and ten
/// minutes. The longest waits are an hour each: for a model to count as gone, for a third repair of one mark, and for a
/// usage that was refused.
pub const PASSES: usize = 18;
const PASS: Duration = Duration::from_secs(600);
/// A model that left the catalogue, or a price that it lost, is believed after an hour; and then a pass acts upon it.
const PASSES_TO_BELIEVE: usize = 9;

/// What agents are told besides where their peers are.
const SETTINGS: &str = "backoff: {initial: 5s, max: 2m}\n";

/// A source of numbers that are the same for the same seed, on every machine (splitmix64).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The numbers of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x6c6c_6d61_6363_6573)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.draw() % n.max(1)
    }

    fn small(&mut self, n: u8) -> u8 {
        u8::try_from(self.below(u64::from(n))).unwrap()
    }

    fn place(&mut self, n: usize) -> usize {
        usize::try_from(self.below(n as u64)).unwrap()
    }

    /// True in `percent` of the cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.place(of.len())]
    }
}

/// Who runs the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agents {
    /// One process.
    One,
    /// Two that do not know of each other.
    Two,
    /// Two that share a Lease, which goes from one to the other at any moment.
    Leased,
}

/// What does not change in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Waldur's generation.
    pub profile: Profile,
    /// Where Secrets are kept.
    pub store: Store,
    /// The gateway makes the keys.
    pub mint: bool,
    /// Who runs the agent.
    pub agents: Agents,
    /// Updates wait for a person's approval.
    pub manual: bool,
    /// A change of options is an order.
    pub option_orders: bool,
    /// The gateway fills in what a new team leaves out.
    pub team_defaults: bool,
    /// The gateway fills in what a new key leaves out.
    pub key_defaults: bool,
    /// Lists come in small pages.
    pub paged: bool,
    /// The zone that Waldur cuts months in.
    pub zone: &'static str,
    /// A downscaled resource gets less; else nothing.
    pub reduce: bool,
    /// Reports show the key.
    pub report_key: bool,
    /// Agents of the quiet time know nothing of the time before.
    pub fresh: bool,
    /// Logs are written at TRACE and searched for secrets.
    pub watched: bool,
}

/// One of a resource's two keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// The project's.
    Project,
    /// Open WebUI's.
    Chat,
}

/// What an administrator does to a team by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Another token rate.
    Tokens,
    /// No budget.
    NoBudget,
    /// Blocked.
    Block,
    /// Not blocked.
    Unblock,
    /// Another model.
    Models,
    /// All models.
    AllModels,
    /// Metadata without our mark.
    Mark,
    /// An entry of its own in the metadata.
    Note,
    /// Another period of the budget.
    Period,
}

/// What becomes of the catalogue's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// One model is not in it.
    Leave(u8),
    /// One model is in it, as at the start.
    Return(u8),
    /// One model has other prices.
    Reprice(u8, u8),
    /// One model has no prices.
    Unprice(u8),
    /// One model is for nobody.
    Withhold(u8),
    /// One model is switched off.
    Disable(u8),
    /// Only one model is in it.
    Cut(u8),
    /// It is empty.
    Empty,
    /// It is no YAML.
    Garbage,
    /// It is not there.
    Gone,
    /// It is as it was last meant.
    Mended,
}

/// Something that somebody does; the first number says to which resource or order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// A customer orders models with a budget; 0 is none.
    Order(u8, u8),
    /// A customer orders another budget.
    Budget(u8, u8),
    /// A customer orders other models.
    Models(u8, u8),
    /// A resource is paused, or not any more.
    Pause(u8, bool),
    /// A resource is downscaled, or not any more.
    Downscale(u8, bool),
    /// A customer ends a resource.
    Terminate(u8),
    /// A customer wants a terminated resource back.
    Restore(u8),
    /// A customer takes an open order back.
    Cancel(u8),
    /// Staff sets an open order erred.
    Err(u8),
    /// Staff approves a pending order.
    Approve(u8),
    /// A resource gets another slug.
    Rename(u8, u8),
    /// A customer calls a model.
    Chat(u8, Slot, u8, u8),
    /// An administrator changes a team.
    EditTeam(u8, Edit),
    /// An administrator deletes a team.
    DeleteTeam(u8),
    /// An administrator deletes a key.
    DeleteKey(u8, Slot),
    /// An administrator gives a key a bound of its own.
    BoundKey(u8, Slot),
    /// Somebody else makes a key in a team of ours.
    ForeignKey(u8),
    /// Somebody deletes a Secret.
    DeleteSecret(u8, Slot),
    /// Somebody empties a Secret.
    EmptySecret(u8, Slot),
    /// The catalogue changes.
    Catalogue(Change),
    /// Somebody prices a component by hand.
    Price(u8, u8),
    /// The gateway is restarted gently.
    RestartGateway,
    /// The gateway dies, and with it the calls it had not written yet.
    CrashGateway,
    /// The gateway has its database, or not.
    Database(bool),
    /// The gateway serves a model, or not.
    Serve(u8, bool),
    /// The agent has no role in Waldur, or has it back.
    Hide(bool),
    /// Waldur's token is another one, and the file follows or not.
    Token(bool),
    /// The gateway's key is another one, and the file follows or not.
    MasterKey(bool),
    /// Both files hold what is valid.
    Files,
    /// The cluster refuses a verb on Secrets.
    Deny(u8),
    /// The cluster refuses nothing.
    Allow,
}

/// What goes wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble(u8);

/// Every kind of trouble: those of the crash suites, and answers that are whole and wrong.
fn troubles() -> &'static [(&'static str, Fault)] {
    static ALL: OnceLock<Vec<(&'static str, Fault)>> = OnceLock::new();
    ALL.get_or_init(|| {
        let given = |status: u16, headers: &[(&str, &str)], body: &str| Fault::Replace {
            status,
            headers: headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
            body: body.to_owned(),
        };
        let mut all = crash::faults();
        all.extend([
            ("an empty object", given(200, &[], "{}")),
            ("an empty list", given(200, &[("X-Result-Count", "0")], "[]")),
            ("an empty page of many", given(200, &[("X-Result-Count", "3")], "[]")),
            ("stale", Fault::Stale),
            ("stale", Fault::Stale),
            ("slow", Fault::Slow(Duration::from_millis(30))),
            ("403", Fault::status(403, r#"{"detail":"You do not have permission to perform this action."}"#)),
            ("404 without a database", Fault::status(404, r#"{"detail":"Not found."}"#)),
            ("404 with HTML", given(404, &[("content-type", "text/html")], "<html><h1>Not Found</h1></html>")),
            ("409", Fault::status(409, r#"{"detail":"Conflict."}"#)),
            ("a refusal", Fault::status(400, r#"{"error":{"message":"no","type":"bad_request_error","code":"400"}}"#)),
            ("a redirect", given(302, &[("location", "https://login.example.org/")], "")),
        ]);
        all
    })
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Somebody does something between two beats.
    Act(Act),
    /// Somebody does something just before the n-th call from now on.
    Meanwhile(usize, Act),
    /// The n-th call from now on meets trouble.
    Fault(usize, Trouble),
    /// So many calls to one peer meet the same trouble, from the n-th on.
    Outage(Peer, usize, usize, Trouble),
    /// An agent beats.
    Beat(u8, Loop),
    /// Loops of one or both agents beat at the same time.
    Together(Vec<(u8, Loop)>),
    /// An agent is killed and started.
    Restart(u8),
    /// The Lease goes to the other replica, now or just before the n-th call.
    Lead(Option<usize>),
    /// An operator replaces the keys of a resource.
    Rotate(u8, bool),
    /// An agent's clock is wrong by so many seconds.
    Skew(u8, i16),
    /// Time passes, in seconds.
    Time(u32),
    /// Time passes until so many seconds before a month's end, or after it.
    MonthEnd(i16),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |trouble: &Trouble| troubles()[usize::from(trouble.0)].0;
        match self {
            Self::Fault(after, trouble) => write!(f, "Fault({after}, {:?})", named(trouble)),
            Self::Outage(peer, from, calls, trouble) => write!(f, "Outage({peer:?}, {from}, {calls}, {:?})", named(trouble)),
            step => write!(f, "{step:?}"),
        }
    }
}

/// What one seed stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// What does not change.
    pub site: Site,
    /// What happens.
    pub steps: Vec<Step>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {:?}", self.seed, self.site)?;
        for (n, step) in self.steps.iter().enumerate() {
            writeln!(f, "  {n:3} {step}")?;
        }
        Ok(())
    }
}

const LOOPS: [Loop; 10] = [
    Loop::Orders,
    Loop::Orders,
    Loop::Orders,
    Loop::Orders,
    Loop::Resources,
    Loop::Resources,
    Loop::Resources,
    Loop::Usage,
    Loop::Usage,
    Loop::Offering,
];

impl Plan {
    /// What a seed stands for.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let rng = &mut Rng::new(seed);
        let agents = rng.pick(&[Agents::One, Agents::One, Agents::Two, Agents::Leased]);
        let site = Site {
            profile: rng.pick(&PROFILES),
            store: rng.pick(&[Store::Kube, Store::Kube, Store::Directory]),
            mint: rng.chance(20),
            agents,
            manual: rng.chance(15),
            option_orders: rng.chance(50),
            team_defaults: rng.chance(20),
            key_defaults: rng.chance(20),
            paged: rng.chance(30),
            zone: rng.pick(&["UTC", "UTC", "UTC", "Europe/Athens", "America/New_York"]),
            reduce: rng.chance(30),
            report_key: rng.chance(20),
            fresh: rng.chance(50),
            watched: rng.chance(10),
        };
        // Some worlds are quiet but for one kind of trouble, so that this one gets far.
        let weights = Weights { acts: 20 + rng.below(30), faults: rng.pick(&[0, 10, 20, 40]), hands: rng.pick(&[0, 10, 30]) };
        let mut steps = vec![Step::Beat(0, Loop::Offering)];
        for n in 0..2 {
            steps.push(Step::Act(Act::Order(rng.small(16), n * 50)));
        }
        steps.push(Step::Beat(0, Loop::Orders));
        for _ in 0..30 + rng.below(50) {
            weights.steps(rng, site, &mut steps);
        }
        Self { seed, site, steps }
    }
}

struct Weights {
    acts: u64,
    faults: u64,
    hands: u64,
}

impl Weights {
    fn steps(&self, rng: &mut Rng, site: Site, steps: &mut Vec<Step>) {
        if rng.chance(self.faults) {
            let trouble = trouble(rng);
            steps.push(match rng.below(4) {
                0 => Step::Outage(
                    rng.pick(&[Peer::Waldur, Peer::LiteLlm, Peer::Kube]),
                    1 + rng.place(6),
                    1 + rng.place(if hangs(trouble) { 2 } else { 12 }),
                    trouble,
                ),
                _ => Step::Fault(1 + rng.place(30), trouble),
            });
        }
        if rng.chance(self.acts) {
            let act = self.act(rng, site);
            steps.push(if rng.chance(25) { Step::Meanwhile(1 + rng.place(30), act) } else { Step::Act(act) });
        }
        let two = site.agents != Agents::One;
        let agent = if two { rng.small(2) } else { 0 };
        steps.push(match rng.below(40) {
            0 | 1 => Step::Restart(agent),
            2 => Step::MonthEnd(rng.pick(&[-1200, -600, -70, -5, 5, 70, 600, 1200, 20_000])),
            3 => Step::Skew(agent, rng.pick(&[-75, -20, 20, 75, 0])),
            4 => Step::Rotate(rng.small(6), rng.chance(50)),
            5 | 6 if site.agents == Agents::Leased => Step::Lead(rng.chance(60).then(|| 1 + rng.place(30))),
            7..=18 => Step::Together((0..2 + rng.below(4)).map(|_| (if two { rng.small(2) } else { 0 }, rng.pick(&LOOPS))).collect()),
            _ => Step::Beat(agent, rng.pick(&LOOPS)),
        });
        if rng.chance(70) {
            steps.push(Step::Time(rng.pick(&[1, 16, 61, 61, 200, 200, 700, 4000, 30_000])));
        }
    }

    fn act(&self, rng: &mut Rng, site: Site) -> Act {
        let n = rng.small(6);
        let slot = rng.pick(&[Slot::Project, Slot::Chat]);
        if rng.chance(self.hands) {
            return match rng.below(20) {
                0..=3 => Act::EditTeam(
                    n,
                    rng.pick(&[
                        Edit::Tokens,
                        Edit::NoBudget,
                        Edit::Block,
                        Edit::Unblock,
                        Edit::Models,
                        Edit::AllModels,
                        Edit::Mark,
                        Edit::Note,
                        Edit::Period,
                    ]),
                ),
                4 => Act::DeleteTeam(n),
                5 | 6 => Act::DeleteKey(n, slot),
                7 => Act::BoundKey(n, slot),
                8 => Act::ForeignKey(n),
                9 | 10 => Act::DeleteSecret(n, slot),
                11 => Act::EmptySecret(n, slot),
                12 => Act::RestartGateway,
                13 => Act::CrashGateway,
                14 => Act::Database(rng.chance(60)),
                15 => Act::Serve(rng.small(3), rng.chance(60)),
                16 => Act::Hide(rng.chance(50)),
                17 => rng.pick(&[Act::Token(true), Act::Token(false), Act::MasterKey(true), Act::MasterKey(false), Act::Files]),
                18 if site.store == Store::Kube => rng.pick(&[Act::Deny(n), Act::Allow]),
                _ => Act::Price(rng.small(8), rng.small(5)),
            };
        }
        match rng.below(40) {
            0..=5 => Act::Order(rng.small(16), rng.small(100)),
            6..=9 => Act::Budget(n, 1 + rng.small(100)),
            10..=12 => Act::Models(n, rng.small(16)),
            13 | 14 => Act::Pause(n, rng.chance(50)),
            15 => Act::Downscale(n, rng.chance(50)),
            16..=19 => Act::Terminate(n),
            20 | 21 => Act::Restore(n),
            22 => Act::Cancel(n),
            23 => Act::Err(n),
            24 => Act::Approve(n),
            25 => Act::Rename(n, rng.small(3)),
            26..=34 => Act::Chat(n, slot, rng.small(4), rng.small(50)),
            _ => Act::Catalogue(change(rng)),
        }
    }
}

fn change(rng: &mut Rng) -> Change {
    let model = rng.small(3);
    match rng.below(14) {
        0 | 1 => Change::Leave(model),
        2 | 3 => Change::Return(model),
        4 | 5 => Change::Reprice(model, 1 + rng.small(9)),
        6 => Change::Unprice(model),
        7 => Change::Withhold(model),
        8 => Change::Disable(model),
        9 => Change::Cut(model),
        10 => Change::Empty,
        11 => Change::Garbage,
        12 => Change::Gone,
        _ => Change::Mended,
    }
}

fn trouble(rng: &mut Rng) -> Trouble {
    let mut drawn = Trouble(u8::try_from(rng.place(troubles().len())).unwrap());
    // Those cost a second each.
    if hangs(drawn) && rng.chance(70) {
        drawn = Trouble(u8::try_from(rng.place(troubles().len())).unwrap());
    }
    drawn
}

fn hangs(trouble: Trouble) -> bool {
    matches!(troubles()[usize::from(trouble.0)].1, Fault::Hang { .. } | Fault::Kill { .. })
}

/// The model that every team may call, with its price per input token.
const EMBEDDER: (&str, &str) = ("qwen3-embedding-0-6b", "0.00000002");

/// The chat models of the catalogue, with what they cost.
const SOLD: [(&str, Option<(&str, &str)>); 3] =
    [("kestrel-8b", Some(("0.00000021", "0.00000085"))), ("heron-70b", Some(("0.000001", "0.000002"))), ("qwen2.5-0.5b", None)];

#[derive(Clone, Debug)]
struct Entry {
    prices: Option<(String, String)>,
    orderable: bool,
    enabled: bool,
}

impl Entry {
    fn first(n: usize) -> Self {
        Self { prices: SOLD[n].1.map(|(input, output)| (input.to_owned(), output.to_owned())), orderable: true, enabled: true }
    }
}

/// Everybody but the agent.
#[derive(Clone)]
struct Hands {
    waldur: Waldur,
    gateway: LiteLlm,
    kube: Kube,
    store: Store,
    profile: Profile,
    offering: Uuid,
    project: Project,
    folder: PathBuf,
    catalogue: Arc<Mutex<BTreeMap<usize, Entry>>>,
    orders: Arc<Mutex<usize>>,
}

impl Hands {
    fn of(world: &World, site: Site) -> Self {
        Self {
            waldur: world.waldur.clone(),
            gateway: world.gateway.clone(),
            kube: world.kube.clone(),
            store: world.store,
            profile: site.profile,
            offering: world.offering,
            project: world.project.clone(),
            folder: world.path(""),
            catalogue: Arc::new(Mutex::new((0..SOLD.len()).map(|n| (n, Entry::first(n))).collect())),
            orders: Arc::default(),
        }
    }

    fn resources(&self, fits: impl Fn(&ResourceView) -> bool) -> Vec<ResourceView> {
        self.waldur.resources().into_iter().filter(|r| r.offering == self.offering && !is_foreign(r) && fits(r)).collect()
    }

    fn one(&self, n: u8, fits: impl Fn(&ResourceView) -> bool) -> Option<ResourceView> {
        let mut all = self.resources(fits);
        (!all.is_empty()).then(|| all.swap_remove(usize::from(n) % all.len()))
    }

    fn has_open_order(&self, resource: Uuid) -> bool {
        self.waldur.orders().iter().any(|order| order.resource == resource && is_open(&order.state))
    }

    fn free(&self, n: u8, states: &[&str]) -> Option<ResourceView> {
        self.one(n, |r| states.contains(&r.state.as_str()) && !self.has_open_order(r.uuid))
    }

    fn open_order(&self, n: u8, fits: impl Fn(&str) -> bool) -> Option<Uuid> {
        let ours = self.resources(|_| true);
        let open: Vec<Uuid> = self
            .waldur
            .orders()
            .iter()
            .filter(|order| is_open(&order.state) && fits(&order.state) && ours.iter().any(|r| r.uuid == order.resource))
            .map(|order| order.uuid)
            .collect();
        (!open.is_empty()).then(|| open[usize::from(n) % open.len()])
    }

    /// Some of the models that a form offers: the one for orders, or the one for changes, which the agent sets one after the other.
    fn choices(form: &Value, mask: u8) -> Vec<String> {
        let choices = llm_access_fixtures::waldur::choices(form);
        let mut chosen: Vec<String> =
            choices.iter().enumerate().filter(|(at, _)| mask >> (at % 8) & 1 == 1).map(|(_, name)| name.clone()).collect();
        if chosen.is_empty() {
            chosen.extend(choices.first().cloned());
        }
        chosen
    }

    fn team(&self, n: u8) -> Option<String> {
        let id = |r: &ResourceView| r.uuid.simple().to_string();
        self.one(n, |r| self.gateway.team(&id(r)).is_some()).map(|r| id(&r))
    }

    fn secret(&self, n: u8, slot: Slot) -> Option<(String, String)> {
        let prefix = if slot == Slot::Chat { "llm-webui-" } else { "llm-key-" };
        let resource = self.one(n, |_| true)?.uuid.simple().to_string();
        match self.store {
            Store::Kube => self
                .kube
                .secrets()
                .into_iter()
                .find(|s| s.name.starts_with(prefix) && s.labels.get("llm-access.io/resource") == Some(&resource))
                .map(|s| (s.namespace, s.name)),
            Store::Directory => {
                let files = fs::read_dir(self.folder.join("secrets")).ok()?.flatten();
                let mut names: Vec<String> = files.filter_map(|file| file.file_name().into_string().ok()).collect();
                names.sort();
                let of_it = |name: &String| {
                    name.starts_with(prefix)
                        && name.ends_with(".env")
                        && fs::read_to_string(self.folder.join("secrets").join(name)).is_ok_and(|text| text.contains(&resource))
                };
                names.into_iter().find(of_it).map(|name| (String::new(), name))
            }
        }
    }

    /// The key that a Secret holds.
    fn key(&self, n: u8, slot: Slot) -> Option<String> {
        let (namespace, name) = self.secret(n, slot)?;
        let of = |variable: &str, value: &str| {
            (matches!(variable, "OPENAI_API_KEY" | "OPENAI_API_KEYS") && !value.is_empty()).then(|| value.to_owned())
        };
        match self.store {
            Store::Kube => self.kube.secret(&namespace, &name)?.data.iter().find_map(|(variable, value)| of(variable, value)),
            Store::Directory => {
                let text = fs::read_to_string(self.folder.join("secrets").join(name)).ok()?;
                text.lines().filter_map(|line| line.split_once('=')).find_map(|(variable, value)| of(variable, value))
            }
        }
    }

    fn write_catalogue(&self) {
        let mut text = String::from("inference_models:\n");
        for (n, entry) in self.catalogue.lock().unwrap().iter() {
            let name = SOLD[*n].0;
            text.push_str(&format!("  - {{name: {name}, served_name: {name}, orderable: {}, enabled: {}", entry.orderable, entry.enabled));
            if let Some((input, output)) = &entry.prices {
                text.push_str(&format!(", litellm_model_info: {{input_cost_per_token: {input}, output_cost_per_token: {output}}}"));
            }
            text.push_str("}\n");
        }
        let (name, price) = EMBEDDER;
        text.push_str(&format!(
            "  - {{name: {name}, served_name: {name}, runtime: tei, litellm_model_info: {{input_cost_per_token: {price}}}}}\n"
        ));
        fs::write(self.folder.join("catalogue.yml"), text).unwrap();
    }

    fn change_catalogue(&self, change: Change) {
        let at = |n: u8| usize::from(n) % SOLD.len();
        {
            let mut entries = self.catalogue.lock().unwrap();
            match change {
                Change::Leave(n) if entries.len() > 1 => drop(entries.remove(&at(n))),
                Change::Return(n) => drop(entries.insert(at(n), Entry::first(at(n)))),
                Change::Reprice(n, to) => {
                    if let Some(entry) = entries.get_mut(&at(n)) {
                        entry.prices = Some((format!("0.000000{to}"), format!("0.00000{to}")));
                    }
                }
                Change::Unprice(n) => drop(entries.get_mut(&at(n)).map(|entry| entry.prices = None)),
                Change::Withhold(n) => drop(entries.get_mut(&at(n)).map(|entry| entry.orderable = false)),
                Change::Disable(n) => drop(entries.get_mut(&at(n)).map(|entry| entry.enabled = false)),
                Change::Cut(n) => {
                    entries.retain(|of, _| *of == at(n));
                    entries.entry(at(n)).or_insert_with(|| Entry::first(at(n)));
                }
                Change::Leave(_) | Change::Empty | Change::Garbage | Change::Gone | Change::Mended => {}
            }
        }
        let file = self.folder.join("catalogue.yml");
        match change {
            Change::Empty => fs::write(file, "").unwrap(),
            Change::Garbage => fs::write(file, "inference_models: [}\n\t- :").unwrap(),
            Change::Gone => drop(fs::remove_file(file)),
            _ => self.write_catalogue(),
        }
    }

    fn write_credentials(&self) {
        fs::write(self.folder.join("waldur-token"), self.waldur.agent_token()).unwrap();
        fs::write(self.folder.join("gateway-key"), self.gateway.master_key()).unwrap();
    }

    /// Does it; says to what, or nothing where there was nothing to do it to.
    fn act(&self, act: Act) -> Option<String> {
        let done = |text: String| Some(text);
        match act {
            Act::Order(mask, budget) => {
                let models = Self::choices(&self.waldur.forms(self.offering).0, mask);
                if models.is_empty() {
                    return None;
                }
                let n = {
                    let mut orders = self.orders.lock().unwrap();
                    *orders += 1;
                    *orders
                };
                let models: Vec<&str> = models.iter().map(String::as_str).collect();
                let budget = budget.to_string();
                let limits: &[(&str, &str)] = if budget == "0" { &[] } else { &[("max_budget", &budget)] };
                let (order, resource) = self.waldur.order(self.offering, &self.project, &format!("llm-{n}"), &models, limits);
                done(format!("order {} of resource {}", order.simple(), resource.simple()))
            }
            Act::Budget(n, budget) => {
                let resource = self.free(n, &["OK"])?;
                let budget = budget.to_string();
                if resource.limits == BTreeMap::from([("max_budget".to_owned(), budget.parse::<Decimal>().unwrap())]) {
                    return None;
                }
                let order = self.waldur.update_limits(resource.uuid, &[("max_budget", &budget)]);
                done(format!("order {} of resource {}", order.simple(), resource.uuid.simple()))
            }
            Act::Models(n, mask) => {
                let resource = self.free(n, &["OK"])?;
                let models = Self::choices(&self.waldur.forms(self.offering).1, mask);
                if models.is_empty() {
                    return None;
                }
                let order = self.waldur.update_options(resource.uuid, &json!({"models": models}));
                done(format!("{:?} of resource {}: {models:?}", order.map(Uuid::simple), resource.uuid.simple()))
            }
            Act::Pause(n, on) => {
                let resource = self.one(n, |r| r.paused != on)?;
                self.waldur.pause(resource.uuid, on);
                done(resource.uuid.simple().to_string())
            }
            Act::Downscale(n, on) => {
                let resource = self.one(n, |r| r.downscaled != on)?;
                self.waldur.downscale(resource.uuid, on);
                done(resource.uuid.simple().to_string())
            }
            Act::Terminate(n) => {
                let resource = self.free(n, &["OK", "Erred"])?;
                let order = self.waldur.terminate(resource.uuid);
                done(format!("order {} of resource {}", order.simple(), resource.uuid.simple()))
            }
            Act::Restore(n) => {
                let resource = (self.profile != Profile::Y2024).then(|| self.free(n, &["Terminated"])).flatten()?;
                let order = self.waldur.restore(resource.uuid);
                done(format!("order {} of resource {}", order.simple(), resource.uuid.simple()))
            }
            Act::Cancel(n) => {
                let order = self.open_order(n, |_| true)?;
                self.waldur.cancel(order);
                done(order.simple().to_string())
            }
            Act::Err(n) => {
                let order = self.open_order(n, |state| state == "executing")?;
                self.waldur.staff_erred(order);
                done(order.simple().to_string())
            }
            Act::Approve(n) => {
                let order = self.open_order(n, |state| state == "pending-provider")?;
                self.waldur.staff_approve(order);
                done(order.simple().to_string())
            }
            Act::Rename(n, to) => {
                let resource = self.one(n, |_| true)?;
                self.waldur.rename_slug(resource.uuid, &format!("gull-{n}-{to}"));
                done(resource.uuid.simple().to_string())
            }
            Act::Chat(n, slot, model, tokens) => {
                let key = self.key(n, slot)?;
                let model = SOLD[usize::from(model) % SOLD.len()].0;
                let prompt = format!("P={} C={}", u32::from(tokens) * 37 + 1, u32::from(tokens) * 11);
                let said = self.gateway.chat(&key, model, &prompt);
                done(format!("{model} {prompt} {said:?}"))
            }
            Act::EditTeam(n, edit) => {
                let team = self.team(n)?;
                let changes = match edit {
                    Edit::Tokens => json!({"tpm_limit": 77}),
                    Edit::NoBudget => json!({"max_budget": null}),
                    Edit::Block => json!({"blocked": true}),
                    Edit::Unblock => json!({"blocked": false}),
                    Edit::Models => json!({"models": ["qwen2.5-0.5b"]}),
                    Edit::AllModels => json!({"models": []}),
                    Edit::Mark => json!({"metadata": {"cost_centre": "77"}}),
                    Edit::Note => {
                        let mut metadata = self.gateway.team(&team)?.metadata.as_object().cloned().unwrap_or_default();
                        metadata.insert("cost_centre".into(), json!("77"));
                        json!({"metadata": metadata})
                    }
                    Edit::Period => json!({"budget_duration": "7d"}),
                };
                self.gateway.edit_team(&team, &changes)?;
                done(team)
            }
            Act::DeleteTeam(n) => {
                let team = self.team(n)?;
                self.gateway.delete_team(&team);
                done(team)
            }
            Act::DeleteKey(n, slot) => {
                let hash = checker::hash(&self.key(n, slot)?);
                self.gateway.delete_key(&hash).then_some(hash)
            }
            Act::BoundKey(n, slot) => {
                let hash = checker::hash(&self.key(n, slot)?);
                self.gateway.edit_key(&hash, &json!({"max_budget": 1, "rpm_limit": 3})).then_some(hash)
            }
            Act::ForeignKey(n) => {
                let team = self.team(n)?;
                let taken = self.gateway.live_keys(&team).iter().any(|key| key.alias.as_deref() == Some(&format!("guest-{team}")));
                if taken {
                    return None;
                }
                self.gateway.add_foreign_key(&team, &format!("guest-{team}"));
                done(team)
            }
            Act::DeleteSecret(n, slot) => {
                let (namespace, name) = self.secret(n, slot)?;
                match self.store {
                    Store::Kube => drop(self.kube.delete(&namespace, &name)),
                    Store::Directory => fs::remove_file(self.folder.join("secrets").join(&name)).unwrap(),
                }
                done(name)
            }
            Act::EmptySecret(n, slot) => {
                let (namespace, name) = self.secret(n, slot)?;
                match self.store {
                    Store::Kube => self.kube.edit_as("kubectl", &namespace, &name, |edit| edit.data.clear()),
                    Store::Directory => {
                        let file = self.folder.join("secrets").join(&name);
                        let text = fs::read_to_string(&file).unwrap();
                        let kept: String = text.lines().filter(|line| line.starts_with('#')).map(|line| format!("{line}\n")).collect();
                        fs::write(file, kept).unwrap();
                    }
                }
                done(name)
            }
            Act::Catalogue(change) => {
                self.change_catalogue(change);
                done(String::new())
            }
            Act::Price(n, to) => {
                let kinds: Vec<String> = self.waldur.prices(self.offering).into_keys().filter(|kind| kind.contains(':')).collect();
                if kinds.is_empty() {
                    return None;
                }
                let kind = &kinds[usize::from(n) % kinds.len()];
                self.waldur.set_price(self.offering, kind, Decimal::new(i64::from(to), 3));
                done(kind.clone())
            }
            Act::RestartGateway => {
                self.gateway.restart();
                done(String::new())
            }
            Act::CrashGateway => {
                self.gateway.crash();
                done(String::new())
            }
            Act::Database(up) => {
                self.gateway.set_database(up);
                done(String::new())
            }
            Act::Serve(n, on) => {
                let (name, prices) = SOLD[usize::from(n) % SOLD.len()];
                self.gateway.remove_model(name);
                if on {
                    self.gateway.add_model(name, prices.map(|(input, _)| input), prices.map(|(_, output)| output));
                }
                done(name.to_owned())
            }
            Act::Hide(hidden) => {
                self.waldur.hide_all(hidden);
                done(String::new())
            }
            Act::Token(followed) => {
                self.waldur.rotate_agent_token();
                if followed {
                    self.write_credentials();
                }
                done(String::new())
            }
            Act::MasterKey(followed) => {
                let n = self.orders.lock().map(|orders| *orders).unwrap();
                self.gateway.rotate_master_key(&format!("sk-master-0123456789-of-the-platform-{n}"));
                if followed {
                    self.write_credentials();
                }
                done(String::new())
            }
            Act::Files => {
                self.write_credentials();
                done(String::new())
            }
            Act::Deny(n) => {
                let verb = ["get", "list", "create", "patch", "delete"][usize::from(n) % 5];
                self.kube.deny(verb, "secrets", if n % 2 == 0 { CHAT_NAMESPACE } else { KEY_NAMESPACE });
                done(verb.to_owned())
            }
            Act::Allow => {
                self.kube.allow_all();
                done(String::new())
            }
        }
    }

    /// The trouble is over.
    fn mend(&self) {
        self.gateway.set_database(true);
        self.waldur.hide_all(false);
        self.kube.allow_all();
        self.write_credentials();
        self.write_catalogue();
        for (n, (name, _)) in SOLD.iter().enumerate() {
            let missing = self.gateway.deployments().iter().all(|there| there.name != *name);
            if missing {
                self.act(Act::Serve(u8::try_from(n).unwrap(), true));
            }
        }
    }
}

fn is_open(state: &str) -> bool {
    state.starts_with("pending-") || state == "executing"
}

/// The resource that another agent serves.
fn is_foreign(resource: &ResourceView) -> bool {
    resource.backend_id.starts_with("skua")
}

/// One process of the agent.
struct Process {
    runtime: Runtime,
    agent: Agent,
    clock: Clock,
}

/// Where the agents of one world log to.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> tracing_subscriber::fmt::MakeWriter<'a> for Log {
    type Writer = Self;
    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Who leads, and whom it is told.
#[derive(Clone, Default)]
struct Lease(Arc<Mutex<(usize, [Option<Agent>; 2])>>);

impl Lease {
    fn tell(&self) {
        let (leader, agents) = &*self.0.lock().unwrap();
        for (which, agent) in agents.iter().enumerate() {
            if let Some(agent) = agent {
                agent.leading.store(which == *leader, Ordering::Release);
            }
        }
    }

    fn set(&self, which: usize, agent: Option<Agent>) {
        self.0.lock().unwrap().1[which] = agent;
        self.tell();
    }

    fn pass_on(&self) {
        {
            let mut lease = self.0.lock().unwrap();
            lease.0 = 1 - lease.0;
        }
        self.tell();
    }
}

/// How a world ended.
#[derive(Clone, Debug, Default)]
pub struct End {
    /// What is wrong with it; nothing where all is well.
    pub problems: Vec<String>,
    /// What happened, step by step, with what the agents logged.
    pub story: String,
    /// Calls that the agents made.
    pub calls: usize,
    /// Passes that it took to come to rest.
    pub passes: usize,
}

/// Lives one world through.
struct Life {
    world: World,
    hands: Hands,
    site: Site,
    text: String,
    simulators: Runtime,
    processes: Vec<Option<Process>>,
    skews: Vec<i16>,
    lease: Lease,
    rng: Rng,
    log: Log,
    dispatch: Dispatch,
    planted: checker::Planted,
    panics: Vec<String>,
}

fn now_of(world: &World, skew: i16) -> Timestamp {
    world.sim_clock.now().checked_add(SignedDuration::from_secs(skew.into())).unwrap()
}

impl Life {
    fn new(plan: &Plan) -> Self {
        let site = plan.site;
        let log = Log::default();
        let level = if site.watched { tracing::Level::TRACE } else { tracing::Level::INFO };
        let subscriber = tracing_subscriber::fmt().with_max_level(level).with_ansi(false).without_time().with_writer(log.clone()).finish();
        let simulators = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let world = simulators.block_on(World::with_store(site.profile, site.store));
        world.faults.keep_answers();
        world.gateway.forbid_custom_keys(site.mint);
        if site.team_defaults {
            world.gateway.set_default_team_params(json!({"max_budget": 100, "budget_duration": "30d", "tpm_limit": 1000}));
        }
        if site.key_defaults {
            world.gateway.set_default_key_params(json!({"max_budget": 7, "rpm_limit": 3}));
        }
        if site.paged {
            world.waldur.set_page_cap(2);
            world.gateway.set_ledger_page(3);
        }
        if site.agents == Agents::Two {
            world.gateway.set_race_window(Duration::from_millis(2));
        }
        world.waldur.set_zone(TimeZone::get(site.zone).unwrap());
        world.waldur.set_plugin_option(world.offering, "create_orders_on_resource_option_change", json!(site.option_orders));
        let hands = Hands::of(&world, site);
        hands.write_catalogue();
        let mut text = world.config_text(SETTINGS).replace("timeout: 400ms", "timeout: 1s");
        text = text.replace("waldur: {", &format!("waldur: {{zone: {}, ", site.zone));
        for (on, setting) in [
            (site.manual, "approval: {update: manual}"),
            (site.reduce, "on_downscale: {max_budget: 1, tpm_limit: 1000, rpm_limit: 10}"),
            (site.report_key, "delivery: {api_key_on_old_servers: report}"),
        ] {
            if on {
                text = text.replace("    limits:", &format!("    {setting}\n    limits:"));
            }
        }
        let planted = checker::Planted::into(&world);
        Self {
            hands,
            site,
            text,
            simulators,
            processes: vec![None, None],
            skews: vec![0, 0],
            lease: Lease::default(),
            rng: Rng::new(plan.seed.wrapping_add(1)),
            log,
            dispatch: Dispatch::new(subscriber),
            planted,
            panics: Vec::new(),
            world,
        }
    }

    fn say(&self, text: &str) {
        let mut log = self.log.0.lock().unwrap();
        let now = self.world.sim_clock.now();
        log.extend_from_slice(format!("---- {now} call {} {text}\n", self.world.faults.count()).as_bytes());
    }

    fn count(&self) -> usize {
        if self.site.agents == Agents::One { 1 } else { 2 }
    }

    fn start(&self, which: usize) -> Process {
        let dispatch = self.dispatch.clone();
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .on_thread_start(move || std::mem::forget(tracing::dispatcher::set_default(&dispatch)))
            .build()
            .unwrap();
        let clock = Clock::manual(now_of(&self.world, self.skews[which]));
        let path = self.world.write("config.yml", &self.text);
        let config = config::load(Some(&path), &[]).unwrap_or_else(|errors| panic!("{errors}\n{}", self.text)).config;
        self.world.watch.knows(&config);
        let agent = runtime.block_on(Agent::new(config, clock.clone())).unwrap();
        Process { runtime, agent, clock }
    }

    fn process(&mut self, which: usize) -> &Process {
        if self.processes[which].is_none() {
            let process = self.start(which);
            if self.site.agents == Agents::Leased {
                self.lease.set(which, Some(process.agent.clone()));
            }
            self.processes[which] = Some(process);
        }
        self.processes[which].as_ref().unwrap()
    }

    fn kill(&mut self, which: usize) {
        self.lease.set(which, None);
        if let Some(process) = self.processes[which].take() {
            drop(process.agent);
            process.runtime.shutdown_background();
        }
    }

    fn set_clocks(&self) {
        for (which, process) in self.processes.iter().enumerate() {
            if let Some(process) = process {
                process.clock.set(now_of(&self.world, self.skews[which]));
            }
        }
    }

    fn advance(&self, by: Duration) {
        self.world.sim_clock.advance(by);
        self.set_clocks();
    }

    /// Beats at the same time, with the work they begin; an agent may be killed on the way.
    fn beat(&mut self, beats: &[(usize, Loop)]) {
        let _pass = self.world.watch.pass();
        let mut tasks = Vec::new();
        for which in 0..2 {
            let loops: Vec<Loop> = beats.iter().filter(|(of, _)| *of == which).map(|(_, what)| *what).collect();
            if loops.is_empty() {
                continue;
            }
            let process = self.process(which);
            if !process.agent.is_leading() {
                continue;
            }
            let agent = process.agent.clone();
            let work = async move {
                let beats = loops.into_iter().map(async |what| match what {
                    Loop::Orders => drop(agent.order_beat().await),
                    Loop::Resources => drop(agent.resource_beat().await),
                    Loop::Offering => agent.offering_beat().await,
                    Loop::Usage => drop(agent.usage_beat().await),
                });
                futures::future::join_all(beats).await;
                agent.settle().await;
            };
            tasks.push((which, process.runtime.spawn(work)));
        }
        while let Some((which, mut task)) = tasks.pop() {
            let faults = self.world.faults.clone();
            let ended = self.simulators.block_on(async {
                tokio::select! {
                    ended = &mut task => Some(ended),
                    () = faults.killed() => None,
                }
            });
            match ended {
                Some(Ok(())) => {}
                // With its agent.
                Some(Err(error)) if error.is_cancelled() => {}
                Some(Err(error)) => self.panics.push(format!("a beat ended with {error}")),
                None => {
                    // Which of two made the call that is never answered cannot be told.
                    tasks.push((which, task));
                    let victim = tasks[self.rng.place(tasks.len())].0;
                    self.say(&format!("agent {victim} is killed"));
                    tasks.retain(|(which, _)| *which != victim);
                    self.kill(victim);
                }
            }
        }
    }

    fn step(&mut self, step: &Step) {
        let world = &self.world;
        let from_now = world.faults.count();
        match step {
            Step::Act(act) => {
                let done = self.hands.act(*act);
                self.say(&format!("{step} {}", done.unwrap_or_else(|| "(nothing)".into())));
                return;
            }
            Step::Meanwhile(after, act) => {
                let (hands, act, log) = (self.hands.clone(), *act, self.log.clone());
                world.faults.before_call(from_now + after, move || {
                    let done = hands.act(act);
                    let text = format!("---- meanwhile {act:?} {}\n", done.unwrap_or_else(|| "(nothing)".into()));
                    log.0.lock().unwrap().extend_from_slice(text.as_bytes());
                });
            }
            Step::Fault(after, trouble) => world.faults.at_call(from_now + after, troubles()[usize::from(trouble.0)].1.clone()),
            Step::Outage(peer, from, calls, trouble) => {
                let rule = Rule::new(troubles()[usize::from(trouble.0)].1.clone()).peer(*peer).nth(*from).times(*calls);
                world.faults.add(rule);
            }
            Step::Beat(which, what) => {
                self.say(&step.to_string());
                self.beat(&[(usize::from(*which) % self.count(), *what)]);
                return;
            }
            Step::Together(beats) => {
                self.say(&step.to_string());
                let mut beats: Vec<(usize, Loop)> = beats.iter().map(|(which, what)| (usize::from(*which) % self.count(), *what)).collect();
                // A loop does not overtake itself.
                beats.sort_by_key(|(which, what)| (*which, what.as_str()));
                beats.dedup();
                self.beat(&beats);
                return;
            }
            Step::Restart(which) => {
                let which = usize::from(*which) % self.count();
                self.kill(which);
            }
            Step::Lead(after) => {
                let lease = self.lease.clone();
                match after {
                    Some(after) => world.faults.before_call(from_now + after, move || lease.pass_on()),
                    None => lease.pass_on(),
                }
            }
            Step::Rotate(n, at_once) => {
                if let Some(resource) = self.hands.free(*n, &["OK"]) {
                    self.say(&format!("{step} of {}", resource.uuid.simple()));
                    let _pass = self.world.watch.pass();
                    // A command is a process of its own.
                    let process = self.start(0);
                    let (agent, at_once, id) = (process.agent.clone(), *at_once, resource.uuid);
                    let mut task = process.runtime.spawn(async move { drop(agent.rotate_keys(id, &[], at_once).await) });
                    self.simulators.block_on(async {
                        tokio::select! {
                            _ = &mut task => {}
                            () = self.world.faults.killed() => {}
                        }
                    });
                    drop(process.agent);
                    process.runtime.shutdown_background();
                }
                return;
            }
            Step::Skew(which, seconds) => {
                let which = usize::from(*which) % self.count();
                self.skews[which] = *seconds;
                self.set_clocks();
            }
            Step::Time(seconds) => self.advance(Duration::from_secs((*seconds).into())),
            Step::MonthEnd(after) => {
                let end = BillingMonth::of(world.sim_clock.now()).next().start();
                let to = end.checked_add(SignedDuration::from_secs((*after).into())).unwrap();
                if to > world.sim_clock.now() {
                    world.sim_clock.set(to);
                    self.set_clocks();
                }
            }
        }
        self.say(&step.to_string());
    }

    /// A beat of every loop of every agent.
    fn pass(&mut self) {
        for which in 0..self.count() {
            for what in [Loop::Orders, Loop::Resources, Loop::Offering, Loop::Usage] {
                self.beat(&[(which, what)]);
            }
        }
    }

    /// Passes until two in a row change nothing and nothing is open. Gives their number.
    fn come_to_rest(&mut self) -> Result<usize, String> {
        self.world.faults.clear();
        self.hands.mend();
        self.skews = vec![0, 0];
        self.set_clocks();
        if self.site.fresh {
            (0..2).for_each(|which| self.kill(which));
        }
        while self.waits_for_a_months_end() {
            self.advance(Duration::from_secs(3600));
        }
        self.say("the trouble is over");
        let (mut written, mut quiet) = (Vec::new(), 0);
        for pass in 1..=PASSES {
            let before = self.world.writes(None).len();
            self.pass();
            self.retry_given_up();
            written = self.world.writes(None).split_off(before);
            // A key that was replaced serves on for as long as a pass takes, and nothing is written until its time is over.
            // A machine that is too busy to answer within the agents' time-out disturbs as well.
            quiet = if written.is_empty() && self.waiting().is_empty() && self.conditions().is_empty() { quiet + 1 } else { 0 };
            if quiet == 2 {
                return Ok(pass);
            }
            self.advance(PASS);
            self.say(&format!("pass {pass} is over"));
        }
        let conditions: Vec<String> = self
            .processes
            .iter()
            .flatten()
            .flat_map(|process| process.agent.conditions.all())
            .map(|(name, subject, condition)| format!("{name} {subject}: {}", condition.message))
            .collect();
        Err(format!(
            "it does not come to rest within {PASSES} passes; open: {:?}; written in the last pass: {written:?}; conditions: {conditions:#?}",
            self.waiting()
        ))
    }

    /// Whether it is one month here and another where Waldur is. One that files usage under its own clock is told nothing then,
    /// for as many hours as the zones lie apart.
    fn waits_for_a_months_end(&self) -> bool {
        let zones = [TimeZone::UTC, TimeZone::get(self.site.zone).unwrap()];
        let months = zones.map(|zone| self.world.sim_clock.now().to_zoned(zone).date().first_of_month());
        months[0] != months[1]
    }

    /// Open orders that are the agent's to carry on.
    fn waiting(&self) -> Vec<String> {
        let ours: Vec<Uuid> = self.hands.resources(|_| true).iter().map(|r| r.uuid).collect();
        self.world
            .waldur
            .orders()
            .into_iter()
            .filter(|order| ours.contains(&order.resource) && is_open(&order.state))
            .filter(|order| !(self.site.manual && order.kind == "Update" && order.state == "pending-provider"))
            .map(|order| format!("{} {} {} of {}", order.kind, order.state, order.uuid.simple(), order.resource.simple()))
            .collect()
    }

    /// What an operator does about orders that erred too often.
    fn retry_given_up(&mut self) {
        let mut given_up = Vec::new();
        for process in self.processes.iter().flatten() {
            for (name, subject, _) in process.agent.conditions.all() {
                if name == "order-given-up" {
                    given_up.push(subject);
                }
            }
        }
        given_up.sort();
        given_up.dedup();
        for subject in given_up {
            let of_it = self.world.waldur.orders().into_iter().rfind(|order| order.resource.simple().to_string() == subject);
            if let Some(order) = of_it.filter(|order| order.state == "erred") {
                self.say(&format!("an operator retries order {}", order.uuid.simple()));
                let process = self.start(0);
                drop(process.runtime.block_on(commands::retry(&process.agent, order.uuid)));
                process.runtime.shutdown_background();
            }
        }
    }

    /// Conditions that no quiet world has.
    fn conditions(&self) -> Vec<String> {
        const NEVER: [&str; 20] = [
            "waldur-unreachable",
            "gateway-unreachable",
            "secrets-unreachable",
            "waldur-failing",
            "gateway-failing",
            "secrets-failing",
            "waldur-credential",
            "gateway-credential",
            "secrets-denied",
            "orders-unread",
            "resources-unread",
            "usage-unread",
            "usage-withheld",
            "usage-refused",
            "offering-not-kept",
            "lost-sight",
            "not-kept",
            "catalogue-unreadable",
            "foreign-team",
            "foreign-secret",
        ];
        let leading = self.processes.iter().flatten().filter(|process| process.agent.is_leading());
        let held = leading.flat_map(|process| process.agent.conditions.all());
        held.filter(|(name, ..)| NEVER.contains(name))
            .map(|(name, subject, condition)| format!("the condition {name} {subject} still holds: {}", condition.message))
            .collect()
    }

    /// Resources in service whose team is not what was ordered.
    fn unserved(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let whole = {
            let entries = self.hands.catalogue.lock().unwrap();
            entries.len() == SOLD.len() && entries.values().all(|entry| entry.orderable && entry.enabled)
        };
        for resource in self.hands.resources(|r| r.state == "OK") {
            let Some(team) = self.world.gateway.team(&resource.uuid.simple().to_string()) else { continue };
            let ordered = resource.limits.get("max_budget").copied().unwrap_or(Decimal::from(20));
            let reduced = resource.downscaled && self.site.reduce;
            let wanted = if reduced { (ordered.min(Decimal::ONE), 1000, 10) } else { (ordered, 100_000, 600) };
            let has = (team.max_budget.unwrap_or(Decimal::MAX), team.tpm_limit.unwrap_or(0), team.rpm_limit.unwrap_or(0));
            if has != wanted {
                problems.push(format!("resource {} is to have {wanted:?} and has {has:?}", resource.slug));
            }
            let blocked = resource.paused || (resource.downscaled && !self.site.reduce);
            if team.blocked != blocked {
                problems.push(format!("resource {}: blocked is {}, not {blocked}", resource.slug, team.blocked));
            }
            if !matches!(team.budget_duration.as_deref(), Some("1mo" | "30d")) {
                problems.push(format!("resource {}: the budget is for {:?}", resource.slug, team.budget_duration));
            }
            let chosen = resource.options.get("models").and_then(|models| models.as_array().cloned()).unwrap_or_default();
            let mut models: Vec<&str> = chosen.iter().filter_map(|model| model.as_str()).collect();
            if models.contains(&"all") {
                models = SOLD.map(|(name, _)| name).to_vec();
            }
            models.push("qwen3-embedding-0-6b");
            models.sort_unstable();
            let mut held = team.models.clone();
            held.sort_unstable();
            if whole && !chosen.is_empty() && models != held {
                problems.push(format!("resource {} is to have {models:?} and has {held:?}", resource.slug));
            }
        }
        problems
    }

    /// What the agents in charge make of the catalogue.
    fn views(&self) -> Vec<Arc<View>> {
        let leading = self.processes.iter().flatten().filter(|process| process.agent.is_leading());
        leading.filter_map(|process| process.agent.catalogue()).collect()
    }

    /// What of the offering is not as the catalogue says, once every change of it was believed.
    fn unsold(&mut self) -> Vec<String> {
        for _ in 0..PASSES_TO_BELIEVE {
            if self.views().iter().all(|view| view.missing.is_empty() && view.doubted.is_empty() && view.held.is_none()) {
                break;
            }
            self.advance(PASS);
            self.pass();
        }
        let views = self.views();
        if views.iter().any(|view| view.held.is_some()) {
            // It lost too much at once, and nobody accepts that.
            return Vec::new();
        }
        let unsettled = views.iter().filter(|view| !(view.missing.is_empty() && view.doubted.is_empty()));
        let mut problems: Vec<String> = unsettled
            .map(|view| format!("the catalogue is not believed: {:?} are missing, {:?} in doubt", view.missing, view.doubted))
            .collect();
        let entries = self.hands.catalogue.lock().unwrap().clone();
        let price = |text: &String| text.parse::<Decimal>().unwrap();
        let sold = entries.iter().filter(|(_, entry)| entry.orderable && entry.enabled);
        let sold = sold.map(|(n, entry)| (SOLD[*n].0, entry.prices.as_ref().map(|(input, output)| (price(input), price(output)))));
        problems.extend(checker::unsold(&self.world, &sold.collect(), &BTreeMap::from([(EMBEDDER.0, EMBEDDER.1.parse().unwrap())])));
        problems
    }

    fn end(mut self, plan: &Plan) -> End {
        for step in &plan.steps {
            self.step(step);
        }
        let mut problems = Vec::new();
        let mut passes = 0;
        match self.come_to_rest() {
            Ok(after) => passes = after,
            Err(problem) => problems.push(problem),
        }
        problems.extend(checker::problems(&self.world));
        problems.extend(checker::unbilled(&self.world));
        problems.extend(self.planted.problems(&self.world));
        problems.extend(self.unserved());
        problems.extend(self.conditions());
        if problems.is_empty() {
            problems.extend(self.unsold());
        }
        problems.append(&mut self.panics);
        let story = String::from_utf8_lossy(&self.log.0.lock().unwrap()).into_owned();
        if self.site.watched {
            problems.extend(self.world.watch.leaks_in(&story).into_iter().map(|line| format!("a secret in the log: {line}")));
        }
        let calls = self.world.faults.count();
        (0..2).for_each(|which| self.kill(which));
        self.world.watch.forgive();
        self.world.ends_in_trouble("what was found is told with the plan");
        self.simulators.block_on(async { drop(self.world) });
        self.simulators.shutdown_background();
        End { problems, story, calls, passes }
    }
}

/// Lives a plan through.
#[must_use]
pub fn live(plan: &Plan) -> End {
    let life = std::panic::catch_unwind(AssertUnwindSafe(|| Life::new(plan).end(plan)));
    life.unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        End { problems: vec![format!("panicked: {}", said.unwrap_or_default())], ..End::default() }
    })
}

/// Leaves steps out, by halves and then one by one, as long as the world still fails; lives at most `lives` worlds.
#[must_use]
pub fn shrink(plan: &Plan, lives: usize) -> Plan {
    let mut small = plan.clone();
    let mut left = lives;
    let mut size = (small.steps.len() / 2).max(1);
    loop {
        let mut at = 0;
        let mut shorter = false;
        while at < small.steps.len() && left > 0 {
            let mut tried = small.clone();
            tried.steps.drain(at..(at + size).min(small.steps.len()));
            left -= 1;
            if live(&tried).problems.is_empty() {
                at += size;
            } else {
                small = tried;
                shorter = true;
            }
        }
        if left == 0 || (size == 1 && !shorter) {
            return small;
        }
        size = (size / 2).max(1);
    }
}

/// What to print about a plan that failed.
#[must_use]
pub fn report(plan: &Plan, end: &End, lives: usize) -> String {
    let small = shrink(plan, lives);
    let again = live(&small);
    let (plan, end) = if again.problems.is_empty() { (plan, end) } else { (&small, &again) };
    format!("{plan}{}\nagain: SEED={} make soak", end.problems.join("\n"), plan.seed)
}
