//! Files that other systems render from the same catalogue, held against it: the order gate's `LLM_ACCESS_MODELS`, the
//! offering's `llmOffering.models` and `modelPricing`, and the gateway's `llm.models` or LiteLLM's own `model_list`.
//!
//! The files are read for those places wherever they are; everything else in them belongs to others. Prices are compared as
//! they are written, digit by digit.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Read as _;
use std::path::Path;

use rust_decimal::Decimal;

use crate::catalogue::{Catalogue, Model};
use crate::config::number;
use crate::config::yaml::{self, Entry, Kind, Node, Pos};

/// The largest file that is read, in bytes (16 MiB).
const MOST_BYTES: u64 = 16 << 20;

/// The variable of a Deployment that tells which models may be ordered.
const VARIABLE: &str = "LLM_ACCESS_MODELS";

/// Where a model's public name is in an entry, the best first.
const NAME_KEYS: [&str; 6] = ["served_name", "servedName", "model_name", "modelName", "name", "model"];

/// A file inside a file inside a file is enough.
const DEEPEST: usize = 3;

/// What a file says about models, and where it differs from the catalogue.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Compared {
    /// What was found and compared.
    pub found: BTreeSet<&'static str>,
    /// One line per difference.
    pub differences: Vec<String>,
}

/// Compares one file with the catalogue; `-` is the standard input. A file that cannot be read, is not YAML or JSON, or says
/// nothing about models is a difference too.
pub(super) fn compare_file(path: &Path, catalogue: &Catalogue) -> Compared {
    let shown = if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() };
    match read(path) {
        Ok(text) => compare(&shown, &text, catalogue),
        Err(why) => Compared { differences: vec![format!("{shown}: {why}")], ..Compared::default() },
    }
}

fn read(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    let from: Box<dyn std::io::Read> = if path == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(path).map_err(|error| format!("cannot be read: {error}; check the path"))?)
    };
    from.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|error| format!("cannot be read: {error}; check the path"))?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MOST_BYTES {
        return Err("is larger than 16 MiB; check the path".to_owned());
    }
    String::from_utf8(bytes).map_err(|_| "is not UTF-8 text; check the path".to_owned())
}

/// Compares the text of a file with the catalogue.
fn compare(file: &str, text: &str, catalogue: &Catalogue) -> Compared {
    let mut reader = Reader { file, catalogue, compared: Compared::default() };
    reader.text(text, 0, 0);
    let mut compared = reader.compared;
    if compared.found.is_empty() && compared.differences.is_empty() {
        compared.differences.push(format!(
            "{file}: says nothing about models: it has no {VARIABLE}, llmOffering, llm.models or model_list; give the file that has"
        ));
    }
    compared
}

struct Reader<'a> {
    file: &'a str,
    catalogue: &'a Catalogue,
    compared: Compared,
}

/// A price as a reader writes it, and for how many tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Quoted {
    price: Decimal,
    tokens: u32,
}

/// What a reader says about one model.
#[derive(Debug, Default)]
struct Quote {
    line: usize,
    input: Option<Quoted>,
    output: Option<Quoted>,
}

