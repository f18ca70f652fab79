//! `farleaf get`: prints the values of keys.

use std::ffi::OsString;

use clap::Args;

use super::table_handle::TableHandle;
use crate::arguments::{OutputArgument, PoolArguments, TableArgument};
use crate::failure::{BadArgument, Ending};
use crate::output::{Lines, OutputFormat};
use crate::strings::{EncodingArguments, ShownRecord, ShownValue};

/// Keys to look up.
#[derive(Debug, Args)]
pub(crate) struct GetArguments {
    /// Keys to read
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

/// Prints keys and values in the requested order. Absent keys are reported on stderr, so that
/// stdout has records only.
pub(crate) fn run(pool: &PoolArguments, arguments: &GetArguments) -> anyhow::Result<Ending> {
    if arguments.raw && arguments.keys.len() > 1 {
        let message = "--raw needs exactly one key: raw values have no separators; name one key";
        return Err(BadArgument(message.to_owned()).into());
    }
    let raw = arguments.raw.then_some("--raw");
    let table = TableHandle::open(pool, &arguments.table, arguments.encoding, raw)?;
    let keys = table.read_keys(&arguments.keys)?;
    let values = table.get(&keys)?;
    let format = arguments.output.output;
    let mut lines = Lines::new(format);
    let mut ending = Ending::Done;
    for (key, value) in keys.iter().zip(&values) {
        if value.is_none() {
            ending = Ending::Lacking;
        }
        match value {
            None if arguments.raw || format == OutputFormat::Text => table.report_absent(key),
            Some(value) if arguments.raw => lines.raw(value)?,
            _ => {
                let value = value.as_deref();
                let record = ShownRecord {
                    notation: table.notation(),
                    key,
                    value: value.map_or(ShownValue::Absent, ShownValue::Present),
                };
                lines.line(record, &record)?;
            }
        }
    }
    lines.finish()?;
    table.log_costs();
    Ok(ending)
}
