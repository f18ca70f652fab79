//! `farleaf scan`.

use std::ffi::OsString;
use std::io::{IsTerminal, stdout};

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
use crate::quantity::parse_count;
use crate::strings::{EncodingArguments, ShownRecord, ShownValue};

/// Which records to print.
#[derive(Debug, Args)]
pub(crate) struct ScanArguments {
    /// Smallest key, as with --from
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

    /// Of bytes: only keys that begin with this
    #[arg(long, conflicts_with_all = ["first", "from", "to"], allow_negative_numbers = true)]
    prefix: Option<OsString>,

    /// Of bytes: from the largest key to the smallest
    #[arg(long)]
    reverse: bool,

    /// Print no values
    #[arg(long)]
    keys_only: bool,

    /// How many records at the most; 0 for all
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = parse_count)]
    #[arg(allow_negative_numbers = true)]
    limit: u64,

    #[command(flatten)]
    encoding: EncodingArguments,

    #[command(flatten)]
    table: TableArgument,

    #[command(flatten)]
    output: OutputArgument,
}

impl ScanArguments {
    fn from(&self) -> Option<&OsString> {
        self.first.as_ref().or(self.from.as_ref())
    }
}

/// A record as JSON.
#[derive(Serialize)]
pub(super) struct WordRecord {
    pub(super) key: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) value: Option<u64>,
}

/// Prints records by ascending key. Not a snapshot: what others write meanwhile may be in it or
/// not.
pub(crate) fn run(pool: &PoolArguments, arguments: &ScanArguments) -> anyhow::Result<Ending> {
    let (sessions, table) = open_table(pool, &arguments.table.table)?;
    let is_cut = match &table {
        AnyTable::Words(table) => scan_words(table, arguments)?,
        AnyTable::Bytes(table) => scan_bytes(table, arguments)?,
    };
    // Where a program reads, it knows its limit.
    if is_cut && stdout().is_terminal() {
        say(format_args!(
            "there are more than {} records; --limit 0 prints all",
            arguments.limit
        ));
    }
    log_costs(sessions.as_ref());
    Ok(Ending::Done)
}

/// Whether there are more than the limit.
fn scan_words(table: &WordTable, arguments: &ScanArguments) -> anyhow::Result<bool> {
    let prefix = arguments.prefix.as_ref().map(|_| "--prefix");
    let reverse = arguments.reverse.then_some("--reverse");
    refuse_for_words(table, [arguments.encoding.given(), prefix, reverse])?;
    let from = words_of(table, "key", arguments.from())?;
    let to = words_of(table, "key", &arguments.to)?;
    let from = from.first().copied().unwrap_or(0);
    let to = to.first().copied().unwrap_or(u64::MAX);
    if from > to {
        return Err(nothing_between(&from.to_string(), &to.to_string()).into());
    }
    let mut lines = Lines::new(arguments.output.output);
    let mut is_cut = false;
    for (index, record) in table.range(from..=to).enumerate() {
        let (key, value) = record?;
        if arguments.limit > 0 && index as u64 == arguments.limit {
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
        if arguments.limit > 0 && index as u64 == arguments.limit {
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
        "--from {from} is above --to {to}: there is no key between them"
    ))
}
