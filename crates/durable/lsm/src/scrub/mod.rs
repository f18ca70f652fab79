//! Scrubbing: looks for bits that have flipped before somebody needs what they are in (SC1 to SC9
//! of `docs/lsm.md`).
//!
//! A [`Scrub`] is a place in what an engine, or a follower, has on its devices; each step reads up
//! to 2 MiB from there on and checks all sums in it. How often there is a step is the caller's
//! affair.
//!
//! | module | what it holds |
//! |---|---|
//! | `whole` | what is scrubbed, as it is at a moment |
//! | `segment` | one log segment; a record larger than that |
//! | `trees` | trees of a follower, which nobody else has open |
//! | `verified` | what steps have found to be valid, to be compared with a follower's copy |

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
pub(crate) use self::whole::{Seen, Whole};

use self::segment::{Large, Part, check_segment};
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

/// A place in what is scrubbed; one for each engine or follower. Another run may begin anew: it is
/// nowhere but in memory.
#[derive(Debug, Default)]
pub struct Scrub {
    place: Place,
    /// What comes later than the round began waits for the next one (SC5).
    log_last: LogNumber,
    tree_end: TreeId,
    large: Option<Box<Large>>,
    /// SC6: a record that could not be read in front of this segment may go on in it.
    unsure: Option<LogNumber>,
    buffer: Vec<u8>,
    opened: OpenedTrees,
    counts: ScrubCounts,
    is_comparing: bool,
    verified: VecDeque<VerifiedPiece>,
}

/// SC6: which byte of which file is damaged, in words, as far as that can be told: where the record
/// begins, or the block.
pub(crate) fn place_of_damage(whole: &dyn Whole, error: &LsmError) -> Option<String> {
    match error {
        LsmError::DamagedLog { position, .. } => {
            let segments = whole.log().segments();
            let segment = segments.place(position.number()).ok()?;
            Some(segments.device.byte_text(segment, position.offset() as u64))
        }
        LsmError::DamagedTree { tree, block, .. } => {
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

/// Where a block of a tree begins, in words; `None`: the tree does not have it.
pub(crate) fn block_text(device: &Device, tree: &TreeEntry, block: BlockNumber) -> Option<String> {
    let segment = tree.segments.get(block.segment_index())?;
    Some(device.byte_text(*segment, block.offset()))
}

/// What comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// A round.
    #[default]
    Start,
    /// Log segments from this one on.
    Log(LogNumber),
    /// Trees from this one on; of that one, from this one of its segments on.
    Trees(TreeId, usize),
}

/// What a step has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scrubbed {
    /// What it has read.
    pub read_size_bytes: u64,
    /// Everything was looked at: the next step begins anew.
    pub is_round_over: bool,
}

/// What all steps have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubCounts {
    /// Rounds that are over.
    pub round_count: u64,
    /// What they have read.
    pub read_size_bytes: u64,
    /// Steps that have found damage, or what cannot be read.
    pub damaged_count: u64,
    /// Size of the log segments and trees of the current round, in bytes.
    pub round_size_bytes: u64,
    /// Bytes of these that the current round has passed, whether it had to read them or not.
    pub passed_size_bytes: u64,
}

impl Scrub {
    /// At the beginning.
    pub fn new() -> Self {
        Self::default()
    }

    /// What all steps have done.
    pub const fn counts(&self) -> ScrubCounts {
        self.counts
    }

    /// Does a step. After damage the next one goes on behind it.
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

    /// RP10: all damage of the log that there is now, and is needed: the first one of each segment.
    pub(crate) fn damage_of_log(whole: &dyn Whole) -> Result<Vec<LsmError>, LsmError> {
        let mut scrub = Self::new();
        let mut damage = Vec::new();
        loop {
            let is_over = match scrub.look(whole) {
                Ok(is_over) => is_over,
                Err(error @ LsmError::DamagedLog { .. }) => {
                    damage.push(error);
                    false
                }
                Err(error) => return Err(error),
            };
            let is_behind = scrub.large.is_none() && !matches!(scrub.place, Place::Log(_));
            if is_over || is_behind {
                return Ok(damage);
            }
        }
    }

    /// True: the round is over.
    fn look(&mut self, whole: &dyn Whole) -> Result<bool, LsmError> {
        let seen = whole.see(&mut self.opened)?;
        if self.place == Place::Start {
            self.log_last = seen.log_end.number();
            let ids = seen.trees.iter().map(|it| it.entry().id);
            self.tree_end = TreeId(ids.max().map_or(0, |it| it.0 + 1));
            self.place = Place::Log(LogNumber(0));
            self.unsure = None;
            self.measure(whole, &seen);
        }
        if let Some(large) = self.large.take() {
            return self.go_on(whole, &seen, large).map(|()| false);
        }
        if let Place::Log(from) = self.place {
            let next = seen.next_segment(whole.log(), from);
            if let Some(number) = next.filter(|it| *it <= self.log_last) {
                self.place = Place::Log(number.next());
                self.pass(whole, (from, number));
                return self.check_log(whole, &seen, number).map(|()| false);
            }
            self.place = Place::Trees(TreeId(0), 0);
            self.pass(whole, (from, self.log_last));
        }
        let Place::Trees(from, index) = self.place else {
            unreachable!("the log is behind it");
        };
        let ids = |it: &&Arc<LiveTree>| (from..self.tree_end).contains(&it.entry().id);
        let next = seen.trees.iter().filter(ids).min_by_key(|it| it.entry().id);
        if let Some(tree) = next {
            let index = if tree.entry().id == from { index } else { 0 };
            return self.check_tree(whole, tree, index).map(|()| false);
        }
        self.place = Place::Start;
        self.opened.forget_unreadable();
        self.counts.round_count += 1;
        self.counts.passed_size_bytes = self.counts.round_size_bytes;
        Ok(true)
    }

