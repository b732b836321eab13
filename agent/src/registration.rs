//! The gateway's side of the offering beat: what it serves is compared with the catalogue. With `gateway.manage_models` the
//! models of the catalogue are registered, changed and taken out there; what is not ours to change is reported.

use std::collections::BTreeSet;
use std::time::Duration;

use litellm_client::ModelInfo;
use secrecy::SecretString;

use crate::agent::{Agent, Failure};
use crate::clock::after;
use crate::gate::Peer;
use crate::plan::{Difference, Registration, Registry, differences, plan_registration};

/// A change that the gateway refused, or took and did not keep, is tried again after this long.
const TRY_AGAIN: Duration = Duration::from_secs(600);

/// The gateway could not be compared with the catalogue.
const UNREAD: &str = "gateway-models-unread";
/// A change that the gateway refused, or took and did not keep.
const NOT_KEPT: &str = "gateway-model-not-kept";

/// How many differences of one kind a condition lists.
const MOST_LISTED: usize = 20;

/// What one comparison with the gateway found.
#[derive(Debug, Default)]
pub struct Registered {
    /// The calls that changed something.
    pub done: Vec<Registration>,
    /// What is left to do, because it was refused, not kept, or tried too short a time ago.
    pub left: Vec<Registration>,
    /// For people.
    pub differences: Vec<Difference>,
}

impl Agent {
    /// Compares the gateway with the catalogue, and puts right what is ours to put right.
    pub async fn gateway_beat(&self) {
        match self.keep_gateway().await {
            Ok(kept) => {
                self.conditions.clear(UNREAD, "");
                if !kept.done.is_empty() {
                    tracing::info!(changes = kept.done.len(), "models registered at the gateway");
                }
                self.note_differences(&kept.differences);
            }
            Err(failure) => {
                self.note_pass_failure(&failure);
                self.conditions.raise(
                    UNREAD,
                    "",
                    format!("what the gateway serves could not be compared with the catalogue, so nothing is changed there: {failure}"),
                );
            }
        }
    }

    /// Reads what the gateway serves, applies what is left to do, and reads it back.
    ///
    /// # Errors
    /// A reading or the key file failed: then nothing is concluded. What a change itself meets is kept for the reading back.
    pub async fn keep_gateway(&self) -> Result<Registered, Failure> {
        let seen = self.look_at_deployments().await?;
        let Some(view) = self.catalogue() else {
            return Ok(Registered::default());
        };
        let key = self.model_key()?;
        let registry = key.as_ref().map(|key| self.registry(key.as_ref()));
        let Some(registry) = registry else {
            return Ok(Registered { differences: differences(None, &view, &seen), ..Registered::default() });
        };
        let mut kept = Registered::default();
        let plan = self.without_resting(plan_registration(&registry, &view, &seen));
        if plan.is_empty() {
            kept.left = plan_registration(&registry, &view, &seen);
            self.note_kept(&kept.left);
            kept.differences = differences(Some(&registry), &view, &seen);
            return Ok(kept);
        }
        for action in plan {
            self.must_lead()?;
            let outcome = self.register(&action).await;
            let said = match outcome {
                Ok(()) => "the gateway took the change and does not show it".to_owned(),
                Err(error) => {
                    tracing::debug!(action = action.name(), "failed to {action}: {error}");
                    let said = error.to_string();
                    let failure = Failure::from(error);
                    // Whoever does not answer is not asked for the next one.
                    if matches!(failure, Failure::Transient { unreachable: true, .. } | Failure::Credential { .. }) {
                        return Err(failure);
                    }
                    said
                }
            };
            self.memory().registrations.insert(action.id().to_owned(), (action.to_string(), self.clock.now(), said));
            kept.done.push(action);
        }
        // What counts is what the gateway shows: a 500 may have worked, and a 200 may not have.
        let seen = self.look_at_deployments().await?;
        kept.left = plan_registration(&registry, &view, &seen);
        kept.done.retain(|action| {
            let kept = !kept.left.iter().any(|left| left.id() == action.id());
            if kept {
                metrics::counter!("llm_access_actions_total", "action" => action.name()).increment(1);
                tracing::info!(action = action.name(), "{action}");
            }
            kept
        });
        self.note_kept(&kept.left);
        kept.differences = differences(Some(&registry), &view, &seen);
        Ok(kept)
    }

