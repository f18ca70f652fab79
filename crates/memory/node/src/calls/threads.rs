//! The spinning thread, and workers with private queues (J3).

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use farleaf_executor::block_on;
use farleaf_fabric::mapped::{MappedEndpoint, MappedRegion};
use farleaf_fabric::{Batch, Bell, Doors};
use farleaf_region::PoolLayout;

use super::desk::Desk;
use super::dispatcher::{Dispatcher, Give, Pile, Task};
use super::server::TableServer;
use crate::hiring::NodeEmployer;
use crate::xstore::{Trainer, Worker};

/// Requests that wait for one worker, at the most.
const QUEUE_LENGTH_MAX: usize = 16;
/// Requests that the thread which reads them answers itself before it reads on.
const OWN_COUNT_MAX: usize = 32;
/// How long a worker without work looks for some before it sleeps.
const WORKER_SPIN_TIME: Duration = Duration::from_micros(50);
/// The first sleep of the spinning thread; each turn without requests doubles it.
const SLEEP_MIN: Duration = Duration::from_micros(20);
/// And the last, while sessions have rings.
const SLEEP_MAX: Duration = Duration::from_millis(1);
/// How often threads without work look for what has changed (Z1).
const FOLLOW_INTERVAL: Duration = Duration::from_millis(20);
/// And a worker that has much of it, after so many requests.
const FOLLOW_COUNT: u64 = 64;
/// While none has.
const SLEEP_IDLE: Duration = Duration::from_millis(5);

/// How the node answers calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallOptions {
    /// Threads that answer; 0: the one that reads requests does.
    pub worker_count: u32,
    /// Threads that train the models of tables whose leaves the node changes, at least one.
    pub train_thread_count: u32,
    /// How long that one looks for requests after the last before it sleeps.
    pub spin_time: Duration,
}

impl Default for CallOptions {
    /// A worker for four processors; one thread that trains; 200 us.
    fn default() -> Self {
        let processor_count = thread::available_parallelism().map_or(1, NonZero::get);
        Self {
            worker_count: (processor_count / 4) as u32,
            train_thread_count: 1,
            spin_time: Duration::from_micros(200),
        }
    }
}

/// What all threads share.
#[derive(Debug)]
struct Shared {
    region: Arc<MappedRegion>,
    layout: PoolLayout,
    server: Arc<TableServer>,
    doors: Arc<Doors>,
    stop: AtomicBool,
}

/// One worker's private queue.
#[derive(Debug, Default)]
struct Queue {
    tasks: Mutex<VecDeque<Task>>,
    /// Those that wait, and the one that is being answered.
    length: AtomicUsize,
    is_asleep: AtomicBool,
}

/// The threads; stopped when dropped.
#[derive(Debug)]
pub struct CallThreads {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl CallThreads {
    /// Starts them, on a region that is mapped here: rings are words that nobody swaps, so a
    /// processor may store them whatever the others use (F4).
    ///
    /// # Errors
    /// The system has no thread left.
    pub(crate) fn start(
        region: &Arc<MappedRegion>,
        layout: &PoolLayout,
        (desk, server, doors): (Arc<Desk>, Arc<TableServer>, Arc<Doors>),
        employer: &NodeEmployer,
        options: CallOptions,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            region: Arc::clone(region),
            layout: layout.clone(),
            server,
            doors,
            stop: AtomicBool::new(false),
        });
        let mut started = Self {
            shared: Arc::clone(&shared),
            threads: Vec::new(),
        };
        let mut workers = Vec::new();
        for number in 0..options.worker_count {
            let queue = Arc::<Queue>::default();
            let (shared, own) = (Arc::clone(&shared), Arc::clone(&queue));
            let employer = employer.clone();
            let builder = thread::Builder::new().name(format!("farleaf-call-{number}"));
            let handle = builder.spawn(move || work(&shared, &own, employer))?;
            workers.push((queue, handle.thread().clone()));
            started.threads.push(handle);
        }
        for number in 0..options.train_thread_count.max(1) {
            let (shared, employer) = (Arc::clone(&shared), employer.clone());
            let builder = thread::Builder::new().name(format!("farleaf-train-{number}"));
            let handle = builder.spawn(move || train(&shared, employer))?;
            started.threads.push(handle);
        }
        let builder = thread::Builder::new().name("farleaf-calls".to_owned());
        let (spin_time, employer) = (options.spin_time, employer.clone());
        let handle = builder.spawn(move || read(&shared, desk, (workers, employer), spin_time))?;
        started.threads.push(handle);
        Ok(started)
    }
}

