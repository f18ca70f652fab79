//! The node's background thread: sweeps after deaths, frees dropped tables, retrains.

use core::fmt::Display;
use farleaf_executor::block_on;
use farleaf_fabric::Endpoint;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::calls::Receptionist;
use crate::members::Draining;
use crate::retrain::{RetrainPolicy, Retrainer};
use crate::sessions::AgentEvent;
use crate::sweep::Keeper;

/// Time between two looks at the catalog for dropped tables.
const TICK: Duration = Duration::from_millis(20);
/// Time after which a sweep that failed, or gave something up, is tried again.
const RETRY_TICK_COUNT: u32 = 50;

/// Starts the agent, which retrains if there is a policy for it, and gives sessions rings if there
/// is somebody for that; it runs until it is told
/// [`AgentEvent::Stop`] or nobody can tell it anything. Between two things that it does, `renew`
/// may give it another endpoint, if the one that it has is broken.
/// A sweep hears no events; `stop`, set before, cuts that short. Then the agent ends within the
/// time of a sweep that waits for nobody.
///
/// # Errors
/// The system has no thread left.
pub fn start<E: Endpoint + Send + 'static>(
    keeper: Keeper<E>,
    renew: impl Fn(&E) -> Option<E> + Send + 'static,
    events: Receiver<AgentEvent>,
    stop: Arc<AtomicBool>,
    (policy, receptionist): (Option<RetrainPolicy>, Option<Receptionist>),
) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name("farleaf-agent".to_owned())
        .spawn(move || run(keeper, renew, &events, &stop, (policy, receptionist)))
}

fn run<E: Endpoint>(
    mut keeper: Keeper<E>,
    renew: impl Fn(&E) -> Option<E>,
    events: &Receiver<AgentEvent>,
    stop: &AtomicBool,
    (policy, receptionist): (Option<RetrainPolicy>, Option<Receptionist>),
) {
    let begun = Instant::now();
    let clock = move || begun.elapsed().as_nanos() as u64;
    let retrainer = policy.map(|policy| Retrainer::new(policy, clock));
    let (mut draining, mut told) = (Draining::default(), Told::default());
    let mut next_sweep: Option<NextSweep> = None;
    let mut next_tick = Instant::now() + TICK;
    loop {
        // Until a moment, not for a while: sessions that keep dying must not keep the ticks off.
        match events.recv_timeout(next_tick.saturating_duration_since(Instant::now())) {
            // Deaths come in groups; one sweep serves all that have been heard of.
            Ok(AgentEvent::Fenced(_)) => next_sweep = Some(NextSweep::NOW),
            Ok(AgentEvent::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let drained = block_on(draining.tick(&keeper), keeper.endpoint.completions());
                let what = "tell whether a node has been drained";
                tell_once(what, &drained, &mut told.draining);
                let had_sweep = next_sweep.is_some_and(|sweep| sweep.in_ticks == 0);
                let had_deaths = next_sweep == Some(NextSweep::NOW);
                if let Some(receptionist) = &receptionist {
                    receive(receptionist, &keeper, &mut told.receiving);
                    if had_sweep {
                        receptionist.look_again();
                    }
                }
                next_sweep = tick(&keeper, next_sweep, stop, &mut told.reclaiming);
                // T5.
                let is_more_due = match &retrainer {
                    Some(retrainer) if !next_sweep.is_some_and(|it| it.is_waited_for) => {
                        if had_deaths {
                            retrainer.look_again();
                        }
                        let more = retrain(retrainer, &keeper, stop, &mut told.retraining);
                        if retrainer.take_left_blocks() {
                            next_sweep.get_or_insert(NextSweep::retry(false));
                        }
                        // W6: what it gave up is tried again like what a sweep did.
                        if retrainer.take_wanted_sweep() {
                            next_sweep = Some(NextSweep::retry(true));
                        }
                        more
                    }
                    Some(retrainer) => {
                        reuse(retrainer, &keeper);
                        false
                    }
                    None => false,
                };
                if let Some(endpoint) = renew(&keeper.endpoint) {
                    keeper.endpoint = endpoint;
                    // W5: what was cut off is swept, as nobody else does that.
                    let sweep = next_sweep.get_or_insert(NextSweep::retry(true));
                    sweep.is_waited_for = true;
                }
                // Events are heard, and dropped tables freed, between two retrainings.
                next_tick = Instant::now() + if is_more_due { Duration::ZERO } else { TICK };
            }
        }
    }
}

