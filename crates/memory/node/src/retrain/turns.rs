//! Whether a table is retrained next for itself, or because a node with some of it drains.

use std::collections::BTreeSet;

use farleaf_types::TableId;

/// Each table's turn is its own: where clients keep several tables busy, one turn for all would
/// fall to the same tables again and again, and the others would never leave the node.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Tables that were retrained for a drain the last time, and had something else to be done.
    for_itself_next: BTreeSet<TableId>,
}

impl Turns {
    /// What is done in a table, of what may be: by turns where both may.
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

    /// Forgets tables that are gone.
    pub(super) fn keep(&mut self, is_there: impl Fn(TableId) -> bool) {
        self.for_itself_next.retain(|table| is_there(*table));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: every table drains in every second of its turns at the latest, however many others
    /// are busy beside it. (There was one turn for all: of an even number of busy tables every
    /// second one never left the node.)
    #[test]
    fn every_one_of_an_even_number_of_busy_tables_drains() {
        let mut turns = Turns::default();
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

    /// Promise: where one thing is to be done, it is; and that takes no turn.
    #[test]
    fn what_is_alone_is_done() {
        let mut turns = Turns::default();
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
