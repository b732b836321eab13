//! Usage around a month's end: what belongs to a month is filed under it, or not at all.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use llm_access_agent::agent::Agent;
use llm_access_agent::clock::Clock;
use llm_access_agent::features::Feature;
use llm_access_agent::usage::pass::{Pass, PassReport};
use llm_access_agent::usage::report::{How, Outcome};
use llm_access_fixtures::faults::{Fault, Peer, Rule};
use llm_access_fixtures::litellm::Usage;
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::crash::{self, Story};
use llm_access_tests::{PROFILES, World, catalogue};
use rust_decimal::Decimal;
use uuid::Uuid;

const DATED: [Profile; 2] = [Profile::V8_0, Profile::Late2026];

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn id(resource: Uuid) -> String {
    resource.simple().to_string()
}

fn sold(world: &World, name: &str) -> Uuid {
    world.waldur.add_resource(world.offering, &world.project, name, &["kestrel-8b"], &[("max_budget", "50")])
}

fn spent(world: &World, resource: Uuid, when: &str, spend: &str) {
    let usage = Usage { prompt_tokens: 0, completion_tokens: 0, cached_tokens: 0, spend: spend.parse().unwrap() };
    world.gateway.add_usage(Some(&id(resource)), &format!("hash-{}", id(resource)), "kestrel-8b", at(when), usage);
}

fn spend(world: &World, resource: Uuid, month: &str) -> String {
    world.waldur.usages(resource, month).get("spend").map_or_else(|| "none".into(), ToString::to_string)
}

async fn pass(agent: &Agent) -> PassReport {
    agent.usage_beat().await.unwrap()
}

fn sent(world: &World) -> usize {
    world.writes(Some(Peer::Waldur)).iter().filter(|call| call.contains("set_usage")).count()
}

fn said(agent: &Agent, name: &str) -> String {
    agent
        .conditions
        .all()
        .into_iter()
        .filter(|(n, ..)| *n == name)
        .map(|(_, subject, condition)| format!("{subject} {}", condition.message))
        .collect()
}

#[tokio::test]
async fn a_closed_month_is_never_filed_under_the_running_one() {
    let world = World::new(Profile::Y2024).await;
    world.set_time("2026-11-30T12:00:00Z");
    let agent = world.patient().await;
    let resource = sold(&world, "aurora");
    spent(&world, resource, "2026-11-20T10:00:00Z", "4812.50");
    pass(&agent).await;
    world.set_time("2026-12-01T06:00:00Z");
    spent(&world, resource, "2026-12-01T02:00:00Z", "3.20");
    world.faults.reset_calls();
    pass(&agent).await;
    assert_eq!((spend(&world, resource, "2026-11"), spend(&world, resource, "2026-12")), ("4812.50".into(), "3.20".into()));
    assert_eq!(sent(&world), 1);

    // A late row: said, not sent, and the audit does not pass over it.
    spent(&world, resource, "2026-11-30T23:59:00Z", "1.10");
    world.faults.reset_calls();
    for _ in 0..5 {
        pass(&agent).await;
        world.advance(Duration::from_secs(600));
    }
    assert_eq!(sent(&world), 0);
    let late = said(&agent, "usage-unreported");
    assert!(
        late.contains("late rows of 2026-11 are not sent") && late.contains(&id(resource)) && late.contains("spend +1.10 to 4813.60"),
        "{late}"
    );
    let audit = agent.audit("2026-11".parse().unwrap(), None).await.unwrap();
    let row = audit.rows.iter().find(|row| row.kind == "spend").unwrap();
    assert_eq!((row.waldur.unwrap().to_string(), row.daily.to_string(), row.unexplained), ("4812.50".into(), "4813.60".into(), true));
    assert_eq!(audit.unexplained(), 1);
    assert_eq!(spend(&world, resource, "2026-12"), "3.20");
    // A new process comes to the same.
    let fresh = world.patient().await;
    pass(&fresh).await;
    assert!(said(&fresh, "usage-unreported").contains("spend +1.10"));
    // Once nothing can come of it any more, it is no longer repeated.
    world.set_time("2026-12-05T06:00:00Z");
    pass(&agent).await;
    assert_eq!(said(&agent, "usage-unreported"), "");
    // But it is not forgotten, by this process or by one that begins now, until the month after is over.
    for agent in [agent, world.patient().await] {
        pass(&agent).await;
        let last = said(&agent, "usage-month-unreported");
        let command = format!("`usage backfill --from 2026-11 --to 2026-11 --resource {} --apply`", id(resource));
        assert!(last.contains("2026-11 is over") && last.contains("spend 4813.60") && last.contains(&command), "{last}");
        assert_eq!(spend(&world, resource, "2026-12"), "3.20");
        world.set_time("2026-12-31T12:00:00Z");
        pass(&agent).await;
        assert!(said(&agent, "usage-month-unreported").contains("2026-11 is over"));
        world.set_time("2027-01-01T12:00:00Z");
        pass(&agent).await;
        assert_eq!(said(&agent, "usage-month-unreported"), "");
        world.set_time("2026-12-05T06:00:00Z");
    }

    // A server that dates usage takes it.
    for profile in DATED {
        let world = World::new(profile).await;
        world.set_time("2026-11-30T12:00:00Z");
        let agent = world.patient().await;
        let resource = sold(&world, "aurora");
        spent(&world, resource, "2026-11-20T10:00:00Z", "4812.50");
        pass(&agent).await;
        world.set_time("2026-12-01T06:00:00Z");
        spent(&world, resource, "2026-12-01T02:00:00Z", "3.20");
        spent(&world, resource, "2026-11-30T23:59:00Z", "1.10");
        pass(&agent).await;
        assert_eq!(
            (spend(&world, resource, "2026-11"), spend(&world, resource, "2026-12")),
            ("4813.60".into(), "3.20".into()),
            "{profile:?}"
        );
        // After the late days nothing more is sent.
        world.set_time("2026-12-04T00:00:01Z");
        spent(&world, resource, "2026-11-30T23:59:00Z", "1.10");
        pass(&agent).await;
        assert_eq!(spend(&world, resource, "2026-11"), "4813.60");
    }
}

