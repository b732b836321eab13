//! The agent as a program of its own, which is killed, stopped and starved.

use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tokio::process::{Child, Command};

use crate::World;

/// Longest wait for something to happen; only a broken program takes it.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How many lines of a log a panic shows.
const SHOWN: usize = 100;

/// A running agent. Shown as the last lines that it said.
#[derive(Debug)]
pub struct Program {
    child: Child,
    pid: u32,
    log: PathBuf,
}

/// A command with this program, which ends with the test and knows nothing of the environment's own settings.
#[must_use]
pub fn command(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("LLM_ACCESS")) {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).kill_on_drop(true);
    command
}

impl Program {
    /// Starts `run` with a configuration. `name` tells this process from others that run in the same world.
    #[must_use]
    pub fn start(program: &str, world: &World, name: &str, config: &str, args: &[&str]) -> Self {
        let config = world.write(&format!("{name}.yml"), config);
        let mut command = command(program);
        command.arg("--config").arg(config).arg("run").args(args);
        Self::spawn(&world.path(&format!("{name}.log")), command)
    }

    /// Starts a command that becomes the agent. What it prints and what it logs goes into `log`, in place of what was there.
    #[must_use]
    pub fn spawn(log: &Path, mut command: Command) -> Self {
        fs::write(log, "").unwrap();
        // Both ends append, or each would write over the other's words.
        let end = fs::OpenOptions::new().append(true).open(log).unwrap();
        let child = command.stdout(end.try_clone().unwrap()).stderr(end).spawn().unwrap();
        let pid = child.id().unwrap();
        Self { child, pid, log: log.to_owned() }
    }

    /// The same, with what it logs through a pipe: for one that can write no files.
    #[must_use]
    pub fn spawn_unlogged(log: &Path, mut command: Command) -> Self {
        fs::write(log, "").unwrap();
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let pid = child.id().unwrap();
        let mut said = child.stderr.take().unwrap();
        let to = log.to_owned();
        tokio::spawn(async move {
            let mut file = tokio::fs::File::create(to).await.unwrap();
            tokio::io::copy(&mut said, &mut file).await.ok();
        });
        Self { child, pid, log: log.to_owned() }
    }

    /// What it has said so far.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// How many lines of the log contain all of `words`.
    #[must_use]
    pub fn lines(&self, words: &[&str]) -> usize {
        self.log().lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
    }

    /// The port on which it serves probes and metrics: with `http.listen` on port 0 it is given one, and says which.
    pub async fn port(&self) -> u16 {
        until("it says where it listens", &[self], || listens(&self.log()).is_some()).await;
        listens(&self.log()).unwrap().port()
    }

    /// Sends it a signal, such as `TERM`.
    pub async fn signal(&self, name: &str) {
        let sent = Command::new("/bin/sh").arg("-c").arg(format!("kill -{name} {}", self.pid)).status().await.unwrap();
        assert!(sent.success(), "kill -{name}: {self}");
    }

    /// Waits for its end.
    pub async fn end(&mut self) -> ExitStatus {
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        let status = ended.unwrap_or_else(|_| panic!("the agent does not end: {self}")).unwrap();
        let log = self.log();
        let panicked: Vec<&str> = log.lines().skip_while(|line| !line.contains("panicked")).take(SHOWN).collect();
        assert!(panicked.is_empty(), "{}", panicked.join("\n"));
        status
    }

    /// SIGTERM; the exit code and all that it said.
    pub async fn stop(mut self) -> (Option<i32>, String) {
        self.signal("TERM").await;
        (self.end().await.code(), self.log())
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let left_out = lines.len().saturating_sub(SHOWN);
        let name = self.log.file_stem().unwrap_or_default().display();
        write!(f, "\n---- {name}, process {}, {left_out} lines left out\n{}", self.pid, lines[left_out..].join("\n"))
    }
}

/// Where the agent says that it listens.
fn listens(log: &str) -> Option<SocketAddr> {
    // A line that is still being written may break off within the number.
    let whole = log.rsplit_once('\n')?.0;
    let address = whole.split_once("listening on ")?.1;
    address.split(|c: char| !c.is_ascii_hexdigit() && !".:[]".contains(c)).next()?.parse().ok()
}

/// Waits until something is so; if it never is, these programs' last words are told.
pub async fn until(what: &str, programs: &[&Program], so: impl Fn() -> bool) {
    until_within(PATIENCE, what, programs, so).await;
}

/// The same with another patience.
pub async fn until_within(patience: Duration, what: &str, programs: &[&Program], so: impl Fn() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < patience, "{what}: not within {patience:?}{}", last_words(programs.iter().copied()));
        pause(Duration::from_millis(20)).await;
    }
}

/// What each of these programs said last, for a panic.
#[must_use]
pub fn last_words<'a>(programs: impl IntoIterator<Item = &'a Program>) -> String {
    programs.into_iter().map(ToString::to_string).collect()
}

/// A moment of real time.
#[allow(clippy::disallowed_methods)]
pub async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_tells_its_port_in_either_format_once_the_line_is_whole() {
        let at = |log: &str| listens(log).map(|address| address.port());
        assert_eq!(at("2026-11-10T09:00:00Z  INFO llm_access_agent::http: listening on 127.0.0.1:40521\nmore"), Some(40521));
        assert_eq!(at("{\"level\":\"INFO\",\"message\":\"listening on [::1]:40521\",\"target\":\"x\"}\n"), Some(40521));
        assert_eq!(at("{\"message\":\"listening on 127.0.0.1:9\"}\n"), Some(9));
        assert_eq!(at("INFO listening on 127.0.0.1:405"), None);
        assert_eq!(at(""), None);
    }

    #[test]
    fn a_panic_shows_the_end_of_a_long_log_and_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let runtime = crate::crash::runtime();
        let _inside = runtime.enter();
        let mut shell = command("/bin/sh");
        shell.arg("-c").arg("for n in $(seq 250); do echo line $n; done; echo last >&2");
        let mut program = Program::spawn(&folder.path().join("talker.log"), shell);
        assert_eq!(runtime.block_on(program.end()).code(), Some(0));
        let shown = program.to_string();
        assert!(shown.contains("talker") && shown.contains("151 lines left out") && shown.ends_with("line 250\nlast"), "{shown}");
        assert!(shown.contains("line 152\n") && !shown.contains("line 151\n"), "{shown}");
        assert_eq!(program.lines(&["line", "25"]), 4);
    }
}
