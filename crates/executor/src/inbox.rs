//! The inbox of an executor: wakes from other threads.
//!
//! Any thread may [`push`](Inbox::push) at any time. If the inbox has no owner, the wake has no
//! effect. The owner calls [`collect`](Inbox::collect). An inbox is never freed, so even a late
//! waker finds it.
//!
//! Protocol (everything except reading the hint is done under one mutex):
//!
//! 1. `push` appends the token, sets the hint and unparks the owner.
//! 2. `collect` returns at once if the hint is not set. Otherwise it clears the hint and takes
//!    everything.
//! 3. The owner sleeps by parking, and collects between any two parks. If a push comes before that
//!    collect, the collect sees the hint, because the hint was set before the unpark. Otherwise the
//!    unpark of the push ends the park.
//!
//! The mutex orders the waking thread's earlier writes before the task's next poll. It is held for
//! a few instructions, and never while foreign code runs.
//!
//! The number of tokens is bounded: beyond [`WAKE_COUNT_MAX`] the inbox records only that every
//! task must be woken. Needless polls are allowed; lost wakes and unbounded memory are not.

#[cfg(all(loom, test))]
use loom::{
    sync::atomic::{AtomicBool, Ordering},
    sync::{Mutex, MutexGuard},
    thread::{self, Thread},
};
use std::sync::PoisonError;
#[cfg(not(all(loom, test)))]
use std::{
    sync::atomic::{AtomicBool, Ordering},
    sync::{Mutex, MutexGuard},
    thread::{self, Thread},
};

use crate::waker::WakeToken;

/// Number of tokens that an inbox holds before it falls back to waking every task.
const WAKE_COUNT_MAX: usize = 1024;

/// Inbox of one executor id; see the module for the protocol.
#[derive(Debug)]
pub(crate) struct Inbox {
    has_wakes: AtomicBool,
    contents: Mutex<InboxContents>,
}

#[derive(Debug)]
struct InboxContents {
    /// Thread that collects; `None` while no executor has this id.
    owner: Option<Thread>,
    wakes: Vec<WakeToken>,
    wake_all: bool,
    /// First generation of the next owner, so that generations do not repeat soon.
    next_generation: u32,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self {
            has_wakes: AtomicBool::new(false),
            contents: Mutex::new(InboxContents {
                owner: None,
                wakes: Vec::new(),
                wake_all: false,
                next_generation: 0,
            }),
        }
    }

    /// Makes the calling thread the owner; returns the first generation that it may use.
    pub(crate) fn attach(&self) -> u32 {
        let mut contents = self.lock();
        assert!(contents.owner.is_none(), "an inbox has one owner");
        contents.owner = Some(thread::current());
        contents.next_generation
    }

    /// Gives up ownership of the inbox and discards its tokens.
    pub(crate) fn detach(&self, next_generation: u32) {
        let mut contents = self.lock();
        contents.owner = None;
        contents.wakes = Vec::new();
        contents.wake_all = false;
        contents.next_generation = next_generation;
        self.has_wakes.store(false, Ordering::Release);
    }

    /// Adds a wake and unparks the owner.
    pub(crate) fn push(&self, token: WakeToken) {
        let mut contents = self.lock();
        if contents.owner.is_none() {
            return;
        }
        if contents.wakes.len() < WAKE_COUNT_MAX {
            contents.wakes.push(token);
        } else {
            contents.wake_all = true;
        }
        self.has_wakes.store(true, Ordering::Release);
        if let Some(owner) = &contents.owner {
            owner.unpark();
        }
    }

    /// Appends the collected wakes to `wakes`; returns true if every task must be woken besides.
    /// Costs one load if there are none.
    #[inline]
    pub(crate) fn collect(&self, wakes: &mut Vec<WakeToken>) -> bool {
        // Acquire pairs with the Release in `push`. The mutex alone would suffice, but Acquire
        // keeps step 3 of the protocol simple.
        if !self.has_wakes.load(Ordering::Acquire) {
            return false;
        }
        let mut contents = self.lock();
        self.has_wakes.store(false, Ordering::Release);
        wakes.append(&mut contents.wakes);
        std::mem::take(&mut contents.wake_all)
    }

    fn lock(&self) -> MutexGuard<'_, InboxContents> {
        // No code under the mutex can panic halfway through a change, so poisoning is harmless.
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::waker::ExecutorId;

    fn token(generation: u32) -> WakeToken {
        WakeToken::new(ExecutorId(1), 2, generation)
    }

    #[test]
    fn mail_arrives_in_order_and_once() {
        let inbox = Inbox::new();
        inbox.attach();
        inbox.push(token(1));
        inbox.push(token(2));
        let mut wakes = Vec::new();
        assert!(!inbox.collect(&mut wakes));
        assert_eq!(wakes, [token(1), token(2)]);
        assert!(!inbox.collect(&mut wakes));
        assert_eq!(wakes.len(), 2);
    }

    #[test]
    fn mail_is_bounded_and_its_overflow_wakes_everybody() {
        let inbox = Inbox::new();
        inbox.attach();
        for generation in 0..WAKE_COUNT_MAX as u32 + 5 {
            inbox.push(token(generation));
        }
        let mut wakes = Vec::new();
        assert!(inbox.collect(&mut wakes));
        assert_eq!(wakes.len(), WAKE_COUNT_MAX);
        assert!(!inbox.collect(&mut wakes));
    }

    #[test]
    fn mail_without_an_owner_goes_nowhere() {
        let inbox = Inbox::new();
        inbox.push(token(1));
        assert_eq!(inbox.attach(), 0);
        inbox.push(token(2));
        inbox.detach(17);
        inbox.push(token(3));
        assert_eq!(inbox.attach(), 17);
        let mut wakes = Vec::new();
        assert!(!inbox.collect(&mut wakes));
        assert_eq!(wakes, []);
    }
}

