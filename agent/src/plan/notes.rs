//! Our notes on an offering, kept in its `backend_metadata.llm_access`: which components and options are ours, which models
//! have gone, and which catalogue an operator accepted. Foreign entries beside and inside them are kept.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use rust_decimal::Decimal;
use serde_json::{Map, Value};
use waldur_client::Offering;

use crate::catalogue::Remembered;

/// The key of our notes in `backend_metadata`.
pub(crate) const KEY: &str = "llm_access";

/// The choice that stands for every orderable model.
pub(crate) const ALL: &str = "all";

/// The option that customers choose models in.
pub(crate) const OPTION: &str = "models";

/// What is noted about one component of ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// The served name of the model whose usage it counts; none for the others.
    pub model: Option<String>,
    /// Since when the model counts as gone.
    pub gone: Option<Timestamp>,
    /// When its removal was last refused.
    pub refused: Option<Timestamp>,
    /// Why it was refused.
    pub reason: String,
    /// An operator asked for its removal by hand, whatever the catalogue says.
    pub by_hand: bool,
}

impl Note {
    /// The note on a component that counts for `model`.
    #[must_use]
    pub fn of(model: Option<&str>) -> Self {
        Self { model: model.map(str::to_owned), ..Self::default() }
    }
}

/// All our notes on one offering.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Whose they are; none where nobody wrote any.
    pub owner: Option<String>,
    /// Our components, by type.
    pub components: BTreeMap<String, Note>,
    /// The catalogue that an operator let through, by its SHA-256.
    pub accepted: Option<String>,
    /// The catalogue's monthly budget.
    pub max_budget: Option<Decimal>,
    /// Models that have gone and that no component says so of; some team may still have them after a crash.
    pub gone: BTreeSet<String>,
}

impl Notes {
    /// Reads the notes; what cannot be read counts as absent.
    #[must_use]
    pub fn read(offering: &Offering) -> Self {
        let Some(Value::Object(ours)) = offering.backend_metadata.get(KEY) else { return Self::default() };
        let text = |map: &Map<String, Value>, key: &str| map.get(key).and_then(Value::as_str).map(str::to_owned);
        let at = |map: &Map<String, Value>, key: &str| map.get(key).and_then(Value::as_str).and_then(|text| text.parse().ok());
        let components = ours.get("components").and_then(Value::as_object).into_iter().flatten();
        let components = components.filter_map(|(kind, note)| {
            let note = note.as_object()?;
            let note = Note {
                model: text(note, "model"),
                gone: at(note, "gone"),
                refused: at(note, "refused"),
                reason: text(note, "reason").unwrap_or_default(),
                by_hand: note.get("by_hand").and_then(Value::as_bool).unwrap_or(false),
            };
            Some((kind.clone(), note))
        });
        Self {
            owner: text(ours, "owner"),
            components: components.collect(),
            accepted: text(ours, "accepted_catalogue"),
            max_budget: text(ours, "max_budget").and_then(|text| text.parse().ok()),
            gone: ours.get("gone").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect(),
        }
    }

    /// The whole `backend_metadata` of `offering` with these notes in it.
    #[must_use]
    pub fn merged_into(&self, offering: &Offering) -> Map<String, Value> {
        let mut metadata = offering.backend_metadata.clone();
        let mut ours = match metadata.remove(KEY) {
            Some(Value::Object(ours)) => ours,
            _ => Map::new(),
        };
        let mut set = |key: &str, value: Option<Value>| match value {
            Some(value) => drop(ours.insert(key.into(), value)),
            None => drop(ours.remove(key)),
        };
        set("owner", self.owner.clone().map(Value::String));
        set("accepted_catalogue", self.accepted.clone().map(Value::String));
        set("max_budget", self.max_budget.map(|budget| Value::String(budget.normalize().to_string())));
        let gone = self.gone.iter().cloned().map(Value::String).collect();
        set("gone", Some(Value::Array(gone)).filter(|_| !self.gone.is_empty()));
        // What a later version notes on a component stays as well.
        let held = ours.get("components").cloned().unwrap_or_default();
        let components = self.components.iter().map(|(kind, note)| {
            let held = held.get(kind).and_then(Value::as_object).cloned().unwrap_or_default();
            (kind.clone(), Value::Object(note_json(note, held)))
        });
        let components = components.collect();
        ours.insert("components".into(), Value::Object(components));
        metadata.insert(KEY.into(), Value::Object(ours));
        metadata
    }
}

/// A note over what was held there before.
fn note_json(note: &Note, mut held: Map<String, Value>) -> Map<String, Value> {
    let mut set = |key: &str, value: Option<Value>| match value {
        Some(value) => drop(held.insert(key.into(), value)),
        None => drop(held.remove(key)),
    };
    set("model", note.model.clone().map(Value::String));
    set("gone", note.gone.map(|at| Value::String(at.to_string())));
    set("refused", note.refused.map(|at| Value::String(at.to_string())));
    set("reason", Some(note.reason.clone()).filter(|reason| !reason.is_empty()).map(Value::String));
    set("by_hand", note.by_hand.then_some(Value::Bool(true)));
    held
}

/// What an offering knows about models, from our notes and its choices.
#[must_use]
pub fn remembered(offering: &Offering) -> Remembered {
    let notes = Notes::read(offering);
    let with = |gone: bool| {
        let notes = notes.components.values().filter(move |note| note.gone.is_some() == gone);
        notes.filter_map(|note| note.model.clone()).collect::<BTreeSet<String>>()
    };
    let choices: BTreeSet<String> = [&offering.options, &offering.resource_options].into_iter().flat_map(choices).collect();
    let mut models = with(false);
    models.extend(choices.iter().cloned());
    let mut gone = with(true);
    gone.extend(notes.gone.iter().cloned());
    gone.retain(|name| !models.contains(name));
    Remembered { models, choices, gone, accepted: notes.accepted.into_iter().collect(), max_budget: notes.max_budget }
}

/// The models among the choices of our option in a form.
fn choices(form: &Value) -> Vec<String> {
    let listed = form.pointer("/options/models/choices").and_then(Value::as_array);
    listed.into_iter().flatten().filter_map(Value::as_str).filter(|name| *name != ALL).map(str::to_owned).collect()
}
