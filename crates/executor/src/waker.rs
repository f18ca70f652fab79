//! Wakers that consist of one number, and the `unsafe` code for them.
//!
//! ```text
//!   63            48 47                28 27                         0
//!  +----------------+--------------------+----------------------------+
//!  |  executor id   |        slot        |         generation         |
//!  +----------------+--------------------+----------------------------+
//! ```
//!
//! The data pointer of the `RawWaker` holds the number and is never dereferenced. A wake looks up
//! the executor by id, and the executor compares the generation. Hence a waker owns nothing, can be
//! used on any thread, and can outlive its task, set and thread.
//!
//! Ids and generations are eventually reused (a generation after 2^28 spawns of one executor). A
//! waker that was kept that long may wake an unrelated task, which costs one needless poll.

use std::mem::ManuallyDrop;
use std::ptr;
use std::task::{RawWaker, RawWakerVTable, Waker};

use crate::ready;

const SLOT_BITS: u32 = 20;
const GENERATION_BITS: u32 = 28;
/// Number of slots that a waker can distinguish.
pub(crate) const SLOT_COUNT_MAX: usize = 1 << SLOT_BITS;
/// Number of generations; each generation is below it.
pub(crate) const GENERATION_COUNT: u32 = 1 << GENERATION_BITS;

const _: () = assert!(
    size_of::<usize>() == 8,
    "a wake token needs a 64-bit pointer"
);
const _: () = assert!(16 + SLOT_BITS + GENERATION_BITS == 64);

/// Identifier of the executor that a waker belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExecutorId(pub(crate) u16);

/// Identifier of a task: executor, slot and generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WakeToken(u64);

impl WakeToken {
    #[inline]
    pub(crate) fn new(executor: ExecutorId, slot: u32, generation: u32) -> Self {
        debug_assert!((slot as usize) < SLOT_COUNT_MAX);
        debug_assert!(generation < GENERATION_COUNT);
        Self(
            u64::from(executor.0) << (SLOT_BITS + GENERATION_BITS)
                | u64::from(slot) << GENERATION_BITS
                | u64::from(generation),
        )
    }

    #[inline]
    pub(crate) fn executor(self) -> ExecutorId {
        ExecutorId((self.0 >> (SLOT_BITS + GENERATION_BITS)) as u16)
    }

    #[inline]
    pub(crate) fn slot(self) -> u32 {
        (self.0 >> GENERATION_BITS) as u32 & (SLOT_COUNT_MAX as u32 - 1)
    }

    #[inline]
    pub(crate) fn generation(self) -> u32 {
        self.0 as u32 & (GENERATION_COUNT - 1)
    }

    /// Returns a waker for this task. `ManuallyDrop` saves a call of the table's empty `drop`.
    #[inline]
    pub(crate) fn waker(self) -> ManuallyDrop<Waker> {
        // SAFETY: `Waker::from_raw` requires that the table's functions keep the contract of
        // `RawWakerVTable`. All four are thread-safe: they use the pointer as a number, never
        // dereference it, and reach shared state only through `ready::wake`, a safe function that
        // takes a number. `clone` returns a waker with the same number and table, so it wakes the
        // same task. A waker owns nothing, so `drop` and the consuming `wake` have nothing to free.
        // A waker that is used after its task ended is as valid as any other number.
        ManuallyDrop::new(unsafe { Waker::from_raw(self.raw()) })
    }

    #[inline]
    fn raw(self) -> RawWaker {
        RawWaker::new(ptr::without_provenance(self.0 as usize), &TABLE)
    }

    #[inline]
    fn from_data(data: *const ()) -> Self {
        Self(data.addr() as u64)
    }
}

static TABLE: RawWakerVTable = RawWakerVTable::new(
    |data| WakeToken::from_data(data).raw(),
    |data| ready::wake(WakeToken::from_data(data)),
    |data| ready::wake(WakeToken::from_data(data)),
    |_| {},
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_gives_back_its_parts_at_the_extremes() {
        for executor in [0, 1, u16::MAX] {
            for slot in [0, 1, SLOT_COUNT_MAX as u32 - 1] {
                for generation in [0, 1, GENERATION_COUNT - 1] {
                    let token = WakeToken::new(ExecutorId(executor), slot, generation);
                    assert_eq!(token.executor(), ExecutorId(executor));
                    assert_eq!(token.slot(), slot);
                    assert_eq!(token.generation(), generation);
                    assert_eq!(WakeToken::from_data(token.waker().data()), token);
                }
            }
        }
    }

    #[test]
    fn clones_of_a_waker_wake_the_same_task() {
        let one = WakeToken::new(ExecutorId(7), 8, 9);
        let other = WakeToken::new(ExecutorId(7), 8, 10);
        assert!(one.waker().will_wake(&one.waker().clone()));
        assert!(!one.waker().will_wake(&other.waker()));
    }
}
