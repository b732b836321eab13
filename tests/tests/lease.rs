//! Two replicas, as programs of their own, with one Lease: one acts, the other takes over when the first dies, hangs or goes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ops::Deref;
use std::time::{Duration, Instant};

use llm_access_agent::lease::check;
use llm_access_fixtures::faults::{Fault, Rule};
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::program::{Program, until_within};
use llm_access_tests::{Store, World, checker};

/// The longest wait for something to happen; only a broken program takes it.
const PATIENCE: Duration = Duration::from_secs(60);

/// The agents' own namespace.
const NAMESPACE: &str = "llm-access";

/// A replica of the agent.
struct Replica(Program);

impl Deref for Replica {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.0
    }
}

impl Replica {
    /// `duration` is how long a holder that went silent keeps the Lease.
    fn start(world: &World, name: &str, duration: &str) -> Self {
        let more = format!(
            "intervals: {{orders: 100ms, resources: 300ms, offering: 1s, usage: 1s}}\nbackoff: {{initial: 100ms, max: 500ms}}\n\
             lease: {{namespace: {NAMESPACE}, duration: {duration}}}\nhttp: {{listen: \"127.0.0.1:0\"}}\n"
        );
        let config = world.config_text(&more).replace("timeout: 400ms", "timeout: 10s");
        Self(Program::start(env!("CARGO_BIN_EXE_agent-under-test"), world, name, &config, &[]))
    }

    /// What it said last about the Lease.
    fn leads(&self) -> bool {
        let log = self.log();
        log.lines().rfind(|line| line.contains("replica leads")).is_some_and(|line| line.contains("this replica leads"))
    }

    async fn end(&mut self) -> Option<i32> {
        self.0.end().await.code()
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let answer = client.get(format!("http://127.0.0.1:{}{path}", self.port().await)).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }
}

/// Waits until something is so.
async fn until(what: &str, replicas: &[&Replica], so: impl Fn() -> bool) {
    let programs: Vec<&Program> = replicas.iter().map(|replica| &replica.0).collect();
    until_within(PATIENCE, what, &programs, so).await;
}

async fn world(profile: Profile) -> World {
    let world = World::in_real_time(profile, Store::Kube).await;
    world.kube.add_namespace(NAMESPACE);
    world
}

/// The first leads, and the second knows.
async fn pair(world: &World, duration: &str) -> (Replica, Replica) {
    let first = Replica::start(world, "first", duration);
    until("the first leads", &[&first], || first.leads()).await;
    let second = Replica::start(world, "second", duration);
    until("the second follows", &[&second], || second.log().contains("another replica leads")).await;
    (first, second)
}

