//! The program as an operator meets it: what it says, how it exits, and how it takes signals.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use llm_access_fixtures::clock::SimClock;
use llm_access_fixtures::faults::{Fault, Faults, Peer, Rule};
use llm_access_fixtures::litellm::{self, LiteLlm};
use llm_access_fixtures::waldur::{self, Profile, Waldur};
use llm_access_tests::program::{PATIENCE, Program, command, pause, until};
use llm_access_tests::{PROFILES, Store, World};
use serde_json::{Value, json};
use tokio::process::Command;
use uuid::Uuid;

/// An agent that waits for nothing.
const FAST: &str = "intervals: {orders: 100ms, resources: 100ms}\nbackoff: {initial: 100ms, max: 500ms}\n\
                    terminate: {drain: 200ms, allow_short_drain: true, settle: 50ms}\n";

const AGENT: &str = env!("CARGO_BIN_EXE_agent-under-test");

/// What a command said and how it ended.
struct Said {
    status: ExitStatus,
    out: String,
    err: String,
}

impl Said {
    /// Asserts the exit code; a panic or a signal is none.
    #[track_caller]
    fn exits(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{self}");
        assert!(!self.err.contains("panicked"), "{self}");
        self
    }

    #[track_caller]
    fn tells(self, words: &[&str]) -> Self {
        for word in words {
            assert!(self.out.contains(word) || self.err.contains(word), "{word:?} is missing in\n{self}");
        }
        self
    }
}

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}\n--- out\n{}\n--- err\n{}", self.status, self.out, self.err)
    }
}

fn program() -> Command {
    command(AGENT)
}

async fn ends(mut command: Command) -> Said {
    let output = tokio::time::timeout(PATIENCE, command.output()).await.expect("the command ends").unwrap();
    Said { status: output.status, out: String::from_utf8(output.stdout).unwrap(), err: String::from_utf8(output.stderr).unwrap() }
}

/// Runs one command with a configuration.
async fn with_config(path: &Path, args: &[&str]) -> Said {
    let mut command = program();
    command.arg("--config").arg(path).args(args);
    ends(command).await
}

/// Runs one command in a world.
async fn agent(world: &World, args: &[&str]) -> Said {
    with_config(&world.write("config.yml", &world.config_text(FAST)), args).await
}

async fn world() -> World {
    World::in_real_time(Profile::Late2026, Store::Directory).await
}

/// An agent that runs until it is told to stop.
fn start(world: &World, args: &[&str]) -> Program {
    start_with(world, &world.config_text(FAST), args)
}

fn start_with(world: &World, config: &str, args: &[&str]) -> Program {
    Program::start(AGENT, world, "daemon", config, args)
}

fn hex(uuid: Uuid) -> String {
    uuid.simple().to_string()
}

// ---- check ---------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn check_finds_nothing_wrong_in_a_good_world() {
    for profile in PROFILES {
        for store in [Store::Kube, Store::Directory] {
            let world = World::in_real_time(profile, store).await;
            let config = world.write("config.yml", &world.config_text(""));
            let said = with_config(&config, &["check"]).await.exits(0).tells(&[
                "waldur: http",
                "CUSTOMER.OWNER",
                "database connected",
                "all 4 models",
                " 0 warnings, 0 failed",
            ]);
            assert!(said.err.is_empty(), "{said}");
            assert_eq!(
                world
                    .writes(None)
                    .iter()
                    .filter(|write| !write.contains("selfsubjectaccessreviews") && !write.contains("dryRun=All"))
                    .count(),
                0,
                "{:?}",
                world.writes(None)
            );
            world.check();
        }
    }
}

/// A fault, and the words that name the object, the cause and the cure.
struct Mistake {
    name: &'static str,
    /// Changes the world, and gives the configuration of the agent.
    make: fn(&World) -> String,
    words: &'static [&'static str],
}