impl Reader<'_> {
    fn differs(&mut self, line: usize, message: impl fmt::Display) {
        self.compared.differences.push(format!("{}:{line}: {message}", self.file));
    }

    /// A file of one or more documents, `offset` lines into the real one.
    fn text(&mut self, text: &str, offset: usize, depth: usize) {
        for (before, document) in documents(text) {
            match yaml::parse(&document) {
                Ok(Some(root)) => self.node(&root, offset + before, depth),
                Ok(None) => {}
                Err(error) => self.differs(offset + before + error.pos.line, error.message),
            }
        }
    }

    fn node(&mut self, node: &Node, offset: usize, depth: usize) {
        match &node.kind {
            Kind::List(items) => items.iter().for_each(|item| self.node(item, offset, depth)),
            Kind::Map(entries) => self.map(entries, offset, depth),
            // A patch inside a kustomization, or a values file inside an Application.
            Kind::Scalar { text, .. }
                if depth < DEEPEST
                    && text.contains('\n')
                    && [VARIABLE, "llmOffering", "model_list", "modelInfo"].iter().any(|word| text.contains(word)) =>
            {
                // The text of a block begins where the node is.
                self.text(text, offset + node.pos.line - 1, depth + 1);
            }
            Kind::Scalar { .. } => {}
        }
    }

    fn map(&mut self, entries: &[Entry], offset: usize, depth: usize) {
        if get(entries, "name").and_then(scalar) == Some(VARIABLE) {
            match (get(entries, "value"), get(entries, "valueFrom")) {
                (Some(value), _) => self.variable(value, offset),
                (None, Some(from)) => self.differs(
                    offset + from.pos.line,
                    format_args!("{VARIABLE} comes from another object; give the file that holds its value"),
                ),
                (None, None) => {}
            }
        }
        for entry in entries {
            let (value, line) = (&entry.value, offset + entry.key_pos.line);
            match (entry.key.as_deref(), &value.kind) {
                (Some(VARIABLE), Kind::Scalar { .. }) => self.variable(value, offset),
                (Some("llmOffering"), Kind::Map(offering)) => self.offering(offering, line, offset),
                (Some("llm"), Kind::Map(llm)) => {
                    match get(llm, "models").map(|models| (&models.kind, models.pos)) {
                        Some((Kind::List(models), pos)) => self.served("llm.models", models, pos, offset, ["modelInfo", "model_info"]),
                        Some((_, pos)) => {
                            self.differs(offset + pos.line, "llm.models is no list of models");
                        }
                        None => {}
                    }
                    self.map(llm, offset, depth);
                }
                (Some("model_list"), Kind::List(models)) => {
                    self.served("model_list", models, value.pos, offset, ["model_info", "litellm_params"])
                }
                _ => self.node(value, offset, depth),
            }
        }
    }

    /// The models that may be ordered, as one text: with commas or blanks between, or as a JSON list.
    fn variable(&mut self, value: &Node, offset: usize) {
        let line = offset + value.pos.line;
        let Some(text) = scalar(value) else {
            return self.differs(line, format_args!("{VARIABLE} is no text"));
        };
        let names = match text.trim() {
            list if list.starts_with('[') => match serde_json::from_str::<Vec<String>>(list) {
                Ok(names) => names,
                Err(_) => {
                    return self.differs(line, format_args!("{VARIABLE} begins like a JSON list of names and is none"));
                }
            },
            list => list.split(|c: char| c == ',' || c.is_whitespace()).filter(|name| !name.is_empty()).map(str::to_owned).collect(),
        };
        self.names(VARIABLE, line, names.into_iter().map(|name| (name, line)), Model::is_orderable);
    }

    fn offering(&mut self, offering: &[Entry], line: usize, offset: usize) {
        let models = get(offering, "models");
        if let Some(models) = models {
            match &models.kind {
                Kind::List(items) => {
                    let names: Vec<(String, usize)> =
                        items.iter().filter_map(|item| Some((name_of(item)?, offset + item.pos.line))).collect();
                    if names.len() != items.len() {
                        self.differs(offset + models.pos.line, "llmOffering.models holds an entry without a name");
                    }
                    self.names("llmOffering.models", offset + models.pos.line, names, Model::is_orderable);
                }
                _ => self.differs(offset + models.pos.line, "llmOffering.models is no list of models"),
            }
        }
        match get(offering, "modelPricing") {
            Some(pricing) => self.pricing(pricing, offset),
            None if models.is_some() && self.catalogue.models.iter().any(|model| model.orderable && model.prices.is_some()) => {
                self.differs(line, "llmOffering lists models and has no modelPricing for them");
            }
            None => {}
        }
        let budget = path(offering, &["plan", "quotas", "max_budget"]);
        if let (Some(expected), Some(node)) = (self.catalogue.max_budget, budget) {
            self.compared.found.insert("max_budget");
            match scalar(node).map(number::decimal) {
                Some(Ok(written)) if written == expected => {}
                _ => {
                    let written = scalar(node).unwrap_or("no number");
                    self.differs(
                        offset + node.pos.line,
                        format_args!("llmOffering.plan.quotas.max_budget is {written} and {} in the catalogue", expected.normalize()),
                    );
                }
            }
        }
    }

    /// Prices on the order form, where a model without a price stands at zero.
    fn pricing(&mut self, pricing: &Node, offset: usize) {
        const WHAT: &str = "modelPricing";
        self.compared.found.insert(WHAT);
        let mut quotes: BTreeMap<String, Quote> = BTreeMap::new();
        let entries: Vec<(Option<String>, &Node)> = match &pricing.kind {
            Kind::Map(entries) => entries.iter().map(|entry| (entry.key.clone(), &entry.value)).collect(),
            Kind::List(items) => items.iter().map(|item| (name_of(item), item)).collect(),
            Kind::Scalar { .. } => {
                return self.differs(offset + pricing.pos.line, "modelPricing is no list of prices");
            }
        };
        for (name, node) in entries {
            let line = offset + node.pos.line;
            let (Some(name), Kind::Map(prices)) = (name, &node.kind) else {
                self.differs(line, "modelPricing holds an entry without a name or prices");
                continue;
            };
            let quote = self.quote(WHAT, &name, prices, line, offset);
            if quotes.insert(name.clone(), quote).is_some() {
                self.differs(line, format_args!("modelPricing has model {name} twice"));
            }
        }
        for model in self.catalogue.models.iter().filter(|model| model.orderable && model.prices.is_some()) {
            if !quotes.contains_key(&model.served_name) {
                self.differs(
                    offset + pricing.pos.line,
                    format_args!("modelPricing lacks model {}, which the catalogue prices", model.served_name),
                );
            }
        }
        for (name, quote) in quotes {
            match self.catalogue.model(&name) {
                None => self.differs(quote.line, format_args!("modelPricing has model {name}, which the catalogue does not list")),
                Some(model) => {
                    self.prices(WHAT, model, &quote, |written, listed| written.or(Some(Decimal::ZERO)) == listed.or(Some(Decimal::ZERO)))
                }
            }
        }
    }

    /// What the gateway is to serve, where a model without a price has no cost fields at all.
    fn served(&mut self, what: &'static str, models: &[Node], at: Pos, offset: usize, info_keys: [&str; 2]) {
        let mut names = Vec::new();
        for item in models {
            let line = offset + item.pos.line;
            let (Some(name), Kind::Map(entries)) = (name_of(item), &item.kind) else {
                self.differs(line, format_args!("{what} holds an entry without a name"));
                continue;
            };
            names.push((name.clone(), line));
            let mut quote = Quote { line, ..Quote::default() };
            for info in info_keys.iter().filter_map(|key| get(entries, key)) {
                if let Kind::Map(info) = &info.kind {
                    let written = self.quote(what, &name, info, line, offset);
                    quote = Quote { line, input: written.input.or(quote.input), output: written.output.or(quote.output) };
                }
            }
            if let Some(model) = self.catalogue.model(&name) {
                self.prices(what, model, &quote, |written, listed| written == listed);
            }
        }
        self.names(what, offset + at.line, names, |_| true);
    }

    fn names(
        &mut self,
        what: &'static str,
        line: usize,
        names: impl IntoIterator<Item = (String, usize)>,
        belongs: impl Fn(&Model) -> bool,
    ) {
        self.compared.found.insert(what);
        let mut seen = BTreeSet::new();
        for (name, line) in names {
            match self.catalogue.model(&name) {
                _ if !seen.insert(name.clone()) => {
                    self.differs(line, format_args!("{what} lists model {name} twice"));
                }
                Some(model) if belongs(model) => {}
                Some(_) => self.differs(line, format_args!("{what} lists model {name}, which is not orderable in the catalogue")),
                None => self.differs(line, format_args!("{what} lists model {name}, which the catalogue does not list")),
            }
        }
        let catalogue = self.catalogue;
        for model in catalogue.models.iter().filter(|model| belongs(model) && !seen.contains(&model.served_name)) {
            self.differs(line, format_args!("{what} lacks model {}, which the catalogue lists", model.served_name));
        }
    }

    fn prices(&mut self, what: &str, model: &Model, quote: &Quote, same: impl Fn(Option<Decimal>, Option<Decimal>) -> bool) {
        let sides = [
            ("input", quote.input, model.prices.map(|prices| prices.input)),
            ("output", quote.output, model.prices.and_then(|prices| prices.output)),
        ];
        for (side, written, listed) in sides {
            let tokens = written.map_or(1, |quoted| quoted.tokens);
            let listed = listed.map(|price| price * Decimal::from(tokens));
            if !same(written.map(|quoted| quoted.price), listed) {
                let show = |price: Option<Decimal>| price.map_or_else(|| "not there".to_owned(), |price| price.normalize().to_string());
                let (written, listed) = (show(written.map(|quoted| quoted.price)), show(listed));
                self.differs(
                    quote.line,
                    format_args!("{what}: the {side} price of model {} is {written} and {listed} in the catalogue", model.served_name),
                );
            }
        }
    }

    /// The prices in a mapping: `input_cost_per_token`, `inputCostPerToken`, `input` and the like.
    fn quote(&mut self, what: &str, model: &str, prices: &[Entry], line: usize, offset: usize) -> Quote {
        let mut quote = Quote { line, ..Quote::default() };
        for (side, place) in [("input", &mut quote.input), ("output", &mut quote.output)] {
            let Some((key, node)) = price_entry(prices, side) else {
                continue;
            };
            match scalar(node).map(number::decimal) {
                Some(Ok(price)) => {
                    *place = Some(Quoted { price, tokens: tokens_of(&key) });
                }
                _ => self.compared.differences.push(format!(
                    "{}:{}: {what}: the {side} price of model {model} is no number",
                    self.file,
                    offset + node.pos.line
                )),
            }
        }
        quote
    }
}

