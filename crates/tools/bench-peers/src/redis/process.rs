//! Process of a Redis server without persistence.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

const START_TIME_MAX: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Redis server; it ends when this is dropped.
#[derive(Debug)]
pub struct RedisProcess(Child);

impl RedisProcess {
    /// Starts the program without persistence, with these additional options, and waits until it
    /// accepts connections.
    ///
    /// # Errors
    /// The program does not exist, or does not start.
    pub fn start<A: AsRef<OsStr>>(
        program: &Path,
        options: impl IntoIterator<Item = A>,
        mut connect: impl FnMut() -> io::Result<()>,
    ) -> anyhow::Result<Self> {
        let child = Command::new(program)
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .args(options)
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| {
                format!(
                    "cannot start '{}'; name the Redis program with --redis",
                    program.display()
                )
            })?;
        let mut server = Self(child);
        let started = Instant::now();
        while connect().is_err() {
            ensure!(
                started.elapsed() < START_TIME_MAX && server.0.try_wait()?.is_none(),
                "'{}' ended or did not listen in time",
                program.display()
            );
            sleep(POLL_INTERVAL);
        }
        Ok(server)
    }
}

impl Drop for RedisProcess {
    fn drop(&mut self) {
        // The server has no data to lose.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
