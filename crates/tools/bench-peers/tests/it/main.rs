//! All maps give the same answers, and a comparison of them runs to its end.

mod answers;
mod command;
mod string_answers;
mod whole_runs;

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The Redis server's program; without one, tests that need it are skipped, and say so.
fn redis() -> Option<PathBuf> {
    let mut command = Command::new("redis-server");
    let status = command.arg("--version").stdout(Stdio::null()).status();
    if status.is_err() {
        eprintln!("skipped: redis: this host has no redis-server");
    }
    status.is_ok().then(|| "redis-server".into())
}