const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "a required field is missing",
        make: |world| world.config_text(FAST).replace(&format!("api_url: {}, ", world.waldur.api_url()), ""),
        words: &["waldur.api_url", "is missing", "LLM_ACCESS__WALDUR__API_URL"],
    },
    Mistake {
        name: "a value of the wrong kind",
        make: |world| world.config_text("intervals: {orders: soon}\n"),
        words: &["intervals.orders", "15s", "config.yml"],
    },
    Mistake {
        name: "an unknown key",
        make: |world| world.config_text("intervalls: {orders: 15s}\n"),
        words: &["intervalls", "intervals", "config.yml"],
    },
    Mistake {
        name: "a secret file that is not there",
        make: |world| world.config_text(FAST).replace("/waldur-token", "/waldur-tokne"),
        words: &["waldur", "/waldur-tokne"],
    },
    Mistake {
        name: "a secret file with two lines",
        make: |world| {
            world.write("gateway-key", "sk-1\nsk-2\n");
            world.config_text(FAST)
        },
        words: &["FAIL  gateway key", "/gateway-key", "line"],
    },
    Mistake {
        name: "no Waldur at its address",
        make: |world| world.config_text(FAST).replace(world.waldur.api_url().as_str(), &format!("http://{}/api/", world.nobody())),
        words: &["FAIL  waldur: http://127.0.0.1", "waldur.api_url"],
    },
    Mistake {
        name: "the web site instead of the API",
        make: |world| {
            let headers = vec![("content-type".to_owned(), "text/html".to_owned())];
            world.faults.add(
                Rule::new(Fault::Replace { status: 200, headers, body: "<!doctype html><title>Waldur</title>".into() }).peer(Peer::Waldur),
            );
            world.config_text(FAST)
        },
        words: &["FAIL  waldur", "waldur.api_url must end in /api/"],
    },
    Mistake {
        name: "another server at Waldur's address",
        make: |world| world.config_text(FAST).replace(world.waldur.api_url().as_str(), world.gateway.url().as_str()),
        words: &["FAIL  waldur", "waldur.api_url"],
    },
    Mistake {
        name: "a token that Waldur does not know",
        make: |world| {
            world.write("waldur-token", "0000000000000000000000000000000000000000");
            world.config_text(FAST)
        },
        words: &["FAIL  waldur", "the token is not accepted", "waldur.token_file"],
    },
    Mistake {
        name: "a token of somebody without a role",
        make: |world| {
            world.write("waldur-token", &world.waldur.member_token());
            world.config_text(FAST)
        },
        words: &["FAIL  waldur rights", "give it CUSTOMER.OWNER"],
    },
    Mistake {
        name: "a token of the owner of another organization",
        make: |world| {
            world.write("waldur-token", &world.waldur.owner_token());
            world.config_text(FAST)
        },
        words: &["FAIL  offering", "may not be seen by this user", "a role on its provider"],
    },
    Mistake {
        name: "an offering that is not there",
        make: |world| world.config_text(FAST).replace(&world.offering.to_string(), "00000000-0000-4000-8000-000000000001"),
        words: &["FAIL  offering 00000000000040008000000000000001", "does not exist", "offerings[].uuid"],
    },
    Mistake {
        name: "an offering of a type that agents cannot serve",
        make: |world| {
            world.waldur.set_offering_type(world.offering, "Marketplace.Basic");
            world.config_text(FAST)
        },
        words: &["FAIL  offering", "Marketplace.Basic", "Marketplace.Slurm"],
    },
    Mistake {
        name: "no gateway at its address",
        make: |world| world.config_text(FAST).replace(world.gateway.url().as_str(), &format!("http://{}/", world.nobody())),
        words: &["FAIL  gateway", "gateway.url"],
    },
    Mistake {
        name: "a gateway without its database",
        make: |world| {
            world.gateway.set_database(false);
            world.config_text(FAST)
        },
        words: &["FAIL  gateway", "database is not connected"],
    },
    Mistake {
        name: "a key that the gateway does not know",
        make: |world| {
            world.write("gateway-key", "sk-somebody-else");
            world.config_text(FAST)
        },
        words: &["FAIL  gateway key", "gateway.key_file"],
    },
    Mistake {
        name: "a model that the gateway does not serve",
        make: |world| {
            world.gateway.remove_model("heron-70b");
            world.config_text(FAST)
        },
        words: &["FAIL  gateway models", "heron-70b", "out of the catalogue"],
    },
    Mistake {
        name: "a catalogue with mistakes",
        make: |world| {
            world.write("catalogue.yml", "inference_models:\n  - {name: a, served_name: all}\n  - {name: b, served_name: '*'}\n");
            world.config_text(FAST)
        },
        words: &["FAIL  catalogue", "catalogue.yml", "2:", "3:"],
    },
    Mistake {
        name: "no catalogue",
        make: |world| {
            fs::remove_file(world.path("catalogue.yml")).unwrap();
            world.config_text(FAST)
        },
        words: &["FAIL  catalogue", "catalogue.yml"],
    },
    Mistake {
        name: "an embedder that the catalogue does not have",
        make: |world| world.config_text(FAST).replace("[qwen3-embedding-0-6b]", "[qwen3-embedding-9b]"),
        words: &["FAIL  catalogue", "qwen3-embedding-9b", "always_include"],
    },
    Mistake {
        name: "a folder for Secrets that cannot be made",
        make: |world| world.config_text(FAST).replace("/secrets}", "/waldur-token/secrets}"),
        words: &["secrets", "/waldur-token"],
    },
    Mistake {
        name: "a folder for Secrets that is read-only",
        make: |world| {
            let folder = world.secrets_folder();
            fs::create_dir_all(&folder).unwrap();
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o500)).unwrap();
            // root may write there all the same; nobody may in /proc.
            let sealed = fs::write(folder.join("probe"), "").is_err();
            let folder = if sealed { folder } else { "/proc/sys".into() };
            world.config_text(FAST).replace(&world.secrets_folder().display().to_string(), &folder.display().to_string())
        },
        words: &["FAIL  secrets", "secrets.path"],
    },
];

