//! The model names a team may use, and what the gateway serves.

use std::collections::BTreeSet;

use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::client::{Call, Client};
use crate::number;

/// The name that stands for no model at all. An empty list would mean every model (measured).
const NONE: &str = "no-default-models";

/// Names with a meaning of their own: never the name of a model.
pub(crate) const MAGIC: [&str; 4] = ["*", "all-team-models", "all-proxy-models", NONE];

/// The models of a team as they are sent: never an empty list, which the gateway takes for all models.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Models(Vec<String>);

impl Models {
    /// The named models, sorted, each once. Empty and magic names are left out; when none remains the team may use nothing.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        let names: BTreeSet<String> = names
            .into_iter()
            .filter(|name| !name.trim().is_empty() && !MAGIC.contains(&name.as_str()))
            .collect();
        if names.is_empty() {
            Self::none()
        } else {
            Self(names.into_iter().collect())
        }
    }

    /// No model.
    #[must_use]
    pub fn none() -> Self {
        Self(vec![NONE.to_owned()])
    }

    /// The list as it is sent; never empty.
    #[must_use]
    pub fn as_slice(&self) -> &[String] {
        &self.0
    }

    /// Whether this allows no model.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0 == [NONE]
    }

    /// Whether a list read from the gateway means exactly these models, in whatever order. An empty list means all models
    /// there and is never the same as anything here.
    #[must_use]
    pub fn same_as(&self, read: &[String]) -> bool {
        let read: BTreeSet<&str> = read.iter().map(String::as_str).collect();
        let own: BTreeSet<&str> = self.0.iter().map(String::as_str).collect();
        read == own
    }
}

/// One deployment behind a public model name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    /// The public name; several deployments can share one.
    pub model_name: String,
    /// The model asked for upstream (`litellm_params.model`). Two public names with one upstream share their daily usage rows.
    pub upstream_model: Option<String>,
    /// The deployment's id.
    pub id: Option<String>,
    /// The resolved price of one input token; `None` when it has no price, then its calls are counted and cost nothing.
    pub input_cost_per_token: Option<Decimal>,
    /// The resolved price of one output token.
    pub output_cost_per_token: Option<Decimal>,
    /// `chat`, `embedding` and so on, when it is known.
    pub mode: Option<String>,
}

#[derive(Deserialize)]
struct Listing {
    data: Vec<Deployment>,
}

#[derive(Deserialize)]
struct Deployment {
    model_name: String,
    litellm_params: Option<Params>,
    model_info: Option<Info>,
}

#[derive(Deserialize)]
struct Params {
    model: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Info {
    id: Option<String>,
    #[serde(deserialize_with = "number::optional_decimal")]
    input_cost_per_token: Option<Decimal>,
    #[serde(deserialize_with = "number::optional_decimal")]
    output_cost_per_token: Option<Decimal>,
    mode: Option<String>,
}

impl From<Deployment> for ModelInfo {
    fn from(deployment: Deployment) -> Self {
        let info = deployment.model_info.unwrap_or_default();
        Self {
            model_name: deployment.model_name,
            upstream_model: deployment.litellm_params.and_then(|params| params.model),
            id: info.id,
            input_cost_per_token: info.input_cost_per_token,
            output_cost_per_token: info.output_cost_per_token,
            mode: info.mode,
        }
    }
}

impl Client {
    /// All deployments of the gateway, from its database and configuration (`GET /model/info`).
    ///
    /// # Errors
    /// With the database down this fails, unlike `/v1/models`, which keeps answering from memory.
    pub async fn model_info(&self) -> Result<Vec<ModelInfo>> {
        let answer = self.call(Call::get("/model/info")).await?;
        let listing: Listing = answer.decode()?;
        Ok(listing.data.into_iter().map(ModelInfo::from).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn models(names: &[&str]) -> Models {
        Models::new(names.iter().map(|name| (*name).to_owned()))
    }

    #[test]
    fn a_list_is_sorted_unique_and_never_empty() {
        assert_eq!(models(&["b", "a", "b"]).as_slice(), ["a", "b"]);
        for nothing in [
            &[][..],
            &[""],
            &["*"],
            &["all-proxy-models", "all-team-models", "no-default-models"],
        ] {
            let list = models(nothing);
            assert!(list.is_none(), "{nothing:?}");
            assert_eq!(list.as_slice(), ["no-default-models"], "{nothing:?}");
        }
        assert_eq!(models(&["*", "a"]).as_slice(), ["a"]);
        assert!(!models(&["a"]).is_none());
    }

    #[test]
    fn order_does_not_matter_but_empty_is_everything() {
        let read = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        assert!(models(&["a", "b"]).same_as(&read(&["b", "a", "b"])));
        assert!(!models(&["a", "b"]).same_as(&read(&["a"])));
        assert!(!Models::none().same_as(&[]));
        assert!(Models::none().same_as(&read(&["no-default-models"])));
    }

    use crate::decode::mangle;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn strange_models_are_read_without_a_panic(place in 0_usize..10_000, with in 0_usize..8) {
            let _ = mangle::read::<Listing>("model-info-phi", place, with);
        }
    }
}
