//! Checks the root: it belongs to the load that retired the first leaf, or to none, and its
//! snapshot is intact and leads to linked leaves.

use farleaf_node::audit::Promise;

use super::Violation;
use super::memory::Region;

/// Checks the root and its snapshot.
pub fn check(memory: &Region) -> Vec<Violation> {
    memory.broken(Promise::Root, "roots")
}
