//! Read-only inspection of an engine's or a follower's directory, and the comparison of two.
//!
//! An [`Inspection`] lists the log segments and trees of a directory from its manifest. It opens no
//! engine, takes no lock and changes nothing, so it also works while a process has the directory
//! open; then the files may change between two reads. [`compare`] compares two replicas byte by
//! byte.
//!
//! | module | contents |
//! |---|---|
//! | `walk` | ends of the records in each log segment |
//! | `compare` | comparison of two replicas |

mod compare;
#[cfg(test)]
mod tests;
mod walk;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use self::compare::{Comparison, compare};

use self::walk::{RecordWalk, SegmentEnd};
use crate::cache::BlockCache;
use crate::device::Device;
use crate::engine::{Source, TREES};
use crate::error::LsmError;
use crate::follow::follows;
use crate::log::record::{EngineId, RECORD_HEADER_SIZE_BYTES};
use crate::log::{self, damaged};
use crate::manifest::{Manifest, ManifestState, TreeEntry};
use crate::place::{
    BLOCK_SIZE_BYTES, LogNumber, LogPosition, SEGMENT_SIZE_BLOCKS, SEGMENT_SIZE_BYTES, SegmentId,
    TreeId,
};
use crate::storage::Storage;
use crate::tree::Tree;

/// Log segment that has been begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InspectedSegment {
    /// Number of bytes from the segment's start to the end of its last record. Bytes behind that
    /// are never read, and are undefined.
    pub size_bytes: usize,
    /// The same without an end record. Replicas may differ in that: a recovery can end the log in
    /// the manifest instead, and a replica that was filled then has no end record.
    record_end: usize,
    /// Whether the segment is complete. Only the last segment of a log is open.
    pub is_closed: bool,
    /// Whether a tree refers to the segment, or recovery reads it. Other segments wait to be
    /// reclaimed.
    pub is_needed: bool,
    place: SegmentId,
}

impl InspectedSegment {
    const fn of(end: SegmentEnd, place: SegmentId, is_needed: bool) -> Self {
        let (record_end, end_record_size_bytes, is_closed) = match end {
            SegmentEnd::NotBegun => (0, 0, false),
            SegmentEnd::Open(at) => (at, 0, false),
            SegmentEnd::EndRecord(at) => (at, RECORD_HEADER_SIZE_BYTES, true),
            SegmentEnd::Closed(at) => (at, 0, true),
        };
        Self {
            size_bytes: record_end + end_record_size_bytes,
            record_end,
            is_closed,
            is_needed,
            place,
        }
    }
}

/// Log segments and trees of a directory.
#[derive(Debug)]
pub struct Inspection {
    name: String,
    follows: bool,
    state: ManifestState,
    log: Device,
    trees: Arc<Device>,
    segments: BTreeMap<LogNumber, InspectedSegment>,
    log_end: LogPosition,
    write_end: LogPosition,
    damage: Vec<LsmError>,
}

impl Inspection {
    /// Reads a directory's manifest, every log segment, and the references of every tree. Takes as
    /// long as reading the whole log; uses the memory of one segment.
    ///
    /// # Errors
    /// The manifest is corrupted, or a file cannot be read. Corruption of the log or of a tree is
    /// not an error here; see [`damage`](Self::damage).
    pub fn read(storage: &Arc<dyn Storage>) -> Result<Self, LsmError> {
        let state = Manifest::read(&**storage)?;
        let follows = follows(&**storage).map_err(|source| LsmError::Storage {
            action: "list",
            file: ".".to_owned(),
            directory: storage.name(),
            source,
        })?;
        let log = open_device(&**storage, log::FILE, &state.log_segments())?;
        let trees = Arc::new(open_device(&**storage, TREES, &state.tree_segments())?);
        let read_from = state.read_from;
        let mut inspection = Self {
            name: storage.name(),
            follows,
            log,
            trees,
            segments: BTreeMap::new(),
            log_end: read_from,
            write_end: read_from,
            damage: Vec::new(),
            state,
        };
        let needed = inspection.needed()?;
        inspection.walk_log(&needed)?;
        Ok(inspection)
    }

    /// Returns the path of the directory, or another name of its storage.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the id of the engine, which all replicas of a region share.
    pub const fn engine(&self) -> EngineId {
        self.state.engine
    }

    /// Returns true if the directory belongs to a follower, such as a backup.
    pub const fn is_follower(&self) -> bool {
        self.follows
    }

    /// Returns the log position at which recovery starts.
    pub const fn read_from(&self) -> LogPosition {
        self.state.read_from
    }

    /// Returns the position behind the last record on the device.
    pub const fn log_end(&self) -> LogPosition {
        self.log_end
    }

    /// Returns the position behind the last record on the device that holds a write: a put, a
    /// delete, or a record that a merge has moved. Only marks follow it.
    pub const fn write_end(&self) -> LogPosition {
        self.write_end
    }

    /// Returns the log segments that have been begun, by number.
    pub const fn segments(&self) -> &BTreeMap<LogNumber, InspectedSegment> {
        &self.segments
    }

    /// Returns the trees in the order of levels, each level newest first.
    pub fn trees(&self) -> impl Iterator<Item = &TreeEntry> {
        self.state.levels.iter().flatten()
    }

