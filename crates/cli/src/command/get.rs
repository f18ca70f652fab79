//! `farleaf get`.

use clap::Args;
use serde::Serialize;

use crate::arguments::{OutputArgument, PoolArguments, TableArgument};
use crate::command::connection::{log_costs, open_table};
use crate::failure::Ending;
use crate::log::say;
use crate::output::{Lines, OutputFormat};
use crate::quantity::parse_key;

/// Which keys to look up.
#[derive(Debug, Args)]
pub(crate) struct GetArguments {
    /// The keys
    #[arg(value_name = "KEY", required = true, value_parser = parse_key)]
    #[arg(allow_negative_numbers = true)]
    keys: Vec<u64>,

    #[command(flatten)]
    table: TableArgument,

    #[command(flatten)]
    output: OutputArgument,
}

/// A key and its value as JSON; `null` when the key is absent.
#[derive(Serialize)]
struct Found {
    key: u64,
    value: Option<u64>,
}

/// Prints keys and values in the order asked for; absent keys are told on stderr, so that what is
/// on stdout are records.
pub(crate) fn run(pool: &PoolArguments, arguments: &GetArguments) -> anyhow::Result<Ending> {
    let (sessions, table) = open_table(pool, &arguments.table.table)?;
    let values = match arguments.keys[..] {
        [key] => vec![table.get(key)?],
        _ => table.multi_get(&arguments.keys)?,
    };
    let format = arguments.output.output;
    let mut lines = Lines::new(format);
    let mut ending = Ending::Done;
    for (key, value) in arguments.keys.iter().zip(values) {
        let object = Found { key: *key, value };
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
                    arguments.table.table
                ));
            }
        }
    }
    lines.finish()?;
    log_costs(&sessions);
    Ok(ending)
}
