//! Checks closed sessions: a session that reports its end has no batch in flight, and is fenced
//! (FABRIC-6).
//!
//! The simulator checks both from its own state before it fences the client itself: a fence cuts
//! off batches in flight and would hide them.

use farleaf_base::OwnerWord;
use farleaf_pool::session::{is_fenced, life_of};

use super::Violation;
use crate::fabric::world::ClientId;
use crate::node::Node;

/// Returns a violation if a session that reported "drained" has a batch in flight.
pub fn not_drained(node: &Node, client: ClientId) -> Option<Violation> {
    let count = node.world.in_flight_count(client);
    (count > 0).then(|| {
        let how = format!(
            "the session of client {} closes with {count} batches in flight",
            client.0
        );
        Violation::new("closing", how)
    })
}

/// Returns a violation if the block of a session that reported "closed" still says "alive".
pub fn not_fenced(node: &Node, owner: OwnerWord) -> Option<Violation> {
    let (place, incarnation) = life_of(&node.layout, owner)?;
    let life = node.world.borrow().words(place, 1)[0];
    (!is_fenced(incarnation, life)).then(|| {
        let how = format!("session {owner} is closed, but the node still considers it alive");
        Violation::new("closing", how)
    })
}
