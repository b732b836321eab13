//! The last usage of a resource that ends, and the commands that work with usage.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::Output;
use std::time::Duration;

use jiff::Timestamp;
use llm_access_agent::domain::BillingMonth;
use llm_access_agent::usage::audit::Reason;
use llm_access_agent::usage::pass::Pass;
use llm_access_agent::usage::report::How;
use llm_access_fixtures::faults::{Fault, Peer, Rule};
use llm_access_fixtures::litellm::Usage;
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::program::command;
use llm_access_tests::{PROFILES, Store, World};
use rust_decimal::Decimal;
use serde_json::{Value, json};
use tokio::process::Command;
use uuid::Uuid;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn id(resource: Uuid) -> String {
    resource.simple().to_string()
}

fn spent(world: &World, resource: Uuid, when: &str, prompt: u64, spend: &str) {
    let usage = Usage { prompt_tokens: prompt, completion_tokens: 0, cached_tokens: 0, spend: spend.parse().unwrap() };
    world.gateway.add_usage(Some(&id(resource)), &format!("hash-{}", id(resource)), "kestrel-8b", at(when), usage);
}

fn told(world: &World, resource: Uuid, month: &str, kind: &str) -> String {
    world.waldur.usages(resource, month).get(kind).map_or_else(|| "none".into(), ToString::to_string)
}

#[tokio::test]
async fn the_last_seconds_of_a_resource_are_billed() {
    for profile in PROFILES {
        let world = World::new(profile).await;
        world.gateway.set_lag(Duration::from_secs(22));
        let agent = world.agent().await;
        let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
        let key = world.key(resource, "project");
        world.gateway.chat(&key, "kestrel-8b", "P=700 C=0").unwrap();
        world.advance(Duration::from_secs(1));
        let order = world.waldur.terminate(resource);
        world.beat(&agent).await;
        world.gateway.chat(&key, "kestrel-8b", "P=1 C=0").unwrap_err();
        // A stream that began before the block ends twelve seconds after it; its row comes later still. Meanwhile usage
        // passes go on, and the agent is restarted.
        world.advance(Duration::from_secs(12));
        let late = world.clock.now();
        agent.usage_beat().await.unwrap();
        world.beat(&agent).await;
        world.advance(Duration::from_secs(22));
        spent(&world, resource, &late.to_string(), 550, "0.55");
        let agent = world.agent().await;
        agent.usage_beat().await.unwrap();
        world.run_to_rest(&agent, 10).await;
        assert_eq!(world.waldur.order_state(order), "done");
        assert_eq!(told(&world, resource, "2026-11", "input_tokens"), "1.25", "{profile:?}");
        world.check();
    }
}

