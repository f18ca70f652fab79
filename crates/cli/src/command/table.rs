//! `farleaf table`: create, list and drop tables.

use std::time::Duration;

use clap::{Args, Subcommand};
use farleaf::{Bounds, ErrorKind};

use super::cluster_client::open_patiently;
use super::coordinator_retry::PATIENCE_DEFAULT_S;
use super::table_cluster;
use super::table_list::list;
use super::target::Sessions;
use crate::arguments::{OutputArgument, PoolArguments};
use crate::cluster_options::PersistentArguments;
use crate::command::connection::{open_pool, open_sessions};
use crate::failure::{BadArgument, Ending};
use crate::output::print;
use crate::table_options::{BoundsArgument, KindName, TableOptionArguments};

/// Subcommands of `farleaf table`.
#[derive(Debug, Args)]
pub(crate) struct TableArguments {
    #[command(subcommand)]
    pub(crate) command: TableCommand,
}

/// Subcommands of `farleaf table`.
#[derive(Debug, Subcommand)]
pub(crate) enum TableCommand {
    /// Create an empty table
    Create {
        /// Name of the table
        name: String,
        #[command(flatten)]
        options: TableOptionArguments,
        #[command(flatten)]
        bounds: BoundsArgument,
        #[command(flatten)]
        persistent: PersistentArguments,
    },
    /// List the tables
    List {
        #[command(flatten)]
        output: OutputArgument,
    },
    /// Drop a table and delete all its records
    Drop {
        /// Name of the table
        name: String,
        /// Drop this pool's part of a table over several pools, when the other pools are lost
        #[arg(long)]
        part: bool,
    },
}

/// Runs `farleaf table`.
pub(crate) fn run(pool: &PoolArguments, arguments: &TableArguments) -> anyhow::Result<Ending> {
    if let Some(address) = &pool.cluster {
        let patience = Duration::from_secs(PATIENCE_DEFAULT_S.into());
        let opened = open_patiently(pool, address, patience)?;
        return table_cluster::run(&opened, &arguments.command);
    }
    match &arguments.command {
        TableCommand::Create {
            name,
            options,
            bounds,
            persistent: _,
        } => create(pool, name, *options, bounds)?,
        TableCommand::List { output } => list(pool, output.output)?,
        TableCommand::Drop { name, part: true } => {
            open_pool(pool)?.session()?.drop_part(name)?;
            print(format_args!(
                "dropped the part of table '{name}' in {pool}\n"
            ))?;
        }
        TableCommand::Drop { name, part: false } => {
            match open_sessions(pool)? {
                Sessions::One(session) => session.drop_table(name)?,
                Sessions::Parts(session) => session.drop_table(name)?,
            }
            print(format_args!("dropped table '{name}'\n"))?;
        }
    }
    Ok(Ending::Done)
}

fn create(
    pool: &PoolArguments,
    name: &str,
    options: TableOptionArguments,
    bounds: &BoundsArgument,
) -> anyhow::Result<()> {
    check_bounds(pool, bounds)?;
    let kind = options.kind(pool.addresses().len())?;
    let kind = kind.unwrap_or(KindName::Bytes);
    let options = options.of_kind(kind);
    match open_sessions(pool)? {
        Sessions::One(session) => {
            match kind {
                KindName::Words => session.create_table(name, &options).map(drop)?,
                KindName::Bytes => session.create_byte_table(name, &options).map(drop)?,
            }
            print(format_args!("created table '{name}'\n"))
        }
        Sessions::Parts(session) => {
            let bounds = match &bounds.bounds {
                Some(first_keys) => Bounds::new(first_keys.clone())?,
                None => Bounds::even(session.sessions().len())?,
            };
            let created = session.create_table(name, &options, &bounds);
            if let Err(error) = &created
                && matches!(error.kind_in_pool(), ErrorKind::TableExists { .. })
            {
                // If the table cannot be opened, the error says what to do.
                session.open_table(name)?;
            }
            let table = created?;
            print(format_args!(
                "created table '{}' of {} parts, bounds {}\n",
                table.info().name,
                bounds.part_count(),
                bounds_text(&bounds)
            ))
        }
    }
}

/// Rejects bounds for a single pool.
pub(super) fn check_bounds(pool: &PoolArguments, bounds: &BoundsArgument) -> anyhow::Result<()> {
    if bounds.bounds.is_some() && pool.addresses().len() == 1 {
        let message = format!(
            "--bounds cannot be used with one pool, {pool}: it sets the bounds between the parts \
             of a table over several pools"
        );
        return Err(BadArgument(message).into());
    }
    Ok(())
}

/// Formats bounds in the form that `--bounds` accepts.
pub(super) fn bounds_text(bounds: &Bounds) -> String {
    let keys: Vec<String> = bounds.first_keys().iter().map(u64::to_string).collect();
    keys.join(",")
}
