//! What the gateway serves against what the catalogue lists: the deployments that are ours to make, change and delete, and
//! the differences that only people can settle.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use litellm_client::{Change, DeploymentPatch, ModelInfo, NewDeployment};
use rust_decimal::Decimal;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::catalogue::{Catalogue, Model, Runtime, View};
use crate::config::ApiBases;
use crate::domain::Direction;

/// The start of the id of every deployment that an agent of any environment made.
pub const ID_PREFIX: &str = "llma-";

/// What is shown to a server that asks for no key. Without any the proxy would send its own `OPENAI_API_KEY` there.
const NO_KEY: &str = "none";

/// The mode of a deployment that turns text into vectors, and of one that generates.
const EMBEDDING: &str = "embedding";
const CHAT: &str = "chat";

/// A price travels through the gateway as a binary float, which keeps this many digits of a decimal for certain.
const DIGITS: u32 = 15;

/// The id of our deployment of a model: `llma-` and the uuid v5 of owner and served name. It is our mark on it.
#[must_use]
pub fn deployment_id(owner: &str, served_name: &str) -> String {
    let owner = Uuid::new_v5(&Uuid::NAMESPACE_OID, owner.as_bytes());
    format!("{ID_PREFIX}{}", Uuid::new_v5(&owner, served_name.as_bytes()))
}

/// How our deployments are made.
#[derive(Debug)]
pub struct Registry<'a> {
    /// This environment.
    pub owner: &'a str,
    /// Where the models are served.
    pub bases: &'a ApiBases,
    /// What their servers are shown.
    pub key: Option<&'a SecretString>,
}

impl Registry<'_> {
    /// The deployment of one model of the catalogue.
    fn wanted(&self, model: &Model) -> NewDeployment {
        let id = deployment_id(self.owner, &model.served_name);
        let template = match model.runtime {
            Runtime::Vllm => &self.bases.vllm,
            Runtime::Tei => &self.bases.tei,
            Runtime::Cpu => &self.bases.cpu,
        };
        let api_key = self.key.cloned().unwrap_or_else(|| SecretString::from(NO_KEY));
        NewDeployment {
            key_mark: key_mark(&id, &api_key),
            id,
            model_name: model.served_name.clone(),
            upstream_model: format!("openai/{}", model.served_name),
            api_base: template.replace("{served_name}", &model.served_name).replace("{name}", &model.name),
            api_key,
            input_cost_per_token: model.prices.map(|prices| prices.input),
            output_cost_per_token: model.prices.and_then(|prices| prices.output),
            mode: model.embedding.then(|| EMBEDDING.to_owned()),
        }
    }

    /// Whether a deployment carries our mark: its id follows from this owner and the name it serves, or served before
    /// somebody renamed it.
    #[must_use]
    pub fn is_ours(&self, seen: &ModelInfo) -> bool {
        self.model_of(seen).is_some()
    }

    /// The model that a deployment of ours was made for; `None` for any other deployment.
    #[must_use]
    pub fn model_of<'a>(&self, seen: &'a ModelInfo) -> Option<&'a str> {
        let id = seen.id.as_deref().filter(|id| seen.db_model && id.starts_with(ID_PREFIX))?;
        let upstream = seen.upstream_model.as_deref().and_then(|name| name.strip_prefix("openai/"));
        [Some(seen.model_name.as_str()), upstream].into_iter().flatten().find(|name| deployment_id(self.owner, name) == id)
    }
}

/// Tells that a key was changed and gives away 32 bits of its hash, which help nobody to find it.
fn key_mark(id: &str, key: &SecretString) -> String {
    let digest = Sha256::new().chain_update(id).chain_update([0]).chain_update(key.expose_secret()).finalize();
    digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// One call to the gateway about a deployment of ours.
#[derive(Clone, Debug)]
pub enum Registration {
    /// Make it.
    Create(NewDeployment),
    /// Change what differs.
    Update {
        /// Its id.
        id: String,
        /// The model.
        model: String,
        /// Only what changes.
        patch: Box<DeploymentPatch>,
        /// The same, for people.
        what: Vec<String>,
    },
    /// Delete it: its model has gone.
    Delete {
        /// Its id.
        id: String,
        /// The model.
        model: String,
    },
}

impl Registration {
    /// The deployment it is about.
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            Self::Create(new) => &new.id,
            Self::Update { id, .. } | Self::Delete { id, .. } => id,
        }
    }

    /// Its name as a metric label.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Create(_) => "create-deployment",
            Self::Update { .. } => "update-deployment",
            Self::Delete { .. } => "delete-deployment",
        }
    }
}