/// Loom tests try every interleaving; they fail by deadlock (a lost wake) or by assertion.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::waker::ExecutorId;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32;

    fn token(slot: u32) -> WakeToken {
        WakeToken::new(ExecutorId(1), slot, 3)
    }

    /// Promise: an owner that parks without a time-out gets every wake, so its loop ends.
    #[test]
    fn an_owner_that_parks_gets_every_wake_and_what_was_written_before_it() {
        loom::model(|| {
            let inbox = Arc::new(Inbox::new());
            inbox.attach();
            let data = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
            let wakers: Vec<_> = (0..2)
                .map(|slot| {
                    let (inbox, data) = (Arc::clone(&inbox), Arc::clone(&data));
                    thread::spawn(move || {
                        data[slot].store(1, Ordering::Relaxed);
                        inbox.push(token(slot as u32));
                    })
                })
                .collect();
            let mut wakes = Vec::new();
            while wakes.len() < 2 {
                if !inbox.collect(&mut wakes) && wakes.len() < 2 {
                    thread::park();
                }
            }
            for token in wakes {
                assert_eq!(data[token.slot() as usize].load(Ordering::Relaxed), 1);
            }
            for waker in wakers {
                waker.join().expect("no panic");
            }
        });
    }

    /// Promise: a late wake is harmless while the inbox changes its owner.
    #[test]
    fn a_late_wake_meets_the_old_owner_nobody_or_the_new_one() {
        loom::model(|| {
            let inbox = Arc::new(Inbox::new());
            // Loom cannot unpark a thread that joins another one, so the owner is a third thread.
            let owner = {
                let inbox = Arc::clone(&inbox);
                thread::spawn(move || {
                    inbox.attach();
                    inbox.detach(9);
                    assert_eq!(inbox.attach(), 9);
                    let mut wakes = Vec::new();
                    inbox.collect(&mut wakes);
                    wakes.len()
                })
            };
            inbox.push(token(1));
            assert!(owner.join().expect("no panic") <= 1);
            let mut rest = Vec::new();
            inbox.collect(&mut rest);
            assert!(rest.len() <= 1);
        });
    }
}
