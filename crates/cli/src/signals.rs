//! Signals that stop a server, and signals that do nothing to it.

use std::{fs, thread};

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

/// What a signal asks of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// Stop in an orderly way.
    Stop,
    /// End the process now.
    EndAtOnce,
    /// Reload, which servers cannot do yet.
    Reload,
    Nothing,
}

/// Which signals have come.
#[derive(Debug, Default)]
struct Heard {
    is_interrupted: bool,
}

impl Heard {
    /// Only a second SIGINT or SIGTERM ends the process at once. A SIGHUP never counts: a terminal
    /// that closes sends it more than once, and a session manager sends it beside a SIGTERM.
    fn asked(&mut self, signal: i32) -> Asked {
        match signal {
            SIGHUP => Asked::Stop,
            SIGUSR1 => Asked::Reload,
            SIGUSR2 => Asked::Nothing,
            _ if std::mem::replace(&mut self.is_interrupted, true) => Asked::EndAtOnce,
            _ => Asked::Stop,
        }
    }
}

/// Takes the signals of a server: SIGHUP, SIGINT, SIGTERM, SIGUSR1 and SIGUSR2.
///
/// # Errors
/// The system does not let this process handle them.
pub(crate) fn take() -> anyhow::Result<Signals> {
    let mut signals = vec![SIGINT, SIGTERM, SIGUSR1, SIGUSR2];
    signals.extend(hangup());
    Signals::new(signals).context("cannot take signals")
}

/// SIGHUP, unless it was ignored when this process started, as `nohup` does: then it stays ignored.
pub(crate) fn hangup() -> Option<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    (!ignores(&status, SIGHUP)).then_some(SIGHUP)
}

/// Whether a process with this `/proc/PID/status` ignores a signal.
fn ignores(status: &str, signal: i32) -> bool {
    let mut lines = status.lines();
    let ignored = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|it| u64::from_str_radix(it.trim(), 16).ok());
    ignored.is_some_and(|ignored| ignored >> (signal - 1) & 1 == 1)
}

/// Stops at the first signal that asks for it, and ends the process at the second SIGINT or
/// SIGTERM.
///
/// # Errors
/// No thread can be started.
pub(crate) fn stop_on(
    mut signals: Signals,
    stop: impl Fn() + Send + 'static,
) -> anyhow::Result<()> {
    let mut heard = Heard::default();
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                match heard.asked(signal) {
                    Asked::Stop => {
                        stop();
                        tracing::info!(
                            signal,
                            "stopping; a second SIGINT or SIGTERM ends the process at once"
                        );
                    }
                    Asked::EndAtOnce => {
                        // Whether it can be done or not, this is the end of it.
                        let _ = signal_hook::low_level::emulate_default_handler(signal);
                    }
                    Asked::Reload => {
                        tracing::info!(
                            signal,
                            "SIGUSR1 is reserved for reloading, which this version cannot do: \
                             nothing was done"
                        );
                    }
                    Asked::Nothing => {}
                }
            }
        })
        .context("cannot start the thread that waits for signals")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: SIGHUP, SIGINT and SIGTERM stop a server, and only a second SIGINT or SIGTERM ends
    /// it at once, however many SIGHUPs came before; SIGUSR1 and SIGUSR2 do not stop it.
    #[test]
    fn only_a_second_interrupt_ends_at_once() {
        let mut heard = Heard::default();
        let signals = [SIGUSR1, SIGUSR2, SIGHUP, SIGHUP, SIGTERM, SIGHUP, SIGINT];
        let asked = signals.map(|signal| heard.asked(signal));
        assert_eq!(
            asked,
            [
                Asked::Reload,
                Asked::Nothing,
                Asked::Stop,
                Asked::Stop,
                Asked::Stop,
                Asked::Stop,
                Asked::EndAtOnce,
            ]
        );
    }

    /// Promise: a signal is ignored if its bit is set in the line `SigIgn`, and not if that line is
    /// missing or is no number.
    #[test]
    fn ignored_signals_are_read_from_the_status() {
        let status = "Name:\tfarleaf\nSigBlk:\tffff\nSigIgn:\t0000000000001001\nSigCgt:\t0\n";
        assert!(ignores(status, SIGHUP));
        assert!(!ignores(status, SIGINT));
        for status in ["", "SigIgn:\tx\n", "SigIgn:\t1000\n"] {
            assert!(!ignores(status, SIGHUP), "{status:?}");
        }
    }
}
