//! Every field of the configuration, once: the reader checks keys and variables against this list and the documentation is
//! written from it.

use std::fmt::Write as _;

/// The prefix of every environment variable of the agent.
pub(crate) const PREFIX: &str = "LLM_ACCESS__";

/// One field.
pub(crate) struct Field {
    /// `section.field`; `offerings[]` stands for each offering.
    pub(crate) path: &'static str,
    /// What may be written, with its unit.
    pub(crate) value: &'static str,
    /// What holds when nothing is written.
    pub(crate) default: &'static str,
    /// What it does.
    pub(crate) about: &'static str,
    /// A secret: from the environment only, never from the file.
    pub(crate) secret: bool,
}

const fn field(path: &'static str, value: &'static str, default: &'static str, about: &'static str) -> Field {
    Field { path, value, default, about, secret: false }
}

const fn secret(path: &'static str, about: &'static str) -> Field {
    Field { path, value: "secret", default: "–", about, secret: true }
}

/// All fields, in the order of the documentation.
#[rustfmt::skip]
pub(crate) const FIELDS: &[Field] = &[
    field("owner", "text, 1 to 63 of A-Z a-z 0-9 - _ .", "UUID of the first offering", "One string per environment. It marks everything the agent makes; two environments on one gateway must differ."),
    field("waldur.api_url", "URL", "required", "Waldur's API, for example `https://waldur.example.org/api/`. A slash is added at the end."),
    field("waldur.token_file", "path", "this, the token or `waldur.oidc`", "File with the API token of the agent's Waldur account."),
    secret("waldur.token", "The token itself. Environment only; wins over `waldur.token_file`."),
    field("waldur.oidc.token_url", "URL", "required in `waldur.oidc`", "Token endpoint of the identity provider (client credentials grant)."),
    field("waldur.oidc.client_id", "text", "required in `waldur.oidc`", "Client id."),
    field("waldur.oidc.client_secret_file", "path", "this or the secret", "File with the client secret."),
    secret("waldur.oidc.client_secret", "The client secret itself. Environment only; wins over the file."),
    field("waldur.zone", "IANA time zone", "`UTC`", "The time zone in which the Waldur server dates usage (2024 servers file under their own now)."),
    field("waldur.timeout", "duration", "`30s`", "Longest time for one call to Waldur."),
    field("waldur.ca_file", "path", "system's CAs", "PEM bundle of further certificate authorities for Waldur."),
    field("waldur.allow_insecure_http", "true or false", "`false`", "Allow the credential over plain http to a Waldur that is not on loopback."),
    field("gateway.url", "URL", "required", "LiteLLM proxy, as the agent reaches it."),
    field("gateway.public_url", "URL", "required", "LiteLLM proxy, as customers reach it, without `/v1`."),
    field("gateway.key_file", "path", "this or the key", "File with an admin key of the proxy."),
    secret("gateway.key", "The key itself. Environment only; wins over `gateway.key_file`."),
    field("gateway.manage_models", "true or false", "`false`", "Register the models of the catalogue in the gateway."),
    field("gateway.model_key_file", "path", "servers that ask for no key", "With `gateway.manage_models`: file with the key that the gateway shows to the servers of registered models."),
    secret("gateway.model_key", "That key itself. Environment only; wins over `gateway.model_key_file`."),
    field("gateway.api_base.vllm", "URL with `{name}` or `{served_name}`", "`http://{name}-openai.inference.svc.cluster.local:8000/v1`", "With `gateway.manage_models`: where the gateway reaches a model that vLLM serves."),
    field("gateway.api_base.tei", "URL with `{name}` or `{served_name}`", "`http://{name}-openai.inference.svc.cluster.local:8000/v1`", "The same for a model with `runtime: tei`."),
    field("gateway.api_base.cpu", "URL with `{name}` or `{served_name}`", "`http://{name}-openai.inference.svc.cluster.local:8000/v1`", "The same for the model with `runtime: cpu`."),
    field("gateway.timeout", "duration", "`30s`", "Longest time for one call to the gateway."),
    field("gateway.ca_file", "path", "system's CAs", "PEM bundle of further certificate authorities for the gateway."),
    field("gateway.allow_insecure_http", "true or false", "`false`", "Allow the key over plain http to a gateway that is not on loopback."),
    field("webui.url", "URL", "no chat endpoint", "Open WebUI, as customers reach it."),
    field("catalogue.file", "path", "required", "The model catalogue."),
    field("catalogue.hold", "duration", "`1h`", "How long a model has to be absent before it counts as gone."),
    field("catalogue.max_shrink.share", "decimal, 0 to 1", "`0.25`", "A catalogue that loses more than this share of its models is held until it is accepted."),
    field("catalogue.max_shrink.models", "whole number", "`3`", "The same, as a number of models."),
    field("offerings", "list, at least one", "required", "The offerings to serve. As a variable: UUIDs with commas between, or a JSON array of objects."),
    field("offerings[].uuid", "UUID", "required", "The offering's UUID in Waldur."),
    field("offerings[].plans", "list of text", "every plan of the offering", "Names of the plans whose prices the agent keeps."),
    field("offerings[].components", "list of per_model, aggregate", "`per_model`; with `billing: spend` both", "Which usage components the offering has: two per model, or three over all models."),
    field("offerings[].billing", "per_model or spend", "`per_model`", "Which usage components charge; the others are priced 0."),
    field("offerings[].token_unit", "1, 1k or 1M", "`1k`", "How many tokens one unit of a usage component is."),
    field("offerings[].currency", "text, 1 to 10 characters", "`EUR`", "A label; the same for all offerings of an environment."),
    field("offerings[].limits.max_budget.default", "decimal, currency per month", "none", "Budget of a resource that was ordered without one."),
    field("offerings[].limits.max_budget.max", "decimal, currency per month", "none", "Largest budget that may be ordered."),
    field("offerings[].limits.tpm_limit.default", "whole number, tokens per minute", "none", "Token rate of a resource that was ordered without one."),
    field("offerings[].limits.tpm_limit.max", "whole number, tokens per minute", "none", "Largest token rate that may be ordered."),
    field("offerings[].limits.rpm_limit.default", "whole number, requests per minute", "none", "Request rate of a resource that was ordered without one."),
    field("offerings[].limits.rpm_limit.max", "whole number, requests per minute", "none", "Largest request rate that may be ordered."),
    field("offerings[].limits.allow_unlimited", "true or false", "`false`", "Accept an order for which no budget follows from order, catalogue or default."),
    field("offerings[].approval.create", "auto or manual", "`auto`", "Who approves an order for a new resource."),
    field("offerings[].approval.update", "auto or manual", "`auto`", "Who approves a change of limits or models."),
    field("offerings[].approval.terminate", "auto or manual", "`auto`", "Who approves a termination."),
    field("offerings[].always_include", "list of text", "none", "Models that join every team, such as an embedder."),
    field("offerings[].on_downscale", "block, or a mapping of limits", "`block`", "What a downscaled resource gets: nothing, or the reduced limits of the next three fields."),
    field("offerings[].on_downscale.max_budget", "decimal, currency per month", "unchanged", "Reduced budget."),
    field("offerings[].on_downscale.tpm_limit", "whole number, tokens per minute", "unchanged", "Reduced token rate."),
    field("offerings[].on_downscale.rpm_limit", "whole number, requests per minute", "unchanged", "Reduced request rate."),
    field("offerings[].delivery.api_key_on_old_servers", "hide or report", "`hide`", "`report` puts the key into the resource's report on a Waldur without an API-key tab. Everybody who sees the resource then sees the key."),
    field("secrets.store", "directory or kubernetes", "required", "Where keys and chat connections are kept."),
    field("secrets.path", "path", "required with `directory`", "The directory of the `directory` store."),
    field("secrets.kubeconfig", "path", "in-cluster, then `KUBECONFIG`", "Kubeconfig of the `kubernetes` store."),
    field("secrets.context", "text", "the current one", "Context in the kubeconfig."),
    field("secrets.api_url", "URL", "from the kubeconfig", "Kubernetes API without credentials, for a local proxy; plain http on loopback only."),
    field("secrets.timeout", "duration", "`15s`", "Longest time for one call to the Kubernetes API."),
    field("secrets.chat_namespace", "namespace, or a mapping project UUID to namespace", "required with `kubernetes`", "Where the Secrets for Open WebUI go."),
    field("secrets.key_namespace", "namespace", "required with `kubernetes`", "Where the Secrets with project keys go."),
    field("secrets.restart", "name, or a mapping project UUID to name", "none are restarted", "Deployments that read a chat Secret, in its namespace: restarted when it changes. One name for all, or each project's own."),
    field("intervals.orders", "duration", "`15s`", "Beat of the order loop. Each beat varies by 10 %."),
    field("intervals.resources", "duration", "`60s`", "Beat of the comparison of resources with the gateway."),
    field("intervals.offering", "duration", "`60s`", "Beat of the comparison of the offering with the catalogue."),
    field("intervals.usage", "duration", "`10m`", "Beat of the usage report."),
    field("terminate.drain", "duration, at least 90s", "`180s`", "Wait between blocking a team and its final usage; at least as long as the longest request."),
    field("terminate.settle", "duration", "`15s`", "Time between the two equal usage reads that end the wait."),
    field("terminate.allow_short_drain", "true or false", "`false`", "Accept a `terminate.drain` under 90s. Usage that arrives late is then never billed."),
    field("rotation.grace", "duration", "`10m`", "How long a key that was replaced by `keys rotate` serves on beside the new one."),
    field("usage.late_days", "whole number, 0 to 28", "`3`", "For so many days after a month's end its usage is reported again, for rows that came late; only where the Waldur server dates usage."),
    field("usage.month_guard", "duration", "`15m`", "On a Waldur server that does not date usage, nothing is sent within this time of a month's end in `waldur.zone`."),
    field("usage.failed_calls", "as_ledger or exclude", "`as_ledger`", "Bill the tokens that the gateway estimates for failed calls as its ledger has them, or subtract them by its log of calls."),
    field("concurrency.orders", "whole number, 1 to 1024", "`16`", "Orders worked on at the same time; half as many repairs beside them."),
    field("backoff.initial", "duration", "`5s`", "Wait after the first failure of an order; doubles with each further one."),
    field("backoff.max", "duration", "`10m`", "Longest wait between two tries."),
    field("http.listen", "address:port", "no listener", "Where `/livez`, `/readyz`, `/status` and `/metrics` are served."),
    field("http.allow_insecure_http", "true or false", "`false`", "Allow credentials over plain http to any peer that is not on loopback."),
    field("page.listen", "address:port", "no page", "Where the status page is served, for people. On loopback; it asks for no password."),
    field("page.allow_remote", "true or false", "`false`", "Accept a `page.listen` that is not on loopback. Everybody who reaches it reads the names of resources and projects."),
    field("page.hosts", "list of host names", "none", "Names by which the status page is reached besides `localhost` and plain addresses, as behind a proxy; others are turned away."),
    field("traces.endpoint", "URL", "no traces", "Where spans are sent, by OTLP over HTTP, whole: `http://collector:4318/v1/traces`. Needs a build with the feature `otel`."),
    field("events.enabled", "true or false", "`false`", "Make Kubernetes Events about Secrets and conditions; with `secrets.store: kubernetes`."),
    field("events.pod_namespace", "namespace", "conditions are not told", "With `pod_name` and `pod_uid`: the agent's own pod, from the downward API; conditions are told there."),
    field("events.pod_name", "name", "conditions are not told", "The pod's name."),
    field("events.pod_uid", "UUID", "conditions are not told", "The pod's uid."),
    field("lease.namespace", "namespace", "required in `lease`", "Namespace of the Lease; needed with more than one replica only."),
    field("lease.name", "name", "`llm-access-agent`", "Name of the Lease."),
    field("lease.duration", "duration, whole seconds", "`15s`", "How long a holder that went silent keeps the Lease. It is renewed and looked at six times as often, every 2.5 s at least."),
    field("orphans.max_per_pass", "whole number", "`10`", "How many orphans one pass removes at most."),
    field("log.format", "text or json", "`text`", "One line per event either way."),
    field("log.level", "error, warn, info, debug, trace, or a filter", "`info`", "A filter names modules: `info,llm_access_agent=debug`."),
];

