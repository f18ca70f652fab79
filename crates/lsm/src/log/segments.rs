//! Which log segment is where on the device, and which are reserved for those to come.

use std::collections::{BTreeMap, VecDeque};
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
}

#[derive(Debug)]
struct Reserved {
    /// The manifest names them already.
    segments: VecDeque<(LogNumber, SegmentId)>,
    /// The number of the first one that it does not name.
    next: LogNumber,
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
            }),
        }
    }

    fn reserved(&self) -> MutexGuard<'_, Reserved> {
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number and place of the next segment, which the manifest names.
    ///
    /// # Errors
    /// The manifest cannot be written.
    pub fn begin_next(&self, manifest: &Manifest) -> Result<(LogNumber, SegmentId), LsmError> {
        let mut reserved = self.reserved();
        if reserved.segments.is_empty() {
            let segments: Vec<SegmentId> = (0..RESERVED_COUNT)
                .map(|_| self.device.allocate())
                .collect();
            let first = reserved.next;
            // If that fails nobody knows whether they are named: they stay unused.
            manifest.commit(&[Change::ReserveLog {
                first,
                segments: segments.clone(),
            }])?;
            for segment in segments {
                let number = reserved.next;
                reserved.next = number.next();
                reserved.segments.push_back((number, segment));
                self.places().insert(number, segment);
            }
        }
        let next = reserved.segments.pop_front();
        Ok(next.expect("some were reserved if there were none"))
    }

    /// The number of the segment that comes next.
    pub fn next_number(&self) -> LogNumber {
        let reserved = self.reserved();
        let first = reserved.segments.front();
        first.map_or(reserved.next, |(number, _)| *number)
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
