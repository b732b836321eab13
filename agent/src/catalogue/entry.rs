//! One entry of the catalogue and its rules.

use rust_decimal::Decimal;

use super::{Checker, Model, Prices, RESERVED_NAMES, Runtime, Shape, join};
use crate::config::yaml::{Entry, Kind, Node, Pos};
use crate::config::{TokenUnit, number};

/// Decimals of a price in Waldur.
const MOST_DECIMALS: u32 = 10;

/// What an entry turned out to be.
pub(super) enum Item {
    /// A model that is served.
    Enabled {
        /// The model.
        model: Model,
        /// Where its served name is written.
        served_pos: Pos,
    },
    /// `enabled: false`, with its served name if it has one. Nothing else of it is checked.
    Disabled(Option<String>),
}

impl Checker<'_> {
    /// `None` when a problem was recorded.
    pub(super) fn item(&mut self, node: &Node, shape: Shape, path: &str) -> Option<Item> {
        let Kind::Map(entries) = &node.kind else {
            self.problem(node.pos, path, format!("has to be a mapping, and is {}", node.kind_name()));
            return None;
        };
        if self.flag(entries, path, "enabled") == Some(false) {
            let name = self.get(entries, path, "served_name").and_then(|node| match &node.kind {
                Kind::Scalar { text, .. } => Some(text.clone()),
                Kind::List(_) | Kind::Map(_) => None,
            });
            return Some(Item::Disabled(name));
        }
        let before = self.problems.len();
        let served = self.named(entries, node.pos, path, "served_name");
        let name = self.named(entries, node.pos, path, "name");
        if let Some((served_name, pos)) = &served
            && RESERVED_NAMES.contains(&served_name.as_str())
        {
            let message = format!("is {served_name}, which has a meaning of its own in the gateway or on the order form; choose another");
            self.problem(*pos, &join(path, "served_name"), message);
        }
        let runtime = self.runtime(entries, path);
        let info = self.get(entries, path, "litellm_model_info");
        let info_path = join(path, "litellm_model_info");
        let info = match info.map(|node| (&node.kind, node)) {
            Some((Kind::Map(info), _)) => info.as_slice(),
            Some((_, node)) => {
                self.problem(node.pos, &info_path, format!("has to be a mapping, and is {}", node.kind_name()));
                &[]
            }
            None => &[],
        };
        let mode = self.get(info, &info_path, "mode").and_then(|node| self.scalar(node, &join(&info_path, "mode")));
        let embedding = runtime == Runtime::Tei || mode == Some("embedding");
        let orderable = self.orderable(entries, node.pos, shape, embedding, path);
        let prices = self.prices(info, &info_path, embedding);
        self.topology(entries, node.pos, path, runtime);
        if self.problems.len() > before {
            return None;
        }
        let (served_name, served_pos) = served?;
        let (name, _) = name?;
        Some(Item::Enabled { model: Model { served_name, name, orderable, embedding, runtime, prices }, served_pos })
    }

    /// A name: a text as written, so that `NO`, `1.10` and `null` stay what they are.
    fn named(&mut self, entries: &[Entry], at: Pos, path: &str, key: &str) -> Option<(String, Pos)> {
        let path_of_key = join(path, key);
        let Some(node) = self.get(entries, path, key) else {
            self.problem(at, &path_of_key, "is missing; every enabled model needs one");
            return None;
        };
        let text = self.scalar(node, &path_of_key)?;
        let wrong = if text.is_empty() {
            "is empty"
        } else if text.chars().any(|character| character.is_whitespace() || character.is_control()) {
            "holds a blank or control character; write it without"
        } else if text.contains([',', ';']) {
            "holds a comma or semicolon, which separate names in lists; write it without"
        } else if text.len() > 255 {
            "is longer than 255 bytes"
        } else {
            return Some((text.to_owned(), node.pos));
        };
        self.problem(node.pos, &path_of_key, wrong);
        None
    }

    fn flag(&mut self, entries: &[Entry], path: &str, key: &str) -> Option<bool> {
        let node = self.get(entries, path, key)?;
        let path = join(path, key);
        match self.scalar(node, &path)? {
            "true" | "True" | "TRUE" => Some(true),
            "false" | "False" | "FALSE" => Some(false),
            _ => {
                self.problem(node.pos, &path, "is neither true nor false");
                None
            }
        }
    }

    fn runtime(&mut self, entries: &[Entry], path: &str) -> Runtime {
        let Some(node) = self.get(entries, path, "runtime") else {
            return Runtime::Vllm;
        };
        let path = join(path, "runtime");
        match self.scalar(node, &path) {
            Some("vllm") => Runtime::Vllm,
            Some("tei") => Runtime::Tei,
            Some("cpu") => Runtime::Cpu,
            Some(_) => {
                self.problem(node.pos, &path, "is not one of vllm, tei, cpu");
                Runtime::Vllm
            }
            None => Runtime::Vllm,
        }
    }

    /// Stated on every served entry of a policy; in an inventory, what generates may be ordered unless it says otherwise.
    fn orderable(&mut self, entries: &[Entry], at: Pos, shape: Shape, embedding: bool, path: &str) -> bool {
        let written = self.get(entries, path, "orderable").map(|node| node.pos);
        let path_of_key = join(path, "orderable");
        match (self.flag(entries, path, "orderable"), written) {
            (Some(true), Some(pos)) if embedding => {
                self.problem(pos, &path_of_key, "is true for an embedding model; projects order models that generate");
                false
            }
            (Some(orderable), _) => orderable,
            (None, Some(_)) => false,
            (None, None) if shape == Shape::Policy => {
                self.problem(at, &path_of_key, "is missing; write true or false on every served model");
                false
            }
            (None, None) => !embedding,
        }
    }

    /// Both prices or none; an embedding prices its input alone.
    fn prices(&mut self, info: &[Entry], path: &str, embedding: bool) -> Option<Prices> {
        const INPUT: &str = "input_cost_per_token";
        const OUTPUT: &str = "output_cost_per_token";
        let mut price = |key: &str| {
            let node = self.get(info, path, key).filter(|node| !node.is_null())?;
            let path = join(path, key);
            let price = self.amount(node, &path);
            if let (Some(price), Some(unit)) = (price, self.unit) {
                self.fits(price, unit, node.pos, &path);
            }
            Some((price, node.pos))
        };
        let (input, output) = (price(INPUT), price(OUTPUT));
        match (input, output) {
            (None, None) => None,
            (Some((input, _)), None) if embedding => Some(Prices { input: input?, output: None }),
            (Some((input, _)), Some((output, _))) => Some(Prices { input: input?, output: Some(output?) }),
            (Some((_, pos)), None) => {
                let message = format!("stands alone; write {OUTPUT} too, or neither for a model that is not priced yet");
                self.problem(pos, &join(path, INPUT), message);
                None
            }
            (None, Some((_, pos))) => {
                let message = format!("stands alone; write {INPUT} too, or neither for a model that is not priced yet");
                self.problem(pos, &join(path, OUTPUT), message);
                None
            }
        }
    }

    /// Waldur keeps ten decimals of a price per unit.
    fn fits(&mut self, price: Decimal, unit: TokenUnit, pos: Pos, path: &str) {
        let per_unit = price.checked_mul(Decimal::from(unit.tokens())).map(|price| price.normalize());
        if per_unit.is_none_or(|price| price.scale() > MOST_DECIMALS) {
            let shown = per_unit.map_or_else(|| "too large".to_owned(), |price| price.to_string());
            let message =
                format!("{price} is {shown} per {} tokens, and Waldur keeps {MOST_DECIMALS} decimals; round the price", unit.label());
            self.problem(pos, path, message);
        }
    }

    fn count(&mut self, entries: &[Entry], path: &str, key: &str) -> Result<Option<(u32, Pos)>, ()> {
        let Some(node) = self.get(entries, path, key) else {
            return Ok(None);
        };
        let path = join(path, key);
        let text = self.scalar(node, &path).ok_or(())?;
        match number::whole(text) {
            Ok(count) => Ok(Some((count, node.pos))),
            Err(wrong) => {
                self.problem(node.pos, &path, wrong);
                Err(())
            }
        }
    }

    /// The GPUs that vLLM is told to use are the GPUs it gets. What is not written counts as 1.
    fn topology(&mut self, entries: &[Entry], at: Pos, path: &str, runtime: Runtime) {
        let nodes = self.count(entries, path, "node_count");
        let gpus = self.count(entries, path, "gpu_per_node");
        let tensor = self.count(entries, path, "tensor_parallel_size");
        let pipeline = self.count(entries, path, "pipeline_parallel_size");
        let (Ok(nodes), Ok(gpus), Ok(tensor), Ok(pipeline)) = (nodes, gpus, tensor, pipeline) else {
            return;
        };
        let written = [tensor, pipeline, gpus, nodes].into_iter().flatten().map(|(_, pos)| pos).next();
        let value = |count: Option<(u32, Pos)>| count.map_or(1_u64, |(count, _)| u64::from(count));
        // A model without GPUs runs on the CPU of its one node.
        if runtime != Runtime::Vllm || value(gpus) == 0 {
            return;
        }
        let (nodes_n, gpus_n, tensor_n, pipeline_n) = (value(nodes), value(gpus), value(tensor), value(pipeline));
        if nodes_n > 1 && pipeline_n != nodes_n {
            let pos = pipeline.or(nodes).map_or(at, |(_, pos)| pos);
            let message = format!("is {pipeline_n} on {nodes_n} nodes; with several nodes it has to equal node_count");
            self.problem(pos, &join(path, "pipeline_parallel_size"), message);
        } else if tensor_n * pipeline_n != nodes_n * gpus_n {
            let message = format!(
                "× pipeline_parallel_size is {tensor_n} × {pipeline_n}, and node_count × gpu_per_node is {nodes_n} × {gpus_n}; both products have to be equal"
            );
            self.problem(written.unwrap_or(at), &join(path, "tensor_parallel_size"), message);
        }
    }
}
