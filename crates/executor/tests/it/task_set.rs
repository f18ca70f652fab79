//! Tests of `TaskSet`: completion, order, capacity, panics, drops.

use std::cell::{Cell, RefCell};
use std::future::{pending, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use farleaf_executor::{IdlePolicy, TaskSet, backoff, block_on, yield_now};

use crate::fake_queue::FakeQueue;

/// Holds a reference to its own frame over await points, which fails under Miri if the frame ever
/// moves.
async fn round_trips(queue: &FakeQueue, task: usize, count: usize) -> (usize, usize) {
    let steps = Cell::new(0);
    let steps_seen = &steps;
    for _ in 0..count {
        queue.post().await;
        steps_seen.set(steps_seen.get() + 1);
        if queue.below(8) == 0 {
            yield_now().await;
        }
        if queue.below(16) == 0 {
            backoff(queue.below(14) as u32).await;
        }
    }
    (task, steps.get())
}

fn run(seed: u64, capacity: usize, task_count: usize) -> Vec<usize> {
    let queue = FakeQueue::new(seed);
    let mut set = TaskSet::with_capacity(capacity);
    let mut order = Vec::new();
    for task in 0..task_count {
        while set.is_full() {
            queue.poll(8);
            set.run_ready(|(task, _)| order.push(task));
        }
        let spawned = set.spawn(round_trips(&queue, task, task % 20));
        if let Some((task, steps)) = spawned.ok().expect("the set had room") {
            assert_eq!(steps, 0);
            order.push(task);
        }
        assert!(set.len() <= capacity);
    }
    set.drain(
        || queue.poll(8),
        |(task, steps)| {
            assert_eq!(steps, task % 20);
            order.push(task);
        },
    );
    assert!(set.is_empty());
    assert_eq!(queue.posted_count(), 0);
    order
}

/// Promise: every task completes exactly once, with all its steps, in any order of completions.
#[test]
fn all_tasks_complete_under_random_completion_orders() {
    let (seeds, task_count) = if cfg!(miri) { (2, 60) } else { (50, 2000) };
    for seed in 0..seeds {
        for capacity in [1, 3, 64] {
            let mut order = run(seed, capacity, task_count);
            order.sort_unstable();
            assert!(
                order.into_iter().eq(0..task_count),
                "seed {seed} capacity {capacity}"
            );
        }
    }
}

/// Promise: the same completions give the same order of everything else.
#[test]
fn equal_seeds_give_equal_runs() {
    let task_count = if cfg!(miri) { 40 } else { 1000 };
    assert_eq!(run(7, 16, task_count), run(7, 16, task_count));
    assert_ne!(run(7, 16, task_count), run(8, 16, task_count));
}

#[test]
fn woken_tasks_run_in_the_order_of_their_wakes_and_once_per_turn() {
    let log = RefCell::new(Vec::new());
    let mut set = TaskSet::with_capacity(3);
    for name in ["a", "b", "c"] {
        let log = &log;
        let task = async move {
            for _ in 0..2 {
                log.borrow_mut().push(name);
                yield_now().await;
            }
        };
        assert_eq!(set.spawn(task).ok(), Some(None));
    }
    assert_eq!(set.run_ready(|()| {}), 0);
    assert_eq!(*log.borrow(), ["a", "b", "c", "a", "b", "c"]);
    assert_eq!(set.run_ready(|()| {}), 3);
    assert!(set.is_empty());
}

#[test]
fn a_full_set_gives_the_future_back_unpolled() {
    let mut set: TaskSet<Pin<Box<dyn Future<Output = u32>>>> = TaskSet::with_capacity(1);
    assert_eq!(set.spawn(Box::pin(ready(1))).ok(), Some(Some(1)));
    assert_eq!(set.spawn(Box::pin(pending())).ok(), Some(None));
    assert!(set.is_full());
    let Err(refused) = set.spawn(Box::pin(async { 2 })) else {
        panic!("the set is full")
    };
    assert_eq!(block_on(refused, || 0), 2);
    let mut none: TaskSet<std::future::Ready<()>> = TaskSet::with_capacity(0);
    assert!(none.spawn(ready(())).is_err());
    none.drain(|| 0, |()| {});
}

/// Promise: a panic drops only its task: at the first poll, at a later one, in `done`, or in a
/// destructor.
#[test]
fn a_panic_drops_its_task_and_leaves_the_set_usable() {
    struct PanicsWhenDropped(bool);
    impl Drop for PanicsWhenDropped {
        fn drop(&mut self) {
            assert!(!self.0, "destructor");
        }
    }
    async fn task(turns_before_panic: usize, in_destructor: bool) -> usize {
        let guard = PanicsWhenDropped(in_destructor);
        for turn in 0..3 {
            assert_ne!(turn, turns_before_panic, "body");
            yield_now().await;
        }
        drop(guard);
        turns_before_panic
    }
    let mut set = TaskSet::with_capacity(3);
    assert!(catch_unwind(AssertUnwindSafe(|| set.spawn(task(0, false)).is_ok())).is_err());
    assert!(set.is_empty());
    assert!(set.spawn(task(1, false)).is_ok());
    assert!(set.spawn(task(9, true)).is_ok());
    assert!(set.spawn(task(8, false)).is_ok());
    let mut panic_count = 0;
    let mut outputs = Vec::new();
    while !set.is_empty() {
        let turn = AssertUnwindSafe(|| {
            set.run_ready(|output| {
                outputs.push(output);
                panic!("done");
            })
        });
        panic_count += usize::from(catch_unwind(turn).is_err());
    }
    assert_eq!((panic_count, outputs), (3, vec![8]));
    for _ in 0..3 {
        assert_eq!(set.spawn(task(7, false)).ok(), Some(None));
    }
    let mut outputs = Vec::new();
    set.drain(|| 0, |output| outputs.push(output));
    assert_eq!(outputs, [7, 7, 7]);
}

/// Promise: dropping a set drops its pending futures, which may wake each other meanwhile.
#[test]
fn dropping_a_set_drops_its_pending_futures() {
    struct Pending(Rc<Cell<u32>>, Rc<RefCell<Vec<std::task::Waker>>>);
    impl Future for Pending {
        type Output = ();
        fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
            self.1.borrow_mut().push(context.waker().clone());
            Poll::Pending
        }
    }
    impl Drop for Pending {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
            for waker in self.1.borrow().iter() {
                waker.wake_by_ref();
            }
        }
    }
    let drop_count = Rc::new(Cell::new(0));
    let wakers = Rc::default();
    let mut set = TaskSet::with_capacity(5);
    for _ in 0..4 {
        assert!(
            set.spawn(Pending(Rc::clone(&drop_count), Rc::clone(&wakers)))
                .is_ok()
        );
    }
    drop(set);
    assert_eq!(drop_count.get(), 4);
}