#[tokio::test]
async fn check_names_the_object_the_cause_and_the_cure_of_every_mistake() {
    let mut wrong = Vec::new();
    for mistake in MISTAKES {
        let world = world().await;
        let config = world.write("config.yml", &(mistake.make)(&world));
        let said = with_config(&config, &["check"]).await;
        let text = format!("{}{}", said.out, said.err);
        let missing: Vec<&&str> = mistake.words.iter().filter(|word| !text.contains(**word)).collect();
        if said.status.code() != Some(2) || !missing.is_empty() || text.contains("panicked") {
            wrong.push(format!("== {}: missing {missing:?}\n{said}", mistake.name));
        }
        for secret in [world.waldur.agent_token(), world.gateway.master_key(), "sk-somebody-else".into()] {
            assert!(!text.contains(&secret), "{}: a credential is shown\n{said}", mistake.name);
        }
        assert!(world.writes(None).is_empty(), "{}: {:?}", mistake.name, world.writes(None));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn check_warns_of_components_that_are_missing() {
    let world = world().await;
    for kind in ["input_tokens", "output_tokens", "spend", "rpm_limit"] {
        world.waldur.drop_component(world.offering, kind);
    }
    let said = agent(&world, &["check"]).await.exits(0).tells(&[
        "warn  configuration: terminate.drain",
        "no component rpm_limit",
        "no usage component for kestrel-8b, heron-70b",
    ]);
    assert!(said.out.lines().last().unwrap().contains("3 warnings, 0 failed"), "{said}");
}

// ---- run -----------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn run_refuses_a_wrong_configuration_at_once_and_names_every_mistake() {
    let world = world().await;
    let config = world.write("config.yml", &world.config_text("intervalls: {orders: 15s}\nterminate: {drain: 5s}\n"));
    with_config(&config, &["run"]).await.exits(2).tells(&["intervalls", "terminate.drain"]);
    with_config(&world.path("nosuch.yml"), &["run"]).await.exits(2).tells(&["nosuch.yml"]);
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let config = world.write("config.yml", &world.config_text(&format!("http: {{listen: \"127.0.0.1:{port}\"}}\n")));
    with_config(&config, &["run"]).await.exits(2).tells(&["http.listen", &port.to_string()]);
    assert_eq!(world.faults.count(), 0, "{:?}", world.faults.calls());
}

#[tokio::test]
async fn run_waits_for_peers_that_are_down_and_says_so_once_per_change() {
    let world = world().await;
    let (waldur_at, gateway_at) = (world.nobody(), world.nobody());
    // A simulator gives the same uuids each time, so that the configuration can name an offering before there is one.
    let config = world
        .config_text(FAST)
        .replace(world.waldur.api_url().as_str(), &format!("http://{waldur_at}/api/"))
        .replace(world.gateway.url().as_str(), &format!("http://{gateway_at}/"));
    let mut daemon = start_with(&world, &config, &[]);
    until("Waldur is reported", &[&daemon], || daemon.lines(&["waldur-unreachable"]) > 0).await;
    pause(Duration::from_millis(600)).await;
    assert_eq!(daemon.lines(&["WARN", "waldur-unreachable"]), 1, "{daemon}");
    let said: Vec<String> = daemon.log().lines().filter_map(|line| line.split_once(' ')).map(|(_, rest)| rest.to_owned()).collect();
    assert_eq!(said.iter().collect::<BTreeSet<_>>().len(), said.len(), "a line is said twice:{daemon}");

    let clock = SimClock::real();
    let waldur =
        Waldur::start(waldur::Options { profile: Profile::Late2026, clock: clock.clone(), faults: Faults::new(), listen: Some(waldur_at) })
            .await;
    waldur.set_public_url(waldur.url().as_str());
    assert_eq!(waldur.add_offering("Shared LLM access"), world.offering);
    waldur.set_models(world.offering, &["kestrel-8b"]);
    let project = waldur.add_project("Seabird Acoustics");
    let (order, _) = waldur.order(world.offering, &project, "seabird-llm", &["kestrel-8b"], &[("max_budget", "50")]);
    until("Waldur is back", &[&daemon], || daemon.lines(&["INFO", "waldur-unreachable", "no longer"]) == 1).await;
    until("the gateway is reported", &[&daemon], || daemon.lines(&["gateway-unreachable"]) > 0).await;
    pause(Duration::from_millis(400)).await;
    assert_eq!(daemon.lines(&["WARN", "gateway-unreachable"]), 1, "{daemon}");

    let gateway = LiteLlm::start(litellm::Options { clock, faults: Faults::new(), listen: Some(gateway_at) }).await.unwrap();
    until("the order is done", &[&daemon], || waldur.order_state(order) == "done").await;
    assert_eq!(daemon.lines(&["INFO", "gateway-unreachable", "no longer"]), 1, "{daemon}");
    assert_eq!(gateway.teams().len(), 1);
    daemon.signal("TERM").await;
    assert_eq!(daemon.end().await.code(), Some(0));
}

// ---- signals -------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn sigterm_ends_an_idle_agent_at_once_and_lets_work_in_flight_end() {
    let world = world().await;
    let mut daemon = start(&world, &[]);
    until("it runs", &[&daemon], || world.faults.count() > 2).await;
    let asked = Instant::now();
    daemon.signal("TERM").await;
    assert_eq!(daemon.end().await.code(), Some(0));
    assert!(asked.elapsed() < Duration::from_secs(5), "{daemon}");

    // An order that is being worked on is ended first.
    let (order, _) = world.order("seabird-llm", &["kestrel-8b"]);
    let slow = world.faults.add(Rule::new(Fault::Hold).peer(Peer::LiteLlm).path("/key/generate").once());
    let config = world.config_text(FAST).replace("timeout: 400ms", "timeout: 20s");
    let mut daemon = start_with(&world, &config, &[]);
    world.faults.held().await;
    daemon.signal("TERM").await;
    until("it stops", &[&daemon], || daemon.lines(&["stopping"]) == 1).await;
    assert_eq!(world.waldur.order_state(order), "executing");
    world.faults.remove(slow);
    world.faults.release();
    assert_eq!(daemon.end().await.code(), Some(0));
    assert_eq!(world.waldur.order_state(order), "done");
    world.check();
}

