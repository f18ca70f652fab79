//! `farleaf del`: removes keys.

use std::ffi::OsString;

use clap::Args;

use super::put::previous_text;
use super::table_handle::TableHandle;
use crate::arguments::{PoolArguments, TableArgument};
use crate::cluster_options::DurabilityArgument;
use crate::failure::{BadArgument, Ending};
use crate::log::say;
use crate::output::print;
use crate::strings::EncodingArguments;
use farleaf_bench::quantity::count;

/// Keys to remove.
#[derive(Debug, Args)]
pub(crate) struct DelArguments {
    /// Keys to remove
    #[arg(
        value_name = "KEY",
        required_unless_present = "prefix",
        conflicts_with = "prefix"
    )]
    #[arg(allow_negative_numbers = true)]
    keys: Vec<OsString>,

    /// Tables of bytes: remove all keys with this prefix
    #[arg(long, allow_negative_numbers = true)]
    prefix: Option<OsString>,

    #[command(flatten)]
    durability: DurabilityArgument,

    #[command(flatten)]
    encoding: EncodingArguments,

    #[command(flatten)]
    table: TableArgument,
}

/// Removes the keys one by one and prints their values. Absent keys are reported on stderr.
pub(crate) fn run(pool: &PoolArguments, arguments: &DelArguments) -> anyhow::Result<Ending> {
    let prefix_option = arguments.prefix.as_ref().map(|_| "--prefix");
    let table = TableHandle::open(pool, &arguments.table, arguments.encoding, prefix_option)?;
    let table = table.with_durability(arguments.durability);
    let ending = match &arguments.prefix {
        Some(prefix) => delete_prefix(&table, &arguments.encoding.read_prefix(prefix)?)?,
        None => delete_keys(&table, &arguments.keys)?,
    };
    table.log_costs();
    Ok(ending)
}

fn delete_keys(table: &TableHandle, keys: &[OsString]) -> anyhow::Result<Ending> {
    let mut ending = Ending::Done;
    for key in table.read_keys(keys)? {
        // Printed at once, because it is done, even if the next one fails.
        if let Some(previous) = table.take(&key)? {
            print(format_args!(
                "deleted {} (previous {})\n",
                table.show(&key),
                previous_text(table, &previous)
            ))?;
        } else {
            ending = Ending::Lacking;
            table.report_absent(&key);
        }
    }
    Ok(ending)
}

fn delete_prefix(table: &TableHandle, prefix: &[u8]) -> anyhow::Result<Ending> {
    let name = table.name();
    if prefix.is_empty() {
        // An unset variable in `--prefix "$PREFIX"` must not empty a table.
        let message = format!(
            "--prefix is empty and matches all keys; to delete them all, use `farleaf table drop \
             {name}`"
        );
        return Err(BadArgument(message).into());
    }
    let shown = table.show(prefix);
    match table.delete_prefix(prefix)? {
        0 => {
            say(format_args!("no key of table '{name}' begins with {shown}"));
            Ok(Ending::Lacking)
        }
        1 => {
            print(format_args!("deleted 1 key that began with {shown}\n"))?;
            Ok(Ending::Done)
        }
        deleted_count => {
            print(format_args!(
                "deleted {} keys that began with {shown}\n",
                count(deleted_count)
            ))?;
            Ok(Ending::Done)
        }
    }
}
