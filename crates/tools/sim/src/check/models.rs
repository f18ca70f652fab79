//! Checks models of `xstore` tables: when nothing is written and no training is due, each key is
//! found without the node once its models have been fetched.

use farleaf_executor::block_on;

use super::Violation;
use crate::fabric::endpoint::StillEndpoint;
use crate::history::Operation;
use crate::session::Session;

/// Gets each key twice, with a session that follows no link before it asks the node.
///
/// # Errors
/// The fabric failed.
pub fn check(
    session: &Session<StillEndpoint>,
    keys: &[u64],
) -> Result<Option<Violation>, Box<dyn core::error::Error>> {
    let fallback_count = || session.hint_counters().fallback_count;
    for key in keys {
        // First models, then sub-models.
        for _ in 0..2 {
            block_on(session.perform(&Operation::Get(*key), None), || 0)?;
        }
        let before = fallback_count();
        block_on(session.perform(&Operation::Get(*key), None), || 0)?;
        if fallback_count() > before {
            let how = format!(
                "the newest models do not lead to key {key:#x}, although no client writes and no \
                 training is due"
            );
            return Ok(Some(Violation::new("models", how)));
        }
    }
    Ok(None)
}
