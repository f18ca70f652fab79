//! Checks of a thread's reads against its own writes: the exact part of the checks.
//!
//! A read that began after this thread's write `s` to a key had finished never returns an older
//! write of this thread, nor the loader's value. This holds even if other threads write the key, so
//! no keys need to be reserved, and the request distribution stays YCSB's. If only this thread
//! writes a key and every write has finished, exactly one value is correct.
//!
//! A thread may have several operations in flight, also on one key, so that their order is open.
//! Overlapping writes to a key form a *batch*. When the last of them finishes, the floor rises to
//! the batch's lowest sequence number.
//!
//! Memory is bounded: a table of slots, one key each. A slot is reassigned to another key only when
//! no write in flight refers to it, and the old key's floor is forgotten. This reduces the checks,
//! but never causes a false alarm. A write with an unknown outcome keeps its slot forever, since it
//! may take effect at any time.

use super::{Fault, Value, Verdict, WriterId};

/// Writes of one thread, and their consequences for its reads.
#[derive(Debug)]
pub struct OwnWrites {
    writer: WriterId,
    /// Next sequence number. Beyond 2^32 the numbers repeat, and the checks become impossible.
    next_sequence: u64,
    slots: Box<[Slot]>,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    key: u64,
    /// Least sequence number of this thread's writes that reads of `key` starting now may return;
    /// `None` if unknown.
    floor: Option<u32>,
    batch_first: u32,
    /// Whether a write of the batch was cancelled: the floor must not rise to it.
    batch_spoiled: bool,
    /// Writes to `key` that count for the batch.
    in_flight: u32,
    /// Writes that found the slot occupied; as long as there are any, no key takes the slot.
    bystanders: u32,
}

/// Write in flight. Pass it to [`OwnWrites::complete`] or [`OwnWrites::cancel`]; if its outcome is
/// unknown, drop it.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct PendingWrite {
    key: u64,
    value: u64,
    is_tracked: bool,
}

impl PendingWrite {
    /// Returns the value to write.
    pub fn value(&self) -> u64 {
        self.value
    }
}

/// Values that a read which begins now may return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct ReadExpectation {
    key: u64,
    floor: Option<u32>,
}

impl OwnWrites {
    /// Creates the writes of `writer`, remembering up to `slot_count` keys (rounded up to a power
    /// of two) in 32 bytes each.
    pub fn new(writer: WriterId, slot_count: usize) -> Self {
        let slots = vec![Slot::default(); slot_count.max(1).next_power_of_two()];
        Self {
            writer,
            next_sequence: 0,
            slots: slots.into_boxed_slice(),
        }
    }

    fn slot(&mut self, key: u64) -> &mut Slot {
        let place = super::tag(key) as usize & (self.slots.len() - 1);
        &mut self.slots[place]
    }

    /// Begins a write to `key`, with a value that no other write has.
    pub fn begin(&mut self, key: u64) -> PendingWrite {
        let sequence = self.next_sequence as u32;
        self.next_sequence += 1;
        let value = Value::new(key, self.writer, sequence).pack();
        let slot = self.slot(key);
        let is_idle = slot.in_flight == 0 && slot.bystanders == 0;
        if slot.key != key && is_idle {
            *slot = Slot {
                key,
                ..Slot::default()
            };
        }
        // With bystanders even the slot's own key is not tracked: one of them may be for this key.
        let is_tracked = slot.key == key && slot.bystanders == 0;
        if is_tracked {
            if slot.in_flight == 0 {
                slot.batch_first = sequence;
                slot.batch_spoiled = false;
            }
            slot.in_flight += 1;
        } else {
            slot.bystanders += 1;
        }
        PendingWrite {
            key,
            value,
            is_tracked,
        }
    }

    /// Completes a write that the store acknowledged.
    pub fn complete(&mut self, write: PendingWrite) {
        self.finish(write, false);
    }

