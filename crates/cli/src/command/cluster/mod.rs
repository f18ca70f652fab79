//! `farleaf cluster`: status and administration of a cluster.
//!
//! | module | contents |
//! |---|---|
//! | `mismatch` | backups that differed from their primary |
//! | `identity` | directories of other clusters, and servers that reject the coordinator's records
//! |
//! | `key` | keys that are limited to a table |
//! | `orders` | administrative commands: moves, splits, drains, giving up |
//! | `cluster_status` | state of a cluster, and its problems |
//! | `status` | that state as text and as JSON |
//! | `verified` | progress of the verification of replicas |

mod cluster_status;
mod identity;
mod key;
mod mismatch;
mod orders;
mod status;
mod verified;

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Subcommand};
use farleaf::Rights;
use farleaf_cluster::ids::StartNonce;
use farleaf_cluster::{admin, starts};

use super::cluster_client::{Opened, open_patiently};
use super::coordinator_retry::PATIENCE_DEFAULT_S;
use crate::arguments::{OutputArgument, PoolArguments};
use crate::failure::Ending;
use crate::output::{OutputFormat, print};
use crate::strings::EncodingArguments;
use farleaf_bench::quantity::parse_seconds;

/// Arguments of `farleaf cluster`.
#[derive(Debug, Args)]
pub(crate) struct ClusterArguments {
    #[command(subcommand)]
    command: ClusterCommand,

    /// Seconds to wait for a coordinator that cannot be reached, from 0 to 86400; stderr says so
    #[arg(
        long,
        global = true,
        value_name = "SECONDS",
        default_value_t = PATIENCE_DEFAULT_S,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = |text: &str| parse_seconds(text, 0..=86_400))]
    coordinator_patience: u32,
}

#[derive(Debug, Subcommand)]
enum ClusterCommand {
    /// Create a cluster in a coordinator that has none, such as etcd; `region serve --init` creates
    /// one with a coordinator of its own
    #[command(alias = "found")]
    Init,
    /// Give a cluster that an older version created a 128-bit id; until then its servers serve
    /// nothing. Run it once, at the coordinator that has always been this cluster's
    Adopt {
        /// Accept that the coordinator start START is lost. Servers that saw it then use the older
        /// records, and writes recorded since may be lost
        #[arg(long, value_name = "START", value_parser = parse_start)]
        lost_start: Option<StartNonce>,
    },
    /// Show servers, tables and regions, and every problem. Exit status 1 if there is one
    Status {
        /// Show only this table
        #[arg(long, value_name = "NAME")]
        table: Option<String>,
        #[command(flatten)]
        output: OutputArgument,
    },
    /// Move a replica of a region to another server. If that server has a backup, it becomes the
    /// primary
    Move {
        /// Name of the table
        table: String,
        /// Number of the region, as `cluster status` shows it
        #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
        region: u64,
        /// Server that has the replica now
        #[arg(long, value_name = "SERVER", allow_negative_numbers = true)]
        from: u64,
        /// Server that gets the replica
        #[arg(long, value_name = "SERVER", allow_negative_numbers = true)]
        to: u64,
        #[command(flatten)]
        patience: PatienceArgument,
    },
    /// Split a region at a key; the second region begins with that key
    Split {
        /// Name of the table
        table: String,
        /// First key of the new region
        #[arg(allow_negative_numbers = true)]
        key: OsString,
        #[command(flatten)]
        encoding: EncodingArguments,
        #[command(flatten)]
        patience: PatienceArgument,
    },
    /// Move all replicas of a server to other servers and assign it no new ones, so that it can be
    /// stopped
    Drain {
        /// Number of the server to drain
        server: u64,
        /// Wait until the server has no replica left
        #[arg(long)]
        wait: bool,
    },
    /// Assign replicas to a drained server again
    Undrain {
        /// Number of the server to use again
        server: u64,
    },
    /// Print a key that is limited to a table, derived from the secret in `--secret-file` or
    /// `FARLEAF_SECRET`. A table that is dropped and created again needs a new key
    Key {
        /// Rights of the key: `read` or `write`
        #[arg(value_name = "RIGHTS")]
        wanted: Rights,
        /// Name of the table
        table: String,
        /// Limit the key to keys that begin with this text
        #[arg(long, value_name = "TEXT", allow_negative_numbers = true)]
        key_prefix: Option<OsString>,
        #[command(flatten)]
        encoding: EncodingArguments,
    },
    /// Continue a region without the named servers, when none of its members is left. Records that
    /// only they have are lost
    GiveUp {
        /// Name of the table
        table: String,
        /// Number of the region, as `cluster status` shows it
        #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
        region: u64,
        /// Numbers of the servers that will not come back
        #[arg(long = "server", value_name = "SERVER", required = true, num_args = 1..)]
        #[arg(allow_negative_numbers = true)]
        servers: Vec<u64>,
        #[command(flatten)]
        patience: PatienceArgument,
    },
}

