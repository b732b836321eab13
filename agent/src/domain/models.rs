//! Which models a resource may call: from what was ordered to the list of its team.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::visible::is_unseen;

/// What an order or a resource asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelRequest {
    /// Nothing was said.
    Missing,
    /// Every orderable model, now and later.
    All,
    /// These, by served name.
    Named(BTreeSet<String>),
}

/// Why a request cannot be served. The text is shown to the customer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelProblem(pub String);

impl ModelRequest {
    /// Reads the request from the places Waldur keeps it, the first that says anything: `models`, then
    /// `available_models` (the name in older offerings), each as one string or a list.
    #[must_use]
    pub fn read<'a>(places: impl IntoIterator<Item = &'a Map<String, Value>>) -> Self {
        for place in places {
            for name in ["models", "available_models"] {
                let names: BTreeSet<String> = match place.get(name) {
                    Some(Value::String(one)) => std::iter::once(one.clone()).collect(),
                    Some(Value::Array(many)) => many.iter().filter_map(|v| v.as_str().map(str::to_owned)).collect(),
                    _ => continue,
                };
                let names: BTreeSet<String> = names.into_iter().map(|n| n.trim().to_owned()).filter(|n| !n.is_empty()).collect();
                if names.contains("all") {
                    return Self::All;
                }
                if !names.is_empty() {
                    return Self::Named(names);
                }
            }
        }
        Self::Missing
    }

    /// Checks a fresh request: it must name at least one model, and only orderable ones.
    ///
    /// # Errors
    /// What a customer should change.
    pub fn check(&self, orderable: &BTreeSet<String>, always_included: &[String]) -> Result<(), ModelProblem> {
        match self {
            Self::Missing => Err(ModelProblem(format!("no model was chosen; available: {}", list(orderable)))),
            Self::All if orderable.is_empty() => Err(ModelProblem("no model can be ordered at the moment".into())),
            Self::All => Ok(()),
            Self::Named(names) => {
                let unknown: BTreeSet<String> =
                    names.iter().filter(|n| !orderable.contains(*n) && !always_included.contains(n)).cloned().collect();
                if unknown.is_empty() {
                    Ok(())
                } else {
                    Err(ModelProblem(format!("not available: {}; available: {}", list(&unknown), list(orderable))))
                }
            }
        }
    }
}

/// The list for the team: what was asked for and can be ordered, plus what every team gets.
///
/// A model that the team already has and was asked for stays even when the catalogue no longer lists it, until it
/// `is_gone`: a catalogue that lost a line must not take a working model away. `None` where nothing was asked for: then the
/// team keeps its list.
#[must_use]
pub fn resolve_models(
    request: &ModelRequest,
    orderable: &BTreeSet<String>,
    always_included: &[String],
    held: &[String],
    is_gone: &dyn Fn(&str) -> bool,
) -> Option<BTreeSet<String>> {
    let kept = |name: &str| held.iter().any(|h| h == name) && !is_gone(name);
    let mut models: BTreeSet<String> = match request {
        ModelRequest::Missing => return None,
        ModelRequest::All => orderable.iter().chain(held.iter().filter(|n| !is_magic(n) && kept(n))).cloned().collect(),
        ModelRequest::Named(names) => names.iter().filter(|n| orderable.contains(*n) || kept(n)).cloned().collect(),
    };
    models.extend(always_included.iter().filter(|name| !is_gone(name)).cloned());
    Some(models)
}

/// Names that LiteLLM gives a meaning of their own.
fn is_magic(name: &str) -> bool {
    matches!(name, "*" | "all-team-models" | "all-proxy-models" | "no-default-models")
}

/// At most twenty names, for a message.
fn list(names: &BTreeSet<String>) -> String {
    let shown: Vec<String> = names.iter().take(20).map(|name| name.chars().filter(|c| !is_unseen(*c)).take(80).collect()).collect();
    let more = names.len().saturating_sub(shown.len());
    let mut text = if shown.is_empty() { "none".to_owned() } else { shown.join(", ") };
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|n| (*n).to_owned()).collect()
    }
    fn read(options: &Value, attributes: &Value) -> ModelRequest {
        ModelRequest::read([options.as_object().unwrap(), attributes.as_object().unwrap()])
    }

    #[test]
    fn options_come_before_attributes_and_both_spellings_and_shapes_are_read() {
        assert_eq!(read(&json!({"models": "a"}), &json!({"models": ["b"]})), ModelRequest::Named(set(&["a"])));
        assert_eq!(read(&json!({}), &json!({"available_models": ["b", " c "]})), ModelRequest::Named(set(&["b", "c"])));
        assert_eq!(read(&json!({"models": ["all", "a"]}), &json!({})), ModelRequest::All);
        assert_eq!(read(&json!({"models": []}), &json!({"models": null, "other": 1})), ModelRequest::Missing);
    }

    #[test]
    fn a_model_the_team_has_outlives_a_catalogue_that_forgot_it() {
        let orderable = set(&["a"]);
        let wanted = ModelRequest::Named(set(&["a", "gone", "never"]));
        let models = resolve_models(&wanted, &orderable, &["embed".into()], &["gone".into()], &|_| false).unwrap();
        assert_eq!(models, set(&["a", "embed", "gone"]));
        let gone = |name: &str| name == "gone" || name == "embed";
        assert_eq!(resolve_models(&wanted, &orderable, &["embed".into()], &["gone".into()], &gone).unwrap(), set(&["a"]));
        assert_eq!(resolve_models(&ModelRequest::All, &orderable, &[], &["no-default-models".into()], &|_| false).unwrap(), set(&["a"]));
        assert_eq!(resolve_models(&ModelRequest::All, &orderable, &[], &["gone".into()], &|name| name == "gone").unwrap(), set(&["a"]));
        assert_eq!(resolve_models(&ModelRequest::Missing, &orderable, &["embed".into()], &[], &|_| false), None);
    }

    #[test]
    fn a_fresh_request_must_name_only_what_can_be_ordered() {
        let orderable = set(&["a", "b"]);
        assert!(ModelRequest::Named(set(&["a", "embed"])).check(&orderable, &["embed".into()]).is_ok());
        assert!(ModelRequest::Missing.check(&orderable, &[]).unwrap_err().0.contains("a, b"));
        assert!(ModelRequest::Named(set(&["x"])).check(&orderable, &[]).unwrap_err().0.contains("not available: x"));
    }
}
