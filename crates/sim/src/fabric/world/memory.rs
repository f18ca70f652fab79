//! The nodes' memory, and what verbs do to it.

use farleaf_fabric::{Verb, VerbKind};
use farleaf_types::{NodeId, WordAddr};

use super::client::{cost_of, count_effect};
use super::{ClientId, World};

impl World {
    /// F7.
    pub(in crate::fabric) fn is_inside(&self, verb: &Verb) -> bool {
        let size = self.region_word_count(verb.addr.node());
        let end = verb.addr.index().checked_add(verb.word_count.into());
        matches!((size, end), (Some(size), Some(end)) if end <= size)
    }

    /// Size of a node's region.
    pub fn region_word_count(&self, node: NodeId) -> Option<u64> {
        self.nodes
            .get(usize::from(node.0))
            .map(|words| words.len() as u64)
    }

    /// How many nodes there are.
    pub fn node_count(&self) -> u8 {
        self.nodes.len() as u8
    }

    /// Memory as it is now, for audits.
    pub fn words(&self, from: WordAddr, word_count: usize) -> &[u64] {
        let start = from.index() as usize;
        &self.nodes[usize::from(from.node().0)][start..start + word_count]
    }

    /// Does a batch at once, as if its verbs took effect at this very moment: what a node's own
    /// processor sees of its loopback, with the world standing still.
    pub(in crate::fabric) fn execute_now(
        &mut self,
        client: ClientId,
        verbs: &[Verb],
        words: &mut [u64],
    ) -> Result<(), usize> {
        self.executed[client.0 as usize] += cost_of(verbs, 0);
        for (index, verb) in verbs.iter().enumerate() {
            if !self.is_inside(verb) {
                return Err(index);
            }
            let memory = &mut self.nodes[usize::from(verb.addr.node().0)];
            let all = 0..verb.word_count as usize;
            let place = verb.addr.index() as usize;
            execute(
                verb.kind,
                &all,
                &mut memory[place..],
                &mut words[verb.start as usize..],
            );
            let executed = &mut self.executed[client.0 as usize];
            count_effect(executed, verb.kind, all.len());
        }
        Ok(())
    }
}

/// Executes words of a verb on `memory`, which begins at its place; its data begins at `data`.
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
