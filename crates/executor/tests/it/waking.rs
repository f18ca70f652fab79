//! Tests of wakers that leave their thread, their task or their set.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use farleaf_executor::{
    Executor, IdlePolicy, TaskSet, backoff, block_on, block_on_with_policy, yield_now,
};

/// Future that completes when any thread calls `fire`.
#[derive(Clone, Default)]
struct Event(Arc<(AtomicBool, Mutex<Option<Waker>>)>);

impl Event {
    fn fire(&self) {
        self.0.0.store(true, Ordering::Release);
        let waker = self.0.1.lock().expect("no panic").take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Future for Event {
    type Output = ();
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        *self.0.1.lock().expect("no panic") = Some(context.waker().clone());
        if self.0.0.load(Ordering::Acquire) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

/// Returns a policy of such long sleeps that a lost wake makes the test hang.
fn sleeper() -> IdlePolicy {
    let long = Duration::from_secs(10_001);
    IdlePolicy {
        spin_count: 0,
        yield_count: 0,
        sleep_min: long,
        sleep_max: long,
    }
}

#[test]
fn wakes_from_another_thread_end_the_sleep_of_a_set() {
    let round_count = if cfg!(miri) { 20 } else { 5000 };
    let (sender, receiver) = mpsc::channel::<Event>();
    let firing = thread::spawn(move || receiver.into_iter().for_each(|event| event.fire()));
    let mut set = TaskSet::with_capacity(4).with_idle_policy(sleeper());
    for task in 0..4 {
        let sender = sender.clone();
        let pending = set.spawn(async move {
            for _ in 0..round_count {
                let event = Event::default();
                sender
                    .send(event.clone())
                    .expect("the other thread listens");
                event.await;
            }
            task
        });
        assert!(pending.is_ok());
    }
    drop(sender);
    let mut done = Vec::new();
    set.drain(|| 0, |task| done.push(task));
    done.sort_unstable();
    assert_eq!(done, [0, 1, 2, 3]);
    firing.join().expect("no panic");
}

#[test]
fn wakes_from_another_thread_end_the_sleep_of_block_on() {
    let round_count = if cfg!(miri) { 20 } else { 2000 };
    let (sender, receiver) = mpsc::channel::<Event>();
    let firing = thread::spawn(move || receiver.into_iter().for_each(|event| event.fire()));
    for _ in 0..round_count {
        let event = Event::default();
        sender
            .send(event.clone())
            .expect("the other thread listens");
        block_on_with_policy(event, || 0, sleeper());
    }
    drop(sender);
    firing.join().expect("no panic");
}

/// Promise: a driver checks for wakes again before it sleeps, whatever `poll_completions` returned.
#[test]
fn a_wake_that_is_not_counted_as_completion_is_not_slept_over() {
    let event = Event::default();
    let fire = || {
        event.fire();
        0
    };
    block_on_with_policy(event.clone(), fire, sleeper());
    let event = Event::default();
    let fire = || {
        event.fire();
        0
    };
    Executor::new()
        .with_idle_policy(sleeper())
        .run_until(event.clone(), fire);
}

/// Promise: if a nested driver's sleep consumes the unpark for an outer task, that task still runs.
#[test]
fn a_nested_driver_does_not_swallow_the_wakes_of_the_outer_one() {
    let outer_event = Event::default();
    let mut set: TaskSet<Pin<Box<dyn Future<Output = ()>>>> =
        TaskSet::with_capacity(2).with_idle_policy(sleeper());
    assert!(set.spawn(Box::pin(outer_event.clone())).is_ok());
    let nested = async move {
        yield_now().await;
        let inner_event = Event::default();
        let (outer, inner) = (outer_event, inner_event.clone());
        let firing = thread::spawn(move || {
            outer.fire();
            thread::sleep(Duration::from_millis(2));
            inner.fire();
        });
        block_on_with_policy(inner_event, || 0, sleeper());
        firing.join().expect("no panic");
    };
    assert!(set.spawn(Box::pin(nested)).is_ok());
    set.drain(|| 0, |()| {});
    assert!(set.is_empty());
}

/// Promise: long sleeps of a policy do not apply to a task that backs off, which no wake ends.
#[test]
fn a_task_that_backs_off_is_not_slept_over() {
    let event = Event::default();
    let mut turn_count = 0;
    let mut set: TaskSet<Pin<Box<dyn Future<Output = ()>>>> =
        TaskSet::with_capacity(2).with_idle_policy(sleeper());
    assert!(set.spawn(Box::pin(event.clone())).is_ok());
    let backing_off = async move {
        for attempt in 8..20 {
            backoff(attempt).await;
        }
        event.fire();
    };
    let spawned = set.spawn(Box::pin(backing_off));
    assert!(spawned.is_ok());
    let count = || {
        turn_count += 1;
        0
    };
    set.drain(count, |()| {});
    assert!(turn_count > 12);
}

/// Hands out its waker at each poll, and completes at the second.
async fn give_waker(to: &RefCell<Vec<Waker>>) {
    let mut poll_count = 0;
    poll_fn(|context| {
        to.borrow_mut().push(context.waker().clone());
        poll_count += 1;
        if poll_count == 2 {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

#[test]
fn a_wake_after_completion_wakes_nobody() {
    let wakers = RefCell::default();
    let mut set = TaskSet::with_capacity(1);
    assert_eq!(set.spawn(give_waker(&wakers)).ok(), Some(None));
    wakers.borrow()[0].wake_by_ref();
    assert_eq!(set.run_ready(|()| {}), 1);
    // The next task takes the same slot; the old waker must not reach it.
    assert_eq!(set.spawn(give_waker(&wakers)).ok(), Some(None));
    let late = wakers.borrow()[0].clone();
    late.wake_by_ref();
    thread::scope(|scope| scope.spawn(|| late.wake_by_ref()).join()).expect("no panic");
    assert_eq!(set.run_ready(|()| {}), 0);
    assert_eq!(
        wakers.borrow().len(),
        3,
        "the second task was polled once, by spawn"
    );
    let current = wakers.borrow()[2].clone();
    current.wake();
    assert_eq!(set.run_ready(|()| {}), 1);
}

#[test]
fn many_wakes_of_one_task_poll_it_once() {
    let wakers = RefCell::default();
    let mut set = TaskSet::with_capacity(1);
    assert_eq!(set.spawn(give_waker(&wakers)).ok(), Some(None));
    let waker = wakers.borrow()[0].clone();
    let clone = waker.clone();
    let remote = thread::spawn(move || (0..5000).for_each(|_| clone.wake_by_ref()));
    (0..100).for_each(|_| waker.wake_by_ref());
    remote.join().expect("no panic");
    assert_eq!(set.run_ready(|()| {}), 1);
    assert_eq!(wakers.borrow().len(), 2);
}

/// Promise: a waker may outlive its set and thread, even if another set reuses the executor's id.
#[test]
fn a_waker_may_outlive_its_set_and_its_thread() {
    let waker = thread::spawn(|| {
        let wakers = RefCell::default();
        let mut set = TaskSet::with_capacity(1);
        assert_eq!(set.spawn(give_waker(&wakers)).ok(), Some(None));
        drop(set);
        wakers.take().remove(0)
    })
    .join()
    .expect("no panic");
    waker.wake_by_ref();
    let wakers = RefCell::default();
    let mut sets = Vec::new();
    for _ in 0..10 {
        let mut set = TaskSet::with_capacity(1);
        assert_eq!(set.spawn(give_waker(&wakers)).ok(), Some(None));
        sets.push(set);
    }
    waker.wake_by_ref();
    let remote = waker.clone();
    thread::spawn(move || remote.wake())
        .join()
        .expect("no panic");
    for set in &mut sets {
        assert_eq!(set.run_ready(|()| {}), 0);
    }
    assert_eq!(wakers.borrow().len(), 10, "no task was polled again");
}

/// Promise: ending threads release their ids, so many short threads do not exhaust them.
#[test]
fn ids_of_ended_threads_are_used_again() {
    let thread_count = if cfg!(miri) { 4 } else { 400 };
    for _ in 0..thread_count {
        let sets = move || {
            // With 8 unused ids kept per thread, 400 threads of 200 sets each would use 65,000 ids.
            let sets: Vec<_> = (0..if cfg!(miri) { 20 } else { 200 })
                .map(|_| TaskSet::<std::future::Ready<()>>::with_capacity(1))
                .collect();
            sets.len()
        };
        assert!(thread::spawn(sets).join().expect("ids are left") > 0);
    }
}

#[test]
fn a_wake_during_its_own_poll_leads_to_another_poll() {
    let mut polls = 0;
    let future = poll_fn(|context| {
        polls += 1;
        context.waker().wake_by_ref();
        let clone = context.waker().clone();
        clone.wake_by_ref();
        clone.wake();
        if polls == 10 {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    });
    let mut set = TaskSet::with_capacity(1);
    assert_eq!(set.spawn(future).ok(), Some(None));
    let mut turn_count = 1;
    while set.run_ready(|()| {}) == 0 {
        turn_count += 1;
    }
    assert_eq!(turn_count, 9);
    assert_eq!(
        set.run_ready(|()| {}),
        0,
        "the wake of its last poll reaches nobody"
    );
}

#[test]
fn block_on_polls_once_before_it_asks_for_completions_and_may_nest() {
    let asked = AtomicUsize::new(0);
    let ask = || {
        asked.fetch_add(1, Ordering::Relaxed);
        0
    };
    assert_eq!(block_on(async { 1 }, ask), 1);
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    let nested = block_on(
        async {
            yield_now().await;
            let inner = block_on(
                async {
                    yield_now().await;
                    2
                },
                ask,
            );
            yield_now().await;
            inner + 1
        },
        ask,
    );
    assert_eq!(nested, 3);
    assert!(asked.load(Ordering::Relaxed) >= 3);
}

/// Promise: `block_on` polls in every turn, so it serves futures that keep no waker.
#[test]
fn block_on_polls_again_without_a_wake() {
    let mut turn_count = 0;
    let output = block_on(
        poll_fn(|_| {
            turn_count += 1;
            if turn_count == 5 {
                Poll::Ready("done")
            } else {
                Poll::Pending
            }
        }),
        || 0,
    );
    assert_eq!(output, "done");
}