fn holder(world: &World) -> String {
    world.kube.lease(NAMESPACE, "llm-access-agent").unwrap()["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn one_acts_and_the_other_shows_that_it_lives() {
    let world = world(Profile::Late2026).await;
    let (first, second) = pair(&world, "2s").await;
    let (order, _) = world.order("aurora", &["kestrel-8b"]);
    until("the order is done", &[&first, &second], || world.waldur.order_state(order) == "done").await;
    assert!(first.log().contains("order done") && !second.log().contains("order done"));
    assert!(!second.log().contains("resources compared"), "{}", *second);
    for path in ["/livez", "/readyz", "/status", "/metrics"] {
        let (status, body) = second.get(path).await;
        assert_eq!(status, 200, "{path}: {body}");
        if path == "/metrics" {
            assert!(body.lines().any(|line| line.starts_with("llm_access_leading 0")), "{body}");
        }
    }
    let (_, body) = first.get("/metrics").await;
    assert!(body.lines().any(|line| line.starts_with("llm_access_leading 1")), "{body}");
    world.check();
}

#[tokio::test]
async fn check_says_which_right_on_the_lease_is_missing() {
    let world = World::new(Profile::Late2026).await;
    world.kube.add_namespace(NAMESPACE);
    let config = world.config(&format!("lease: {{namespace: {NAMESPACE}}}\n"));
    assert_eq!(check(&world.config("")).await, Ok(None));
    assert_eq!(check(&config).await, Ok(Some("llm-access/llm-access-agent may be read, made and renewed".into())));
    for verb in ["get", "create", "patch"] {
        world.kube.deny(verb, "leases", NAMESPACE);
        let said = check(&config).await.unwrap_err();
        assert!(said.contains(&format!("grant verb {verb} on leases in namespace {NAMESPACE}")), "{said}");
        world.kube.allow_all();
    }
    assert!(world.kube.lease(NAMESPACE, "llm-access-agent").is_none(), "asking changes nothing");
}

#[tokio::test]
async fn when_the_leader_is_killed_in_the_middle_the_other_finishes() {
    let world = world(Profile::Late2026).await;
    let (mut first, second) = pair(&world, "2s").await;
    world.faults.add(Rule::new(Fault::Kill { after_effect: true }).path("/key/generate").once());
    let (order, _) = world.order("aurora", &["kestrel-8b"]);
    tokio::time::timeout(PATIENCE, world.faults.killed()).await.unwrap();
    first.signal("KILL").await;
    assert_eq!(first.end().await, None);
    until("the order is done", &[&second], || world.waldur.order_state(order) == "done").await;
    assert!(second.leads());
    world.check();
}

/// The leader cannot renew the Lease while a write of its is under way. When the answer comes it leads no more, and nobody
/// else does.
async fn loses_the_lease_in_the_middle(method: &str, path: &str, profile: Profile) {
    let case = format!("{method} {path} on {profile:?}");
    let world = world(profile).await;
    let only = Replica::start(&world, "only", "2s");
    until("it leads", &[&only], || only.leads()).await;
    world.faults.add(Rule::new(Fault::Hold).method(method).path(path).once());
    let (order, _) = world.order("aurora", &["kestrel-8b"]);
    tokio::time::timeout(PATIENCE, world.faults.held()).await.unwrap_or_else(|_| panic!("{case}: never came there{}", *only));
    for verb in ["get", "patch", "update", "create"] {
        world.kube.deny(verb, "leases", NAMESPACE);
    }
    until(&format!("{case}: it lost the Lease"), &[&only], || !only.leads()).await;
    // What it says about the Lease itself is no write of the order.
    let writes = || world.writes(None).into_iter().filter(|write| !write.contains("/leases/")).collect::<Vec<_>>();
    let before = writes().len();
    world.faults.release();
    until(&format!("{case}: it stops in the middle"), &[&only], || only.log().contains("the Lease was lost") || writes().len() > before)
        .await;
    assert_eq!(writes()[before..], [""; 0], "{case}: written without the Lease");
    assert_ne!(world.waldur.order_state(order), "done", "{case}");
    world.kube.allow_all();
    until(&format!("{case}: it goes on"), &[&only], || world.waldur.order_state(order) == "done").await;
    world.check();
}

#[tokio::test]
async fn a_leader_that_loses_the_lease_in_the_middle_of_an_order_writes_no_more() {
    futures::future::join_all([
        loses_the_lease_in_the_middle("POST", "/team/new", Profile::Late2026),
        loses_the_lease_in_the_middle("POST", "/llm-keys/secrets", Profile::Y2024),
        loses_the_lease_in_the_middle("PATCH", "/open-webui/secrets/", Profile::Late2026),
    ])
    .await;
}

#[tokio::test]
async fn a_leader_that_stops_hands_over_at_once() {
    let world = world(Profile::Y2024).await;
    let (mut first, second) = pair(&world, "12s").await;
    let before = holder(&world);
    first.signal("TERM").await;
    let told = Instant::now();
    assert_eq!(first.end().await, Some(0));
    until("the second leads", &[&second], || second.leads()).await;
    // It was given back: the second looks every two seconds, and would wait for twelve if the first had only gone silent.
    assert!(told.elapsed() < Duration::from_secs(8), "{:?}", told.elapsed());
    assert_ne!(holder(&world), before);
    let (order, _) = world.order("aurora", &["kestrel-8b"]);
    until("the order is done", &[&second], || world.waldur.order_state(order) == "done").await;
    world.check();
}

/// The leader stands still while a write of its is under way. Another takes over and does the whole work; then the write
/// arrives after all, and the first goes on where it stood.
async fn stands_still(method: &str, path: &str, profile: Profile) {
    let case = format!("{method} {path} on {profile:?}");
    let world = world(profile).await;
    let (first, second) = pair(&world, "2s").await;
    world.faults.add(Rule::new(Fault::Hold).method(method).path(path).once());
    let (order, resource) = world.order("aurora", &["kestrel-8b"]);
    tokio::time::timeout(PATIENCE, world.faults.held()).await.unwrap_or_else(|_| panic!("{case}: never came there{}", *first));
    first.signal("STOP").await;
    until(&case, &[&first, &second], || world.waldur.order_state(order) == "done").await;
    assert!(second.leads(), "{case}");
    world.faults.release();
    first.signal("CONT").await;
    until(&format!("{case}: the first sees that it lost"), &[&first, &second], || !first.leads()).await;

    // What the late write did is put right, and then nobody writes any more.
    until(&format!("{case}: at rest"), &[&first, &second], || checker::problems(&world).is_empty()).await;
    let id = resource.simple().to_string();
    assert_eq!((world.gateway.teams().len(), world.gateway.live_keys(&id).len(), world.secrets(resource).len()), (1, 2, 2), "{case}");
    assert!(second.leads() && !first.leads(), "{case}");
    for (peer, n) in [("set_state_done", 1), ("/team/new", 2)] {
        let calls =
            world.faults.calls().into_iter().filter(|call| call.path.contains(peer) && call.status.is_some_and(|s| s < 300)).count();
        assert!(calls <= n, "{case}: {calls} times {peer}");
    }
    world.check();
}

/// The writes of a create, in their order: method and a part of the path.
const WRITES_2024: [(&str, &str); 11] = [
    ("POST", "approve_by_provider"),
    ("POST", "/llm-keys/secrets"),
    ("POST", "/open-webui/secrets"),
    ("POST", "/team/new"),
    ("POST", "set_backend_id"),
    ("POST", "/key/generate"),
    ("POST", "submit_report"),
    ("POST", "set_backend_metadata"),
    ("PATCH", "/llm-keys/secrets/"),
    ("PATCH", "/open-webui/secrets/"),
    ("POST", "set_state_done"),
];
/// Those that the late server has besides.
const WRITES_LATE: [(&str, &str); 2] = [("POST", "report_created"), ("POST", "set_endpoints")];

#[tokio::test]
async fn no_write_of_a_create_is_left_out_below() {
    for profile in [Profile::Y2024, Profile::Late2026] {
        let world = World::new(profile).await;
        world.sold(&world.patient().await, "aurora", &["kestrel-8b"]).await;
        for write in world.writes(None) {
            let mut listed = WRITES_2024.iter().chain(&WRITES_LATE);
            assert!(listed.any(|(method, part)| write.starts_with(method) && write.contains(part)), "{profile:?}: {write}");
        }
    }
}

/// A few at a time: each case is two programs.
async fn all_stand_still(cases: &[(&'static str, &'static str)], profile: Profile) {
    for few in cases.chunks(3) {
        futures::future::join_all(few.iter().map(|(method, path)| stands_still(method, path, profile))).await;
    }
}

#[tokio::test]
async fn a_leader_that_stood_still_in_the_first_half_of_a_create_does_no_harm() {
    all_stand_still(&WRITES_2024[..6], Profile::Y2024).await;
}

#[tokio::test]
async fn a_leader_that_stood_still_in_the_second_half_of_a_create_does_no_harm() {
    all_stand_still(&WRITES_2024[6..], Profile::Y2024).await;
}

#[tokio::test]
async fn a_leader_that_stood_still_before_a_write_at_a_late_server_does_no_harm() {
    all_stand_still(&WRITES_LATE, Profile::Late2026).await;
    all_stand_still(&[("POST", "/secrets"), ("POST", "/team/new"), ("POST", "set_state_done")], Profile::Late2026).await;
}
