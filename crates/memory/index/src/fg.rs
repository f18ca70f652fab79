//! FG: no cache. Every operation descends from the root, one round trip per level (the
//! "fine-grained" design of Ziegler et al., as the papers compare with it).

use farleaf_base::RemoteAddr;

use crate::hint::{Hint, SearchLayer};
use crate::tree::head::Head;

/// FG layer of one session on one table; holds only the address of the root.
#[derive(Debug)]
pub struct FgLayer {
    head: Head,
}

impl FgLayer {
    /// Creates a layer that starts at the root named by the head when it was read.
    pub fn new(head: Head) -> Self {
        Self { head }
    }

    /// Returns the tree's head. Its root may have split since it was read.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Replaces the address of the root.
    pub fn set_root(&mut self, root: RemoteAddr) {
        self.head.root = root;
    }
}

impl SearchLayer for FgLayer {
    /// Returns the first leaf: only far memory can tell which leaf has the key.
    fn locate(&self, _key: u64) -> Hint {
        Hint {
            addr: self.head.first_leaf,
            parent: 0,
        }
    }

    fn left_of(&self, _key: u64, _failed: Hint) -> Option<Hint> {
        None
    }

    fn metadata_bytes(&self) -> u64 {
        size_of::<Self>() as u64
    }
}
