//! The inbox of an executor: wakes that come from other threads.
//!
//! Any thread may [`push`](Inbox::push) at any time, also when nobody owns the inbox any more
//! (then the wake goes nowhere). The owner [`collect`](Inbox::collect)s. An inbox is never freed,
//! so a waker finds it however late it comes.
//!
//! Protocol, all of it under one mutex but for the hint:
//!
//! 1. `push`: append the token, set the hint, unpark the owner; all under the mutex.
//! 2. `collect`: if the hint is not set, there is nothing. Otherwise clear it and take everything,
//!    under the mutex.
//! 3. The owner sleeps by parking, and collects between any park and the next. A push either comes
//!    before that collect, which then sees the hint because it was set before the unpark, or its
//!    unpark ends the park.
//!
//! The mutex is what orders the waking thread's earlier writes before the task's next poll. It is
//! held for a few instructions, and never while foreign code runs.
//!
//! Mail is bounded: beyond [`MAIL_COUNT_MAX`] tokens the inbox remembers only that everybody must
//! be woken. Needless polls are allowed, lost wakes and unbounded memory are not.

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

/// How many single wakes an inbox holds before it falls back to waking every task.
const MAIL_COUNT_MAX: usize = 1024;

/// See the module.
#[derive(Debug)]
pub(crate) struct Inbox {
    has_mail: AtomicBool,
    contents: Mutex<Contents>,
}

#[derive(Debug)]
struct Contents {
    /// Who collects; `None` while no executor has this id.
    owner: Option<Thread>,
    mail: Vec<WakeToken>,
    wake_all: bool,
    /// Where the next owner starts counting generations, so that they do not repeat soon.
    next_generation: u32,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self {
            has_mail: AtomicBool::new(false),
            contents: Mutex::new(Contents {
                owner: None,
                mail: Vec::new(),
                wake_all: false,
                next_generation: 0,
            }),
        }
    }

    /// Takes the inbox over for the calling thread; returns the first generation it may use.
    pub(crate) fn attach(&self) -> u32 {
        let mut contents = self.lock();
        assert!(contents.owner.is_none(), "an inbox has one owner");
        contents.owner = Some(thread::current());
        contents.next_generation
    }

    /// Gives the inbox up and throws its mail away.
    pub(crate) fn detach(&self, next_generation: u32) {
        let mut contents = self.lock();
        contents.owner = None;
        contents.mail = Vec::new();
        contents.wake_all = false;
        contents.next_generation = next_generation;
        self.has_mail.store(false, Ordering::Release);
    }

    /// Leaves a wake and unparks the owner.
    pub(crate) fn push(&self, token: WakeToken) {
        let mut contents = self.lock();
        if contents.owner.is_none() {
            return;
        }
        if contents.mail.len() < MAIL_COUNT_MAX {
            contents.mail.push(token);
        } else {
            contents.wake_all = true;
        }
        self.has_mail.store(true, Ordering::Release);
        if let Some(owner) = &contents.owner {
            owner.unpark();
        }
    }

    /// Appends the collected wakes to `mail`; returns whether every task must be woken besides.
    /// Costs one load when there are none.
    #[inline]
    pub(crate) fn collect(&self, mail: &mut Vec<WakeToken>) -> bool {
        // Acquire pairs with the Release in `push`; the mutex would do, this keeps rule 3 simple.
        if !self.has_mail.load(Ordering::Acquire) {
            return false;
        }
        let mut contents = self.lock();
        self.has_mail.store(false, Ordering::Release);
        mail.append(&mut contents.mail);
        std::mem::take(&mut contents.wake_all)
    }

    fn lock(&self) -> MutexGuard<'_, Contents> {
        // Nothing that runs under the mutex leaves the contents half changed.
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
        let mut mail = Vec::new();
        assert!(!inbox.collect(&mut mail));
        assert_eq!(mail, [token(1), token(2)]);
        assert!(!inbox.collect(&mut mail));
        assert_eq!(mail.len(), 2);
    }

    #[test]
    fn mail_is_bounded_and_its_overflow_wakes_everybody() {
        let inbox = Inbox::new();
        inbox.attach();
        for generation in 0..MAIL_COUNT_MAX as u32 + 5 {
            inbox.push(token(generation));
        }
        let mut mail = Vec::new();
        assert!(inbox.collect(&mut mail));
        assert_eq!(mail.len(), MAIL_COUNT_MAX);
        assert!(!inbox.collect(&mut mail));
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
        let mut mail = Vec::new();
        assert!(!inbox.collect(&mut mail));
        assert_eq!(mail, []);
    }
}

/// Loom tries every interleaving of these; they fail by deadlock (a lost wake) or by assertion.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::waker::ExecutorId;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32;

    fn token(slot: u32) -> WakeToken {
        WakeToken::new(ExecutorId(1), slot, 3)
    }

    /// The owner's loop parks without a time-out: it ends only if no wake is lost.
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
            let mut mail = Vec::new();
            while mail.len() < 2 {
                if !inbox.collect(&mut mail) && mail.len() < 2 {
                    thread::park();
                }
            }
            for token in mail {
                assert_eq!(data[token.slot() as usize].load(Ordering::Relaxed), 1);
            }
            for waker in wakers {
                waker.join().expect("no panic");
            }
        });
    }

    /// A late wake meets an inbox that is given up and taken over at the same time.
    #[test]
    fn a_late_wake_meets_the_old_owner_nobody_or_the_new_one() {
        loom::model(|| {
            let inbox = Arc::new(Inbox::new());
            // Loom cannot unpark a thread that joins another, so the owner is a third one.
            let owner = {
                let inbox = Arc::clone(&inbox);
                thread::spawn(move || {
                    inbox.attach();
                    inbox.detach(9);
                    assert_eq!(inbox.attach(), 9);
                    let mut mail = Vec::new();
                    inbox.collect(&mut mail);
                    mail.len()
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
