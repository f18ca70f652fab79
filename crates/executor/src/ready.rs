//! The ready queue of an executor, and how a wake finds it.
//!
//! A queue belongs to one thread. Each thread keeps a table of its queues, indexed by executor id.
//! If the id of a wake is in the table of the current thread, the wake goes to the queue without an
//! atomic operation; otherwise it goes to the inbox.
//!
//! A slot is on the ring at most once, so the ring never outgrows the number of slots. A slot may
//! remain on the ring after its task ended (`is_on_ring && !is_woken`); it is then skipped.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem;
use std::rc::Rc;

use crate::inbox::Inbox;
use crate::registry;
use crate::waker::{ExecutorId, GENERATION_COUNT, WakeToken};

/// Generation that no token has.
const VACANT: u32 = u32::MAX;
const _: () = assert!(GENERATION_COUNT < VACANT);

/// Number of unused registrations that a thread keeps, so that `block_on` need not acquire a new
/// one.
const SPARE_COUNT_MAX: usize = 8;
/// Largest queue, in slots, that a thread keeps for reuse.
const SPARE_SLOT_COUNT_MAX: usize = 4096;

thread_local! {
    static LOCAL: RefCell<ThreadQueues> = const {
        RefCell::new(ThreadQueues { queues: Vec::new(), spare: Vec::new() })
    };
}

struct ThreadQueues {
    /// Queues by executor id, including unused ones.
    queues: Vec<Option<Rc<ReadyQueue>>>,
    spare: Vec<Rc<ReadyQueue>>,
}

impl Drop for ThreadQueues {
    fn drop(&mut self) {
        for queue in self.spare.drain(..) {
            queue.release();
        }
    }
}

/// Wakes a task from any thread, whether or not the task still exists.
#[inline]
pub(crate) fn wake(token: WakeToken) {
    let is_local = LOCAL.try_with(|local| {
        // Only this module borrows the table, and it runs no foreign code meanwhile.
        match local.borrow().queues.get(usize::from(token.executor().0)) {
            Some(Some(queue)) => {
                queue.wake(token);
                true
            }
            _ => false,
        }
    });
    // The table may be gone already, if a destructor of another thread-local wakes a task.
    if is_local != Ok(true) {
        wake_by_inbox(token);
    }
}

#[cold]
fn wake_by_inbox(token: WakeToken) {
    if let Some(inbox) = registry::inbox(token.executor()) {
        inbox.push(token);
    }
}

/// The slots of one executor and the ring of slots to poll.
pub(crate) struct ReadyQueue {
    id: ExecutorId,
    inbox: &'static Inbox,
    state: RefCell<State>,
}

struct State {
    slots: Vec<Slot>,
    ring: VecDeque<u32>,
    next_generation: u32,
    /// Buffer for wakes from the inbox; empty between calls, kept for its allocation.
    wakes: Vec<WakeToken>,
}

#[derive(Clone, Copy)]
struct Slot {
    generation: u32,
    is_on_ring: bool,
    is_woken: bool,
}

const VACANT_SLOT: Slot = Slot {
    generation: VACANT,
    is_on_ring: false,
    is_woken: false,
};

impl ReadyQueue {
    /// Starts a task in a vacant slot and returns its token.
    #[inline]
    pub(crate) fn occupy(&self, slot: u32) -> WakeToken {
        let state = &mut *self.state.borrow_mut();
        let generation = state.next_generation;
        state.next_generation = (generation + 1) % GENERATION_COUNT;
        let entry = &mut state.slots[slot as usize];
        debug_assert_eq!(entry.generation, VACANT, "a slot holds one task at a time");
        entry.generation = generation;
        WakeToken::new(self.id, slot, generation)
    }

    /// Ends the task in a slot; later wakes of it do nothing.
    #[inline]
    pub(crate) fn vacate(&self, slot: u32) {
        let entry = &mut self.state.borrow_mut().slots[slot as usize];
        entry.generation = VACANT;
        entry.is_woken = false;
    }

    /// Returns the number of calls of [`pop`](Self::pop) that return all tasks woken so far.
    #[inline]
    pub(crate) fn ring_len(&self) -> usize {
        self.state.borrow().ring.len()
    }

    /// Takes the oldest slot from the ring; returns `None` if its task has ended since.
    #[inline]
    pub(crate) fn pop(&self) -> Option<WakeToken> {
        let state = &mut *self.state.borrow_mut();
        let slot = state.ring.pop_front()?;
        let entry = &mut state.slots[slot as usize];
        entry.is_on_ring = false;
        mem::take(&mut entry.is_woken).then(|| WakeToken::new(self.id, slot, entry.generation))
    }

    /// Moves wakes from other threads to the ring.
    #[inline]
    pub(crate) fn collect_wakes(&self) {
        let state = &mut *self.state.borrow_mut();
        let must_wake_all = self.inbox.collect(&mut state.wakes);
        if must_wake_all || !state.wakes.is_empty() {
            state.sort_wakes(must_wake_all);
        }
    }

    /// Returns true if more than `count` slots are on the ring, including wakes from other threads.
    ///
    /// A driver checks this before it sleeps, because a nested driver may have consumed the unpark.
    #[inline]
    pub(crate) fn has_more_than(&self, count: usize) -> bool {
        self.collect_wakes();
        self.ring_len() > count
    }

    /// Grows the queue to `slot_count` slots; never shrinks it.
    pub(crate) fn grow(&self, slot_count: usize) {
        let slots = &mut self.state.borrow_mut().slots;
        debug_assert!(slot_count >= slots.len());
        slots.resize(slot_count, VACANT_SLOT);
    }

