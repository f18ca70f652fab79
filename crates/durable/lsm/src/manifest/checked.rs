//! Contents of a manifest that were checked for consistency.
//!
//! A checksum proves that a line was written, not that it is consistent. So everything read from a
//! file or made by the engine is first checked against the current state. Users of a state then
//! need no checks for places outside a device or for overflowing numbers.

use std::collections::{BTreeMap, BTreeSet};

use super::state::{Change, FORMAT_VERSION, LogEntry, ManifestState, TreeEntry};
use crate::log::record::SEGMENT_HEADER_SIZE_BYTES;
use crate::place::{
    LEVEL_COUNT_MAX, LogNumber, LogPosition, SEGMENT_SIZE_BLOCKS, SEGMENT_SIZE_BYTES, SegmentId,
    TreeId,
};

/// Consistent contents of a manifest, and the segments in use.
#[derive(Clone, Debug)]
pub(super) struct CheckedState {
    state: ManifestState,
    log_places: BTreeSet<SegmentId>,
    tree_places: BTreeSet<SegmentId>,
}

impl CheckedState {
    /// Checks all contents of a manifest; returns the reason if they are inconsistent.
    pub(super) fn new(state: ManifestState) -> Result<Self, String> {
        if state.version != FORMAT_VERSION {
            return Err(format!("unsupported format version {}", state.version));
        }
        check_reserved_to(state.next_log.0)?;
        check_place(READ_FROM, state.read_from, state.next_log)?;
        check_place(SYNCED_TO, state.log_synced_to, state.next_log)?;
        let mut log_places = BTreeSet::new();
        for (number, entry) in &state.log {
            if *number >= state.next_log {
                let (number, next) = (number.0, state.next_log.0);
                return Err(format!(
                    "log segment {number} exists, but the next number is {next}"
                ));
            }
            if let Some(end) = entry.end {
                check_end(*number, end)?;
            }
            take_place(&mut log_places, entry.segment)?;
        }
        if state.levels.len() > LEVEL_COUNT_MAX {
            return Err(format!("it has {} levels", state.levels.len()));
        }
        let mut tree_places = BTreeSet::new();
        let mut ids = BTreeSet::new();
        for (level, trees) in (1..).zip(&state.levels) {
            if level > 1 && trees.len() > 1 {
                return Err(format!("level {level} has {} trees", trees.len()));
            }
            for tree in trees {
                check_tree(tree)?;
                if tree.id >= state.next_tree || !ids.insert(tree.id) {
                    return Err(format!("invalid or duplicate tree number {}", tree.id.0));
                }
                for segment in &tree.segments {
                    take_place(&mut tree_places, *segment)?;
                }
            }
        }
        if state.next_tree.0 == 0 || state.next_tree.0 > TreeId::MAX.0 + 1 {
            return Err(format!("invalid next tree number {}", state.next_tree.0));
        }
        Ok(Self {
            state,
            log_places,
            tree_places,
        })
    }

    pub(super) const fn state(&self) -> &ManifestState {
        &self.state
    }

    /// Checks that an edit with these changes can follow; returns the reason if it cannot. The cost
    /// is proportional to the edit's size times a logarithm.
    pub(super) fn check(&self, changes: &[Change]) -> Result<(), String> {
        if self.state.edit_count == u64::MAX {
            return Err("the number of edits is at its maximum".to_owned());
        }
        let mut edit = Edit {
            now: self,
            next_log: self.state.next_log,
            read_from: self.state.read_from,
            log_synced_to: self.state.log_synced_to,
            log_places: BTreeSet::new(),
            freed: BTreeSet::new(),
            removed: BTreeSet::new(),
            added: BTreeMap::new(),
            tree_places: BTreeSet::new(),
        };
        let is_alone = changes.len() == 1;
        changes
            .iter()
            .try_for_each(|change| edit.check(change, is_alone))
    }

