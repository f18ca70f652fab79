//! Workers that are started, killed, replaced and ended.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::children::{ChildProcess, ChildRole};
use crate::journal::{Journal, OperationTotals};
use crate::worker::{KeyDistribution, Orders};
use crate::{BoundedRandom, STALL_MAX};

/// Longest wait for a class that has done nothing yet.
const BEGIN_TIME_MAX: Duration = Duration::from_secs(30);

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunPlan {
    pub(crate) process_count: u64,
    pub(crate) threads_per_process: u64,
    pub(crate) keys_per_class: u64,
}

impl RunPlan {
    pub(crate) fn deal(self) -> KeyDistribution {
        KeyDistribution {
            class_count: self.process_count * self.threads_per_process,
            keys_per_class: self.keys_per_class,
        }
    }
}

/// Workers of a run, one process per slot.
pub(crate) struct WorkerProcesses {
    plan: RunPlan,
    pool: String,
    directory: PathBuf,
    workers: Vec<Option<ChildProcess>>,
    dice: BoundedRandom,
}

impl WorkerProcesses {
    /// Starts workers of the pool at an address.
    pub(crate) fn start(plan: RunPlan, pool: String, directory: &Path, seed: u64) -> Self {
        let mut worker_processes = Self {
            plan,
            pool,
            directory: directory.to_path_buf(),
            workers: Vec::new(),
            dice: BoundedRandom::new(seed),
        };
        for place in 0..plan.process_count {
            let worker = worker_processes.worker(place);
            worker_processes.workers.push(Some(worker));
        }
        worker_processes
    }

    fn worker(&mut self, place: u64) -> ChildProcess {
        let orders = Orders {
            pool: self.pool.clone(),
            deal: self.plan.deal(),
            first_class: place * self.plan.threads_per_process,
            thread_count: self.plan.threads_per_process,
            seed: self.dice.below(u64::MAX),
            directory: self.directory.clone(),
        };
        ChildProcess::start(ChildRole::Worker, &orders.text())
    }

    /// Lets the workers run; panics if one of them fails.
    pub(crate) fn watch(&mut self, duration: Duration) {
        let end = Instant::now() + duration;
        loop {
            self.workers
                .iter_mut()
                .flatten()
                .for_each(ChildProcess::assert_silent);
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(Duration::from_millis(100)));
        }
    }

    /// Kills one process after another at random times within about `duration`. Each is replaced at
    /// once, except the last one.
    pub(crate) fn kill(&mut self, kill_count: u64, duration: Duration) {
        let mean_us = duration.as_micros() as u64 / kill_count.max(1);
        for kill in 0..kill_count {
            let wait_us = mean_us / 4 + self.dice.below((mean_us * 3 / 2).max(1));
            self.watch(Duration::from_micros(wait_us));
            let place = self.dice.below(self.plan.process_count) as usize;
            if kill + 1 == kill_count {
                // Nobody replaces this worker, whose predecessors may all have died too early.
                self.wait_for_all();
            }
            // A journal has one writer at a time: the successor starts when this one is dead.
            self.workers[place].take().expect("it lives").kill();
            if kill + 1 < kill_count {
                self.workers[place] = Some(self.worker(place as u64));
            }
        }
    }

    /// Returns the number of operations of all classes so far.
    pub(crate) fn operation_count(&self) -> u64 {
        let classes = 0..self.plan.deal().class_count;
        let journals = classes.map(|class| Journal::open(&self.directory, class));
        journals.map(|journal| journal.tally.operation_count).sum()
    }

    /// Waits for classes that have done nothing yet, because those of a slow machine may have just
    /// begun.
    fn wait_for_all(&self) {
        let since = Instant::now();
        let is_idle = |class| {
            let journal = Journal::open(&self.directory, class);
            journal.tally.operation_count == 0
        };
        while (0..self.plan.deal().class_count).any(is_idle) && since.elapsed() < BEGIN_TIME_MAX {
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends all live workers; returns the journal of each class, and the sum of all tallies.
    pub(crate) fn end(self) -> (Vec<Journal>, OperationTotals) {
        self.wait_for_all();
        self.workers.into_iter().flatten().for_each(|worker| {
            worker.end();
        });
        let classes = 0..self.plan.deal().class_count;
        let journals: Vec<Journal> = classes
            .map(|class| Journal::open(&self.directory, class))
            .collect();
        let mut total = OperationTotals::default();
        for journal in &journals {
            let tally = journal.tally;
            assert!(
                tally.operation_count > 0,
                "a class whose workers did nothing"
            );
            total.operation_count += tally.operation_count;
            total.write_count += tally.write_count;
            total.stall_ns_max = total.stall_ns_max.max(tally.stall_ns_max);
        }
        let stall = Duration::from_nanos(total.stall_ns_max);
        assert!(stall < STALL_MAX, "an operation took {stall:?}");
        (journals, total)
    }
}