#[tokio::test]
async fn work_that_does_not_end_is_left_after_the_grace_time_and_a_second_signal_waits_for_nothing() {
    let world = world().await;
    let (order, _) = world.order("seabird-llm", &["kestrel-8b"]);
    let config = world.config_text(FAST).replace("timeout: 400ms", "timeout: 60s");
    world.faults.add(Rule::new(Fault::Hang { after_effect: false }).peer(Peer::LiteLlm).path("/key/generate"));
    let at_work = |daemon: &Program| {
        let seen = world.faults.calls().iter().filter(|call| call.path.contains("/key/generate")).count();
        assert!(!daemon.log().contains("panicked"));
        seen
    };
    let mut daemon = start_with(&world, &config, &["--grace", "1"]);
    until("it is at work", &[&daemon], || at_work(&daemon) == 1).await;
    let asked = Instant::now();
    daemon.signal("TERM").await;
    assert_eq!(daemon.end().await.code(), Some(0));
    assert!(asked.elapsed() >= Duration::from_secs(1), "the grace time is given:{daemon}");
    assert!(asked.elapsed() < Duration::from_secs(10));
    assert_eq!(daemon.lines(&["did not end within"]), 1, "{daemon}");

    let mut daemon = start_with(&world, &config, &["--grace", "600"]);
    until("it is at work again", &[&daemon], || at_work(&daemon) == 2).await;
    daemon.signal("TERM").await;
    until("it stops", &[&daemon], || daemon.lines(&["stopping"]) == 1).await;
    daemon.signal("INT").await;
    assert_eq!(daemon.end().await.code(), Some(130));

    world.faults.clear();
    let mut daemon = start(&world, &[]);
    until("the order is done", &[&daemon], || world.waldur.order_state(order) == "done").await;
    daemon.signal("INT").await;
    assert_eq!(daemon.end().await.code(), Some(0));
    world.check();
}

#[tokio::test]
async fn a_killed_agent_leaves_nothing_that_its_successor_does_not_finish() {
    // Where to strike: the path of the call during which it dies, whether that call still takes effect.
    let moments = [
        ("approve_by_provider", true),
        ("/team/new", false),
        ("/team/new", true),
        ("/key/generate", true),
        ("report_created", true),
        ("set_state_done", true),
    ];
    for (path, after_effect) in moments {
        let world = world().await;
        let (order, resource) = world.order("seabird-llm", &["kestrel-8b"]);
        world.faults.add(Rule::new(Fault::Kill { after_effect }).path(path).once());
        let mut daemon = start(&world, &[]);
        tokio::time::timeout(PATIENCE, world.faults.killed()).await.unwrap_or_else(|_| panic!("never at {path}:{daemon}"));
        daemon.signal("KILL").await;
        assert_eq!(daemon.end().await.signal(), Some(9));
        let mut daemon = start(&world, &[]);
        until("it takes signals", &[&daemon], || daemon.lines(&["llm-access-agent starts"]) == 1).await;
        until(path, &[&daemon], || world.waldur.order_state(order) == "done").await;
        let key = world.key(resource, "project");
        world.gateway.chat(&key, "kestrel-8b", "P=10 C=1").unwrap();
        daemon.signal("TERM").await;
        assert_eq!(daemon.end().await.code(), Some(0));
        world.check();
    }
}

