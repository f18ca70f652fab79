//! `farleaf cluster`: how a cluster is, and what its administrators want of it.
//!
//! | module | what it holds |
//! |---|---|
//! | `mismatch` | backups that differed from their primary |
//! | `identity` | directories that are not of the cluster, and servers that refuse its records |
//! | `orders` | what is done when an administrator says so: moves, splits, drains, giving up |
//! | `seen` | what is seen of a cluster, and whether all is whole |
//! | `status` | that as text and as JSON |

mod identity;
mod mismatch;
mod orders;
mod seen;
mod status;
mod verified;

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Subcommand};
use farleaf_cluster::ids::StartNonce;
use farleaf_cluster::{admin, starts};

use super::cluster_way::{Opened, open_patiently};
use super::patient::PATIENCE_DEFAULT_S;
use crate::arguments::{OutputArgument, PoolArguments};
use crate::failure::Ending;
use crate::output::print;
use crate::quantity::parse_seconds;
use crate::strings::EncodingArguments;

/// What to do with a cluster.
#[derive(Debug, Args)]
pub(crate) struct ClusterArguments {
    #[command(subcommand)]
    command: ClusterCommand,

    /// For how long to ask again a coordinator that is away, 0 to 86400; what is waited for is said
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
    /// Show servers, tables and regions, and what is not as it should be: status 1 if something is
    /// not
    Status {
        /// Only this table and its regions
        #[arg(long, value_name = "NAME")]
        table: Option<String>,
        #[command(flatten)]
        output: OutputArgument,
    },
    /// Move a replica of a region to another server; or let a backup be primary, if that server has
    /// one
    Move {
        /// Of which table
        table: String,
        /// Which region, as `status` numbers it
        #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
        region: u64,
        /// Which server has the replica
        #[arg(long, value_name = "SERVER", allow_negative_numbers = true)]
        from: u64,
        /// Which is to have it
        #[arg(long, value_name = "SERVER", allow_negative_numbers = true)]
        to: u64,
        #[command(flatten)]
        patience: PatienceArgument,
    },
    /// Split the region that has a key: the second one begins with that key
    Split {
        /// Of which table
        table: String,
        /// The first key of the new region
        #[arg(allow_negative_numbers = true)]
        key: OsString,
        #[command(flatten)]
        encoding: EncodingArguments,
        #[command(flatten)]
        patience: PatienceArgument,
    },
    /// Move all that a server has to others, and give it nothing more, so that it can be stopped
    Drain {
        /// Which server
        server: u64,
        /// Wait until it has nothing
        #[arg(long)]
        wait: bool,
    },
    /// Let a server that was drained have replicas again
    Undrain {
        /// Which server
        server: u64,
    },
    /// Let a region of which no server is left go on without servers that do not come back: what
    /// they alone have is lost
    GiveUp {
        /// Of which table
        table: String,
        /// Which region, as `status` numbers it
        #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
        region: u64,
        /// The servers that do not come back
        #[arg(long = "server", value_name = "SERVER", required = true, num_args = 1..)]
        #[arg(allow_negative_numbers = true)]
        servers: Vec<u64>,
        #[command(flatten)]
        patience: PatienceArgument,
    },
}

/// For how long a master is waited for.
#[derive(Clone, Copy, Debug, Args)]
struct PatienceArgument {
    /// For how long to wait for a master's answer, from 1 to 86400
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 10,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=86_400))]
    timeout: u32,
}

/// Does it.
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
        } => orders::move_replica(&opened, (table, *region), (*from, *to), *patience),
        ClusterCommand::Split {
            table,
            key,
            encoding,
            patience,
        } => orders::split(&opened, (table, key), *encoding, *patience),
        ClusterCommand::Drain { server, wait } => orders::drain(&opened, *server, *wait),
        ClusterCommand::Undrain { server } => orders::undrain(&opened, *server),
        ClusterCommand::GiveUp {
            table,
            region,
            servers,
            patience,
        } => orders::give_up(&opened, (table, *region), servers, *patience),
    }
}

/// 32 hexadecimal digits, as servers print them.
fn parse_start(text: &str) -> Result<StartNonce, &'static str> {
    text.parse()
        .map_err(|()| "expected 32 hexadecimal digits, as servers print them")
}

fn accept_loss(opened: &Opened, nonce: StartNonce) -> anyhow::Result<Ending> {
    let refused = starts::check_refused(opened.coordinator(), nonce);
    let accepted = refused.and_then(|()| starts::forgive(opened.coordinator(), nonce));
    accepted.map_err(|error| opened.told(error))?;
    print(format_args!(
        "accepted the loss of {nonce} at the coordinator {}: servers that saw it use the older \
         records from now on\n",
        opened.address
    ))?;
    Ok(Ending::Done)
}

fn adopt(opened: &Opened) -> anyhow::Result<Ending> {
    // etcd has no process that records its starts (ID5).
    let begun = starts::begin_first_start(opened.coordinator());
    begun.map_err(|error| opened.told(error))?;
    let adopted = admin::adopt(opened.coordinator());
    let record = adopted.map_err(|error| opened.told(error))?;
    let formerly = record
        .formerly
        .map_or_else(String::new, |it| it.to_string());
    print(format_args!(
        "{formerly} is {} from now on; its servers take this id from {} by themselves\n",
        record.cluster, opened.address
    ))?;
    Ok(Ending::Done)
}

fn init(opened: &Opened) -> anyhow::Result<Ending> {
    let created = admin::found(opened.coordinator());
    let cluster = created.map_err(|error| opened.told(error))?;
    starts::begin_start(opened.coordinator()).map_err(|error| opened.told(error))?;
    print(format_args!(
        "created {cluster} in {}; `farleaf region serve --coordinator {0}` adds a server\n",
        opened.address
    ))?;
    Ok(Ending::Done)
}
