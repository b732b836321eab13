//! The real process: killed, told to end or frozen at every call of a story, and short of a disk to write to.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use llm_access_fixtures::faults::{Fault, Peer, Rule};
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::crash::{runtime, try_all};
use llm_access_tests::program::{PATIENCE, Program, command, last_words, pause, until};
use llm_access_tests::{Store, World, checker};
use uuid::Uuid;

const AGENT: &str = env!("CARGO_BIN_EXE_agent-under-test");

/// An agent that waits for nothing. One whose call is never answered notices soon.
const FAST: &str = "intervals: {orders: 50ms, resources: 200ms}\nbackoff: {initial: 50ms, max: 200ms}\n\
                    terminate: {drain: 100ms, allow_short_drain: true, settle: 20ms}\n";

/// What happens to the process while a call is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It is killed, and another one goes on.
    Kill,
    /// It is told to end, and another one goes on.
    Term,
    /// It is frozen, another one does what is left, and it wakes up.
    Freeze,
}

/// The end that the process meets at one of its calls, which is never answered.
#[derive(Clone, Copy, Debug)]
struct Strike {
    call: usize,
    end: End,
    /// Whether the call has taken effect before, or never does.
    after_effect: bool,
}

fn config(world: &World) -> String {
    world.config_text(FAST)
}

/// Orders, changes and ends a resource; the process is struck once. Gives the number of calls.
async fn tell(store: Store, strike: Option<Strike>) -> Result<usize, String> {
    let world = World::in_real_time(Profile::Late2026, store).await;
    world.gateway.set_lag(Duration::ZERO);
    let start = |n: usize| Program::start(AGENT, &world, &format!("agent-{n}"), &config(&world), &["--only", "orders"]);
    if let Some(Strike { call, after_effect, .. }) = strike {
        world.faults.at_call(call, Fault::Kill { after_effect });
    }
    let freezes = strike.is_some_and(|strike| strike.end == End::Freeze);
    let mut agents = vec![start(0)];
    let (create, resource) = world.order("seabird-llm", &["kestrel-8b"]);
    let mut order = create;
    let mut told = 0;
    let mut used = false;
    let mut struck = strike.is_none();
    let began = Instant::now();
    loop {
        let met = tokio::select! {
            () = world.faults.killed() => true,
            () = pause(Duration::from_millis(10)) => false,
        };
        if met {
            struck = true;
            let n = agents.len();
            let victim = agents.last_mut().unwrap();
            match strike.unwrap().end {
                End::Kill => {
                    victim.signal("KILL").await;
                    victim.end().await;
                }
                End::Term => {
                    victim.signal("TERM").await;
                    let status = victim.end().await;
                    if status.code() != Some(0) {
                        return Err(format!("told to end, it ended with {status}:{victim}"));
                    }
                }
                End::Freeze => victim.signal("STOP").await,
            }
            agents.push(start(n));
        }
        if world.waldur.order_state(order) == "done" {
            told += 1;
            match told {
                1 => {
                    world.gateway.chat(&world.key(resource, "project"), "kestrel-8b", "P=2000 C=1000").map_err(|e| format!("{e:?}"))?;
                    used = true;
                    order = world.waldur.update_limits(resource, &[("max_budget", "80")]);
                }
                2 => {
                    let budget = world.gateway.team(&hex(resource)).and_then(|team| team.max_budget);
                    if budget.map(|budget| budget.to_string()).as_deref() != Some("80") {
                        return Err(format!("the update is done and the budget is {budget:?}"));
                    }
                    let problems = checker::problems(&world);
                    if !problems.is_empty() {
                        return Err(format!("after the update: {problems:?}"));
                    }
                    order = world.waldur.terminate(resource);
                }
                // A story may have gone by with fewer calls than the undisturbed one; an idle agent makes them up.
                _ if struck => break,
                _ => {}
            }
        }
        if began.elapsed() > PATIENCE {
            if told > 2 {
                return Err("the call is never made".into());
            }
            return Err(format!("the {:?} does not end:{}", world.waldur.order_view(order), last_words(&agents)));
        }
    }
    let calls = world.faults.count();
    // Whoever was frozen finds that all is done.
    if freezes && agents.len() > 1 {
        agents[0].signal("CONT").await;
        let before = world.faults.count();
        let began = Instant::now();
        while world.faults.count() < before + 4 && began.elapsed() < PATIENCE {
            pause(Duration::from_millis(10)).await;
        }
    }
    for agent in &mut agents {
        if agent.runs() {
            agent.signal("TERM").await;
            agent.end().await;
        }
        shows_no_key(agent)?;
    }
    let last = world.patient().await;
    world.faults.clear();
    if freezes {
        // Between a look and a write that follows it there is always a moment in which a process can be frozen, and what it then
        // writes may be late by a whole life of the resource. No gateway can tell; the next look takes it away again.
        world.slow_beat(&last).await;
    }
    // A look at everything finds nothing left to do.
    let before = world.writes(None).len();
    world.beat(&last).await;
    world.slow_beat(&last).await;
    let more = world.writes(None).split_off(before);
    if !more.is_empty() {
        return Err(format!("left to do: {more:?}"));
    }
    let mut problems = checker::problems(&world);
    problems.extend(checker::unbilled(&world));
    assert!(used);
    if problems.is_empty() { Ok(calls) } else { Err(problems.join("; ")) }
}

fn hex(uuid: Uuid) -> String {
    uuid.simple().to_string()
}

