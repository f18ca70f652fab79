//! A tree of inner nodes in far memory, over the leaves of a table: what the search layers
//! `rf-tree`, `fg`, `sherman` and `cell` find leaves by (DESIGN 5; RF-tree: the Spread approach).
//!
//! The tree is a B-link tree whose lowest level is the data layer. All that it says is a hint: a
//! child that it lists may have split; the leaf says so itself. So a tree may lack entries, for a
//! while or for ever, and answers stay right; only the way gets longer. Nothing of a tree is merged
//! or moved: a compaction makes a new one (K3 of [`compact`](crate::retrain::compact)). So what a
//! session has cached of it stays true for as long as the table's root does.
//!
//! | module | what it holds |
//! |---|---|
//! | [`node`] | the inner node codec |
//! | [`head`] | where the root is |
//! | `access` | reading and locking a node, recovering one from a dead owner |
//! | `descend` | from the root to the node that lists a key's leaf |
//! | `change` | listing a child, up to a new root |
//! | `pieces` | room for what a load makes |
//! | [`build`] | a whole tree at once |
//! | [`level`] | reading all of the level above the leaves, in large pieces |
//!
//! - **I1.** An inner node is changed as a leaf is: by the holder of its lock, who writes entries
//!   that the bitmap does not list, or one child's address; then link, high and bitmap, as far as
//!   they change; then `state`, the commit point; then `lock` = 0. All in one batch. A reader
//!   believes an image only if its checksum matches.
//! - **I2.** Each level is a chain over all keys: lower fences never change, links lead to where
//!   the node's range has ended. A new node is complete, on its memory node, before anything links
//!   to it; then its left neighbour is linked to it, and shrinks.
//! - **I3.** A child is listed by its lower fence, in the node of the next level whose range that
//!   is in, and only when it is linked to: whoever is led to it may write there. The one who split
//!   lists the new child; if it dies before, whoever has come to the child by a link may. Who reads
//!   chunks of the tree whole meets nodes that nothing links to, and believes of none that it is
//!   linked to unless another node says so.
//! - **I4.** Locks of inner nodes are taken one at a time, with no leaf's lock in hand.
//! - **I5.** The head names a node at the top. If the top has split, whoever lists the new sibling
//!   makes a node above it and swaps the head's word. The left-most node of a level stays that, so
//!   the old top is the first entry of the new one.
//! - **I6.** A lock whose owner is fenced is recovered by anyone: an intact node keeps its state;
//!   of a torn one the upper fence is computed from what it links to, as for leaves (D8), entries
//!   beyond the fences are taken off, and the state is computed anew.
//! - **I7.** A process that caches the level above the leaves searches in a copy only when it has
//!   read every node that is intact and can be reached, and never changes one: it puts a newer one
//!   in its place. A leaf that a copy lists is found without following a link, until it splits or
//!   is retired.

pub mod build;
pub mod head;
pub mod level;
pub mod node;

mod access;
mod change;
mod descend;
mod pieces;

pub use access::TreeAccess;
pub use change::{Listed, Room};
pub use descend::Descent;
pub(crate) use pieces::Pieces;
