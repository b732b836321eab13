//! The model names a team may use, what the gateway serves, and deployments written through its API.

use std::collections::BTreeSet;

use rust_decimal::Decimal;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::Result;
use crate::client::{Call, Client, invalid};
use crate::number;
use crate::teams::Change;

const NEW: &str = "/model/new";
const UPDATE: &str = "/model/{id}/update";
const DELETE: &str = "/model/delete";

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
        let names: BTreeSet<String> = names.into_iter().filter(|name| !name.trim().is_empty() && !MAGIC.contains(&name.as_str())).collect();
        if names.is_empty() { Self::none() } else { Self(names.into_iter().collect()) }
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
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModelInfo {
    /// The public name; several deployments can share one.
    pub model_name: String,
    /// The model asked for upstream (`litellm_params.model`). Two public names with one upstream share their daily usage rows.
    pub upstream_model: Option<String>,
    /// Where it is served (`litellm_params.api_base`).
    pub api_base: Option<String>,
    /// The deployment's id.
    pub id: Option<String>,
    /// Whether it was written through the API; one of the configuration file cannot be edited or deleted.
    pub db_model: bool,
    /// The resolved price of one input token; `None` when it has no price, then its calls are counted and cost nothing. A
    /// deployment without a price is also shown with 0 (measured: after it had one, or beside an output price).
    pub input_cost_per_token: Option<Decimal>,
    /// The resolved price of one output token.
    pub output_cost_per_token: Option<Decimal>,
    /// The price of one input token that was given to this deployment itself (`litellm_params`), and not taken from
    /// LiteLLM's own price list of well-known models.
    pub own_input_cost: Option<Decimal>,
    /// The price of one output token that was given to this deployment itself.
    pub own_output_cost: Option<Decimal>,
    /// `chat`, `embedding` and so on, when it is known.
    pub mode: Option<String>,
    /// What [`NewDeployment::key_mark`] was when it was made.
    pub key_mark: Option<String>,
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

#[derive(Deserialize, Default)]
#[serde(default)]
struct Params {
    model: Option<String>,
    api_base: Option<String>,
    #[serde(deserialize_with = "number::optional_decimal")]
    input_cost_per_token: Option<Decimal>,
    #[serde(deserialize_with = "number::optional_decimal")]
    output_cost_per_token: Option<Decimal>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Info {
    id: Option<String>,
    db_model: Option<bool>,
    #[serde(deserialize_with = "number::optional_decimal")]
    input_cost_per_token: Option<Decimal>,
    #[serde(deserialize_with = "number::optional_decimal")]
    output_cost_per_token: Option<Decimal>,
    mode: Option<String>,
    llm_access_key: Option<String>,
}

impl From<Deployment> for ModelInfo {
    fn from(deployment: Deployment) -> Self {
        let info = deployment.model_info.unwrap_or_default();
        let params = deployment.litellm_params.unwrap_or_default();
        Self {
            model_name: deployment.model_name,
            upstream_model: params.model,
            api_base: params.api_base,
            id: info.id,
            db_model: info.db_model.unwrap_or(false),
            input_cost_per_token: info.input_cost_per_token,
            output_cost_per_token: info.output_cost_per_token,
            own_input_cost: params.input_cost_per_token,
            own_output_cost: params.output_cost_per_token,
            mode: info.mode,
            key_mark: info.llm_access_key,
        }
    }
}

/// A deployment to write into the gateway's database.
#[derive(Debug, Clone)]
pub struct NewDeployment {
    /// The id; must not be blank, since the gateway would then make one up and serve a second deployment of the same name.
    pub id: String,
    /// The public name.
    pub model_name: String,
    /// `litellm_params.model`, such as `openai/kestrel-8b`.
    pub upstream_model: String,
    /// Where it is served, with `/v1`.
    pub api_base: String,
    /// What the server is shown. Never left out: the proxy would send its own `OPENAI_API_KEY` there.
    pub api_key: SecretString,
    /// Per input token; `None` sends no cost field. It goes into `litellm_params`: a price in `model_info` is dropped for
    /// what is made through the API (measured).
    pub input_cost_per_token: Option<Decimal>,
    /// Per output token.
    pub output_cost_per_token: Option<Decimal>,
    /// `model_info.mode`, which tells the gateway what an embedding is.
    pub mode: Option<String>,
    /// Tells one `api_key` from another without telling it: the gateway never shows the key. Kept in `model_info`, which
    /// customers' keys can read.
    pub key_mark: String,
}

/// What changes of a deployment; what is not set stays as it is.
#[derive(Debug, Clone, Default)]
pub struct DeploymentPatch {
    /// The public name.
    pub model_name: Option<String>,
    /// `litellm_params.model`.
    pub upstream_model: Option<String>,
    /// Where it is served.
    pub api_base: Option<String>,
    /// What the server is shown, with its mark.
    pub api_key: Option<(SecretString, String)>,
    /// Per input token.
    pub input_cost_per_token: Change<Decimal>,
    /// Per output token.
    pub output_cost_per_token: Change<Decimal>,
    /// `model_info.mode`; it can be changed but not taken away (measured).
    pub mode: Option<String>,
}

#[derive(Serialize)]
struct DeploymentBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    model_name: Option<&'a str>,
    litellm_params: ParamsBody<'a>,
    model_info: InfoBody<'a>,
}

#[derive(Serialize)]
struct ParamsBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    api_base: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    api_key: Option<&'a str>,
    /// A null takes the price away (measured).
    #[serde(skip_serializing_if = "Option::is_none")]
    input_cost_per_token: Option<Option<Box<RawValue>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_cost_per_token: Option<Option<Box<RawValue>>>,
}

