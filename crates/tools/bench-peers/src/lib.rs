//! Comparison of Farleaf with other ordered maps, and with the memory itself.
//!
//! All maps execute the same gets, puts and scans, on the same records, in one run. Tables of
//! 64-bit integers: Farleaf, `RwLock<BTreeMap>`, crossbeam-skiplist, congee, masstree and LMDB;
//! and, as the physical floor, copies of one leaf and its checksum. Tables of byte strings:
//! Farleaf, masstree, LMDB, redb, and Redis over a Unix socket. The peers promise less than Farleaf
//! or more. Except for LMDB's readers, none shares its records with other processes and survives
//! their death in the middle of a write; LMDB has transactions. The results therefore show the cost
//! of the promises, not which map is better.
//!
//! | module | content |
//! |---|---|
//! | [`records`] | records of the maps |
//! | [`peer`] | the interface of every map |
//! | [`peers`] | the maps, a file each |
//! | [`floor`] | the same requests, as bare copies of leaves |
//! | [`requests`] | requests, drawn before the clock starts, the same for all |
//! | [`subject`] | one thread's share of the work, timed |
//! | [`comparison`] | loads all maps and runs the rounds, interleaved |
//! | [`network`] | comparison of Farleaf over `tcp` with Redis |
//! | [`redis`] | a Redis server's process |
//! | [`report`] | medians and ratios, as a table and as JSON |
//! | [`targets`] | Farleaf's targets |
//!
//! The comparison is neither a workload mix (see `farleaf bench`) nor a gate: ratios on a shared
//! machine still vary by a tenth.
#![doc = include_str!("../../../../docs/explanation/peers.md")]

pub mod comparison;
pub mod floor;
pub mod network;
pub mod peer;
pub mod peers;
pub mod records;
pub mod redis;
pub mod report;
pub mod requests;
pub mod subject;
pub mod targets;
