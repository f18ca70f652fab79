//! Measures the executor's cost per completion: nanoseconds per round trip (await an operation,
//! poll the completion queue, wake, resume), with nothing else in the loop.
//!
//! `cargo run --release -p farleaf-executor --example wake_cost`

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::hint::black_box;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Instant;

use farleaf_executor::TaskSet;

const ROUND_TRIP_COUNT: u64 = 4_000_000;
const REPEAT_COUNT: u32 = 7;

/// Completion queue that completes operations in posting order.
#[derive(Default)]
struct Queue {
    posted: VecDeque<Waker>,
}

impl Queue {
    fn poll(&mut self, count_max: usize) -> usize {
        let count = count_max.min(self.posted.len());
        for waker in self.posted.drain(..count) {
            waker.wake();
        }
        count
    }
}

async fn round_trip(queue: &RefCell<Queue>) {
    let mut is_posted = false;
    poll_fn(|context| {
        if is_posted {
            return Poll::Ready(());
        }
        is_posted = true;
        queue.borrow_mut().posted.push_back(context.waker().clone());
        Poll::Pending
    })
    .await;
}

fn measure_ns(task_count: usize, batch_count: usize) -> f64 {
    let queue = Rc::new(RefCell::new(Queue::default()));
    let per_task = ROUND_TRIP_COUNT / task_count as u64;
    let mut set = TaskSet::with_capacity(task_count);
    for _ in 0..task_count {
        let queue = Rc::clone(&queue);
        let task = async move {
            let mut sum = 0;
            for step in 0..per_task {
                round_trip(&queue).await;
                sum += black_box(step);
            }
            sum
        };
        assert!(
            matches!(set.spawn(task), Ok(None)),
            "the first round trip is pending"
        );
    }
    let start = Instant::now();
    let mut completed_count = 0;
    set.drain(
        || queue.borrow_mut().poll(batch_count),
        |_| completed_count += 1,
    );
    let elapsed = start.elapsed();
    assert_eq!(completed_count, task_count);
    elapsed.as_nanos() as f64 / (per_task * task_count as u64) as f64
}

fn main() {
    println!("tasks  completions per poll  ns per round trip (best of {REPEAT_COUNT})");
    for task_count in [64, 1024] {
        for batch_count in [1, 4, 16, 64] {
            let best = (0..REPEAT_COUNT)
                .map(|_| measure_ns(task_count, batch_count))
                .fold(f64::INFINITY, f64::min);
            println!("{task_count:5}  {batch_count:20}  {best:.1}");
        }
    }
}