#[tokio::test]
async fn an_agent_that_was_down_over_the_boundary_catches_up_where_it_can() {
    for profile in PROFILES {
        let world = World::new(profile).await;
        world.set_time("2026-12-31T20:00:00Z");
        let resource = sold(&world, "aurora");
        spent(&world, resource, "2026-12-31T10:00:00Z", "7.00");
        pass(&world.patient().await).await;
        // Down from here on.
        spent(&world, resource, "2026-12-31T23:59:59.999Z", "2.00");
        spent(&world, resource, "2027-01-01T00:00:00Z", "0.50");
        world.set_time("2027-01-02T09:00:00Z");
        let agent = world.patient().await;
        pass(&agent).await;
        let december = if profile == Profile::Y2024 { "7.00" } else { "9.00" };
        assert_eq!(
            (spend(&world, resource, "2026-12"), spend(&world, resource, "2027-01")),
            (december.into(), "0.50".into()),
            "{profile:?}"
        );
        assert_eq!(said(&agent, "usage-unreported").contains("spend +2.00 to 9.00"), profile == Profile::Y2024);
    }
}

/// How many calls read the ledger from the first day of a month on.
fn ledger_reads(world: &World, month: &str) -> usize {
    let from = format!("start_date={month}-01");
    world.faults.calls().iter().filter(|call| call.path.contains("/team/daily/activity") && call.path.contains(&from)).count()
}

#[tokio::test]
async fn an_agent_that_was_down_past_the_late_days_looks_once_at_the_month_before() {
    for profile in PROFILES {
        let world = World::new(profile).await;
        world.set_time("2026-11-30T12:00:00Z");
        let [told, idle] = ["aurora", "idle"].map(|name| sold(&world, name));
        spent(&world, told, "2026-11-20T10:00:00Z", "7.00");
        spent(&world, idle, "2026-11-20T10:00:00Z", "1.00");
        pass(&world.patient().await).await;
        spent(&world, told, "2026-11-30T14:00:00Z", "2.00");
        world.set_time("2026-12-10T09:00:00Z");
        let agent = world.patient().await;
        world.faults.reset_calls();
        pass(&agent).await;
        assert!(ledger_reads(&world, "2026-11") > 0);
        let (november, lost) = if profile == Profile::Y2024 { ("7.00", true) } else { ("9.00", false) };
        assert_eq!(spend(&world, told, "2026-11"), november, "{profile:?}");
        let last = said(&agent, "usage-month-unreported");
        assert_eq!(last.contains("spend 9.00"), lost, "{profile:?}: {last}");
        assert!(!last.contains(&id(idle)), "{last}");
        // And never again.
        world.faults.reset_calls();
        for _ in 0..3 {
            world.advance(Duration::from_secs(7200));
            pass(&agent).await;
        }
        assert_eq!(ledger_reads(&world, "2026-11"), 0, "{profile:?}");
        assert_eq!(said(&agent, "usage-month-unreported").contains("spend 9.00"), lost);
    }
}

#[tokio::test]
async fn a_look_back_that_fails_is_done_again_and_a_month_filled_in_by_hand_is_no_longer_missed() {
    let world = World::new(Profile::Late2026).await;
    world.set_time("2026-12-10T09:00:00Z");
    let resource = sold(&world, "aurora");
    spent(&world, resource, "2026-11-20T10:00:00Z", "7.00");
    let agent = world.patient().await;
    let down = world.faults.add(Rule::new(Fault::status(502, "")).peer(Peer::Waldur).path("set_usage"));
    pass(&agent).await;
    assert_eq!(said(&agent, "usage-month-unreported"), "", "it is tried again");
    world.faults.remove(down);
    world.waldur.close_months_before(jiff::civil::date(2026, 12, 1));
    world.advance(Duration::from_secs(600));
    pass(&agent).await;
    assert!(said(&agent, "usage-month-unreported").contains("spend 7.00"));
    // The month is opened again, and an operator fills it in.
    world.waldur.close_months_before(jiff::civil::date(2026, 11, 1));
    let by_hand = world.patient().await;
    by_hand.usage_pass(&Pass { months: Some(vec!["2026-11".parse().unwrap()]), ..Pass::default() }).await.unwrap();
    assert_eq!(spend(&world, resource, "2026-11"), "7.00");
    world.advance(Duration::from_secs(3600));
    pass(&agent).await;
    assert_eq!(said(&agent, "usage-month-unreported"), "");
}

