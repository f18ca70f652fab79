//! Checks the catalog at the end of a run: every entry is readable, and no two tables have the same
//! name or number.

use farleaf_node::audit::Promise;

use super::Violation;
use super::memory::Region;

/// Checks every entry of the catalog.
pub fn check(memory: &Region) -> Vec<Violation> {
    memory.broken(Promise::Catalog, "catalog")
}
