//! The node's background thread: sweeps after sessions have died, frees dropped tables, and
//! retrains.

use core::fmt::Display;
use farleaf_executor::block_on;
use farleaf_fabric::Endpoint;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::calls::RingAssigner;
use crate::members::Draining;
use crate::retrain::{RetrainPolicy, Retrainer};
use crate::sessions::AgentEvent;
use crate::sweep::MemoryMaintainer;

/// Interval between checks of the catalog for dropped tables.
const TICK: Duration = Duration::from_millis(20);
/// Number of ticks after which a sweep that failed or skipped something is retried.
const RETRY_TICK_COUNT: u32 = 50;

/// Starts the agent. It retrains if there is a policy, and assigns rings to sessions if the node
/// executes calls. It runs until it receives [`AgentEvent::Stop`] or all senders are gone.
///
/// Between two steps, `renew` may replace the agent's endpoint if it is broken. The agent receives
/// no events during a sweep; `stop`, set before the event is sent, shortens the sweep. The agent
/// then ends within the time of a sweep that does not wait.
///
/// # Errors
/// The system has no thread left.
pub fn start<E: Endpoint + Send + 'static>(
    maintainer: MemoryMaintainer<E>,
    renew: impl Fn(&E) -> Option<E> + Send + 'static,
    events: Receiver<AgentEvent>,
    stop: Arc<AtomicBool>,
    policy: Option<RetrainPolicy>,
    ring_assigner: Option<RingAssigner>,
) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name("farleaf-agent".to_owned())
        .spawn(move || {
            let ring_assigner = ring_assigner.as_ref();
            run(maintainer, renew, &events, &stop, policy, ring_assigner);
        })
}

fn run<E: Endpoint>(
    mut maintainer: MemoryMaintainer<E>,
    renew: impl Fn(&E) -> Option<E>,
    events: &Receiver<AgentEvent>,
    stop: &AtomicBool,
    policy: Option<RetrainPolicy>,
    ring_assigner: Option<&RingAssigner>,
) {
    let started_at = Instant::now();
    let clock = move || started_at.elapsed().as_nanos() as u64;
    let retrainer = policy.map(|policy| Retrainer::new(policy, clock));
    let (mut draining, mut logged_failures) = (Draining::default(), LoggedFailures::default());
    let mut next_sweep: Option<NextSweep> = None;
    let mut next_tick = Instant::now() + TICK;
    loop {
        // Wait until a point in time, not for a duration: sessions that keep dying must not delay
        // the ticks.
        match events.recv_timeout(next_tick.saturating_duration_since(Instant::now())) {
            // Sessions often die in groups; one sweep handles all that were reported.
            Ok(AgentEvent::Fenced(_)) => next_sweep = Some(NextSweep::NOW),
            Ok(AgentEvent::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let drained = block_on(
                    draining.tick(&maintainer),
                    maintainer.endpoint.completions(),
                );
                let what = "determine whether a node has been drained";
                log_once(what, &drained, &mut logged_failures.draining);
                let had_sweep = next_sweep.is_some_and(|sweep| sweep.in_ticks == 0);
                let had_deaths = next_sweep == Some(NextSweep::NOW);
                if let Some(ring_assigner) = ring_assigner {
                    receive(ring_assigner, &maintainer, &mut logged_failures.receiving);
                    if had_sweep {
                        ring_assigner.rescan();
                    }
                }
                next_sweep = tick(
                    &maintainer,
                    next_sweep,
                    stop,
                    &mut logged_failures.reclaiming,
                );
                // Retraining starts after the sweep has finished with dead sessions.
                let is_more_due = match &retrainer {
                    Some(retrainer) if !next_sweep.is_some_and(|it| it.blocks_retraining) => {
                        if had_deaths {
                            retrainer.rescan();
                        }
                        let more = retrain(
                            retrainer,
                            &maintainer,
                            stop,
                            &mut logged_failures.retraining,
                        );
                        if retrainer.take_left_blocks() {
                            next_sweep.get_or_insert(NextSweep::retry(false));
                        }
                        // Work that the retrainer gave up is retried like that of a sweep.
                        if retrainer.take_wanted_sweep() {
                            next_sweep = Some(NextSweep::retry(true));
                        }
                        more
                    }
                    Some(retrainer) => {
                        reuse(retrainer, &maintainer);
                        false
                    }
                    None => false,
                };
                if let Some(endpoint) = renew(&maintainer.endpoint) {
                    maintainer.endpoint = endpoint;
                    // An interrupted retraining is swept; nothing else cleans up after it.
                    let sweep = next_sweep.get_or_insert(NextSweep::retry(true));
                    sweep.blocks_retraining = true;
                }
                // Between two retrainings the agent handles events and frees dropped tables.
                next_tick = Instant::now() + if is_more_due { Duration::ZERO } else { TICK };
            }
        }
    }
}

