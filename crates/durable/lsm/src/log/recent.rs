//! The log's end in memory (VL8).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use super::read::record_header;
use super::record::RecordHeader;
use crate::place::{LogNumber, SEGMENT_SIZE_BYTES};

/// A record of more bytes is copied while nobody is kept from ending a segment.
const COPIED_UNDER_LOCK_SIZE_BYTES_MAX: usize = 4096;

/// Segments that were filled last, as they were written. Nothing changes a log segment, and its
/// number is never given again (LC5): so what is here is right for as long as anything leads there.
#[derive(Debug)]
pub(super) struct RecentSegments {
    count_max: usize,
    /// The number of the oldest one: whoever looks for less needs no lock. Only a hint.
    oldest: AtomicU64,
    /// By number, the oldest first.
    kept: RwLock<VecDeque<Recent>>,
}

#[derive(Debug)]
struct Recent {
    number: LogNumber,
    filled: usize,
    bytes: Arc<Vec<u8>>,
}

impl RecentSegments {
    /// As many as fit into so many bytes.
    pub(super) fn new(size_bytes_max: usize) -> Self {
        Self {
            count_max: size_bytes_max / SEGMENT_SIZE_BYTES as usize,
            oldest: AtomicU64::new(u64::MAX),
            kept: RwLock::default(),
        }
    }

    /// Takes a segment's buffer in, and gives one for the next segment: that of the oldest one, if
    /// there are too many, which is gone then.
    pub(super) fn keep(&self, number: LogNumber, (filled, bytes): (usize, Vec<u8>)) -> Vec<u8> {
        if self.count_max == 0 {
            return bytes;
        }
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        let oldest = if kept.len() == self.count_max {
            kept.pop_front()
        } else {
            None
        };
        let size_bytes = bytes.len();
        kept.push_back(Recent {
            number,
            filled,
            bytes: Arc::new(bytes),
        });
        self.oldest.store(kept[0].number.0, Ordering::Relaxed);
        drop(kept);
        // Somebody may read it yet.
        let buffer = oldest.and_then(|it| Arc::try_unwrap(it.bytes).ok());
        buffer.unwrap_or_else(|| vec![0; size_bytes])
    }

    /// Those that are here, and which of them this one is, if it is.
    fn find(&self, number: LogNumber) -> Option<(RwLockReadGuard<'_, VecDeque<Recent>>, usize)> {
        if number.0 < self.oldest.load(Ordering::Relaxed) {
            return None;
        }
        let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner);
        let index = kept.binary_search_by_key(&number, |it| it.number).ok()?;
        Some((kept, index))
    }

    /// Looks at what was written from a place on, if its segment is here.
    pub(super) fn look<R>(
        &self,
        (number, offset): (LogNumber, usize),
        look: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        let (kept, index) = self.find(number)?;
        let recent = &kept[index];
        Some(look(recent.bytes.get(offset..recent.filled)?))
    }

    /// Appends the record at a place; what it begins with. None: the segment is not here, or no
    /// record begins there, or it goes on in another segment.
    pub(super) fn read_record(
        &self,
        (number, offset): (LogNumber, usize),
        to: &mut Vec<u8>,
    ) -> Option<RecordHeader> {
        let (kept, index) = self.find(number)?;
        let recent = &kept[index];
        let bytes = recent.bytes.get(offset..recent.filled)?;
        let header = record_header(bytes)?;
        let size_bytes = header.record_size_bytes();
        let record = bytes.get(..size_bytes)?;
        if size_bytes <= COPIED_UNDER_LOCK_SIZE_BYTES_MAX {
            to.extend_from_slice(record);
        } else {
            let bytes = Arc::clone(&recent.bytes);
            drop(kept);
            to.extend_from_slice(&bytes[offset..offset + size_bytes]);
        }
        Some(header)
    }
}