#[tokio::test]
async fn a_signal_at_any_write_of_an_order_leaves_nothing_that_the_next_start_does_not_finish() {
    // Where the work stands when the time is over: the write under way, and whether it takes effect after all.
    let moments = [
        ("approve_by_provider", true),
        ("/team/new", false),
        ("set_backend_id", true),
        ("/key/generate", true),
        ("report_created", false),
        ("set_endpoints", true),
        ("set_backend_metadata", true),
        ("set_state_done", true),
    ];
    for (n, (path, after_effect)) in moments.into_iter().enumerate() {
        let world = world().await;
        let (order, resource) = world.order("seabird-llm", &["kestrel-8b"]);
        world.faults.add(Rule::new(Fault::Hang { after_effect }).path(path).once());
        let config = world.config_text(FAST).replace("timeout: 400ms", "timeout: 60s");
        // Every other time the grace is over, else somebody does not want to wait for it.
        let impatient = n % 2 == 0;
        // The offering has metadata too.
        let mut daemon = start_with(&world, &config, &["--only", "orders", "--grace", if impatient { "600" } else { "0" }]);
        let there = || world.faults.calls().iter().any(|call| call.path.contains(path));
        until(path, &[&daemon], there).await;
        daemon.signal("TERM").await;
        if impatient {
            until("it stops", &[&daemon], || daemon.lines(&["stopping"]) == 1).await;
            daemon.signal("TERM").await;
        }
        assert_eq!(daemon.end().await.code(), Some(if impatient { 143 } else { 0 }), "{path}: {daemon}");
        assert!(n + 1 == moments.len() || world.waldur.order_state(order) != "done", "{path}");

        let mut daemon = start(&world, &[]);
        until(path, &[&daemon], || world.waldur.order_state(order) == "done").await;
        world.gateway.chat(&world.key(resource, "project"), "kestrel-8b", "P=10 C=1").unwrap();
        until("it takes signals", &[&daemon], || daemon.lines(&["llm-access-agent starts"]) == 1).await;
        daemon.signal("TERM").await;
        assert_eq!(daemon.end().await.code(), Some(0), "{path}");
        world.check();
    }
}

#[tokio::test]
async fn a_reader_that_goes_away_ends_neither_the_agent_nor_a_command() {
    let world = world().await;
    let served = world.agent().await;
    for n in 0..3 {
        world.sold(&served, &format!("llm-{n}"), &["kestrel-8b"]).await;
    }
    for args in [&["status"][..], &["check"], &["plan"], &["--help"]] {
        let mut command = program();
        command
            .arg("--config")
            .arg(world.write("config.yml", &world.config_text(FAST)))
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        let output = tokio::time::timeout(PATIENCE, child.wait_with_output()).await.unwrap().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}: {err}");
        assert_eq!(err, "", "{args:?}");
    }
    // The log of an agent that runs.
    let config = world.write("config.yml", &world.config_text(&FAST.replace("100ms, resources", "50ms, resources")));
    let mut child = program().arg("--config").arg(config).arg("run").stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stderr.take());
    let (order, _) = world.order("late-llm", &["kestrel-8b"]);
    let began = Instant::now();
    while world.waldur.order_state(order) != "done" {
        assert!(began.elapsed() < PATIENCE && child.try_wait().unwrap().is_none(), "the agent does not go on without a reader of its log");
        pause(Duration::from_millis(20)).await;
    }
    child.kill().await.unwrap();
    world.check();
}

#[tokio::test]
async fn a_full_disk_under_the_output_is_said() {
    let world = world().await;
    let served = world.agent().await;
    world.sold(&served, "seabird-llm", &["kestrel-8b"]).await;
    let Ok(full) = fs::OpenOptions::new().write(true).open("/dev/full") else { return };
    let mut child = program()
        .arg("--config")
        .arg(world.write("config.yml", &world.config_text(FAST)))
        .arg("status")
        .stdout(full)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut err = String::new();
    tokio::io::AsyncReadExt::read_to_string(child.stderr.as_mut().unwrap(), &mut err).await.unwrap();
    assert_eq!(child.wait().await.unwrap().code(), Some(1), "{err}");
    assert!(err.contains("standard output cannot be written"), "{err}");
}

