//! Writes replies: to the memory, or to the caller's window.

use farleaf_base::NodeId;
use farleaf_fabric::{Batch, BatchError, Counters, Endpoint, ProtocolCheck, Windows};
use farleaf_pool::session::ReplyPlace;

use super::ring_registry::SessionRings;

/// Writer of replies to one session.
pub(super) struct ToCaller<'a, E, W: ?Sized> {
    pub(super) near: &'a E,
    pub(super) windows: &'a W,
    pub(super) session_rings: &'a SessionRings,
}

impl<E: Endpoint, W: Windows + ?Sized> Endpoint for ToCaller<'_, E, W> {
    async fn execute(&self, batch: &mut Batch) -> Result<(), BatchError> {
        if self.session_rings.reply_place == ReplyPlace::InWindow {
            self.windows.write(self.session_rings.owner, batch);
            return Ok(());
        }
        self.near.execute(batch).await
    }

    fn skips_check(&self, check: ProtocolCheck) -> bool {
        self.near.skips_check(check)
    }

    fn poll_completions(&self) -> usize {
        self.near.poll_completions()
    }

    fn counters(&self) -> &Counters {
        self.near.counters()
    }

    fn memory_word_count(&self, node: NodeId) -> Option<u64> {
        self.near.memory_word_count(node)
    }
}
