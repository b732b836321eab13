//! What is concluded from an answer has to be proven by another one where a mistake would cost a customer something.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use llm_access_fixtures::faults::{Fault, Peer, Rule};
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::World;

fn answered(status: u16, body: &str, path: &str) -> Rule {
    Rule::new(Fault::Replace { status, headers: Vec::new(), body: body.into() }).peer(Peer::LiteLlm).path(path)
}

/// The gateway's words for a team that it does not have, which it also uses while its database is failing.
const NO_TEAM: &str = r#"{"detail":{"error":"Team not found, passed team id: x."}}"#;

#[tokio::test]
async fn a_not_found_that_the_list_contradicts_makes_and_removes_nothing() {
    let world = World::new(Profile::Late2026).await;
    let agent = world.patient().await;
    let resource = world.sold(&agent, "llm", &["kestrel-8b"]).await;
    let id = resource.simple().to_string();
    let (team, keys) = (world.gateway.team(&id).unwrap(), world.secrets(resource));
    world.faults.reset_calls();
    let rule = world.faults.add(answered(404, NO_TEAM, "/team/info"));
    let order = world.waldur.update_limits(resource, &[("max_budget", "70")]);
    for _ in 0..4 {
        world.beat(&agent).await;
        world.slow_beat(&agent).await;
        world.advance(Duration::from_secs(600));
    }
    assert_eq!(world.waldur.order_state(order), "executing", "{:?}", agent.schedule.waiting());
    assert_eq!(world.writes(Some(Peer::LiteLlm)), [""; 0]);
    assert_eq!((world.gateway.team(&id).unwrap().max_budget, world.secrets(resource)), (team.max_budget, keys));
    world.faults.remove(rule);
    world.run_to_rest(&agent, 20).await;
    assert_eq!(world.waldur.order_state(order), "done");
    world.check();
}

/// Everything the gateway says makes the team look gone; that its database is away says that none of it counts.
#[tokio::test]
async fn a_gateway_without_its_database_ends_no_termination() {
    let world = World::new(Profile::Late2026).await;
    let agent = world.patient().await;
    let resource = world.sold(&agent, "llm", &["kestrel-8b"]).await;
    let id = resource.simple().to_string();
    let no_list = r#"{"teams":[],"total":0,"page":1,"page_size":100,"total_pages":0}"#;
    let rules = [
        world.faults.add(answered(404, NO_TEAM, "/team/info")),
        world.faults.add(answered(200, no_list, "/v2/team/list")),
        world.faults.add(answered(200, r#"{"status":"healthy","db":"Not connected"}"#, "/health/readiness")),
    ];
    let order = world.waldur.terminate(resource);
    for _ in 0..10 {
        world.beat(&agent).await;
        world.advance(Duration::from_secs(600));
    }
    assert_eq!(world.waldur.order_state(order), "executing", "{:?}", agent.schedule.waiting());
    assert!(world.gateway.team(&id).is_some());
    for rule in rules {
        world.faults.remove(rule);
    }
    world.run_to_rest(&agent, 30).await;
    assert_eq!(world.waldur.order_state(order), "done");
    assert!(world.gateway.team(&id).is_none());
    world.check();
}

/// A budget of 0 refuses every call, if only until the next look.
#[tokio::test]
async fn a_team_without_a_budget_is_made_without_one() {
    let world = World::new(Profile::Late2026).await;
    let text = world.config_text("");
    let unlimited = text.replace(
        "limits: {max_budget: {default: 20, max: 1000}, tpm_limit: {default: 100000}, rpm_limit: {default: 600}}",
        "limits: {allow_unlimited: true}",
    );
    assert_ne!(unlimited, text);
    let agent = world.patient_with(&unlimited).await;
    let (order, _) = world.waldur.order(world.offering, &world.project, "free", &["kestrel-8b"], &[]);
    world.run_to_rest(&agent, 5).await;
    assert_eq!(world.waldur.order_state(order), "done");
    let made: Vec<_> = world.gateway.writes().into_iter().filter(|write| write.path.contains("/team/new")).collect();
    assert_eq!(made.len(), 1);
    assert!(made[0].body["max_budget"].is_null(), "{}", made[0].body);
}
