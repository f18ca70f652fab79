//! The faults that are set, and what they do to an operation.

use std::collections::BTreeMap;
use std::time::Duration;

use super::counters::{AllCounters, Operation};
use super::room::{FileId, Rooms};
use super::{Fault, FaultId};

/// What becomes of an operation before it is done.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) delay: Duration,
    pub(super) fails: bool,
}

#[derive(Debug)]
struct SetFault {
    fault: Fault,
    /// Operations that it could have met.
    seen_count: u64,
    /// Room that is left, if it is one of room.
    room_bytes: u64,
}

/// What all clones of a storage and its files share.
#[derive(Debug, Default)]
pub(super) struct Rules {
    pub(super) counters: AllCounters,
    pub(super) rooms: Rooms,
    faults: BTreeMap<FaultId, SetFault>,
    hit_counts: BTreeMap<FaultId, u64>,
    id_next: u64,
}

impl Rules {
    pub(super) fn set(&mut self, fault: Fault) -> FaultId {
        let id = FaultId(self.id_next);
        self.id_next += 1;
        let room_bytes = match fault {
            Fault::Full { after_bytes } => after_bytes,
            _ => 0,
        };
        self.faults.insert(
            id,
            SetFault {
                fault,
                seen_count: 0,
                room_bytes,
            },
        );
        id
    }

    pub(super) fn lift(&mut self, id: FaultId) -> bool {
        self.faults.remove(&id).is_some()
    }

    pub(super) fn lift_all(&mut self) {
        self.faults.clear();
    }

    pub(super) fn hit_count(&self, id: FaultId) -> u64 {
        self.hit_counts.get(&id).copied().unwrap_or_default()
    }

    /// Counts an operation, and says what becomes of it.
    pub(super) fn judge(&mut self, operation: Operation, name: Option<&str>) -> Verdict {
        self.counters.operation(operation, name);
        let mut verdict = Verdict::default();
        for (id, set) in &mut self.faults {
            let is_hit = match &set.fault {
                Fault::Fail {
                    operations,
                    file,
                    nth,
                    times,
                } => {
                    let is_meant = file.as_deref().is_none_or(|file| name == Some(file));
                    if !is_meant || !operations.contains(&operation) {
                        continue;
                    }
                    set.seen_count += 1;
                    let first = (*nth).max(1);
                    set.seen_count >= first && set.seen_count - first < *times
                }
                Fault::Slow { operations, each } => {
                    let is_hit = operations.contains(&operation);
                    if is_hit {
                        verdict.delay += *each;
                    }
                    is_hit
                }
                Fault::Full { .. } | Fault::FlipBit { .. } => false,
            };
            if is_hit {
                verdict.fails |= matches!(set.fault, Fault::Fail { .. });
                *self.hit_counts.entry(*id).or_default() += 1;
            }
        }
        verdict
    }

    /// Counts what was read, and flips the bits of it that are not what was written.
    pub(super) fn read(&mut self, name: &str, buffer: &mut [u8], offset: u64) {
        self.counters.read(name, buffer.len());
        let hit_counts = &mut self.hit_counts;
        self.faults.retain(|id, set| {
            let Fault::FlipBit { bit, stays, .. } = set.fault else {
                return true;
            };
            let Some(index) = flipped_byte(&set.fault, name, buffer.len(), offset) else {
                return true;
            };
            buffer[index] ^= 1 << (bit % 8);
            *hit_counts.entry(*id).or_default() += 1;
            stays
        });
    }

    /// Counts what was written, which is right again on the disk.
    pub(super) fn written(&mut self, name: &str, size_bytes: usize, offset: u64) {
        self.counters.written(name, size_bytes);
        self.faults.retain(|_, set| {
            let is_healed = matches!(set.fault, Fault::FlipBit { stays: true, .. })
                && flipped_byte(&set.fault, name, size_bytes, offset).is_some();
            !is_healed
        });
    }

    /// How many of the bytes fit on the disk, from the first on.
    pub(super) fn take_room(&mut self, id: FileId, size_bytes: usize, offset: u64) -> usize {
        let room_bytes = self.room_bytes();
        let (fits_bytes, taken_bytes) = self.rooms.write(id, size_bytes as u64, offset, room_bytes);
        if fits_bytes < size_bytes as u64 {
            self.hit_full();
        }
        self.take(taken_bytes);
        fits_bytes as usize
    }

    /// False: there is no room for that size.
    pub(super) fn resize(&mut self, id: FileId, size_bytes: u64) -> bool {
        let room_bytes = self.room_bytes();
        let Some((taken_bytes, given_bytes)) = self.rooms.resize(id, size_bytes, room_bytes) else {
            self.hit_full();
            return false;
        };
        self.take(taken_bytes);
        self.give(given_bytes);
        true
    }

    pub(super) fn discarded(&mut self, id: FileId, offset: u64, size_bytes: u64) {
        let given_bytes = self.rooms.discarded(id, offset, size_bytes);
        self.give(given_bytes);
    }

    pub(super) fn created(&mut self, name: &str) -> FileId {
        let id = self.rooms.opened(name, 0);
        // It may have been there.
        self.resize(id, 0);
        id
    }

    pub(super) fn renamed(&mut self, from: &str, to: &str) {
        let given_bytes = self.rooms.renamed(from, to);
        self.give(given_bytes);
    }

    pub(super) fn removed(&mut self, name: &str) {
        let given_bytes = self.rooms.removed(name);
        self.give(given_bytes);
    }

    /// The disk's room that is left, by the fault that leaves least.
    fn room_bytes(&self) -> u64 {
        self.faults
            .values()
            .filter(|set| set.is_full())
            .map(|set| set.room_bytes)
            .min()
            .unwrap_or(u64::MAX)
    }

    fn take(&mut self, size_bytes: u64) {
        for set in self.faults.values_mut().filter(|set| set.is_full()) {
            set.room_bytes = set.room_bytes.saturating_sub(size_bytes);
        }
    }

    fn give(&mut self, size_bytes: u64) {
        for set in self.faults.values_mut().filter(|set| set.is_full()) {
            set.room_bytes = set.room_bytes.saturating_add(size_bytes);
        }
    }

    /// Who left least room is the one that is met; with several, all that left so little.
    fn hit_full(&mut self) {
        let least_bytes = self.room_bytes();
        for (id, set) in &self.faults {
            if set.is_full() && set.room_bytes == least_bytes {
                *self.hit_counts.entry(*id).or_default() += 1;
            }
        }
    }
}

impl SetFault {
    const fn is_full(&self) -> bool {
        matches!(self.fault, Fault::Full { .. })
    }
}

/// Which byte of a range of a file a flip is in.
fn flipped_byte(fault: &Fault, name: &str, size_bytes: usize, start: u64) -> Option<usize> {
    let Fault::FlipBit { file, offset, .. } = fault else {
        return None;
    };
    let index = offset.checked_sub(start)?;
    (file == name && index < size_bytes as u64).then_some(index as usize)
}