#[derive(Serialize)]
struct InfoBody<'a> {
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    llm_access_key: Option<&'a str>,
}

impl Change<Decimal> {
    /// The field of a request; `None` leaves it out.
    fn price(self, method: &'static str, path: &str) -> Result<Option<Option<Box<RawValue>>>> {
        match self {
            Self::Keep => Ok(None),
            Self::Clear => Ok(Some(None)),
            Self::Set(price) => {
                number::json_number(price).map(|number| Some(Some(number))).map_err(|fault| invalid(method, path, &fault.to_string()))
            }
        }
    }
}

/// Whether an id can stand in a path as it is.
fn is_plain(id: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    !id.is_empty() && !id.starts_with('.') && id.bytes().all(plain)
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

    /// Makes a deployment (`POST /model/new`).
    ///
    /// # Errors
    /// An id that is taken is refused with a 500 whose words are the same as for other faults of the database: read back.
    /// Blank ids are refused here.
    pub async fn create_deployment(&self, new: &NewDeployment) -> Result<()> {
        if new.id.trim().is_empty() || new.model_name.trim().is_empty() {
            return Err(invalid("POST", NEW, "a deployment needs an id and a public name"));
        }
        let set = |price: Option<Decimal>| price.map_or(Change::Keep, Change::Set);
        let body = DeploymentBody {
            model_name: Some(&new.model_name),
            litellm_params: ParamsBody {
                model: Some(&new.upstream_model),
                api_base: Some(&new.api_base),
                api_key: Some(new.api_key.expose_secret()),
                input_cost_per_token: set(new.input_cost_per_token).price("POST", NEW)?,
                output_cost_per_token: set(new.output_cost_per_token).price("POST", NEW)?,
            },
            model_info: InfoBody { id: &new.id, mode: new.mode.as_deref(), llm_access_key: Some(&new.key_mark) },
        };
        self.call(Call::post(NEW, &body)?.secret(Some(&new.api_key))).await.map(drop)
    }

    /// Changes a deployment (`PATCH /model/{id}/update`; the POST of the same purpose ignores nulls and `model_info`).
    ///
    /// # Errors
    /// One of the configuration file is refused, one that is not there is not found; whether it is really gone
    /// [`Client::model_info`] tells. Ids that would need escaping are refused here.
    pub async fn update_deployment(&self, id: &str, patch: &DeploymentPatch) -> Result<()> {
        if !is_plain(id) {
            return Err(invalid("PATCH", UPDATE, "the id of a deployment is made of letters, digits, -, _ and dots"));
        }
        let key = patch.api_key.as_ref();
        let body = DeploymentBody {
            model_name: patch.model_name.as_deref(),
            litellm_params: ParamsBody {
                model: patch.upstream_model.as_deref(),
                api_base: patch.api_base.as_deref(),
                api_key: key.map(|(key, _)| key.expose_secret()),
                input_cost_per_token: patch.input_cost_per_token.price("PATCH", UPDATE)?,
                output_cost_per_token: patch.output_cost_per_token.price("PATCH", UPDATE)?,
            },
            // Without the id the gateway would write one of its own making into the row (measured).
            model_info: InfoBody { id, mode: patch.mode.as_deref(), llm_access_key: key.map(|(_, mark)| mark.as_str()) },
        };
        self.call(Call::patch(UPDATE, id, &body)?.secret(key.map(|(key, _)| key))).await.map(drop)
    }

    /// Deletes a deployment (`POST /model/delete`).
    ///
    /// # Errors
    /// One that is not in the database, because it is gone or of the configuration file, is refused.
    pub async fn delete_deployment(&self, id: &str) -> Result<()> {
        #[derive(Serialize)]
        struct Body<'a> {
            id: &'a str,
        }
        if id.trim().is_empty() {
            return Err(invalid("POST", DELETE, "a deployment has an id"));
        }
        self.call(Call::post(DELETE, &Body { id })?).await.map(drop)
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
        for nothing in [&[][..], &[""], &["*"], &["all-proxy-models", "all-team-models", "no-default-models"]] {
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
