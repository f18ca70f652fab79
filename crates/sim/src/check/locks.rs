//! D8: when everybody is gone and the sweep has been there, nobody holds anything.

use farleaf_node::audit::Promise;

use super::Violation;
use super::region::Region;

/// Checks the catalog's lock, the locks of all leaves and places for leaves, and the owners of all
/// chunks.
pub fn check(region: &Region) -> Vec<Violation> {
    region.broken(Promise::Locks, "locks")
}
