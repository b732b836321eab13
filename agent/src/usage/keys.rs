//! Usage by API key, for Waldur servers that keep it (late 2026): shown to customers and used for limits per key, never
//! billed by itself.

use std::collections::BTreeMap;
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
use crate::plan::{TeamUse, component_amounts};

/// Figures of a running month that Waldur refused are told again after so long, or when they change.
const REFUSED_FOR: Duration = Duration::from_secs(3600);

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
        keys: Option<&[ApiKey]>,
    ) -> Result<(), Failure> {
        let possible = self.features.worth_trying(Feature::ApiKeys) && self.features.worth_trying(Feature::KeyUsage);
        if !possible || used.partial || used.keys.is_empty() || self.is_governed(seller.offering).await? {
            return Ok(());
        }
        let read;
        let keys = match keys {
            Some(keys) => keys,
            None => {
                read = self.api_keys(ApiKeyFilter { resource: Some(resource), offering: None }).await?.unwrap_or_default();
                &read
            }
        };
        let mut refused: Vec<&str> = Vec::new();
        for key in keys.iter().filter(|key| key.resource.is_none_or(|of| of == resource)) {
            let Some(models) = used.keys.get(&key.client_id) else { continue };
            // Whose calls they are is not known by key either.
            let untold: BTreeMap<_, _> = models
                .iter()
                .filter(|(model, _)| used.untold.contains_key(*model))
                .map(|(model, sum)| (model.clone(), sum.clone()))
                .collect();
            let amounts = component_amounts(models, &seller.usable, seller.token_unit, &untold, false);
            let usages: Vec<Usage> = amounts.by_kind.into_iter().map(|(kind, amount)| Usage { kind, amount }).collect();
            let at = (key.uuid, month);
            let now = self.clock.now();
            let refused_before = match self.memory().usage.keys.get(&at) {
                Some(Told::Closed) => continue,
                Some(Told::Taken(sent)) if *sent == usages => continue,
                Some(Told::Refused(sent, when)) => *sent == usages && *when <= now && now < after(*when, REFUSED_FOR),
                _ => false,
            };
            if refused_before {
                refused.push(key.client_id.as_str());
                continue;
            }
            if usages.is_empty() {
                continue;
            }
            self.must_lead()?;
            match self.waldur.report_key_usage(key.uuid, &usages, month.first_day()).await {
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
                    tracing::info!(client_id = key.client_id, %month, over, "Waldur takes no usage of this key: {error}");
                    if !over {
                        refused.push(key.client_id.as_str());
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
