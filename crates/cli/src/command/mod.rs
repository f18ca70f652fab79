//! What each command does, a file each.

pub(crate) mod bench;
mod bench_budget;
mod bench_calls;
mod bench_costs;
mod bench_persistent;
mod bench_replication;
mod bench_screen;
mod bench_timeline;
pub(crate) mod cluster;
mod cluster_way;
mod connection;
pub(crate) mod del;
pub(crate) mod dump;
pub(crate) mod figures;
mod figures_talos;
pub(crate) mod get;
pub(crate) mod load;
pub(crate) mod nodes;
mod patient;
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
mod table_list;
mod target;

use clap::Subcommand;

use crate::arguments::Arguments;
use crate::failure::Ending;

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a pool of memory to the processes of this host, or of any with --listen, until SIGHUP,
    /// SIGINT or SIGTERM
    Serve(serve::ServeArguments),
    /// Create, list and drop tables
    Table(table::TableArguments),
    /// Load a file of records into a table
    Load(load::LoadArguments),
    /// Print all records of a table, as `load` reads them
    Dump(dump::DumpArguments),
    /// Print the values of keys
    Get(get::GetArguments),
    /// Set the value of a key
    Put(put::PutArguments),
    /// Remove keys
    Del(del::DelArguments),
    /// Print records in key order
    Scan(scan::ScanArguments),
    /// Show what is in the pool, and how well its tables are kept
    Stats(stats::StatsArguments),
    /// Show the nodes of a pool, drain them, or give them up
    Nodes(nodes::NodesArguments),
    /// Serve regions of persistent tables from a directory, as a server of a cluster, until SIGHUP,
    /// SIGINT or SIGTERM
    Region(region::RegionArguments),
    /// Found a cluster, show how it is, move what its servers have
    Cluster(cluster::ClusterArguments),
    /// Make secrets for pools on the network, and keys for lesser rights
    Secret(secret::SecretArguments),
    /// Measure, in a pool of its own
    Bench(Box<bench::BenchArguments>),
    /// Simulate: disasters that must do no harm
    Sim(sim::SimArguments),
    /// Draw the figures of papers, over modelled NICs or of real runs
    Figures(figures::FiguresArguments),
}

/// Does it.
///
/// # Errors
/// Whatever went wrong; see [`crate::failure`] for how it is told.
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
    }
}