/// Time to wait for the master.
#[derive(Clone, Copy, Debug, Args)]
struct PatienceArgument {
    /// Seconds to wait for the master's answer, from 1 to 86400
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 10,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=86_400))]
    timeout: u32,
}

/// Prints the status of a cluster, for `farleaf stats` with a cluster.
pub(crate) fn show_status(
    pool: &PoolArguments,
    address: &str,
    table: Option<&str>,
    format: OutputFormat,
) -> anyhow::Result<Ending> {
    let patience = Duration::from_secs(PATIENCE_DEFAULT_S.into());
    let opened = open_patiently(pool, address, patience)?;
    status::run(&opened, table, format)
}

/// Runs `farleaf cluster`.
pub(crate) fn run(pool: &PoolArguments, arguments: &ClusterArguments) -> anyhow::Result<Ending> {
    let address = pool.cluster.as_deref().unwrap_or_default();
    let patience = Duration::from_secs(arguments.coordinator_patience.into());
    let opened = open_patiently(pool, address, patience)?;
    match &arguments.command {
        ClusterCommand::Init => init(&opened),
        ClusterCommand::Adopt { lost_start: None } => adopt(&opened),
        ClusterCommand::Adopt {
            lost_start: Some(nonce),
        } => accept_loss(&opened, *nonce),
        ClusterCommand::Status { table, output } => {
            status::run(&opened, table.as_deref(), output.output)
        }
        ClusterCommand::Move {
            table,
            region,
            from,
            to,
            patience,
        } => orders::move_replica(&opened, table, *region, *from, *to, *patience),
        ClusterCommand::Split {
            table,
            key,
            encoding,
            patience,
        } => orders::split(&opened, table, key, *encoding, *patience),
        ClusterCommand::Drain { server, wait } => orders::drain(&opened, *server, *wait),
        ClusterCommand::Key {
            wanted,
            table,
            key_prefix,
            encoding,
        } => {
            let part = key::Part {
                rights: *wanted,
                table,
                prefix: key_prefix.as_deref(),
                encoding: *encoding,
            };
            key::run(pool, &opened, &part)
        }
        ClusterCommand::Undrain { server } => orders::undrain(&opened, *server),
        ClusterCommand::GiveUp {
            table,
            region,
            servers,
            patience,
        } => orders::give_up(&opened, table, *region, servers, *patience),
    }
}

/// Parses a start nonce: 32 hexadecimal digits, as servers print it.
fn parse_start(text: &str) -> Result<StartNonce, &'static str> {
    text.parse()
        .map_err(|()| "expected 32 hexadecimal digits, as servers print them")
}

fn accept_loss(opened: &Opened, nonce: StartNonce) -> anyhow::Result<Ending> {
    let refused = starts::check_refused(opened.coordinator(), nonce);
    let accepted = refused.and_then(|()| starts::accept_lost_start(opened.coordinator(), nonce));
    accepted.map_err(|error| opened.explain(error))?;
    print(format_args!(
        "accepted the loss of {nonce} at the coordinator {}: servers that saw it now use the older \
         records\n",
        opened.address
    ))?;
    Ok(Ending::Done)
}

fn adopt(opened: &Opened) -> anyhow::Result<Ending> {
    // etcd has no process that records its starts.
    let started = starts::begin_first_start(opened.coordinator());
    started.map_err(|error| opened.explain(error))?;
    let adopted = admin::adopt(opened.coordinator());
    let record = adopted.map_err(|error| opened.explain(error))?;
    let formerly = record
        .formerly
        .map_or_else(String::new, |it| it.to_string());
    print(format_args!(
        "{formerly} is now {}; its servers adopt this id from {} automatically\n",
        record.cluster, opened.address
    ))?;
    Ok(Ending::Done)
}

fn init(opened: &Opened) -> anyhow::Result<Ending> {
    let created = admin::create_cluster(opened.coordinator());
    let cluster = created.map_err(|error| opened.explain(error))?;
    starts::begin_start(opened.coordinator()).map_err(|error| opened.explain(error))?;
    print(format_args!(
        "created {cluster} in {}; `farleaf region serve --coordinator {0}` adds a server\n",
        opened.address
    ))?;
    Ok(Ending::Done)
}
