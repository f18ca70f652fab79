//! Clients: threads that call primaries directly, time each operation and check the results.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use farleaf_fabric::Endpoint;
use farleaf_replica::Primary;

use super::config::ReplicationConfig;
use super::error::ReplicationError;
use super::names::{ReplicationKind, ReplicationPhase};
use super::processor::{Part, ThreadStopwatch, thread_time_ns};
use super::requests::{AHEAD_COUNT, Request, Requests, is_value};
use super::shared::ReplicationRunState;
use super::strings_of;
use super::tails::Tails;
use crate::runner::gate::{Place, run_threads};
use crate::runner::{BenchError, ProgressSink};
use crate::verify::WriterId;
use crate::workload::{InsertLedger, OperationKind, OperationStream, WorkloadSpec};

/// Phase from the clients' point of view.
pub(super) struct ClientPhase<'p, E> {
    pub(super) config: &'p ReplicationConfig,
    pub(super) kind: ReplicationKind,
    pub(super) phase: ReplicationPhase,
    pub(super) seed: u64,
    /// Number of records at its start.
    pub(super) loaded_count: u64,
    pub(super) primaries: &'p [Primary<E>],
    pub(super) shared: &'p ReplicationRunState,
}

/// Work that the clients of a phase have done.
#[derive(Clone, Debug)]
pub(super) struct ClientTotals {
    pub(super) operation_count: u64,
    /// Bytes of keys and values that were put.
    pub(super) put_size_bytes: u64,
    /// Bytes of requested keys and of values that were found.
    pub(super) got_size_bytes: u64,
    pub(super) tails: Tails,
    pub(super) started: Instant,
    pub(super) ended: Instant,
    /// Processor time of generating and checking requests.
    pub(super) generator_ns: u64,
    /// Number of records at its end.
    pub(super) record_count: u64,
}

impl ClientTotals {
    fn begin(now: Instant) -> Self {
        Self {
            operation_count: 0,
            put_size_bytes: 0,
            got_size_bytes: 0,
            tails: Tails::new(),
            started: now,
            ended: now,
            generator_ns: 0,
            record_count: 0,
        }
    }

    fn add(&mut self, other: &Self) {
        self.operation_count += other.operation_count;
        self.put_size_bytes += other.put_size_bytes;
        self.got_size_bytes += other.got_size_bytes;
        self.tails.merge(&other.tails);
        self.started = self.started.min(other.started);
        self.ended = self.ended.max(other.ended);
        self.generator_ns += other.generator_ns;
    }
}

impl<E: Endpoint + Send + 'static> ClientPhase<'_, E> {
    /// Executes the operations of a phase on all threads. Ends at the first failure, which the
    /// shared state then contains.
    ///
    /// # Errors
    /// No threads can be started, or an operation failed.
    pub(super) fn run(&self, sink: &dyn ProgressSink) -> Result<ClientTotals, ReplicationError> {
        let total = self.config.operation_count(self.phase);
        let insert_count = match self.phase {
            ReplicationPhase::Load => 0,
            ReplicationPhase::Run(letter) => WorkloadSpec::of(letter).insert_count_max(total),
        };
        let ledger = Arc::new(InsertLedger::new(self.loaded_count, insert_count));
        let next = AtomicU64::new(0);
        let work = |thread, mut place: Place<'_>| {
            let client = Client::new(self, thread, Arc::clone(&ledger))?;
            place.ready();
            Ok(client.run(&next, total))
        };
        let report = || sink.advance(next.load(Ordering::Relaxed).min(total));
        let shares = run_threads(self.config.threads, "client", work, report)?;
        self.shared.check()?;
        let mut shares = shares.into_iter();
        let mut done = shares.next().expect("there is a client");
        shares.for_each(|share| done.add(&share));
        done.record_count = match self.phase {
            ReplicationPhase::Load => self.config.records,
            ReplicationPhase::Run(_) => ledger.existing_count(),
        };
        Ok(done)
    }
}

/// One client thread.
struct Client<'p, E> {
    of: &'p ClientPhase<'p, E>,
    requests: Requests,
    /// Operation stream; `None` in a load.
    stream: Option<OperationStream>,
    ledger: Arc<InsertLedger>,
    found: Vec<Option<Vec<u8>>>,
    done: ClientTotals,
}