#[tokio::test]
async fn what_kept_the_usage_of_a_resource_back_is_not_complained_about_after_its_end() {
    for (condition, path, method, times) in [
        ("usage-refused", "set_usage", "POST", 1),
        ("usage-by-key-unreported", "report_usage", "POST", 1),
        ("usage-not-shown", "component-usages", "GET", 9),
    ] {
        let world = World::new(Profile::Late2026).await;
        let agent = world.agent().await;
        let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
        agent.usage_beat().await.unwrap();
        world.gateway.chat(&world.key(resource, "project"), "kestrel-8b", "P=1000 C=0").unwrap();
        world.advance(Duration::from_secs(60));
        // Waldur's list of usage stays as it was, where it is that which goes wrong.
        let fault = if method == "GET" {
            let json = ("content-type".into(), "application/json".into());
            Fault::Replace { status: 200, headers: vec![json, ("x-result-count".into(), "0".into())], body: "[]".into() }
        } else {
            Fault::status(403, r#"{"detail":"You do not have permission to perform this action."}"#)
        };
        world.faults.add(Rule::new(fault).peer(Peer::Waldur).method(method).path(path).times(times));
        let report = agent.usage_beat().await.unwrap();
        assert!(agent.conditions.holds(condition), "{condition}: {:?} {report:?}", agent.conditions.all());
        world.faults.clear();
        let order = world.waldur.terminate(resource);
        world.run_to_rest(&agent, 40).await;
        assert_eq!(world.waldur.order_state(order), "done");
        assert_eq!(told(&world, resource, "2026-11", "input_tokens"), "1.00", "{condition}");
        agent.usage_beat().await.unwrap();
        assert!(!agent.conditions.holds(condition), "{condition}: {:?}", agent.conditions.all());
        world.check();
    }
}

#[tokio::test]
async fn a_resource_that_ends_over_a_months_end_is_billed_for_both() {
    for profile in PROFILES {
        let world = World::new(profile).await;
        let agent = world.agent().await;
        let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
        world.set_time("2026-11-30T23:57:00Z");
        let order = world.waldur.terminate(resource);
        world.beat(&agent).await;
        spent(&world, resource, "2026-11-30T23:57:30Z", 1000, "1.00");
        spent(&world, resource, "2026-12-01T00:00:10Z", 2000, "2.00");
        world.run_to_rest(&agent, 40).await;
        assert_eq!(world.waldur.order_state(order), "done");
        assert_eq!(told(&world, resource, "2026-12", "spend"), "2.00", "{profile:?}");
        let seen = world.waldur.resource(resource);
        if profile == Profile::Y2024 {
            assert_eq!(told(&world, resource, "2026-11", "spend"), "none", "nothing of a closed month can be sent");
            assert!(seen.backend_metadata["llm_access"]["unbilled"].get("2026-11").is_some(), "{:?}", seen.backend_metadata);
            assert!(agent.conditions.holds("unbilled"));
        } else {
            assert_eq!(told(&world, resource, "2026-11", "spend"), "1.00", "{profile:?}");
        }
        world.check();
    }
}

#[tokio::test]
async fn rows_that_came_after_the_last_pass_of_a_month_are_billed_when_the_end_is_ordered_in_the_next() {
    for profile in PROFILES {
        let world = World::new(profile).await;
        let agent = world.agent().await;
        let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
        // No pass has seen this call when the month ends, and none runs before the resource does.
        world.set_time("2026-12-01T00:20:00Z");
        spent(&world, resource, "2026-11-30T23:59:30Z", 1000, "1.00");
        let order = world.waldur.terminate(resource);
        world.run_to_rest(&agent, 40).await;
        assert_eq!(world.waldur.order_state(order), "done");
        if profile == Profile::Y2024 {
            assert!(world.waldur.resource(resource).backend_metadata["llm_access"]["unbilled"].get("2026-11").is_some());
        } else {
            assert_eq!(told(&world, resource, "2026-11", "spend"), "1.00", "{profile:?}");
        }
        world.check();
    }
}

#[tokio::test]
async fn a_team_that_is_removed_by_hand_while_its_resource_ends_is_billed_for_both_months() {
    let world = World::new(Profile::Late2026).await;
    // Without late days, so that it is the order that tells since when.
    let agent = world.agent_with("usage: {late_days: 0}\n").await;
    let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
    world.set_time("2026-11-30T23:58:00Z");
    spent(&world, resource, "2026-11-30T23:57:30Z", 1000, "1.00");
    let order = world.waldur.terminate(resource);
    world.beat(&agent).await;
    assert!(world.gateway.delete_team(&id(resource)));
    world.set_time("2026-12-01T00:02:30Z");
    world.run_to_rest(&agent, 9).await;
    assert_eq!(world.waldur.order_state(order), "done");
    assert_eq!(told(&world, resource, "2026-11", "spend"), "1.00");
    world.check();
}

#[tokio::test]
async fn months_that_cannot_be_billed_are_noted_one_beside_the_other_and_outlive_a_restore() {
    let world = World::new(Profile::Late2026).await;
    let agent = world.agent().await;
    let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
    world.set_time("2026-11-30T23:58:00Z");
    let order = world.waldur.terminate(resource);
    world.beat(&agent).await;
    spent(&world, resource, "2026-11-30T23:58:30Z", 1000, "1.00");
    spent(&world, resource, "2026-12-01T00:00:10Z", 2000, "2.00");
    world.faults.add(
        Rule::new(Fault::Status { status: 400, headers: Vec::new(), body: r#"{"usages":["no"]}"#.into(), after_effect: false })
            .peer(Peer::Waldur)
            .path("set_usage"),
    );
    world.run_to_rest(&agent, 150).await;
    assert_eq!(world.waldur.order_state(order), "done");
    let noted = |months: &[&str]| {
        let seen = world.waldur.resource(resource).backend_metadata;
        assert!(months.iter().all(|month| seen["llm_access"]["unbilled"].get(*month).is_some()), "{seen:?}");
    };
    noted(&["2026-11", "2026-12"]);
    world.waldur.restore(resource);
    world.run_to_rest(&agent, 9).await;
    noted(&["2026-11", "2026-12"]);
    world.check();
}

#[tokio::test]
async fn a_component_that_waldur_refuses_at_the_end_is_noted_as_unbilled_and_one_it_refused_before_is_tried_again() {
    for still in [true, false] {
        let world = World::new(Profile::Late2026).await;
        let agent = world.agent().await;
        let [first, second] = [world.sold(&agent, "aurora", &["kestrel-8b"]).await, world.sold(&agent, "boreas", &["kestrel-8b"]).await];
        spent(&world, first, "2026-11-10T09:00:10Z", 9000, "1.00");
        world.advance(Duration::from_secs(60));
        let answer = r#"{"non_field_errors":["These components are invalid: input_tokens."]}"#;
        let rule = world.faults.add(Rule::new(Fault::status(400, answer)).peer(Peer::Waldur).path("set_usage").body("input_tokens"));
        agent.usage_beat().await.unwrap();
        assert!(agent.conditions.holds("usage-component-refused"));
        spent(&world, second, "2026-11-10T09:01:10Z", 2000, "3.00");
        let order = world.waldur.terminate(second);
        if !still {
            world.faults.remove(rule);
        }
        world.run_to_rest(&agent, 20).await;
        assert_eq!(world.waldur.order_state(order), "done");
        assert_eq!(told(&world, second, "2026-11", "spend"), "3.00");
        assert_eq!(told(&world, second, "2026-11", "input_tokens"), if still { "none" } else { "2.00" });
        assert_eq!(agent.conditions.holds("unbilled"), still);
        let noted = &world.waldur.resource(second).backend_metadata["llm_access"]["unbilled"];
        assert_eq!(noted.get("2026-11").is_some(), still, "{noted:?}");
        world.check();
    }
}

#[tokio::test]
async fn nobody_lowers_the_figures_of_a_resource_that_is_being_ended() {
    let world = World::new(Profile::Late2026).await;
    world.ends_in_trouble("a person billed more than was used");
    let agent = world.agent().await;
    let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
    spent(&world, resource, "2026-11-10T09:00:10Z", 1000, "1.00");
    let typed = [waldur_client::Usage { kind: "spend".into(), amount: "5".parse().unwrap() }];
    agent.waldur.set_usage(resource, &typed, None).await.unwrap();
    world.waldur.terminate(resource);
    world.beat(&agent).await;
    let how = How { allow_decrease: true, ..How::default() };
    let report = world.agent().await.usage_pass(&Pass { how, ..Pass::default() }).await.unwrap();
    assert_eq!(report.lines[0].lower.len(), 1, "{:?}", report.lines);
    assert_eq!(
        (told(&world, resource, "2026-11", "spend"), told(&world, resource, "2026-11", "input_tokens")),
        ("5.00".into(), "1.00".into())
    );
    // One that lives is lowered.
    let other = world.sold(&agent, "boreas", &["kestrel-8b"]).await;
    agent.waldur.set_usage(other, &typed, None).await.unwrap();
    agent.usage_pass(&Pass { how, ..Pass::default() }).await.unwrap();
    assert_eq!(told(&world, other, "2026-11", "spend"), "0.00");
}

#[tokio::test]
async fn calls_that_somebody_allows_after_the_final_usage_was_told_are_billed_too() {
    for profile in PROFILES {
        let world = World::new(profile).await;
        let agent = world.agent().await;
        let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
        let key = world.key(resource, "project");
        world.gateway.chat(&key, "kestrel-8b", "P=1000 C=0").unwrap();
        let order = world.waldur.terminate(resource);
        // The final usage is told, and then nothing can be removed for a while.
        let refused = Fault::status(503, r#"{"error":{"message":"try again","type":"internal_server_error","code":"503"}}"#);
        world.faults.add(Rule::new(refused).peer(Peer::LiteLlm).path("/key/delete"));
        for _ in 0..20 {
            world.beat(&agent).await;
            world.advance(Duration::from_secs(60));
        }
        assert_eq!(told(&world, resource, "2026-11", "input_tokens"), "1.00", "{profile:?}");
        assert_eq!(world.waldur.order_state(order), "executing");
        world.gateway.edit_team(&id(resource), &json!({"blocked": false})).unwrap();
        world.gateway.chat(&key, "kestrel-8b", "P=1000 C=0").unwrap();
        world.faults.clear();
        world.run_to_rest(&agent, 40).await;
        assert_eq!(world.waldur.order_state(order), "done");
        assert_eq!(told(&world, resource, "2026-11", "input_tokens"), "2.00", "{profile:?}");
        world.check();
    }
}

#[tokio::test]
async fn an_older_reading_of_a_pass_does_not_touch_what_the_end_has_told() {
    let world = World::new(Profile::Late2026).await;
    let agent = world.patient().await;
    let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
    let order = world.waldur.terminate(resource);
    world.beat(&agent).await;
    spent(&world, resource, "2026-11-10T09:00:10Z", 1000, "1.00");
    world.advance(Duration::from_secs(200));
    world.beat(&agent).await;
    // A pass has read the ledger and is held up, while a last row comes, and the end is told and done.
    let held = world.faults.add(Rule::new(Fault::Hold).peer(Peer::Waldur).path("api-keys").once());
    let passing = {
        let agent = agent.clone();
        tokio::spawn(async move { agent.usage_beat().await })
    };
    world.faults.held().await;
    world.faults.remove(held);
    spent(&world, resource, "2026-11-10T09:00:20Z", 1000, "1.00");
    world.run_to_rest(&agent, 10).await;
    assert_eq!((world.waldur.order_state(order), told(&world, resource, "2026-11", "spend")), ("done".into(), "2.00".into()));
    world.faults.reset_calls();
    world.faults.release();
    passing.await.unwrap().unwrap();
    assert_eq!(world.writes(Some(Peer::Waldur)), Vec::<String>::new());
    for condition in ["usage-refused", "usage-lower"] {
        assert!(!agent.conditions.holds(condition), "{:?}", agent.conditions.all());
    }
    assert_eq!(told(&world, resource, "2026-11", "spend"), "2.00");
    world.check();
}

#[tokio::test]
async fn an_amount_that_waldur_refuses_for_one_resource_is_reported_for_the_others() {
    let world = World::new(Profile::Late2026).await;
    let agent = world.agent().await;
    let [first, second] = ["aurora", "boreas"]
        .map(|name| world.waldur.add_resource(world.offering, &world.project, name, &["kestrel-8b"], &[("max_budget", "50")]));
    for resource in [first, second] {
        spent(&world, resource, "2026-11-10T08:00:10Z", 2000, "1.00");
    }
    // The first of the batch, which is in alphabetical order.
    let answer = r#"{"usages":[{"amount":["Ensure that there are no more than 20 digits in total."]}]}"#;
    world.faults.add(Rule::new(Fault::status(400, answer)).peer(Peer::Waldur).path("set_usage").body(&id(first)).once());
    agent.usage_beat().await.unwrap();
    let figures = |resource| (told(&world, resource, "2026-11", "input_tokens"), told(&world, resource, "2026-11", "spend"));
    assert_eq!((figures(first), figures(second)), (("none".into(), "1.00".into()), ("2.00".into(), "1.00".into())));
    let said: Vec<_> = agent.conditions.all().into_iter().filter(|(name, ..)| *name == "usage-component-refused").collect();
    assert_eq!(said.len(), 1);
    assert!(said[0].1 == id(first) && said[0].2.message.contains("amounts of input_tokens"), "{said:?}");
    for resource in [first, second] {
        spent(&world, resource, "2026-11-10T08:30:10Z", 1000, "1.00");
    }
    agent.usage_beat().await.unwrap();
    assert_eq!((figures(first), figures(second)), (("none".into(), "2.00".into()), ("3.00".into(), "2.00".into())));
    world.advance(Duration::from_secs(3601));
    agent.usage_beat().await.unwrap();
    assert_eq!(figures(first), ("3.00".into(), "2.00".into()));
    assert!(!agent.conditions.holds("usage-component-refused"));
    // Days that Waldur refuses keep no total back.
    world.waldur.set_component_field(world.offering, "input_tokens", "spending_limit_periods", serde_json::json!(["day"]));
    let answer = r#"{"daily_usages":[{"date":["Invalid day."]}]}"#;
    world.faults.add(Rule::new(Fault::status(400, answer)).peer(Peer::Waldur).path("set_usage").body("daily_usages"));
    spent(&world, second, "2026-11-10T08:30:10Z", 1000, "1.00");
    agent.usage_beat().await.unwrap();
    assert_eq!(figures(second), ("4.00".into(), "3.00".into()));
}

#[tokio::test]
async fn usage_of_a_key_that_waldur_refuses_is_said_and_told_again_when_it_changes_or_after_an_hour() {
    let world = World::new(Profile::Late2026).await;
    let agent = world.agent().await;
    let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
    let client = world.waldur.api_keys(resource).remove(0);
    let key_usage = || world.waldur.key_usages(client.uuid, "2026-11").get("input_tokens").map(ToString::to_string);
    let chat = |tokens: &str| {
        world.gateway.chat(&world.key(resource, "project"), "kestrel-8b", tokens).unwrap();
        world.advance(Duration::from_secs(40));
    };
    let refuse = || world.faults.add(Rule::new(Fault::status(400, r#"{"usages":["no"]}"#)).peer(Peer::Waldur).path("report_usage").once());
    let tries = || world.writes(Some(Peer::Waldur)).iter().filter(|call| call.contains("report_usage")).count();
    refuse();
    chat("P=1000 C=0");
    for _ in 0..3 {
        agent.usage_beat().await.unwrap();
        assert!(agent.conditions.holds("usage-by-key-unreported"));
    }
    assert_eq!((key_usage(), tries()), (None, 1));
    assert_eq!(told(&world, resource, "2026-11", "input_tokens"), "1.00");
    chat("P=1000 C=0");
    agent.usage_beat().await.unwrap();
    assert_eq!((key_usage().as_deref(), tries()), (Some("2.00"), 2));
    assert!(!agent.conditions.holds("usage-by-key-unreported"));
    refuse();
    chat("P=1000 C=0");
    agent.usage_beat().await.unwrap();
    world.advance(Duration::from_secs(3600));
    agent.usage_beat().await.unwrap();
    assert_eq!((key_usage().as_deref(), tries()), (Some("3.00"), 4));
}

#[tokio::test]
async fn a_ledger_that_does_not_add_up_delays_an_end_and_bills_nothing() {
    let world = World::new(Profile::Late2026).await;
    let agent = world.agent().await;
    let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
    spent(&world, resource, "2026-11-09T10:00:00Z", 1000, "1.00");
    let nothing = r#"{"results":[],"metadata":{"page":1,"total_pages":0,"has_more":false}}"#;
    let answer = Fault::Replace { status: 200, headers: vec![("content-type".into(), "application/json".into())], body: nothing.into() };
    world.faults.add(Rule::new(answer).peer(Peer::LiteLlm).path("/team/daily/activity?"));
    let order = world.waldur.terminate(resource);
    for _ in 0..10 {
        world.beat(&agent).await;
        world.advance(Duration::from_secs(120));
    }
    assert_eq!(world.waldur.order_state(order), "executing");
    assert_eq!(told(&world, resource, "2026-11", "spend"), "none");
    world.faults.clear();
    world.run_to_rest(&agent, 20).await;
    assert_eq!(told(&world, resource, "2026-11", "spend"), "1.00");
    world.check();
}

#[tokio::test]
async fn the_audit_names_a_lost_flush_to_the_token_and_lag_by_its_calls() {
    let world = World::new(Profile::Y2024).await;
    for side in ["input", "output"] {
        world.waldur.add_usage_component(world.offering, &format!("kestrel-8b:{side}"));
    }
    let agent = world.agent().await;
    let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
    let key = world.key(resource, "project");
    world.gateway.chat(&key, "kestrel-8b", "P=1000 C=10").unwrap();
    world.advance(Duration::from_secs(40));
    agent.usage_beat().await.unwrap();
    let month = || "2026-11".parse().unwrap();
    let audit = agent.audit(month(), None).await.unwrap();
    assert!(audit.rows.iter().all(|row| !row.differs()) && audit.rows.len() >= 4, "{:?}", audit.rows);
    // Calls since the last pass.
    world.advance(Duration::from_secs(3600));
    world.gateway.chat(&key, "kestrel-8b", "P=500 C=0").unwrap();
    world.advance(Duration::from_secs(40));
    let audit = agent.audit(month(), None).await.unwrap();
    let row = audit.rows.iter().find(|row| row.kind == "kestrel-8b:input").unwrap();
    assert_eq!(row.reasons, [Reason::Lag(Decimal::from(500))]);
    assert_eq!((row.model.as_deref(), row.unexplained, audit.unexplained()), (Some("kestrel-8b"), false, 0));
    agent.usage_beat().await.unwrap();
    // The same gap an hour later has no excuse.
    world.advance(Duration::from_secs(3600));
    spent(&world, resource, "2026-11-10T09:00:00Z", 200, "0");
    let audit = agent.audit(month(), None).await.unwrap();
    let row = audit.rows.iter().find(|row| row.kind == "kestrel-8b:input").unwrap();
    assert!(row.unexplained, "{row:?}");
    // What only one of the two stores has, to the token.
    agent.usage_beat().await.unwrap();
    let only_daily = agent.audit(month(), None).await.unwrap();
    assert!(only_daily.rows.iter().all(|row| !row.differs()), "{:?}", only_daily.rows);
    let empty = r#"{"data":[],"total":0,"page":1,"page_size":1000,"total_pages":0,"total_is_capped":false}"#;
    let answer = Fault::Replace { status: 200, headers: vec![("content-type".into(), "application/json".into())], body: empty.into() };
    world.faults.add(Rule::new(answer).peer(Peer::LiteLlm).path("/spend/logs/v2"));
    let audit = agent.audit(month(), None).await.unwrap();
    let row = audit.rows.iter().find(|row| row.kind == "kestrel-8b:input").unwrap();
    assert_eq!(row.reasons, [Reason::LostFlush(Decimal::from(-1700))]);
    assert_eq!(row.reasons[0].to_string(), "lost flush: the log misses 1700 that the daily rows have");
    assert_eq!(audit.unexplained(), 0);
}

#[tokio::test]
async fn a_budget_that_the_gateway_does_not_reset_raises_an_alarm() {
    let world = World::new(Profile::Late2026).await;
    let agent = world.agent().await;
    let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
    let reset = world.gateway.team(&id(resource)).unwrap().budget_reset_at.unwrap();
    // The gateway's clock stands still, and with it its reset job.
    world.clock.set(reset);
    world.clock.advance(Duration::from_secs(3600));
    world.slow_beat(&agent).await;
    assert!(!agent.conditions.holds("budget-not-reset"));
    world.clock.advance(Duration::from_secs(1));
    world.slow_beat(&agent).await;
    assert!(agent.conditions.holds("budget-not-reset"));
    world.sim_clock.set(world.clock.now());
    world.slow_beat(&agent).await;
    assert!(!agent.conditions.holds("budget-not-reset"));
}

fn program(world: &World, args: &[&str]) -> Command {
    let mut command = agent_program(world);
    command.arg("usage").args(args);
    command
}

fn agent_program(world: &World) -> Command {
    let mut command = command(env!("CARGO_BIN_EXE_agent-under-test"));
    command.arg("--config").arg(world.write("config.yml", &world.config_text("")));
    command
}

fn text(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

async fn run(world: &World, args: &[&str], code: i32, words: &[&str]) -> String {
    let output = program(world, args).output().await.unwrap();
    let said = text(&output);
    assert_eq!(output.status.code(), Some(code), "usage {args:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is missing in the answer to usage {args:?}:\n{said}");
    }
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn status_shows_what_of_each_budget_is_spent_and_when_it_is_reset() {
    let world = World::in_real_time(Profile::Late2026, Store::Directory).await;
    let agent = world.agent().await;
    let (_, resource) = world.order("aurora", &["kestrel-8b"]);
    while world.open_orders().len() == 1 {
        world.beat(&agent).await;
    }
    world.gateway.set_lag(Duration::ZERO);
    world.gateway.chat(&world.key(resource, "project"), "kestrel-8b", "P=90000 C=0").unwrap();
    let reset = world.gateway.team(&id(resource)).unwrap().budget_reset_at.unwrap().to_string();
    let output = agent_program(&world).arg("status").output().await.unwrap();
    let said = text(&output);
    assert!(said.contains("SPEND / BUDGET") && said.contains("0.02 / 50 (0 %)") && said.contains(&reset), "{said}");
    let output = agent_program(&world).args(["status", "--json"]).output().await.unwrap();
    let row = serde_json::from_slice::<Value>(&output.stdout).unwrap()["resources"][0].clone();
    let shown = ["spend", "max_budget", "spent_percent", "budget_reset_at", "budget_reset_overdue"].map(|field| row[field].clone());
    let expected: [Value; 5] = ["0.0189".into(), "50".into(), "0".into(), reset.into(), false.into()];
    assert_eq!(shown, expected);
}

#[tokio::test]
async fn the_commands_say_what_they_do_and_exit_by_it() {
    let world = World::in_real_time(Profile::Late2026, Store::Directory).await;
    let now = world.clock.now();
    let month = now.to_string()[..7].to_owned();
    let resource = world.waldur.add_resource(world.offering, &world.project, "=aurora", &["kestrel-8b"], &[("max_budget", "50")]);
    run(&world, &["report"], 0, &["Waldur holds what the ledger shows for 1 resource"]).await;
    spent(&world, resource, &now.to_string(), 123_456, "1.005");

    run(&world, &["report", "--dry-run"], 0, &["would be sent: input_tokens +123.46 to 123.46, spend +1.01 to 1.01", &id(resource)]).await;
    assert_eq!(told(&world, resource, &month, "spend"), "none");
    run(&world, &["audit"], 0, &["lag: 1.005 in calls of the last 30 minutes"]).await;
    run(&world, &["report", "--resource", &id(resource)], 0, &["sent: input_tokens +123.46 to 123.46"]).await;
    assert_eq!(told(&world, resource, &month, "spend"), "1.01");
    run(&world, &["report"], 0, &["Waldur holds what the ledger shows"]).await;
    run(&world, &["report", "--resource", &id(Uuid::nil())], 2, &["is none of ours that lives"]).await;

    let json: Value = serde_json::from_str(&run(&world, &["audit", "--json"], 0, &[]).await).unwrap();
    assert_eq!((json["unexplained"].as_u64(), json["month"].as_str()), (Some(0), Some(month.as_str())));
    let row = json["rows"].as_array().unwrap().iter().find(|row| row["component"] == "spend").unwrap();
    assert_eq!(
        (row["waldur"].as_str(), row["daily"].as_str(), row["log"].as_str(), row["daily_exact"].as_str()),
        (Some("1.01"), Some("1.01"), Some("1.01"), Some("1.005"))
    );
    let csv = run(&world, &["audit", "--csv"], 0, &[]).await;
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("month,resource,slug,model,component,waldur,daily,log,daily_exact,log_exact,reason"));
    assert!(lines.all(|line| line.starts_with(&month) && line.matches(',').count() == 10 && !line.contains(",=")), "{csv}");

    // Somebody writes more into Waldur than there is.
    run(&world, &["audit", "--json", "--csv"], 2, &["cannot be used with"]).await;
    run(&world, &["audit", "--month", "2026-13"], 2, &["is no month"]).await;
    run(&world, &["backfill", "--from", "2026-05", "--to", "2026-04"], 2, &["is no range of months"]).await;
    run(&world, &["backfill", "--from", "2020-01", "--to", &month], 2, &["more than 24 months"]).await;
    spent(&world, resource, &now.to_string(), 1000, "1");
    run(&world, &["backfill", "--from", &month, "--to", &month], 0, &["[1/1]", "would be sent", "add --apply"]).await;
    run(&world, &["backfill", "--from", &month, "--to", &month, "--apply"], 0, &["sent: input_tokens +1.00 to 124.46"]).await;
    run(&world, &["backfill", "--from", &month, "--to", &month, "--apply"], 0, &["Waldur holds what the ledger shows"]).await;

    // What is not done shows in the exit code: a resource that is erred, a figure that is too high, a month that is closed.
    spent(&world, resource, &now.to_string(), 1000, "1");
    world.waldur.put_resource_state(resource, "Erred");
    run(&world, &["report"], 1, &["waits: Waldur takes no usage of a resource that is Erred", "1 have to wait"]).await;
    world.waldur.put_resource_state(resource, "OK");
    run(&world, &["report"], 0, &["sent: "]).await;
    let old: BillingMonth = month.parse().unwrap();
    let old = old.previous().previous();
    spent(&world, resource, &format!("{old}-10T10:00:00Z"), 1000, "1");
    let old = old.to_string();
    run(&world, &["backfill", "--from", &old, "--to", &old], 0, &["would be sent: input_tokens +1.00 to 1.00", "add --apply"]).await;
    let backfill = ["backfill", "--from", &old, "--to", &old, "--apply"];
    run(&world, &backfill, 1, &["unreported: ", "1 of a month that Waldur takes nothing for any more"]).await;

    // The gateway is away: nothing is said about figures.
    world.faults.add(Rule::new(Fault::status(503, "")).peer(Peer::LiteLlm));
    run(&world, &["report"], 1, &["503"]).await;
    run(&world, &["audit"], 1, &["503"]).await;
}

#[tokio::test]
async fn a_backfill_that_breaks_off_goes_on_where_it_stopped() {
    let world = World::in_real_time(Profile::Late2026, Store::Directory).await;
    world.waldur.close_months_before(jiff::civil::date(2020, 1, 1));
    let resource = world.waldur.add_resource(world.offering, &world.project, "aurora", &["kestrel-8b"], &[("max_budget", "50")]);
    let months: Vec<String> = ["2026-03", "2026-04", "2026-05"].map(str::to_owned).into();
    for month in &months {
        spent(&world, resource, &format!("{month}-10T10:00:00Z"), 1000, "1.00");
    }
    let range = ["backfill", "--from", "2026-03", "--to", "2026-05"];
    let apply = [&range[..], &["--apply"]].concat();
    let all = || months.iter().map(|month| told(&world, resource, month, "spend")).collect::<Vec<_>>();
    // Looked at first, nothing is written anywhere.
    let words = ["[1/3] 2026-03", "[3/3] 2026-05", "would be sent: input_tokens +1.00 to 1.00", "nothing was sent; add --apply to send it"];
    run(&world, &range, 0, &words).await;
    assert_eq!((all(), world.writes(None)), (vec!["none".to_owned(); 3], Vec::new()));
    // The gateway dies after the first month.
    world.faults.reset_calls();
    let asks = |month: &str| Rule::new(Fault::status(503, "")).peer(Peer::LiteLlm).path(&format!("start_date={month}"));
    let outage = world.faults.add(asks("2026-04"));
    run(&world, &apply, 1, &["503"]).await;
    assert_eq!(all(), ["1.00", "none", "none"]);
    world.faults.remove(outage);
    world.faults.reset_calls();
    let output = program(&world, &apply).output().await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert_eq!(all(), ["1.00"; 3]);
    let sent = world.writes(Some(Peer::Waldur)).iter().filter(|call| call.contains("set_usage")).count();
    assert_eq!(sent, 2, "what was sent is not sent again");
    assert!(!text(&output).contains(['\r', '\u{1b}']), "a progress bar is for terminals: {:?}", text(&output));
    run(&world, &apply, 0, &["2026-03: Waldur holds what the ledger shows"]).await;
}
