//! The spinning thread, and workers with private queues.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use farleaf_base::locks::lock;
use farleaf_executor::block_on;
use farleaf_fabric::mapped::{MappedEndpoint, MappedMemory};
use farleaf_fabric::{Batch, WakeSignal, WindowRegistry};
use farleaf_pool::PoolLayout;

use super::dispatcher::{Dispatcher, Task, TaskBatch, TaskSink};
use super::ring_registry::RingRegistry;
use super::server::TableServer;
use crate::worker_sessions::NodeSessionFactory;
use crate::xstore::{Trainer, Worker};

/// Maximum number of requests queued for one worker.
const QUEUE_LENGTH_MAX: usize = 16;
/// Maximum number of requests that the reading thread answers itself before it reads on.
const OWN_COUNT_MAX: usize = 32;
/// Time that an idle worker polls for work before it sleeps.
const WORKER_SPIN_TIME: Duration = Duration::from_micros(50);
/// First sleep of the spinning thread; each turn without requests doubles it.
const SLEEP_MIN: Duration = Duration::from_micros(20);
/// Maximum sleep of the spinning thread while sessions have rings.
const SLEEP_MAX: Duration = Duration::from_millis(1);
/// Interval at which idle threads follow changes of the tables.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(20);
/// Number of requests after which a busy worker follows changes of the tables.
const FOLLOW_COUNT: u64 = 64;
/// Sleep of the spinning thread while no session has rings.
const SLEEP_IDLE: Duration = Duration::from_millis(5);

/// Options for executing calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallOptions {
    /// Number of workers; 0: the thread that reads requests executes them.
    pub worker_count: u32,
    /// Number of threads that train models of tables whose leaves only the node changes; at least
    /// one.
    pub train_thread_count: u32,
    /// Time that the reading thread polls after the last request before it sleeps.
    pub spin_time: Duration,
}

impl Default for CallOptions {
    /// Returns one worker per four processors, one training thread, and 200 us.
    fn default() -> Self {
        let processor_count = thread::available_parallelism().map_or(1, NonZero::get);
        Self {
            worker_count: (processor_count / 4) as u32,
            train_thread_count: 1,
            spin_time: Duration::from_micros(200),
        }
    }
}

/// State shared by all threads.
#[derive(Debug)]
struct CallThreadState {
    memory: Arc<MappedMemory>,
    layout: PoolLayout,
    server: Arc<TableServer>,
    windows: Arc<WindowRegistry>,
    stop: AtomicBool,
}

/// Private queue of one worker.
#[derive(Debug, Default)]
struct WorkerQueue {
    tasks: Mutex<VecDeque<Task>>,
    /// Number of queued requests, plus the one that is being answered.
    length: AtomicUsize,
    is_asleep: AtomicBool,
}

/// Threads that execute calls; stopped when dropped.
#[derive(Debug)]
pub struct CallThreads {
    shared: Arc<CallThreadState>,
    threads: Vec<JoinHandle<()>>,
}