impl Drop for CallThreads {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.server.leaves().wake_all();
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("a thread that answers calls panicked");
            }
        }
    }
}

/// Workers, or none.
struct Workers(Vec<(Arc<Queue>, Thread)>);

impl Workers {
    fn with_room(&self) -> Option<&(Arc<Queue>, Thread)> {
        let has_room = |queue: &Queue| queue.length.load(Ordering::Acquire) < QUEUE_LENGTH_MAX;
        let is_awake = |queue: &Queue| !queue.is_asleep.load(Ordering::Acquire);
        let mut running = self.0.iter().filter(|(queue, _)| is_awake(queue));
        let running = running.find(|(queue, _)| has_room(queue));
        running.or_else(|| self.0.iter().find(|(queue, _)| has_room(queue)))
    }
}

impl Give for Workers {
    fn has_room(&self) -> bool {
        self.with_room().is_some()
    }

    fn give(&mut self, task: Task) {
        let (queue, thread) = self.with_room().expect("it was asked");
        queue.length.fetch_add(1, Ordering::SeqCst);
        let tasks = queue.tasks.lock();
        tasks
            .unwrap_or_else(PoisonError::into_inner)
            .push_back(task);
        if queue.is_asleep.load(Ordering::SeqCst) {
            thread.unpark();
        }
    }
}

/// The thread that reads requests.
fn read(
    shared: &Shared,
    desk: Arc<Desk>,
    (workers, employer): (Vec<(Arc<Queue>, Thread)>, NodeEmployer),
    spin_time: Duration,
) {
    let worker = shared.worker(employer);
    let endpoint = MappedEndpoint::new(Arc::clone(&shared.region));
    let mut dispatcher = Dispatcher::new(desk);
    let mut batch = Batch::new();
    let mut workers = Workers(workers);
    let mut pile = Pile {
        tasks: Vec::new(),
        count_max: OWN_COUNT_MAX,
    };
    let doors = &*shared.doors;
    doors.bell().belongs_here();
    let way = (&endpoint, doors);
    let mut idle = Idle::new(spin_time, doors.bell());
    while !shared.stop.load(Ordering::Acquire) {
        let turned = if workers.0.is_empty() {
            block_on(dispatcher.turn(way, &mut batch, &mut pile), || 0)
        } else {
            block_on(dispatcher.turn(way, &mut batch, &mut workers), || 0)
        };
        for task in pile.tasks.drain(..) {
            answer(shared, (&endpoint, &worker), &mut batch, task);
        }
        follow(&worker);
        match turned {
            // J3: there may be requests that nobody has room for.
            0 if !workers.0.is_empty() && !workers.has_room() => thread::yield_now(),
            0 => idle.wait(dispatcher.is_idle()),
            _ => idle.end(),
        }
    }
}