    /// Applies an edit that was checked.
    pub(super) fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            self.apply_one(change);
        }
        self.state.edit_count += 1;
    }

    fn apply_one(&mut self, change: &Change) {
        let state = &mut self.state;
        match change {
            Change::All(_) => unreachable!("it was checked"),
            Change::ReserveLog { segments, .. } => {
                for segment in segments {
                    let (segment, end) = (*segment, None);
                    state.log.insert(state.next_log, LogEntry { segment, end });
                    state.next_log = state.next_log.next();
                }
                self.log_places.extend(segments);
            }
            Change::EndLog { last } => {
                if let Some((last, end)) = last {
                    state.log.retain(|number, _| number <= last);
                    if let Some(entry) = state.log.get_mut(last) {
                        entry.end = Some(*end);
                    }
                } else {
                    state.log.clear();
                }
                self.log_places = state.log.values().map(|entry| entry.segment).collect();
            }
            Change::FreeLog { numbers } => {
                for number in numbers {
                    if let Some(entry) = state.log.remove(number) {
                        self.log_places.remove(&entry.segment);
                    }
                }
            }
            Change::ReadFrom(position) => state.read_from = *position,
            Change::LogSynced(position) => state.log_synced_to = *position,
            Change::AddTree { level, tree } => {
                state.next_tree = state.next_tree.max(TreeId(tree.id.0 + 1));
                if state.levels.len() < *level {
                    state.levels.resize_with(*level, Vec::new);
                }
                self.tree_places.extend(&tree.segments);
                state.levels[level - 1].insert(0, tree.clone());
            }
            Change::RemoveTrees { ids } => {
                let places = &mut self.tree_places;
                for level in &mut state.levels {
                    level.retain(|tree| {
                        if !ids.contains(&tree.id) {
                            return true;
                        }
                        for segment in &tree.segments {
                            places.remove(segment);
                        }
                        false
                    });
                }
            }
        }
    }
}

/// Result of the changes of an edit that were checked so far. Segments that the edit frees are free
/// only after the edit is in force.
struct Edit<'s> {
    now: &'s CheckedState,
    next_log: LogNumber,
    read_from: LogPosition,
    log_synced_to: LogPosition,
    log_places: BTreeSet<SegmentId>,
    freed: BTreeSet<LogNumber>,
    removed: BTreeSet<TreeId>,
    added: BTreeMap<TreeId, usize>,
    tree_places: BTreeSet<SegmentId>,
}

impl Edit<'_> {
    fn check(&mut self, change: &Change, is_alone: bool) -> Result<(), String> {
        match change {
            Change::All(_) => Err("the complete state is not the first edit".to_owned()),
            Change::ReserveLog { first, segments } => self.reserve_log(*first, segments),
            Change::EndLog { .. } if !is_alone => {
                Err("an edit that ends the log has other changes".to_owned())
            }
            Change::EndLog { last: None } => Ok(()),
            Change::EndLog {
                last: Some((last, end)),
            } => {
                if !self.now.state.log.contains_key(last) {
                    return Err(format!(
                        "the log ends in segment {}, which does not exist",
                        last.0
                    ));
                }
                check_end(*last, *end)
            }
            Change::FreeLog { numbers } => numbers.iter().try_for_each(|it| self.free_log(*it)),
            Change::ReadFrom(position) => {
                check_goes_on(READ_FROM, self.read_from, *position)?;
                self.read_from = *position;
                check_place(READ_FROM, *position, self.next_log)
            }
            Change::LogSynced(position) => {
                check_goes_on(SYNCED_TO, self.log_synced_to, *position)?;
                self.log_synced_to = *position;
                check_place(SYNCED_TO, *position, self.next_log)
            }
            Change::AddTree { level, tree } => self.add_tree(*level, tree),
            Change::RemoveTrees { ids } => ids.iter().try_for_each(|id| self.remove_tree(*id)),
        }
    }

    fn reserve_log(&mut self, first: LogNumber, segments: &[SegmentId]) -> Result<(), String> {
        if first != self.next_log {
            return Err(format!("log segment {} is reserved out of order", first.0));
        }
        let next = first.0.saturating_add(segments.len() as u64);
        check_reserved_to(next)?;
        self.next_log = LogNumber(next);
        for segment in segments {
            if self.now.log_places.contains(segment) {
                return Err(used_twice(*segment));
            }
            take_place(&mut self.log_places, *segment)?;
        }
        Ok(())
    }

    fn free_log(&mut self, number: LogNumber) -> Result<(), String> {
        if number >= self.read_from.number() {
            let number = number.0;
            return Err(format!("log segment {number} is freed, but still needed"));
        }
        if !self.now.state.log.contains_key(&number) || !self.freed.insert(number) {
            return Err(format!(
                "log segment {} is freed, but does not exist",
                number.0
            ));
        }
        Ok(())
    }

    fn remove_tree(&mut self, id: TreeId) -> Result<(), String> {
        let mut trees = self.now.state.levels.iter().flatten();
        if !trees.any(|tree| tree.id == id) || !self.removed.insert(id) {
            return Err(format!("tree {} is removed, but does not exist", id.0));
        }
        Ok(())
    }

    fn add_tree(&mut self, level: usize, tree: &TreeEntry) -> Result<(), String> {
        check_tree(tree)?;
        let levels = &self.now.state.levels;
        // Trees that are written concurrently may finish in another order than that of their ids.
        let is_there = levels.iter().flatten().any(|it| it.id == tree.id);
        if !(1..=LEVEL_COUNT_MAX).contains(&level) || is_there {
            let id = tree.id.0;
            return Err(format!("tree {id} cannot be added to level {level}"));
        }
        let mut others = levels.get(level - 1).into_iter().flatten();
        let has_another = others.any(|it| !self.removed.contains(&it.id));
        let has_another = has_another || self.added.values().any(|it| *it == level);
        if level > 1 && has_another {
            return Err(format!("level {level} would have two trees"));
        }
        if self.added.insert(tree.id, level).is_some() {
            return Err(format!("tree {} is added twice", tree.id.0));
        }
        for segment in &tree.segments {
            if self.now.tree_places.contains(segment) {
                return Err(used_twice(*segment));
            }
            take_place(&mut self.tree_places, *segment)?;
        }
        Ok(())
    }
}