// ---- plan, status --------------------------------------------------------------------------------------------------

#[tokio::test]
async fn plan_prints_what_the_next_pass_would_do_and_changes_nothing() {
    for profile in PROFILES {
        let world = World::in_real_time(profile, Store::Directory).await;
        // The offering first; then there is nothing left.
        agent(&world, &["plan"]).await.exits(0).tells(&[&format!("offering {}", hex(world.offering)), "create component kestrel-8b:input"]);
        assert!(world.writes(None).is_empty(), "{:?}", world.writes(None));
        world.agent().await.offering_beat().await;
        agent(&world, &["plan"]).await.exits(0).tells(&["nothing to do: 0 resources as wanted, no order open"]);

        let (order, resource) = world.order("seabird-llm", &["kestrel-8b"]);
        let id = hex(resource);
        world.faults.reset_calls();
        agent(&world, &["plan"]).await.exits(0).tells(&[
            &format!("order {} (Create of resource {id}", hex(order)),
            "approve it",
            "store a new project key",
            "set the order to done",
        ]);
        assert!(world.writes(None).is_empty() && world.secrets(resource).is_empty(), "{:?}", world.writes(None));
        assert_eq!(world.waldur.order_state(order), "pending-provider");

        let served = world.agent().await;
        world.run_to_rest(&served, 5).await;
        agent(&world, &["plan"]).await.exits(0).tells(&["nothing to do: 1 resource as wanted, no order open"]);

        // Drift, a change that is ordered, and one that is refused.
        world.gateway.edit_team(&id, &json!({"rpm_limit": 7}));
        agent(&world, &["plan"]).await.exits(0).tells(&[&format!("resource {id}"), "rpm_limit → 600"]);
        let change = world.waldur.update_limits(resource, &[("max_budget", "80")]);
        agent(&world, &["plan"]).await.exits(0).tells(&[&format!("order {}", hex(change)), "max_budget → 80"]);
        let greedy =
            world.waldur.order(world.offering, &world.project, "greedy", &["kestrel-8b"], &[("max_budget", "50"), ("tpm_limit", "0")]).0;
        agent(&world, &["plan"]).await.exits(0).tells(&[&format!("order {}", hex(greedy)), "reject it", "tpm_limit is 0"]);
        world.run_to_rest(&served, 5).await;
        world.slow_beat(&served).await;
        let end = world.waldur.terminate(resource);
        world.faults.reset_calls();
        agent(&world, &["plan"]).await.exits(0).tells(&[&format!("order {} (Terminate", hex(end)), "block the team", "final usage"]);
        assert!(world.writes(None).is_empty(), "{:?}", world.writes(None));
        assert!(!world.gateway.team(&id).unwrap().blocked);
    }
}

#[tokio::test]
async fn status_shows_every_resource_to_people_and_programs() {
    let world = world().await;
    world.ends_in_trouble("a Secret is missing, and no pass came after it");
    agent(&world, &["status"]).await.exits(0).tells(&["there are no resources"]);
    let served = world.agent().await;
    let first = world.sold(&served, "first-llm", &["kestrel-8b"]).await;
    let second = world.sold(&served, "second-llm", &["heron-70b"]).await;
    world.waldur.pause(second, true);
    world.slow_beat(&served).await;
    fs::remove_file(world.secrets_folder().join(list(&world, first).remove(0))).unwrap();
    let said = agent(&world, &["status"]).await.exits(0);
    let row = |resource: Uuid| {
        said.out
            .lines()
            .find(|line| line.starts_with(&hex(resource)))
            .unwrap_or_else(|| panic!("{said}"))
            .split_whitespace()
            .collect::<Vec<_>>()
    };
    assert!(said.out.starts_with("RESOURCE"), "{said}");
    assert_eq!(row(first)[2..6], ["OK", "active", "2", "missing"], "{said}");
    assert_eq!(row(second)[2..7], ["OK", "blocked", "2", "ready", "ready"], "{said}");

    let said = agent(&world, &["status", "--json"]).await.exits(0);
    let seen: Value = serde_json::from_str(&said.out).unwrap();
    let resources = seen["resources"].as_array().unwrap();
    let of = |resource: Uuid| resources.iter().find(|r| r["resource"] == hex(resource)).unwrap();
    assert_eq!(
        (&of(first)["project_secret"], &of(first)["team"], &of(first)["max_budget"]),
        (&json!("missing"), &json!("active"), &json!("50"))
    );
    assert_eq!(of(second)["team"], "blocked");
    assert!(!said.out.contains("sk-"));
}

