//! Whether anybody will see what was written.

use anyhow::Context;
use farleaf::{ControlError, ErrorKind, Pool};

/// A process that has mapped a pool's memory can go on writing to it when its node has ended; but
/// nobody will ever see that.
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
