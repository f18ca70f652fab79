//! F6: a session says that it has closed when no batch of it is under way, and is fenced then.
//!
//! Both are looked at by what the world knows, and before anybody fences the client: a fence cuts
//! off what is under way, and so hides it.

use farleaf_region::session::{is_fenced, life_of};
use farleaf_types::OwnerWord;

use super::Violation;
use crate::fabric::world::ClientId;
use crate::node::Node;

/// To be called when a session says that it has drained: whether a batch of its client is not
/// complete.
pub fn not_drained(node: &Node, client: ClientId) -> Option<Violation> {
    let count = node.world.borrow().in_flight_count(client);
    (count > 0).then(|| {
        let how = format!(
            "the session of client {} closes while {count} of its batches are under way",
            client.0
        );
        Violation::new("closing", how)
    })
}

/// To be called when a session says that it is closed: whether its block still says "alive".
pub fn not_fenced(node: &Node, owner: OwnerWord) -> Option<Violation> {
    let (place, incarnation) = life_of(&node.layout, owner)?;
    let life = node.world.borrow().words(place, 1)[0];
    (!is_fenced(incarnation, life)).then(|| {
        let how = format!("the session {owner} is closed, and the node takes it for alive");
        Violation::new("closing", how)
    })
}
