//! What is not tried again at once, because it has just failed.

use std::collections::BTreeMap;

use farleaf_types::TableId;

/// A table in which somebody is in the way is left alone for so many looks at the most.
const DELAY_LOOK_COUNT_MAX: u32 = 64;

/// What rests, and for how long.
#[derive(Debug, Default)]
pub(super) struct Rests {
    /// Ticks until anything is retrained again.
    tick_count: u32,
    tables: BTreeMap<TableId, u32>,
    /// Tables in which somebody was in the way: ticks until it is tried again, and of the last
    /// delay.
    delays: BTreeMap<TableId, (u32, u32)>,
    /// Tables that there was no room for, and whether the log says so.
    lacking: BTreeMap<TableId, bool>,
}

impl Rests {
    /// So many ticks have passed. Returns whether a table has rested enough.
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

    /// Whether everything rests. So many ticks of it have passed.
    pub(super) fn pass_all(&mut self, passed: u32) -> bool {
        let rests = self.tick_count > 0;
        self.tick_count = self.tick_count.saturating_sub(passed);
        rests
    }

    pub(super) fn rest_all(&mut self, tick_count: u32) {
        self.tick_count = tick_count;
    }

    pub(super) fn rest(&mut self, table: TableId, tick_count: u32) {
        self.tables.insert(table, tick_count);
    }

    pub(super) fn has(&self, table: TableId) -> bool {
        self.tables.contains_key(&table)
    }

    /// Somebody was in the way in a table: each time in a row it is left alone for twice as long,
    /// from so many ticks on.
    pub(super) fn delay(&mut self, table: TableId, tick_count: u32) {
        let last = self.delays.get(&table).map(|(_, last)| *last);
        let most = tick_count.saturating_mul(DELAY_LOOK_COUNT_MAX);
        let ticks = last.map_or(tick_count, |last| last.saturating_mul(2).min(most));
        self.delays.insert(table, (ticks, ticks));
    }

    /// Whether a table is left alone, as somebody was in the way.
    pub(super) fn is_delayed(&self, table: TableId) -> bool {
        self.delays.get(&table).is_some_and(|(ticks, _)| *ticks > 0)
    }

    /// Nobody is in the way any more.
    pub(super) fn forget_delay(&mut self, table: TableId) {
        self.delays.remove(&table);
    }

    /// There was no room for a table. Returns whether that is news.
    pub(super) fn lacks_room(&mut self, table: TableId) -> bool {
        let is_news = !self.lacking.contains_key(&table);
        self.lacking.entry(table).or_insert(false);
        is_news
    }

    /// Whether there was no room for a table when it was last retrained.
    pub(super) fn is_lacking(&self, table: TableId) -> bool {
        self.lacking.contains_key(&table)
    }

    /// Notes that the log says it of a table. Returns whether it did not before.
    pub(super) fn tell(&mut self, table: TableId) -> bool {
        self.lacking.insert(table, true) != Some(true)
    }

    /// There was room for a table. Returns whether the log says otherwise.
    pub(super) fn has_room(&mut self, table: TableId) -> bool {
        self.lacking.remove(&table) == Some(true)
    }

    /// Forgets tables that are gone.
    pub(super) fn keep(&mut self, is_there: impl Fn(TableId) -> bool) {
        self.tables.retain(|table, _| is_there(*table));
        self.lacking.retain(|table, _| is_there(*table));
        self.delays.retain(|table, _| is_there(*table));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table rests for its ticks, and what is said of it once is not said again until it changes.
    #[test]
    fn tables_rest_and_are_told_of_once() {
        let mut rests = Rests::default();
        let table = TableId(3);
        rests.rest(table, 2);
        assert!(rests.has(table) && !rests.has(TableId(4)));
        assert!(!rests.pass(1) && rests.has(table));
        assert!(rests.pass(1) && !rests.has(table));
        assert!(rests.lacks_room(table) && !rests.lacks_room(table) && rests.is_lacking(table));
        assert!(rests.tell(table) && !rests.tell(table));
        assert!(rests.has_room(table) && !rests.is_lacking(table));
        assert!(
            rests.lacks_room(table) && !rests.has_room(table),
            "nobody was told"
        );
        rests.lacks_room(table);
        rests.rest(table, 9);
        rests.keep(|_| false);
        assert!(!rests.has(table) && !rests.is_lacking(table));
    }

    /// What somebody is in the way of is tried ever more seldom, until nobody is.
    #[test]
    fn delays_double() {
        let (mut rests, table) = (Rests::default(), TableId(3));
        for ticks in [3, 6, 12, 24, 48, 96, 192, 192] {
            rests.delay(table, 3);
            assert!(rests.is_delayed(table) && !rests.pass(ticks - 1));
            assert!(rests.is_delayed(table) && !rests.has(table));
            rests.pass(1);
            assert!(!rests.is_delayed(table));
        }
        rests.delay(table, 3);
        rests.forget_delay(table);
        assert!(!rests.is_delayed(table));
        rests.delay(table, 3);
        assert!(rests.is_delayed(table) && !rests.pass(3) && !rests.is_delayed(table));
        rests.keep(|_| false);
        rests.delay(table, 0);
        assert!(!rests.is_delayed(table));
    }

    /// Everything rests for its ticks.
    #[test]
    fn all_of_it_rests() {
        let mut rests = Rests::default();
        assert!(!rests.pass_all(1));
        rests.rest_all(2);
        assert!(rests.pass_all(1) && rests.pass_all(1) && !rests.pass_all(1));
    }
}