/// The path with every index taken out: `offerings[3].uuid` becomes `offerings[].uuid`.
pub(crate) fn pattern(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    let mut inside = false;
    for character in path.chars() {
        match character {
            '[' => {
                inside = true;
                out.push('[');
            }
            ']' => {
                inside = false;
                out.push(']');
            }
            _ if inside => {}
            _ => out.push(character),
        }
    }
    out
}

/// The variable that sets a field: `offerings[0].uuid` becomes `LLM_ACCESS__OFFERINGS__0__UUID`.
pub(crate) fn variable(path: &str) -> String {
    let name = path.replace('[', "__").replace(']', "").replace('.', "__");
    format!("{PREFIX}{}", name.to_uppercase())
}

/// The keys that a section of the file may have; environment-only secrets are not among them.
pub(crate) fn keys(section: &str) -> Vec<&'static str> {
    let mut keys: Vec<&'static str> = Vec::new();
    for field in FIELDS.iter().filter(|field| !field.secret) {
        let Some(rest) = below(section, field.path) else {
            continue;
        };
        let key = rest.split('.').next().unwrap_or(rest).trim_end_matches("[]");
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}

/// The fields directly in a section that hold a secret, as `(key, file key)`.
pub(crate) fn secrets(section: &str) -> Vec<(&'static str, String)> {
    FIELDS
        .iter()
        .filter(|field| field.secret)
        .filter_map(|field| below(section, field.path))
        .filter(|rest| !rest.contains('.'))
        .map(|key| (key, format!("{key}_file")))
        .collect()
}

