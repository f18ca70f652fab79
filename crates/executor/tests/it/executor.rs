//! Tests of `Executor`: handles, detached tasks, tasks that spawn tasks, panics, drops.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use farleaf_executor::{Executor, TaskLost, TaskSet, backoff, yield_now};

use crate::fake_queue::FakeQueue;

#[test]
fn tasks_of_different_types_finish_and_give_their_outputs() {
    let queue = Rc::new(FakeQueue::new(1));
    let executor = Executor::new();
    let task_count = if cfg!(miri) { 150 } else { 1000 };
    // More than the first capacity, so the set grows while tasks are in flight.
    let handles: Vec<_> = (0..task_count)
        .map(|task| {
            let queue = Rc::clone(&queue);
            executor.spawn(async move {
                for _ in 0..task % 7 {
                    queue.post().await;
                }
                task
            })
        })
        .collect();
    let text = executor.spawn(async { String::from("text") });
    let outputs = executor.run_until(
        async {
            let mut outputs = Vec::new();
            for handle in handles {
                outputs.push(handle.await.expect("no task is lost"));
            }
            outputs
        },
        || queue.poll(8),
    );
    assert!(outputs.into_iter().eq(0..task_count));
    assert!(text.is_finished());
    assert_eq!(executor.run_until(text, || 0), Ok(String::from("text")));
}

/// Promise: dropping a handle detaches its task; the task's operation runs to completion.
#[test]
fn dropping_a_handle_detaches_the_task() {
    let queue = Rc::new(FakeQueue::new(2));
    let steps = Rc::new(Cell::new(0));
    let executor = Executor::new();
    let handle = {
        let (queue, steps) = (Rc::clone(&queue), Rc::clone(&steps));
        executor.spawn(async move {
            for _ in 0..10 {
                queue.post().await;
                steps.set(steps.get() + 1);
            }
        })
    };
    executor.run_until(yield_now(), || 0);
    assert!(steps.get() < 10);
    drop(handle);
    executor.drain(|| queue.poll(1));
    assert_eq!(steps.get(), 10);
    assert_eq!(Rc::strong_count(&steps), 1, "the finished task is dropped");
}

#[test]
fn tasks_spawn_tasks_and_wait_for_them() {
    let executor = Executor::new();
    let spawner = executor.spawner();
    let outer = executor.spawn(async move {
        let mut sum = 0;
        for number in 0..5 {
            let inner = spawner.spawn(async move {
                yield_now().await;
                number
            });
            sum += inner.await.expect("the inner task ends");
        }
        sum
    });
    assert_eq!(executor.run_until(outer, || 0), Ok(10));
}

#[test]
fn a_panic_loses_its_task_only() {
    let executor = Executor::new();
    let bad = executor.spawn(async {
        yield_now().await;
        assert!(std::hint::black_box(false), "task");
    });
    let good = executor.spawn(async {
        for _ in 0..5 {
            yield_now().await;
        }
        5
    });
    let run = AssertUnwindSafe(|| executor.drain(|| 0));
    assert!(catch_unwind(run).is_err());
    assert_eq!(executor.run_until(bad, || 0), Err(TaskLost));
    assert_eq!(executor.run_until(good, || 0), Ok(5));
}

#[test]
fn dropping_the_executor_drops_its_tasks_and_tells_their_handles() {
    struct SpawnsWhenDropped(farleaf_executor::Spawner, Rc<Cell<u32>>);
    impl Drop for SpawnsWhenDropped {
        fn drop(&mut self) {
            drop(self.0.spawn(async {}));
            self.1.set(self.1.get() + 1);
        }
    }
    let drop_count = Rc::new(Cell::new(0));
    let executor = Executor::new();
    let spawn = || {
        let guard = SpawnsWhenDropped(executor.spawner(), Rc::clone(&drop_count));
        executor.spawn(async move {
            std::future::pending::<()>().await;
            drop(guard);
        })
    };
    let started = spawn();
    executor.run_until(yield_now(), || 0);
    let waiting = spawn();
    let spawner = executor.spawner();
    drop(executor);
    assert_eq!(drop_count.get(), 2);
    let late = spawner.spawn(async {});
    assert!(started.is_finished() && waiting.is_finished() && late.is_finished());
    let other = Executor::new();
    assert_eq!(other.run_until(started, || 0), Err(TaskLost));
}

/// Promise: drivers nest. A task may run its own set, whose waiting does not count for the outer
/// one.
#[test]
fn a_task_may_drive_a_set_of_its_own() {
    let log = Rc::new(RefCell::new(Vec::new()));
    let executor = Executor::new();
    let handle = {
        let log = Rc::clone(&log);
        executor.spawn(async move {
            yield_now().await;
            let mut set = TaskSet::with_capacity(2);
            for task in 0..2 {
                let spawned = set.spawn(async move {
                    backoff(13).await;
                    task
                });
                assert_eq!(spawned.ok(), Some(None));
            }
            set.drain(|| 0, |task| log.borrow_mut().push(task));
            yield_now().await;
        })
    };
    assert_eq!(executor.run_until(handle, || 0), Ok(()));
    assert_eq!(*log.borrow(), [0, 1]);
}
