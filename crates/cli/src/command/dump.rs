//! `farleaf dump`: prints all records of a table in a format that `load` reads.

use std::ops::ControlFlow;

use clap::Args;
use farleaf::key::ByteRange;

use super::table_handle::TableHandle;
use crate::arguments::{PoolArguments, TableArgument};
use crate::failure::Ending;
use crate::output::{Lines, OutputFormat};
use crate::records::FileFormat;
use crate::strings::{EncodingArguments, ShownRecord, ShownValue};

/// Arguments of `farleaf dump`.
#[derive(Debug, Args)]
pub(crate) struct DumpArguments {
    /// Format of a line: `tsv` (key, tab, value, with escapes for bytes) or `json` (an object)
    #[arg(long, value_enum, default_value_t, hide_possible_values = true)]
    format: FileFormat,

    #[command(flatten)]
    encoding: EncodingArguments,

    #[command(flatten)]
    table: TableArgument,
}

/// Prints all records in ascending key order. Like a scan, not a snapshot.
pub(crate) fn run(pool: &PoolArguments, arguments: &DumpArguments) -> anyhow::Result<Ending> {
    let table = TableHandle::open(pool, &arguments.table, arguments.encoding, None)?;
    let mut lines = Lines::new(match arguments.format {
        FileFormat::Tsv | FileFormat::RawTsv | FileFormat::HexTsv => OutputFormat::Text,
        FileFormat::Json => OutputFormat::Json,
    });
    let all = ByteRange {
        start: Vec::new(),
        end: None,
    };
    table.visit(&all, false, false, |key, value| {
        let record = ShownRecord {
            notation: table.notation(),
            key,
            value: ShownValue::Present(value),
        };
        lines.line(record, &record)?;
        Ok(ControlFlow::Continue(()))
    })?;
    lines.finish()?;
    table.log_costs();
    Ok(Ending::Done)
}