    /// Measures what a round that begins is to look at.
    fn measure(&mut self, whole: &dyn Whole, seen: &Seen) {
        let segments = whole.log().segments().numbers(LogNumber(0)..=self.log_last);
        let blocks = seen.trees.iter();
        let blocks = blocks.map(|it| u64::from(it.entry().shape.block_count));
        self.counts.round_size_bytes = segments.len() as u64 * SEGMENT_SIZE_BYTES
            + blocks.sum::<u64>() * BLOCK_SIZE_BYTES as u64;
        self.counts.passed_size_bytes = 0;
    }

    /// Counts the log segments of a range as passed.
    fn pass(&mut self, whole: &dyn Whole, (from, to): (LogNumber, LogNumber)) {
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

    /// SC2: one log segment in which records begin, as far as it is written.
    fn check_log(
        &mut self,
        whole: &dyn Whole,
        seen: &Seen,
        number: LogNumber,
    ) -> Result<(), LsmError> {
        let end = seen.end_in(number).min(whole.ended_at(number));
        if end == 0 {
            return Ok(());
        }
        let segments = whole.log().segments();
        let segment = match segments.place(number) {
            Ok(segment) => segment,
            // It became free, or something leads to what is not there.
            Err(error) => {
                let is_needed = whole.see(&mut self.opened)?.needs(number);
                return if is_needed { Err(error) } else { Ok(()) };
            }
        };
        let was_unsure = self.unsure.replace(number.next()) == Some(number);
        self.read_log(whole, segment, end)?;
        let checked = check_segment(&self.buffer, segments.engine, (number, segment));
        match &checked {
            Ok(_) => self.unsure = None,
            // It is no segment in which records begin, as far as anybody can tell.
            Err(error) if was_unsure && is_of_first_record(error) => return Ok(()),
            Err(_) => {}
        }
        match checked {
            Ok(Part::Whole { end }) => {
                if self.is_comparing && seen.is_closed(number) {
                    let counted = &self.buffer[..end];
                    let piece = VerifiedPiece::log(number, number, counted);
                    self.verified.push_back(piece);
                }
                Ok(())
            }
            Ok(Part::GoesOn(mut large)) => {
                self.keep_part(seen, &mut large, number);
                self.large = Some(large);
                Ok(())
            }
            Ok(Part::NotAll(_)) if seen.can_go_on => Ok(()),
            Ok(Part::NotAll(error)) | Err(error) => {
                self.confirm(whole, (number, (number, segment)), error)
            }
        }
    }

    /// SC2: the next segment of a record that is larger than one.
    fn go_on(
        &mut self,
        whole: &dyn Whole,
        seen: &Seen,
        mut large: Box<Large>,
    ) -> Result<(), LsmError> {
        let number = large.next;
        let end = large.end_in_next();
        let place = whole.log().segments().place(number);
        let Some(segment) = place.ok().filter(|_| seen.end_in(number) >= end) else {
            self.place = Place::Log(number);
            if seen.can_go_on {
                return Ok(());
            }
            let error = damaged(large.position(), "the record does not go on");
            let head = large.position().number();
            return self.confirm(whole, (head, (head, large.segment)), error);
        };
        // Whatever becomes of it: in the others no record begins.
        self.place = Place::Log(large.end());
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
            Err(error) => self.confirm(whole, (head, (number, segment)), error),
        }
    }

    /// Keeps what was read of a large record, which is valid if all of it is.
    fn keep_part(&self, seen: &Seen, large: &mut Large, number: LogNumber) {
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

    /// SC4: damage of what was still there, and needed, when it had been read, is damage; of a
    /// segment that became free meanwhile it is none. `head` is where its record, or it, begins.
    fn confirm(
        &mut self,
        whole: &dyn Whole,
        (head, (number, segment)): (LogNumber, (LogNumber, SegmentId)),
        error: LsmError,
    ) -> Result<(), LsmError> {
        let seen = whole.see(&mut self.opened)?;
        let place = whole.log().segments().place(number);
        if place.is_ok_and(|it| it == segment) && seen.needs(head) {
            return Err(error);
        }
        Ok(())
    }

    /// SC3: the blocks of one of a tree's segments. They stay as long as somebody has the tree.
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
            Place::Trees(entry.id, index + 1)
        } else {
            Place::Trees(TreeId(entry.id.0 + 1), 0)
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
    matches!(error, LsmError::DamagedLog { position, .. } if position.offset() == begin)
}

const _: () = assert!(SEGMENT_SIZE_BYTES == SEGMENT_SIZE_BLOCKS as u64 * BLOCK_SIZE_BYTES as u64);