    /// Cancels a write that was refused and certainly has no effect.
    pub fn cancel(&mut self, write: PendingWrite) {
        self.finish(write, true);
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "a write is finished only once"
    )]
    fn finish(&mut self, write: PendingWrite, is_cancelled: bool) {
        let PendingWrite {
            key, is_tracked, ..
        } = write;
        let slot = self.slot(key);
        if !is_tracked {
            slot.bystanders -= 1;
            return;
        }
        slot.batch_spoiled |= is_cancelled;
        slot.in_flight -= 1;
        if slot.in_flight == 0 && !slot.batch_spoiled {
            slot.floor = Some(slot.batch_first);
        }
    }

    /// Returns the values that a read of `key` which begins now may return.
    pub fn expect(&mut self, key: u64) -> ReadExpectation {
        let slot = self.slot(key);
        let floor = if slot.key == key { slot.floor } else { None };
        ReadExpectation { key, floor }
    }

    /// Checks the result of the read of `expectation`; the key must exist.
    pub fn check(&self, expectation: ReadExpectation, value: Option<u64>) -> Verdict {
        let ReadExpectation { key, floor } = expectation;
        let Some(value) = value else {
            return Verdict::Missing { key };
        };
        let found = match Value::of(key, value) {
            Ok(found) => found,
            Err(fault) => return Verdict::Wrong(fault),
        };
        if self.next_sequence > u64::from(u32::MAX) {
            return Verdict::Right;
        }
        let is_own = found.writer == self.writer;
        if is_own && u64::from(found.sequence) >= self.next_sequence {
            return Verdict::Wrong(Fault::UnwrittenValue { key, value });
        }
        match floor {
            Some(sequence_min)
                if found.writer == WriterId::LOADER || is_own && found.sequence < sequence_min =>
            {
                Verdict::Wrong(Fault::StaleValue {
                    key,
                    value,
                    sequence_min,
                })
            }
            _ => Verdict::Right,
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::loaded_value;
    use super::*;
    use crate::distribution::numbered_stream;

    const KEY: u64 = 77;

    fn own_writes() -> OwnWrites {
        OwnWrites::new(WriterId::thread(0).expect("a thread"), 64)
    }

    fn is_stale(verdict: Verdict) -> bool {
        matches!(verdict, Verdict::Wrong(Fault::StaleValue { .. }))
    }

    /// Promise: after a finished write only its value, a later one, or another thread's is correct.
    #[test]
    fn a_finished_write_outdates_what_was_before() {
        let mut own = own_writes();
        let first = own.begin(KEY);
        let old = first.value();
        own.complete(first);
        let second = own.begin(KEY);
        let new = second.value();
        let during = own.expect(KEY);
        assert_eq!(own.check(during, Some(old)), Verdict::Right);
        assert_eq!(own.check(during, Some(new)), Verdict::Right);
        assert!(is_stale(own.check(during, Some(loaded_value(KEY)))));
        own.complete(second);
        let after = own.expect(KEY);
        assert!(is_stale(own.check(after, Some(old))));
        assert_eq!(own.check(after, Some(new)), Verdict::Right);
        assert_eq!(
            own.check(during, Some(old)),
            Verdict::Right,
            "the read began before"
        );
        let other = OwnWrites::new(WriterId::thread(1).expect("a thread"), 1)
            .begin(KEY)
            .value();
        assert_eq!(own.check(after, Some(other)), Verdict::Right);
        assert_eq!(own.check(after, None), Verdict::Missing { key: KEY });
    }

    /// Promise: any of several overlapping writes may have been the last one.
    #[test]
    fn overlapping_writes_may_end_in_any_order() {
        let mut own = own_writes();
        let writes = [own.begin(KEY), own.begin(KEY), own.begin(KEY)];
        let values = [writes[0].value(), writes[1].value(), writes[2].value()];
        for write in writes.into_iter().rev() {
            own.complete(write);
        }
        let expectation = own.expect(KEY);
        assert!(
            values
                .iter()
                .all(|value| own.check(expectation, Some(*value)).is_right())
        );
        assert!(is_stale(own.check(expectation, Some(loaded_value(KEY)))));
    }

    /// Promise: after a cancelled or unknown write the older value is still correct.
    #[test]
    fn a_cancelled_or_unknown_write_outdates_nothing() {
        let mut own = own_writes();
        let cancelled = own.begin(KEY);
        own.cancel(cancelled);
        let expectation = own.expect(KEY);
        assert_eq!(
            own.check(expectation, Some(loaded_value(KEY))),
            Verdict::Right
        );
        drop(own.begin(KEY));
        let finished = own.begin(KEY);
        own.complete(finished);
        let expectation = own.expect(KEY);
        assert_eq!(
            own.check(expectation, Some(loaded_value(KEY))),
            Verdict::Right
        );
    }

    /// Promise: a value in this thread's name that it has not written is wrong.
    #[test]
    fn a_value_that_was_never_written_is_wrong() {
        let mut own = own_writes();
        let value = Value::new(KEY, own.writer, 0).pack();
        let expectation = own.expect(KEY);
        let fault = Fault::UnwrittenValue { key: KEY, value };
        assert_eq!(own.check(expectation, Some(value)), Verdict::Wrong(fault));
    }

    /// Promise: there are no false alarms, whatever overlaps, even with few slots. The test uses
    /// random writes and reads on a store in which an operation takes effect between its beginning
    /// and its end. Some operations are cancelled or remain unknown. A store that ignores one write
    /// in a hundred is detected.
    #[test]
    fn a_right_store_raises_no_alarm_and_a_forgetful_one_does() {
        for (forgets, slot_count) in [(false, 1), (false, 2), (false, 64), (true, 64)] {
            let alarms: usize = (0..40)
                .map(|seed| simulate(seed, slot_count, forgets))
                .sum();
            assert_eq!(alarms > 0, forgets, "{slot_count} slots: {alarms} alarms");
        }
    }

    enum InFlight {
        Write(PendingWrite, bool),
        Read(ReadExpectation, Option<u64>),
    }

    fn simulate(seed: u64, slot_count: usize, forgets: bool) -> usize {
        let mut random = numbered_stream(seed, 0);
        let mut own = OwnWrites::new(WriterId::thread(0).expect("a thread"), slot_count);
        let mut store: Vec<u64> = (0..8).map(loaded_value).collect();
        let mut in_flight: Vec<InFlight> = Vec::new();
        let mut alarms = 0;
        for _ in 0..2_000 {
            let drawn = random.next_u64();
            let key = drawn >> 32 & 7;
            let chosen = (drawn >> 40) as usize % in_flight.len().max(1);
            match drawn % 8 {
                0 if in_flight.len() < 8 => in_flight.push(InFlight::Write(own.begin(key), false)),
                1 if in_flight.len() < 8 => in_flight.push(InFlight::Read(own.expect(key), None)),
                // Operations take effect in any order, the store's own.
                2..5 => match in_flight.get_mut(chosen) {
                    Some(InFlight::Write(write, done)) if !*done => {
                        *done = true;
                        if !(forgets && (drawn >> 50).is_multiple_of(128)) {
                            store[write.key as usize] = write.value;
                        }
                    }
                    Some(InFlight::Read(expectation, value)) if value.is_none() => {
                        *value = Some(store[expectation.key as usize]);
                    }
                    _ => {}
                },
                _ if in_flight.is_empty() => {}
                _ => match in_flight.swap_remove(chosen) {
                    InFlight::Write(write, true) => own.complete(write),
                    InFlight::Write(write, false) if drawn >> 60 < 2 => own.cancel(write),
                    InFlight::Read(expectation, Some(value)) => {
                        alarms += usize::from(!own.check(expectation, Some(value)).is_right());
                    }
                    unfinished => in_flight.push(unfinished),
                },
            }
        }
        alarms
    }
}
