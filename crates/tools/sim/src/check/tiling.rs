//! Checks LEAF-6: along the links, ranges cover all keys without gap or overlap. Leaves are intact
//! and linked once each; their records lie in their ranges, each once.

use farleaf_node::audit::Promise;

use super::Violation;
use super::memory::Region;

/// Checks the whole chain.
pub fn check(memory: &Region) -> Vec<Violation> {
    memory.broken(Promise::Tiling, "tiling")
}
