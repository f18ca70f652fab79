//! Blocks of a pool's chunks, as they were read.

use farleaf_base::NodeId;

use crate::chunk::{ChunkEntry, ChunkPurpose};
use crate::layout::ChunkIndex;

/// Blocks of the chunks of all nodes of a pool, in the order of their numbers.
#[derive(Clone, Debug, Default)]
pub struct ChunkTable {
    nodes: Vec<(NodeId, Vec<ChunkEntry>)>,
}

impl ChunkTable {
    /// Adds the blocks of a node, whose number must be greater than those before.
    pub(super) fn push(&mut self, node: NodeId, entries: Vec<ChunkEntry>) {
        self.nodes.push((node, entries));
    }

    /// Iterates over the chunks and their blocks in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (ChunkIndex, &ChunkEntry)> {
        self.nodes.iter().flat_map(|(node, entries)| {
            let numbered = (0..).zip(entries);
            numbered.map(|(number, entry)| (ChunkIndex::new(*node, number), entry))
        })
    }

    /// Returns a chunk's block, if it was read.
    pub fn get(&self, chunk: ChunkIndex) -> Option<&ChunkEntry> {
        let mut nodes = self.nodes.iter();
        let (_, entries) = nodes.find(|(node, _)| *node == chunk.node())?;
        entries.get(usize::try_from(chunk.number()).ok()?)
    }

    /// Returns the number of used chunks of a node.
    pub fn used_count(&self, node: NodeId) -> u64 {
        let own = self.nodes.iter().filter(|(own, _)| *own == node);
        let entries = own.flat_map(|(_, entries)| entries);
        let used = entries.filter(|entry| entry.purpose != Some(ChunkPurpose::Free));
        used.count() as u64
    }
}