fn used_twice(segment: SegmentId) -> String {
    format!("{segment} is used twice")
}

fn take_place(places: &mut BTreeSet<SegmentId>, segment: SegmentId) -> Result<(), String> {
    if segment > SegmentId::MAX {
        return Err(format!("{segment} is out of range"));
    }
    if !places.insert(segment) {
        return Err(used_twice(segment));
    }
    Ok(())
}

/// Checks that log segments of all numbers before this one have valid positions.
fn check_reserved_to(next: u64) -> Result<(), String> {
    let count_max = LogPosition::MAX.number().0 + 1;
    if next > count_max {
        return Err(format!("the log exceeds {count_max} segments"));
    }
    Ok(())
}

/// Meanings of log positions, for error texts.
const READ_FROM: &str = "is read from";
const SYNCED_TO: &str = "is durable up to";

fn check_place(what: &str, position: LogPosition, next_log: LogNumber) -> Result<(), String> {
    if position > next_log.start() {
        return Err(format!("the log {what} {position}, which is past its end"));
    }
    Ok(())
}

/// Checks that such a position does not go backward.
fn check_goes_on(what: &str, before: LogPosition, position: LogPosition) -> Result<(), String> {
    if position < before {
        return Err(format!(
            "the log {what} {position}, which is before the previous value"
        ));
    }
    Ok(())
}

fn check_end(number: LogNumber, end: u32) -> Result<(), String> {
    let range = SEGMENT_HEADER_SIZE_BYTES as u64..=SEGMENT_SIZE_BYTES;
    if !range.contains(&u64::from(end)) {
        return Err(format!("log segment {} cannot end at {end}", number.0));
    }
    Ok(())
}

