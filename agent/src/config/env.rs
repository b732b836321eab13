//! The environment as a layer of the configuration.
//!
//! Own code and not a layering library: those guess a type from the text (a token of digits becomes a float, a UUID of digits
//! a small number), fold the case of keys, and ignore a misspelt variable in silence.

use std::collections::BTreeMap;

use super::fields::{self, FIELDS, PREFIX};
use super::problem::{Problem, nearest};

/// The variables of the process; those set to nothing count as not set.
pub(crate) struct Env<'a> {
    vars: BTreeMap<&'a str, &'a str>,
}

impl<'a> Env<'a> {
    pub(crate) fn new(vars: &'a [(String, String)]) -> Self {
        Self { vars: vars.iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| (name.as_str(), value.as_str())).collect() }
    }

    /// The value of a variable, byte for byte.
    pub(crate) fn get(&self, name: &str) -> Option<&'a str> {
        self.vars.get(name).copied()
    }

    /// Whether any variable sets something below a path.
    pub(crate) fn has_below(&self, path: &str) -> bool {
        let prefix = format!("{}__", fields::variable(path));
        self.vars.keys().any(|name| name.starts_with(&prefix))
    }

    /// The indices for which `LLM_ACCESS__OFFERINGS__<n>__…` is set, with one variable each.
    pub(crate) fn offering_indices(&self) -> BTreeMap<usize, &'a str> {
        self.vars
            .keys()
            .filter_map(|name| {
                let (index, _) = name.strip_prefix("LLM_ACCESS__OFFERINGS__")?.split_once("__")?;
                Some((index.parse().ok()?, *name))
            })
            .collect()
    }

    /// Variables that look like ours and set nothing.
    pub(crate) fn misspelt(&self) -> Vec<Problem> {
        let known: Vec<String> = FIELDS.iter().map(|field| fields::variable(field.path)).collect();
        let mut problems = Vec::new();
        for (name, value) in &self.vars {
            if is_service_link(name, value) {
                continue;
            }
            let (generic, index) = without_index(name);
            if known.contains(&generic) {
                continue;
            }
            let with_index = |name: &str| match &index {
                Some(index) => name.replacen("OFFERINGS____", &format!("OFFERINGS__{index}__"), 1),
                None => name.replacen("OFFERINGS____", "OFFERINGS__0__", 1),
            };
            let squashed = squash(name);
            let alike = known.iter().find(|known| squash(known) == squashed);
            let ours = name.to_uppercase().starts_with(PREFIX);
            // One underscore after the prefix and a double one later, or the same letters as one of ours.
            let near = name.starts_with("LLM_ACCESS_") && name.contains("__");
            if !ours && !near && alike.is_none() {
                continue;
            }
            let bare = |name: &str| {
                let upper = name.to_uppercase();
                let rest = upper.strip_prefix("LLM_ACCESS_").unwrap_or(&upper);
                rest.trim_start_matches('_').to_owned()
            };
            let section = format!("{PREFIX}{}__", bare(name));
            let of_section = known.iter().any(|known| known.starts_with(&section));
            let word = bare(&generic);
            let bare_known: Vec<String> = known.iter().map(|known| bare(known)).collect();
            let message = match alike {
                Some(alike) => Some(with_index(alike)),
                None if of_section => None,
                None => nearest(&word, bare_known.iter().map(String::as_str)).map(|near| with_index(&format!("{PREFIX}{near}"))),
            }
            .map_or_else(
                || {
                    if of_section {
                        format!("a section cannot be set as a whole; set its fields one by one, as {section}…")
                    } else {
                        "no such setting; docs/configuration.md lists the variables; unset it".to_owned()
                    }
                },
                |right| format!("no such setting; did you mean {right}?"),
            );
            problems.push(Problem::of(*name, "", message));
        }
        problems
    }
}

/// `LLM_ACCESS__OFFERINGS__3__UUID` as `LLM_ACCESS__OFFERINGS____UUID`, which is how the list of fields spells it.
fn without_index(name: &str) -> (String, Option<String>) {
    if let Some(rest) = name.strip_prefix("LLM_ACCESS__OFFERINGS__")
        && let Some((index, field)) = rest.split_once("__")
        && !index.is_empty()
        && index.bytes().all(|byte| byte.is_ascii_digit())
    {
        return (format!("LLM_ACCESS__OFFERINGS____{field}"), Some(index.to_owned()));
    }
    (name.to_owned(), None)
}

fn squash(name: &str) -> String {
    name.chars().filter(|character| *character != '_' && !character.is_ascii_digit()).flat_map(char::to_uppercase).collect()
}

