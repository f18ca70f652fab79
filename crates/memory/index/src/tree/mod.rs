//! A tree of inner nodes in far memory, over the leaves of a table. The search layers `rf-tree`,
//! `fg`, `sherman` and `cell` find leaves by it (RF-tree's Spread approach).
//!
//! The tree is a B-link tree whose lowest level is the data layer. Everything in it is a hint: a
//! listed child may have split, and the leaf itself shows that. If the tree lacks entries, for a
//! while or forever, results stay correct and only paths get longer. Nodes are never merged or
//! moved: a compaction writes a new tree ([`compact`](crate::retrain::compact)). A session's cached
//! nodes therefore stay valid as long as the table's root.
//!
//! | module | contents |
//! |---|---|
//! | [`node`] | the inner node codec |
//! | [`head`] | the block that names the root |
//! | `access` | reading and locking a node, recovering one from a dead owner |
//! | `descend` | from the root to the node that lists a key's leaf |
//! | `change` | listing a child, up to a new root |
//! | `pieces` | far memory for leaves and nodes that a load creates |
//! | [`build`] | writing a whole tree |
//! | [`level`] | reading the whole level above the leaves, in large pieces |
//!
//! Any change of a tree keeps these rules:
//!
//! - **Change.** An inner node is changed like a leaf, by the holder of its lock, in one batch:
//!   first entries that the bitmap does not list, or one child's address; then link, high and
//!   bitmap as needed; then `state`, the commit point; then `lock` = 0. A reader accepts an image
//!   only if its checksum matches.
//! - **Chain.** Each level is a chain over all keys. Lower fences never change, and a link leads to
//!   the node that begins where this one ends. A new node is complete on its memory node before
//!   anything links to it. Then its left neighbor links to it and shrinks.
//! - **Listing.** A child is listed by its lower fence, in the node of the next level that covers
//!   the fence. It is listed only after it is linked, because an operation led to a leaf may write
//!   there. The session that splits lists the new child. If it dies first, a session that reached
//!   the child by a link may list it. A reader of whole chunks also sees nodes that are not linked.
//!   It assumes that a node is linked only if another node says so.
//! - **Locks.** Locks of inner nodes are taken one at a time, without holding a leaf's lock.
//! - **Head.** The head names a node at the top. If that node has split, the session that lists the
//!   new sibling creates a node above it and swaps the head's word by CAS. The leftmost node of a
//!   level stays leftmost, so the old top is the first entry of the new one.
//! - **Recovery.** Any session may recover a lock whose owner is fenced. An intact node keeps its
//!   state. For a torn one, the upper fence is computed from the node that it links to, as for
//!   leaves (LEAF-8); entries beyond the fences are removed, and the state is recomputed.
//! - **Cached level.** A process that caches the level above the leaves first reads every intact
//!   node that can be reached, then uses the copy. It never changes a copy, only replaces it. A
//!   leaf in the copy is found without following a link, until the leaf splits or is retired.

pub mod build;
pub mod head;
pub mod level;
pub mod node;

mod access;
mod change;
mod descend;
mod pieces;

pub use access::TreeAccess;
pub use change::{ListingResources, ListingResult};
pub use descend::Descent;
pub(crate) use pieces::Pieces;
