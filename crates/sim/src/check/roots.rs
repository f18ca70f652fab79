//! B2 to B4: the root is of the load that retired the first leaf, or of none, and its snapshot is
//! whole and leads to linked leaves.

use farleaf_node::audit::Promise;

use super::Violation;
use super::region::Region;

/// Checks the root and the snapshot that it names.
pub fn check(region: &Region) -> Vec<Violation> {
    region.broken(Promise::Root, "roots")
}
