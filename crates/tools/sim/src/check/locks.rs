//! Checks locks (LEAF-8): when all clients have ended and the sweep is done, no lock is held.

use farleaf_node::audit::Promise;

use super::Violation;
use super::memory::Region;

/// Checks the catalog's lock, the locks of all leaf slots, used or free, and the owners of all
/// chunks.
pub fn check(memory: &Region) -> Vec<Violation> {
    memory.broken(Promise::Locks, "locks")
}