/// The entry with the price of one side; the plain name first, since there can be others (`input_cost_per_image`).
fn price_entry<'n>(prices: &'n [Entry], side: &str) -> Option<(String, &'n Node)> {
    let exact = [format!("{side}_cost_per_token"), format!("{side}CostPerToken"), side.to_owned()];
    let at = |key: &str| get(prices, key).filter(|node| !node.is_null()).map(|node| (key.to_owned(), node));
    exact.iter().find_map(|key| at(key)).or_else(|| {
        let fits = |key: &str| {
            let key = key.to_ascii_lowercase();
            key.starts_with(side) && (key.contains("price") || key.contains("token") || key.contains("per")) && !key.contains("cache")
        };
        prices.iter().filter_map(|entry| entry.key.as_deref()).find(|key| fits(key)).and_then(at)
    })
}

/// For how many tokens a price is, as its key says.
fn tokens_of(key: &str) -> u32 {
    let key = key.to_ascii_lowercase();
    if key.contains("million") || key.contains("1m") {
        1_000_000
    } else if key.contains("thousand") || key.contains("1k") {
        1_000
    } else {
        1
    }
}

fn get<'n>(entries: &'n [Entry], key: &str) -> Option<&'n Node> {
    entries.iter().find(|entry| entry.key.as_deref() == Some(key)).map(|entry| &entry.value)
}