impl CallThreads {
    /// Starts the threads, on a node's memory that is mapped in this process. Rings are words that
    /// are never swapped, so a processor may store them whatever clients use (FABRIC-4).
    ///
    /// # Errors
    /// The system has no thread left.
    pub(crate) fn start(
        memory: &Arc<MappedMemory>,
        layout: &PoolLayout,
        ring_registry: Arc<RingRegistry>,
        server: Arc<TableServer>,
        windows: Arc<WindowRegistry>,
        session_factory: &NodeSessionFactory,
        options: CallOptions,
    ) -> io::Result<Self> {
        let shared = Arc::new(CallThreadState {
            memory: Arc::clone(memory),
            layout: layout.clone(),
            server,
            windows,
            stop: AtomicBool::new(false),
        });
        let mut started = Self {
            shared: Arc::clone(&shared),
            threads: Vec::new(),
        };
        let mut workers = Vec::new();
        for number in 0..options.worker_count {
            let queue = Arc::<WorkerQueue>::default();
            let (shared, own) = (Arc::clone(&shared), Arc::clone(&queue));
            let session_factory = session_factory.clone();
            let builder = thread::Builder::new().name(format!("farleaf-call-{number}"));
            let handle = builder.spawn(move || work(&shared, &own, session_factory))?;
            workers.push((queue, handle.thread().clone()));
            started.threads.push(handle);
        }
        for number in 0..options.train_thread_count.max(1) {
            let (shared, session_factory) = (Arc::clone(&shared), session_factory.clone());
            let builder = thread::Builder::new().name(format!("farleaf-train-{number}"));
            let handle = builder.spawn(move || train(&shared, session_factory))?;
            started.threads.push(handle);
        }
        let builder = thread::Builder::new().name("farleaf-calls".to_owned());
        let (spin_time, session_factory) = (options.spin_time, session_factory.clone());
        let handle = builder.spawn(move || {
            read(&shared, ring_registry, workers, session_factory, spin_time);
        })?;
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
struct Workers(Vec<(Arc<WorkerQueue>, Thread)>);

impl Workers {
    fn with_space(&self) -> Option<&(Arc<WorkerQueue>, Thread)> {
        let has_space =
            |queue: &WorkerQueue| queue.length.load(Ordering::Acquire) < QUEUE_LENGTH_MAX;
        let is_awake = |queue: &WorkerQueue| !queue.is_asleep.load(Ordering::Acquire);
        let mut running = self.0.iter().filter(|(queue, _)| is_awake(queue));
        let running = running.find(|(queue, _)| has_space(queue));
        running.or_else(|| self.0.iter().find(|(queue, _)| has_space(queue)))
    }
}

impl TaskSink for Workers {
    fn has_space(&self) -> bool {
        self.with_space().is_some()
    }

    fn give(&mut self, task: Task) {
        let (queue, thread) = self.with_space().expect("it was asked");
        queue.length.fetch_add(1, Ordering::SeqCst);
        lock(&queue.tasks).push_back(task);
        if queue.is_asleep.load(Ordering::SeqCst) {
            thread.unpark();
        }
    }
}

/// Main function of the thread that reads requests.
fn read(
    shared: &CallThreadState,
    ring_registry: Arc<RingRegistry>,
    workers: Vec<(Arc<WorkerQueue>, Thread)>,
    session_factory: NodeSessionFactory,
    spin_time: Duration,
) {
    let worker = shared.worker(session_factory);
    let endpoint = MappedEndpoint::new(Arc::clone(&shared.memory));
    let mut dispatcher = Dispatcher::new(ring_registry);
    let mut batch = Batch::new();
    let mut workers = Workers(workers);
    let mut pile = TaskBatch {
        tasks: Vec::new(),
        count_max: OWN_COUNT_MAX,
    };
    let windows = &*shared.windows;
    windows.wake_signal().attach_current_thread();
    let mut idle = IdleBackoff::new(spin_time, windows.wake_signal());
    while !shared.stop.load(Ordering::Acquire) {
        let turned = if workers.0.is_empty() {
            block_on(
                dispatcher.turn(&endpoint, windows, &mut batch, &mut pile),
                || 0,
            )
        } else {
            block_on(
                dispatcher.turn(&endpoint, windows, &mut batch, &mut workers),
                || 0,
            )
        };
        for task in pile.tasks.drain(..) {
            answer(shared, &endpoint, &worker, &mut batch, task);
        }
        follow(&worker);
        match turned {
            // There may be requests for which all queues are full.
            0 if !workers.0.is_empty() && !workers.has_space() => thread::yield_now(),
            0 => idle.wait(dispatcher.is_idle()),
            _ => idle.end(),
        }
    }
}

/// Main function of a worker.
fn work(shared: &CallThreadState, queue: &WorkerQueue, session_factory: NodeSessionFactory) {
    let worker = shared.worker(session_factory);
    let endpoint = MappedEndpoint::new(Arc::clone(&shared.memory));
    let mut batch = Batch::new();
    let mut idle_since = Instant::now();
    let mut answered_count = 0_u64;
    while !shared.stop.load(Ordering::Acquire) {
        let task = queue.take();
        if let Some(task) = task {
            answer(shared, &endpoint, &worker, &mut batch, task);
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
            // The reader pushes a task first and checks the flag afterwards.
            if queue.length.load(Ordering::SeqCst) == 0 && !shared.stop.load(Ordering::Acquire) {
                thread::park_timeout(FOLLOW_INTERVAL);
                follow(&worker);
            }
            queue.is_asleep.store(false, Ordering::SeqCst);
            idle_since = Instant::now();
        }
    }
}

impl WorkerQueue {
    fn take(&self) -> Option<Task> {
        lock(&self.tasks).pop_front()
    }
}

fn answer(
    shared: &CallThreadState,
    endpoint: &MappedEndpoint,
    worker: &Worker<NodeSessionFactory>,
    batch: &mut Batch,
    task: Task,
) {
    let answered = task.answer(
        endpoint,
        &shared.layout,
        &*shared.windows,
        batch,
        &shared.server,
        worker,
    );
    if let Err(error) = block_on(answered, || worker.poll_completions()) {
        tracing::error!(%error, "cannot reply to a call");
    }
}

/// Follows changes of the tables when there is nothing else to do.
fn follow(worker: &Worker<NodeSessionFactory>) {
    if let Err(error) = block_on(worker.follow(), || worker.poll_completions()) {
        tracing::error!(%error, "cannot read changes of the pool for a session of the memory node");
    }
}

/// Main function of a training thread.
fn train(shared: &CallThreadState, session_factory: NodeSessionFactory) {
    let trainer = Trainer::new(shared.worker(session_factory));
    let tables = shared.server.leaves();
    while !shared.stop.load(Ordering::Acquire) {
        let trained = block_on(trainer.train_next(), || trainer.worker().poll_completions());
        match trained {
            Ok(true) => {}
            Ok(false) => {
                if tables.due_count() > 0 {
                    // Other threads train it, or there is no free session.
                    thread::sleep(SLEEP_MAX);
                } else {
                    tables.wait(FOLLOW_INTERVAL);
                }
                follow(trainer.worker());
            }
            Err(error) => {
                tracing::warn!(%error, "cannot train models; clients call the memory node instead");
                thread::sleep(FOLLOW_INTERVAL);
            }
        }
    }
}

impl CallThreadState {
    fn worker(&self, session_factory: NodeSessionFactory) -> Worker<NodeSessionFactory> {
        let tables = Arc::clone(self.server.leaves());
        Worker::new(session_factory, self.layout.clone(), tables)
    }
}

/// Behavior of the spinning thread between two turns without requests.
struct IdleBackoff<'a> {
    spin_time: Duration,
    wake_signal: &'a WakeSignal,
    since: Option<Instant>,
    sleep: Duration,
    /// Whether the thread has announced its sleep and must read once more before it.
    is_about_to_sleep: bool,
}

impl<'a> IdleBackoff<'a> {
    fn new(spin_time: Duration, wake_signal: &'a WakeSignal) -> Self {
        Self {
            spin_time,
            wake_signal,
            since: None,
            sleep: SLEEP_MIN,
            is_about_to_sleep: false,
        }
    }

    fn end(&mut self) {
        self.since = None;
        self.sleep = SLEEP_MIN;
        if mem::take(&mut self.is_about_to_sleep) {
            self.wake_signal.end_sleep();
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
            // A client that would write a request may need this processor.
            thread::yield_now();
            return;
        }
        if !mem::replace(&mut self.is_about_to_sleep, true) {
            // The next read sees everything that was written before this.
            return self.wake_signal.begin_sleep();
        }
        self.wake_signal.sleep(self.sleep);
        self.is_about_to_sleep = false;
        self.sleep = (self.sleep * 2).min(SLEEP_MAX);
    }
}
