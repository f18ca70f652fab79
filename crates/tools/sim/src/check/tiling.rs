//! D6: along the links, ranges cover all keys with no gap and no overlap, leaves are intact and
//! linked once each, and their records lie in their ranges, each once.

use farleaf_node::audit::Promise;

use super::Violation;
use super::region::Region;

/// Checks the whole chain.
pub fn check(region: &Region) -> Vec<Violation> {
    region.broken(Promise::Tiling, "tiling")
}