#[tokio::test]
async fn what_of_the_ledger_never_added_up_is_said_when_its_month_is_over() {
    let world = World::new(Profile::Late2026).await;
    world.set_time("2026-11-20T09:00:00Z");
    let resource = sold(&world, "aurora");
    spent(&world, resource, "2026-11-10T10:00:00Z", "7.00");
    let agent = world.patient().await;
    let nothing = r#"{"results":[],"metadata":{"page":1,"total_pages":0,"has_more":false}}"#;
    let answer = Fault::Replace { status: 200, headers: vec![("content-type".into(), "application/json".into())], body: nothing.into() };
    world.faults.add(Rule::new(answer).peer(Peer::LiteLlm).path("/team/daily/activity?"));
    pass(&agent).await;
    assert_eq!(said(&agent, "usage-month-unreported"), "");
    // After the late days of November nothing of it is read any more; what was last seen of it did not add up.
    world.set_time("2026-12-03T23:59:00Z");
    pass(&agent).await;
    world.faults.clear();
    world.set_time("2026-12-04T00:10:00Z");
    pass(&agent).await;
    let last = said(&agent, "usage-month-unreported");
    assert!(last.contains("ledger 2026-11 2026-11 is over") && last.contains("2026-11-10"), "{last}");
}

#[tokio::test]
async fn a_plan_that_changes_within_a_month_bills_the_month_once() {
    // Each generation as it is, and those in between that nobody has seen.
    let generations = PROFILES.map(|profile| (profile, profile == Profile::Late2026));
    for (profile, splits) in generations.into_iter().chain([(Profile::Late2026, false), (Profile::V8_0, true)]) {
        for restart in [false, true] {
            let world = World::new(profile).await;
            world.waldur.split_plans(splits);
            let other = world.waldur.add_plan(world.offering, "Large");
            let mut agent = world.patient().await;
            let resource = sold(&world, "aurora");
            let case = format!("{profile:?} splits {splits} restart {restart}");
            let mut total = Decimal::ZERO;
            for (spent_now, switch) in [(100, false), (0, true), (3, false), (30, false), (5, true), (7, false), (0, false)] {
                if switch {
                    world.waldur.switch_plan(
                        resource,
                        if total < Decimal::from(120) { other } else { world.waldur.plan_of(world.offering).unwrap() },
                    );
                }
                if spent_now > 0 {
                    spent(&world, resource, "2026-11-10T08:00:00Z", &spent_now.to_string());
                    total += Decimal::from(spent_now);
                }
                if restart {
                    agent = world.patient().await;
                }
                let report = pass(&agent).await;
                assert!(report.failures().next().is_none(), "{case} at {total}: {:?}", report.lines);
                assert_eq!(spend(&world, resource, "2026-11"), format!("{total:.2}"), "{case}");
                world.advance(Duration::from_secs(600));
            }
            world.faults.reset_calls();
            world.advance(Duration::from_secs(3700));
            pass(&agent).await;
            assert_eq!(sent(&world), 0, "{case}");
            // Late rows of the month: sent where the server divides them itself, said where nobody knows whose they are.
            world.set_time("2026-12-01T06:00:00Z");
            spent(&world, resource, "2026-11-30T23:59:00Z", "1");
            pass(&agent).await;
            let november = if splits && !restart { "146.00" } else { "145.00" };
            if splits && restart {
                // A process that has seen no change of plan does not know what the server does with one.
                assert!(["145.00", "146.00"].contains(&spend(&world, resource, "2026-11").as_str()));
            } else {
                assert_eq!(spend(&world, resource, "2026-11"), november, "{case}");
            }
            assert_eq!(spend(&world, resource, "2026-11") == "145.00", said(&agent, "usage-unreported").contains("+1.00"), "{case}");
        }
    }
}

