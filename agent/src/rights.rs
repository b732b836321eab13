//! What the agent's own key has to be allowed at the gateway, and what its `allowed_routes` do not allow.

use litellm_client::OwnKey;

/// A route that the agent calls with its own key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// As it is written into `allowed_routes`. The gateway takes a path with everything below it, and the beginning of a path
    /// with `*` at its end.
    pub path: &'static str,
    /// What does not work without it.
    pub purpose: &'static str,
}

/// What every agent needs.
pub const ROUTES: [Route; 13] = [
    Route { path: "/v2/team/list", purpose: "finding teams, and proving that one is gone" },
    Route { path: "/team/info", purpose: "looking at one team with its keys" },
    Route { path: "/team/new", purpose: "creating access" },
    Route { path: "/team/update", purpose: "limits, models, pausing and blocking" },
    Route { path: "/team/delete", purpose: "ending access" },
    Route { path: "/key/list", purpose: "finding keys" },
    Route { path: "/key/info", purpose: "`check` of these routes" },
    Route { path: "/key/generate", purpose: "registering keys" },
    Route { path: "/key/update", purpose: "clearing bounds that the gateway's settings give a key" },
    Route { path: "/key/delete", purpose: "ending access, and replacing keys" },
    Route { path: "/model/info", purpose: "comparing models and prices with the catalogue" },
    Route { path: "/team/daily/activity", purpose: "usage" },
    Route { path: "/spend/logs/v2", purpose: "`usage audit`, and `failed_calls: exclude`" },
];

/// What an agent with `gateway.manage_models` needs besides. A change is asked for at the address of a deployment, and only
/// those of ours are allowed.
pub const MODEL_ROUTES: [Route; 3] = [
    Route { path: "/model/new", purpose: "registering models" },
    Route { path: "/model/llma-*", purpose: "changing registered models" },
    Route { path: "/model/delete", purpose: "removing models" },
];

/// What a key may do of what is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its user's role alone decides: it may call everything that an administrator may.
    Unrestricted,
    /// Some routes are needed and not allowed.
    Missing(Vec<Route>),
    /// All that is needed and nothing else.
    Narrow,
    /// All that is needed, and these as well.
    Wide(Vec<String>),
    /// It has groups of routes, whose members only the gateway knows; none is known to be missing.
    Groups(Vec<String>),
}

/// Judges a key by its `allowed_routes`.
#[must_use]
pub fn judge(key: &OwnKey, manage_models: bool) -> Verdict {
    let allowed = &key.allowed_routes;
    if allowed.is_empty() {
        return Verdict::Unrestricted;
    }
    let needed: Vec<Route> = ROUTES.into_iter().chain(MODEL_ROUTES.into_iter().filter(|_| manage_models)).collect();
    // Paths begin with a slash, names of groups do not.
    let groups: Vec<String> = allowed.iter().filter(|entry| !entry.starts_with(['/', '*'])).cloned().collect();
    if !groups.is_empty() {
        return Verdict::Groups(groups);
    }
    let missing: Vec<Route> = needed.iter().filter(|route| !allowed.iter().any(|entry| covers(entry, route.path))).copied().collect();
    if !missing.is_empty() {
        return Verdict::Missing(missing);
    }
    let more: Vec<String> = allowed.iter().filter(|entry| !needed.iter().any(|route| covers(route.path, entry))).cloned().collect();
    if more.is_empty() { Verdict::Narrow } else { Verdict::Wide(more) }
}

/// Whether an entry of `allowed_routes` allows everything that another one would.
fn covers(entry: &str, other: &str) -> bool {
    let below = || other.strip_prefix(entry).is_some_and(|rest| rest.starts_with('/'));
    entry == other || below() || entry.strip_suffix('*').is_some_and(|beginning| other.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::ID_PREFIX;

    fn judged(allowed: &[&str], manage_models: bool) -> Verdict {
        judge(&OwnKey { allowed_routes: allowed.iter().map(ToString::to_string).collect() }, manage_models)
    }

    fn paths(routes: &[Route]) -> Vec<&'static str> {
        routes.iter().map(|route| route.path).collect()
    }

    #[test]
    fn each_route_that_is_left_out_is_named() {
        let all = paths(&[&ROUTES[..], &MODEL_ROUTES].concat());
        assert_eq!(judged(&all, true), Verdict::Narrow);
        for left_out in &all {
            let rest: Vec<&str> = all.iter().filter(|path| *path != left_out).copied().collect();
            let Verdict::Missing(missing) = judged(&rest, true) else { panic!("{left_out}") };
            assert_eq!(paths(&missing), [*left_out]);
        }
        assert_eq!(judged(&paths(&ROUTES), false), Verdict::Narrow);
        assert_eq!(judged(&paths(&ROUTES), true), Verdict::Missing(MODEL_ROUTES.to_vec()));
    }

    #[test]
    fn what_allows_more_is_said_and_what_cannot_be_known_is_not_guessed() {
        let wide = [&paths(&ROUTES)[..], &["/user/new", "/team/daily/activity/aggregated"]].concat();
        assert_eq!(judged(&wide, false), Verdict::Wide(vec!["/user/new".to_owned()]));
        assert_eq!(judged(&["/*"], true), Verdict::Wide(vec!["/*".to_owned()]));
        let beginnings = ["/v2/team", "/team", "/key/*", "/model", "/spend/logs/v2"].map(str::to_owned);
        let verdict = judged(&["/v2/team", "/team", "/key/*", "/model", "/spend/logs/v2"], true);
        assert_eq!(verdict, Verdict::Wide(beginnings[..4].to_vec()));
        assert!(matches!(judged(&["/v2/teams", "/tea", "/key/lis", "/model/in"], false), Verdict::Missing(all) if all == ROUTES));
        assert_eq!(judged(&[], true), Verdict::Unrestricted);
        assert_eq!(judged(&["management_routes", "/spend/logs/v2"], true), Verdict::Groups(vec!["management_routes".to_owned()]));
    }

    #[test]
    fn changes_are_allowed_at_the_addresses_of_our_deployments() {
        assert!(MODEL_ROUTES.iter().any(|route| route.path == format!("/model/{ID_PREFIX}*")));
    }
}
