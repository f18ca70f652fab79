//! Completion queue whose operations complete in a random order that depends on a seed.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

pub(crate) struct FakeQueue {
    posted: RefCell<Vec<Rc<RefCell<Operation>>>>,
    random: RefCell<Xoshiro256PlusPlus>,
}

#[derive(Default)]
struct Operation {
    is_complete: bool,
    waker: Option<Waker>,
}

impl FakeQueue {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            posted: RefCell::default(),
            random: RefCell::new(Xoshiro256PlusPlus::seed_from_u64(seed)),
        }
    }

    pub(crate) fn below(&self, bound: usize) -> usize {
        (self.random.borrow_mut().next_u64() % bound as u64) as usize
    }

    pub(crate) fn posted_count(&self) -> usize {
        self.posted.borrow().len()
    }

    /// Posts an operation at once; the future waits for its completion.
    pub(crate) fn post(&self) -> impl Future<Output = ()> + use<> {
        let operation = Rc::new(RefCell::new(Operation::default()));
        self.posted.borrow_mut().push(Rc::clone(&operation));
        poll_fn(move |context| {
            let operation = &mut *operation.borrow_mut();
            if operation.is_complete {
                Poll::Ready(())
            } else {
                operation.waker = Some(context.waker().clone());
                Poll::Pending
            }
        })
    }

    /// Completes between 0 and `count_max` random operations.
    pub(crate) fn poll(&self, count_max: usize) -> usize {
        let count = self.below(count_max + 1).min(self.posted_count());
        for _ in 0..count {
            let index = self.below(self.posted_count());
            let operation = self.posted.borrow_mut().swap_remove(index);
            let waker = {
                let operation = &mut *operation.borrow_mut();
                operation.is_complete = true;
                operation.waker.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        }
        count
    }
}
