//! Usage by API key, for Waldur servers that keep it (late 2026): shown to customers and used for limits per key, never
//! billed by itself.

use std::collections::BTreeMap;

use uuid::Uuid;
use waldur_client::{ApiKey, ApiKeyFilter, Class, Usage};

use super::report::Seller;
use crate::agent::{Agent, Failure};
use crate::domain::BillingMonth;
use crate::features::Feature;
use crate::plan::{TeamUse, component_amounts};

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
            if usages.is_empty() || self.memory().usage.keys.get(&at).is_some_and(|sent| sent.is_empty() || *sent == usages) {
                continue;
            }
            self.must_lead()?;
            match self.waldur.report_key_usage(key.uuid, &usages, month.first_day()).await {
                Ok(()) => {
                    self.features.learn(Feature::KeyUsage, true);
                    self.memory().usage.keys.insert(at, usages);
                }
                Err(error) if error.class() == Class::NoSuchRoute => {
                    self.features.learn(Feature::KeyUsage, false);
                    return Ok(());
                }
                // The month is over for this key; it stays as it was reported last.
                Err(error) if matches!(error.class(), Class::Conflict | Class::Refused) => {
                    tracing::info!(client_id = key.client_id, %month, "Waldur takes no usage of this key for this month: {error}");
                    self.memory().usage.keys.insert(at, Vec::new());
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
