//! `farleaf scan`: prints records in key order.

use std::ffi::OsString;

use clap::Args;
use farleaf::Record;
use farleaf::key::{ByteRange, prefix_range, successor};
use serde::Serialize;

use super::string_table::StringTable;
use super::target::{AnyTable, WordTable, refuse_for_words, words_of};
use crate::arguments::{OutputArgument, PoolArguments, TableArgument};
use crate::command::connection::{log_costs, open_table};
use crate::failure::{BadArgument, Ending};
use crate::log::say;
use crate::output::Lines;
use crate::strings::{EncodingArguments, ShownRecord, ShownValue};
use farleaf_bench::quantity::parse_count;

/// Records to print.
#[derive(Debug, Args)]
pub(crate) struct ScanArguments {
    /// Smallest key, same as --from
    #[arg(value_name = "FROM", allow_negative_numbers = true)]
    first: Option<OsString>,

    /// Smallest key
    #[arg(
        long,
        value_name = "KEY",
        conflicts_with = "first",
        allow_negative_numbers = true
    )]
    from: Option<OsString>,

    /// Largest key
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    to: Option<OsString>,

    /// Tables of bytes: print only keys with this prefix
    #[arg(long, conflicts_with_all = ["first", "from", "to"], allow_negative_numbers = true)]
    prefix: Option<OsString>,

    /// Print from the largest key to the smallest
    #[arg(long)]
    reverse: bool,

    /// Print keys without values
    #[arg(long)]
    keys_only: bool,

    /// Maximum number of records; 0 for no limit [default: 100]
    #[arg(long, value_name = "COUNT", value_parser = parse_count, allow_negative_numbers = true)]
    limit: Option<u64>,

    #[command(flatten)]
    encoding: EncodingArguments,

    #[command(flatten)]
    table: TableArgument,

    #[command(flatten)]
    output: OutputArgument,
}

/// Default limit of printed records.
const LIMIT_DEFAULT: u64 = 100;

impl ScanArguments {
    /// Returns the limit; 0 means no limit.
    fn limit(&self) -> u64 {
        self.limit.unwrap_or(LIMIT_DEFAULT)
    }

    fn from(&self) -> Option<&OsString> {
        self.first.as_ref().or(self.from.as_ref())
    }
}

/// Record as JSON.
#[derive(Serialize)]
pub(super) struct WordRecord {
    pub(super) key: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) value: Option<u64>,
}

/// Prints records in ascending key order. Not a snapshot: concurrent writes may or may not be
/// included.
pub(crate) fn run(pool: &PoolArguments, arguments: &ScanArguments) -> anyhow::Result<Ending> {
    let (sessions, table) = open_table(pool, &arguments.table.table)?;
    let is_cut = match &table {
        AnyTable::Words(table) => scan_words(table, arguments)?,
        AnyTable::Bytes(table) => scan_bytes(table, arguments)?,
    };
    // A limit that the user has given needs no explanation.
    if is_cut && arguments.limit.is_none() {
        say(format_args!(
            "stopped after {LIMIT_DEFAULT} records; there are more (--limit COUNT prints more, \
             --limit 0 prints all)"
        ));
    }
    log_costs(sessions.as_ref());
    Ok(Ending::Done)
}

/// Prints records of a table of words. Returns whether there are more than the limit.
fn scan_words(table: &WordTable, arguments: &ScanArguments) -> anyhow::Result<bool> {
    let prefix = arguments.prefix.as_ref().map(|_| "--prefix");
    refuse_for_words(table, [arguments.encoding.given(), prefix])?;
    let from = words_of(table, "key", arguments.from())?;
    let to = words_of(table, "key", &arguments.to)?;
    let from = from.first().copied().unwrap_or(0);
    let to = to.first().copied().unwrap_or(u64::MAX);
    if from > to {
        return Err(nothing_between(&from.to_string(), &to.to_string()).into());
    }
    let mut lines = Lines::new(arguments.output.output);
    let mut is_cut = false;
    for (index, record) in table.range(from..=to, arguments.reverse).enumerate() {
        let (key, value) = record?;
        if arguments.limit() > 0 && index as u64 == arguments.limit() {
            is_cut = true;
            break;
        }
        let value = (!arguments.keys_only).then_some(value);
        let object = WordRecord { key, value };
        match value {
            Some(value) => lines.line(format_args!("{key}\t{value}"), &object)?,
            None => lines.line(key, &object)?,
        }
    }
    lines.finish()?;
    Ok(is_cut)
}

fn scan_bytes(table: &StringTable, arguments: &ScanArguments) -> anyhow::Result<bool> {
    let encoding = arguments.encoding;
    let ByteRange { start, end } = byte_range(arguments)?;
    let range = (start.as_slice(), end.as_deref());
    let records = table.records(range, arguments.reverse, arguments.keys_only);
    let mut lines = Lines::new(arguments.output.output);
    let mut is_cut = false;
    for (index, record) in records.enumerate() {
        let Record { key, value } = record?;
        if arguments.limit() > 0 && index as u64 == arguments.limit() {
            is_cut = true;
            break;
        }
        let value = if arguments.keys_only {
            ShownValue::NotAsked
        } else {
            ShownValue::Present(&value)
        };
        let shown = ShownRecord {
            encoding,
            key: &key,
            value,
        };
        lines.line(shown, &shown)?;
    }
    lines.finish()?;
    Ok(is_cut)
}

fn byte_range(arguments: &ScanArguments) -> Result<ByteRange, BadArgument> {
    let encoding = arguments.encoding;
    if let Some(prefix) = &arguments.prefix {
        return Ok(prefix_range(&encoding.read_prefix(prefix)?));
    }
    let start = match arguments.from() {
        Some(from) => encoding.read_key(from)?,
        None => Vec::new(),
    };
    let Some(to) = &arguments.to else {
        return Ok(ByteRange { start, end: None });
    };
    let to = encoding.read_key(to)?;
    if start > to {
        let [from, to] = [&start, &to].map(|bound| encoding.show(bound).to_string());
        return Err(nothing_between(&from, &to));
    }
    let end = Some(successor(&to));
    Ok(ByteRange { start, end })
}

fn nothing_between(from: &str, to: &str) -> BadArgument {
    BadArgument(format!(
        "--from {from} is above --to {to}: the range is empty"
    ))
}
