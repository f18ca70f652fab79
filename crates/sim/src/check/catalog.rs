//! C1 to C3: when nobody works, every entry of the catalog can be read, and no two tables are
//! alike.

use farleaf_node::audit::Promise;

use super::Violation;
use super::region::Region;

/// Checks every entry.
pub fn check(region: &Region) -> Vec<Violation> {
    region.broken(Promise::Catalog, "catalog")
}
