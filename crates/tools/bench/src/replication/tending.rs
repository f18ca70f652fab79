//! The background threads of a server: those that do the work of all of its primaries, and those
//! that serve its backups, each its own.
//!
//! Clocks of threads are read behind each step, and behind a pass over all regions that found
//! nothing: a look that finds nothing takes less than the clock. So the few looks between two steps
//! of one pass count for the step behind them.

use std::thread;
use std::time::Duration;

use farleaf_fabric::Endpoint;
use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_lsm::engine::Worked;
use farleaf_replica::{Backup, BackupCounts, Primary, PrimaryWorked};

use super::error::ReplicationError;
use super::processor::{Lap, Part};
use super::shared::{Role, Shared};

/// Who has found nothing to do looks again after so long.
const REST: Duration = Duration::from_millis(1);

/// Does the background work of a server's primaries, a step of each in turn, until it is told to
/// end. Threads of one server begin at different primaries.
pub(super) fn tend_primaries<E: Endpoint + Send + 'static>(
    shared: &Shared,
    (server, thread): (usize, usize),
    primaries: &[Primary<E>],
) {
    let (before, from) = primaries.split_at(thread % primaries.len().max(1));
    let mut lap = Lap::begin();
    while !shared.is_over(Role::Primaries) {
        let mut has_worked = false;
        for primary in from.iter().chain(before) {
            let part = match primary.maintain() {
                Ok(PrimaryWorked::Engine(Worked::Nothing)) => continue,
                Ok(PrimaryWorked::Engine(_)) => Part::PrimaryIndex,
                Ok(PrimaryWorked::Shipped) => Part::Sending,
                Err(error) => {
                    let what = format!("background work of server {server}");
                    shared.fail(ReplicationError::replica(what)(error));
                    continue;
                }
            };
            has_worked = true;
            shared.meter.add(part, lap.end());
        }
        rest(shared, (Role::Primaries, thread), has_worked, &mut lap);
    }
}

/// Serves backups of a server, of the regions from one on, until it is told to end. Gives them
/// back.
///
/// One that has failed is served no more: its primary learns of it, and of whatever else ends a run
/// nobody waits for it (R4).
pub(super) fn serve_backups(
    shared: &Shared,
    (thread, first_region): (usize, usize),
    mut backups: Vec<Backup<MappedEndpoint>>,
) -> Vec<Backup<MappedEndpoint>> {
    let mut known: Vec<BackupCounts> = backups.iter().map(Backup::counts).collect();
    let mut has_failed = vec![false; backups.len()];
    let mut lap = Lap::begin();
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
                    note_step(shared, (&known[place], &counts), lap.end());
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
        rest(shared, (Role::Backups, thread), has_worked, &mut lap);
    }
    backups
}

fn rest(shared: &Shared, whose: (Role, usize), has_worked: bool, lap: &mut Lap) {
    shared.note_pass(whose, has_worked);
    if !has_worked {
        shared.meter.add(Part::Looking, lap.end());
        thread::sleep(REST);
    }
}

/// A step of a backup is one segment of the log, one request or one step of its own background
/// work. A request can take the log in that it needs, and a segment of the log goes into L0 where
/// trees are built: a step's processor time is shared out as the times are that the backup has
/// counted.
fn note_step(shared: &Shared, (before, after): (&BackupCounts, &BackupCounts), time_ns: u64) {
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

    /// Promise: a step's time goes to what was done in it, and all of it to something.
    #[test]
    fn steps_are_shared_out() {
        for (after, [log, received, built]) in [
            (counts(0, [100, 0, 0]), [40, 0, 0]),
            (counts(0, [100, 75, 0]), [10, 0, 30]),
            (counts(1, [0, 0, 100]), [0, 40, 0]),
            (counts(1, [25, 0, 100]), [10, 30, 0]),
            (counts(0, [0, 0, 0]), [0, 0, 40]),
        ] {
            let shared = Shared::new(1, 1);
            note_step(&shared, (&BackupCounts::default(), &after), 40);
            let times = shared.meter.times();
            let found = [Part::BackupLog, Part::BackupReceived, Part::BackupBuilt];
            assert_eq!(found.map(|part| times.of(part)), [log, received, built]);
            assert_eq!(times.total(), 40);
        }
    }
}
