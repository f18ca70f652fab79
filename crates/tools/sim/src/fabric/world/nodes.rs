//! Missing nodes: lost ones, whose memory is lost with them, and ones that have left the pool.

use farleaf_base::NodeId;
use farleaf_fabric::{BatchError, BatchErrorKind, Cost, Verb};

use super::{ClientId, World};
use crate::fabric::event::{cost_of, count_effect};

/// State of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeLife {
    /// Verbs to the node take effect.
    #[default]
    Here,
    /// The node is lost: verbs to it have no effect anymore. A batch with such a verb fails with
    /// that error; its verbs to other nodes take effect.
    Lost,
    /// The node was drained and has been stopped. No client needs it, so a batch with a verb to it
    /// is not posted at all.
    Left,
}

impl World {
    /// Returns the state of a node.
    pub fn node_life(&self, node: NodeId) -> NodeLife {
        let lives = self.node_lives.get(usize::from(node.0));
        lives.copied().unwrap_or_default()
    }

    /// Loses a node: from now on no verb to it takes effect, and batches in flight with such verbs
    /// fail with that error.
    pub fn lose_member(&mut self, node: NodeId) {
        self.node_lives[usize::from(node.0)] = NodeLife::Lost;
        self.locks.forget_node(node);
        self.note(|| format!("{node} is lost"));
    }

    /// Empties a node's memory.
    pub(in crate::fabric) fn clear_memory(&mut self, node: NodeId) {
        self.nodes[usize::from(node.0)].fill(0);
    }

    /// Records that a node has been stopped.
    pub fn stop_member(&mut self, node: NodeId) {
        self.node_lives[usize::from(node.0)] = NodeLife::Left;
        self.note(|| format!("{node} has left"));
    }

    /// Returns the first verb to a node in this state.
    fn first_to(&self, verbs: &[Verb], life: NodeLife) -> Option<usize> {
        verbs
            .iter()
            .position(|verb| self.node_life(verb.addr.node()) == life)
    }

    /// Returns the error of a batch that is not posted, since it goes to a node that has left.
    pub(in crate::fabric) fn unreachable(&self, verbs: &[Verb]) -> Option<BatchError> {
        let verb = self.first_to(verbs, NodeLife::Left)?;
        let kind = BatchErrorKind::Unreachable {
            node: verbs[verb].addr.node(),
            reason: "it has been drained, and stopped".to_owned(),
        };
        Some(BatchError::new(kind, 0))
    }

    /// Returns the error of a batch that is complete except for verbs to a lost node.
    pub(in crate::fabric) fn node_lost(verbs: &[Verb], first: usize) -> BatchError {
        let node = verbs[first].addr.node();
        BatchError::new(BatchErrorKind::NodeLost { node }, first)
    }

    /// Executes a batch at once, as if its verbs took effect at this moment: like loopback verbs of
    /// a node's own processor, while virtual time stands still.
    pub(in crate::fabric) fn execute_now(
        &mut self,
        client: ClientId,
        verbs: &[Verb],
        words: &mut [u64],
    ) -> (Cost, Result<(), BatchError>) {
        if let Some(error) = self.unreachable(verbs) {
            return (Cost::default(), Err(error));
        }
        let refused = verbs.iter().position(|verb| !self.is_inside(verb));
        let accepted = &verbs[..refused.unwrap_or(verbs.len())];
        let mut cost = cost_of(verbs, 0);
        for verb in accepted {
            if self.node_life(verb.addr.node()) == NodeLife::Here {
                self.execute_verb(verb, words);
                count_effect(&mut cost, verb.kind, verb.word_count as usize);
            }
        }
        self.executed[client.0 as usize] += cost;
        let result = match (self.first_to(accepted, NodeLife::Lost), refused) {
            (Some(first), _) => Err(Self::node_lost(verbs, first)),
            (None, Some(index)) => Err(self.refusal(verbs, index)),
            (None, None) => Ok(()),
        };
        (cost, result)
    }

    /// Returns the error of a verb outside its node's memory (FABRIC-7).
    pub(in crate::fabric) fn refusal(&self, verbs: &[Verb], index: usize) -> BatchError {
        let verb = &verbs[index];
        let kind = BatchErrorKind::Refused {
            addr: verb.addr,
            word_count: verb.word_count.into(),
            memory_word_count: self.memory_word_count(verb.addr.node()),
        };
        BatchError::new(kind, index)
    }
}
