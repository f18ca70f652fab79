//! Tables of byte strings: keys of 0 to 4,096 bytes, sorted as unsigned bytes, and values of 0 to
//! 64 MiB.
//!
//! [`ByteTable`] blocks, and [`AsyncByteTable`] has the same operations as futures. [`TypedTable`]
//! has keys and values of Rust types, encoded so that they sort as the types do (`farleaf-key`).

mod asynchronous;
mod exchange;
mod listing;
mod operating;
mod remote;
mod remote_load;
mod scan;
mod scanning;
mod state;
mod stats;
mod table;
mod transfers;
mod typed;

pub use asynchronous::{AsyncByteTable, ByteInsertion, ByteSwap};
pub use scan::{ByteReverseScan, ByteScan};
pub(crate) use state::{ByteTableState, DroppedByteTable};
pub use stats::ByteTableStats;
pub use table::ByteTable;
pub(crate) use transfers::Transfers;
pub use typed::{TypedReverseScan, TypedScan, TypedTable};