#[tokio::test]
async fn the_example_of_the_documentation_is_so() {
    let world = World::new(Profile::Late2026).await;
    for kind in ["kestrel-8b:input", "kestrel-8b:output"] {
        world.waldur.add_usage_component(world.offering, kind);
    }
    let resource = sold(&world, "aurora");
    for (when, key, prompt, completion, spend) in [
        ("2026-11-10T09:00:00Z", "project", 120_000, 30_000, "0.0507"),
        ("2026-11-10T09:10:00Z", "chat", 3_456, 789, "0.00139641"),
        ("2026-11-30T23:59:59.999Z", "project", 1_000, 0, "0.00021"),
        ("2026-12-01T00:00:00Z", "project", 500, 0, "0.000105"),
    ] {
        let usage = Usage { prompt_tokens: prompt, completion_tokens: completion, cached_tokens: 0, spend: spend.parse().unwrap() };
        world.gateway.add_usage(Some(&id(resource)), key, "kestrel-8b", at(when), usage);
    }
    world.set_time("2026-12-01T00:20:00Z");
    pass(&world.patient().await).await;
    let told = |month: &str, kind: &str| world.waldur.usages(resource, month).get(kind).map(ToString::to_string);
    let page = include_str!("../../docs/billing.md");
    for (kind, amount) in [
        ("kestrel-8b:input", "124.46"),
        ("kestrel-8b:output", "30.79"),
        ("input_tokens", "124.46"),
        ("output_tokens", "30.79"),
        ("spend", "0.05"),
    ] {
        assert_eq!(told("2026-11", kind).as_deref(), Some(amount), "{kind}");
        assert!(page.contains(amount), "{amount}");
    }
    assert_eq!(told("2026-12", "kestrel-8b:input").as_deref(), Some("0.50"));
}

#[tokio::test]
async fn no_component_goes_while_a_new_process_has_not_seen_whether_usage_is_owed() {
    let world = World::new(Profile::Late2026).await;
    let agent = world.patient().await;
    agent.offering_beat().await;
    let resource = sold(&world, "aurora");
    world.write("catalogue.yml", &catalogue(&["kestrel-8b", "heron-70b"]));
    for _ in 0..5 {
        world.slow_beat(&agent).await;
        agent.offering_beat().await;
        world.advance(Duration::from_secs(1500));
    }
    drop(agent);
    let removals = || world.faults.calls().iter().filter(|call| call.path.contains("remove_offering_component")).count();
    world.set_time("2027-01-20T09:00:00Z");
    spent(&world, resource, "2027-01-10T08:00:00Z", "1.00");
    let agent = world.patient().await;
    world.faults.reset_calls();
    agent.offering_beat().await;
    assert_eq!((removals(), sent(&world)), (0, 0), "what is owed is not reported by this loop");
    let down = world.faults.add(Rule::new(Fault::status(503, "")).peer(Peer::LiteLlm).path("/team/daily/activity"));
    agent.offering_beat().await;
    assert_eq!(removals(), 0, "nor is anything known without the ledger");
    world.faults.remove(down);
    pass(&agent).await;
    agent.offering_beat().await;
    assert!(removals() > 0, "{:?}", agent.conditions.all());
}

#[tokio::test]
async fn tokens_far_beyond_what_a_float_counts_are_billed_to_the_token() {
    let world = World::new(Profile::Late2026).await;
    let agent = world.patient().await;
    let resource = sold(&world, "aurora");
    let usage = Usage { prompt_tokens: 9_007_199_254_740_993, completion_tokens: 0, cached_tokens: 0, spend: "0.01".parse().unwrap() };
    for n in 0..3 {
        world.gateway.add_usage(Some(&id(resource)), &format!("k{n}"), "kestrel-8b", at("2026-11-09T08:00:00Z"), usage);
    }
    pass(&agent).await;
    assert_eq!(world.waldur.usages(resource, "2026-11")["input_tokens"].to_string(), "27021597764222.98");
}

#[tokio::test]
async fn a_model_that_gets_another_name_and_keys_that_are_replaced_lose_nothing() {
    for profile in PROFILES {
        let world = World::new(profile).await;
        for kind in ["kestrel-8b:input", "kestrel-9b:input"] {
            world.waldur.add_usage_component(world.offering, kind);
        }
        let agent = world.patient().await;
        let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
        world.gateway.chat(&world.key(resource, "project"), "kestrel-8b", "P=1000 C=0").unwrap();
        world.advance(Duration::from_secs(40));
        agent.rotate_keys(resource, &[], true).await.unwrap();
        world.gateway.chat(&world.key(resource, "project"), "kestrel-8b", "P=2000 C=0").unwrap();
        world.advance(Duration::from_secs(40));
        // The gateway serves it under another name from now on.
        let usage = Usage { prompt_tokens: 4000, completion_tokens: 0, cached_tokens: 0, spend: Decimal::ZERO };
        world.gateway.add_usage(Some(&id(resource)), "renamed", "kestrel-9b", world.clock.now(), usage);
        pass(&agent).await;
        let told = world.waldur.usages(resource, "2026-11");
        let told = |kind: &str| told.get(kind).map_or_else(|| "none".into(), ToString::to_string);
        assert_eq!(
            (told("kestrel-8b:input"), told("kestrel-9b:input"), told("input_tokens")),
            ("3.00".into(), "4.00".into(), "7.00".into()),
            "{profile:?}"
        );
    }
}

