//! Every chunk and every leaf is either in use or free, and what is free is zero (A4); run chunks
//! hold linked leaves, and snapshots have just the chunks that they take (W3, W4).

use farleaf_node::audit::Promise;

use super::Violation;
use super::region::Region;

/// Checks every chunk, and in those that splits take from, every leaf.
pub fn check(region: &Region) -> Vec<Violation> {
    region.broken(Promise::Leaks, "leaks")
}
