//! Checks memory for leaks: every chunk and leaf is in use or free, and free memory is zero. Chunks
//! of runs have linked leaves, and snapshots have exactly the chunks that they need.

use farleaf_node::audit::Promise;

use super::Violation;
use super::memory::Region;

/// Checks every chunk, and every leaf in chunks from which splits allocate.
pub fn check(memory: &Region) -> Vec<Violation> {
    memory.broken(Promise::Leaks, "leaks")
}
