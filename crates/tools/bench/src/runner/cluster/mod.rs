//! Persistent tables of a run: created in a cluster, loaded, measured, dropped.
//!
//! ```text
//!   PersistentConfig --> OwnServers, started for this workload alone, or a cluster that is there
//!                             |
//!   LoadedClusterTable: create the table, wait for all replicas, load it by all threads
//!                             |
//!   ClusterStore, one a thread: the operations of the workloads, each waited for
//!                             |
//!   LoadedClusterTable: drop the table, wait until its name is free; stop own servers
//! ```
//!
//! In addition to the rules of all runs:
//!
//! - **Existing clusters.** An existing table with the benchmark's name is not touched, and the run
//!   ends with an error. The benchmark drops its own table when the workload is done or has failed.
//!   If a signal ends the process, the table remains.
//! - **Replicas.** All replicas exist before the load begins, so that no part of a load or run has
//!   fewer of them, and none is filled meanwhile.
//! - **Order of the load.** Records are loaded in the order of their indexes, not of their keys, as
//!   YCSB does (`insertorder=hashed`): a sorted load would leave the servers nothing to merge.
//! - **Device bytes.** They are the bytes that servers read from and write to their files, whatever
//!   the system's cache does. Later flushes and merges count for the operations that run at that
//!   time.
//! - **Unavailable regions.** A thread ends if an operation times out because no server serves its
//!   key. Its other operations would take as long to fail. The report then has fewer operations,
//!   and an error for each such thread.
//!
//! | module | content |
//! |---|---|
//! | `config` | [`PersistentConfig`]: settings of the table and its servers |
//! | `servers` | own servers, in temporary directories |
//! | `device` | bytes that they read and write |
//! | `loaded_table` | the table, from its creation to its deletion |
//! | `load` | its records, put by many threads |
//! | `table` | the operations |

mod config;
mod device;
mod load;
mod loaded_table;
mod servers;
mod table;

pub use config::{PersistentConfig, REGION_COUNT_MAX, ServersConfig};
pub(super) use device::DeviceBytes;
pub(super) use loaded_table::LoadedClusterTable;
pub(super) use table::ClusterStore;