    #[inline]
    fn wake(&self, token: WakeToken) {
        self.state
            .borrow_mut()
            .wake(token.slot(), token.generation());
    }

    fn reset(&self, slot_count: usize) {
        let state = &mut *self.state.borrow_mut();
        state.ring.clear();
        state.ring.reserve(slot_count);
        state.slots.clear();
        state.slots.resize(slot_count, VACANT_SLOT);
    }

    fn release(&self) {
        registry::release(self.id, self.state.borrow().next_generation);
    }
}

impl State {
    #[inline]
    fn wake(&mut self, slot: u32, generation: u32) {
        if let Some(entry) = self.slots.get_mut(slot as usize)
            && entry.generation == generation
        {
            entry.is_woken = true;
            if !entry.is_on_ring {
                entry.is_on_ring = true;
                self.ring.push_back(slot);
            }
        }
    }

    #[cold]
    fn sort_wakes(&mut self, must_wake_all: bool) {
        let mut wakes = mem::take(&mut self.wakes);
        for token in wakes.drain(..) {
            self.wake(token.slot(), token.generation());
        }
        self.wakes = wakes;
        if must_wake_all {
            for slot in 0..self.slots.len() {
                let generation = self.slots[slot].generation;
                if generation != VACANT {
                    self.wake(slot as u32, generation);
                }
            }
        }
    }
}

/// Registration of an executor on this thread: its id and its ready queue.
pub(crate) struct Registration {
    queue: Rc<ReadyQueue>,
}

impl Registration {
    /// Registers an executor of the calling thread with `slot_count` vacant slots.
    pub(crate) fn new(slot_count: usize) -> Self {
        let spare = LOCAL
            .try_with(|local| local.borrow_mut().spare.pop())
            .ok()
            .flatten();
        let queue = spare.unwrap_or_else(|| {
            let (id, inbox, next_generation) = registry::register();
            let queue = Rc::new(ReadyQueue {
                id,
                inbox,
                state: RefCell::new(State {
                    slots: Vec::new(),
                    ring: VecDeque::new(),
                    next_generation,
                    wakes: Vec::new(),
                }),
            });
            // If the thread is ending it has no table; its own wakes then use the inbox.
            let _ = LOCAL.try_with(|local| local.borrow_mut().enter(Rc::clone(&queue)));
            queue
        });
        queue.reset(slot_count);
        Self { queue }
    }

    #[inline]
    pub(crate) fn queue(&self) -> &ReadyQueue {
        &self.queue
    }
}

impl ThreadQueues {
    fn enter(&mut self, queue: Rc<ReadyQueue>) {
        let index = usize::from(queue.id.0);
        if self.queues.len() <= index {
            self.queues.resize(index + 1, None);
        }
        self.queues[index] = Some(queue);
    }

    /// Keeps an unused queue for the next registration; returns false if it should be released.
    fn keep_or_remove(&mut self, queue: &Rc<ReadyQueue>, slot_count: usize) -> bool {
        let keeps = self.spare.len() < SPARE_COUNT_MAX && slot_count <= SPARE_SLOT_COUNT_MAX;
        if keeps {
            self.spare.push(Rc::clone(queue));
        } else {
            self.queues[usize::from(queue.id.0)] = None;
        }
        keeps
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let slot_count = self.queue.state.borrow().slots.len();
        // Wakers of tasks that were dropped with the executor must do nothing.
        self.queue.reset(0);
        let is_kept = LOCAL
            .try_with(|local| local.borrow_mut().keep_or_remove(&self.queue, slot_count))
            .unwrap_or(false);
        if !is_kept {
            self.queue.release();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_slot_stands_on_the_ring_once_and_stale_wakes_do_nothing() {
        let registration = Registration::new(2);
        let queue = registration.queue();
        let first = queue.occupy(0);
        wake(first);
        wake(first);
        assert_eq!(queue.ring_len(), 1);
        queue.vacate(0);
        let second = queue.occupy(0);
        assert_ne!(first, second);
        wake(first);
        assert_eq!(queue.ring_len(), 1);
        assert_eq!(
            queue.pop(),
            None,
            "the first task ended, the second was not woken"
        );
        wake(second);
        assert_eq!(queue.pop(), Some(second));
        assert_eq!(queue.pop(), None);
    }

    #[test]
    fn a_registration_that_is_used_again_does_not_hear_wakes_of_the_former_one() {
        let first = Registration::new(1);
        let token = first.queue().occupy(0);
        drop(first);
        wake(token);
        let second = Registration::new(1);
        assert_eq!(second.queue().id, token.executor(), "the spare one is used");
        let other = second.queue().occupy(0);
        wake(token);
        assert_eq!(second.queue().ring_len(), 0);
        wake(other);
        assert_eq!(second.queue().pop(), Some(other));
    }

    #[test]
    fn an_overflow_of_the_inbox_wakes_every_task_but_no_vacant_slot() {
        let registration = Registration::new(3);
        let queue = registration.queue();
        let tokens = [queue.occupy(0), queue.occupy(2)];
        for _ in 0..2000 {
            wake_by_inbox(tokens[1]);
        }
        queue.collect_wakes();
        assert_eq!(
            [queue.pop(), queue.pop()],
            [Some(tokens[1]), Some(tokens[0])]
        );
        assert_eq!(queue.ring_len(), 0);
    }
}
