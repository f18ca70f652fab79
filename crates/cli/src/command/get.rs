//! `farleaf get`: prints the values of keys.

use std::ffi::OsString;

use clap::Args;
use serde::Serialize;

use super::string_table::StringTable;
use super::target::{AnyTable, WordTable, refuse_for_words, words_of};
use crate::arguments::{OutputArgument, PoolArguments, TableArgument};
use crate::command::connection::{log_costs, open_table};
use crate::failure::{BadArgument, Ending};
use crate::log::say;
use crate::output::{Lines, OutputFormat, print_raw};
use crate::strings::{EncodingArguments, ShownRecord, ShownValue};

/// Keys to look up.
#[derive(Debug, Args)]
pub(crate) struct GetArguments {
    /// Keys
    #[arg(value_name = "KEY", required = true, allow_negative_numbers = true)]
    keys: Vec<OsString>,

    /// Tables of bytes: write the value of a single key without escapes and newline
    #[arg(long, conflicts_with = "output")]
    raw: bool,

    #[command(flatten)]
    encoding: EncodingArguments,

    #[command(flatten)]
    table: TableArgument,

    #[command(flatten)]
    output: OutputArgument,
}

/// Key and value as JSON; the value is `null` if the key is absent.
#[derive(Serialize)]
struct Found {
    key: u64,
    value: Option<u64>,
}

/// Prints keys and values in the requested order. Absent keys are reported on stderr, so that
/// stdout has records only.
pub(crate) fn run(pool: &PoolArguments, arguments: &GetArguments) -> anyhow::Result<Ending> {
    if arguments.raw && arguments.keys.len() > 1 {
        let message = "--raw needs exactly one key: raw values have no separators; name one key";
        return Err(BadArgument(message.to_owned()).into());
    }
    let (sessions, table) = open_table(pool, &arguments.table.table)?;
    let ending = match &table {
        AnyTable::Words(table) => get_words(table, arguments)?,
        AnyTable::Bytes(table) if arguments.raw => get_raw(table, arguments)?,
        AnyTable::Bytes(table) => get_bytes(table, arguments)?,
    };
    log_costs(sessions.as_ref());
    Ok(ending)
}

fn get_words(table: &WordTable, arguments: &GetArguments) -> anyhow::Result<Ending> {
    let raw = arguments.raw.then_some("--raw");
    refuse_for_words(table, [arguments.encoding.given(), raw])?;
    let keys = words_of(table, "key", &arguments.keys)?;
    let values = match keys[..] {
        [key] => vec![table.get(key)?],
        _ => table.multi_get(&keys)?,
    };
    let format = arguments.output.output;
    let mut lines = Lines::new(format);
    let mut ending = Ending::Done;
    for (key, value) in keys.into_iter().zip(values) {
        let object = Found { key, value };
        ending = if value.is_some() {
            ending
        } else {
            Ending::Lacking
        };
        match (format, value) {
            (OutputFormat::Json, _) => lines.line("", &object)?,
            (OutputFormat::Text, Some(value)) => {
                lines.line(format_args!("{key}\t{value}"), &object)?;
            }
            (OutputFormat::Text, None) => {
                say(format_args!(
                    "key {key} is absent from table '{}'",
                    table.name()
                ));
            }
        }
    }
    lines.finish()?;
    Ok(ending)
}

fn get_bytes(table: &StringTable, arguments: &GetArguments) -> anyhow::Result<Ending> {
    let encoding = arguments.encoding;
    let keys = arguments.keys.iter().map(|key| encoding.read_key(key));
    let keys = keys.collect::<Result<Vec<_>, _>>()?;
    let values = match &keys[..] {
        [key] => vec![table.get(key)?],
        _ => table.multi_get(&keys)?,
    };
    let format = arguments.output.output;
    let mut lines = Lines::new(format);
    let mut ending = Ending::Done;
    for (key, value) in keys.iter().zip(&values) {
        if value.is_none() {
            ending = Ending::Lacking;
        }
        let shown = ShownRecord {
            encoding,
            key,
            value: value
                .as_deref()
                .map_or(ShownValue::Absent, ShownValue::Present),
        };
        if value.is_none() && format == OutputFormat::Text {
            tell_absent(table, encoding, key);
        } else {
            lines.line(shown, &shown)?;
        }
    }
    lines.finish()?;
    Ok(ending)
}

fn get_raw(table: &StringTable, arguments: &GetArguments) -> anyhow::Result<Ending> {
    let encoding = arguments.encoding;
    let key = encoding.read_key(&arguments.keys[0])?;
    let Some(value) = table.get(&key)? else {
        tell_absent(table, encoding, &key);
        return Ok(Ending::Lacking);
    };
    print_raw(&value)?;
    Ok(Ending::Done)
}

/// Reports on stderr that a key is absent.
pub(super) fn tell_absent(table: &StringTable, encoding: EncodingArguments, key: &[u8]) {
    say(format_args!(
        "key {} is absent from table '{}'",
        encoding.show(key),
        table.name()
    ));
}
