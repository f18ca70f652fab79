//! `farleaf scan`.

use std::io::{IsTerminal, stdout};

use clap::Args;
use serde::Serialize;

use crate::arguments::{OutputArgument, PoolArguments, TableArgument};
use crate::command::connection::{log_costs, open_table};
use crate::failure::{BadArgument, Ending};
use crate::log::say;
use crate::output::Lines;
use crate::quantity::{parse_count, parse_key};

/// Which records to print.
#[derive(Debug, Args)]
pub(crate) struct ScanArguments {
    /// Smallest key
    #[arg(long, value_name = "KEY", default_value_t = 0, value_parser = parse_key)]
    #[arg(allow_negative_numbers = true)]
    from: u64,

    /// Largest key
    #[arg(long, value_name = "KEY", default_value_t = u64::MAX, value_parser = parse_key)]
    #[arg(allow_negative_numbers = true, hide_default_value = true)]
    to: u64,

    /// How many records at the most; 0 for all
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = parse_count)]
    #[arg(allow_negative_numbers = true)]
    limit: u64,

    #[command(flatten)]
    table: TableArgument,

    #[command(flatten)]
    output: OutputArgument,
}

/// A record as JSON.
#[derive(Serialize)]
struct Record {
    key: u64,
    value: u64,
}

/// Prints records by ascending key. Not a snapshot: what others write meanwhile may be in it or
/// not.
pub(crate) fn run(pool: &PoolArguments, arguments: &ScanArguments) -> anyhow::Result<Ending> {
    let ScanArguments {
        from, to, limit, ..
    } = *arguments;
    if from > to {
        let message = format!("--from {from} is above --to {to}: there is no key between them");
        return Err(BadArgument(message).into());
    }
    let (sessions, table) = open_table(pool, &arguments.table.table)?;
    let mut lines = Lines::new(arguments.output.output);
    let mut is_cut = false;
    for (index, record) in table.range(from..=to).enumerate() {
        let (key, value) = record?;
        if limit > 0 && index as u64 == limit {
            is_cut = true;
            break;
        }
        lines.line(format_args!("{key}\t{value}"), &Record { key, value })?;
    }
    lines.finish()?;
    // Where a program reads, it knows its limit.
    if is_cut && stdout().is_terminal() {
        say(format_args!(
            "there are more than {limit} records; --limit 0 prints all"
        ));
    }
    log_costs(&sessions);
    Ok(Ending::Done)
}
