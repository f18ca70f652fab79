//! The search layer of sessions that must not hold the whole directory (DESIGN L3): `learned`
//! tables under a metadata budget in bytes.
//!
//! A session holds the heads of all model pages; model pages, residual pages and synonyms as far as
//! the budget goes; and fetches the rest from the snapshot when it needs it. Slower, never wrong:
//! what it holds are hints, as in every search layer.
//!
//! - **L3.1** *The floor.* Heads, and a bit per residual page (1024 at the most), are always held.
//!   Heads take a quarter of the budget at the most: where there are more, a head stands for 2, 4,
//!   8... pages, which are then read as one. So any budget from 1 KiB on does for any table.
//! - **L3.2** *Everything counts.* What the session holds between operations is never more than the
//!   budget: pages with their entries, synonyms, and what memory allocation adds. Pages that an
//!   operation under way has in hand are not counted.
//! - **L3.3** *What goes first.* Models save a round trip, residuals save bytes. So a model page
//!   pushes out residual pages, then synonyms, then other model pages; a synonym pushes out
//!   residual pages, then other synonyms; a residual page takes room that models do not need, or
//!   pushes out its like when it is missed for the second time. Among their like, CLOCK decides.
//! - **L3.4** *Pages belong to a root.* They are read by the root that the session searches by, and
//!   kept only if that is still the same when they arrive; with another root all of them are
//!   dropped. Reading them is safe by D7: an operation under way keeps the number at which it
//!   began, so the snapshot that it knew, or a newer one, is not reused before it ends.
//! - **L3.5** *Checked before use.* Each model and each residual page has a checksum of its own; a
//!   model page has to be what its head promises.
//! - **L3.6** *Missing models* cost one round trip, for the page. *Missing residuals* cost no round
//!   trip of a read: it reads the leaves of the predicted range, which lie side by side, with one
//!   verb, and the leaf's fences tell. A write reads the residual page first, so that it locks one
//!   leaf, the right one.
//!
//! Splits are not caught up with by announcements, which would need a word per model: they are met
//! by links, and known as far as the budget goes.

mod doorkeeper;
mod layer;
mod models;

pub(crate) use layer::ResidualPage;
pub use layer::{Aim, Budget, PartialCounts, PartialLayer, PredictedRange};
pub use models::{ALLOCATION_BYTES, ModelPage};
