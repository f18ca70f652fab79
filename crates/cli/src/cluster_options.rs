//! Options of persistent tables.

use std::ffi::OsString;

use clap::{Args, ValueEnum};
use farleaf::persistent::{Durability, PersistentTableOptions};
use farleaf_cluster::record::region::REPLICA_COUNT_MAX;

use crate::failure::BadArgument;
use crate::strings::EncodingArguments;

/// Storage engine of a table. (The variants have no help of their own, which would make every
/// command's help long.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineName {
    Memory,
    Lsm,
}

/// Options for creating a persistent table.
#[derive(Clone, Debug, Args)]
pub(crate) struct PersistentArguments {
    /// Storage engine: `memory` (a pool) or `lsm` (a persistent table on the disks of a cluster)
    /// [default: lsm with --cluster, otherwise memory]
    #[arg(long, value_enum, value_name = "ENGINE", hide_possible_values = true)]
    engine: Option<EngineName>,

    /// Persistent tables: number of replicas, 1 to 15 [default: 3]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=REPLICA_COUNT_MAX as i64 - 1))]
    replicas: Option<u8>,

    /// Persistent tables: first key of a new region; repeat the option for more, in key order
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    split_at: Vec<OsString>,

    #[command(flatten)]
    encoding: EncodingArguments,
}

impl PersistentArguments {
    /// Returns the encoding of bytes in arguments, and for `load` in the lines of a file.
    pub(crate) const fn encoding(&self) -> EncodingArguments {
        self.encoding
    }

    /// Whether keys are given at which regions begin.
    pub(crate) fn has_split_keys(&self) -> bool {
        !self.split_at.is_empty()
    }

    /// Rejects `--hex` and `--escaped` for a command in which only `--split-at` has keys.
    pub(crate) fn refuse_needless_encoding(&self) -> Result<(), BadArgument> {
        match self.encoding.given() {
            Some(option) if !self.has_split_keys() => Err(BadArgument(format!(
                "{option} cannot be used without --split-at: it is the encoding of the split keys; \
                 leave it out"
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the options of the table.
    ///
    /// # Errors
    /// A key of `--split-at` cannot be parsed.
    pub(crate) fn options(&self) -> Result<PersistentTableOptions, BadArgument> {
        let encoding = self.encoding;
        let defaults = PersistentTableOptions::default();
        let keys = self.split_at.iter().map(|key| encoding.read_key(key));
        Ok(PersistentTableOptions {
            replica_count: self.replicas.map_or(defaults.replica_count, usize::from),
            split_keys: keys.collect::<Result<_, _>>()?,
        })
    }
}

/// Point at which a write to a persistent table is acknowledged.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct DurabilityArgument {
    /// Persistent tables: acknowledge a write when all in-sync replicas have it in `memory`, or
    /// when it is on their disks (`sync`) [default: memory; sync with a single replica]
    #[arg(long, value_enum, value_name = "WHEN", hide_possible_values = true)]
    durability: Option<DurabilityName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DurabilityName {
    Memory,
    Sync,
}

impl DurabilityArgument {
    pub(crate) fn durability(self) -> Option<Durability> {
        Some(match self.durability? {
            DurabilityName::Memory => Durability::Memory,
            DurabilityName::Sync => Durability::Sync,
        })
    }
}