/// One worker.
fn work(shared: &Shared, queue: &Queue, employer: NodeEmployer) {
    let worker = shared.worker(employer);
    let endpoint = MappedEndpoint::new(Arc::clone(&shared.region));
    let mut batch = Batch::new();
    let mut idle_since = Instant::now();
    let mut answered_count = 0_u64;
    while !shared.stop.load(Ordering::Acquire) {
        let task = queue.take();
        if let Some(task) = task {
            answer(shared, (&endpoint, &worker), &mut batch, task);
            queue.length.fetch_sub(1, Ordering::AcqRel);
            idle_since = Instant::now();
            answered_count += 1;
            if answered_count.is_multiple_of(FOLLOW_COUNT) {
                follow(&worker);
            }
        } else if idle_since.elapsed() < WORKER_SPIN_TIME {
            thread::yield_now();
        } else {
            queue.is_asleep.store(true, Ordering::SeqCst);
            // Who gave something before looks at the flag after that.
            if queue.length.load(Ordering::SeqCst) == 0 && !shared.stop.load(Ordering::Acquire) {
                thread::park_timeout(FOLLOW_INTERVAL);
                follow(&worker);
            }
            queue.is_asleep.store(false, Ordering::SeqCst);
            idle_since = Instant::now();
        }
    }
}

impl Queue {
    fn take(&self) -> Option<Task> {
        let tasks = self.tasks.lock();
        tasks.unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

fn answer(
    shared: &Shared,
    (endpoint, worker): (&MappedEndpoint, &Worker<NodeEmployer>),
    batch: &mut Batch,
    task: Task,
) {
    let way = (endpoint, &shared.layout, &*shared.doors);
    let answered = task.answer(way, batch, (&shared.server, worker));
    if let Err(error) = block_on(answered, || worker.poll_completions()) {
        tracing::error!(%error, "cannot reply to a call");
    }
}

/// Z1, where there is nothing else to do.
fn follow(worker: &Worker<NodeEmployer>) {
    if let Err(error) = block_on(worker.follow(), || worker.poll_completions()) {
        tracing::error!(%error, "a session of the memory node cannot see what has changed");
    }
}

/// One that trains.
fn train(shared: &Shared, employer: NodeEmployer) {
    let trainer = Trainer::new(shared.worker(employer));
    let tables = shared.server.leaves();
    while !shared.stop.load(Ordering::Acquire) {
        let trained = block_on(trainer.train_next(), || trainer.worker().poll_completions());
        match trained {
            Ok(true) => {}
            Ok(false) => {
                if tables.due_count() > 0 {
                    // Others train it, or there is no session to be had.
                    thread::sleep(SLEEP_MAX);
                } else {
                    tables.wait(FOLLOW_INTERVAL);
                }
                follow(trainer.worker());
            }
            Err(error) => {
                tracing::warn!(%error, "cannot train models; clients ask the memory node instead");
                thread::sleep(FOLLOW_INTERVAL);
            }
        }
    }
}

impl Shared {
    fn worker(&self, employer: NodeEmployer) -> Worker<NodeEmployer> {
        let tables = Arc::clone(self.server.leaves());
        Worker::new(employer, self.layout.clone(), tables)
    }
}

/// What the spinning thread does between two turns without requests.
struct Idle<'a> {
    spin_time: Duration,
    bell: &'a Bell,
    since: Option<Instant>,
    sleep: Duration,
    /// It has said so, and looked once more since.
    is_about_to_sleep: bool,
}

impl<'a> Idle<'a> {
    fn new(spin_time: Duration, bell: &'a Bell) -> Self {
        Self {
            spin_time,
            bell,
            since: None,
            sleep: SLEEP_MIN,
            is_about_to_sleep: false,
        }
    }

    fn end(&mut self) {
        self.since = None;
        self.sleep = SLEEP_MIN;
        if mem::take(&mut self.is_about_to_sleep) {
            self.bell.end_sleep();
        }
    }

    fn wait(&mut self, has_nothing_to_read: bool) {
        if has_nothing_to_read {
            self.end();
            thread::sleep(SLEEP_IDLE);
            return;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() < self.spin_time {
            // The one who would write a request may want this processor.
            thread::yield_now();
            return;
        }
        if !mem::replace(&mut self.is_about_to_sleep, true) {
            // What was written before this, the next look sees.
            return self.bell.begin_sleep();
        }
        self.bell.sleep(self.sleep);
        self.is_about_to_sleep = false;
        self.sleep = (self.sleep * 2).min(SLEEP_MAX);
    }
}
