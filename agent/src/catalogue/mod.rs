//! The model catalogue: which models are served, which may be ordered, and what they cost.
//!
//! One file in one of two shapes, told apart by its top-level key: `inference_models:` of an Ansible inventory, or the
//! `inference:` block of an environment policy. Both become the same [`Catalogue`]. Fields that are not ours belong to other
//! readers and may be anything; ours are strict, and every problem is reported at once with its line and column.

mod entry;
mod watch;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rust_decimal::Decimal;
use sha2::{Digest as _, Sha256};

use crate::config::yaml::{self, Entry, Kind, Node, Pos};
use crate::config::{Problem, TokenUnit, nearest, number, sort, write_all};
use entry::Item;

pub use watch::{Remembered, Shrink, View, Watch};

/// The largest catalogue, in bytes (16 MiB).
const MAX_FILE_BYTES: usize = 16 * 1024 * 1024;

/// Names that LiteLLM gives a meaning of their own, and the reserved choice of the order form.
pub const RESERVED_NAMES: [&str; 5] = ["*", "all-team-models", "all-proxy-models", "no-default-models", "all"];

/// What a catalogue says, checked. It lists at least one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalogue {
    /// The enabled models, in the order of the file; every `served_name` once.
    pub models: Vec<Model>,
    /// Served names of entries that are switched off with `enabled: false` and not served by another entry: meant to be
    /// gone, where a missing entry may be an accident.
    pub disabled: Vec<String>,
    /// The environment's monthly budget in its currency (`inference.budget.max_budget_eur`), the default of an order.
    pub max_budget: Option<Decimal>,
    /// SHA-256 of the file's content, in hexadecimal digits.
    pub digest: String,
}

/// One enabled model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// The public name: what the gateway, orders and customers call it. Kept as written.
    pub served_name: String,
    /// The name inside the platform; the Service of a served model is `<name>-openai`.
    pub name: String,
    /// Whether a project may order it.
    pub orderable: bool,
    /// Whether it turns text into vectors and generates nothing.
    pub embedding: bool,
    /// What serves it.
    pub runtime: Runtime,
    /// Prices per token; none means not priced yet, which is not the same as free.
    pub prices: Option<Prices>,
}

/// What serves a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// vLLM behind KServe.
    Vllm,
    /// Text embeddings inference.
    Tei,
    /// The one CPU server of a small environment.
    Cpu,
}

/// Prices per token, in the environment's currency, exactly as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prices {
    /// Per input token.
    pub input: Decimal,
    /// Per output token; only an embedding has none.
    pub output: Option<Decimal>,
}

impl Catalogue {
    /// The model with a served name.
    pub fn model(&self, served_name: &str) -> Option<&Model> {
        self.models.iter().find(|model| model.served_name == served_name)
    }
}

/// Everything that is wrong with a catalogue, one problem per line when shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogueErrors {
    /// The problems, in the order of the file.
    pub problems: Vec<Problem>,
}

impl fmt::Display for CatalogueErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_all(&self.problems, f)
    }
}

impl std::error::Error for CatalogueErrors {}

/// Reads and checks the catalogue at `path`.
///
/// # Errors
/// When the file cannot be read, and as [`parse`].
pub fn read(path: &Path) -> Result<Catalogue, CatalogueErrors> {
    read_for(path, None)
}

/// Like [`read`]; also refuses prices that Waldur cannot hold per `unit`.
///
/// # Errors
/// As [`read`].
pub fn read_for(path: &Path, unit: Option<TokenUnit>) -> Result<Catalogue, CatalogueErrors> {
    parse_for(&read_text(path)?, &path.display().to_string(), unit)
}

/// Reads the catalogue at `path` like [`read_for`], but parses only a text other than that of `last`.
///
/// # Errors
/// As [`read`].
pub fn read_again(path: &Path, unit: Option<TokenUnit>, last: Option<&Arc<Catalogue>>) -> Result<Arc<Catalogue>, CatalogueErrors> {
    let text = read_text(path)?;
    match last {
        Some(last) if last.digest == digest(&text) => Ok(Arc::clone(last)),
        _ => parse_for(&text, &path.display().to_string(), unit).map(Arc::new),
    }
}

fn read_text(path: &Path) -> Result<String, CatalogueErrors> {
    let file = path.display().to_string();
    let one = |message: String| CatalogueErrors { problems: vec![Problem::of(file.clone(), "", message)] };
    let bytes = std::fs::read(path).map_err(|error| one(format!("cannot be read: {error}; check that the catalogue is mounted there")))?;
    if bytes.len() > MAX_FILE_BYTES {
        return Err(one("is larger than 16 MiB, which is no catalogue; check the path".to_owned()));
    }
    String::from_utf8(bytes).map_err(|_| one("is not UTF-8 text; save the file as UTF-8".to_owned()))
}

