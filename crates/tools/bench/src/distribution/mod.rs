//! Request distributions, exactly as YCSB draws them.
//!
//! | name | draws | source |
//! |---|---|---|
//! | `uniform` | every *loaded* record equally | `UniformLongGenerator` |
//! | `zipfian` | popular records scattered over all records | `ScrambledZipfianGenerator` |
//! | `latest` | the newest records most | `SkewedLatestGenerator` |
//!
//! Only the formulas are YCSB's; the random numbers come from xoshiro256++ ([`Random`]). All
//! distributions draw record *indexes*; [`KeySet`](crate::dataset::KeySet) maps an index to its
//! key.

mod chooser;
mod latest;
mod random;
mod scrambled;
mod zeta;
mod zipfian;

pub use chooser::{Distribution, IndexChooser};
pub use latest::Latest;
pub(crate) use random::{Purpose, purpose_stream, unit_interval};
pub use random::{Random, below, numbered_stream};
pub use scrambled::{ScrambledZipfian, fnv_hash};
pub use zipfian::{ZIPFIAN_CONSTANT, Zipfian};