/// The Secrets of a resource, the project's first.
fn list(world: &World, resource: Uuid) -> Vec<String> {
    let mark: String = hex(resource).chars().take(8).collect();
    let mut names: Vec<String> = fs::read_dir(world.secrets_folder())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(&format!("-{mark}.env")))
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_peer_that_is_down_is_exit_code_one_and_is_named() {
    let world = world().await;
    let gone = world.config_text(FAST).replace(world.gateway.url().as_str(), &format!("http://{}/", world.nobody()));
    let config = world.write("config.yml", &gone);
    for args in [&["status"][..], &["plan"], &["orphans", "list"]] {
        let said = with_config(&config, args).await.exits(1).tells(&["gateway"]);
        assert_eq!(said.err.lines().count(), 1, "{args:?}: {said}");
    }
}

// ---- orders, keys, adopt, orphans ----------------------------------------------------------------------------------

const NOBODY: &str = "00000000-0000-4000-8000-00000000dead";

#[tokio::test]
async fn wrong_input_is_exit_code_two_and_is_explained() {
    let world = world().await;
    let served = world.agent().await;
    let (order, resource) = world.order("seabird-llm", &["kestrel-8b"]);
    world.run_to_rest(&served, 5).await;
    let (done, alive) = (order.to_string(), resource.to_string());
    let cases: &[(&[&str], &[&str])] = &[
        (&["orders", "retry", NOBODY], &["is the uuid right"]),
        (&["orders", "retry", "seabird-llm"], &["invalid value 'seabird-llm'"]),
        (&["orders", "retry", &done], &["is done, not erred"]),
        (&["keys", "show", NOBODY], &["is the uuid right"]),
        (&["adopt", NOBODY], &["is the uuid right"]),
        (&["orphans", "remove", NOBODY], &["is no orphan"]),
        (&["orphans", "remove", &alive], &["is alive", "order its termination in Waldur"]),
        (&["statsu"], &["status"]),
        (&["run", "--only", "usages"], &["possible values"]),
        (&[], &["requires a subcommand", "status", "--help"]),
    ];
    world.faults.reset_calls();
    for (args, words) in cases {
        agent(&world, args).await.exits(2).tells(words);
    }
    assert!(world.writes(None).is_empty(), "{:?}", world.writes(None));
    world.check();
}

#[tokio::test]
async fn an_erred_order_is_taken_up_again_by_hand() {
    for profile in PROFILES {
        let world = World::in_real_time(profile, Store::Directory).await;
        let served = world.agent().await;
        let resource = world.sold(&served, "seabird-llm", &["kestrel-8b"]).await;
        let order = world.waldur.update_limits(resource, &[("max_budget", "80")]);
        world.waldur.staff_approve(order);
        world.waldur.put_order_state(order, "erred");
        let said = agent(&world, &["orders", "retry", &order.to_string()]).await.exits(0);
        assert!(said.out.contains("is executing again"), "{said}");
        assert_eq!(world.waldur.order_state(order), "executing");
        world.run_to_rest(&served, 5).await;
        assert_eq!(world.waldur.order_state(order), "done");
    }
}

#[tokio::test]
async fn keys_show_prints_the_key_and_nothing_else() {
    let world = world().await;
    let served = world.agent().await;
    let resource = world.sold(&served, "seabird-llm", &["kestrel-8b"]).await;
    let id = resource.to_string();
    for (slot, args) in [("project", &["keys", "show", &id][..]), ("chat", &["keys", "show", &id, "--chat"])] {
        let said = agent(&world, args).await.exits(0);
        assert_eq!(said.out, format!("{}\n", world.key(resource, slot)));
        assert_eq!(said.err, "");
    }
    let served = world.agent_with(FAST).await;
    world.waldur.terminate(resource);
    let began = Instant::now();
    while !world.open_orders().is_empty() {
        assert!(began.elapsed() < PATIENCE, "{:?}", served.schedule.waiting());
        world.beat(&served).await;
        pause(Duration::from_millis(50)).await;
    }
    agent(&world, &["keys", "show", &id]).await.exits(2).tells(&["has no project key"]);
}

#[tokio::test]
async fn adopt_takes_over_a_team_that_nobody_owns_and_no_other() {
    let world = world().await;
    let served = world.agent().await;
    let (order, resource) = world.order("seabird-llm", &["kestrel-8b"]);
    let id = hex(resource);
    agent(&world, &["adopt", &id]).await.exits(2).tells(&["there is no team"]);
    world.gateway.add_foreign_team(&id, &json!({"team_alias": "by-hand", "metadata": {"purpose": "trial"}}));
    world.beat(&served).await;
    assert_eq!(world.waldur.order_state(order), "executing");
    assert!(served.conditions.holds("foreign-team"), "{:?}", served.conditions.all());

    let word = world.watch.by_word();
    agent(&world, &["adopt", &id]).await.exits(0).tells(&["is ours now"]);
    drop(word);
    assert_eq!(world.gateway.team(&id).unwrap().metadata["purpose"], "trial");
    agent(&world, &["adopt", &id]).await.exits(0).tells(&["is ours already"]);
    // The order had been put off; a fresh agent does not remember.
    let served = world.agent().await;
    world.run_to_rest(&served, 5).await;
    assert_eq!(world.waldur.order_state(order), "done");
    world.check();

    let (_, other) = world.order("other-llm", &["kestrel-8b"]);
    world.gateway.add_foreign_team(
        &hex(other),
        &json!({"metadata": {"managed_by": "llm-access-agent", "owner": "daedalus", "resource": hex(other)}}),
    );
    world.faults.reset_calls();
    agent(&world, &["adopt", &hex(other)]).await.exits(2).tells(&["daedalus", "stop that agent"]);
    assert!(world.writes(None).is_empty());
}