#[tokio::test]
async fn a_leap_day_and_a_year_end_belong_where_they_are() {
    for (before, edge, after, months) in [
        ("2028-02-28T12:00:00Z", "2028-02-29T23:59:59.999Z", "2028-03-01T00:00:00Z", ("2028-02", "2028-03")),
        ("2026-12-31T12:00:00Z", "2026-12-31T23:59:59.999Z", "2027-01-01T00:00:00Z", ("2026-12", "2027-01")),
    ] {
        let world = World::new(Profile::Late2026).await;
        world.set_time(before);
        let agent = world.patient().await;
        let resource = sold(&world, "aurora");
        spent(&world, resource, edge, "1.00");
        spent(&world, resource, after, "2.00");
        world.set_time(after);
        world.advance(Duration::from_secs(3600));
        pass(&agent).await;
        assert_eq!((spend(&world, resource, months.0), spend(&world, resource, months.1)), ("1.00".into(), "2.00".into()), "{edge}");
    }
}

#[tokio::test]
async fn a_pass_over_which_the_month_ends_reports_nothing_more() {
    // The calls of a clean pass, to end the month before each of them.
    let prepared = async || {
        let world = World::new(Profile::Y2024).await;
        world.set_time("2026-11-30T23:30:00Z");
        let agent = world.agent_with("usage: {month_guard: 0s}\n").await;
        let resource = sold(&world, "aurora");
        spent(&world, resource, "2026-11-30T10:00:00Z", "7.00");
        pass(&agent).await;
        spent(&world, resource, "2026-11-30T11:00:00Z", "3.00");
        world.faults.reset_calls();
        (world, agent, resource)
    };
    let (world, agent, _) = prepared().await;
    pass(&agent).await;
    let calls: Vec<String> = world.faults.calls().iter().map(|call| call.path.clone()).collect();
    assert!(calls.len() > 6, "{calls:?}");
    let writes_at = calls.iter().position(|path| path.contains("set_usage")).unwrap() + 1;
    for k in 1..writes_at {
        let (world, agent, resource) = prepared().await;
        let (clock, sim) = (world.clock.clone(), world.sim_clock.clone());
        let gateway = world.gateway.clone();
        let key = id(resource);
        world.faults.before_call(k, move || {
            clock.set(at("2026-12-01T00:00:01Z"));
            sim.set(at("2026-12-01T00:00:01Z"));
            let usage = Usage { prompt_tokens: 0, completion_tokens: 0, cached_tokens: 0, spend: Decimal::ONE };
            gateway.add_usage(Some(&key), "k", "kestrel-8b", at("2026-12-01T00:00:00.500Z"), usage);
        });
        pass(&agent).await;
        assert_eq!(
            (spend(&world, resource, "2026-11"), spend(&world, resource, "2026-12")),
            ("7.00".into(), "none".into()),
            "month's end before call {k}: {}",
            calls[k - 1]
        );
        pass(&agent).await;
        assert_eq!(spend(&world, resource, "2026-12"), "1.00");
        assert_eq!(spend(&world, resource, "2026-11"), "7.00");
    }
}

#[tokio::test]
async fn nothing_is_sent_to_an_undated_server_near_a_month_end() {
    let world = World::new(Profile::Y2024).await;
    let agent = world.patient().await;
    let resource = sold(&world, "aurora");
    spent(&world, resource, "2026-11-20T10:00:00Z", "7.00");
    world.set_time("2026-11-30T23:46:00Z");
    let report = pass(&agent).await;
    assert!(matches!(report.lines[0].outcome, Ok(Outcome::Waits(_))), "{:?}", report.lines);
    assert!(said(&agent, "usage-waits").contains("a month's end is near"));
    world.set_time("2026-12-01T00:05:00Z");
    spent(&world, resource, "2026-12-01T00:01:00Z", "0.50");
    pass(&agent).await;
    assert_eq!(sent(&world), 0);
    world.set_time("2026-12-01T00:16:00Z");
    pass(&agent).await;
    assert_eq!((spend(&world, resource, "2026-11"), spend(&world, resource, "2026-12")), ("none".into(), "0.50".into()));
    // A dated one takes it, up to the last moment and from the first on.
    let world = World::new(Profile::V8_0).await;
    let agent = world.patient().await;
    let resource = sold(&world, "aurora");
    spent(&world, resource, "2026-11-20T10:00:00Z", "7.00");
    world.set_time("2026-11-30T23:59:00Z");
    pass(&agent).await;
    assert_eq!(spend(&world, resource, "2026-11"), "7.00");
    world.set_time("2026-12-01T00:00:05Z");
    spent(&world, resource, "2026-12-01T00:00:01Z", "0.50");
    spent(&world, resource, "2026-11-30T23:59:59Z", "1.00");
    pass(&agent).await;
    assert_eq!((spend(&world, resource, "2026-11"), spend(&world, resource, "2026-12")), ("8.00".into(), "0.50".into()));
}

macro_rules! zones {
    ($($name:ident: $zone:literal, $month_end:literal;)+) => {$(
        #[tokio::test]
        async fn $name() {
            every_month_is_right($zone, $month_end).await;
        }
    )+};
}

zones! {
    a_waldur_in_athens_is_ahead: "Europe/Athens", "2026-11-30";
    a_waldur_in_athens_is_ahead_after_its_clocks_changed: "Europe/Athens", "2026-10-31";
    a_waldur_in_new_york_is_late: "America/New_York", "2026-11-30";
    a_waldur_in_kiritimati_is_fourteen_hours_ahead: "Pacific/Kiritimati", "2026-03-31";
}