/// Promise: a task that waits for a lock does not delay working ones; the thread never sleeps.
#[test]
fn a_task_that_backs_off_does_not_hold_up_the_others() {
    let queue = FakeQueue::new(3);
    let is_released = Cell::new(false);
    let attempt_count = Cell::new(0);
    let mut set: TaskSet<Pin<Box<dyn Future<Output = ()> + '_>>> = TaskSet::with_capacity(2);
    let waiter = async {
        for attempt in 0.. {
            if is_released.get() {
                return;
            }
            attempt_count.set(attempt_count.get() + 1);
            backoff(attempt).await;
        }
    };
    let holder = async {
        for _ in 0..1000 {
            queue.post().await;
        }
        is_released.set(true);
    };
    assert!(set.spawn(Box::pin(waiter)).is_ok());
    assert!(set.spawn(Box::pin(holder)).is_ok());
    set.drain(|| queue.poll(1), |()| {});
    assert!(set.is_empty());
    let attempt_count = attempt_count.get();
    assert!(
        (10..200).contains(&attempt_count),
        "{attempt_count} attempts in 1000 round trips"
    );
}

/// Promise: if all tasks of a set wait for another thread, the set sleeps and still sees the
/// release.
#[test]
fn a_set_of_waiters_sees_a_release_from_outside() {
    let mut turns = 0;
    let is_released = Cell::new(false);
    let mut set = TaskSet::with_capacity(8).with_idle_policy(IdlePolicy::spin_only());
    for _ in 0..8 {
        let waiter = async {
            for attempt in 0.. {
                if is_released.get() {
                    return;
                }
                backoff(attempt).await;
            }
        };
        assert!(set.spawn(waiter).is_ok());
    }
    let release = || {
        turns += 1;
        is_released.set(turns > 60);
        0
    };
    set.drain(release, |()| {});
    assert!(set.is_empty());
}