#[tokio::test]
async fn orphans_are_listed_with_what_waldur_says_and_removed_by_name() {
    let world = world().await;
    let served = world.agent().await;
    agent(&world, &["orphans", "list"]).await.exits(0).tells(&["nothing of ours is without a living resource"]);
    agent(&world, &["orphans", "remove"]).await.exits(0).tells(&["nothing to remove"]);

    let kept = world.sold(&served, "kept-llm", &["kestrel-8b"]).await;
    let ended = world.sold(&served, "ended-llm", &["kestrel-8b"]).await;
    let unlinked = world.sold(&served, "unlinked-llm", &["kestrel-8b"]).await;
    world.waldur.put_resource_state(ended, "Terminated");
    world.waldur.unlink(unlinked);
    let said = agent(&world, &["orphans", "list"]).await.exits(0);
    let row = |resource: Uuid| said.out.lines().find(|line| line.starts_with(&hex(resource))).map(ToOwned::to_owned);
    assert!(row(ended).unwrap().contains("Terminated"), "{said}");
    assert!(row(unlinked).unwrap().contains("not shown"), "{said}");
    assert!(row(unlinked).unwrap().contains("team, 2 keys, 2 Secrets"), "{said}");
    assert_eq!(row(kept), None);

    // Without a name only what Waldur shows as ended goes.
    agent(&world, &["orphans", "remove"]).await.exits(0).tells(&[&hex(ended)]);
    assert!(world.gateway.team(&hex(ended)).is_none() && list(&world, ended).is_empty());
    assert!(world.gateway.team(&hex(unlinked)).is_some());
    agent(&world, &["orphans", "remove", &hex(unlinked)]).await.exits(0).tells(&[&hex(unlinked)]);
    assert!(world.gateway.team(&hex(unlinked)).is_none() && list(&world, unlinked).is_empty());
    agent(&world, &["orphans", "list"]).await.exits(0).tells(&["nothing of ours"]);
    assert!(world.gateway.team(&hex(kept)).is_some());
    world.check();
}

// ---- help ----------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn every_command_explains_itself() {
    let help = async |args: &[&str]| {
        let mut command = program();
        command.args(args).arg("--help");
        ends(command).await.exits(0)
    };
    let top = help(&[]).await.tells(&["Sells shared LLM access", "--config", "LLM_ACCESS_CONFIG"]);
    let commands = commands_of(&top.out);
    assert!(commands.len() >= 8, "{top}");
    let mut todo: Vec<Vec<String>> = commands.into_iter().map(|name| vec![name]).collect();
    while let Some(path) = todo.pop() {
        let args: Vec<&str> = path.iter().map(String::as_str).collect();
        let said = help(&args).await;
        assert!(said.out.contains(&format!("Usage: llm-access-agent {}", path.join(" "))), "{said}");
        assert!(said.out.lines().next().unwrap().len() > 12, "{path:?} has a description\n{said}");
        // The short form fits a terminal.
        let mut short = program();
        short.args(&args).arg("-h");
        let short = ends(short).await.exits(0);
        assert!(short.out.lines().all(|line| line.chars().count() <= 130), "{short}");
        todo.extend(commands_of(&said.out).into_iter().map(|name| [path.clone(), vec![name]].concat()));
    }
    // Nothing at all is a question for help, and no success.
    ends(program()).await.exits(2).tells(&["Usage: llm-access-agent", "Commands:"]);
    let mut command = program();
    command.arg("--version");
    assert_eq!(ends(command).await.exits(0).out, format!("llm-access-agent {}\n", env!("CARGO_PKG_VERSION")));
}

/// The names under `Commands:`.
fn commands_of(help: &str) -> Vec<String> {
    let listed = help.split_once("Commands:\n").map(|(_, rest)| rest).unwrap_or_default();
    let lines = listed.lines().take_while(|line| !line.trim().is_empty());
    lines
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(ToOwned::to_owned)
        .collect()
}