/// Passes around a month's end, with a call before each.
async fn every_month_is_right(zone: &str, month_end: &str) {
    for profile in PROFILES {
        let world = World::new(profile).await;
        world.waldur.set_zone(TimeZone::get(zone).unwrap());
        let start = at(&format!("{month_end}T00:00:00Z"));
        let agent =
            Agent::new(world.parse(&world.config_text("").replace("waldur: {", &format!("waldur: {{zone: {zone}, "))), world.clock.clone())
                .await
                .unwrap();
        world.set_time(&start.to_string());
        let resource = sold(&world, "aurora");
        let (mut old, mut new) = (Decimal::ZERO, Decimal::ZERO);
        for step in 6..=40_i64 {
            let now = start.checked_add(jiff::SignedDuration::from_mins(63 * step)).unwrap();
            let call = now.checked_sub(jiff::SignedDuration::from_mins(1)).unwrap();
            world.set_time(&now.to_string());
            spent(&world, resource, &call.to_string(), "1.00");
            if call.to_string().starts_with(month_end) {
                old += Decimal::ONE
            } else {
                new += Decimal::ONE
            }
            pass(&agent).await;
            let told = |month: &str| world.waldur.usages(resource, month).get("spend").copied().unwrap_or_default();
            let next = start.checked_add(jiff::SignedDuration::from_hours(24)).unwrap();
            assert!(told(&month_end[..7]) <= old && told(&next.to_string()[..7]) <= new, "{zone} {profile:?} at {now}");
        }
        let next = start.checked_add(jiff::SignedDuration::from_hours(24)).unwrap().to_string();
        assert_eq!(spend(&world, resource, &next[..7]), format!("{new}.00"), "{zone} {profile:?}");
        if profile != Profile::Y2024 {
            assert_eq!(spend(&world, resource, &month_end[..7]), format!("{old}.00"), "{zone} {profile:?}");
        }
    }
}

#[tokio::test]
async fn a_clock_that_jumps_files_nothing_under_a_wrong_month() {
    for profile in PROFILES {
        let world = World::new(profile).await;
        world.set_time("2026-12-10T09:00:00Z");
        let resource = sold(&world, "aurora");
        spent(&world, resource, "2026-11-05T10:00:00Z", "50.00");
        spent(&world, resource, "2026-12-05T10:00:00Z", "5.00");
        // The agent's clock alone is a month behind, and then a month ahead.
        for wrong in ["2026-11-10T09:00:00Z", "2027-01-10T09:00:00Z"] {
            let lost = Agent::new(world.config(""), Clock::manual(at(wrong))).await.unwrap();
            drop(lost.usage_beat().await);
            assert!(!said(&lost, "clocks-differ").is_empty() && !said(&lost, "usage-waits").is_empty(), "{profile:?} {wrong}");
        }
        let told = |month: &str| spend(&world, resource, month);
        let nothing = || "none".to_owned();
        assert_eq!((told("2026-11"), told("2026-12"), told("2027-01")), (nothing(), nothing(), nothing()), "{profile:?}");
        pass(&world.patient().await).await;
        let november = if profile == Profile::Y2024 { "none" } else { "50.00" };
        assert_eq!((told("2026-11"), told("2026-12"), told("2027-01")), (november.into(), "5.00".into(), nothing()), "{profile:?}");
    }
}

#[tokio::test]
async fn an_answer_that_was_kept_from_another_month_files_nothing_under_this_one() {
    for profile in PROFILES {
        let world = World::new(profile).await;
        world.faults.keep_answers();
        world.set_time("2026-11-11T09:00:00Z");
        let agent = world.agent().await;
        let resource = sold(&world, "aurora");
        spent(&world, resource, "2026-11-10T10:00:00Z", "1.00");
        pass(&agent).await;
        let told = |month: &str| spend(&world, resource, month);
        assert_eq!((told("2026-11"), told("2026-12")), ("1.00".into(), "none".into()), "{profile:?}");
        spent(&world, resource, "2026-11-30T23:00:00Z", "1.00");
        world.set_time("2026-12-02T09:00:00Z");
        world.faults.add(Rule::new(Fault::Stale).peer(Peer::Waldur).method("GET").path("component-usages"));
        drop(agent.usage_beat().await);
        assert_eq!(told("2026-12"), "none", "{profile:?}");
        world.faults.clear();
        pass(&agent).await;
        let november = if profile == Profile::Y2024 { "1.00" } else { "2.00" };
        assert_eq!((told("2026-11"), told("2026-12")), (november.into(), "none".into()), "{profile:?}");
        assert!(!agent.conditions.holds("usage-waits") && !agent.conditions.holds("clocks-differ"), "{:?}", agent.conditions.all());
    }
}

