//! What a manifest says, and what an edit changes of that.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::log::record::EngineId;
use crate::place::{LogNumber, LogPosition, SegmentId, TreeId};
use crate::tree::TreeShape;

/// The version of the directory's format. 2: leaves have hashes of 48 bits, and heads that are as
/// long as their keys need; of 1, all trees are others. Manifests of before `log_synced_to` are of
/// 2 as well, and say nothing of it.
pub(super) const FORMAT_VERSION: u32 = 2;

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
    /// VL6: the log was on the device up to this place, where a record ends.
    LogSynced(LogPosition),
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
    #[serde(deserialize_with = "each_once")]
    pub log: BTreeMap<LogNumber, LogEntry>,
    /// The first number that no log segment has ever had.
    pub next_log: LogNumber,
    /// The log is read again from there.
    pub read_from: LogPosition,
    /// VL6: the log was on the device up to there, if not further.
    #[serde(default, skip_serializing_if = "is_start")]
    pub log_synced_to: LogPosition,
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
            log_synced_to: LogPosition(0),
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
}

/// Whether it is where a log begins: what a manifest does not say.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_start(position: &LogPosition) -> bool {
    position.0 == 0
}

/// A map in which no key is there twice: of two, JSON would take the last.
fn each_once<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<LogNumber, LogEntry>, D::Error> {
    struct Segments;

    impl<'de> Visitor<'de> for Segments {
        type Value = BTreeMap<LogNumber, LogEntry>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("log segments by their numbers")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
            let mut segments = BTreeMap::new();
            while let Some((number, entry)) = entries.next_entry::<LogNumber, LogEntry>()? {
                if segments.insert(number, entry).is_some() {
                    let number = number.0;
                    return Err(A::Error::custom(format!(
                        "log segment {number} is there twice"
                    )));
                }
            }
            Ok(segments)
        }
    }

    deserializer.deserialize_map(Segments)
}