/// What fails at every tick is told when it begins.
#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "one for each thing that it does"
)]
struct Told {
    draining: bool,
    receiving: bool,
    reclaiming: bool,
    retraining: bool,
}

fn tell_once<T, E: Display>(what: &str, outcome: &Result<T, E>, is_told: &mut bool) {
    let failed = outcome.as_ref().err();
    if let Some(error) = failed.filter(|_| !*is_told) {
        tracing::error!(%error, "cannot {what}; trying again");
    }
    *is_told = failed.is_some();
}

/// When the next sweep is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NextSweep {
    in_ticks: u32,
    /// T5: not if value blocks alone are left, whose grace period is not over.
    is_waited_for: bool,
}

impl NextSweep {
    const NOW: Self = Self {
        in_ticks: 0,
        is_waited_for: true,
    };

    const fn retry(is_waited_for: bool) -> Self {
        Self {
            in_ticks: RETRY_TICK_COUNT,
            is_waited_for,
        }
    }
}

/// What is due now; returns when the next sweep is.
fn tick<E: Endpoint>(
    keeper: &Keeper<E>,
    next_sweep: Option<NextSweep>,
    stop: &AtomicBool,
    is_told: &mut bool,
) -> Option<NextSweep> {
    let freed = block_on(keeper.reclaim(), keeper.endpoint.completions());
    tell_once("free dropped tables", &freed, is_told);
    let mut sweep = next_sweep?;
    if let Some(ticks) = sweep.in_ticks.checked_sub(1) {
        sweep.in_ticks = ticks;
        return Some(sweep);
    }
    match block_on(keeper.sweep_until(stop), keeper.endpoint.completions()) {
        Ok(report) => {
            let (locks, chunks) = (report.lock_count, report.chunk_count);
            tracing::info!(
                locks,
                chunks,
                leaves = report.leaf_count,
                given_up = report.given_up_count,
                "swept after dead sessions"
            );
            // What it waited for too long is tried again, like a sweep that failed.
            let is_left = report.given_up_count + report.waiting_count > 0;
            is_left.then(|| NextSweep::retry(report.given_up_count > 0))
        }
        Err(error) => {
            tracing::error!(%error, "cannot sweep after dead sessions; trying again");
            Some(NextSweep::retry(true))
        }
    }
}

/// J1.
fn receive<E: Endpoint>(receptionist: &Receptionist, keeper: &Keeper<E>, is_told: &mut bool) {
    let received = block_on(receptionist.tick(keeper), keeper.endpoint.completions());
    tell_once("give sessions rings for calls", &received, is_told);
}

/// A sweep that does not come to its end may wait for the room that this makes.
fn reuse<E: Endpoint>(retrainer: &Retrainer, keeper: &Keeper<E>) {
    if let Err(error) = block_on(retrainer.reuse(keeper), keeper.endpoint.completions()) {
        tracing::error!(%error, "cannot free what retraining has left");
    }
}

/// Whether more is due at once.
fn retrain<E: Endpoint>(
    retrainer: &Retrainer,
    keeper: &Keeper<E>,
    stop: &AtomicBool,
    is_told: &mut bool,
) -> bool {
    let ticked = block_on(retrainer.tick(keeper, stop), keeper.endpoint.completions());
    tell_once("retrain", &ticked, is_told);
    ticked.unwrap_or(false)
}
