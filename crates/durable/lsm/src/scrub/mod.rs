//! Scrubbing: reading the devices to find flipped bits before the data is needed.
//!
//! A [`Scrub`] is a position in the data of an engine or a follower. Each step reads up to 2 MiB
//! from there and verifies all checksums in it. The caller chooses the rate of steps.
//!
//! `docs/explanation/lsm.md` describes it under *Scrubbing*.
//!
//! | module | contents |
//! |---|---|
//! | `whole` | data to be scrubbed, at one moment |
//! | `segment` | checking one log segment; a record larger than that |
//! | `trees` | trees of a follower, which nothing else has open |
//! | `verified` | valid pieces, for comparison with a follower's copy |

mod segment;
#[cfg(test)]
mod tests;
mod trees;
mod verified;
mod whole;

use std::collections::VecDeque;
use std::sync::Arc;

pub(crate) use self::trees::OpenedTrees;
pub use self::verified::{PieceName, VerifiedPiece};
pub(crate) use self::whole::{ScrubView, Whole};

use self::segment::{ScrubbedLargeRecord, SegmentCheck, check_segment};
use crate::device::Device;
use crate::error::LsmError;
use crate::log::damaged;
use crate::log::record::SEGMENT_HEADER_SIZE_BYTES;
use crate::manifest::TreeEntry;
use crate::place::{
    BLOCK_SIZE_BYTES, BlockNumber, LogNumber, SEGMENT_SIZE_BLOCKS, SEGMENT_SIZE_BYTES, SegmentId,
    TreeId,
};
use crate::tree::check_blocks;
use crate::version::LiveTree;

/// Position of a scrub, and its counters; one per engine or follower. It is in memory only, so a
/// restart begins a new round.
#[derive(Debug, Default)]
pub struct Scrub {
    place: ScrubPosition,
    /// Last log segment of the round; later ones are left to the next round. `tree_end` does the
    /// same for trees.
    log_last: LogNumber,
    tree_end: TreeId,
    large: Option<Box<ScrubbedLargeRecord>>,
    /// Segment that may continue a record which could not be read in the segment before.
    possible_continuation: Option<LogNumber>,
    buffer: Vec<u8>,
    opened: OpenedTrees,
    counts: ScrubCounts,
    is_comparing: bool,
    verified: VecDeque<VerifiedPiece>,
}

/// Returns the file and byte of corruption in words, if they are known: the beginning of the
/// record, or the block.
pub(crate) fn corruption_place(whole: &dyn Whole, error: &LsmError) -> Option<String> {
    match error {
        LsmError::CorruptLog { position, .. } => {
            let segments = whole.log().segments();
            let segment = segments.place(position.number()).ok()?;
            Some(segments.device.byte_text(segment, position.offset() as u64))
        }
        LsmError::CorruptTree { tree, block, .. } => {
            let device = whole.tree_device();
            whole.manifest().with_state(|state| {
                let mut entries = state.levels.iter().flatten();
                let entry = entries.find(|it| it.id == *tree)?;
                block_text(device, entry, BlockNumber(*block))
            })
        }
        _ => None,
    }
}

/// Returns the place of a tree's block in words; `None` if the tree does not have it.
pub(crate) fn block_text(device: &Device, tree: &TreeEntry, block: BlockNumber) -> Option<String> {
    let segment = tree.segments.get(block.segment_index())?;
    Some(device.byte_text(*segment, block.offset()))
}

/// Position of the next step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ScrubPosition {
    /// Beginning of a round.
    #[default]
    Start,
    /// Log segments, from this one on.
    Log(LogNumber),
    /// Trees, from this one on; within it, from the segment with this index on.
    Trees(TreeId, usize),
}

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scrubbed {
    /// Number of bytes read.
    pub read_size_bytes: u64,
    /// Whether the round is complete, so that the next step begins a new one.
    pub is_round_over: bool,
}

/// Counters of all steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubCounts {
    /// Number of complete rounds.
    pub round_count: u64,
    /// Number of bytes read.
    pub read_size_bytes: u64,
    /// Number of steps that found corruption or data that cannot be read.
    pub damaged_count: u64,
    /// Size of the log segments and trees of the current round, in bytes.
    pub round_size_bytes: u64,
    /// Bytes that the current round has passed, whether it had to read them or not.
    pub passed_size_bytes: u64,
}

impl Scrub {
    /// Creates a scrub at the beginning.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the counters of all steps.
    pub const fn counts(&self) -> ScrubCounts {
        self.counts
    }

    /// Does a step. After corruption, the next step continues behind it.
    pub(crate) fn step(&mut self, whole: &dyn Whole) -> Result<Scrubbed, LsmError> {
        let before = self.counts.read_size_bytes;
        let stepped = self.look(whole);
        self.counts.read_size_bytes += std::mem::take(&mut self.opened.read_size_bytes);
        let is_found = |error: &LsmError| !matches!(error, LsmError::Stopped { .. });
        if stepped.as_ref().is_err_and(is_found) {
            self.counts.damaged_count += 1;
        }
        Ok(Scrubbed {
            is_round_over: stepped?,
            read_size_bytes: self.counts.read_size_bytes - before,
        })
    }

