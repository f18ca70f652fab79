//! Decides whether a table is retrained next for itself, or because a node with some of it drains.

use std::collections::BTreeSet;

use farleaf_base::TableId;

/// Turns of each table. With one turn for all, tables that clients keep busy would get the same
/// kind of turn again and again, and some would never leave the node.
#[derive(Debug, Default)]
pub(super) struct DrainTurns {
    /// Tables whose last retraining was for a drain while other work was due.
    for_itself_next: BTreeSet<TableId>,
}

impl DrainTurns {
    /// Chooses between the two kinds of work: alternately if both are due.
    pub(super) fn choose<T>(
        &mut self,
        table: TableId,
        for_drain: Option<T>,
        for_itself: Option<T>,
    ) -> Option<T> {
        match (for_drain, for_itself) {
            (Some(for_drain), Some(for_itself)) => {
                if self.for_itself_next.remove(&table) {
                    return Some(for_itself);
                }
                self.for_itself_next.insert(table);
                Some(for_drain)
            }
            (for_drain, for_itself) => for_drain.or(for_itself),
        }
    }

    /// Drops tables that no longer exist.
    pub(super) fn keep(&mut self, is_there: impl Fn(TableId) -> bool) {
        self.for_itself_next.retain(|table| is_there(*table));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: every table drains in at least every second of its turns, however many others are
    /// busy. (With one turn for all, every second one of an even number of busy tables never left
    /// the node.)
    #[test]
    fn every_one_of_an_even_number_of_busy_tables_drains() {
        let mut turns = DrainTurns::default();
        let ids = [1, 2, 3, 4].map(TableId);
        let ticks = [(); 2].map(|()| {
            ids.map(|table| {
                turns
                    .choose(table, Some("drain"), Some("due"))
                    .expect("one")
            })
        });
        for table in 0..ids.len() {
            let mut done = ticks.map(|tick| tick[table]);
            done.sort_unstable();
            assert_eq!(done, ["drain", "due"]);
        }
    }

    /// Promise: if only one kind of work is due, it is done, and takes no turn.
    #[test]
    fn what_is_alone_is_done() {
        let mut turns = DrainTurns::default();
        let table = TableId(1);
        assert_eq!(turns.choose(table, None, Some(2)), Some(2));
        assert_eq!(turns.choose(table, Some(1), Some(2)), Some(1));
        assert_eq!(turns.choose(table, Some(1), None), Some(1));
        assert_eq!(turns.choose::<u8>(table, None, None), None);
        assert_eq!(turns.choose(table, Some(1), Some(2)), Some(2));
        turns.choose(table, Some(1), Some(2));
        turns.keep(|_| false);
        assert_eq!(turns.choose(table, Some(1), Some(2)), Some(1));
    }
}
