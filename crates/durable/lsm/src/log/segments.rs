//! Map from log segments to segments of the device, and reserved segments for later writes.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use super::record::EngineId;
use crate::device::Device;
use crate::error::LsmError;
use crate::manifest::{Change, LogEntry, Manifest};
use crate::place::{LogNumber, LogPosition, SegmentId};

/// Number of segments reserved at a time: one edit of the manifest for 32 MiB of log.
const RESERVED_COUNT: usize = 16;

/// Segments of the log.
#[derive(Debug)]
pub struct LogSegments {
    /// Device with the segments.
    pub device: Device,
    /// Id of the engine that has the log.
    pub engine: EngineId,
    places: RwLock<BTreeMap<LogNumber, SegmentId>>,
    reserved: Mutex<ReservedSegments>,
    /// Held by the thread that reserves segments, so that others can take reserved ones meanwhile.
    reserving: Mutex<()>,
}

#[derive(Debug)]
struct ReservedSegments {
    /// Segments that are reserved; the manifest already names them.
    segments: VecDeque<(LogNumber, SegmentId)>,
    /// First segment number that the manifest does not name.
    next: LogNumber,
    /// Set when a segment was taken, so more will be.
    is_begun: bool,
}

impl LogSegments {
    /// Creates the map from the manifest's entries, all of them in use. `next` is the number of the
    /// next new segment.
    pub fn new(
        device: Device,
        engine: EngineId,
        entries: &BTreeMap<LogNumber, LogEntry>,
        next: LogNumber,
    ) -> Self {
        let places = entries.iter().map(|(number, it)| (*number, it.segment));
        Self {
            device,
            engine,
            places: RwLock::new(places.collect()),
            reserved: Mutex::new(ReservedSegments {
                segments: VecDeque::new(),
                next,
                is_begun: false,
            }),
            reserving: Mutex::new(()),
        }
    }

    fn reserved(&self) -> MutexGuard<'_, ReservedSegments> {
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next segment, which the manifest names. Makes an edit if none is reserved.
    ///
    /// # Errors
    /// The manifest cannot be written.
    pub fn begin_next(&self, manifest: &Manifest) -> Result<(LogNumber, SegmentId), LsmError> {
        loop {
            let mut reserved = self.reserved();
            reserved.is_begun = true;
            if let Some(next) = reserved.segments.pop_front() {
                return Ok(next);
            }
            drop(reserved);
            self.reserve(manifest, 1)?;
        }
    }

    /// Returns the next segments without taking them. [`begin_next`](Self::begin_next) then returns
    /// them without an edit, unless another thread begins one meanwhile. Makes edits if fewer are
    /// reserved.
    ///
    /// # Errors
    /// The manifest cannot be written.
    pub fn upcoming(
        &self,
        manifest: &Manifest,
        count: usize,
    ) -> Result<Vec<(LogNumber, SegmentId)>, LsmError> {
        loop {
            let reserved = self.reserved();
            if reserved.segments.len() >= count {
                return Ok(reserved.segments.iter().take(count).copied().collect());
            }
            drop(reserved);
            self.reserve(manifest, count)?;
        }
    }

    /// Reserves segments if few are left and the log is in use, so that writers need not wait for
    /// that. Returns false if there are enough.
    ///
    /// # Errors
    /// The manifest cannot be written.
    pub fn reserve_ahead(&self, manifest: &Manifest) -> Result<bool, LsmError> {
        let reserved = self.reserved();
        if !reserved.is_begun || reserved.segments.len() > RESERVED_COUNT / 4 {
            return Ok(false);
        }
        drop(reserved);
        self.reserve(manifest, RESERVED_COUNT / 4 + 1)
            .map(|()| true)
    }

    /// Makes one edit that reserves segments, unless another thread has already reserved enough.
    fn reserve(&self, manifest: &Manifest, count_min: usize) -> Result<(), LsmError> {
        let guard = self.reserving.lock();
        let guard = guard.unwrap_or_else(PoisonError::into_inner);
        let reserved = self.reserved();
        if reserved.segments.len() >= count_min {
            return Ok(());
        }
        let first = reserved.next;
        drop(reserved);
        let segments: Vec<SegmentId> = (0..RESERVED_COUNT)
            .map(|_| self.device.allocate())
            .collect();
        let committed = manifest.commit(&[Change::ReserveLog {
            first,
            segments: segments.clone(),
        }]);
        if let Err(error) = committed {
            // Otherwise, the failed edit may be in force and name them, so they stay unused.
            if manifest.check().is_ok() {
                self.device.give_back(segments);
            }
            return Err(error);
        }
        let numbers = (first.0..).map(LogNumber);
        let named: Vec<(LogNumber, SegmentId)> = numbers.zip(segments).collect();
        self.places().extend(named.iter().copied());
        let mut reserved = self.reserved();
        reserved.next = LogNumber(first.0 + RESERVED_COUNT as u64);
        reserved.segments.extend(named);
        drop(guard);
        Ok(())
    }

    /// Returns the number of the next segment.
    pub fn next_number(&self) -> LogNumber {
        let reserved = self.reserved();
        let first = reserved.segments.front();
        first.map_or(reserved.next, |(number, _)| *number)
    }

    /// Returns the numbers of the existing segments in a range.
    pub fn numbers(&self, range: RangeInclusive<LogNumber>) -> Vec<LogNumber> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        places.range(range).map(|(number, _)| *number).collect()
    }

    /// Returns true if a segment of this number exists.
    pub fn has(&self, number: LogNumber) -> bool {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        places.contains_key(&number)
    }

    /// Returns the number of the first existing segment at or behind a number.
    pub(crate) fn next_from(&self, number: LogNumber) -> Option<LogNumber> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        places.range(number..).next().map(|(number, _)| *number)
    }

    fn places(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<LogNumber, SegmentId>> {
        self.places.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the device segment of a log segment.
    ///
    /// # Errors
    /// [`LsmError::CorruptLog`] if the log segment does not exist: the reference to it is
    /// corrupted.
    pub fn place(&self, number: LogNumber) -> Result<SegmentId, LsmError> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        let place = places.get(&number).copied();
        place.ok_or_else(|| LsmError::CorruptLog {
            position: LogPosition(number.start().0),
            how: "the manifest does not name this segment".to_owned(),
        })
    }

    /// Removes log segments and frees their space. The manifest no longer names them.
    pub fn give_back(&self, numbers: &[LogNumber]) {
        let mut places = self.places();
        let segments: Vec<SegmentId> = numbers.iter().filter_map(|it| places.remove(it)).collect();
        drop(places);
        self.device.give_back(segments);
    }
}
