//! The files of pools in this process, removed when a signal ends it.
//!
//! A pool that `bench` makes for itself has a socket and a lock file, which its node removes when
//! it stops. A signal ends the process before that. The next node of a name removes what is left of
//! it, but names of private pools have the number of their process in them, and do not come again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::{scratch, signals};

/// Where the system names the files that this process has open.
const OPEN_FILES: &str = "/proc/self/fd";

/// From now on SIGHUP, SIGINT and SIGTERM end the process as they always do, but remove the files
/// of its private pools, and its scratch directories, first. A SIGHUP that was ignored at the start
/// stays ignored.
///
/// # Errors
/// The system has no signal handler or no thread left.
pub(crate) fn remove_at_signals() -> io::Result<()> {
    let ending = [SIGINT, SIGTERM].into_iter().chain(signals::hangup());
    let mut signals = Signals::new(ending)?;
    let thread = thread::Builder::new().name("signals".to_owned());
    thread.spawn(move || {
        for signal in signals.forever() {
            scratch::remove_all();
            for lock in private_locks() {
                // Whether they can be removed or not, the process ends.
                let _ = fs::remove_file(lock.with_extension("sock"));
                let _ = fs::remove_file(lock);
            }
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    })?;
    Ok(())
}

/// The lock files of this process's private pools. A node holds its lock file open as long as the
/// name is its own, so that what is open here cannot be another process's.
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

    /// Promise: no other file that happens to be open is taken for a private pool's.
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
