//! Signal handling of servers: signals that stop a server, that make it read its secrets and
//! certificates again, and that it ignores.

use std::{fs, thread};

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::reload::ReloadSignal;

/// Action that a signal requests from a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SignalAction {
    /// Stop in good order.
    Stop,
    /// End the process now.
    EndAtOnce,
    /// Read secrets and certificates again.
    Reload,
    Nothing,
}

/// Signals received so far.
#[derive(Debug, Default)]
struct SignalHistory {
    is_interrupted: bool,
}

impl SignalHistory {
    /// Returns the action for a signal. Only a second SIGINT or SIGTERM ends the process at once. A
    /// SIGHUP never counts: a closing terminal sends it more than once, and a session manager sends
    /// it together with a SIGTERM.
    fn action(&mut self, signal: i32) -> SignalAction {
        match signal {
            SIGHUP => SignalAction::Stop,
            SIGUSR1 => SignalAction::Reload,
            SIGUSR2 => SignalAction::Nothing,
            _ if std::mem::replace(&mut self.is_interrupted, true) => SignalAction::EndAtOnce,
            _ => SignalAction::Stop,
        }
    }
}

/// Registers handlers for SIGHUP, SIGINT, SIGTERM, SIGUSR1 and SIGUSR2.
///
/// # Errors
/// The system cannot register the handlers.
pub(crate) fn take() -> anyhow::Result<Signals> {
    let mut signals = vec![SIGINT, SIGTERM, SIGUSR1, SIGUSR2];
    signals.extend(hangup());
    Signals::new(signals).context("cannot install the signal handlers")
}

/// Returns SIGHUP, unless it was ignored when this process started, as under `nohup`; then it stays
/// ignored.
pub(crate) fn hangup() -> Option<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    (!ignores(&status, SIGHUP)).then_some(SIGHUP)
}

/// Returns whether a process with this content of `/proc/PID/status` ignores a signal.
fn ignores(status: &str, signal: i32) -> bool {
    let mut lines = status.lines();
    let ignored = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|it| u64::from_str_radix(it.trim(), 16).ok());
    ignored.is_some_and(|ignored| ignored >> (signal - 1) & 1 == 1)
}

/// Stops the server at the first signal that requests it, and ends the process at the second SIGINT
/// or SIGTERM. SIGUSR1 reads secrets and certificates again.
///
/// # Errors
/// No thread can be started.
pub(crate) fn stop_on(
    mut signals: Signals,
    stop: impl Fn() + Send + 'static,
    reload: ReloadSignal,
) -> anyhow::Result<()> {
    let mut history = SignalHistory::default();
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                match history.action(signal) {
                    SignalAction::Stop => {
                        stop();
                        tracing::info!(
                            signal,
                            "stopping; a second SIGINT or SIGTERM ends the process at once"
                        );
                    }
                    SignalAction::EndAtOnce => {
                        // The process ends here even if this fails.
                        let _ = signal_hook::low_level::emulate_default_handler(signal);
                    }
                    SignalAction::Reload => reload.send(),
                    SignalAction::Nothing => {}
                }
            }
        })
        .context("cannot start the signal handling thread")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: SIGHUP, SIGINT and SIGTERM stop a server. Only a second SIGINT or SIGTERM ends it
    /// at once, however many SIGHUPs came before. SIGUSR1 and SIGUSR2 do not stop it.
    #[test]
    fn only_a_second_interrupt_ends_at_once() {
        let mut history = SignalHistory::default();
        let signals = [SIGUSR1, SIGUSR2, SIGHUP, SIGHUP, SIGTERM, SIGHUP, SIGINT];
        let actions = signals.map(|signal| history.action(signal));
        assert_eq!(
            actions,
            [
                SignalAction::Reload,
                SignalAction::Nothing,
                SignalAction::Stop,
                SignalAction::Stop,
                SignalAction::Stop,
                SignalAction::Stop,
                SignalAction::EndAtOnce,
            ]
        );
    }

    /// Promise: a signal counts as ignored if its bit is set in the line `SigIgn`, and not if that
    /// line is missing or is not a number.
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