/// Tells the story once for each of its calls and each of these ends, before the call takes effect and after it.
fn at_every_call(store: Store, ends: &[End]) {
    let calls = runtime().block_on(tell(store, None)).unwrap_or_else(|problem| panic!("undisturbed: {problem}"));
    assert!(calls > 40, "{calls} calls");
    let strikes = |call: usize| ends.iter().flat_map(move |end| [false, true].map(|after_effect| Strike { call, end: *end, after_effect }));
    let strikes: Vec<Strike> = (1..=calls).flat_map(strikes).collect();
    try_all("a life", 6, &strikes, |strike| {
        let told = runtime().block_on(tell(store, Some(*strike)));
        told.map(drop).map_err(|problem| format!("{strike:?}: {problem}"))
    });
}

#[test]
fn a_process_may_be_killed_told_to_end_or_frozen_at_any_call() {
    at_every_call(Store::Kube, &[End::Kill, End::Term, End::Freeze]);
}

#[test]
fn a_process_with_keys_in_files_may_be_killed_at_any_call() {
    at_every_call(Store::Directory, &[End::Kill]);
}

/// No line that an agent said may have a key in it.
fn shows_no_key(agent: &Program) -> Result<(), String> {
    match agent.log().lines().find(|line| line.contains("sk-")) {
        Some(line) => Err(format!("a key in the log:\n{line}")),
        None => Ok(()),
    }
}

/// Nothing is registered that is not stored, nothing half-written is left, and the order waits.
fn assert_waits(world: &World, order: Uuid, resource: Uuid) {
    assert_eq!(world.waldur.order_state(order), "executing");
    assert!(world.gateway.all_live_keys().is_empty() && world.gateway.team(&hex(resource)).is_none());
    let files: Vec<_> = fs::read_dir(world.secrets_folder()).unwrap().flatten().map(|file| file.file_name()).collect();
    assert!(files.iter().all(|file| !file.to_string_lossy().ends_with(".env")), "{files:?}");
}

#[tokio::test]
async fn no_key_is_used_that_a_full_disk_could_not_keep() {
    let world = World::in_real_time(Profile::Late2026, Store::Directory).await;
    // A file may grow to half a kibibyte, less than a Secret has, and a write beyond it fails as on a full disk: half of it is
    // written. Neither root nor a file system of its own is needed for that. The log goes on, through a pipe.
    let config = world.write("full.yml", &config(&world));
    let mut shell = command("/bin/sh");
    shell.arg("-c").arg(format!("trap '' XFSZ; ulimit -S -f 1; exec '{AGENT}' --config '{}' run --only orders", config.display()));
    let mut agent = Program::spawn_unlogged(&world.path("full.log"), shell);
    let (order, resource) = world.order("seabird-llm", &["kestrel-8b"]);
    until("the agent says that it cannot store a key", &[&agent], || agent.log().contains("File too large")).await;
    pause(Duration::from_millis(300)).await;
    assert_waits(&world, order, resource);
    assert!(agent.log().contains(&world.secrets_folder().display().to_string()), "the folder is named:{agent}");
    shows_no_key(&agent).unwrap();
    agent.signal("KILL").await;
    agent.end().await;

    let mut agent = Program::start(AGENT, &world, "roomy", &world.config_text(FAST), &[]);
    until("the order is done", &[&agent], || world.waldur.order_state(order) == "done").await;
    agent.signal("TERM").await;
    agent.end().await;
    world.check();
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_holds_orders_up_and_loses_nothing() {
    let world = World::in_real_time(Profile::Late2026, Store::Directory).await;
    let folder = world.secrets_folder();
    fs::create_dir_all(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).unwrap();
    let mut program = command(AGENT);
    if fs::write(folder.join("probe"), "").is_ok() {
        // Root may write everywhere: the agent runs as nobody, from a copy that nobody may execute.
        fs::remove_file(folder.join("probe")).unwrap();
        let copy = world.path("agent");
        fs::copy(AGENT, &copy).unwrap();
        for (path, mode) in [(world.path(""), 0o755), (copy.clone(), 0o755)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        program = command(copy);
        program.uid(65534).gid(65534);
    }
    program.arg("--config").arg(world.write("config.yml", &config(&world))).args(["run", "--only", "orders"]);
    let mut agent = Program::spawn(&world.path("read-only.log"), program);
    let (order, resource) = world.order("seabird-llm", &["kestrel-8b"]);
    let denied = || agent.log().contains("secrets-denied");
    until("the agent says what it may not", &[&agent], denied).await;
    assert_waits(&world, order, resource);
    assert!(agent.log().contains(&folder.display().to_string()), "the folder is named:{agent}");

    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    until("the order is done", &[&agent], || world.waldur.order_state(order) == "done").await;
    agent.signal("TERM").await;
    agent.end().await;
    assert_eq!(world.secrets(resource).len(), 2);
    world.check();
}

#[tokio::test]
async fn a_process_that_is_told_to_end_twice_ends_at_once() {
    let world = World::in_real_time(Profile::Late2026, Store::Kube).await;
    world.faults.add(Rule::new(Fault::Hang { after_effect: true }).peer(Peer::LiteLlm));
    let text = config(&world).replace("timeout: 400ms", "timeout: 30s");
    let mut agent = Program::start(AGENT, &world, "agent", &text, &["--only", "orders"]);
    let (order, _) = world.order("seabird-llm", &["kestrel-8b"]);
    until("a call hangs", &[&agent], || world.faults.calls().iter().any(|call| call.peer == Peer::LiteLlm)).await;
    agent.signal("TERM").await;
    until("it stops", &[&agent], || agent.log().contains("stopping")).await;
    let began = Instant::now();
    agent.signal("TERM").await;
    assert_eq!(agent.end().await.code(), Some(143));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    world.faults.clear();

    let fresh = world.patient().await;
    world.run_to_rest(&fresh, 3).await;
    assert_eq!(world.waldur.order_state(order), "done");
    world.check();
}
