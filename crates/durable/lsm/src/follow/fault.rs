//! Faults that tests inject into a follower's writes, to verify that its primary notices them. Only
//! tests create a [`WriteFault`] other than the default, which injects none.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::follower::SegmentSum;
use crate::place::{LogNumber, LogPosition, SEGMENT_SIZE_BYTES};

/// Fault in data that is written to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// Skips the write of a log segment that arrives closed in one piece, if the previous one is
    /// full to its last byte. (Commits 47a9ac76 to def9f513 had this bug.)
    SkipsBehindFull,
    /// Flips one bit in a piece of this log segment.
    FlipsBit(LogNumber),
    /// Omits the second half of a piece of this log segment.
    WritesHalf(LogNumber),
    /// Flips one bit of a tree.
    FlipsBitOfTree,
}

/// At most one fault, shared by all clones, injected once or until it is lifted.
#[derive(Clone, Debug, Default)]
pub struct WriteFault(Option<Arc<InjectedFault>>);

#[derive(Debug)]
struct InjectedFault {
    mistake: Mistake,
    injected_count: AtomicU32,
    injected_count_max: AtomicU32,
}

impl WriteFault {
    /// Creates a fault that is injected once.
    pub fn once(mistake: Mistake) -> Self {
        Self::new(mistake, 1)
    }

    /// Creates a fault that is injected at each opportunity.
    pub fn always(mistake: Mistake) -> Self {
        Self::new(mistake, u32::MAX)
    }

    /// Stops injecting the fault.
    pub fn lift(&self) {
        if let Some(planted) = &self.0 {
            planted.injected_count_max.store(0, Ordering::Release);
        }
    }

    fn new(mistake: Mistake, injected_count_max: u32) -> Self {
        Self(Some(Arc::new(InjectedFault {
            mistake,
            injected_count: AtomicU32::new(0),
            injected_count_max: AtomicU32::new(injected_count_max),
        })))
    }

    /// Returns how often the fault was injected.
    pub fn injected_count(&self) -> u32 {
        let planted = self.0.as_ref();
        planted.map_or(0, |it| it.injected_count.load(Ordering::Acquire))
    }

    /// Returns the bytes to be written for a piece of the log. `closed` is the last closed segment,
    /// if this piece is the last one of its own.
    pub(super) fn of_log<'b>(
        &self,
        at: LogPosition,
        closed: Option<SegmentSum>,
        bytes: &'b [u8],
    ) -> Cow<'b, [u8]> {
        let is_behind_full =
            closed.is_some_and(|it| u64::from(it.written.size_bytes) == SEGMENT_SIZE_BYTES);
        self.make(bytes, |mistake| match mistake {
            Mistake::SkipsBehindFull => at.offset() == 0 && is_behind_full,
            Mistake::FlipsBit(number) | Mistake::WritesHalf(number) => number == at.number(),
            Mistake::FlipsBitOfTree => false,
        })
    }

    /// Returns the bytes to be written for a tree's segment.
    pub(super) fn of_tree<'b>(&self, blocks: &'b [u8]) -> Cow<'b, [u8]> {
        self.make(blocks, |mistake| mistake == Mistake::FlipsBitOfTree)
    }

    fn make<'b>(&self, bytes: &'b [u8], is_due: impl FnOnce(Mistake) -> bool) -> Cow<'b, [u8]> {
        let planted = self.0.as_ref().filter(|it| is_due(it.mistake));
        let Some(planted) = planted.filter(|_| !bytes.is_empty()) else {
            return Cow::Borrowed(bytes);
        };
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        let count_max = planted.injected_count_max.load(Ordering::Acquire);
        let one_more = |count| (count < count_max).then_some(count + 1);
        let counted = planted.injected_count.fetch_update(set, fetch, one_more);
        if counted.is_err() {
            return Cow::Borrowed(bytes);
        }
        match planted.mistake {
            Mistake::SkipsBehindFull => Cow::Borrowed(&[]),
            Mistake::WritesHalf(_) => Cow::Borrowed(&bytes[..bytes.len() / 2]),
            Mistake::FlipsBit(_) | Mistake::FlipsBitOfTree => {
                let mut flipped = bytes.to_vec();
                flipped[bytes.len() / 2] ^= 1;
                Cow::Owned(flipped)
            }
        }
    }
}
