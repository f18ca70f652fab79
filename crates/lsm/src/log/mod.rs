//! The value log (VL1 to VL6): every write, in the order in which they take effect, and where
//! values stay.
//!
//! | module | what it holds |
//! |---|---|
//! | [`record`] | the layout |
//! | `segments` | which log segment is where on the device |
//! | `append` | writing: the segment that is being filled, and records larger than one |
//! | `sync` | making it durable, for all who wait at once |
//! | `read` | reading a record |
//! | [`replay`] | reading the log again when the directory is opened |

pub mod record;
pub mod replay;

mod append;
mod read;
mod segments;
mod sync;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex};

pub use append::Appended;
pub use read::Record;
pub use segments::LogSegments;

use self::append::Tail;
use self::sync::SyncState;
use crate::manifest::Manifest;

/// The log of an engine.
#[derive(Debug)]
pub struct ValueLog {
    segments: LogSegments,
    manifest: Arc<Manifest>,
    tail: Mutex<Tail>,
    /// The log segment that is being filled: all before it are on the device, if not synced.
    tail_number: AtomicU64,
    synced: Mutex<SyncState>,
    has_synced: Condvar,
    /// What records take, on the average of late.
    record_size_bytes: AtomicU64,
}
