//! The agent as a program of its own, which is killed, stopped and starved.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::process::{Child, Command};

use crate::World;

/// Longest wait for something to happen; only a broken program takes it.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A running agent.
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
    command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
    command
}

impl Program {
    /// Starts `run` with a configuration. `name` tells this process from others in the same world.
    #[must_use]
    pub fn start(program: &str, world: &World, name: &str, config: &str, args: &[&str]) -> Self {
        let config = world.write(&format!("{name}.yml"), config);
        let mut command = command(program);
        command.arg("--config").arg(config).arg("run").args(args);
        Self::spawn(world, name, command)
    }

    /// Starts a command that becomes the agent.
    #[must_use]
    pub fn spawn(world: &World, name: &str, mut command: Command) -> Self {
        let log = world.path(&format!("{name}.log"));
        let child = command.stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
        let pid = child.id().unwrap();
        Self { child, pid, log }
    }

    /// The same, with its words through a pipe: for one that can write no files.
    #[must_use]
    pub fn spawn_unlogged(world: &World, name: &str, mut command: Command) -> Self {
        let log = world.write(&format!("{name}.log"), "");
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let pid = child.id().unwrap();
        let mut said = child.stderr.take().unwrap();
        let to = log.clone();
        tokio::spawn(async move {
            let mut file = tokio::fs::File::create(to).await.unwrap();
            tokio::io::copy(&mut said, &mut file).await.ok();
        });
        Self { child, pid, log }
    }

    /// What it has said so far.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Sends it a signal, such as `TERM`.
    pub async fn signal(&self, name: &str) {
        let sent = Command::new("/bin/sh").arg("-c").arg(format!("kill -{name} {}", self.pid)).status().await.unwrap();
        assert!(sent.success(), "kill -{name}: {}", self.log());
    }

    /// Waits for its end.
    pub async fn end(&mut self) -> ExitStatus {
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        let status = ended.unwrap_or_else(|_| panic!("the agent does not end:\n{}", self.log())).unwrap();
        assert!(!self.log().contains("panicked"), "{}", self.log());
        status
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

/// A moment of real time.
#[allow(clippy::disallowed_methods)]
pub async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}
