//! Search layer of sessions that must not hold the whole directory: `learned` tables under a
//! metadata budget in bytes.
//!
//! A session holds the heads of all model pages, and as many model pages, residual pages and
//! synonyms as the budget permits. It fetches the rest from the snapshot when needed. That costs
//! time, never correctness: what it holds are hints, as in every search layer.
//!
//! - **Floor.** Heads, and a bit per residual page (1024 at most), are always held. Heads take at
//!   most a quarter of the budget. If there are more, one head stands for 2, 4, 8... pages, which
//!   are then read as one. Any budget from 1 KiB on therefore suffices for any table.
//! - **Accounting.** What the session holds between operations never exceeds the budget: pages with
//!   their entries, synonyms, and the overhead of memory allocation. Pages in use by a running
//!   operation are not counted.
//! - **Eviction.** Models save a round trip, residuals save bytes. A model page therefore evicts
//!   residual pages, then synonyms, then other model pages. A synonym evicts residual pages, then
//!   other synonyms. A residual page uses space that models do not need, or evicts another residual
//!   page when it is missed for the second time. Within a kind CLOCK decides.
//! - **Pages belong to a root.** A page is read by the root that the session uses, and kept only if
//!   that root is unchanged when it arrives. With another root all of them are dropped. Reading
//!   them is safe by LEAF-7. A running operation keeps the number at which it began, so the
//!   snapshot that it knew, and newer ones, are not reused before it ends.
//! - **Verification.** Each model and each residual page has its own checksum, and a model page
//!   must agree with its head.
//! - **Misses.** A missing model costs one round trip, for the page. Missing residuals cost a read
//!   no round trip: it reads the adjacent leaves of the predicted range with one verb, and their
//!   fences decide. A write reads the residual page first, so that it locks only the right leaf.
//!
//! The session does not read announcements of splits, which would need a word per model. It meets
//! new leaves by links, and remembers as many as the budget permits.

mod admission_filter;
mod layer;
mod models;

pub(crate) use layer::ResidualPage;
pub use layer::{Budget, PartialCounts, PartialLayer, PredictedPlace, PredictedRange};
pub use models::{ALLOCATION_BYTES, ModelPage};
