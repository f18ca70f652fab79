//! I7: what a tree lists is found by a cache of it without following a link, when nobody works.

use farleaf_executor::block_on;
use farleaf_types::RemoteAddr;

use super::Violation;
use crate::fabric::endpoint::StillEndpoint;
use crate::history::Operation;
use crate::session::Session;

/// Asks for the lower fence of each leaf that the tree lists, by a session that has read its cache
/// while the world stood still.
///
/// # Errors
/// The fabric failed.
pub fn check(
    session: &Session<StillEndpoint>,
    listed: &[(u64, RemoteAddr)],
) -> Result<Option<Violation>, Box<dyn core::error::Error>> {
    let links = || session.hint_counters().synonym_count;
    for (low, leaf) in listed {
        let before = links();
        block_on(session.perform(&Operation::Get(*low), None), || 0)?;
        if links() > before {
            let how = format!(
                "the tree lists leaf {leaf} for key {low:#x}, and a cache that was read since \
                 leads there by way of another leaf"
            );
            return Ok(Some(Violation::new("caches", how)));
        }
    }
    Ok(None)
}