fn path<'n>(entries: &'n [Entry], keys: &[&str]) -> Option<&'n Node> {
    let (last, parents) = keys.split_last()?;
    let mut entries = entries;
    for key in parents {
        entries = match &get(entries, key)?.kind {
            Kind::Map(entries) => entries,
            _ => return None,
        };
    }
    get(entries, last)
}

fn scalar(node: &Node) -> Option<&str> {
    match &node.kind {
        Kind::Scalar { text, .. } => Some(text),
        _ => None,
    }
}

fn name_of(node: &Node) -> Option<String> {
    match &node.kind {
        Kind::Scalar { text, .. } => Some(text.clone()).filter(|text| !text.is_empty()),
        Kind::Map(entries) => NAME_KEYS.iter().find_map(|key| get(entries, key).and_then(scalar)).map(str::to_owned),
        Kind::List(_) => None,
    }
}

/// The documents of a file, each with the number of lines before it.
fn documents(text: &str) -> Vec<(usize, String)> {
    let mut documents = vec![(0, String::new())];
    for (number, line) in text.lines().enumerate() {
        let marks = line == "---" || line.starts_with("--- ") || line == "...";
        if marks {
            documents.push((number + 1, String::new()));
        } else if let Some((_, document)) = documents.last_mut() {
            document.push_str(line);
            document.push('\n');
        }
    }
    documents
}

impl Model {
    fn is_orderable(&self) -> bool {
        self.orderable
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    const CATALOGUE: &str = "\
inference:
  budget: {max_budget_eur: 20}
  models:
    - {name: kestrel, served_name: kestrel-8b, orderable: true, litellm_model_info: {input_cost_per_token: 2.1e-07, output_cost_per_token: 8.5e-07}}
    - {name: heron, served_name: heron.70b, orderable: true}
    - {name: qwen3-embedding, served_name: qwen3-embedding, orderable: false, runtime: tei, litellm_model_info: {input_cost_per_token: 2.0e-08}}
";

    fn differences(text: &str) -> Vec<String> {
        let catalogue = crate::catalogue::parse(CATALOGUE, "inference.yml").unwrap();
        compare("reader.yaml", text, &catalogue).differences
    }

    #[track_caller]
    fn same(text: &str) {
        assert_eq!(differences(text), Vec::<String>::new(), "{text}");
    }

    #[track_caller]
    fn differs(text: &str, lines: &[&str]) {
        assert_eq!(differences(text), lines, "{text}");
    }

    const DEPLOYMENT: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: other}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: metallo}