/// Tasks whose current failure has been logged. Failures that repeat at every tick are logged once.
#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "one for each thing that it does"
)]
struct LoggedFailures {
    draining: bool,
    receiving: bool,
    reclaiming: bool,
    retraining: bool,
}

fn log_once<T, E: Display>(what: &str, outcome: &Result<T, E>, is_logged: &mut bool) {
    let failed = outcome.as_ref().err();
    if let Some(error) = failed.filter(|_| !*is_logged) {
        tracing::error!(%error, "cannot {what}; retrying");
    }
    *is_logged = failed.is_some();
}

/// Time of the next sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NextSweep {
    in_ticks: u32,
    /// Whether retraining waits for this sweep. False if only value blocks are left whose grace
    /// period is not over.
    blocks_retraining: bool,
}

impl NextSweep {
    const NOW: Self = Self {
        in_ticks: 0,
        blocks_retraining: true,
    };

    const fn retry(blocks_retraining: bool) -> Self {
        Self {
            in_ticks: RETRY_TICK_COUNT,
            blocks_retraining,
        }
    }
}

/// Does the work that is due; returns when the next sweep is.
fn tick<E: Endpoint>(
    maintainer: &MemoryMaintainer<E>,
    next_sweep: Option<NextSweep>,
    stop: &AtomicBool,
    is_logged: &mut bool,
) -> Option<NextSweep> {
    let freed = block_on(maintainer.reclaim(), maintainer.endpoint.completions());
    log_once("free dropped tables", &freed, is_logged);
    let mut sweep = next_sweep?;
    if let Some(ticks) = sweep.in_ticks.checked_sub(1) {
        sweep.in_ticks = ticks;
        return Some(sweep);
    }
    match block_on(
        maintainer.sweep_until(stop),
        maintainer.endpoint.completions(),
    ) {
        Ok(report) => {
            let (locks, chunks) = (report.lock_count, report.chunk_count);
            tracing::info!(
                locks,
                chunks,
                leaves = report.leaf_count,
                given_up = report.given_up_count,
                "cleaned up after dead sessions"
            );
            // Work that was skipped after a long wait is retried, like a sweep that failed.
            let is_left = report.given_up_count + report.waiting_count > 0;
            is_left.then(|| NextSweep::retry(report.given_up_count > 0))
        }
        Err(error) => {
            tracing::error!(%error, "cannot clean up after dead sessions; retrying");
            Some(NextSweep::retry(true))
        }
    }
}

/// Assigns rings to sessions and takes them back.
fn receive<E: Endpoint>(
    ring_assigner: &RingAssigner,
    maintainer: &MemoryMaintainer<E>,
    is_logged: &mut bool,
) {
    let received = block_on(
        ring_assigner.tick(maintainer),
        maintainer.endpoint.completions(),
    );
    log_once("assign call rings to sessions", &received, is_logged);
}

/// Reuses memory freed by retrainings. A sweep that cannot finish may need this free space.
fn reuse<E: Endpoint>(retrainer: &Retrainer, maintainer: &MemoryMaintainer<E>) {
    if let Err(error) = block_on(
        retrainer.reuse(maintainer),
        maintainer.endpoint.completions(),
    ) {
        tracing::error!(%error, "cannot free memory after retraining");
    }
}

/// Retrains; returns whether more is due at once.
fn retrain<E: Endpoint>(
    retrainer: &Retrainer,
    maintainer: &MemoryMaintainer<E>,
    stop: &AtomicBool,
    is_logged: &mut bool,
) -> bool {
    let ticked = block_on(
        retrainer.tick(maintainer, stop),
        maintainer.endpoint.completions(),
    );
    log_once("retrain", &ticked, is_logged);
    ticked.unwrap_or(false)
}