impl fmt::Display for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create(new) => {
                let price = price_text(new.input_cost_per_token);
                write!(
                    f,
                    "register model {} at the gateway ({}, input {price}, output {})",
                    new.model_name,
                    new.api_base,
                    price_text(new.output_cost_per_token)
                )
            }
            Self::Update { model, what, .. } => write!(f, "change model {model} at the gateway: {}", what.join(", ")),
            Self::Delete { model, .. } => write!(f, "take model {model} out of the gateway"),
        }
    }
}

fn price_text(price: Option<Decimal>) -> String {
    price.map_or_else(|| "not priced".to_owned(), |price| price.normalize().to_string())
}

/// A difference between the gateway and the catalogue that the agent leaves to people.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Difference {
    /// The catalogue lists a model that the gateway does not serve.
    NotServed {
        /// The model.
        model: String,
    },
    /// The gateway serves a model that the catalogue does not list.
    NotListed {
        /// The model.
        model: String,
    },
    /// A token costs something else at the gateway than in the catalogue.
    Price {
        /// The model.
        model: String,
        /// The deployment's id.
        deployment: String,
        /// Which tokens.
        direction: Direction,
        /// What the gateway charges.
        gateway: Option<Decimal>,
        /// What the catalogue says.
        catalogue: Option<Decimal>,
    },
    /// Several public names are one model upstream: the gateway counts their daily usage under one of them.
    SharedUpstream {
        /// The model upstream.
        upstream: String,
        /// The public names.
        models: Vec<String>,
    },
    /// A model that we would register is served by deployments that are not ours.
    NotOurs {
        /// The model.
        model: String,
        /// Their ids.
        deployments: Vec<String>,
        /// Whether ours is there too, and calls go now to one and now to another.
        doubled: bool,
    },
}

impl Difference {
    /// The condition that it raises.
    #[must_use]
    pub fn condition(&self) -> &'static str {
        match self {
            Self::NotServed { .. } => "gateway-model-missing",
            Self::NotListed { .. } => "gateway-model-not-listed",
            Self::Price { .. } => "gateway-price",
            Self::SharedUpstream { .. } => "gateway-shared-upstream",
            Self::NotOurs { .. } => "gateway-model-not-ours",
        }
    }

    /// All those conditions.
    pub const CONDITIONS: [&'static str; 5] =
        ["gateway-model-missing", "gateway-model-not-listed", "gateway-price", "gateway-shared-upstream", "gateway-model-not-ours"];
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotServed { model } => write!(
                f,
                "model {model} is in the catalogue and not served by the gateway; register it there, or take it out of the catalogue"
            ),
            Self::NotListed { model } => {
                write!(f, "model {model} is served by the gateway and not in the catalogue, so nobody can order it")
            }
            Self::Price { model, deployment, direction, gateway, catalogue } => {
                let side = match direction {
                    Direction::Input => "input",
                    Direction::Output => "output",
                };
                let (gateway, catalogue) = (price_text(*gateway), price_text(*catalogue));
                write!(
                    f,
                    "model {model}: an {side} token costs {gateway} at the gateway (deployment {deployment}) and {catalogue} in the catalogue"
                )
            }
            Self::SharedUpstream { upstream, models } => {
                let models = models.join(", ");
                write!(
                    f,
                    "models {models} are all {upstream} upstream; the gateway counts their daily usage under one name. Give each an upstream name of its own"
                )
            }
            Self::NotOurs { model, deployments, doubled } => {
                let others = deployments.join(", ");
                if *doubled {
                    write!(
                        f,
                        "model {model} is served by our deployment and by {others}, which is not ours, in turn; remove the one that is not wanted from the gateway"
                    )
                } else {
                    write!(
                        f,
                        "model {model} is served by {others}, which is not ours, so it is not registered; remove that from the gateway and the agent registers it"
                    )
                }
            }
        }
    }
}

/// Whether two prices are one, as far as the gateway can tell them apart.
#[must_use]
pub fn same_price(one: Option<Decimal>, other: Option<Decimal>) -> bool {
    let digits = |price: Decimal| price.round_sf(DIGITS).unwrap_or(price).normalize();
    one.map(digits) == other.map(digits)
}

/// What is left to do until the gateway serves what the catalogue lists; empty when nothing is.
#[must_use]
pub fn plan_registration(registry: &Registry<'_>, view: &View, seen: &[ModelInfo]) -> Vec<Registration> {
    let mut actions = Vec::new();
    if !view.may_be_acted_upon() {
        return actions;
    }
    for model in &view.models {
        let wanted = registry.wanted(model);
        match seen.iter().find(|there| there.id.as_ref() == Some(&wanted.id)) {
            // What a configuration file says cannot be changed through the API.
            Some(there) if there.db_model && view.is_settled(&model.served_name) => actions.extend(update(&wanted, there)),
            Some(_) => {}
            // A second deployment would be served in turn with the first.
            None if seen.iter().any(|there| there.model_name == model.served_name) => {}
            None => actions.push(Registration::Create(wanted)),
        }
    }
    let gone = seen.iter().filter_map(|there| Some((there.id.clone()?, registry.model_of(there)?)));
    let gone = gone.filter(|(_, model)| view.gone.contains(*model) && view.model(model).is_none());
    actions.extend(gone.map(|(id, model)| Registration::Delete { id, model: model.to_owned() }));
    actions
}

