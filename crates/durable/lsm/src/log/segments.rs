//! Which log segment is where on the device, and which are reserved for those to come.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use super::record::EngineId;
use crate::device::Device;
use crate::error::LsmError;
use crate::manifest::{Change, LogEntry, Manifest};
use crate::place::{LogNumber, LogPosition, SegmentId};

/// So many segments are reserved at a time: one edit of the manifest for 32 MiB of log.
const RESERVED_COUNT: usize = 16;

/// The log's segments.
#[derive(Debug)]
pub struct LogSegments {
    /// Where they are.
    pub device: Device,
    /// Whose.
    pub engine: EngineId,
    places: RwLock<BTreeMap<LogNumber, SegmentId>>,
    reserved: Mutex<Reserved>,
    /// Held by who reserves, while others take what is reserved.
    reserving: Mutex<()>,
}

#[derive(Debug)]
struct Reserved {
    /// The manifest names them already.
    segments: VecDeque<(LogNumber, SegmentId)>,
    /// The number of the first one that it does not name.
    next: LogNumber,
    /// Some was taken: more will be.
    is_begun: bool,
}

impl LogSegments {
    /// Those that the manifest names, all of them in use; `next` is the number of the one to come.
    pub fn new(
        (device, engine): (Device, EngineId),
        entries: &BTreeMap<LogNumber, LogEntry>,
        next: LogNumber,
    ) -> Self {
        let places = entries.iter().map(|(number, it)| (*number, it.segment));
        Self {
            device,
            engine,
            places: RwLock::new(places.collect()),
            reserved: Mutex::new(Reserved {
                segments: VecDeque::new(),
                next,
                is_begun: false,
            }),
            reserving: Mutex::new(()),
        }
    }

    fn reserved(&self) -> MutexGuard<'_, Reserved> {
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number and place of the next segment, which the manifest names. Makes an edit if none is
    /// reserved.
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

    /// The numbers and places of the next segments, which [`begin_next`](Self::begin_next) gives
    /// then without an edit, if nobody else begins one meanwhile. Makes edits if there are fewer.
    ///
    /// # Errors
    /// The manifest cannot be written.
    pub fn coming(
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

    /// Reserves segments if few are left, and so many are used up that more will be: then who
    /// writes does not have to wait for that. False: there are enough.
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

    /// One edit, if there are not so many by now, since another thread has made one.
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
            // Else nobody knows whether they are named, and they stay unused.
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

    /// The number of the segment that comes next.
    pub fn next_number(&self) -> LogNumber {
        let reserved = self.reserved();
        let first = reserved.segments.front();
        first.map_or(reserved.next, |(number, _)| *number)
    }

    /// The segments of these numbers that there are.
    pub fn numbers(&self, range: RangeInclusive<LogNumber>) -> Vec<LogNumber> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        places.range(range).map(|(number, _)| *number).collect()
    }

    /// Whether there is one of this number.
    pub fn has(&self, number: LogNumber) -> bool {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        places.contains_key(&number)
    }

    /// The first one of this number or a later one that there is.
    pub(crate) fn next_from(&self, number: LogNumber) -> Option<LogNumber> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        places.range(number..).next().map(|(number, _)| *number)
    }

    fn places(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<LogNumber, SegmentId>> {
        self.places.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a log segment is.
    ///
    /// # Errors
    /// There is none of this number: what led there is damaged.
    pub fn place(&self, number: LogNumber) -> Result<SegmentId, LsmError> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        let place = places.get(&number).copied();
        place.ok_or_else(|| LsmError::DamagedLog {
            position: LogPosition(number.start().0),
            how: "the manifest names no such segment".to_owned(),
        })
    }

    /// LC5: forgets segments, and gives their room back. The manifest does not name them any more.
    pub fn give_back(&self, numbers: &[LogNumber]) {
        let mut places = self.places();
        let segments: Vec<SegmentId> = numbers.iter().filter_map(|it| places.remove(it)).collect();
        drop(places);
        self.device.give_back(segments);
    }
}
