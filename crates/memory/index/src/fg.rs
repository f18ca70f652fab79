//! FG: no cache at all. Every operation descends from the root, one round trip per level (Ziegler
//! et al., "fine-grained" design, as the papers compare with it).

use farleaf_types::RemoteAddr;

use crate::hint::{Hint, SearchLayer};
use crate::tree::head::Head;

/// One session's FG layer on one table: where the root is.
#[derive(Debug)]
pub struct FgLayer {
    head: Head,
}

impl FgLayer {
    /// A layer that begins at the root that the head named when it was read.
    pub fn new(head: Head) -> Self {
        Self { head }
    }

    /// The tree's head; its root may have split since.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// There is another root.
    pub fn set_root(&mut self, root: RemoteAddr) {
        self.head.root = root;
    }
}

impl SearchLayer for FgLayer {
    /// The first leaf: which leaf it is far memory has to tell.
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
