//! Checks that a complete cache of a tree leads to each listed leaf without following a link, when
//! no client works.

use farleaf_base::RemoteAddr;
use farleaf_executor::block_on;

use super::Violation;
use crate::fabric::endpoint::StillEndpoint;
use crate::history::Operation;
use crate::session::Session;

/// Asks for the low fence key of each listed leaf, with a session that read its cache while virtual
/// time stood still.
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
                "the tree lists leaf {leaf} for key {low:#x}, but a newer cache reaches it only \
                 through another leaf"
            );
            return Ok(Some(Violation::new("caches", how)));
        }
    }
    Ok(None)
}
