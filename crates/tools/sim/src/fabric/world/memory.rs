//! Memory of the nodes, and the effects of verbs on it.

use farleaf_base::{NodeId, WordAddr};
use farleaf_fabric::{Verb, VerbKind};

use super::World;

impl World {
    /// Returns whether a verb is inside its node's memory (FABRIC-7).
    pub(in crate::fabric) fn is_inside(&self, verb: &Verb) -> bool {
        let size = self.memory_word_count(verb.addr.node());
        let end = verb.addr.index().checked_add(verb.word_count.into());
        matches!((size, end), (Some(size), Some(end)) if end <= size)
    }

    /// Returns the size of a node's memory in words.
    pub fn memory_word_count(&self, node: NodeId) -> Option<u64> {
        self.nodes
            .get(usize::from(node.0))
            .map(|words| words.len() as u64)
    }

    /// Returns the number of nodes.
    pub fn node_count(&self) -> u8 {
        self.windows.node_count()
    }

    /// Returns memory as it is now, for audits.
    pub fn words(&self, from: WordAddr, word_count: usize) -> &[u64] {
        let start = from.index() as usize;
        &self.nodes[usize::from(from.node().0)][start..start + word_count]
    }

    /// Takes the nodes' memories for another world; this one has none afterwards.
    pub fn take_memory(&mut self) -> Vec<Vec<u64>> {
        core::mem::take(&mut self.nodes)
    }

    /// Executes all words of a verb.
    pub(in crate::fabric) fn execute_verb(&mut self, verb: &Verb, words: &mut [u64]) {
        let memory = &mut self.nodes[usize::from(verb.addr.node().0)];
        let all = 0..verb.word_count as usize;
        let place = verb.addr.index() as usize;
        execute(
            verb.kind,
            &all,
            &mut memory[place..],
            &mut words[verb.start as usize..],
        );
    }
}

/// Executes words of a verb on `memory`, which begins at the verb's address; its data begins at
/// `data`.
pub(in crate::fabric) fn execute(
    kind: VerbKind,
    words: &core::ops::Range<usize>,
    memory: &mut [u64],
    data: &mut [u64],
) {
    match kind {
        VerbKind::Read => data[words.clone()].copy_from_slice(&memory[words.clone()]),
        VerbKind::Write => memory[words.clone()].copy_from_slice(&data[words.clone()]),
        VerbKind::CompareSwap => {
            data[2] = memory[0];
            if memory[0] == data[0] {
                memory[0] = data[1];
            }
        }
        VerbKind::FetchAdd => {
            data[1] = memory[0];
            memory[0] = memory[0].wrapping_add(data[0]);
        }
    }
}
