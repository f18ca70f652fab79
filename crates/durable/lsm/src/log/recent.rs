//! Last written log segments, in memory.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use super::read::record_header;
use super::record::RecordHeader;
use crate::place::{LogNumber, SEGMENT_SIZE_BYTES};

/// Size in bytes up to which a record is copied under the lock. Larger ones are copied without it,
/// so that other threads can end a segment meanwhile.
const COPIED_UNDER_LOCK_SIZE_BYTES_MAX: usize = 4096;

/// Last written segments, with the written bytes. A closed log segment never changes, and its
/// number is never reused. So these bytes stay right while anything refers to them.
#[derive(Debug)]
pub(super) struct RecentSegments {
    count_max: usize,
    /// Number of the oldest segment here: readers of earlier ones need no lock. Only a hint.
    oldest: AtomicU64,
    /// Segments by number, oldest first.
    segments: RwLock<VecDeque<Recent>>,
}

#[derive(Debug)]
struct Recent {
    number: LogNumber,
    filled: usize,
    bytes: Arc<Vec<u8>>,
}

impl RecentSegments {
    /// Creates an empty set for as many segments as fit into a size in bytes.
    pub(super) fn new(size_bytes_max: usize) -> Self {
        Self {
            count_max: size_bytes_max / SEGMENT_SIZE_BYTES as usize,
            oldest: AtomicU64::new(u64::MAX),
            segments: RwLock::default(),
        }
    }

    /// Adds the buffer of a closed segment, and returns a buffer for the next one. That is the
    /// buffer of the oldest segment if there are too many, which is removed then.
    pub(super) fn keep(&self, number: LogNumber, filled: usize, bytes: Vec<u8>) -> Vec<u8> {
        if self.count_max == 0 {
            return bytes;
        }
        let mut segments = self
            .segments
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let oldest = if segments.len() == self.count_max {
            segments.pop_front()
        } else {
            None
        };
        let size_bytes = bytes.len();
        segments.push_back(Recent {
            number,
            filled,
            bytes: Arc::new(bytes),
        });
        self.oldest.store(segments[0].number.0, Ordering::Relaxed);
        drop(segments);
        // A reader may still use the oldest buffer.
        let buffer = oldest.and_then(|it| Arc::try_unwrap(it.bytes).ok());
        buffer.unwrap_or_else(|| vec![0; size_bytes])
    }

    /// Returns the locked segments and the index of this one, if it is present.
    fn find(&self, number: LogNumber) -> Option<(RwLockReadGuard<'_, VecDeque<Recent>>, usize)> {
        if number.0 < self.oldest.load(Ordering::Relaxed) {
            return None;
        }
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        let index = segments
            .binary_search_by_key(&number, |it| it.number)
            .ok()?;
        Some((segments, index))
    }

    /// Calls a function with the bytes from an offset of a segment, if the segment is present.
    pub(super) fn look<R>(
        &self,
        number: LogNumber,
        offset: usize,
        look: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        let (segments, index) = self.find(number)?;
        let recent = &segments[index];
        Some(look(recent.bytes.get(offset..recent.filled)?))
    }

    /// Appends the record at an offset to a buffer, and returns its header. Returns `None` if the
    /// segment is not present, no record begins there, or the record continues in another segment.
    pub(super) fn read_record(
        &self,
        number: LogNumber,
        offset: usize,
        to: &mut Vec<u8>,
    ) -> Option<RecordHeader> {
        let (segments, index) = self.find(number)?;
        let recent = &segments[index];
        let bytes = recent.bytes.get(offset..recent.filled)?;
        let header = record_header(bytes)?;
        let size_bytes = header.record_size_bytes();
        let record = bytes.get(..size_bytes)?;
        if size_bytes <= COPIED_UNDER_LOCK_SIZE_BYTES_MAX {
            to.extend_from_slice(record);
        } else {
            let bytes = Arc::clone(&recent.bytes);
            drop(segments);
            to.extend_from_slice(&bytes[offset..offset + size_bytes]);
        }
        Some(header)
    }
}
