//! Requests and replies of calls: all operations of tables with the search layer `rpc`, whose
//! records the memory node holds in its own map, and writes and lookups of `xstore` tables. Every
//! operation is one call (`farleaf_fabric::message`), as in DrTM-Tree, or Masstree over eRPC, which
//! XStore's paper compares with (OSDI 2020, section 5).
//!
//! | module | contents |
//! |---|---|
//! | [`request`] | encoding of requests |
//! | [`reply`] | encoding of replies |
//! | [`change`] | conditions and effects of writes |
//! | [`bytes`] | requests and replies for tables of byte strings |
//!
//! Messages consist of little-endian words of 8 bytes.

pub mod bytes;
pub mod change;
pub mod reply;
pub mod request;

mod words;

pub use change::Change;
pub use reply::{Failure, LookUpReply, ModelNews, WordReply};
pub use request::{LOAD_PART_COUNT_MAX, MULTI_GET_COUNT_MAX, SCAN_COUNT_MAX, WordRequest};
pub use words::BadWords;
