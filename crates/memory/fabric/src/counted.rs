//! Batches whose cost is counted when they are dropped, however their operation ended (FABRIC-9).

use core::ops::{Deref, DerefMut};

use crate::{Batch, Endpoint, OperationKind};

/// Batch of one operation, which counts all costs of the batch when it is dropped. A dropped future
/// drops its batch, so cancelled operations are counted too.
#[derive(Debug)]
pub struct CountedBatch<'a, E: Endpoint> {
    endpoint: &'a E,
    kind: OperationKind,
    batch: Batch,
}

impl<'a, E: Endpoint> CountedBatch<'a, E> {
    /// Returns an empty batch.
    pub fn new(endpoint: &'a E, kind: OperationKind) -> Self {
        Self {
            endpoint,
            kind,
            batch: Batch::new(),
        }
    }
}

impl<E: Endpoint> Deref for CountedBatch<'_, E> {
    type Target = Batch;

    fn deref(&self) -> &Batch {
        &self.batch
    }
}

impl<E: Endpoint> DerefMut for CountedBatch<'_, E> {
    fn deref_mut(&mut self) -> &mut Batch {
        &mut self.batch
    }
}

impl<E: Endpoint> Drop for CountedBatch<'_, E> {
    fn drop(&mut self) {
        let cost = self.batch.take_cost();
        self.endpoint.counters().record(self.kind, &cost);
    }
}
