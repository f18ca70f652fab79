//! Decides whether a command works with a pool or a cluster, and rejects options of the other kind.
//!
//! `--pool` or `--cluster` decides; then `FARLEAF_CLUSTER`, if it is set; otherwise the command
//! works with a pool.

use clap::ArgMatches;
use clap::parser::ValueSource;

use crate::cluster_options::EngineName;
use crate::command;
use crate::needless::{first_given, source};
use crate::table_options::{KindName, POOL_TABLE_OPTIONS};

/// Returns whether the command works with a cluster.
///
/// # Errors
/// The message, if that is ambiguous, or if an option would be ignored.
pub(crate) fn check(matches: &ArgMatches) -> Result<bool, String> {
    let is_cluster = is_about_cluster(matches)?;
    let (path, leaf) = leaf(matches);
    match path {
        // `bench_persistent` checks the benchmark's own options.
        "region" | "cluster" | "bench" => {}
        _ if is_cluster => refuse_options_of_pools(matches, leaf)?,
        _ => refuse_options_of_clusters(path, leaf)?,
    }
    Ok(is_cluster)
}

fn is_about_cluster(matches: &ArgMatches) -> Result<bool, String> {
    let (pool, cluster) = (source(matches, "pool"), source(matches, "cluster"));
    let by_line = Some(ValueSource::CommandLine);
    let instead = match matches.subcommand_name() {
        Some("cluster") => {
            if cluster.is_none() {
                return Err(
                    "missing address of the cluster; set --cluster ADDRESS or FARLEAF_CLUSTER to \
                     its coordinator's address: tcp:HOST:PORT or etcd:HOST:PORT[,HOST:PORT...]"
                        .to_owned(),
                );
            }
            return Ok(true);
        }
        Some("table" | "load" | "dump" | "get" | "put" | "del" | "scan" | "stats") => {
            return match (pool, cluster) {
                (_, None) => Ok(false),
                (pool, cluster) if pool == by_line && cluster == by_line => Err(
                    "--pool and --cluster cannot be used together: a table is in a pool or in a \
                     cluster; leave one out"
                        .to_owned(),
                ),
                (Some(ValueSource::EnvVariable), Some(ValueSource::EnvVariable)) => Err(
                    "FARLEAF_POOL and FARLEAF_CLUSTER are both set; choose one with --pool or \
                     --cluster, or unset one"
                        .to_owned(),
                ),
                (pool, cluster) => Ok(cluster == by_line || pool != by_line),
            };
        }
        // A variable that is set for other commands must not fill a cluster.
        Some("bench") if fills_table(matches) => return Ok(cluster == by_line),
        Some("region") => "`region serve` takes --coordinator",
        Some("nodes") => "this command is for pools; use `farleaf cluster status` for a cluster",
        _ => "this command does not use a cluster",
    };
    if cluster == by_line {
        return Err(format!("--cluster cannot be used here: {instead}"));
    }
    Ok(false)
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

fn refuse_options_of_pools(matches: &ArgMatches, leaf: &ArgMatches) -> Result<(), String> {
    if first_given(matches, &["rights"]).is_some() {
        return Err(
            "--rights cannot be used with a cluster: a client has the rights of its key \
             (--secret-file); use a key from `farleaf secret derive` or `farleaf cluster key`"
                .to_owned(),
        );
    }
    let option = first_given(leaf, &POOL_TABLE_OPTIONS);
    if let Some(option) = option.or_else(|| first_given(leaf, &["part"])) {
        return Err(format!(
            "--{option} cannot be used with a cluster: it is for tables in pools; leave it out"
        ));
    }
    let is_given = first_given(leaf, &["kind"]).is_some();
    if is_given && leaf.get_one("kind") == Some(&KindName::Words) {
        return Err(
            "--kind words cannot be used with a cluster: keys and values of persistent tables are \
             byte strings"
                .to_owned(),
        );
    }
    let is_given = first_given(leaf, &["engine"]).is_some();
    if is_given && leaf.get_one("engine") == Some(&EngineName::Memory) {
        return Err(
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
        return Err(format!(
            "--{option} cannot be used without --create: the options of an existing table cannot \
             be changed"
        ));
    }
    Ok(())
}

fn refuse_options_of_clusters(path: &str, leaf: &ArgMatches) -> Result<(), String> {
    let is_given = first_given(leaf, &["engine"]).is_some();
    if is_given && leaf.get_one("engine") == Some(&EngineName::Lsm) {
        return Err(
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
        return Err(format!(
            "--{option} cannot be used without --cluster: it is for persistent tables"
        ));
    }
    Ok(())
}
