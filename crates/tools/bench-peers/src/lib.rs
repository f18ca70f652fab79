//! Farleaf beside other ordered maps, and beside the memory itself.
//!
//! The same get, put and scan work, on one table of the same records, in one run. Of 64-bit words
//! on Farleaf, `RwLock<BTreeMap>`, crossbeam-skiplist, congee, masstree and LMDB; and, as the
//! physical floor, copies of one leaf and its checksum. Of byte strings on Farleaf, masstree, LMDB,
//! redb, and Redis over a Unix socket. The peers promise less than Farleaf (none of them shares its
//! records with other processes and survives their death in mid-write, but for LMDB's readers) or
//! more (LMDB has transactions), so the figures say what the promises cost, not who is better.
//!
//! | module | what it holds |
//! |---|---|
//! | [`records`] | what maps are filled with |
//! | [`peer`] | what every map has to offer |
//! | [`peers`] | the maps, a file each |
//! | [`floor`] | the same requests, as bare copies of leaves |
//! | [`requests`] | what is asked for: drawn before the clock starts, the same for all |
//! | [`subject`] | one thread's share of the work, timed |
//! | [`comparison`] | loads everything and runs the rounds, interleaved |
//! | [`network`] | Farleaf over `tcp` beside Redis |
//! | [`redis`] | a Redis server's process |
//! | [`report`] | medians and ratios, as a table and as JSON |
//! | [`targets`] | what Farleaf has set itself |
//!
//! What it is not: a workload mix (that is `farleaf bench`), nor a gate: ratios on a shared machine
//! still vary by a tenth.
#![doc = include_str!("../../../docs/peers.md")]

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