fn digest(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes()))
}

/// Checks the text of a catalogue; `file` is its name in messages.
///
/// # Errors
/// With every problem: the text is not YAML, has neither shape or both, or lists no enabled model; or an entry breaks a rule.
pub fn parse(text: &str, file: &str) -> Result<Catalogue, CatalogueErrors> {
    parse_for(text, file, None)
}

/// Like [`parse`]; also refuses prices that Waldur cannot hold per `unit`.
///
/// # Errors
/// As [`parse`].
pub fn parse_for(text: &str, file: &str, unit: Option<TokenUnit>) -> Result<Catalogue, CatalogueErrors> {
    let mut checker = Checker { file, unit, problems: Vec::new() };
    let catalogue = checker.catalogue(text);
    let mut problems = checker.problems;
    sort(&mut problems);
    match catalogue {
        Some(catalogue) if problems.is_empty() => Ok(catalogue),
        _ => Err(CatalogueErrors { problems }),
    }
}

/// The two shapes of the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Inventory,
    Policy,
}

/// Collects problems while the tree is walked.
struct Checker<'a> {
    file: &'a str,
    unit: Option<TokenUnit>,
    problems: Vec<Problem>,
}

impl Checker<'_> {
    fn problem(&mut self, pos: Pos, field: &str, message: impl Into<String>) {
        self.problems.push(Problem::at(self.file, pos, field, message));
    }

    fn whole_file(&mut self, message: &str) {
        self.problems.push(Problem::of(self.file, "", message));
    }

    /// The value of a key of ours, which may be there once. Nothing and `~` count as absent.
    fn get<'n>(&mut self, entries: &'n [Entry], path: &str, key: &str) -> Option<&'n Node> {
        let mut found = entries.iter().filter(|entry| entry.key.as_deref() == Some(key));
        let first = found.next()?;
        for again in found {
            let line = first.key_pos.line;
            self.problem(again.key_pos, &join(path, key), format!("is written twice; the first is on line {line}; keep one"));
        }
        Some(&first.value).filter(|node| !node.is_blank())
    }

    fn catalogue(&mut self, text: &str) -> Option<Catalogue> {
        let root = match yaml::parse(text) {
            Ok(Some(root)) if !root.is_null() => root,
            Ok(_) => {
                self.whole_file("is empty; an empty catalogue changes nothing, so list the models");
                return None;
            }
            Err(error) => {
                let line = text.lines().nth(error.pos.line.saturating_sub(1));
                let message = if line.is_some_and(is_template) || text.contains("{%") {
                    format!("{}; there is {TEMPLATE}", error.message)
                } else {
                    error.message
                };
                self.problem(error.pos, "", message);
                return None;
            }
        };
        let Kind::Map(top) = &root.kind else {
            let message = format!("has to start with inference_models: or inference:, and is {}", root.kind_name());
            self.problem(root.pos, "", message);
            return None;
        };
        let inventory = self.get(top, "", "inference_models");
        let policy = self.get(top, "", "inference");
        let (shape, path, list, max_budget) = match (inventory, policy) {
            (Some(list), None) => (Shape::Inventory, "inference_models".to_owned(), list, None),
            (None, Some(block)) => {
                let Kind::Map(block_entries) = &block.kind else {
                    let message = format!("has to be a mapping, and is {}", block.kind_name());
                    self.problem(block.pos, "inference", message);
                    return None;
                };
                let max_budget = self.max_budget(block_entries);
                let Some(list) = self.get(block_entries, "inference", "models") else {
                    self.problem(block.pos, "inference.models", "is missing; list the models there");
                    return None;
                };
                (Shape::Policy, "inference.models".to_owned(), list, max_budget)
            }
            (Some(_), Some(second)) => {
                self.problem(second.pos, "inference", "and inference_models are both there; keep one of them");
                return None;
            }
            (None, None) => {
                self.unknown_shape(&root, top);
                return None;
            }
        };
        let Kind::List(items) = &list.kind else {
            let message = if is_template_node(list) {
                format!("has to be a list of models, and is {TEMPLATE}")
            } else {
                format!("has to be a list of models, and is {}", list.kind_name())
            };
            self.problem(list.pos, &path, message);
            return None;
        };
        let (models, disabled) = self.models(items, shape, &path);
        if models.is_empty() && self.problems.is_empty() {
            self.problem(
                list.pos,
                &path,
                "lists no enabled model; an empty catalogue changes nothing, so list the models or stop the agent",
            );
        }
        Some(Catalogue { models, disabled, max_budget, digest: digest(text) })
    }

    fn unknown_shape(&mut self, root: &Node, top: &[Entry]) {
        for entry in top {
            if let Some(key) = entry.key.as_deref()
                && let Some(near) = nearest(key, ["inference_models", "inference"])
            {
                // A key that is there and empty is named as it is.
                let message = if key == near {
                    "holds nothing; list the models there".to_owned()
                } else {
                    format!("is no catalogue; did you mean {near}?")
                };
                self.problem(entry.key_pos, &key.escape_debug().to_string(), message);
                return;
            }
        }
        self.problem(
            root.pos,
            "",
            "is no catalogue: it has neither inference_models: (inventory) nor inference: (environment policy) at its top",
        );
    }

    fn max_budget(&mut self, inference: &[Entry]) -> Option<Decimal> {
        let budget = self.get(inference, "inference", "budget")?;
        let Kind::Map(entries) = &budget.kind else {
            let message = format!("has to be a mapping, and is {}", budget.kind_name());
            self.problem(budget.pos, "inference.budget", message);
            return None;
        };
        const PATH: &str = "inference.budget.max_budget_eur";
        let node = self.get(entries, "inference.budget", "max_budget_eur")?;
        self.amount(node, PATH)
    }

    /// An exact decimal, 0 or more.
    fn amount(&mut self, node: &Node, path: &str) -> Option<Decimal> {
        let text = self.scalar(node, path)?;
        match number::decimal(text) {
            // The exact reader gives -0 as 0, so the sign is looked for in the text.
            Ok(_) if text.starts_with('-') => {
                self.problem(node.pos, path, "is negative; write 0 or more");
            }
            Ok(value) => return Some(value),
            Err(wrong) => self.problem(node.pos, path, format!("{wrong}, in plain digits or as 2.1e-07")),
        }
        None
    }

    /// The text of a single value.
    fn scalar<'n>(&mut self, node: &'n Node, path: &str) -> Option<&'n str> {
        match &node.kind {
            _ if is_template_node(node) => {
                self.problem(node.pos, path, format!("holds {TEMPLATE}"));
                None
            }
            Kind::Scalar { text, .. } => Some(text),
            _ => {
                self.problem(node.pos, path, format!("has to be a single value, and is {}", node.kind_name()));
                None
            }
        }
    }

    fn models(&mut self, items: &[Node], shape: Shape, path: &str) -> (Vec<Model>, Vec<String>) {
        let mut models: Vec<Model> = Vec::new();
        let mut disabled: Vec<String> = Vec::new();
        let mut lines: BTreeMap<String, usize> = BTreeMap::new();
        let mut cpu: Option<usize> = None;
        for (index, node) in items.iter().enumerate() {
            match self.item(node, shape, &format!("{path}[{index}]")) {
                Some(Item::Enabled { model, served_pos }) => {
                    let path = format!("{path}[{index}]");
                    if let Some(line) = lines.insert(model.served_name.clone(), served_pos.line) {
                        let message = format!("is the name of the model on line {line} too; every model has its own");
                        self.problem(served_pos, &join(&path, "served_name"), message);
                        continue;
                    }
                    if model.runtime == Runtime::Cpu {
                        if let Some(line) = cpu {
                            let message = format!("is cpu, as is the model on line {line}; an environment has one CPU server at most");
                            self.problem(node.pos, &join(&path, "runtime"), message);
                        }
                        cpu.get_or_insert(node.pos.line);
                    }
                    models.push(model);
                }
                Some(Item::Disabled(Some(name))) if !disabled.contains(&name) => {
                    disabled.push(name);
                }
                Some(Item::Disabled(_)) | None => {}
            }
        }
        disabled.retain(|name| !lines.contains_key(name));
        (models, disabled)
    }
}

/// What a renderer should have replaced.
const TEMPLATE: &str = "a template that nobody filled in; render the catalogue first";

fn is_template(text: &str) -> bool {
    ["{{", "}}", "{%", "%}", "${"].iter().any(|mark| text.contains(mark))
}

/// Without quotes, `{{ name }}` is YAML for a mapping whose only key is a mapping.
fn is_template_node(node: &Node) -> bool {
    match &node.kind {
        Kind::Scalar { text, .. } => is_template(text),
        Kind::Map(entries) => entries.len() == 1 && entries.iter().all(|entry| entry.key.is_none()),
        Kind::List(_) => false,
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        for nibble in [byte >> 4, byte & 15] {
            out.push(char::from_digit(u32::from(nibble), 16).unwrap_or('0'));
        }
        out
    })
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod watch_tests;
