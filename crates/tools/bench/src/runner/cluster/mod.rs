//! Persistent tables of a run: made in a cluster, loaded, asked, dropped.
//!
//! ```text
//!   PersistentConfig --> OwnServers, started for this workload alone, or a cluster that is there
//!                             |
//!   ClusterHome:  create the table, wait until all replicas are there, load it by all threads
//!                             |
//!   ClusterTable, one a thread: the operations of the workloads, each waited for
//!                             |
//!   ClusterHome:  drop the table, wait until its name is free; stop own servers
//! ```
//!
//! Rules besides those of all runs:
//!
//! 1. *A cluster that is given keeps what it has.* A table that has the benchmark's name already is
//!    not touched, and the run ends with an error. The benchmark's own table is dropped when its
//!    workload is done, or has failed; a signal that ends the process leaves it there.
//! 2. *All replicas are there before anything is loaded*, so that no part of a load or of a run has
//!    fewer of them, and none is filled meanwhile.
//! 3. *Records are loaded in the order of their indexes*, which is not that of keys, as YCSB does
//!    (`insertorder=hashed`): a sorted load would leave the servers nothing to merge.
//! 4. *Bytes of devices are those that servers ask their files for*, whatever the system's cache
//!    makes of them. What is flushed and merged behind the end of an operation counts to whatever
//!    runs by then.
//! 5. *A thread whose key nobody serves, for as long as a client is patient, ends.* Its other
//!    operations would take as long to fail; the report has fewer of them then, and an error for
//!    each thread.
//!
//! | module | what it holds |
//! |---|---|
//! | `config` | [`PersistentConfig`]: how the table is made, and whose servers |
//! | `servers` | own servers, in directories of their own |
//! | `device` | bytes that their files are asked for |
//! | `home` | the table, from when it is made until it is gone |
//! | `load` | its records, put by many threads |
//! | `table` | the operations |

mod config;
mod device;
mod home;
mod load;
mod servers;
mod table;

pub use config::{PersistentConfig, REGION_COUNT_MAX, ServersConfig};
pub(super) use device::DeviceBytes;
pub(super) use home::ClusterHome;
pub(super) use table::ClusterTable;
