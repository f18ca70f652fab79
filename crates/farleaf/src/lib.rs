//! Farleaf: an ordered key-value store for data that several processes or machines share.
//!
//! A *pool* is the memory of one or more memory nodes, shared by any number of processes. A
//! [`Session`] is the access of one thread to a pool. A [`Table`] is an ordered map from u64 keys
//! to u64 values. A get costs one READ of one leaf and a put two round trips; no server executes
//! code for them.
//!
//! ```
//! use farleaf::{Pool, TableOptions};
//!
//! # fn main() -> Result<(), farleaf::Error> {
//! let pool = Pool::open("mem:")?; // "shm:NAME", "tcp:HOST:PORT": what `farleaf serve` serves
//! let session = pool.session()?;
//! let table = session.create_table("planets", &TableOptions::default())?;
//! table.put(3, 12_742)?;
//! table.put(5, 139_820)?;
//! assert_eq!(table.get(3)?, Some(12_742));
//! let records: Result<Vec<_>, _> = table.range(4..).collect();
//! assert_eq!(records?, [(5, 139_820)]);
//! # Ok(())
//! # }
//! ```
//!
//! Calls on [`Table`] block. [`AsyncTable`] offers the same operations as futures, and one thread
//! can run many of them concurrently (see `farleaf-executor`). Each method documents its cost in
//! round trips; [`Session::counters`] returns the measured costs.
//!
//! A table can also span several pools, each with one key range: see [`PartitionedPool`]. Module
//! [`persistent`] has tables on the disks of several servers, a separate store with the same
//! operations.
//!
//! Guarantees: a single get, put, insert, update, delete or compare-and-swap is linearizable; a
//! scan is not a snapshot (rule LEAF-9 of `docs/reference/leaf-protocol.md`). A client can be
//! killed at any moment: acknowledged writes stay, and other clients wait for a dead one only for a
//! bounded time.

#![forbid(unsafe_code)]

mod async_table;
mod at_once;
mod begin;
mod by_models;
mod bytes;
mod direction;
mod endpoint;
mod error;
pub mod host;
mod nodes;
mod options;
mod partition;
pub mod persistent;
mod pool;
mod pool_address;
mod process;
mod remote;
mod scan;
mod scanning;
mod session;
mod share;
mod stats;
mod table;
mod tree_cache;

pub use async_table::AsyncTable;
pub use bytes::{
    AsyncByteTable, ByteInsertion, ByteReverseScan, ByteScan, ByteSwap, ByteTable, ByteTableStats,
    TypedReverseScan, TypedScan, TypedTable,
};
pub use error::{Error, ErrorKind};
pub use farleaf_fabric::mapped::PageKind;
pub use farleaf_fabric::tcp::TcpConnectOptions as ConnectOptions;
pub use farleaf_fabric::verbs::{VerbsError, VerbsOptions};
pub use farleaf_fabric::{ControlError, Cost, KindCounters, OperationKind};
pub use farleaf_index::load::LoadSummary;
pub use farleaf_index::operation::{HintCounters, LeafReport, LostRange};
pub use farleaf_index::partial::PartialCounts;
pub use farleaf_index::strings::ByteLoadError;
pub use farleaf_index::strings::PartCounts;
pub use farleaf_index::strings::load::ByteLoadSummary;
pub use farleaf_index::strings::operation::{Record, RecordBuffer};
pub use farleaf_index::xstore::ModelCache;
pub use farleaf_index::xstore::layer::UnknownModelCache;
pub use farleaf_key as key;
pub use farleaf_net::secret::{Rights, Secret, SecretError};
pub use farleaf_net::tls::{
    CertificateFiles, TlsAuthorities, TlsClient, TlsError, TlsIdentity, TlsServer,
};

/// Smallest metadata budget of a session, in bytes.
pub const METADATA_BUDGET_BYTES_MIN: u64 = farleaf_index::partial::Budget::BYTES_MIN;
pub use farleaf_index::{LayerKind, LoadError};
pub use farleaf_pool::members::{
    MEMBER_ADDRESS_SIZE_BYTES_MAX as NODE_ADDRESS_SIZE_BYTES_MAX, MemberState as NodeState,
};
pub use farleaf_pool::part::{PartRecord, PartitionedTableId};
pub use farleaf_pool::tally::RetrainCounters;
pub use nodes::NodeInfo;
pub use options::{
    EmbeddedFabric, PageOptions, PoolOptions, SessionOptions, TableInfo, TableKind, TableOptions,
    call_options, retrain_policy,
};
pub use partition::{
    AsyncPartitionedTable, Bounds, ListedPartition, PART_COUNT_MAX, PartitionError,
    PartitionedInfo, PartitionedPool, PartitionedReverseScan, PartitionedScan, PartitionedSession,
    PartitionedTable,
};
pub use pool::{Pool, PoolInfo, PoolUsage, RetrainingReport};
pub use scan::{ReverseScan, Scan};
pub use session::{AsyncSession, Session};
pub use stats::TableStats;
pub use table::{Insertion, Swap, Table, Update};