/// Checks a tree by itself.
fn check_tree(tree: &TreeEntry) -> Result<(), String> {
    let id = tree.id.0;
    if id == 0 || tree.id > TreeId::MAX {
        return Err(format!("invalid tree number {id}"));
    }
    let block_count = tree.shape.block_count;
    if block_count.div_ceil(SEGMENT_SIZE_BLOCKS) as usize != tree.segments.len() {
        return Err(format!(
            "tree {id} has the wrong number of segments for its blocks"
        ));
    }
    let shape = tree.shape.check();
    shape.map_err(|how| format!("tree {id} is invalid: {how}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::record::EngineId;
    use crate::place::BlockNumber;
    use crate::tree::{BlockRange, TreeShape};

    fn tree(id: u64, segment: u32) -> TreeEntry {
        let range = |first, count| {
            let first = BlockNumber(first);
            BlockRange { first, count }
        };
        TreeEntry {
            id: TreeId(id),
            segments: vec![SegmentId(segment)],
            shape: TreeShape {
                root: BlockNumber(2),
                height: 0,
                entry_count: 5,
                block_count: 3,
                filter: range(0, 1),
                references: range(1, 1),
            },
        }
    }

    fn reserve(first: u64, segments: &[u32]) -> Change {
        Change::ReserveLog {
            first: LogNumber(first),
            segments: segments.iter().copied().map(SegmentId).collect(),
        }
    }

    fn free(numbers: &[u64]) -> Change {
        let numbers = numbers.iter().copied().map(LogNumber).collect();
        Change::FreeLog { numbers }
    }

    fn add(level: usize, tree: TreeEntry) -> Change {
        Change::AddTree { level, tree }
    }

    fn remove(ids: &[u64]) -> Change {
        let ids = ids.iter().copied().map(TreeId).collect();
        Change::RemoveTrees { ids }
    }

    fn end(number: u64, end: u32) -> Change {
        let last = Some((LogNumber(number), end));
        Change::EndLog { last }
    }

    fn synced(position: u64) -> Change {
        Change::LogSynced(LogPosition(position))
    }

    /// Returns a state with log segments 0 to 3, of which recovery reads the last two. Tree 1 is in
    /// level 1, tree 2 in level 2.
    fn checked() -> CheckedState {
        let mut state = CheckedState::new(ManifestState::new(EngineId(3))).expect("it is empty");
        let read_from = Change::ReadFrom(LogNumber(2).start());
        let edits = [reserve(0, &[0, 1, 2, 3]), read_from, add(1, tree(1, 0))];
        state.check(&edits).expect("it follows");
        state.apply(&edits);
        let edit = [add(2, tree(2, 1))];
        state.check(&edit).expect("it follows");
        state.apply(&edit);
        state
    }

    /// Promise: an edit that cannot follow is refused with a reason.
    #[test]
    fn what_cannot_follow_is_refused() {
        let state = checked();
        let unknown_end = "the log ends in segment 7";
        let refused: [(&[Change], &str); 21] = [
            (&[reserve(5, &[9])], "out of order"),
            (&[reserve(4, &[3])], "segment 3 is used twice"),
            (&[reserve(4, &[9, 9])], "segment 9 is used twice"),
            (&[reserve(4, &[u32::MAX])], "is out of range"),
            (&[end(7, 99)], unknown_end),
            (&[end(3, 31)], "cannot end at 31"),
            (&[end(3, u32::MAX)], "cannot end at 4294967295"),
            (&[end(3, 99), reserve(4, &[9])], "has other changes"),
            (&[free(&[2])], "still needed"),
            (&[free(&[0, 0])], "does not exist"),
            (&[Change::ReadFrom(LogPosition(7))], "which is before"),
            (&[Change::ReadFrom(LogPosition(u64::MAX))], "past its end"),
            (&[synced(9), synced(8)], "up to 0:0x8, which is before"),
            (&[synced(u64::MAX)], "past its end"),
            (&[add(0, tree(3, 5))], "cannot be added to level 0"),
            (&[add(usize::MAX, tree(3, 5))], "cannot be added"),
            (&[add(1, tree(2, 5))], "tree 2 cannot be added"),
            (&[add(2, tree(3, 5))], "two trees"),
            (&[add(1, tree(u64::MAX, 5))], "invalid tree number"),
            (&[remove(&[1]), add(1, tree(3, 0))], "segment 0 is used"),
            (&[remove(&[1, 1])], "does not exist"),
        ];
        for (edit, expected) in refused {
            let how = state.check(edit).expect_err(expected);
            assert!(how.contains(expected), "{how}, and not: {expected}");
        }
        let merge = [remove(&[2]), remove(&[1]), add(2, tree(3, 5))];
        assert_eq!(state.check(&merge), Ok(()));
    }

    /// Promise: the contents of a first line cannot exceed their log, either.
    #[test]
    fn a_state_ends_with_its_log() {
        let state = checked().state().clone();
        let end = state.next_log.start();
        for (read_from, log_synced_to, is_possible) in [
            (end, end, true),
            (end.plus(1), end, false),
            (end, end.plus(1), false),
        ] {
            let state = ManifestState {
                read_from,
                log_synced_to,
                ..state.clone()
            };
            assert_eq!(CheckedState::new(state).is_ok(), is_possible);
        }
    }

    /// Promise: the used segments match the state after any edits.
    #[test]
    fn what_is_in_use_is_kept() {
        let mut state = checked();
        let edits = [
            vec![free(&[0])],
            vec![remove(&[1, 2]), add(3, tree(9, 4))],
            vec![reserve(4, &[0, 7])],
            vec![end(4, 100)],
        ];
        for edit in edits {
            state.check(&edit).expect("it follows");
            state.apply(&edit);
            let again = CheckedState::new(state.state().clone()).expect("it can be");
            assert_eq!(state.log_places, again.log_places);
            assert_eq!(state.tree_places, again.tree_places);
            assert_eq!(state.log_places, state.state().log_segments());
            assert_eq!(state.tree_places, state.state().tree_segments());
        }
        assert_eq!((state.state().edit_count, state.log_places.len()), (6, 4));
        assert_eq!(state.state().next_tree, TreeId(10));
    }
}
