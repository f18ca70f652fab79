//! `farleaf del`: removes keys.

use std::ffi::OsString;

use clap::Args;

use super::get::tell_absent;
use super::put::previous_text;
use super::string_table::StringTable;
use super::target::{AnyTable, WordTable, refuse_for_words, words_of};
use crate::arguments::{PoolArguments, TableArgument};
use crate::cluster_options::DurabilityArgument;
use crate::command::connection::{log_costs, open_table};
use crate::failure::{BadArgument, Ending};
use crate::log::say;
use crate::output::print;
use crate::strings::EncodingArguments;
use farleaf_bench::quantity::count;

/// Keys to remove.
#[derive(Debug, Args)]
pub(crate) struct DelArguments {
    /// Keys
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
    let (sessions, table) = open_table(pool, &arguments.table.table)?;
    let table = table.with_durability(arguments.durability);
    let ending = match (&table, &arguments.prefix) {
        (AnyTable::Words(table), _) => delete_words(table, arguments)?,
        (AnyTable::Bytes(table), Some(prefix)) => {
            let prefix = arguments.encoding.read_prefix(prefix)?;
            delete_prefix(table, arguments.encoding, &prefix)?
        }
        (AnyTable::Bytes(table), None) => delete_bytes(table, arguments)?,
    };
    log_costs(sessions.as_ref());
    Ok(ending)
}

fn delete_words(table: &WordTable, arguments: &DelArguments) -> anyhow::Result<Ending> {
    let prefix = arguments.prefix.as_ref().map(|_| "--prefix");
    refuse_for_words(table, [arguments.encoding.given(), prefix])?;
    let mut ending = Ending::Done;
    for key in words_of(table, "key", &arguments.keys)? {
        // Printed at once, because it is done, even if the next one fails.
        if let Some(previous) = table.delete(key)? {
            print(format_args!("deleted {key} (previous value {previous})\n"))?;
        } else {
            ending = Ending::Lacking;
            say(format_args!(
                "key {key} is absent from table '{}'",
                table.name()
            ));
        }
    }
    Ok(ending)
}

fn delete_bytes(table: &StringTable, arguments: &DelArguments) -> anyhow::Result<Ending> {
    let encoding = arguments.encoding;
    let keys = arguments.keys.iter().map(|key| encoding.read_key(key));
    let keys = keys.collect::<Result<Vec<_>, _>>()?;
    let mut ending = Ending::Done;
    for key in keys {
        if let Some(previous) = table.take(&key)? {
            print(format_args!(
                "deleted {} (previous {})\n",
                encoding.show(&key),
                previous_text(encoding, &previous)
            ))?;
        } else {
            ending = Ending::Lacking;
            tell_absent(table, encoding, &key);
        }
    }
    Ok(ending)
}

fn delete_prefix(
    table: &StringTable,
    encoding: EncodingArguments,
    prefix: &[u8],
) -> anyhow::Result<Ending> {
    let name = table.name();
    if prefix.is_empty() {
        // An unset variable in `--prefix "$PREFIX"` must not empty a table.
        let message = format!(
            "--prefix is empty and matches all keys; to delete them all, use `farleaf table drop \
             {name}`"
        );
        return Err(BadArgument(message).into());
    }
    let shown = encoding.show(prefix);
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
