//! Wakers that are one number, and the only `unsafe` code that this takes.
//!
//! ```text
//!   63            48 47                28 27                         0
//!  +----------------+--------------------+----------------------------+
//!  |  executor id   |        slot        |         generation         |
//!  +----------------+--------------------+----------------------------+
//! ```
//!
//! The number travels in the data pointer of the `RawWaker`. It is never dereferenced: a wake looks
//! the executor up by id, and the executor compares the generation. Hence a waker owns nothing,
//! may be used on any thread, and may outlive task, set and thread.
//!
//! Ids and generations are reused in the long run (a generation after 2^28 spawns of one executor).
//! A waker that was kept that long may wake a stranger, which costs the stranger one needless poll.

use std::mem::ManuallyDrop;
use std::ptr;
use std::task::{RawWaker, RawWakerVTable, Waker};

use crate::ready;

const SLOT_BITS: u32 = 20;
const GENERATION_BITS: u32 = 28;
/// How many slots a waker can tell apart.
pub(crate) const SLOT_COUNT_MAX: usize = 1 << SLOT_BITS;
/// Generations are below this.
pub(crate) const GENERATION_COUNT: u32 = 1 << GENERATION_BITS;

const _: () = assert!(
    size_of::<usize>() == 8,
    "a wake token needs a 64-bit pointer"
);
const _: () = assert!(16 + SLOT_BITS + GENERATION_BITS == 64);

/// Which executor a waker belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExecutorId(pub(crate) u16);

/// Which task of which executor to wake.
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

    /// A waker for this task. Not dropping it saves a call through the table that does nothing.
    #[inline]
    pub(crate) fn waker(self) -> ManuallyDrop<Waker> {
        // SAFETY: `Waker::from_raw` requires that the table's functions keep the contract of
        // `RawWakerVTable`. All four are thread-safe, because they take the pointer as a number,
        // never dereference it, and reach shared state only through `ready::wake`, a safe function
        // of a number. `clone` returns a waker with the same number and table, so it wakes the same
        // task. A waker owns nothing, so `drop` and the consuming `wake` have nothing to free, and
        // a waker that is used after its task ended is as valid as any other number.
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
