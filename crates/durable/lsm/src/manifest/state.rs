//! Contents of a manifest, and changes of an edit.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::log::record::EngineId;
use crate::place::{LogNumber, LogPosition, SegmentId, TreeId};
use crate::tree::TreeShape;

/// Version of the directory's format.
///
/// Since version 2, leaves have hashes of 48 bits, and heads as long as their keys need; trees of
/// version 1 are incompatible. Manifests without `log_synced_to` are of version 2, too; they record
/// no durable end.
pub(super) const FORMAT_VERSION: u32 = 2;

/// Log segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogEntry {
    /// Segment of the log's device.
    pub segment: SegmentId,
    /// Offset at which recovery ended the log in this segment, if it did. Data behind it was never
    /// acknowledged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<u32>,
}

/// Tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TreeEntry {
    /// Id of the tree.
    pub id: TreeId,
    /// Segments with the tree's blocks, 512 in each.
    pub segments: Vec<SegmentId>,
    /// Description that is needed to read it.
    pub shape: TreeShape,
}

/// Change of a manifest. All changes of one edit are in force together, or none is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Change {
    /// Whole contents of a manifest: the first edit of each file.
    All(Box<ManifestState>),
    /// Reserves log segments with consecutive numbers for writing.
    ReserveLog {
        /// Number of the first log segment.
        first: LogNumber,
        /// Segments of the device.
        segments: Vec<SegmentId>,
    },
    /// Recovery read the log: it ends at an offset in a segment, and later segments are free. New
    /// segments get numbers that were never used.
    EndLog {
        /// Last segment that counts, and the offset; `None` if no segment counts.
        last: Option<(LogNumber, u32)>,
    },
    /// Frees log segments to which nothing refers.
    FreeLog {
        /// Numbers of the log segments.
        numbers: Vec<LogNumber>,
    },
    /// Recovery starts at this log position from now on.
    ReadFrom(LogPosition),
    /// The log is durable up to this position, at which a record ends.
    LogSynced(LogPosition),
    /// Adds a tree as the newest one of a level.
    AddTree {
        /// Level of the tree, from 1.
        level: usize,
        /// Tree to add.
        tree: TreeEntry,
    },
    /// Removes trees: new readers no longer use them.
    RemoveTrees {
        /// Ids of the trees.
        ids: Vec<TreeId>,
    },
}

/// Contents of a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestState {
    /// Version of the directory's format.
    pub version: u32,
    /// Id of the engine.
    pub engine: EngineId,
    /// Number of edits, over all files of the manifest.
    pub edit_count: u64,
    /// Log segments by number.
    #[serde(deserialize_with = "each_once")]
    pub log: BTreeMap<LogNumber, LogEntry>,
    /// First log segment number that was never used.
    pub next_log: LogNumber,
    /// Log position at which recovery starts.
    pub read_from: LogPosition,
    /// Position up to which the log is recorded as durable; more of it may be.
    #[serde(default, skip_serializing_if = "is_start")]
    pub log_synced_to: LogPosition,
    /// First tree id that was never used.
    pub next_tree: TreeId,
    /// Trees of each level from level 1, each level newest first.
    pub levels: Vec<Vec<TreeEntry>>,
}

impl ManifestState {
    /// Returns the contents of a new directory's manifest.
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

    /// Returns the used segments of the log's file.
    pub fn log_segments(&self) -> BTreeSet<SegmentId> {
        self.log.values().map(|entry| entry.segment).collect()
    }

    /// Returns the used segments of the trees' file.
    pub fn tree_segments(&self) -> BTreeSet<SegmentId> {
        let trees = self.levels.iter().flatten();
        trees
            .flat_map(|tree| tree.segments.iter().copied())
            .collect()
    }
}

/// Returns true for the start of the log, which a manifest omits.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_start(position: &LogPosition) -> bool {
    position.0 == 0
}

/// Deserializes a map, and rejects duplicate keys. JSON would keep the last of two.
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
                    return Err(A::Error::custom(format!("duplicate log segment {number}")));
                }
            }
            Ok(segments)
        }
    }

    deserializer.deserialize_map(Segments)
}
