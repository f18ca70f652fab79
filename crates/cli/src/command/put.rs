//! `farleaf put`.

use clap::Args;

use crate::arguments::{PoolArguments, TableArgument};
use crate::command::connection::{log_costs, open_table};
use crate::failure::Ending;
use crate::output::print;
use crate::quantity::parse_key;

/// What to write.
#[derive(Debug, Args)]
pub(crate) struct PutArguments {
    /// The key
    #[arg(value_parser = parse_key, allow_negative_numbers = true)]
    key: u64,

    /// Its value
    #[arg(value_parser = parse_key, allow_negative_numbers = true)]
    value: u64,

    #[command(flatten)]
    table: TableArgument,
}

/// Sets the value and tells what was there before.
pub(crate) fn run(pool: &PoolArguments, arguments: &PutArguments) -> anyhow::Result<Ending> {
    let (sessions, table) = open_table(pool, &arguments.table.table)?;
    let PutArguments { key, value, .. } = arguments;
    match table.put(*key, *value)? {
        Some(previous) => print(format_args!("updated {key}, value {previous} before\n"))?,
        None => print(format_args!("inserted {key}\n"))?,
    }
    log_costs(&sessions);
    Ok(Ending::Done)
}