    /// Returns all corruption of the currently needed log: the first error of each segment. A base
    /// needs it (REPLICATION-10).
    pub(crate) fn log_corruption(whole: &dyn Whole) -> Result<Vec<LsmError>, LsmError> {
        let mut scrub = Self::new();
        let mut damage = Vec::new();
        loop {
            let is_over = match scrub.look(whole) {
                Ok(is_over) => is_over,
                Err(error @ LsmError::CorruptLog { .. }) => {
                    damage.push(error);
                    false
                }
                Err(error) => return Err(error),
            };
            let is_behind = scrub.large.is_none() && !matches!(scrub.place, ScrubPosition::Log(_));
            if is_over || is_behind {
                return Ok(damage);
            }
        }
    }

    /// Does a step; returns true if the round is complete.
    fn look(&mut self, whole: &dyn Whole) -> Result<bool, LsmError> {
        let seen = whole.current_view(&mut self.opened)?;
        if self.place == ScrubPosition::Start {
            self.log_last = seen.log_end.number();
            let ids = seen.trees.iter().map(|it| it.entry().id);
            self.tree_end = TreeId(ids.max().map_or(0, |it| it.0 + 1));
            self.place = ScrubPosition::Log(LogNumber(0));
            self.possible_continuation = None;
            self.measure(whole, &seen);
        }
        if let Some(large) = self.large.take() {
            return self.check_large(whole, &seen, large).map(|()| false);
        }
        if let ScrubPosition::Log(from) = self.place {
            let next = seen.next_segment(whole.log(), from);
            if let Some(number) = next.filter(|it| *it <= self.log_last) {
                self.place = ScrubPosition::Log(number.next());
                self.pass(whole, from, number);
                return self.check_log(whole, &seen, number).map(|()| false);
            }
            self.place = ScrubPosition::Trees(TreeId(0), 0);
            self.pass(whole, from, self.log_last);
        }
        let ScrubPosition::Trees(from, index) = self.place else {
            unreachable!("the log is behind it");
        };
        let ids = |it: &&Arc<LiveTree>| (from..self.tree_end).contains(&it.entry().id);
        let next = seen.trees.iter().filter(ids).min_by_key(|it| it.entry().id);
        if let Some(tree) = next {
            let index = if tree.entry().id == from { index } else { 0 };
            return self.check_tree(whole, tree, index).map(|()| false);
        }
        self.place = ScrubPosition::Start;
        self.opened.forget_unreadable();
        self.counts.round_count += 1;
        self.counts.passed_size_bytes = self.counts.round_size_bytes;
        Ok(true)
    }

    /// Measures the data of a new round.
    fn measure(&mut self, whole: &dyn Whole, seen: &ScrubView) {
        let segments = whole.log().segments().numbers(LogNumber(0)..=self.log_last);
        let blocks = seen.trees.iter();
        let blocks = blocks.map(|it| u64::from(it.entry().shape.block_count));
        self.counts.round_size_bytes = segments.len() as u64 * SEGMENT_SIZE_BYTES
            + blocks.sum::<u64>() * BLOCK_SIZE_BYTES as u64;
        self.counts.passed_size_bytes = 0;
    }

    /// Counts the log segments of a range as passed.
    fn pass(&mut self, whole: &dyn Whole, from: LogNumber, to: LogNumber) {
        if from <= to {
            let segments = whole.log().segments().numbers(from..=to);
            self.add_passed(segments.len() as u64 * SEGMENT_SIZE_BYTES);
        }
    }

    fn add_passed(&mut self, size_bytes: u64) {
        // Segments may have been reclaimed, or written, since the round was measured.
        let counts = &mut self.counts;
        let passed = counts.passed_size_bytes + size_bytes;
        counts.passed_size_bytes = passed.min(counts.round_size_bytes);
    }

    /// Checks one log segment in which records begin, up to its written end.
    fn check_log(
        &mut self,
        whole: &dyn Whole,
        seen: &ScrubView,
        number: LogNumber,
    ) -> Result<(), LsmError> {
        let end = seen.end_in(number).min(whole.ended_at(number));
        if end == 0 {
            return Ok(());
        }
        let segments = whole.log().segments();
        let segment = match segments.place(number) {
            Ok(segment) => segment,
            // The segment became free, or a reference to it is wrong.
            Err(error) => {
                let is_needed = whole.current_view(&mut self.opened)?.needs(number);
                return if is_needed { Err(error) } else { Ok(()) };
            }
        };
        let was_unsure = self.possible_continuation.replace(number.next()) == Some(number);
        self.read_log(whole, segment, end)?;
        let checked = check_segment(&self.buffer, segments.engine, number, segment);
        match &checked {
            Ok(_) => self.possible_continuation = None,
            // Possibly no record begins in this segment.
            Err(error) if was_unsure && is_of_first_record(error) => return Ok(()),
            Err(_) => {}
        }
        match checked {
            Ok(SegmentCheck::Whole { end }) => {
                if self.is_comparing && seen.is_closed(number) {
                    let counted = &self.buffer[..end];
                    let piece = VerifiedPiece::log(number, number, counted);
                    self.verified.push_back(piece);
                }
                Ok(())
            }
            Ok(SegmentCheck::GoesOn(mut large)) => {
                self.keep_part(seen, &mut large, number);
                self.large = Some(large);
                Ok(())
            }
            Ok(SegmentCheck::NotAll(_)) if seen.may_be_incomplete => Ok(()),
            Ok(SegmentCheck::NotAll(error)) | Err(error) => {
                self.confirm(whole, number, number, segment, error)
            }
        }
    }