fn below<'a>(section: &str, path: &'a str) -> Option<&'a str> {
    if section.is_empty() { Some(path) } else { path.strip_prefix(section)?.strip_prefix('.') }
}

/// Every field as a Markdown table: field, variable, value, default, meaning. `docs/configuration.md` holds it.
pub fn describe() -> String {
    let mut out = String::from("| Field | Value | Default | Meaning |\n|---|---|---|---|\n");
    for field in FIELDS {
        let variable = variable(&field.path.replace("[]", "[n]")).replace("__N__", "__0__");
        let name = if field.secret { format!("`{variable}`") } else { format!("`{}`<br>`{variable}`", field.path) };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "| {name} | {} | {} | {} |", field.value, field.default, field.about);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_follow_from_paths() {
        assert_eq!(variable("waldur.api_url"), "LLM_ACCESS__WALDUR__API_URL");
        assert_eq!(variable("offerings[1].limits.max_budget.default"), "LLM_ACCESS__OFFERINGS__1__LIMITS__MAX_BUDGET__DEFAULT");
        assert_eq!(pattern("offerings[12].uuid"), "offerings[].uuid");
    }

    #[test]
    fn sections_know_their_keys() {
        assert_eq!(keys("catalogue"), ["file", "hold", "max_shrink"]);
        assert!(keys("").contains(&"offerings"));
        assert!(!keys("waldur").contains(&"token"));
        assert_eq!(secrets("gateway"), [("key", "key_file".to_owned()), ("model_key", "model_key_file".to_owned())]);
    }

    #[test]
    fn every_variable_is_described_once() {
        let mut seen = std::collections::BTreeSet::new();
        for field in FIELDS {
            assert!(seen.insert(field.path), "{} is listed twice", field.path);
            assert!(!field.about.is_empty());
        }
        assert!(describe().contains("`LLM_ACCESS__OFFERINGS__0__UUID`"));
    }
}