spec:
  template:
    spec:
      containers:
        - name: metallo
          env:
            - {name: OTHER, value: x}
            - name: LLM_ACCESS_MODELS
              value: heron.70b,kestrel-8b
";

    #[test]
    fn the_order_gate_accepts_what_is_orderable() {
        same(DEPLOYMENT);
        for list in [r#"'["kestrel-8b", "heron.70b"]'"#, "' kestrel-8b ,heron.70b, '", "kestrel-8b heron.70b"] {
            same(&DEPLOYMENT.replace("heron.70b,kestrel-8b", list));
        }
        differs(
            &DEPLOYMENT.replace("heron.70b,kestrel-8b", "kestrel-8b,osprey,qwen3-embedding,kestrel-8b"),
            &[
                "reader.yaml:16: LLM_ACCESS_MODELS lists model osprey, which the catalogue does not list",
                "reader.yaml:16: LLM_ACCESS_MODELS lists model qwen3-embedding, which is not orderable in the catalogue",
                "reader.yaml:16: LLM_ACCESS_MODELS lists model kestrel-8b twice",
                "reader.yaml:16: LLM_ACCESS_MODELS lacks model heron.70b, which the catalogue lists",
            ],
        );
        differs(
            &DEPLOYMENT.replace("heron.70b,kestrel-8b", "''"),
            &[
                "reader.yaml:16: LLM_ACCESS_MODELS lacks model kestrel-8b, which the catalogue lists",
                "reader.yaml:16: LLM_ACCESS_MODELS lacks model heron.70b, which the catalogue lists",
            ],
        );
        assert!(differences(&DEPLOYMENT.replace("heron.70b,kestrel-8b", "'[\"a\"'"))[0].contains("begins like a JSON list"));
    }

    #[test]
    fn the_variable_is_found_wherever_it_is() {
        // As `kubectl get deployment -o json` prints it.
        same(
            r#"{"kind":"Deployment","spec":{"template":{"spec":{"containers":[{"env":[{"name":"LLM_ACCESS_MODELS","value":"kestrel-8b,heron.70b"}]}]}}}}"#,
        );
        same("data: {LLM_ACCESS_MODELS: 'kestrel-8b,heron.70b'}\n");
        let kustomization = "patches:\n  - target: {kind: Deployment}\n    patch: |-\n      - op: add\n        path: /spec/template/spec/containers/0/env/-\n        value:\n          name: LLM_ACCESS_MODELS\n          value: kestrel-8b\n";
        differs(kustomization, &["reader.yaml:8: LLM_ACCESS_MODELS lacks model heron.70b, which the catalogue lists"]);
        let elsewhere = "env:\n  - name: LLM_ACCESS_MODELS\n    valueFrom: {configMapKeyRef: {name: a, key: b}}\n";
        assert!(differences(elsewhere)[0].contains("comes from another object"));
    }

    const OFFERING: &str = "\
pharos:
  llmOffering:
    enabled: true
    models:
      - kestrel-8b
      - heron.70b
    modelPricing:
      kestrel-8b: {input: 2.1e-07, output: 0.00000085}
      heron.70b: {input: 0, output: 0}
    plan: {quotas: {max_budget: 20}}
