//! Usage by API key, for Waldur servers that keep it (late 2026): shown to customers and used for limits per key, never
//! billed by itself.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;
use waldur_client::{ApiKey, ApiKeyFilter, Class, Usage};

use super::report::Seller;
use crate::agent::{Agent, Failure};
use crate::clock::after;
use crate::domain::BillingMonth;
use crate::features::Feature;
use crate::gate::Peer;
use crate::observe::push;
use crate::plan::{TeamUse, component_amounts};

/// Figures of a running month that Waldur refused are told again after so long, or when they change.
const REFUSED_FOR: Duration = Duration::from_secs(3600);

/// The keys that Waldur knows, by resource.
#[derive(Debug, Default)]
pub(crate) struct KnownKeys {
    of: HashMap<Option<Uuid>, Vec<(Uuid, String)>>,
}

impl KnownKeys {
    fn new(keys: Vec<ApiKey>) -> Self {
        let mut known = Self::default();
        for key in keys {
            push(known.of.entry(key.resource).or_default(), (key.uuid, key.client_id));
        }
        known
    }

    /// The uuids and client ids of the keys that are of this resource, or of which the server does not tell the resource.
    fn of(&self, resource: Uuid) -> impl Iterator<Item = &(Uuid, String)> {
        [Some(resource), None].into_iter().filter_map(|of| self.of.get(&of)).flatten()
    }
}

/// What became of the last report for an API key and month.
#[derive(Debug)]
pub(super) enum Told {
    /// Waldur took it.
    Taken(Vec<Usage>),
    /// Waldur refused it, then.
    Refused(Vec<Usage>, Timestamp),
    /// The month is over for this key.
    Closed,
}

impl Agent {
    /// The keys of all resources of an offering; `None` where usage by key is not told.
    pub(super) async fn keys_to_report(&self, seller: &Seller) -> Result<Option<KnownKeys>, Failure> {
        if !self.tells_usage_by_key(seller).await? {
            return Ok(None);
        }
        let keys = self.api_keys(ApiKeyFilter { offering: Some(seller.offering), resource: None }).await?;
        Ok(keys.map(KnownKeys::new))
    }

    async fn tells_usage_by_key(&self, seller: &Seller) -> Result<bool, Failure> {
        let possible = self.features.worth_trying(Feature::ApiKeys) && self.features.worth_trying(Feature::KeyUsage);
        Ok(possible && !self.is_governed(seller.offering).await?)
    }

    /// Reports what each key of a resource used in a month. `keys` are those Waldur knows, where they were read already.
    ///
    /// The server shows no figure to read back. Each call sets totals, so that a process that knows nothing sends them once
    /// more.
    pub(crate) async fn report_keys(
        &self,
        seller: &Seller,
        resource: Uuid,
        month: BillingMonth,
        used: &TeamUse,
        keys: Option<&KnownKeys>,
    ) -> Result<(), Failure> {
        if used.partial || used.keys.is_empty() || !self.tells_usage_by_key(seller).await? {
            return Ok(());
        }
        let read;
        let keys = match keys {
            Some(keys) => keys,
            None => {
                let keys = self.api_keys(ApiKeyFilter { resource: Some(resource), offering: None }).await?;
                read = KnownKeys::new(keys.unwrap_or_default());
                &read
            }
        };
        let mut refused: Vec<&str> = Vec::new();
        for (key, client_id) in keys.of(resource) {
            let Some(models) = used.keys.get(client_id) else { continue };
            // Whose calls they are is not known by key either.
            let untold: BTreeMap<_, _> = models
                .iter()
                .filter(|(model, _)| used.untold.contains_key(*model))
                .map(|(model, sum)| (model.clone(), sum.clone()))
                .collect();
            let amounts = component_amounts(models, &seller.usable, seller.token_unit, &untold, false);
            let usages: Vec<Usage> = amounts.by_kind.into_iter().map(|(kind, amount)| Usage { kind, amount }).collect();
            let at = (*key, month);
            let now = self.clock.now();
            let refused_before = match self.memory().usage.keys.get(&at) {
                Some(Told::Closed) => continue,
                Some(Told::Taken(sent)) if *sent == usages => continue,
                Some(Told::Refused(sent, when)) => *sent == usages && *when <= now && now < after(*when, REFUSED_FOR),
                _ => false,
            };
            if refused_before {
                refused.push(client_id.as_str());
                continue;
            }
            if usages.is_empty() {
                continue;
            }
            self.must_lead()?;
            match self.waldur.report_key_usage(*key, &usages, month.first_day()).await {
                Ok(()) => {
                    self.features.learn(Feature::KeyUsage, true);
                    self.memory().usage.keys.insert(at, Told::Taken(usages));
                }
                Err(error) if error.class() == Class::NoSuchRoute => {
                    self.features.learn(Feature::KeyUsage, false);
                    return Ok(());
                }
                Err(error) if matches!(error.class(), Class::Conflict | Class::Refused) => {
                    // A month that is over stays as it was reported last; the running one is tried again.
                    let over = month < BillingMonth::of(now);
                    tracing::info!(client_id, %month, over, "Waldur takes no usage of this key: {error}");
                    if !over {
                        refused.push(client_id.as_str());
                    }
                    self.memory().usage.keys.insert(at, if over { Told::Closed } else { Told::Refused(usages, now) });
                }
                Err(error) => return Err(error.into()),
            }
        }
        if refused.is_empty() {
            return Ok(());
        }
        Err(Failure::Refused { peer: Peer::Waldur, message: format!("Waldur refuses the usage of {}", refused.join(", ")) })
    }
}
