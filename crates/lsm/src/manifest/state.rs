//! What a manifest says, and what an edit changes of that.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::log::record::EngineId;
use crate::place::{LogNumber, LogPosition, SegmentId, TreeId};
use crate::tree::TreeShape;

/// The version of the directory's format.
pub(super) const FORMAT_VERSION: u32 = 1;

/// A log segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogEntry {
    /// Where it is.
    pub segment: SegmentId,
    /// The log ended there, at this offset in the segment, when the directory was opened once;
    /// what is behind was never acknowledged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<u32>,
}

/// A tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TreeEntry {
    /// Its number.
    pub id: TreeId,
    /// Where its blocks are, 512 in each.
    pub segments: Vec<SegmentId>,
    /// What must be known to read it.
    pub shape: TreeShape,
}

/// What an edit changes. The changes of one edit are in force together, or none is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Change {
    /// All that a manifest says: the first edit of each file.
    All(Box<ManifestState>),
    /// Log segments of these numbers, one behind the other, may be written.
    ReserveLog {
        /// The number of the first one.
        first: LogNumber,
        /// Where they are.
        segments: Vec<SegmentId>,
    },
    /// The log was read again: it ends at an offset in a segment, and those behind are free. It
    /// goes on with numbers that were never used.
    EndLog {
        /// The last segment that counts; `None`: none does.
        last: Option<(LogNumber, u32)>,
    },
    /// LC5: nothing leads into these log segments.
    FreeLog {
        /// Which.
        numbers: Vec<LogNumber>,
    },
    /// LC4: the log need not be read again from before this place.
    ReadFrom(LogPosition),
    /// A tree is the newest one of a level.
    AddTree {
        /// Of which, from 1 on.
        level: usize,
        /// The tree.
        tree: TreeEntry,
    },
    /// LC3: nobody who comes anew looks into these trees.
    RemoveTrees {
        /// Which.
        ids: Vec<TreeId>,
    },
}

/// All that a manifest says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestState {
    /// The version of the directory's format.
    pub version: u32,
    /// Whose directory it is.
    pub engine: EngineId,
    /// How many edits there were, over all files.
    pub edit_count: u64,
    /// The log's segments.
    pub log: BTreeMap<LogNumber, LogEntry>,
    /// The first number that no log segment has ever had.
    pub next_log: LogNumber,
    /// The log is read again from there.
    pub read_from: LogPosition,
    /// The first number that no tree has ever had.
    pub next_tree: TreeId,
    /// The trees of each level, from level 1 on, newest first.
    pub levels: Vec<Vec<TreeEntry>>,
}

impl ManifestState {
    /// Of a directory that is made.
    pub fn new(engine: EngineId) -> Self {
        Self {
            version: FORMAT_VERSION,
            engine,
            edit_count: 0,
            log: BTreeMap::new(),
            next_log: LogNumber(0),
            read_from: LogPosition(0),
            next_tree: TreeId(1),
            levels: Vec::new(),
        }
    }

    /// Segments of the log's file that are in use.
    pub fn log_segments(&self) -> BTreeSet<SegmentId> {
        self.log.values().map(|entry| entry.segment).collect()
    }

    /// Segments of the trees' file that are in use.
    pub fn tree_segments(&self) -> BTreeSet<SegmentId> {
        let trees = self.levels.iter().flatten();
        trees
            .flat_map(|tree| tree.segments.iter().copied())
            .collect()
    }

    /// Applies an edit's changes; `Err`: they cannot be right, and say why.
    pub fn apply(&mut self, changes: &[Change]) -> Result<(), String> {
        for change in changes {
            self.apply_one(change)?;
        }
        self.edit_count += 1;
        Ok(())
    }

    fn apply_one(&mut self, change: &Change) -> Result<(), String> {
        match change {
            Change::All(_) => return Err("it begins anew in the middle".to_owned()),
            Change::ReserveLog { first, segments } => self.reserve_log(*first, segments)?,
            Change::EndLog { last } => self.end_log(*last)?,
            Change::FreeLog { numbers } => {
                for number in numbers {
                    let was_there = self.log.remove(number);
                    was_there.ok_or_else(|| format!("log segment {} is freed twice", number.0))?;
                }
            }
            Change::ReadFrom(position) => {
                if *position < self.read_from {
                    return Err(format!(
                        "the log is to be read from {position}, which is before"
                    ));
                }
                self.read_from = *position;
            }
            Change::AddTree { level, tree } => self.add_tree(*level, tree)?,
            Change::RemoveTrees { ids } => {
                let before: usize = self.levels.iter().map(Vec::len).sum();
                for level in &mut self.levels {
                    level.retain(|tree| !ids.contains(&tree.id));
                }
                let after: usize = self.levels.iter().map(Vec::len).sum();
                if before - after != ids.len() {
                    return Err(format!("trees {ids:?} are removed, and not all are there"));
                }
            }
        }
        Ok(())
    }

    fn reserve_log(&mut self, first: LogNumber, segments: &[SegmentId]) -> Result<(), String> {
        if first != self.next_log {
            return Err(format!("log segment {} is reserved out of turn", first.0));
        }
        for segment in segments {
            let entry = LogEntry {
                segment: *segment,
                end: None,
            };
            self.log.insert(self.next_log, entry);
            self.next_log = self.next_log.next();
        }
        if self.log_segments().len() != self.log.len() {
            return Err("a segment is two log segments".to_owned());
        }
        Ok(())
    }

    fn end_log(&mut self, last: Option<(LogNumber, u32)>) -> Result<(), String> {
        let Some((last, end)) = last else {
            self.log.clear();
            return Ok(());
        };
        let entry = self.log.get_mut(&last);
        let entry = entry.ok_or_else(|| format!("the log ends in segment {}", last.0))?;
        entry.end = Some(end);
        self.log.retain(|number, _| *number <= last);
        Ok(())
    }

    fn add_tree(&mut self, level: usize, tree: &TreeEntry) -> Result<(), String> {
        let in_use = self.tree_segments();
        // Those that are written at the same time are not done in their order.
        let is_there = self.levels.iter().flatten().any(|it| it.id == tree.id);
        if level == 0 || is_there {
            return Err(format!(
                "tree {} cannot be added to level {level}",
                tree.id.0
            ));
        }
        if tree.segments.iter().any(|segment| in_use.contains(segment)) {
            return Err(format!("tree {} lies where another one does", tree.id.0));
        }
        let block_count = u64::from(tree.shape.block_count);
        let needed = block_count.div_ceil(u64::from(crate::place::SEGMENT_SIZE_BLOCKS));
        if needed != tree.segments.len() as u64 {
            return Err(format!("tree {} has segments for other blocks", tree.id.0));
        }
        self.next_tree = self.next_tree.max(TreeId(tree.id.0 + 1));
        if self.levels.len() < level {
            self.levels.resize_with(level, Vec::new);
        }
        self.levels[level - 1].insert(0, tree.clone());
        Ok(())
    }
}
