//! Faults that are set, and their effect on operations.

use std::collections::BTreeMap;
use std::time::Duration;

use super::counters::{AllCounters, Operation};
use super::free_space::{FileId, FileSpaces};
use super::{Fault, FaultId};

/// Effect of the faults on an operation, decided before it runs.
#[derive(Debug, Default)]
pub(super) struct FaultEffect {
    pub(super) delay: Duration,
    pub(super) fails: bool,
}

#[derive(Debug)]
struct SetFault {
    fault: Fault,
    /// Number of operations that the fault could have affected.
    seen_count: u64,
    /// Free space in bytes, for a full disk.
    free_bytes: u64,
}

/// State shared by all clones of a storage and its files.
#[derive(Debug, Default)]
pub(super) struct Rules {
    pub(super) counters: AllCounters,
    pub(super) file_spaces: FileSpaces,
    faults: BTreeMap<FaultId, SetFault>,
    hit_counts: BTreeMap<FaultId, u64>,
    id_next: u64,
}

impl Rules {
    pub(super) fn set(&mut self, fault: Fault) -> FaultId {
        let id = FaultId(self.id_next);
        self.id_next += 1;
        let free_bytes = match fault {
            Fault::Full { after_bytes } => after_bytes,
            _ => 0,
        };
        self.faults.insert(
            id,
            SetFault {
                fault,
                seen_count: 0,
                free_bytes,
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

    /// Counts an operation, and returns the effect of faults on it.
    pub(super) fn effect_on(&mut self, operation: Operation, name: Option<&str>) -> FaultEffect {
        self.counters.operation(operation, name);
        let mut verdict = FaultEffect::default();
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

    /// Counts the bytes of a read, and flips bits in them.
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

    /// Counts the bytes of a write, and ends flips that it overwrites.
    pub(super) fn written(&mut self, name: &str, size_bytes: usize, offset: u64) {
        self.counters.written(name, size_bytes);
        self.faults.retain(|_, set| {
            let is_healed = matches!(set.fault, Fault::FlipBit { stays: true, .. })
                && flipped_byte(&set.fault, name, size_bytes, offset).is_some();
            !is_healed
        });
    }

    /// Uses disk space; returns how many of the bytes fit, from the first on.
    pub(super) fn use_space(&mut self, id: FileId, size_bytes: usize, offset: u64) -> usize {
        let free_bytes = self.free_bytes();
        let (fits_bytes, taken_bytes) =
            self.file_spaces
                .write(id, size_bytes as u64, offset, free_bytes);
        if fits_bytes < size_bytes as u64 {
            self.hit_full();
        }
        self.take(taken_bytes);
        fits_bytes as usize
    }

    /// Changes the size of a file; returns false if it does not fit.
    pub(super) fn resize(&mut self, id: FileId, size_bytes: u64) -> bool {
        let free_bytes = self.free_bytes();
        let Some((taken_bytes, given_bytes)) = self.file_spaces.resize(id, size_bytes, free_bytes)
        else {
            self.hit_full();
            return false;
        };
        self.take(taken_bytes);
        self.give(given_bytes);
        true
    }

    pub(super) fn discarded(&mut self, id: FileId, offset: u64, size_bytes: u64) {
        let given_bytes = self.file_spaces.discarded(id, offset, size_bytes);
        self.give(given_bytes);
    }

    pub(super) fn created(&mut self, name: &str) -> FileId {
        let id = self.file_spaces.opened(name, 0);
        // The file may have existed.
        self.resize(id, 0);
        id
    }

    pub(super) fn renamed(&mut self, from: &str, to: &str) {
        let given_bytes = self.file_spaces.renamed(from, to);
        self.give(given_bytes);
    }

    pub(super) fn removed(&mut self, name: &str) {
        let given_bytes = self.file_spaces.removed(name);
        self.give(given_bytes);
    }

    /// Returns the free disk space, by the fault that leaves least.
    fn free_bytes(&self) -> u64 {
        self.faults
            .values()
            .filter(|set| set.is_full())
            .map(|set| set.free_bytes)
            .min()
            .unwrap_or(u64::MAX)
    }

    fn take(&mut self, size_bytes: u64) {
        for set in self.faults.values_mut().filter(|set| set.is_full()) {
            set.free_bytes = set.free_bytes.saturating_sub(size_bytes);
        }
    }

    fn give(&mut self, size_bytes: u64) {
        for set in self.faults.values_mut().filter(|set| set.is_full()) {
            set.free_bytes = set.free_bytes.saturating_add(size_bytes);
        }
    }

    /// Counts a hit for the fault that leaves least space, or all that leave as little.
    fn hit_full(&mut self) {
        let least_bytes = self.free_bytes();
        for (id, set) in &self.faults {
            if set.is_full() && set.free_bytes == least_bytes {
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

/// Returns the index of the flipped byte in a range of a file, if any.
fn flipped_byte(fault: &Fault, name: &str, size_bytes: usize, start: u64) -> Option<usize> {
    let Fault::FlipBit { file, offset, .. } = fault else {
        return None;
    };
    let index = offset.checked_sub(start)?;
    (file == name && index < size_bytes as u64).then_some(index as usize)
}
