//! Carries out one action at a time. The only place that writes, besides the states of orders.

use litellm_client::{Class, KeyVerdict, NewKey};
use secrecy::SecretString;
use uuid::Uuid;

use crate::agent::{Agent, Failure};
use crate::domain::team_id;
use crate::features::Feature;
use crate::gate::Peer;
use crate::plan::{Action, SecretDraft};
use crate::secrets::{Connection, Created, SecretState, Stored};

impl Agent {
    /// Carries out `actions` in order and stops at the first that fails. What did happen is found by the next look.
    pub(crate) async fn apply(&self, resource: Uuid, actions: &[Action]) -> Result<(), Failure> {
        for action in actions {
            self.must_lead()?;
            let outcome = self.apply_one(resource, action).await;
            match &outcome {
                Ok(()) => {
                    metrics::counter!("llm_access_actions_total", "action" => action.name()).increment(1);
                    tracing::info!(resource = %resource.simple(), action = action.name(), "{action}");
                }
                Err(failure) => tracing::debug!(resource = %resource.simple(), action = action.name(), "failed to {action}: {failure}"),
            }
            outcome?;
        }
        Ok(())
    }

    async fn apply_one(&self, resource: Uuid, action: &Action) -> Result<(), Failure> {
        match action {
            Action::StoreSecret(draft) => {
                let connection = connection(resource, draft, new_key()?);
                // A Secret that is there already is the winner: its key is read back and used.
                match self.secrets.create(&connection).await? {
                    Created::Made | Created::Exists => Ok(()),
                }
            }
            Action::ReplaceSecret { broken, draft } => {
                Ok(self.secrets.replace_broken(broken, &connection(resource, draft, new_key()?)).await?)
            }
            Action::CreateTeam(team) => Ok(self.gateway.create_team(team).await?),
            Action::UpdateTeam { team, patch } => {
                self.gateway.update_team(team, patch).await?;
                if patch.metadata.is_some() {
                    self.note_mark_repair(resource);
                }
                Ok(())
            }
            Action::SetBackendId(id) => Ok(self.waldur.set_backend_id(resource, id).await?),
            Action::RegisterKey { alias, key, metadata } => {
                let new = NewKey {
                    team_id: team_id(resource),
                    alias: alias.to_string(),
                    key: Some(key.clone()),
                    metadata: metadata.clone(),
                    blocked: false,
                };
                match self.gateway.generate_key(&new).await {
                    Ok(_) => {
                        self.features.learn(Feature::CustomKeys, true);
                        Ok(())
                    }
                    Err(error) => {
                        if error.class() == Class::CustomKeysForbidden && self.features.learn(Feature::CustomKeys, false) {
                            tracing::warn!(
                                "the gateway refuses key values that are chosen for it; from now on it makes the keys and they are stored after"
                            );
                        }
                        Err(error.into())
                    }
                }
            }
            Action::MintKey { draft, base, metadata } => self.mint(resource, draft, base.as_deref(), metadata.clone()).await,
            Action::DeleteKey { hash, .. } => match self.gateway.delete_keys(std::slice::from_ref(hash)).await {
                // Whether it is really gone is asked by the next look.
                Err(error) if error.class() == Class::NotFound => Ok(()),
                outcome => Ok(outcome?),
            },
            Action::FreeKey { hash, bounds, .. } => Ok(self.gateway.clear_own_bounds(hash, bounds).await?),
            Action::ReportApiKey { alias, key } => {
                let reported = self.waldur.report_api_key_created(resource, &alias.to_string(), key).await;
                self.memory().api_keys.forget();
                Ok(reported?)
            }
            Action::SetEndpoints(endpoints) => match self.waldur.set_endpoints(resource, endpoints).await {
                Ok(()) => {
                    self.features.learn(Feature::Endpoints, true);
                    Ok(())
                }
                Err(error) if error.class() == waldur_client::Class::NoSuchRoute => {
                    self.features.learn(Feature::Endpoints, false);
                    Err(Failure::Conflict { message: "this Waldur has no endpoints; a report is submitted instead".into() })
                }
                Err(error) => Err(error.into()),
            },
            Action::SubmitReport(report) => Ok(self.waldur.submit_report(resource, report).await?),
            Action::SetBackendMetadata(metadata) => Ok(self.waldur.set_backend_metadata(resource, metadata).await?),
            Action::VerifyKey { alias, key, models } => {
                let problem = match self.gateway.models_of_key(key).await? {
                    KeyVerdict::Works(callable) => {
                        let missing: Vec<&str> = models.iter().filter(|m| !callable.contains(m)).map(String::as_str).collect();
                        if missing.is_empty() {
                            return Ok(());
                        }
                        format!("works but may not call {}; does the gateway serve these models?", missing.join(", "))
                    }
                    KeyVerdict::Blocked => "is blocked, though its team should not be".into(),
                    KeyVerdict::Unknown => "is not known to the gateway yet".into(),
                    KeyVerdict::Refused { message } => format!("is refused: {message}"),
                };
                Err(Failure::Transient {
                    peer: Peer::Gateway,
                    message: format!("key {alias} {problem}"),
                    retry_after: None,
                    unreachable: false,
                })
            }
            Action::ReplaceKey { base, draft } => Ok(self.secrets.update(base, &connection(resource, draft, new_key()?)).await?),
            Action::UpdateSecret { base, connection } => Ok(self.secrets.update(base, connection).await?),
            Action::DeleteSecret(stored) => Ok(self.secrets.delete(stored).await?),
            Action::DeleteBrokenSecret(broken) => Ok(self.secrets.delete_broken(broken).await?),
            Action::DeleteTeam(team) => match self.gateway.delete_team(team).await {
                Err(error) if error.class() == Class::NotFound => Ok(()),
                outcome => Ok(outcome?),
            },
        }
    }

