//! Client threads: one thread of a compute node has a session on each table, a processor, and
//! operations in flight.

use core::cell::{Cell, RefCell};
use std::rc::Rc;

use farleaf::{AsyncSession, AsyncTable, Cost, Error, Insertion, Update};
use farleaf_bench::workload::{Operation, OperationKind, OperationStream};

use super::ExperimentError;
use super::image::{Partition, TABLE_NAME, value_of};
use super::machine::{Machine, Process};
use super::plan::ModelPlan;
use super::run::ExperimentState;
use crate::fabric::executor::sleep;
use crate::fabric::world::ClientId;
use crate::nic::parts::Parts;

/// Session of a thread on one memory node, with the node's table.
struct TablePart {
    session: AsyncSession<Process>,
    table: AsyncTable<Process>,
}

/// Random streams of a thread's operations.
pub(super) struct Streams {
    /// Operations of the workload.
    pub(super) work: OperationStream,
    /// Reads of the windows that follow the workload.
    pub(super) rest: OperationStream,
}

/// Client thread.
pub(super) struct ClientThread<'a> {
    shared: &'a ExperimentState<'a>,
    /// Client on whose processor the thread computes.
    client: ClientId,
    parts: Vec<TablePart>,
    streams: RefCell<Streams>,
    /// Keys for which the thread's tables have asked memory nodes, as far as they report them.
    fallback_count: Cell<u64>,
    /// Processor time of an operation before it posts anything, in nanoseconds.
    operation_ns: f64,
}

impl<'a> ClientThread<'a> {
    /// Opens sessions and tables on all memory nodes, as thread number `thread` of a machine.
    pub(super) async fn open(
        shared: &'a ExperimentState<'a>,
        machine: &[Rc<Machine>],
        thread: usize,
        models: ModelPlan,
        streams: Streams,
        operation_ns: f64,
    ) -> Result<Self, ExperimentError> {
        let mut parts = Vec::with_capacity(machine.len());
        for (machine, partition) in machine.iter().zip(&shared.image.partitions) {
            let session = machine.session(thread, models)?;
            let table = session.open_table(TABLE_NAME).await?;
            let part = TablePart { session, table };
            shared.world.borrow_mut().stand_still(true);
            let warmed = warm(shared, machine, &part, partition).await;
            shared.world.borrow_mut().stand_still(false);
            warmed?;
            parts.push(part);
        }
        let fallback_count = Cell::new(fallback_count(&parts));
        Ok(Self {
            shared,
            fallback_count,
            client: parts[0].session.endpoint().client(),
            parts,
            streams: RefCell::new(streams),
            operation_ns,
        })
    }

    /// Returns the bytes that the thread's sessions hold to find leaves.
    fn metadata_bytes(&self) -> u64 {
        let parts = self.parts.iter();
        parts.map(|part| part.table.metadata_bytes()).sum()
    }

    /// Executes one operation after the other until the experiment is over.
    pub(super) async fn work(self: Rc<Self>) {
        let mut records = Vec::new();
        while !self.shared.is_over() {
            let Some(operation) = self.draw() else {
                return self.shared.fail("no keys left to insert".to_owned());
            };
            let (started_at, spent) = (self.now(), self.spent());
            self.charge_processor().await;
            let cost = match self.perform(operation, &mut records).await {
                Ok(cost) => cost,
                Err(what) => return self.shared.fail(what),
            };
            let latency_ns = self.now() - started_at;
            let parts = self.spent() - spent;
            let fallback_count = fallback_count(&self.parts);
            let before = self.fallback_count.replace(fallback_count);
            self.shared.count_fallbacks(fallback_count - before);
            self.shared
                .count(operation.kind(), latency_ns, cost, parts, || {
                    self.metadata_bytes()
                });
        }
    }

    fn draw(&self) -> Option<Operation> {
        let mut streams = self.streams.borrow_mut();
        if self.shared.is_read_only() {
            streams.rest.next()
        } else {
            streams.work.next()
        }
    }

    fn now(&self) -> u64 {
        self.shared.world.borrow().now()
    }

    /// Returns where the time of this task has gone so far.
    fn spent(&self) -> Parts {
        let world = self.shared.world;
        world.modelled().spent(&world.borrow())
    }

    /// Takes the processor for the start of an operation, after all that it has to do before. The
    /// network charges the time of batches when they are posted and completed, so a lock is held
    /// while its owner computes, too.
    async fn charge_processor(&self) {
        let done_at = {
            let world = self.shared.world.borrow();
            let mut network = self.shared.world.modelled();
            network.compute(&world, self.client, self.operation_ns)
        };
        let now = self.now();
        if done_at > now {
            sleep(self.shared.world, done_at - now).await;
        }
    }