#[tokio::test]
async fn a_month_whose_invoice_is_closed_is_said_once_and_not_tried_for_ever() {
    let world = World::new(Profile::Late2026).await;
    world.set_time("2026-12-01T06:00:00Z");
    world.waldur.close_months_before(jiff::civil::date(2026, 12, 1));
    let agent = world.patient().await;
    let resource = sold(&world, "aurora");
    spent(&world, resource, "2026-11-30T10:00:00Z", "1.00");
    spent(&world, resource, "2026-12-01T02:00:00Z", "3.00");
    for _ in 0..4 {
        pass(&agent).await;
        spent(&world, resource, "2026-11-30T11:00:00Z", "0.10");
        world.advance(Duration::from_secs(600));
    }
    let tries = world.writes(Some(Peer::Waldur)).iter().filter(|call| call.contains("set_usage")).count();
    assert_eq!(tries, 2, "one that is refused, one for December");
    assert!(said(&agent, "usage-unreported").contains("+1.30 to 1.30"), "{}", said(&agent, "usage-unreported"));
    assert_eq!((spend(&world, resource, "2026-11"), spend(&world, resource, "2026-12")), ("none".into(), "3.00".into()));
}

#[tokio::test]
async fn that_a_server_dates_usage_is_believed_when_it_shows_it_and_what_it_misfiled_is_set_right() {
    let world = World::new(Profile::Late2026).await;
    world.waldur.ignore_usage_dates(true);
    world.set_time("2026-12-02T06:00:00Z");
    let agent = world.patient().await;
    let resources = [sold(&world, "aurora"), sold(&world, "borealis")];
    for resource in resources {
        spent(&world, resource, "2026-11-30T10:00:00Z", "100.00");
        spent(&world, resource, "2026-12-01T02:00:00Z", "3.00");
    }
    for _ in 0..3 {
        pass(&agent).await;
        world.advance(Duration::from_secs(600));
    }
    for resource in resources {
        assert_eq!((spend(&world, resource, "2026-11"), spend(&world, resource, "2026-12")), ("none".into(), "3.00".into()));
    }
    assert!(said(&agent, "usage-unreported").contains("spend +100.00"));
    world.faults.reset_calls();
    pass(&agent).await;
    assert_eq!(sent(&world), 0);
}

#[tokio::test]
async fn what_a_process_misfiled_before_it_ended_is_set_right_by_the_next() {
    let world = World::new(Profile::Late2026).await;
    world.ends_in_trouble("a person billed what was not used");
    world.waldur.ignore_usage_dates(true);
    world.set_time("2026-12-10T06:00:00Z");
    let [used, idle, more] = ["aurora", "idle", "more"].map(|name| sold(&world, name));
    for (resource, december) in [(used, "3.00"), (idle, "0"), (more, "500.00")] {
        spent(&world, resource, "2026-11-30T10:00:00Z", "100.00");
        spent(&world, resource, "2026-12-01T02:00:00Z", december);
    }
    // Each fills November in for one resource, and ends without a look at December.
    for resource in [used, idle, more] {
        let months = Some(vec!["2026-11".parse().unwrap()]);
        let report = world.patient().await.usage_pass(&Pass { only: Some(resource), months, ..Pass::default() }).await.unwrap();
        assert_eq!(report.failures().count(), 1, "{:?}", report.lines);
        assert_eq!((spend(&world, resource, "2026-11"), spend(&world, resource, "2026-12")), ("none".into(), "100.00".into()));
    }
    // Somebody wrote too much into Waldur as well: that is not the agent's to lower.
    let typed = sold(&world, "typed");
    let figure = [waldur_client::Usage { kind: "spend".into(), amount: Decimal::from(100) }];
    world.patient().await.waldur.set_usage(typed, &figure, None).await.unwrap();
    let agent = world.patient().await;
    pass(&agent).await;
    let december = [used, idle, more, typed].map(|resource| spend(&world, resource, "2026-12"));
    assert_eq!(december, ["3.00", "0.00", "500.00", "100.00"]);
    assert_eq!(said(&agent, "usage-misfiled"), "");
    assert!(said(&agent, "usage-lower").contains(&id(typed)) && !said(&agent, "usage-lower").contains(&id(used)));
    world.faults.reset_calls();
    world.advance(Duration::from_secs(3700));
    pass(&agent).await;
    assert_eq!(sent(&world), 0);
    assert!(said(&agent, "usage-month-unreported").contains("spend 100.00"));
}

/// Passes of an agent, each of whose calls may fail in every way or be its last.
struct Passes {
    profile: Profile,
    /// The server ignores the date of usage.
    undated: bool,
    /// The plan changed after a first report, on a server that divides what it is told or does not.
    switched: Option<bool>,
}

impl Story for Passes {
    async fn prepare(&self) -> World {
        let world = World::new(self.profile).await;
        world.waldur.ignore_usage_dates(self.undated);
        if let Some(splits) = self.switched {
            world.waldur.split_plans(splits);
        }
        world.set_time("2026-12-01T06:00:00Z");
        let resource = sold(&world, "aurora");
        spent(&world, resource, "2026-12-01T02:00:00Z", "3.00");
        if self.switched.is_some() {
            pass(&world.patient().await).await;
            world.waldur.switch_plan(resource, world.waldur.add_plan(world.offering, "Large"));
            spent(&world, resource, "2026-12-01T04:00:00Z", "4.00");
        }
        if self.undated {
            spent(&world, resource, "2026-11-30T10:00:00Z", "100.00");
        }
        world
    }

