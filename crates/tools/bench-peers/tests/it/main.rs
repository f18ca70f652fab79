//! Tests that all maps give the same answers, and that a comparison of them runs to its end.

mod answers;
mod command;
mod string_answers;
mod whole_runs;

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Path of the Redis server's program; without it, tests that need it are skipped and report that.
fn redis() -> Option<PathBuf> {
    let mut command = Command::new("redis-server");
    let status = command.arg("--version").stdout(Stdio::null()).status();
    if status.is_err() {
        eprintln!("skipped: redis: this host has no redis-server");
    }
    status.is_ok().then(|| "redis-server".into())
}