fn update(wanted: &NewDeployment, there: &ModelInfo) -> Option<Registration> {
    let mut what = Vec::new();
    let mut patch = DeploymentPatch::default();
    let mut text = |name: &str, want: &str, is: Option<&str>| {
        let differs = is != Some(want);
        if differs {
            what.push(format!("{name} {} → {want}", is.unwrap_or("none")));
        }
        differs.then(|| want.to_owned())
    };
    patch.model_name = text("name", &wanted.model_name, Some(&there.model_name));
    patch.upstream_model = text("model", &wanted.upstream_model, there.upstream_model.as_deref());
    patch.api_base = text("address", &wanted.api_base, there.api_base.as_deref());
    // A model that generates needs no mode; one that is there can only be changed.
    let mode = wanted.mode.as_deref().unwrap_or(CHAT);
    if wanted.mode.is_some() || there.mode.as_deref() == Some(EMBEDDING) {
        patch.mode = text("mode", mode, there.mode.as_deref());
    }
    let mut price = |name: &str, want: Option<Decimal>, is: Option<Decimal>| {
        if same_price(want, is) {
            return Change::Keep;
        }
        what.push(format!("{name} price {} → {}", price_text(is), price_text(want)));
        want.map_or(Change::Clear, Change::Set)
    };
    patch.input_cost_per_token = price("input", wanted.input_cost_per_token, there.own_input_cost);
    patch.output_cost_per_token = price("output", wanted.output_cost_per_token, there.own_output_cost);
    if there.key_mark.as_ref() != Some(&wanted.key_mark) {
        what.push("key".to_owned());
        patch.api_key = Some((wanted.api_key.clone(), wanted.key_mark.clone()));
    }
    let (id, model) = (wanted.id.clone(), wanted.model_name.clone());
    (!what.is_empty()).then(|| Registration::Update { id, model, patch: Box::new(patch), what })
}

/// What differs between the gateway and the catalogue, in a fixed order. `registry` is there where the agent registers
/// models itself.
#[must_use]
pub fn differences(registry: Option<&Registry<'_>>, catalogue: &Catalogue, seen: &[ModelInfo]) -> Vec<Difference> {
    let mut found = BTreeSet::new();
    let mut upstreams: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    // A pattern stands for any number of names.
    for there in seen.iter().filter(|there| !there.model_name.contains('*')) {
        if let Some(upstream) = &there.upstream_model {
            upstreams.entry(upstream).or_default().insert(&there.model_name);
        }
        let Some(model) = catalogue.model(&there.model_name) else {
            let made_by_an_agent = there.id.as_deref().is_some_and(|id| id.starts_with(ID_PREFIX));
            if !made_by_an_agent {
                found.insert(Difference::NotListed { model: there.model_name.clone() });
            }
            continue;
        };
        let sides = [
            (Direction::Input, there.input_cost_per_token, model.prices.map(|prices| prices.input)),
            (Direction::Output, there.output_cost_per_token, model.prices.and_then(|prices| prices.output)),
        ];
        for (direction, gateway, listed) in sides {
            // Without a price a call costs nothing, and the gateway shows the one like the other.
            let charged = |price: Option<Decimal>| Some(price.unwrap_or_default());
            if !same_price(charged(gateway), charged(listed)) {
                let deployment = there.id.clone().unwrap_or_default();
                found.insert(Difference::Price { model: model.served_name.clone(), deployment, direction, gateway, catalogue: listed });
            }
        }
    }
    let shared = |names: &BTreeSet<&str>| names.len() > 1 && names.iter().any(|name| catalogue.model(name).is_some());
    for (upstream, names) in upstreams.into_iter().filter(|(_, names)| shared(names)) {
        found.insert(Difference::SharedUpstream { upstream: upstream.to_owned(), models: names.into_iter().map(str::to_owned).collect() });
    }
    for model in &catalogue.models {
        let serving = || seen.iter().filter(|there| there.model_name == model.served_name);
        if serving().next().is_none() {
            found.insert(Difference::NotServed { model: model.served_name.clone() });
        }
        if let Some(registry) = registry {
            let deployments: Vec<String> =
                serving().filter(|there| !registry.is_ours(there)).map(|there| there.id.clone().unwrap_or_default()).collect();
            if !deployments.is_empty() {
                let doubled = serving().any(|there| registry.is_ours(there));
                found.insert(Difference::NotOurs { model: model.served_name.clone(), deployments, doubled });
            }
        }
    }
    found.into_iter().collect()
}
