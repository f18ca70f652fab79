//! Removes the files of this process's private pools when a signal ends it.
//!
//! A private pool of `bench` has a socket and a lock file, which its node removes when it stops. A
//! signal ends the process before that. A node that starts under the same name would remove them,
//! but names of private pools contain the process id and do not recur.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::{scratch, signals};

/// Directory in which the system lists the open files of this process.
const OPEN_FILES: &str = "/proc/self/fd";

/// Makes SIGHUP, SIGINT and SIGTERM remove the files of private pools and the scratch directories
/// before they end the process as usual. A SIGHUP that was ignored at the start stays ignored.
///
/// # Errors
/// The system cannot install a signal handler or start a thread.
pub(crate) fn remove_at_signals() -> io::Result<()> {
    let ending = [SIGINT, SIGTERM].into_iter().chain(signals::hangup());
    let mut signals = Signals::new(ending)?;
    let thread = thread::Builder::new().name("signals".to_owned());
    thread.spawn(move || {
        for signal in signals.forever() {
            scratch::remove_all();
            for lock in private_locks() {
                // Best effort: the process ends in any case.
                let _ = fs::remove_file(lock.with_extension("sock"));
                let _ = fs::remove_file(lock);
            }
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    })?;
    Ok(())
}

/// Returns the lock files of this process's private pools. A node keeps its lock file open as long
/// as it owns the name, so an open one cannot belong to another process.
fn private_locks() -> Vec<PathBuf> {
    let Ok(open) = fs::read_dir(OPEN_FILES) else {
        return Vec::new();
    };
    open.filter_map(|file| fs::read_link(file.ok()?.path()).ok())
        .filter(|path| is_private_lock(path, std::process::id()))
        .collect()
}

fn is_private_lock(path: &Path, pid: u32) -> bool {
    let name = path.file_stem().and_then(|name| name.to_str());
    path.extension()
        .is_some_and(|extension| extension == "lock")
        && name.is_some_and(|name| name.starts_with(&format!("private-{pid}-")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: other open files are never mistaken for those of a private pool.
    #[test]
    fn only_locks_of_this_process_s_private_pools_are_removed() {
        let is_ours = |path: &str| is_private_lock(Path::new(path), 12);
        assert!(is_ours("/run/user/0/farleaf/private-12-0.lock"));
        assert!(is_ours("/tmp/private-12-31.lock"));
        for other in [
            "/tmp/private-1-0.lock",
            "/tmp/private-123-0.lock",
            "/tmp/private-12-0.lock (deleted)",
            "/tmp/private-12-0.sock",
            "/tmp/default.lock",
            "/tmp/private-12-0.lock/file",
            "socket:[2345]",
        ] {
            assert!(!is_ours(other), "{other}");
        }
    }
}