    /// Returns corruption that makes this directory incomplete by itself. Cases are a needed log
    /// segment that is missing or has no complete record where the log continues, and a tree with
    /// unreadable references.
    pub fn damage(&self) -> &[LsmError] {
        &self.damage
    }

    /// Reads the bytes of a log segment up to the end of its last record.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read_segment(
        &self,
        segment: &InspectedSegment,
        buffer: &mut Vec<u8>,
    ) -> Result<(), LsmError> {
        buffer.resize(segment.size_bytes, 0);
        self.log.read(segment.place, 0, buffer)
    }

    /// Reads the blocks of one segment of a tree; empty behind the tree's end.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read_tree_segment(
        &self,
        tree: &TreeEntry,
        index: usize,
        buffer: &mut Vec<u8>,
    ) -> Result<(), LsmError> {
        buffer.clear();
        let before = index as u64 * u64::from(SEGMENT_SIZE_BLOCKS);
        let left = u64::from(tree.shape.block_count).saturating_sub(before);
        let count = left.min(u64::from(SEGMENT_SIZE_BLOCKS)) as usize;
        let Some(segment) = tree.segments.get(index).filter(|_| count > 0) else {
            return Ok(());
        };
        buffer.resize(count * BLOCK_SIZE_BYTES, 0);
        self.trees.read(*segment, 0, buffer)
    }

    /// Returns the log segments before `read_from` to which trees refer. Notes trees that cannot be
    /// read.
    fn needed(&mut self) -> Result<BTreeSet<LogNumber>, LsmError> {
        let mut needed = BTreeSet::new();
        for entry in self.state.levels.iter().flatten() {
            let source = Arc::new(Source {
                device: Arc::clone(&self.trees),
                id: entry.id,
                segments: entry.segments.clone(),
            });
            let cache = Arc::new(BlockCache::new(0));
            let tree = Tree::new(entry.id, entry.shape, source, cache);
            match tree.references() {
                Ok(references) => needed.extend(references.needed()),
                Err(error) if error.is_corruption() => self.damage.push(error),
                Err(error) => return Err(error),
            }
        }
        Ok(needed)
    }

    fn is_needed(&self, needed: &BTreeSet<LogNumber>, number: LogNumber) -> bool {
        number >= self.state.read_from.number() || needed.contains(&number)
    }

    /// Finds the end of the records in each segment, and the end of the log.
    fn walk_log(&mut self, needed: &BTreeSet<LogNumber>) -> Result<(), LsmError> {
        let mut walk = RecordWalk::new(self.state.engine, self.state.read_from);
        let mut buffer = vec![0; SEGMENT_SIZE_BYTES as usize];
        let mut ends = BTreeMap::new();
        for (number, entry) in &self.state.log {
            self.log.read(entry.segment, 0, &mut buffer)?;
            ends.insert(
                *number,
                (walk.pass(*number, entry.end, &buffer), entry.segment),
            );
        }
        let is_begun = |it: &&(SegmentEnd, SegmentId)| it.0 != SegmentEnd::NotBegun;
        let last = ends.iter().rfind(|it| is_begun(&it.1)).map(|it| *it.0);
        // A large record whose end has not arrived does not count.
        let unfinished = walk.unfinished();
        for (number, (end, place)) in ends {
            if last.is_none_or(|last| number > last) {
                break;
            }
            let is_needed = self.is_needed(needed, number);
            let broken_at = match end {
                SegmentEnd::Open(at) if Some(number) != last => Some(at),
                SegmentEnd::NotBegun => Some(0),
                _ => None,
            };
            if let Some(at) = broken_at {
                self.note_broken(is_needed, number, at);
                continue;
            }
            if unfinished.is_some_and(|head| number >= head.number()) {
                break;
            }
            let segment = InspectedSegment::of(end, place, is_needed);
            let end = number.start().plus(segment.size_bytes as u64);
            self.log_end = self.log_end.max(end);
            self.segments.insert(number, segment);
        }
        self.write_end = self.write_end.max(walk.write_end().min(self.log_end));
        let absent = needed.iter().filter(|it| !self.state.log.contains_key(it));
        let how = "a tree refers to this segment, but the manifest does not name it";
        let absent: Vec<LsmError> = absent.map(|it| damaged(it.start(), how)).collect();
        self.damage.extend(absent);
        Ok(())
    }

    /// Notes that a segment has no complete record at an offset, although the log continues behind
    /// it.
    fn note_broken(&mut self, is_needed: bool, number: LogNumber, offset: usize) {
        if is_needed {
            let how = "no valid record is there, but the log continues in a later segment";
            let position = number.start().plus(offset as u64);
            self.damage.push(damaged(position, how));
        }
    }

    fn tree(&self, id: TreeId) -> Option<&TreeEntry> {
        self.trees().find(|it| it.id == id)
    }
}

/// Opens a device for reading.
fn open_device(
    storage: &dyn Storage,
    name: &'static str,
    used: &BTreeSet<SegmentId>,
) -> Result<Device, LsmError> {
    let file = storage.open(name).map_err(|source| LsmError::Storage {
        action: "open",
        file: name.to_owned(),
        directory: storage.name(),
        source,
    })?;
    Ok(Device::new(file, name, storage.name(), used))
}
