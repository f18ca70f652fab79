//! Endpoint whose session dies at a chosen verb (FABRIC-5), or loses a memory node.

use core::cell::Cell;
use core::future::{Future, ready};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use farleaf_base::NodeId;
use farleaf_fabric::mapped::MappedMemory;
use farleaf_fabric::{Batch, BatchError, BatchErrorKind, Counters, Endpoint, Verb, VerbKind};

use crate::blobs::world::{DATA_NODE, MAIN_NODE};

/// Part of the last WRITE that takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastWrite {
    Nothing,
    Beginning,
    End,
    EverySecond,
}

pub(crate) struct DyingEndpoint {
    memory: Arc<MappedMemory>,
    counters: Counters,
    /// Number of WRITEs and atomics that still take effect.
    left: Cell<u64>,
    last_write: LastWrite,
    is_dead: Cell<bool>,
    /// Memory of the other node, if there is one.
    data_node: Option<Arc<MappedMemory>>,
    is_data_node_lost: Cell<bool>,
}

impl DyingEndpoint {
    /// Creates an endpoint of a pool of two nodes that does not die.
    pub(crate) fn of_two(main_node: &Arc<MappedMemory>, data_node: &Arc<MappedMemory>) -> Self {
        Self {
            data_node: Some(Arc::clone(data_node)),
            ..Self::new(main_node, u64::MAX, LastWrite::Nothing)
        }
    }

    /// Makes all later verbs to the other node fail.
    pub(crate) fn lose_data_node(&self) {
        self.is_data_node_lost.set(true);
    }

    /// Creates an endpoint that dies after `left` changes.
    pub(crate) fn new(memory: &Arc<MappedMemory>, left: u64, last_write: LastWrite) -> Self {
        Self {
            memory: Arc::clone(memory),
            counters: Counters::default(),
            left: Cell::new(left),
            last_write,
            is_dead: Cell::new(false),
            data_node: None,
            is_data_node_lost: Cell::new(false),
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.is_dead.get()
    }

    pub(crate) fn left(&self) -> u64 {
        self.left.get()
    }

    fn memory_of(&self, node: NodeId) -> Option<&Arc<MappedMemory>> {
        match node {
            MAIN_NODE => Some(&self.memory),
            DATA_NODE => self.data_node.as_ref(),
            _ => None,
        }
    }

    fn target(&self, verb: &Verb) -> &[AtomicU64] {
        let start = verb.addr.index() as usize;
        let memory = self.memory_of(verb.addr.node()).expect("a known node");
        &memory.words()[start..start + verb.word_count as usize]
    }

    /// Executes a verb; returns false if the endpoint has died.
    fn execute_verb(&self, verb: &Verb, data: &mut [u64]) -> bool {
        let (target, start) = (self.target(verb), verb.start as usize);
        let order = Ordering::SeqCst;
        if self.is_dead.get() {
            return false;
        }
        if verb.kind == VerbKind::Read {
            MappedMemory::copy_out(target, &mut data[start..start + target.len()]);
            return true;
        }
        let dies = self.left.get() == 0;
        self.is_dead.set(dies);
        self.left.set(self.left.get().saturating_sub(1));
        match verb.kind {
            VerbKind::Write => {
                for (index, (word, value)) in target.iter().zip(&data[start..]).enumerate() {
                    let is_written = match self.last_write {
                        LastWrite::Nothing => false,
                        LastWrite::Beginning => index < target.len() / 2,
                        LastWrite::End => index >= target.len() / 2,
                        LastWrite::EverySecond => index % 2 == 1,
                    };
                    if !dies || is_written {
                        word.store(*value, order);
                    }
                }
            }
            VerbKind::CompareSwap if !dies => {
                let outcome =
                    target[0].compare_exchange(data[start], data[start + 1], order, order);
                data[start + 2] = outcome.unwrap_or_else(|previous| previous);
            }
            VerbKind::FetchAdd if !dies => {
                data[start + 1] = target[0].fetch_add(data[start], order);
            }
            _ => {}
        }
        !dies
    }

    fn execute_now(&self, batch: &mut Batch) -> Result<(), BatchError> {
        let (verbs, data, _) = batch.parts_mut();
        for (index, verb) in verbs.iter().enumerate() {
            let node = verb.addr.node();
            if node == DATA_NODE && self.is_data_node_lost.get() {
                return Err(BatchError::new(BatchErrorKind::NodeLost { node }, index));
            }
            if !self.execute_verb(verb, data) {
                let reason = "the session has died".to_owned();
                return Err(BatchError::new(BatchErrorKind::Unknown { reason }, index));
            }
        }
        Ok(())
    }
}

impl Endpoint for DyingEndpoint {
    fn execute<'a>(
        &'a self,
        batch: &'a mut Batch,
    ) -> impl Future<Output = Result<(), BatchError>> + 'a {
        ready(self.execute_now(batch))
    }

    fn poll_completions(&self) -> usize {
        0
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn memory_word_count(&self, node: NodeId) -> Option<u64> {
        Some(self.memory_of(node)?.word_count())
    }
}
