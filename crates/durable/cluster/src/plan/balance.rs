//! Moves for an even load, when nothing else is to be done (CONTROL-20).
//!
//! Each move reduces the difference between the two servers. So balancing ends while nothing else
//! changes.

use super::{Action, CurrentRegion, Planner, load};
use crate::ids::ServerId;
use crate::record::{Phase, RegionRecord, SpaceState};

impl<'v> Planner<'v> {
    /// Plans at most one move: of bytes first, then of primaries.
    pub(super) fn balance(&mut self) {
        let is_allowed = self.moving_count() < self.options.move_count_max;
        if is_allowed && !self.balance_bytes() {
            self.balance_primaries();
        }
    }

    /// Returns the regions that have all their replicas and no phase.
    fn quiet_regions(&self) -> impl Iterator<Item = &'v CurrentRegion> + use<'v> {
        let view = self.view;
        view.regions.values().filter(move |current| {
            let table = view.tables.get(&current.record.table);
            table.is_some_and(|table| {
                let wanted = table.record.replica_count;
                !table.record.dropping && load::is_quiet(view, &current.record, wanted)
            })
        })
    }

    /// Moves the replica that evens bytes most, from the fullest to the emptiest server.
    fn balance_bytes(&mut self) -> bool {
        let fullest = self.loads.iter().max_by_key(|(_, load)| load.size_bytes);
        let with_space = self
            .loads
            .iter()
            .filter(|(server, _)| self.loads.has_space(*server, load::REPLICA_SIZE_BYTES_MIN));
        let emptiest = with_space.min_by_key(|(_, load)| load.size_bytes);
        let (Some((from, more)), Some((to, less))) = (fullest, emptiest) else {
            return false;
        };
        let difference = more.size_bytes.saturating_sub(less.size_bytes);
        // Empty replicas count a little, so that they are spread, too.
        let is_small = difference < self.options.imbalance_bytes_min
            && more.size_bytes >= self.options.imbalance_bytes_min;
        // A twentieth of a server's bytes is not worth a move.
        let is_little = difference <= more.size_bytes / 20;
        if is_small || is_little || difference < 2 * load::REPLICA_SIZE_BYTES_MIN {
            return false;
        }
        let fits = |record: &RegionRecord| {
            let size_bytes = load::size_bytes(self.view, record);
            record.replica_on(from).is_some()
                && record.replica_on(to).is_none()
                && size_bytes.saturating_mul(2) <= difference
                && self.loads.has_space(to, size_bytes)
        };
        let movable = self.quiet_regions().filter(|current| fits(&current.record));
        let largest = movable.max_by_key(|current| {
            // Prefers backups to primaries: moving them interrupts no operations.
            let is_backup = current.record.primary.is_some_and(|it| it.server != from);
            (load::size_bytes(self.view, &current.record), is_backup)
        });
        largest.is_some_and(|current| self.begin_balancing(current, from, to))
    }

    fn begin_balancing(&mut self, current: &CurrentRegion, from: ServerId, to: ServerId) -> bool {
        let mut record = current.record.clone();
        let Some(leaving) = record.replica_on(from) else {
            return false;
        };
        let Some(arriving) = self.add_backup_on(&mut record, to) else {
            return false;
        };
        record.phase = Phase::Moving {
            leaving: leaving.number,
            arriving: arriving.number,
        };
        self.step(Action::BeginMove(to), current, &record);
        true
    }

    /// Hands over the primary that evens operations most.
    fn balance_primaries(&mut self) {
        let mut best = None;
        for current in self.quiet_regions() {
            let record = &current.record;
            let Some(primary) = record.primary else {
                continue;
            };
            let operations = load::operations_per_second(self.view, record);
            let here = self.loads.of(primary.server).operations_per_second;
            for backup in &record.backups {
                let server = backup.replica.server;
                let there = self.loads.of(server).operations_per_second;
                let is_drained = self.view.drains.contains(&server);
                let has_space = self.view.space_of(server) == SpaceState::Enough;
                let difference = here.saturating_sub(there);
                // A tenth of a server's operations is not worth an interruption, nor are a few
                // operations, which fluctuate.
                let is_worth =
                    difference > here / 10 && difference >= self.options.imbalance_operations_min;
                let evens = operations.saturating_mul(2) <= difference
                    && is_worth
                    && !is_drained
                    && has_space;
                if evens && best.is_none_or(|(_, _, gain)| operations > gain) {
                    best = Some((current, backup.replica.number, operations));
                }
            }
        }
        let Some((current, to, _)) = best else {
            return;
        };
        let mut record = current.record.clone();
        record.phase = Phase::HandingOver {
            to,
            old_leaves: false,
        };
        self.step(Action::BeginHandOver, current, &record);
    }
}