";

    #[test]
    fn the_offering_lists_what_is_orderable_at_its_price_and_zero_where_there_is_none() {
        same(OFFERING);
        same(&OFFERING.replace("      heron.70b: {input: 0, output: 0}\n", ""));
        same(
            &OFFERING.replace("{input: 2.1e-07, output: 0.00000085}", "{input_cost_per_token: 0.00000021, output_cost_per_token: 8.50e-7}"),
        );
        same(&OFFERING.replace("{input: 2.1e-07, output: 0.00000085}", "{inputPer1MTokens: 0.21, outputPer1MTokens: 0.85}"));
        same(&OFFERING.replace("      - kestrel-8b\n", "      - {name: kestrel-8b, label: Kestrel}\n"));
        differs(
            &OFFERING.replace("0.00000085", "0.0000008500000000000001"),
            &[
                "reader.yaml:8: modelPricing: the output price of model kestrel-8b is 0.0000008500000000000001 and 0.00000085 in the catalogue",
            ],
        );
        differs(
            &OFFERING.replace("{input: 0, output: 0}", "{input: 0, output: 1e-9}"),
            &["reader.yaml:9: modelPricing: the output price of model heron.70b is 0.000000001 and not there in the catalogue"],
        );
        differs(
            &OFFERING.replace("      kestrel-8b: {", "      osprey: {"),
            &[
                "reader.yaml:8: modelPricing lacks model kestrel-8b, which the catalogue prices",
                "reader.yaml:8: modelPricing has model osprey, which the catalogue does not list",
            ],
        );
        differs(
            &OFFERING.replace("max_budget: 20", "max_budget: 25"),
            &["reader.yaml:10: llmOffering.plan.quotas.max_budget is 25 and 20 in the catalogue"],
        );
        differs(
            &OFFERING.replace("      - heron.70b\n", "      - osprey\n"),
            &[
                "reader.yaml:6: llmOffering.models lists model osprey, which the catalogue does not list",
                "reader.yaml:5: llmOffering.models lacks model heron.70b, which the catalogue lists",
            ],
        );
        assert!(differences(&OFFERING.replace("2.1e-07", "'{{ price }}'"))[0].contains("the input price of model kestrel-8b is no number"));
        let without = OFFERING.split("    modelPricing:").next().unwrap();
        assert!(differences(without)[0].contains("has no modelPricing"), "{without}");
    }

    const GATEWAY: &str = "\
llm:
  enabled: true
  models:
    - name: kestrel-8b
      apiBase: http://kestrel-openai.inference.svc:8000/v1
      modelInfo: {input_cost_per_token: 2.1e-07, output_cost_per_token: 8.5e-07}
    - name: heron.70b
    - name: qwen3-embedding
      modelInfo: {mode: embedding, input_cost_per_token: 2.0e-08}
";

    #[test]
    fn the_gateway_serves_every_model_and_gets_no_cost_where_there_is_no_price() {
        same(GATEWAY);
        differs(
            &GATEWAY.replace(
                "    - name: heron.70b\n",
                "    - name: heron.70b\n      modelInfo: {input_cost_per_token: 0, output_cost_per_token: 0}\n",
            ),
            &[
                "reader.yaml:7: llm.models: the input price of model heron.70b is 0 and not there in the catalogue",
                "reader.yaml:7: llm.models: the output price of model heron.70b is 0 and not there in the catalogue",
            ],
        );
        differs(
            &GATEWAY.replace("2.1e-07, ", "2.2e-07, "),
            &["reader.yaml:4: llm.models: the input price of model kestrel-8b is 0.00000022 and 0.00000021 in the catalogue"],
        );
        differs(
            &GATEWAY.replace("name: heron.70b", "name: osprey"),
            &[
                "reader.yaml:7: llm.models lists model osprey, which the catalogue does not list",
                "reader.yaml:4: llm.models lacks model heron.70b, which the catalogue lists",
            ],
        );
    }

    #[test]
    fn litellms_own_file_is_read_too() {
        let own = "\
model_list:
  - model_name: kestrel-8b
    litellm_params: {model: openai/kestrel-8b, input_cost_per_token: 0.00000021, output_cost_per_token: 0.00000085}
  - model_name: heron.70b
    litellm_params: {model: openai/heron.70b}
  - model_name: qwen3-embedding
    litellm_params: {model: openai/qwen3-embedding}
    model_info: {mode: embedding, input_cost_per_token: 0.00000002}
";
        same(own);
        assert_eq!(differences(&own.replace("0.00000085", "0.00000084")).len(), 1);
    }

    #[test]
    fn what_says_nothing_or_cannot_be_read_is_a_difference() {
        assert!(differences("a: 1\n")[0].contains("says nothing about models"));
        assert!(differences("")[0].contains("says nothing about models"));
        assert!(differences("a: [1\n")[0].contains("not valid YAML"));
        let catalogue = crate::catalogue::parse(CATALOGUE, "inference.yml").unwrap();
        assert!(compare_file(Path::new("/nosuch/file.yml"), &catalogue).differences[0].contains("cannot be read"));
    }
}
