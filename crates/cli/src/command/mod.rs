//! Commands of the program, one file each.

pub(crate) mod bench;
mod bench_budget;
mod bench_calls;
mod bench_costs;
mod bench_persistent;
mod bench_replication;
mod bench_screen;
mod bench_timeline;
pub(crate) mod cluster;
mod cluster_client;
mod connection;
mod coordinator_retry;
pub(crate) mod del;
pub(crate) mod dump;
pub(crate) mod figures;
mod figures_talos;
pub(crate) mod get;
pub(crate) mod load;
pub(crate) mod manual;
pub(crate) mod nodes;
pub(crate) mod put;
pub(crate) mod region;
mod region_compare;
mod region_coordinator;
pub(crate) mod scan;
pub(crate) mod secret;
pub(crate) mod serve;
mod serve_node;
pub(crate) mod sim;
mod sim_messages;
mod sim_network;
mod sim_seeds;
pub(crate) mod stats;
mod stats_bytes;
mod string_table;
pub(crate) mod table;
mod table_cluster;
mod table_handle;
mod table_list;
mod target;

use clap::Subcommand;

use crate::arguments::Arguments;
use crate::failure::Ending;

/// Command to run.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a memory pool to processes of this host, or of other hosts with --listen
    Serve(serve::ServeArguments),
    /// Create, list and drop tables
    Table(table::TableArguments),
    /// Load records from a file into a table
    Load(load::LoadArguments),
    /// Print all records of a table in the format that `load` reads
    Dump(dump::DumpArguments),
    /// Print the values of keys
    Get(get::GetArguments),
    /// Set the value of a key
    Put(put::PutArguments),
    /// Remove keys
    Del(del::DelArguments),
    /// Print records in key order
    Scan(scan::ScanArguments),
    /// Show the contents of a pool and statistics of its tables
    Stats(stats::StatsArguments),
    /// List, drain and give up the nodes of a pool
    Nodes(nodes::NodesArguments),
    /// Run a server of a cluster, and compare replicas
    Region(region::RegionArguments),
    /// Create, inspect and administer a cluster
    Cluster(cluster::ClusterArguments),
    /// Create secrets, and derive keys with fewer rights from them
    Secret(secret::SecretArguments),
    /// Run benchmarks in a pool or on servers of their own
    Bench(Box<bench::BenchArguments>),
    /// Run randomized failure simulations and check the results
    Sim(sim::SimArguments),
    /// Reproduce the figures of the papers
    Figures(figures::FiguresArguments),
    /// Print a completion script for a shell
    Completions(manual::CompletionsArguments),
    /// Write manual pages, one for each command
    Man(manual::ManArguments),
}

/// Runs the command.
///
/// # Errors
/// The command failed; [`crate::failure`] prints the error.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Ending> {
    let pool = &arguments.pool;
    match &arguments.command {
        Command::Serve(serve) => serve::run(pool, serve),
        Command::Table(table) => table::run(pool, table),
        Command::Load(load) => load::run(pool, load),
        Command::Dump(dump) => dump::run(pool, dump),
        Command::Get(get) => get::run(pool, get),
        Command::Put(put) => put::run(pool, put),
        Command::Del(del) => del::run(pool, del),
        Command::Scan(scan) => scan::run(pool, scan),
        Command::Stats(stats) => stats::run(pool, stats),
        Command::Nodes(nodes) => nodes::run(pool, nodes),
        Command::Region(region) => region::run(pool, region),
        Command::Cluster(cluster) => cluster::run(pool, cluster),
        Command::Secret(secret) => secret::run(pool, secret),
        Command::Bench(bench) => bench::run(pool, bench),
        Command::Sim(sim) => sim::run(sim),
        Command::Figures(figures) => figures::run(figures),
        Command::Completions(completions) => manual::print_completions(completions),
        Command::Man(man) => manual::write_pages(man),
    }
}
