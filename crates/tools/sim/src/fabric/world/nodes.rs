//! Nodes that are gone: lost ones, whose memory went with them (U4), and ones that have left (V5).

use farleaf_fabric::{BatchError, BatchErrorKind, Cost, Verb};
use farleaf_types::NodeId;

use super::client::{cost_of, count_effect};
use super::flight::Flight;
use super::{ClientId, World};

/// What may become of verbs to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeLife {
    /// They take effect.
    #[default]
    Here,
    /// U4: none does any more. A batch with one of them says so; those to other nodes take effect.
    Lost,
    /// V5: it was drained and has been stopped. Nobody has anything to do there, so a batch with a
    /// verb to it is not posted at all.
    Left,
}

impl World {
    /// What may become of verbs to a node.
    pub fn node_life(&self, node: NodeId) -> NodeLife {
        let lives = self.node_lives.get(usize::from(node.0));
        lives.copied().unwrap_or_default()
    }

    /// U4: no verb to the node takes effect from now on, and batches with such verbs that are in
    /// flight will say that it is lost.
    pub fn lose_member(&mut self, node: NodeId) {
        self.node_lives[usize::from(node.0)] = NodeLife::Lost;
        self.locks.forget_node(node);
        self.note(|| format!("{node} is lost"));
    }

    /// V5: the node has been stopped.
    pub fn stop_member(&mut self, node: NodeId) {
        self.node_lives[usize::from(node.0)] = NodeLife::Left;
        self.note(|| format!("{node} has left"));
    }

    /// The first verb of those to a node that is not there any more as this says.
    pub(super) fn first_to(&self, verbs: &[Verb], life: NodeLife) -> Option<usize> {
        verbs
            .iter()
            .position(|verb| self.node_life(verb.addr.node()) == life)
    }

    /// How a batch fails that goes to a node which has left, and so is not posted.
    pub(super) fn unreachable(&self, verbs: &[Verb]) -> Option<BatchError> {
        let verb = self.first_to(verbs, NodeLife::Left)?;
        let kind = BatchErrorKind::Unreachable {
            node: verbs[verb].addr.node(),
            reason: "it has been drained, and stopped".to_owned(),
        };
        Some(BatchError::new(kind, 0))
    }

    /// How a batch fails that was complete but for what went to a lost node.
    pub(super) fn node_lost(verbs: &[Verb], first: usize) -> BatchError {
        let node = verbs[first].addr.node();
        BatchError::new(BatchErrorKind::NodeLost { node }, first)
    }

    /// F9, for a batch of which some verbs went to a lost node: words that took effect.
    pub(super) fn cost_of_effects(flight: &Flight) -> Cost {
        let mut cost = cost_of(&flight.verbs, 0);
        for (piece, is_done) in flight.pieces.iter().zip(&flight.is_done) {
            if *is_done {
                let kind = flight.verbs[piece.verb_index].kind;
                count_effect(&mut cost, kind, piece.words.len());
            }
        }
        cost
    }

    /// Does a batch at once, as if its verbs took effect at this very moment: what a node's own
    /// processor sees of its loopback, with the world standing still.
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

    /// F7.
    pub(super) fn refusal(&self, verbs: &[Verb], index: usize) -> BatchError {
        let verb = &verbs[index];
        let kind = BatchErrorKind::Refused {
            addr: verb.addr,
            word_count: verb.word_count.into(),
            region_word_count: self.region_word_count(verb.addr.node()),
        };
        BatchError::new(kind, index)
    }
}
