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
            tracing::warn!("the written records are lost if the memory node stops: {error}");
            Ok(())
        }
        probe => probe.map(drop).context(
            "the memory node stopped during the load, and the written records were lost with its \
             memory",
        ),
    }
}