    fn partition_of(&self, key: u64) -> usize {
        let bounds = &self.shared.image.bounds;
        bounds.partition_point(|bound| *bound <= key)
    }

    fn part_of(&self, key: u64) -> &TablePart {
        &self.parts[self.partition_of(key)]
    }

    /// Executes an operation. Returns its own cost, without that of following a new root before it.
    async fn perform(
        &self,
        operation: Operation,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<Cost, String> {
        let keys = &self.shared.image.keys;
        match operation {
            Operation::Read(index) => self.read(keys.key(index)).await,
            Operation::Update(index) => self.update(keys.key(index)).await,
            Operation::Insert(insert_index) => {
                let key = keys.inserts()[insert_index as usize];
                let cost = self.insert(key).await?;
                self.shared.acknowledge(insert_index);
                Ok(cost)
            }
            Operation::Scan { index, length } => {
                self.scan(keys.key(index), length as usize, records).await
            }
            Operation::ReadModifyWrite(index) => {
                let mut cost = self.read(keys.key(index)).await?;
                cost += self.update(keys.key(index)).await?;
                Ok(cost)
            }
        }
    }

    async fn read(&self, key: u64) -> Result<Cost, String> {
        let part = self.part_of(key);
        match part.table.get(key).await {
            Ok(Some(_)) => Ok(part.session.last_cost()),
            Ok(None) => Err(lost(key)),
            Err(error) => Err(failed(OperationKind::Read, key, &error)),
        }
    }

    async fn update(&self, key: u64) -> Result<Cost, String> {
        let part = self.part_of(key);
        let value = value_of(key).wrapping_add(1);
        match part.table.update(key, value).await {
            Ok(Update::Updated(_)) => Ok(part.session.last_cost()),
            Ok(Update::Absent) => Err(lost(key)),
            Err(error) => Err(failed(OperationKind::Update, key, &error)),
        }
    }

    async fn insert(&self, key: u64) -> Result<Cost, String> {
        let part = self.part_of(key);
        match part.table.insert(key, value_of(key)).await {
            Ok(Insertion::Inserted) => Ok(part.session.last_cost()),
            Ok(Insertion::AlreadyPresent(_)) => {
                Err(format!("insert of key {key} found an existing record"))
            }
            Err(error) => Err(failed(OperationKind::Insert, key, &error)),
        }
    }

    /// Scans from one table on into the next, until there are enough records.
    async fn scan(
        &self,
        from: u64,
        limit: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<Cost, String> {
        let mut cost = Cost::default();
        let (mut found_count, mut first) = (0, None);
        for part in &self.parts[self.partition_of(from)..] {
            let scanned = part.table.scan_into(from, limit - found_count, records);
            if let Err(error) = scanned.await {
                return Err(failed(OperationKind::Scan, from, &error));
            }
            cost += part.session.last_cost();
            found_count += records.len();
            first = first.or_else(|| records.first().map(|(key, _)| *key));
            if found_count >= limit {
                break;
            }
        }
        if first == Some(from) {
            Ok(cost)
        } else {
            Err(lost(from))
        }
    }
}

fn fallback_count(parts: &[TablePart]) -> u64 {
    let counts = parts.iter().map(|part| part.table.hint_counters());
    counts.map(|counters| counters.fallback_count).sum()
}

/// Warms a session's caches while virtual time stands still, as far more operations than an
/// experiment has would do: inner nodes up to its budget, models of all keys. The first session of
/// a table that the node itself holds loads it.
async fn warm(
    shared: &ExperimentState<'_>,
    machine: &Machine,
    part: &TablePart,
    partition: &Partition,
) -> Result<(), Error> {
    let searched = &partition.searched;
    for fence in &searched.cached_fences {
        part.table.get(*fence).await?;
    }
    let Some(server) = machine.server() else {
        return Ok(());
    };
    if let Some(keys) = server.take_loading(shared.image) {
        let records = keys.iter().map(|key| (*key, value_of(*key)));
        part.table.bulk_load(records, |_| ()).await?;
    }
    // Other sessions of the process may have fetched all models, but rings are each session's own.
    part.table.len_estimate().await?;
    // The node builds a tree at the first request, and the session learns of models by requests.
    part.table.get(0).await?;
    server.train_still();
    part.table.get(0).await?;
    for begin in server.sub_model_begins() {
        part.table.get(begin).await?;
    }
    Ok(())
}

fn lost(key: u64) -> String {
    format!("key {key} is in a table but was not found")
}

fn failed(kind: OperationKind, key: u64, error: &Error) -> String {
    format!("{kind} of key {key} failed: {error}")
}