    /// What is left to do at the gateway and what differs there; nothing is changed.
    ///
    /// # Errors
    /// A reading or the key file failed.
    pub async fn compare_gateway(&self) -> Result<Registered, Failure> {
        let seen = self.look_at_deployments().await?;
        let Some(view) = self.catalogue() else {
            return Ok(Registered::default());
        };
        let key = self.model_key()?;
        let registry = key.as_ref().map(|key| self.registry(key.as_ref()));
        let left = registry.as_ref().map(|registry| plan_registration(registry, &view, &seen)).unwrap_or_default();
        Ok(Registered { left, differences: differences(registry.as_ref(), &view, &seen), ..Registered::default() })
    }

    /// The deployments of the gateway; which models of ours it serves is remembered before the catalogue is judged by it.
    async fn look_at_deployments(&self) -> Result<Vec<ModelInfo>, Failure> {
        let seen = self.gateway.model_info().await?;
        self.note_answer(Peer::Gateway);
        if self.config.gateway.manage_models {
            let registry = self.registry(None);
            let ours: BTreeSet<String> = seen.iter().filter_map(|there| registry.model_of(there)).map(str::to_owned).collect();
            self.remember_deployments(ours);
        }
        Ok(seen)
    }

    fn registry<'a>(&'a self, key: Option<&'a SecretString>) -> Registry<'a> {
        Registry { owner: &self.config.owner, bases: &self.config.gateway.api_base, key }
    }

    /// `None` where models are not ours to register; inside, the key for their servers, if they ask for one.
    fn model_key(&self) -> Result<Option<Option<SecretString>>, Failure> {
        if !self.config.gateway.manage_models {
            return Ok(None);
        }
        let key = self.config.gateway.model_key.as_ref().map(crate::secret_file::SecretRef::read).transpose();
        key.map(Some).map_err(|error| Failure::Transient {
            peer: Peer::Gateway,
            message: format!("the key for the servers of models cannot be read: {error}"),
            retry_after: None,
            unreachable: false,
        })
    }

    /// Without what the same was tried for a short time ago in vain.
    fn without_resting(&self, plan: Vec<Registration>) -> Vec<Registration> {
        let now = self.clock.now();
        let memory = self.memory();
        let rests = |action: &Registration| {
            memory.registrations.get(action.id()).is_some_and(|(what, at, _)| *what == action.to_string() && now < after(*at, TRY_AGAIN))
        };
        plan.into_iter().filter(|action| !rests(action)).collect()
    }

    async fn register(&self, action: &Registration) -> litellm_client::Result<()> {
        match action {
            Registration::Create(new) => self.gateway.create_deployment(new).await,
            Registration::Update { id, patch, .. } => self.gateway.update_deployment(id, patch).await,
            Registration::Delete { id, .. } => self.gateway.delete_deployment(id).await,
        }
    }

    /// Says what is left, and forgets what was tried in vain and is not left any more.
    fn note_kept(&self, left: &[Registration]) {
        let mut memory = self.memory();
        memory.registrations.retain(|id, (what, ..)| left.iter().any(|action| action.id() == id && action.to_string() == *what));
        let lines: Vec<String> = left
            .iter()
            .filter_map(|action| memory.registrations.get(action.id()).map(|(_, _, said)| format!("{action}: {said}")))
            .collect();
        drop(memory);
        if lines.is_empty() {
            self.conditions.clear(NOT_KEPT, "");
        } else {
            self.conditions.raise(NOT_KEPT, "", listed(&lines));
        }
    }

    fn note_differences(&self, differences: &[Difference]) {
        for name in Difference::CONDITIONS {
            let lines: Vec<String> =
                differences.iter().filter(|difference| difference.condition() == name).map(ToString::to_string).collect();
            metrics::gauge!("llm_access_gateway_differences", "kind" => name).set(crate::orders::count(lines.len()));
            if lines.is_empty() {
                self.conditions.clear(name, "");
            } else {
                self.conditions.raise(name, "", listed(&lines));
            }
        }
    }
}

fn listed(lines: &[String]) -> String {
    let mut text = lines.iter().take(MOST_LISTED).cloned().collect::<Vec<_>>().join("; ");
    if lines.len() > MOST_LISTED {
        text.push_str(&format!("; and {} more, see `check`", lines.len() - MOST_LISTED));
    }
    text
}
