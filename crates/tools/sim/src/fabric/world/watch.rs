//! Tasks that wait for a moment in the middle of a client's batch. Faults use them to hit the
//! moments at which most protocols fail.

use farleaf_fabric::{ProtocolPhase, Verb, VerbKind};

use super::{ClientId, ClientLife, DueEvent, TaskId, World};
use crate::fabric::schedule::Piece;

/// Batches of a client that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedBatches {
    /// Batches with at least this many verbs that change memory.
    Changes(usize),
    /// Batches of a phase.
    Phase(ProtocolPhase),
}

/// Task that waits for a moment in the middle of a client's batch.
#[derive(Debug)]
pub(super) struct BatchWatch {
    client: ClientId,
    wanted: WantedBatches,
    /// Number of wanted batches that are still to come.
    left: u64,
    task: TaskId,
}

impl World {
    /// Polls the task once, at some moment between the effects of a batch of the client: the
    /// `number`-th wanted one, counted from 1. Also polls it when the client posts no more.
    pub(in crate::fabric) fn watch(
        &mut self,
        task: TaskId,
        client: ClientId,
        number: u64,
        wanted: WantedBatches,
    ) {
        self.watches.push(BatchWatch {
            client,
            wanted,
            left: number,
            task,
        });
        if self.life(client) != ClientLife::Connected {
            self.release_watchers(client);
        }
    }

    /// Polls the tasks that wait for this batch of the client.
    pub(in crate::fabric) fn notify_watchers(
        &mut self,
        client: ClientId,
        verbs: &[Verb],
        pieces: &[Piece],
    ) {
        let changes = verbs.iter().filter(|verb| verb.kind != VerbKind::Read);
        let change_count = changes.count();
        let phase = self.progress(client).phase;
        let is_wanted = |wanted| match wanted {
            WantedBatches::Changes(count_min) => change_count >= count_min,
            WantedBatches::Phase(wanted) => phase == wanted,
        };
        let mut due = Vec::new();
        self.watches.retain_mut(|watch| {
            if watch.client == client && is_wanted(watch.wanted) {
                watch.left = watch.left.saturating_sub(1);
            }
            if watch.left == 0 {
                due.push(watch.task);
            }
            watch.left > 0
        });
        for task in due {
            // Each verb is equally likely, regardless of its number of pieces. The task is polled
            // after the piece, which was scheduled before.
            let verb = self.random.below(verbs.len().max(1) as u64) as usize;
            let of_verb: Vec<_> = pieces.iter().filter(|it| it.verb_index == verb).collect();
            let piece = self.random.below(of_verb.len().max(1) as u64) as usize;
            let at = of_verb.get(piece).map_or(self.now, |piece| piece.at);
            self.schedule(at, DueEvent::Poll(task));
        }
    }

    pub(super) fn release_watchers(&mut self, client: ClientId) {
        let (released, others) = core::mem::take(&mut self.watches)
            .into_iter()
            .partition(|watch| watch.client == client);
        self.watches = others;
        let released: Vec<BatchWatch> = released;
        for watch in released {
            let now = self.now;
            self.schedule(now, DueEvent::Poll(watch.task));
        }
    }
}