impl<'p, E: Endpoint + Send + 'static> Client<'p, E> {
    fn new(
        of: &'p ClientPhase<'p, E>,
        thread: usize,
        ledger: Arc<InsertLedger>,
    ) -> Result<Self, BenchError> {
        let writer = WriterId::thread(thread).expect("the configuration was validated");
        let stream = match of.phase {
            ReplicationPhase::Load => None,
            ReplicationPhase::Run(letter) => {
                let spec = WorkloadSpec::of(letter);
                // A separate stream for every phase, so that no phase repeats the requests of the
                // last one.
                let stream = letter as usize * of.config.threads + thread;
                let ledger = Arc::clone(&ledger);
                Some(OperationStream::new(&spec, None, ledger, of.seed, stream)?)
            }
        };
        Ok(Self {
            requests: Requests::new(strings_of(of.config), of.primaries.len(), writer),
            of,
            stream,
            ledger,
            found: Vec::new(),
            done: ClientTotals::begin(Instant::now()),
        })
    }

    fn run(mut self, next: &AtomicU64, total: u64) -> ClientTotals {
        self.done = ClientTotals::begin(Instant::now());
        let (began_ns, mut called_ns) = (thread_time_ns(), 0);
        while !self.of.shared.has_failed() {
            let from = next.fetch_add(AHEAD_COUNT, Ordering::Relaxed);
            if from >= total {
                break;
            }
            self.prepare(from..total.min(from + AHEAD_COUNT));
            let mut lap = ThreadStopwatch::begin();
            let called = self.call();
            let time_ns = lap.end();
            called_ns += time_ns;
            self.of.shared.meter.add(Part::Operations, time_ns);
            if let Err(error) = called.and_then(|()| self.check()) {
                self.of.shared.fail(error);
            }
        }
        self.done.ended = Instant::now();
        self.done.generator_ns = (thread_time_ns() - began_ns).saturating_sub(called_ns);
        self.done
    }

    /// Generates requests: in a load, for these records; otherwise as many of the stream.
    fn prepare(&mut self, numbers: std::ops::Range<u64>) {
        self.requests.clear();
        let loaded_count = self.of.loaded_count;
        for number in numbers {
            match &mut self.stream {
                None => self.requests.load(number),
                Some(stream) => {
                    // The stream has some more inserts than a run of this length requests.
                    let Some(operation) = stream.next() else {
                        return;
                    };
                    self.requests.push_operation(operation, loaded_count);
                }
            }
        }
    }

    /// Sends all generated requests, one after the other.
    fn call(&mut self) -> Result<(), ReplicationError> {
        self.found.clear();
        let durability = self.of.config.promise.durability();
        for request in self.requests.all() {
            let primary = &self.of.primaries[request.region];
            let key = self.requests.key(request);
            let since = Instant::now();
            let answered = if request.kind == OperationKind::Read {
                primary.get(key).map(|found| self.found.push(found))
            } else {
                primary.put(key, self.requests.value(request), durability)
            };
            let latency_ns = since.elapsed().as_nanos() as u64;
            answered.map_err(|error| {
                let (phase, kind) = (self.of.phase, self.of.kind);
                let what = format!("{phase}, {kind}: region {}", request.region);
                ReplicationError::replica(what)(error)
            })?;
            self.done.tails.note(request.kind, latency_ns);
            if let Some(index) = request.insert_index {
                self.ledger.acknowledge(index);
            }
        }
        Ok(())
    }

    /// Checks the results, and counts.
    fn check(&mut self) -> Result<(), ReplicationError> {
        let strings = strings_of(self.of.config);
        let mut found = self.found.iter();
        for request in self.requests.all() {
            let key_size_bytes = self.requests.key(request).len() as u64;
            self.done.operation_count += 1;
            if request.kind != OperationKind::Read {
                let value_size_bytes = self.requests.value(request).len() as u64;
                self.done.put_size_bytes += key_size_bytes + value_size_bytes;
                continue;
            }
            let value = found.next().expect("each read has found something, or not");
            let value = value.as_deref();
            let value = value.ok_or_else(|| self.wrong(request, "is missing"))?;
            if !is_value(&strings, request.number, value) {
                return Err(self.wrong(request, "has a value that no client wrote"));
            }
            self.done.got_size_bytes += key_size_bytes + value.len() as u64;
        }
        Ok(())
    }

    fn wrong(&self, request: &Request, how: &'static str) -> ReplicationError {
        ReplicationError::WrongAnswer {
            phase: self.of.phase,
            kind: self.of.kind,
            key: String::from_utf8_lossy(self.requests.key(request)).into_owned(),
            how,
        }
    }
}
