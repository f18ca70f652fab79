//! Background threads of a server: those that share the work of all of its primaries, and those
//! that serve its backups, each its own.
//!
//! A thread's clock is read after each step, and after a pass over all regions that found no work:
//! a poll without work takes less time than the clock. The few polls between two steps of one pass
//! thus count for the step after them.

use std::thread;
use std::time::Duration;

use farleaf_fabric::Endpoint;
use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_lsm::engine::WorkDone;
use farleaf_replica::{Backup, BackupCounts, Primary, PrimaryWorkDone};

use super::error::ReplicationError;
use super::processor::{Part, ThreadStopwatch};
use super::shared::{ReplicationRunState, Role};

/// Time after which an idle thread polls again.
const IDLE_SLEEP: Duration = Duration::from_millis(1);

/// Executes the background work of a server's primaries, a step of each in turn, until shutdown.
/// Threads of one server begin at different primaries.
pub(super) fn run_primary_background<E: Endpoint + Send + 'static>(
    shared: &ReplicationRunState,
    server: usize,
    thread: usize,
    primaries: &[Primary<E>],
) {
    let (before, from) = primaries.split_at(thread % primaries.len().max(1));
    let mut lap = ThreadStopwatch::begin();
    while !shared.is_over(Role::Primaries) {
        let mut has_worked = false;
        for primary in from.iter().chain(before) {
            let part = match primary.maintain() {
                Ok(PrimaryWorkDone::Engine(WorkDone::Nothing)) => continue,
                Ok(PrimaryWorkDone::Engine(_)) => Part::PrimaryIndex,
                Ok(PrimaryWorkDone::Shipped) => Part::Sending,
                Err(error) => {
                    let what = format!("background work of server {server}");
                    shared.fail(ReplicationError::replica(what)(error));
                    continue;
                }
            };
            has_worked = true;
            shared.meter.add(part, lap.end());
        }
        rest(shared, Role::Primaries, thread, has_worked, &mut lap);
    }
}

/// Serves backups of a server, from a first region on, until shutdown. Returns them.
///
/// A failed backup is not served any longer: its primary learns of it. After any other error that
/// ends the run, no thread waits for the backup.
pub(super) fn serve_backups(
    shared: &ReplicationRunState,
    thread: usize,
    first_region: usize,
    mut backups: Vec<Backup<MappedEndpoint>>,
) -> Vec<Backup<MappedEndpoint>> {
    let mut known: Vec<BackupCounts> = backups.iter().map(Backup::counts).collect();
    let mut has_failed = vec![false; backups.len()];
    let mut lap = ThreadStopwatch::begin();
    while !shared.is_over(Role::Backups) {
        let mut has_worked = false;
        for (place, backup) in backups.iter_mut().enumerate() {
            if has_failed[place] {
                continue;
            }
            match backup.serve() {
                Ok(false) => {}
                Ok(true) => {
                    has_worked = true;
                    let counts = backup.counts();
                    note_step(shared, &known[place], &counts, lap.end());
                    shared.note_backup(first_region + place, counts.clone());
                    known[place] = counts;
                }
                Err(error) => {
                    has_failed[place] = true;
                    let what = format!("the backup of region {}", first_region + place);
                    shared.fail(ReplicationError::replica(what)(error));
                }
            }
        }
        rest(shared, Role::Backups, thread, has_worked, &mut lap);
    }
    backups
}

fn rest(
    shared: &ReplicationRunState,
    role: Role,
    thread: usize,
    has_worked: bool,
    lap: &mut ThreadStopwatch,
) {
    shared.note_pass(role, thread, has_worked);
    if !has_worked {
        shared.meter.add(Part::Looking, lap.end());
        thread::sleep(IDLE_SLEEP);
    }
}

/// Records a backup's step: one segment of the log, one request or one step of its own background
/// work. A request may include receiving the log that it needs, and a log segment goes into L0
/// where trees are built. A step's processor time is therefore divided in proportion to the times
/// that the backup has counted.
fn note_step(
    shared: &ReplicationRunState,
    before: &BackupCounts,
    after: &BackupCounts,
    time_ns: u64,
) {
    let log_ns = after.log_time_ns - before.log_time_ns;
    let feed_ns = after.feed_time_ns - before.feed_time_ns;
    let request_ns = after.request_time_ns - before.request_time_ns;
    let (rest, counted_ns) = if after.request_count > before.request_count {
        (Part::BackupReceived, request_ns.max(log_ns))
    } else if log_ns > 0 {
        (Part::BackupLog, log_ns)
    } else {
        (Part::BackupBuilt, 0)
    };
    let share = |of_ns: u64| {
        let share = u128::from(time_ns) * u128::from(of_ns) / u128::from(counted_ns.max(1));
        (share as u64).min(time_ns)
    };
    let fed_ns = share(feed_ns);
    let logged_ns = share(log_ns.saturating_sub(feed_ns)).min(time_ns - fed_ns);
    shared.meter.add(Part::BackupBuilt, fed_ns);
    shared.meter.add(Part::BackupLog, logged_ns);
    shared.meter.add(rest, time_ns - fed_ns - logged_ns);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(request_count: u64, times_ns: [u64; 3]) -> BackupCounts {
        BackupCounts {
            request_count,
            log_time_ns: times_ns[0],
            feed_time_ns: times_ns[1],
            request_time_ns: times_ns[2],
            ..BackupCounts::default()
        }
    }

    /// Promise: a step's time is divided over the work in it, completely.
    #[test]
    fn steps_are_shared_out() {
        for (after, [log, received, built]) in [
            (counts(0, [100, 0, 0]), [40, 0, 0]),
            (counts(0, [100, 75, 0]), [10, 0, 30]),
            (counts(1, [0, 0, 100]), [0, 40, 0]),
            (counts(1, [25, 0, 100]), [10, 30, 0]),
            (counts(0, [0, 0, 0]), [0, 0, 40]),
        ] {
            let shared = ReplicationRunState::new(1, 1);
            note_step(&shared, &BackupCounts::default(), &after, 40);
            let times = shared.meter.times();
            let found = [Part::BackupLog, Part::BackupReceived, Part::BackupBuilt];
            assert_eq!(found.map(|part| times.of(part)), [log, received, built]);
            assert_eq!(times.total(), 40);
        }
    }
}