    /// Checks the next segment of a record larger than a segment.
    fn check_large(
        &mut self,
        whole: &dyn Whole,
        seen: &ScrubView,
        mut large: Box<ScrubbedLargeRecord>,
    ) -> Result<(), LsmError> {
        let number = large.next;
        let end = large.end_in_next();
        let place = whole.log().segments().place(number);
        let Some(segment) = place.ok().filter(|_| seen.end_in(number) >= end) else {
            self.place = ScrubPosition::Log(number);
            if seen.may_be_incomplete {
                return Ok(());
            }
            let error = damaged(large.position(), "the record is incomplete");
            let head = large.position().number();
            return self.confirm(whole, head, head, large.segment, error);
        };
        // Whatever the result is, no record begins in the other segments of this one.
        self.place = ScrubPosition::Log(large.end());
        self.add_passed(SEGMENT_SIZE_BYTES);
        self.read_log(whole, segment, end)?;
        let head = large.position().number();
        let taken = large.take(&self.buffer, whole.log().segments().engine);
        if taken.is_ok() {
            self.keep_part(seen, &mut large, number);
        }
        match taken {
            Ok(true) => {
                self.verified.extend(large.pieces);
                Ok(())
            }
            Ok(false) => {
                self.large = Some(large);
                Ok(())
            }
            Err(error) => self.confirm(whole, head, number, segment, error),
        }
    }

    /// Keeps the piece of a large record; it is valid only if the whole record is.
    fn keep_part(&self, seen: &ScrubView, large: &mut ScrubbedLargeRecord, number: LogNumber) {
        if self.is_comparing && seen.is_closed(number) {
            let head = large.position().number();
            let piece = VerifiedPiece::log(number, head, &self.buffer);
            large.pieces.push(piece);
        }
    }

    fn read_log(
        &mut self,
        whole: &dyn Whole,
        segment: SegmentId,
        end: usize,
    ) -> Result<(), LsmError> {
        self.buffer.resize(end, 0);
        self.counts.read_size_bytes += end as u64;
        let device = &whole.log().segments().device;
        device.read(segment, 0, &mut self.buffer)
    }

    /// Confirms corruption: it counts only if the segment, after the read, is still at its place
    /// and needed. `head` is the segment in which the record begins.
    fn confirm(
        &mut self,
        whole: &dyn Whole,
        head: LogNumber,
        number: LogNumber,
        segment: SegmentId,
        error: LsmError,
    ) -> Result<(), LsmError> {
        let seen = whole.current_view(&mut self.opened)?;
        let place = whole.log().segments().place(number);
        if place.is_ok_and(|it| it == segment) && seen.needs(head) {
            return Err(error);
        }
        Ok(())
    }

    /// Checks the blocks of one of a tree's segments. They stay while the step holds the tree.
    fn check_tree(
        &mut self,
        whole: &dyn Whole,
        tree: &LiveTree,
        index: usize,
    ) -> Result<(), LsmError> {
        let entry = tree.entry();
        let first = index as u64 * u64::from(SEGMENT_SIZE_BLOCKS);
        let left = u64::from(entry.shape.block_count).saturating_sub(first);
        let count = left.min(u64::from(SEGMENT_SIZE_BLOCKS));
        self.place = if left > count {
            ScrubPosition::Trees(entry.id, index + 1)
        } else {
            ScrubPosition::Trees(TreeId(entry.id.0 + 1), 0)
        };
        let Some(segment) = entry.segments.get(index).filter(|_| count > 0) else {
            return Ok(());
        };
        self.buffer.resize(count as usize * BLOCK_SIZE_BYTES, 0);
        self.counts.read_size_bytes += self.buffer.len() as u64;
        self.add_passed(self.buffer.len() as u64);
        whole.tree_device().read(*segment, 0, &mut self.buffer)?;
        check_blocks(entry.id, BlockNumber(first as u32), &self.buffer)?;
        if self.is_comparing {
            let piece = VerifiedPiece::tree(entry.id, index, &self.buffer);
            self.verified.push_back(piece);
        }
        Ok(())
    }
}

fn is_of_first_record(error: &LsmError) -> bool {
    let begin = SEGMENT_HEADER_SIZE_BYTES;
    matches!(error, LsmError::CorruptLog { position, .. } if position.offset() == begin)
}

const _: () = assert!(SEGMENT_SIZE_BYTES == SEGMENT_SIZE_BLOCKS as u64 * BLOCK_SIZE_BYTES as u64);
