//! Decides whether a command works with a pool or a cluster, and which options it accepts.
//!
//! `--pool` or `--cluster` decides; then `FARLEAF_CLUSTER`, if it is set; otherwise the command
//! works with a pool. Options of the other kind are rejected.

use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, ValueEnum};
use farleaf::persistent::{Durability, PersistentTableOptions};
use farleaf_cluster::record::region::REPLICA_COUNT_MAX;

use crate::command;
use crate::failure::BadArgument;
use crate::needless::exit;
use crate::strings::EncodingArguments;
use crate::table_options::KindName;

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

/// Returns whether the command works with a cluster. Exits if that is ambiguous, or if an option
/// would be ignored.
pub(crate) fn check(matches: &ArgMatches) -> bool {
    let is_cluster = is_about_cluster(matches);
    let (path, leaf) = leaf(matches);
    match path {
        // `bench_persistent` checks the benchmark's own options.
        "region" | "cluster" | "bench" => {}
        _ if is_cluster => refuse_options_of_pools(matches, leaf),
        _ => refuse_options_of_clusters(path, leaf),
    }
    is_cluster
}

fn is_about_cluster(matches: &ArgMatches) -> bool {
    let (pool, cluster) = (source(matches, "pool"), source(matches, "cluster"));
    let by_line = Some(ValueSource::CommandLine);
    let instead = match matches.subcommand_name() {
        Some("cluster") => {
            if cluster.is_none() {
                exit(
                    "missing address of the cluster; set --cluster ADDRESS or FARLEAF_CLUSTER to \
                     its coordinator's address: tcp:HOST:PORT or etcd:HOST:PORT[,HOST:PORT...]"
                        .to_owned(),
                );
            }
            return true;
        }
        Some("table" | "load" | "dump" | "get" | "put" | "del" | "scan" | "stats") => {
            return match (pool, cluster) {
                (_, None) => false,
                (pool, cluster) if pool == by_line && cluster == by_line => exit(
                    "--pool and --cluster cannot be used together: a table is in a pool or in a \
                     cluster; leave one out"
                        .to_owned(),
                ),
                (Some(ValueSource::EnvVariable), Some(ValueSource::EnvVariable)) => exit(
                    "FARLEAF_POOL and FARLEAF_CLUSTER are both set; choose one with --pool or \
                     --cluster, or unset one"
                        .to_owned(),
                ),
                (pool, cluster) => cluster == by_line || pool != by_line,
            };
        }
        // A variable that is set for other commands must not fill a cluster.
        Some("bench") if fills_table(matches) => return cluster == by_line,
        Some("region") => "`region serve` takes --coordinator",
        Some("nodes") => "this command is for pools; use `farleaf cluster status` for a cluster",
        _ => "this command does not use a cluster",
    };
    if cluster == by_line {
        exit(format!("--cluster cannot be used here: {instead}"));
    }
    false
}

fn fills_table(matches: &ArgMatches) -> bool {
    let bench = matches.subcommand_matches("bench");
    bench.and_then(command::bench::of_ycsb).is_some()
}

/// Returns the first of a command's names, and the arguments of the innermost subcommand.
fn leaf(matches: &ArgMatches) -> (&str, &ArgMatches) {
    let first = matches.subcommand_name().unwrap_or_default();
    let mut leaf = matches;
    while let Some((_, inner)) = leaf.subcommand() {
        leaf = inner;
    }
    (first, leaf)
}

/// Returns the source of an argument; `None` if it is not given, or if the command does not have
/// it.
fn source(matches: &ArgMatches, name: &str) -> Option<ValueSource> {
    let mut ids = matches.ids();
    ids.any(|id| id.as_str() == name)
        .then(|| matches.value_source(name))?
}

fn first_given(matches: &ArgMatches, names: &[&'static str]) -> Option<String> {
    let is_given = |name: &&&str| source(matches, name) == Some(ValueSource::CommandLine);
    let name = names.iter().find(is_given)?;
    Some(name.replace('_', "-"))
}

fn refuse_options_of_pools(matches: &ArgMatches, leaf: &ArgMatches) {
    if let Some(option) = first_given(matches, &["rights", "tls_ca"]) {
        exit(format!(
            "--{option} cannot be used with a cluster: its servers authenticate clients by the \
             secret (--secret-file) and grant full access; leave it out"
        ));
    }
    let options = [
        "slots",
        "index",
        "page_size",
        "inline_value",
        "fill",
        "epsilon",
        "bounds",
        "part",
    ];
    if let Some(option) = first_given(leaf, &options) {
        exit(format!(
            "--{option} cannot be used with a cluster: it is for tables in pools; leave it out"
        ));
    }
    let is_given = first_given(leaf, &["kind"]).is_some();
    if is_given && leaf.get_one("kind") == Some(&KindName::Words) {
        exit(
            "--kind words cannot be used with a cluster: keys and values of persistent tables are \
             byte strings"
                .to_owned(),
        );
    }
    let is_given = first_given(leaf, &["engine"]).is_some();
    if is_given && leaf.get_one("engine") == Some(&EngineName::Memory) {
        exit(
            "--engine memory cannot be used with a cluster: its tables are on disk; use --pool \
             ADDRESS for a table in memory"
                .to_owned(),
        );
    }
    let creates =
        |leaf: &ArgMatches| !leaf.ids().any(|id| id == "create") || leaf.get_flag("create");
    if let Some(option) = first_given(leaf, &["engine", "replicas", "split_at"])
        && !creates(leaf)
    {
        exit(format!(
            "--{option} cannot be used without --create: the options of an existing table cannot \
             be changed"
        ));
    }
}

fn refuse_options_of_clusters(path: &str, leaf: &ArgMatches) {
    let is_given = first_given(leaf, &["engine"]).is_some();
    if is_given && leaf.get_one("engine") == Some(&EngineName::Lsm) {
        exit(
            "--engine lsm needs --cluster ADDRESS (or FARLEAF_CLUSTER), the cluster that stores \
             the table; `farleaf region serve --data DIR --init` creates a cluster and prints its \
             address"
                .to_owned(),
        );
    }
    let makes_tables = path == "table";
    let option = first_given(leaf, &["replicas", "split_at", "durability"]);
    let option = option.or_else(|| first_given(leaf, &["hex", "escaped"]).filter(|_| makes_tables));
    if let Some(option) = option {
        exit(format!(
            "--{option} cannot be used without --cluster: it is for persistent tables"
        ));
    }
}
