//! Mistakes that tests plant in what a follower writes, to see that its primary notices (FO11).
//! Nothing but tests makes a [`WriteFault`] other than the default, which is none.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::follower::SegmentSum;
use crate::place::{LogNumber, LogPosition, SEGMENT_SIZE_BYTES};

/// A mistake in what is written to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A log segment that comes closed in one piece is not written, if the one before it is full to
    /// its last byte. (Commits 47a9ac76 to def9f513 made this one.)
    SkipsBehindFull,
    /// One bit of a piece of this log segment is another one.
    FlipsBit(LogNumber),
    /// The second half of a piece of this log segment is missing.
    WritesHalf(LogNumber),
    /// One bit of a tree is another one.
    FlipsBitOfTree,
}

/// At most one mistake, which all clones together make once, or until it is lifted.
#[derive(Clone, Debug, Default)]
pub struct WriteFault(Option<Arc<Planted>>);

#[derive(Debug)]
struct Planted {
    mistake: Mistake,
    made_count: AtomicU32,
    made_count_max: AtomicU32,
}

impl WriteFault {
    /// This mistake, once.
    pub fn once(mistake: Mistake) -> Self {
        Self::new(mistake, 1)
    }

    /// This mistake, at each opportunity for it.
    pub fn always(mistake: Mistake) -> Self {
        Self::new(mistake, u32::MAX)
    }

    /// The mistake is made no more.
    pub fn lift(&self) {
        if let Some(planted) = &self.0 {
            planted.made_count_max.store(0, Ordering::Release);
        }
    }

    fn new(mistake: Mistake, made_count_max: u32) -> Self {
        Self(Some(Arc::new(Planted {
            mistake,
            made_count: AtomicU32::new(0),
            made_count_max: AtomicU32::new(made_count_max),
        })))
    }

    /// How often the mistake was made.
    pub fn made_count(&self) -> u32 {
        let planted = self.0.as_ref();
        planted.map_or(0, |it| it.made_count.load(Ordering::Acquire))
    }

    /// What is written of a piece of the log; with the segment that was closed before, if this
    /// piece is the last one of its own.
    pub(super) fn of_log<'b>(
        &self,
        (at, closed): (LogPosition, Option<SegmentSum>),
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

    /// What is written of a tree's segment.
    pub(super) fn of_tree<'b>(&self, blocks: &'b [u8]) -> Cow<'b, [u8]> {
        self.make(blocks, |mistake| mistake == Mistake::FlipsBitOfTree)
    }

    fn make<'b>(&self, bytes: &'b [u8], is_due: impl FnOnce(Mistake) -> bool) -> Cow<'b, [u8]> {
        let planted = self.0.as_ref().filter(|it| is_due(it.mistake));
        let Some(planted) = planted.filter(|_| !bytes.is_empty()) else {
            return Cow::Borrowed(bytes);
        };
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        let count_max = planted.made_count_max.load(Ordering::Acquire);
        let one_more = |count| (count < count_max).then_some(count + 1);
        let counted = planted.made_count.fetch_update(set, fetch, one_more);
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
