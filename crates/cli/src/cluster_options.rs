//! Whether a command is about a pool or about a cluster, and which options go with which.
//!
//! `--pool` or `--cluster` says it; else `FARLEAF_CLUSTER`, if it is set; else it is the pool. An
//! option of the other one is refused.

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

/// Where a table's records are. (The variants have no help of their own, which would make every
/// command's help long.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineName {
    Memory,
    Lsm,
}

/// How a persistent table is made.
#[derive(Clone, Debug, Args)]
pub(crate) struct PersistentArguments {
    /// Where records are: `memory`, in a pool; `lsm`, on the disks of a cluster's servers, which is
    /// a persistent table [default: lsm with --cluster, memory without]
    #[arg(long, value_enum, value_name = "ENGINE", hide_possible_values = true)]
    engine: Option<EngineName>,

    /// Of a persistent table: how many servers have each record, 1 to 15 [default: 3]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=REPLICA_COUNT_MAX as i64 - 1))]
    replicas: Option<u8>,

    /// Of a persistent table: a key at which a region begins, can be given again and again, in the
    /// order of keys
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    split_at: Vec<OsString>,

    #[command(flatten)]
    encoding: EncodingArguments,
}

impl PersistentArguments {
    /// # Errors
    /// A key cannot be read.
    pub(crate) fn options(&self) -> Result<PersistentTableOptions, BadArgument> {
        let encoding = self.encoding;
        if let (Some(option), []) = (encoding.given(), &self.split_at[..]) {
            return Err(BadArgument(format!(
                "{option} is for the keys of --split-at, and there is none; leave it out"
            )));
        }
        let defaults = PersistentTableOptions::default();
        let keys = self.split_at.iter().map(|key| encoding.read_key(key));
        Ok(PersistentTableOptions {
            replica_count: self.replicas.map_or(defaults.replica_count, usize::from),
            split_keys: keys.collect::<Result<_, _>>()?,
        })
    }
}

/// When a write to a persistent table is acknowledged.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct DurabilityArgument {
    /// Of a persistent table: when a write is acknowledged, `memory`: when all servers have it;
    /// `sync`: when it is on all of their disks, too [default: memory; sync where one server has
    /// each record]
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

/// Whether the command is about a cluster. Ends the program if that cannot be told, or an option is
/// given that would be ignored.
pub(crate) fn check(matches: &ArgMatches) -> bool {
    let is_cluster = is_about_cluster(matches);
    let (path, leaf) = leaf(matches);
    match path {
        // The benchmark's own options say where its table is: `bench_persistent` has them.
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
                    "which cluster? --cluster ADDRESS, or FARLEAF_CLUSTER, gives its coordinator's \
                     address: tcp:HOST:PORT or etcd:HOST:PORT[,HOST:PORT...]"
                        .to_owned(),
                );
            }
            return true;
        }
        Some("table" | "load" | "dump" | "get" | "put" | "del" | "scan") => {
            return match (pool, cluster) {
                (_, None) => false,
                (pool, cluster) if pool == by_line && cluster == by_line => exit(
                    "--pool and --cluster cannot be used together: a table is in the one or the \
                     other; leave one out"
                        .to_owned(),
                ),
                (Some(ValueSource::EnvVariable), Some(ValueSource::EnvVariable)) => exit(
                    "FARLEAF_POOL and FARLEAF_CLUSTER are both set: say with --pool or --cluster \
                     which is meant, or clear one"
                        .to_owned(),
                ),
                (pool, cluster) => cluster == by_line || pool != by_line,
            };
        }
        // Nobody's cluster is filled because of a variable that stands there for other commands.
        Some("bench") if fills_table(matches) => return cluster == by_line,
        Some("region") => "`region serve` takes --coordinator",
        Some("stats" | "nodes") => {
            "it is about a pool; `farleaf cluster status` is about a cluster"
        }
        _ => "it works with no cluster",
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

/// The first of a command's names, and the arguments of the last.
fn leaf(matches: &ArgMatches) -> (&str, &ArgMatches) {
    let first = matches.subcommand_name().unwrap_or_default();
    let mut leaf = matches;
    while let Some((_, inner)) = leaf.subcommand() {
        leaf = inner;
    }
    (first, leaf)
}

/// Where an argument is from; `None`: it is not given, or the command has none such.
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
            "--{option} cannot be used with a cluster: its servers let in who has the secret \
             (--secret-file), to everything; leave it out"
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
            "--kind words cannot be used with a cluster: persistent tables have strings of bytes \
             as keys and values"
                .to_owned(),
        );
    }
    let is_given = first_given(leaf, &["engine"]).is_some();
    if is_given && leaf.get_one("engine") == Some(&EngineName::Memory) {
        exit(
            "--engine memory cannot be used with a cluster: its tables are on disks; --pool says \
             in which memory a table is to be"
                .to_owned(),
        );
    }
    let creates =
        |leaf: &ArgMatches| !leaf.ids().any(|id| id == "create") || leaf.get_flag("create");
    if let Some(option) = first_given(leaf, &["engine", "replicas", "split_at"])
        && !creates(leaf)
    {
        exit(format!(
            "--{option} cannot be used without --create: a table that is there stays as it was made"
        ));
    }
}

fn refuse_options_of_clusters(path: &str, leaf: &ArgMatches) {
    let is_given = first_given(leaf, &["engine"]).is_some();
    if is_given && leaf.get_one("engine") == Some(&EngineName::Lsm) {
        exit(
            "--engine lsm needs --cluster ADDRESS (or FARLEAF_CLUSTER), which says whose disks the \
             table is to be on; `farleaf region serve --data DIR` starts a cluster and tells its \
             address"
                .to_owned(),
        );
    }
    let makes_tables = matches!(path, "table" | "load");
    let option = first_given(leaf, &["replicas", "split_at", "durability"]);
    let option = option.or_else(|| first_given(leaf, &["hex", "escaped"]).filter(|_| makes_tables));
    if let Some(option) = option {
        exit(format!(
            "--{option} cannot be used without --cluster: it is for persistent tables"
        ));
    }
}
