//! The way of replies: into the region, or into the window of who has called (S5).

use farleaf_fabric::{Batch, BatchError, Counters, Endpoint, ProtocolCheck, Windows};
use farleaf_region::session::Wish;
use farleaf_types::NodeId;

use super::desk::Line;

/// To one session.
pub(super) struct ToCaller<'a, E, W: ?Sized> {
    pub(super) near: &'a E,
    pub(super) windows: &'a W,
    pub(super) line: &'a Line,
}

impl<E: Endpoint, W: Windows + ?Sized> Endpoint for ToCaller<'_, E, W> {
    async fn execute(&self, batch: &mut Batch) -> Result<(), BatchError> {
        if self.line.wish == Wish::InWindow {
            self.windows.write(self.line.owner, batch);
            return Ok(());
        }
        self.near.execute(batch).await
    }

    fn leaves_out(&self, check: ProtocolCheck) -> bool {
        self.near.leaves_out(check)
    }

    fn poll_completions(&self) -> usize {
        self.near.poll_completions()
    }

    fn counters(&self) -> &Counters {
        self.near.counters()
    }

    fn region_word_count(&self, node: NodeId) -> Option<u64> {
        self.near.region_word_count(node)
    }
}