    /// Has the gateway make a key and stores it. A key that cannot be stored is deleted again at once; if even that fails,
    /// the next look finds a key that no Secret holds, and deletes it.
    async fn mint(
        &self,
        resource: Uuid,
        draft: &SecretDraft,
        base: Option<&Stored>,
        metadata: serde_json::Map<String, serde_json::Value>,
    ) -> Result<(), Failure> {
        let new = NewKey { team_id: team_id(resource), alias: draft.alias.to_string(), key: None, metadata, blocked: false };
        let minted = self.gateway.generate_key(&new).await?;
        let connection = connection(resource, draft, minted.key);
        let stored = match base {
            Some(base) => {
                self.secrets.update(base, &Connection { name: base.connection.name.clone(), ..connection }).await.map_err(Failure::from)
            }
            None => match self.secrets.create(&connection).await {
                Ok(Created::Made) => Ok(()),
                Ok(Created::Exists) => {
                    Err(Failure::Conflict { message: format!("Secret {} was made by somebody else meanwhile", draft.name) })
                }
                Err(error) => Err(error.into()),
            },
        };
        if let Err(failure) = stored {
            if !matches!(failure, Failure::Transient { .. }) {
                self.gateway.delete_keys(&[minted.hash]).await?;
            }
            return Err(failure);
        }
        Ok(())
    }
}

impl Action {
    /// Its name as a metric label.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::StoreSecret(_) => "store-secret",
            Self::ReplaceSecret { .. } => "replace-secret",
            Self::CreateTeam(_) => "create-team",
            Self::UpdateTeam { .. } => "update-team",
            Self::SetBackendId(_) => "set-backend-id",
            Self::RegisterKey { .. } => "register-key",
            Self::MintKey { .. } => "mint-key",
            Self::DeleteKey { .. } => "delete-key",
            Self::FreeKey { .. } => "free-key",
            Self::ReportApiKey { .. } => "report-api-key",
            Self::SetEndpoints(_) => "set-endpoints",
            Self::SubmitReport(_) => "submit-report",
            Self::SetBackendMetadata(_) => "set-backend-metadata",
            Self::VerifyKey { .. } => "verify-key",
            Self::ReplaceKey { .. } => "replace-key",
            Self::UpdateSecret { .. } => "update-secret",
            Self::DeleteSecret(_) => "delete-secret",
            Self::DeleteBrokenSecret(_) => "delete-broken-secret",
            Self::DeleteTeam(_) => "delete-team",
        }
    }
}

fn connection(resource: Uuid, draft: &SecretDraft, key: SecretString) -> Connection {
    Connection {
        slot: draft.alias.slot,
        resource,
        offering: draft.offering,
        project: draft.project,
        name: draft.name.clone(),
        alias: draft.alias.to_string(),
        number: draft.alias.number,
        state: SecretState::Pending,
        key,
        base_url: draft.base_url.clone(),
        models: draft.models.clone(),
        embedder: draft.embedder.clone(),
        order: draft.order,
        rotation: draft.rotation.clone(),
    }
}

/// A key of 256 random bits from the operating system: `sk-` and 64 hexadecimal digits.
fn new_key() -> Result<SecretString, Failure> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).map_err(|error| Failure::Transient {
        peer: Peer::Secrets,
        message: format!("the operating system gave no random bytes for a key: {error}"),
        retry_after: None,
        unreachable: false,
    })?;
    let mut text = String::with_capacity(3 + 64);
    text.push_str("sk-");
    for byte in bytes {
        text.push_str(&format!("{byte:02x}"));
    }
    Ok(text.into())
}
