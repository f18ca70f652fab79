//! Client of one thread: executes, times, checks and records operations.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use farleaf::{Cost, Insertion};
use farleaf_executor::TaskSet;

use super::error::StoreFailure as _;
use super::fault_counts::FaultCounts;
use super::requests::{Request, Requests};
use super::subject::{Subject, UpdateOutcome};
use crate::report::RunRecorder;
use crate::verify::{OwnWrites, PendingWrite, ReadExpectation, ScanChecker, Verdict, WriterId};
use crate::workload::{InsertLedger, OperationKind, WorkloadSpec};

/// Number of keys of which a thread remembers its own last write: half a megabyte, which mostly
/// stays in the processor's cache.
const OWN_WRITE_SLOT_COUNT: usize = 1 << 14;

/// Operations between two progress reports.
const OPERATIONS_PER_REPORT: u64 = 1_024;

/// State that all threads of a run share.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunShared<'a> {
    pub(super) spec: WorkloadSpec,
    pub(super) ledger: &'a InsertLedger,
    pub(super) checker: &'a ScanChecker,
    /// Number of finished operations, updated from time to time.
    pub(super) done_count: &'a AtomicU64,
}

/// One thread's operations on one table. Its parts are borrowed only between awaits.
pub(super) struct Client<'a, S> {
    shared: RunShared<'a>,
    table: &'a S,
    own: RefCell<OwnWrites>,
    recorder: RefCell<RunRecorder>,
    fault_counts: RefCell<FaultCounts>,
    /// Buffers of scans that are not in progress.
    buffers: RefCell<Vec<Vec<(u64, u64)>>>,
    /// Whether the store has failed permanently: no more operations are started.
    has_ended: Cell<bool>,
}

impl<'a, S: Subject> Client<'a, S> {
    /// Creates the client that writes as `writer`.
    pub(super) fn new(shared: RunShared<'a>, table: &'a S, writer: WriterId) -> Self {
        let mix = shared.spec.mix;
        let writes = mix.update + mix.insert + mix.read_modify_write > 0.0;
        let slot_count = if writes { OWN_WRITE_SLOT_COUNT } else { 1 };
        Self {
            shared,
            table,
            own: RefCell::new(OwnWrites::new(writer, slot_count)),
            recorder: RefCell::default(),
            fault_counts: RefCell::default(),
            buffers: RefCell::default(),
            has_ended: Cell::new(false),
        }
    }

    /// Returns the measurements and the faults.
    pub(super) fn into_results(self) -> (RunRecorder, FaultCounts) {
        let (mut recorder, fault_counts) =
            (self.recorder.into_inner(), self.fault_counts.into_inner());
        (recorder.errors, recorder.missing) = (fault_counts.errors, fault_counts.missing);
        (recorder, fault_counts)
    }

    /// Executes all requests one after the other, until the store has failed permanently.
    pub(super) fn run_one_by_one(&self, requests: Requests<'_>) {
        let mut progress = Progress::new(self.shared.done_count);
        for request in requests {
            self.table.block_on(self.perform(request));
            progress.count();
            if self.has_ended.get() {
                break;
            }
        }
    }

    /// Executes all requests, `in_flight` at a time.
    pub(super) fn run_in_flight(&self, requests: Requests<'_>, in_flight: usize) {
        let mut progress = Progress::new(self.shared.done_count);
        let mut tasks = TaskSet::with_capacity(in_flight);
        for request in requests {
            tasks.run_until_vacant(self.table.completions(), |()| progress.count());
            match tasks.spawn(self.perform(request)) {
                Ok(Some(())) => progress.count(),
                Ok(None) => {}
                Err(_) => unreachable!("the set was not full"),
            }
        }
        tasks.drain(self.table.completions(), |()| progress.count());
    }

    async fn perform(&self, request: Request) {
        match request {
            Request::Read { key } => self.read(key).await,
            Request::Update { key } => self.update(key).await,
            Request::Insert { insert_index, key } => self.insert(insert_index, key).await,
            Request::Scan { from, length } => self.scan(from, length as usize).await,
            Request::ReadModifyWrite { key } => self.read_modify_write(key).await,
        }
    }

    async fn read(&self, key: u64) {
        let expectation = self.own.borrow_mut().expect(key);
        let start = Instant::now();
        let found = self.table.get(key).await;
        let (latency_ns, cost) = self.sample(start);
        match found {
            Ok(value) => {
                self.note(OperationKind::Read, latency_ns, cost);
                self.count_verdict(self.own.borrow().check(expectation, value));
            }
            Err(error) => self.fail(OperationKind::Read, key, &error),
        }
    }

    async fn update(&self, key: u64) {
        let (expectation, write) = self.begin_write(key);
        let start = Instant::now();
        let updated = self.table.update(key, write.value()).await;
        let (latency_ns, cost) = self.sample(start);
        match updated {
            Ok(updated) => {
                self.note(OperationKind::Update, latency_ns, cost);
                self.count_verdict(self.end_update(expectation, write, updated));
            }
            // The outcome of the write is unknown: it stays pending forever.
            Err(error) => self.fail(OperationKind::Update, key, &error),
        }
    }

