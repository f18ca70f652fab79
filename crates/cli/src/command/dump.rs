//! `farleaf dump`: prints all records of a table in a format that `load` reads.

use clap::Args;
use farleaf::Record;

use super::scan::WordRecord;
use super::string_table::StringTable;
use super::target::{AnyTable, refuse_for_words};
use crate::arguments::{PoolArguments, TableArgument};
use crate::command::connection::{log_costs, open_table};
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
    let (sessions, table) = open_table(pool, &arguments.table.table)?;
    let mut lines = Lines::new(match arguments.format {
        FileFormat::Tsv | FileFormat::RawTsv | FileFormat::HexTsv => OutputFormat::Text,
        FileFormat::Json => OutputFormat::Json,
    });
    let encoding = arguments.encoding;
    match &table {
        AnyTable::Words(table) => {
            refuse_for_words(table, [encoding.given()])?;
            for record in table.range(0..=u64::MAX, false) {
                let (key, value) = record?;
                let object = WordRecord {
                    key,
                    value: Some(value),
                };
                lines.line(format_args!("{key}\t{value}"), &object)?;
            }
        }
        AnyTable::Bytes(StringTable::Memory(table)) => {
            let mut records = table.range(b"", None);
            while let Some(record) = records.next_in_place() {
                let (key, value) = record?;
                dump_strings(&mut lines, encoding, key, value)?;
            }
        }
        AnyTable::Bytes(table) => {
            for record in table.records((b"", None), false, false) {
                let Record { key, value } = record?;
                dump_strings(&mut lines, encoding, &key, &value)?;
            }
        }
    }
    lines.finish()?;
    log_costs(sessions.as_ref());
    Ok(Ending::Done)
}

fn dump_strings(
    lines: &mut Lines,
    encoding: EncodingArguments,
    key: &[u8],
    value: &[u8],
) -> anyhow::Result<()> {
    let shown = ShownRecord {
        encoding,
        key,
        value: ShownValue::Present(value),
    };
    lines.line(shown, &shown)
}