/// Whether a variable is one that Kubernetes sets for a Service in the namespace: a Service named `llm-access` brings
/// `LLM_ACCESS_PORT=tcp://10.0.0.1:80`, `LLM_ACCESS_SERVICE_HOST`, `LLM_ACCESS_PORT_80_TCP_ADDR` and so on.
fn is_service_link(name: &str, value: &str) -> bool {
    if name.ends_with("_SERVICE_HOST") || name.ends_with("_SERVICE_PORT") || name.contains("_SERVICE_PORT_") {
        return true;
    }
    if name.ends_with("_PORT") && ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme)) {
        return true;
    }
    let Some((_, rest)) = name.rsplit_once("_PORT_") else {
        return false;
    };
    let mut parts = rest.split('_');
    let number = parts.next().is_some_and(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    let protocol = parts.next().is_some_and(|part| matches!(part, "TCP" | "UDP" | "SCTP"));
    let last = match parts.next() {
        None => true,
        Some(part) => matches!(part, "PROTO" | "PORT" | "ADDR") && parts.next().is_none(),
    };
    number && protocol && last
}

#[cfg(test)]
mod tests {
    use super::*;

    fn misspelt(vars: &[(&str, &str)]) -> Vec<String> {
        let vars: Vec<(String, String)> = vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Env::new(&vars).misspelt().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn misspelt_variables_are_reported_with_the_right_name() {
        for (name, right) in [
            ("LLM_ACCESS__WALDUR__TOKN", "LLM_ACCESS__WALDUR__TOKEN"),
            ("LLM_ACCESS_WALDUR__TOKEN", "LLM_ACCESS__WALDUR__TOKEN"),
            ("LLM_ACCESS_WALDUR_TOKEN", "LLM_ACCESS__WALDUR__TOKEN"),
            ("LLM_ACCESS__WALDUR_TOKEN", "LLM_ACCESS__WALDUR__TOKEN"),
            ("LLM_ACCESS__waldur__token", "LLM_ACCESS__WALDUR__TOKEN"),
            ("LLMACCESS__GATEWAY__KEY", "LLM_ACCESS__GATEWAY__KEY"),
            ("LLM_ACCESS__OFFERINGS__2__BILING", "LLM_ACCESS__OFFERINGS__2__BILLING"),
            ("LLM_ACCESS__OFFERINGS__UUID", "LLM_ACCESS__OFFERINGS__0__UUID"),
        ] {
            assert_eq!(misspelt(&[(name, "sk-marker")]), [format!("{name}: no such setting; did you mean {right}?")]);
        }
        assert_eq!(
            misspelt(&[("LLM_ACCESS__WALDUR", "{}")]),
            ["LLM_ACCESS__WALDUR: a section cannot be set as a whole; set its fields one by one, as LLM_ACCESS__WALDUR__…"]
        );
        assert_eq!(misspelt(&[("LLM_ACCESS__COLOUR", "red")]).len(), 1);
    }

    #[test]
    fn variables_of_others_are_left_alone() {
        assert_eq!(
            misspelt(&[
                ("LLM_ACCESS_PORT", "tcp://10.0.0.1:80"),
                ("LLM_ACCESS_SERVICE_HOST", "10.0.0.1"),
                ("LLM_ACCESS_SERVICE_PORT", "80"),
                ("LLM_ACCESS_SERVICE_PORT_HTTP", "80"),
                ("LLM_ACCESS_PORT_80_TCP", "tcp://10.0.0.1:80"),
                ("LLM_ACCESS_PORT_80_TCP_PROTO", "tcp"),
                ("LLM_ACCESS_PORT_80_TCP_PORT", "80"),
                ("LLM_ACCESS_PORT_80_TCP_ADDR", "10.0.0.1"),
                ("LLM_ACCESS_AGENT_PORT", "tcp://10.0.0.2:9090"),
                ("LLM_ACCESS_AGENT_PORT_9090_TCP", "tcp://10.0.0.2:9090"),
                ("LLM_ACCESS_AGENT_SERVICE_HOST", "10.0.0.2"),
                ("LLM_ACCESS__AGENT_PORT_9090_TCP_ADDR", "10.0.0.2"),
                ("LLM_ACCESS_MODELS", "a,b"),
                ("LLM_ACCESS_CONFIG", "/etc/llm-access/agent.yml"),
                ("LLM_ACCESS__WALDUR__TOKN", ""),
                ("PATH", "/usr/bin"),
                ("OTHER__WALDUR__TOKEN", "x"),
            ]),
            Vec::<String>::new()
        );
    }
}
