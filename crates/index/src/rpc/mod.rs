//! Tables whose records the memory node holds in a map of its own: what a client asks, and what it
//! is answered. Every operation is one call (`farleaf-message`), as with DrTM-Tree, or Masstree
//! over eRPC, which XStore's paper compares itself with (OSDI 2020, section 5).
//!
//! | module | what it holds |
//! |---|---|
//! | [`request`] | requests as bytes |
//! | [`reply`] | replies as bytes |
//! | [`change`] | what a write is to make of what it finds |
//! | [`bytes`] | the same of tables of byte strings |
//!
//! Everything on the wire is made of little-endian words of 8 bytes.

pub mod bytes;
pub mod change;
pub mod reply;
pub mod request;

mod words;

pub use change::Change;
pub use reply::{Failure, Looked, ModelNews, Reply};
pub use request::{LOAD_PART_COUNT_MAX, MULTI_GET_COUNT_MAX, Request, SCAN_COUNT_MAX};
pub use words::BadWords;
