//! Pins: which log segments must stay because something points to them.
//!
//! `docs/explanation/lsm.md` describes them under *Commits and free space*.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::place::LogNumber;

/// Number of holders of each log segment.
#[derive(Debug, Default)]
pub struct LogPins {
    counts: Mutex<BTreeMap<LogNumber, u64>>,
    /// Set when a segment may have become free.
    has_changed: AtomicBool,
}

impl LogPins {
    fn counts(&self) -> MutexGuard<'_, BTreeMap<LogNumber, u64>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps these segments until the pin is dropped.
    ///
    /// The segments must still exist: because of another pin, or because recovery starts at or
    /// before them.
    pub fn pin(self: &Arc<Self>, numbers: impl IntoIterator<Item = LogNumber>) -> LogPin {
        let numbers: Vec<LogNumber> = numbers.into_iter().collect();
        let mut counts = self.counts();
        for number in &numbers {
            *counts.entry(*number).or_default() += 1;
        }
        drop(counts);
        LogPin {
            pins: Arc::clone(self),
            numbers,
        }
    }

    /// Returns those of these segments that no pin keeps.
    pub fn unpinned(&self, numbers: impl Iterator<Item = LogNumber>) -> Vec<LogNumber> {
        let counts = self.counts();
        numbers.filter(|it| !counts.contains_key(it)).collect()
    }

    /// Records that a segment may have become free.
    pub fn note_change(&self) {
        self.has_changed.store(true, Ordering::Release);
    }

    /// Returns true if a segment may have become free since the last call.
    pub fn take_change(&self) -> bool {
        self.has_changed.swap(false, Ordering::AcqRel)
    }
}

/// Keeps log segments until it is dropped.
#[derive(Debug)]
pub struct LogPin {
    pins: Arc<LogPins>,
    numbers: Vec<LogNumber>,
}

impl Drop for LogPin {
    fn drop(&mut self) {
        let mut counts = self.pins.counts();
        for number in &self.numbers {
            if let Some(count) = counts.get_mut(number) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(number);
                }
            }
        }
        drop(counts);
        self.pins.note_change();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a segment is free when its last pin is dropped, and the change is recorded.
    #[test]
    fn pins_keep_segments() {
        let pins = Arc::new(LogPins::default());
        let all = || (0..5).map(LogNumber);
        let one = pins.pin([1, 2, 3].map(LogNumber));
        let other = pins.pin([3, 4].map(LogNumber));
        assert_eq!(pins.unpinned(all()), [LogNumber(0)]);
        assert!(!pins.take_change());
        drop(one);
        assert_eq!(pins.unpinned(all()), [0, 1, 2].map(LogNumber));
        assert!(pins.take_change() && !pins.take_change());
        drop(other);
        assert_eq!(pins.unpinned(all()).len(), 5);
    }
}
