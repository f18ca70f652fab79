//! Encoding of requests to region servers and of their replies
//! (docs/explanation/persistent-tables.md).
//!
//! | module | contents |
//! |---|---|
//! | `codec` | integers and strings |
//! | [`request`] | requests |
//! | [`scope`] | what a client's key permits |
//! | [`reply`] | replies |

mod codec;
pub mod reply;
pub mod request;
pub mod scope;

use farleaf_base::limits::VALUE_SIZE_BYTES_MAX;

pub use codec::Malformed;
pub use reply::{Reply, Status};
pub use request::{Body, Condition, DeleteRange, Exchange, Header, Request, Scan};

/// First byte of clients' requests, which distinguishes them from other requests on the same
/// connection.
pub const TAG: u8 = b'K';

/// Version of this protocol.
pub const VERSION: u8 = 2;

/// Largest request in bytes: one record of maximum size, with space for others.
pub const REQUEST_SIZE_BYTES_MAX: usize = VALUE_SIZE_BYTES_MAX + (1 << 20);

/// Size in bytes at which a reply ends, after at least one record.
pub const REPLY_SIZE_BYTES_SOFT_MAX: usize = 4 << 20;

/// Largest number of keys or records in a request.
pub const COUNT_MAX: u32 = 1 << 16;
