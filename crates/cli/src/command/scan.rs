//! `farleaf scan`: prints records in key order.

use std::ffi::OsString;
use std::ops::ControlFlow;

use clap::Args;
use farleaf::key::{ByteRange, prefix_range, successor};

use super::table_handle::TableHandle;
use crate::arguments::{OutputArgument, PoolArguments, TableArgument};
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

    /// Smallest key (inclusive)
    #[arg(
        long,
        value_name = "KEY",
        conflicts_with = "first",
        allow_negative_numbers = true
    )]
    from: Option<OsString>,

    /// Largest key (inclusive)
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

/// Prints records in ascending key order. Not a snapshot: concurrent writes may or may not be
/// included.
pub(crate) fn run(pool: &PoolArguments, arguments: &ScanArguments) -> anyhow::Result<Ending> {
    let prefix = arguments.prefix.as_ref().map(|_| "--prefix");
    let table = TableHandle::open(pool, &arguments.table, arguments.encoding, prefix)?;
    let is_cut = scan(&table, arguments)?;
    // A limit that the user has given needs no explanation.
    if is_cut && arguments.limit.is_none() {
        say(format_args!(
            "stopped after {LIMIT_DEFAULT} records; there are more (--limit COUNT prints more, \
             --limit 0 prints all)"
        ));
    }
    table.log_costs();
    Ok(Ending::Done)
}

/// Prints the records. Returns whether there are more than the limit.
fn scan(table: &TableHandle, arguments: &ScanArguments) -> anyhow::Result<bool> {
    let range = byte_range(table, arguments)?;
    let (limit, keys_only) = (arguments.limit(), arguments.keys_only);
    let mut lines = Lines::new(arguments.output.output);
    let mut printed_count = 0;
    let mut is_cut = false;
    table.visit(&range, arguments.reverse, keys_only, |key, value| {
        if limit > 0 && printed_count == limit {
            is_cut = true;
            return Ok(ControlFlow::Break(()));
        }
        printed_count += 1;
        let value = if keys_only {
            ShownValue::NotAsked
        } else {
            ShownValue::Present(value)
        };
        let notation = table.notation();
        let record = ShownRecord {
            notation,
            key,
            value,
        };
        lines.line(record, &record)?;
        Ok(ControlFlow::Continue(()))
    })?;
    lines.finish()?;
    Ok(is_cut)
}

fn byte_range(table: &TableHandle, arguments: &ScanArguments) -> Result<ByteRange, BadArgument> {
    if let Some(prefix) = &arguments.prefix {
        return Ok(prefix_range(&arguments.encoding.read_prefix(prefix)?));
    }
    let start = match arguments.from() {
        Some(from) => table.read_key(from)?,
        None => Vec::new(),
    };
    let Some(to) = &arguments.to else {
        return Ok(ByteRange { start, end: None });
    };
    let to = table.read_key(to)?;
    if start > to {
        let [from, to] = [&start, &to].map(|bound| table.show(bound).to_string());
        return Err(BadArgument(format!(
            "--from {from} is above --to {to}: the range is empty"
        )));
    }
    let end = Some(successor(&to));
    Ok(ByteRange { start, end })
}