    async fn read_modify_write(&self, key: u64) {
        let (expectation, write) = self.begin_write(key);
        let start = Instant::now();
        let found = self.table.get(key).await;
        let read_cost = self.table.last_cost();
        let updated = match found {
            Ok(_) => self.table.update(key, write.value()).await,
            Err(error) => {
                self.own.borrow_mut().cancel(write);
                return self.fail(OperationKind::ReadModifyWrite, key, &error);
            }
        };
        let (latency_ns, update_cost) = self.sample(start);
        match (found, updated) {
            (Ok(value), Ok(updated)) => {
                let cost = read_cost.zip(update_cost).map(|(mut cost, of_update)| {
                    cost += of_update;
                    cost
                });
                self.note(OperationKind::ReadModifyWrite, latency_ns, cost);
                let read = self.own.borrow().check(expectation, value);
                let update = self.end_update(expectation, write, updated);
                self.count_verdict(if read.is_right() { update } else { read });
            }
            (_, Err(error)) | (Err(error), _) => {
                self.fail(OperationKind::ReadModifyWrite, key, &error);
            }
        }
    }

    async fn insert(&self, insert_index: u64, key: u64) {
        let write = self.own.borrow_mut().begin(key);
        let start = Instant::now();
        let inserted = self.table.insert(key, write.value()).await;
        let (latency_ns, cost) = self.sample(start);
        match inserted {
            Ok(Insertion::Inserted) => {
                self.note(OperationKind::Insert, latency_ns, cost);
                self.own.borrow_mut().complete(write);
                self.shared.ledger.acknowledge(insert_index);
            }
            Ok(Insertion::AlreadyPresent(value)) => {
                self.note(OperationKind::Insert, latency_ns, cost);
                self.own.borrow_mut().cancel(write);
                self.shared.ledger.abandon(insert_index);
                let fault =
                    format_args!("insert of key {key} found an existing value {value:#018x}");
                self.fault_counts.borrow_mut().wrong(fault);
            }
            Err(error) => {
                self.shared.ledger.abandon(insert_index);
                self.fail(OperationKind::Insert, key, &error);
            }
        }
    }

    async fn scan(&self, from: u64, length: usize) {
        let mut entries = self.buffers.borrow_mut().pop().unwrap_or_default();
        let known = self.shared.checker.begin();
        let start = Instant::now();
        let scanned = self.table.scan_into(from, length, &mut entries).await;
        let (latency_ns, cost) = self.sample(start);
        match scanned {
            Ok(()) => {
                self.note(OperationKind::Scan, latency_ns, cost);
                self.count_verdict(
                    self.shared
                        .checker
                        .check_scan(known, from, length, &entries),
                );
            }
            Err(error) => self.fail(OperationKind::Scan, from, &error),
        }
        self.buffers.borrow_mut().push(entries);
    }

    fn begin_write(&self, key: u64) -> (ReadExpectation, PendingWrite) {
        let mut own = self.own.borrow_mut();
        (own.expect(key), own.begin(key))
    }

    /// Ends an update of a key that must exist: its previous value is checked like a read.
    fn end_update(
        &self,
        expectation: ReadExpectation,
        write: PendingWrite,
        updated: UpdateOutcome,
    ) -> Verdict {
        let mut own = self.own.borrow_mut();
        match updated {
            UpdateOutcome::Previous(previous) => {
                own.complete(write);
                own.check(expectation, Some(previous))
            }
            UpdateOutcome::Present => {
                own.complete(write);
                Verdict::Right
            }
            UpdateOutcome::Absent => {
                own.cancel(write);
                own.check(expectation, None)
            }
        }
    }

    /// Returns time and cost of the operation that has just ended; to be called before any other
    /// await. Reading the clock twice per operation costs some 40 ns, half of it within the
    /// latency.
    #[inline]
    fn sample(&self, start: Instant) -> (u64, Option<Cost>) {
        (start.elapsed().as_nanos() as u64, self.table.last_cost())
    }

    #[inline]
    fn note(&self, kind: OperationKind, latency_ns: u64, cost: Option<Cost>) {
        let mut recorder = self.recorder.borrow_mut();
        match cost {
            Some(cost) => recorder.record(kind, latency_ns, cost),
            None => recorder.record_time(kind, latency_ns),
        }
    }

    #[inline]
    fn count_verdict(&self, verdict: Verdict) {
        self.fault_counts.borrow_mut().count_verdict(verdict);
    }

    #[cold]
    fn fail(&self, kind: OperationKind, key: u64, error: &S::Error) {
        self.has_ended
            .set(self.has_ended.get() || error.is_lasting());
        self.fault_counts.borrow_mut().failed(kind, key, error);
    }
}

/// Reports the number of finished operations, rarely enough not to affect the results.
struct Progress<'a> {
    done_count: &'a AtomicU64,
    unreported: u64,
}

impl<'a> Progress<'a> {
    fn new(done_count: &'a AtomicU64) -> Self {
        Self {
            done_count,
            unreported: 0,
        }
    }

    #[inline]
    fn count(&mut self) {
        self.unreported += 1;
        if self.unreported == OPERATIONS_PER_REPORT {
            self.report();
        }
    }

    fn report(&mut self) {
        self.done_count.fetch_add(self.unreported, Relaxed);
        self.unreported = 0;
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        self.report();
    }
}
