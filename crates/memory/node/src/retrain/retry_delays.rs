//! Delays of retries after failures.

use std::collections::BTreeMap;

use farleaf_base::TableId;

/// Maximum delay of a table with lock conflicts, in checks.
const DELAY_LOOK_COUNT_MAX: u32 = 64;

/// Current delays.
#[derive(Debug, Default)]
pub(super) struct RetryDelays {
    /// Number of ticks until anything is retrained again.
    tick_count: u32,
    tables: BTreeMap<TableId, u32>,
    /// Tables with lock conflicts: ticks until the next attempt, and the last delay.
    delays: BTreeMap<TableId, (u32, u32)>,
    /// Tables that lacked free space, and whether this was logged.
    lacking: BTreeMap<TableId, bool>,
}

impl RetryDelays {
    /// Counts ticks. Returns whether the delay of a table is over.
    pub(super) fn pass(&mut self, passed: u32) -> bool {
        let before = self.tables.len();
        self.tables.retain(|_, ticks| {
            *ticks = ticks.saturating_sub(passed);
            *ticks > 0
        });
        for (ticks, _) in self.delays.values_mut() {
            *ticks = ticks.saturating_sub(passed);
        }
        self.tables.len() < before
    }

    /// Counts ticks; returns whether all retraining is delayed.
    pub(super) fn pass_all(&mut self, passed: u32) -> bool {
        let retry_delays = self.tick_count > 0;
        self.tick_count = self.tick_count.saturating_sub(passed);
        retry_delays
    }

    pub(super) fn delay_all(&mut self, tick_count: u32) {
        self.tick_count = tick_count;
    }

    pub(super) fn rest(&mut self, table: TableId, tick_count: u32) {
        self.tables.insert(table, tick_count);
    }

    pub(super) fn has(&self, table: TableId) -> bool {
        self.tables.contains_key(&table)
    }

    /// Delays a table after a lock conflict. Each consecutive conflict doubles the delay, which
    /// begins with `tick_count`.
    pub(super) fn delay(&mut self, table: TableId, tick_count: u32) {
        let last = self.delays.get(&table).map(|(_, last)| *last);
        let most = tick_count.saturating_mul(DELAY_LOOK_COUNT_MAX);
        let ticks = last.map_or(tick_count, |last| last.saturating_mul(2).min(most));
        self.delays.insert(table, (ticks, ticks));
    }

    /// Returns whether a table is delayed because of lock conflicts.
    pub(super) fn is_delayed(&self, table: TableId) -> bool {
        self.delays.get(&table).is_some_and(|(ticks, _)| *ticks > 0)
    }

    /// Ends the delay of a table.
    pub(super) fn forget_delay(&mut self, table: TableId) {
        self.delays.remove(&table);
    }

    /// Records that there was no free space for a table. Returns whether this is new.
    pub(super) fn note_lack_of_space(&mut self, table: TableId) -> bool {
        let is_news = !self.lacking.contains_key(&table);
        self.lacking.entry(table).or_insert(false);
        is_news
    }

    /// Returns whether a table lacked free space when it was last retrained.
    pub(super) fn lacks_space(&self, table: TableId) -> bool {
        self.lacking.contains_key(&table)
    }

    /// Records that the lack of space of a table was logged. Returns whether it was not logged
    /// before.
    pub(super) fn tell(&mut self, table: TableId) -> bool {
        self.lacking.insert(table, true) != Some(true)
    }

    /// Records that there was free space for a table. Returns whether the lack of it was logged.
    pub(super) fn has_space(&mut self, table: TableId) -> bool {
        self.lacking.remove(&table) == Some(true)
    }

    /// Drops tables that no longer exist.
    pub(super) fn keep(&mut self, is_there: impl Fn(TableId) -> bool) {
        self.tables.retain(|table, _| is_there(*table));
        self.lacking.retain(|table, _| is_there(*table));
        self.delays.retain(|table, _| is_there(*table));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a table is delayed for its ticks, and its state is logged once until it changes.
    #[test]
    fn tables_rest_and_are_told_of_once() {
        let mut retry_delays = RetryDelays::default();
        let table = TableId(3);
        retry_delays.rest(table, 2);
        assert!(retry_delays.has(table) && !retry_delays.has(TableId(4)));
        assert!(!retry_delays.pass(1) && retry_delays.has(table));
        assert!(retry_delays.pass(1) && !retry_delays.has(table));
        assert!(
            retry_delays.note_lack_of_space(table)
                && !retry_delays.note_lack_of_space(table)
                && retry_delays.lacks_space(table)
        );
        assert!(retry_delays.tell(table) && !retry_delays.tell(table));
        assert!(retry_delays.has_space(table) && !retry_delays.lacks_space(table));
        assert!(
            retry_delays.note_lack_of_space(table) && !retry_delays.has_space(table),
            "nobody was told"
        );
        retry_delays.note_lack_of_space(table);
        retry_delays.rest(table, 9);
        retry_delays.keep(|_| false);
        assert!(!retry_delays.has(table) && !retry_delays.lacks_space(table));
    }

    /// Promise: retries after conflicts become less frequent until a retry succeeds.
    #[test]
    fn delays_double() {
        let (mut retry_delays, table) = (RetryDelays::default(), TableId(3));
        for ticks in [3, 6, 12, 24, 48, 96, 192, 192] {
            retry_delays.delay(table, 3);
            assert!(retry_delays.is_delayed(table) && !retry_delays.pass(ticks - 1));
            assert!(retry_delays.is_delayed(table) && !retry_delays.has(table));
            retry_delays.pass(1);
            assert!(!retry_delays.is_delayed(table));
        }
        retry_delays.delay(table, 3);
        retry_delays.forget_delay(table);
        assert!(!retry_delays.is_delayed(table));
        retry_delays.delay(table, 3);
        assert!(
            retry_delays.is_delayed(table)
                && !retry_delays.pass(3)
                && !retry_delays.is_delayed(table)
        );
        retry_delays.keep(|_| false);
        retry_delays.delay(table, 0);
        assert!(!retry_delays.is_delayed(table));
    }

    /// Promise: all retraining is delayed for its ticks.
    #[test]
    fn all_of_it_rests() {
        let mut retry_delays = RetryDelays::default();
        assert!(!retry_delays.pass_all(1));
        retry_delays.delay_all(2);
        assert!(retry_delays.pass_all(1) && retry_delays.pass_all(1) && !retry_delays.pass_all(1));
    }
}
