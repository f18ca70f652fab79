//! Checks that a pool is still served after writes.

use anyhow::Context;
use farleaf::{ControlError, ErrorKind, Pool};

/// Fails if the pool's node has ended. A process that has mapped the pool's memory can still write
/// to it then, but no other process will see the writes.
pub(super) fn check_pool_served(pool: &Pool) -> anyhow::Result<()> {
    match pool.session() {
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::Control(ControlError::Silent { .. })
            ) =>
        {
            tracing::warn!("what was written is lost if the memory node ends: {error}");
            Ok(())
        }
        probe => probe.map(drop).context(
            "the memory node ended meanwhile, and what was written is gone with its memory",
        ),
    }
}
