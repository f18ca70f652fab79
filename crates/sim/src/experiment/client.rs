//! One thread of one compute node: a session on each table, a processor, and operations in flight.

use core::cell::{Cell, RefCell};
use std::rc::Rc;

use farleaf_bench::report::OperationCost;
use farleaf_bench::workload::{Operation, OperationKind, OperationStream};
use farleaf_fabric::Batch;
use farleaf_index::operation::{Decision, ScanCursor};
use farleaf_index::{Index, IndexError, IndexState, Layer};
use farleaf_leaf::LeafAccess;

use super::image::{Image, TABLE, value_of};
use super::run::Shared;
use crate::fabric::endpoint::SimEndpoint;
use crate::fabric::executor::sleep;

/// A thread.
pub(super) struct Thread<'a> {
    shared: &'a Shared<'a>,
    endpoint: SimEndpoint,
    index: usize,
    states: Vec<IndexState>,
    stream: RefCell<OperationStream>,
    /// What an operation takes of the processor before it posts anything.
    operation_ns: f64,
}

impl<'a> Thread<'a> {
    pub(super) fn new(
        shared: &'a Shared<'a>,
        endpoint: SimEndpoint,
        index: usize,
        stream: OperationStream,
        operation_ns: f64,
    ) -> Self {
        let image = shared.image;
        let layers = image.partitions.iter().map(|partition| {
            let layer = Layer::new(image.plan.layer, partition.directory.clone());
            IndexState::new(layer, Rc::new(Cell::new(false)))
        });
        Self {
            shared,
            endpoint,
            index,
            states: layers.collect(),
            stream: RefCell::new(stream),
            operation_ns,
        }
    }

    /// Bytes that it holds to find leaves.
    fn metadata_bytes(&self) -> u64 {
        self.states.iter().map(IndexState::metadata_bytes).sum()
    }

    /// Does one operation after the other until the experiment is over.
    pub(super) async fn work(self: Rc<Self>) {
        let mut batch = Batch::new();
        let mut records = Vec::new();
        while !self.shared.is_over() {
            let Some(operation) = self.stream.borrow_mut().next() else {
                return self.shared.fail("the keys to insert ran out".to_owned());
            };
            let begun = self.now();
            self.think().await;
            if let Err(what) = self.perform(operation, &mut batch, &mut records).await {
                return self.shared.fail(what);
            }
            let cost = batch.take_cost();
            let latency_ns = self.now() - begun;
            let cost = OperationCost {
                round_trips: cost.round_trips,
                bytes_read: cost.bytes_read,
                bytes_written: cost.bytes_written,
                leaves_read: cost.leaves_read,
            };
            let sample = (operation.kind(), latency_ns, cost);
            self.shared.count(sample, || self.metadata_bytes());
        }
    }

    fn now(&self) -> u64 {
        self.shared.world.borrow().now()
    }

    /// Takes the processor for what an operation begins with, after all that it has been given
    /// before. What batches take of it, the network charges when they are posted and when they are
    /// back: so a lock is held for what its holder computes, too.
    async fn think(&self) {
        let client = self.endpoint.client();
        let done_at = {
            let mut world = self.shared.world.borrow_mut();
            world.compute(client, self.operation_ns)
        };
        let now = self.now();
        if done_at > now {
            sleep(self.shared.world, done_at - now).await;
        }
    }

    fn index_of(&self, partition: usize) -> Index<'_, SimEndpoint> {
        let image: &Image = self.shared.image;
        let part = &image.partitions[partition];
        let access = LeafAccess {
            endpoint: &self.endpoint,
            layout: &part.layout,
            geometry: image.geometry,
            table: TABLE,
            owner: part.owners[self.index],
        };
        Index::new(access, &self.states[partition])
    }

    fn partition_of(&self, key: u64) -> usize {
        let bounds = &self.shared.image.bounds;
        bounds.partition_point(|bound| *bound <= key)
    }

    async fn perform(
        &self,
        operation: Operation,
        batch: &mut Batch,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), String> {
        let keys = &self.shared.image.keys;
        match operation {
            Operation::Read(index) => self.read(batch, keys.key(index)).await,
            Operation::Update(index) => self.update(batch, keys.key(index)).await,
            Operation::Insert(insert_index) => {
                let key = keys.inserts()[insert_index as usize];
                self.insert(batch, key).await?;
                self.shared.acknowledge(insert_index);
                Ok(())
            }
            Operation::Scan { index, length } => {
                records.clear();
                self.scan(batch, keys.key(index), length as usize, records)
                    .await
            }
            Operation::ReadModifyWrite(index) => {
                self.read(batch, keys.key(index)).await?;
                self.update(batch, keys.key(index)).await
            }
        }
    }

    async fn read(&self, batch: &mut Batch, key: u64) -> Result<(), String> {
        let index = self.index_of(self.partition_of(key));
        match index.get(batch, key).await {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(lost(key)),
            Err(error) => Err(failed(OperationKind::Read, key, &error)),
        }
    }

    async fn update(&self, batch: &mut Batch, key: u64) -> Result<(), String> {
        let index = self.index_of(self.partition_of(key));
        let modified = index.modify(batch, key, |found| match found {
            Some(value) => (Decision::Set(value.wrapping_add(1)), true),
            None => (Decision::Keep, false),
        });
        match modified.await {
            Ok(true) => Ok(()),
            Ok(false) => Err(lost(key)),
            Err(error) => Err(failed(OperationKind::Update, key, &error)),
        }
    }

    async fn insert(&self, batch: &mut Batch, key: u64) -> Result<(), String> {
        let index = self.index_of(self.partition_of(key));
        let modified = index.modify(batch, key, |found| match found {
            None => (Decision::Set(value_of(key)), true),
            Some(_) => (Decision::Keep, false),
        });
        match modified.await {
            Ok(true) => Ok(()),
            Ok(false) => Err(format!("insert of key {key} found it present")),
            Err(error) => Err(failed(OperationKind::Insert, key, &error)),
        }
    }

    /// From one table on into the next, until there are enough records.
    async fn scan(
        &self,
        batch: &mut Batch,
        from: u64,
        limit: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), String> {
        let first = self.partition_of(from);
        for partition in first..self.states.len() {
            let mut cursor = ScanCursor::from(from);
            let wanted = limit - records.len();
            let index = self.index_of(partition);
            let scanned = index.scan(batch, &mut cursor, wanted, records).await;
            if let Err(error) = scanned {
                return Err(failed(OperationKind::Scan, from, &error));
            }
            if records.len() >= limit {
                break;
            }
        }
        match records.first() {
            Some((key, _)) if *key == from => Ok(()),
            _ => Err(lost(from)),
        }
    }
}

fn lost(key: u64) -> String {
    format!("key {key} is in a table and was not found")
}

fn failed(kind: OperationKind, key: u64, error: &IndexError) -> String {
    format!("{kind} of key {key} failed: {error}")
}