    fn begin(&self, _: &World) {}

    async fn turn(&self, world: &World, agent: &Agent) {
        for _ in 0..3 {
            drop(agent.usage_beat().await);
            world.advance(Duration::from_secs(1200));
        }
    }

    fn is_at_rest(&self, _: &Agent) -> bool {
        true
    }

    fn picture(&self, world: &World) -> Vec<String> {
        let resource = world.waldur.resources()[0].uuid;
        let december = if self.switched.is_some() { "7.00" } else { "3.00" };
        assert_eq!((spend(world, resource, "2026-11"), spend(world, resource, "2026-12")), ("none".into(), december.into()));
        Vec::new()
    }
}

#[test]
fn a_process_may_end_while_a_server_misfiles_what_it_is_told() {
    crash::everywhere("a server that ignores dates", &Passes { profile: Profile::Late2026, undated: true, switched: None });
}

#[test]
fn a_process_may_end_while_a_month_with_two_plans_is_told() {
    for (profile, splits) in [(Profile::Y2024, false), (Profile::Late2026, true), (Profile::Late2026, false)] {
        let name = format!("two plans, {profile:?}, divided by the server: {splits}");
        crash::everywhere(&name, &Passes { profile, undated: false, switched: Some(splits) });
    }
}

#[tokio::test]
async fn a_figure_of_the_running_month_does_not_prove_that_a_server_dates_usage() {
    let world = World::new(Profile::V8_0).await;
    world.waldur.ignore_usage_dates(true);
    let agent = world.patient().await;
    let resource = sold(&world, "aurora");
    spent(&world, resource, "2026-11-20T10:00:00Z", "7.00");
    // Near the month's end it goes with a date, and lands where it belongs only because the month still runs.
    world.set_time("2026-11-30T23:50:00Z");
    pass(&agent).await;
    assert_eq!(spend(&world, resource, "2026-11"), "7.00");
    assert_eq!(agent.features.known(Feature::DatedUsage), None);
    world.set_time("2026-12-01T00:20:00Z");
    spent(&world, resource, "2026-11-30T23:59:00Z", "1.00");
    spent(&world, resource, "2026-12-01T00:10:00Z", "0.50");
    for _ in 0..2 {
        pass(&agent).await;
        world.advance(Duration::from_secs(600));
    }
    assert_eq!((spend(&world, resource, "2026-11"), spend(&world, resource, "2026-12")), ("7.00".into(), "0.50".into()));
    assert_eq!(agent.features.known(Feature::DatedUsage), Some(false));
    // Where it does date usage, a past month shows it.
    let world = World::new(Profile::V8_0).await;
    world.set_time("2026-12-01T00:20:00Z");
    let agent = world.patient().await;
    spent(&world, sold(&world, "aurora"), "2026-11-30T23:59:00Z", "1.00");
    pass(&agent).await;
    assert_eq!(agent.features.known(Feature::DatedUsage), Some(true));
}

#[tokio::test]
async fn months_are_filled_in_later_where_the_server_takes_them() {
    let world = World::new(Profile::Late2026).await;
    world.set_time("2026-12-20T06:00:00Z");
    let agent = world.patient().await;
    let resource = sold(&world, "aurora");
    for (day, amount) in [("2026-10-30", "1.00"), ("2026-11-30", "2.00"), ("2026-12-02", "3.00")] {
        spent(&world, resource, &format!("{day}T10:00:00Z"), amount);
    }
    let month = |text: &str| Some(vec![text.parse().unwrap()]);
    let dry = agent
        .usage_pass(&Pass { how: How { dry_run: true, ..How::default() }, months: month("2026-11"), ..Pass::default() })
        .await
        .unwrap();
    assert!(
        matches!(&dry.lines[0].outcome, Ok(Outcome::Would(changes)) if changes[0].to_string() == "spend +2.00 to 2.00"),
        "{:?}",
        dry.lines
    );
    assert_eq!(world.writes(None), Vec::<String>::new());
    for _ in 0..2 {
        let done = agent.usage_pass(&Pass { months: month("2026-11"), ..Pass::default() }).await.unwrap();
        assert!(done.failures().next().is_none());
    }
    assert_eq!(sent(&world), 1);
    assert_eq!(spend(&world, resource, "2026-11"), "2.00");
    let closed = agent.usage_pass(&Pass { months: month("2026-10"), ..Pass::default() }).await.unwrap();
    assert!(matches!(&closed.lines[0].outcome, Ok(Outcome::Closed { .. })), "{:?}", closed.lines);
    pass(&agent).await;
    assert_eq!((spend(&world, resource, "2026-10"), spend(&world, resource, "2026-12")), ("none".into(), "3.00".into()));
}
