//! `farleaf del`.

use clap::Args;

use crate::arguments::{PoolArguments, TableArgument};
use crate::command::connection::{log_costs, open_table};
use crate::failure::Ending;
use crate::log::say;
use crate::output::print;
use crate::quantity::parse_key;

/// What to remove.
#[derive(Debug, Args)]
pub(crate) struct DelArguments {
    /// The keys
    #[arg(value_name = "KEY", required = true, value_parser = parse_key)]
    #[arg(allow_negative_numbers = true)]
    keys: Vec<u64>,

    #[command(flatten)]
    table: TableArgument,
}

/// Removes the keys one after the other and tells what each was; a key that was absent is told on
/// stderr.
pub(crate) fn run(pool: &PoolArguments, arguments: &DelArguments) -> anyhow::Result<Ending> {
    let (sessions, table) = open_table(pool, &arguments.table.table)?;
    let mut ending = Ending::Done;
    for key in &arguments.keys {
        // Told at once: it is done, whatever becomes of the next one.
        if let Some(previous) = table.delete(*key)? {
            print(format_args!("deleted {key}, value {previous} before\n"))?;
        } else {
            ending = Ending::Lacking;
            say(format_args!(
                "key {key} is absent from table '{}'",
                arguments.table.table
            ));
        }
    }
    log_costs(&sessions);
    Ok(ending)
}
