//! A batch whose cost is counted when it is dropped, however the work ended that it was for (F9).

use core::ops::{Deref, DerefMut};

use crate::{Batch, Endpoint, OperationKind};

/// A batch of one kind of operation. Counts all its costs as one operation when it is dropped, also
/// where a future that holds it is.
#[derive(Debug)]
pub struct CountedBatch<'a, E: Endpoint> {
    endpoint: &'a E,
    kind: OperationKind,
    batch: Batch,
}

impl<'a, E: Endpoint> CountedBatch<'a, E> {
    /// An empty batch.
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
