//! `farleaf put`: sets the value of a key.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use farleaf::key::VALUE_SIZE_BYTES_MAX;

use super::table_handle::TableHandle;
use crate::arguments::{PoolArguments, TableArgument};
use crate::cluster_options::DurabilityArgument;
use crate::failure::{BadArgument, Ending};
use crate::output::print;
use crate::records::Source;
use crate::strings::EncodingArguments;
use farleaf_bench::quantity::count;

/// Maximum size of a previous value that is printed itself, in bytes.
const SHOWN_SIZE_BYTES_MAX: usize = 64;

/// Key and value to write.
#[derive(Debug, Args)]
pub(crate) struct PutArguments {
    /// Key to write
    #[arg(allow_negative_numbers = true)]
    key: OsString,

    /// Value to write
    #[arg(required_unless_present = "value_file", conflicts_with = "value_file")]
    #[arg(allow_negative_numbers = true)]
    value: Option<OsString>,

    /// Tables of bytes: read the value from a file, unchanged; - for stdin
    #[arg(long, value_name = "PATH")]
    value_file: Option<PathBuf>,

    #[command(flatten)]
    durability: DurabilityArgument,

    #[command(flatten)]
    encoding: EncodingArguments,

    #[command(flatten)]
    table: TableArgument,
}

/// Sets the value and prints the previous one.
pub(crate) fn run(pool: &PoolArguments, arguments: &PutArguments) -> anyhow::Result<Ending> {
    let PutArguments {
        key,
        value,
        value_file,
        encoding,
        ..
    } = arguments;
    let file_option = value_file.as_ref().map(|_| "--value-file");
    let table = TableHandle::open(pool, &arguments.table, *encoding, file_option)?;
    let table = table.with_durability(arguments.durability);
    let key = table.read_key(key)?;
    let value = match (value, value_file) {
        (Some(value), _) => table.read_value(value)?,
        (None, Some(path)) => value_of(path)?,
        (None, None) => unreachable!("one of them is required"),
    };
    let previous = table.replace(&key, &value)?;
    let key = table.show(&key);
    match previous {
        Some(previous) => {
            let previous = previous_text(&table, &previous);
            print(format_args!("updated {key} (previous {previous})\n"))?;
        }
        None => print(format_args!("inserted {key}\n"))?,
    }
    table.log_costs();
    Ok(Ending::Done)
}

/// Describes a value that was replaced or removed.
pub(super) fn previous_text(table: &TableHandle, previous: &[u8]) -> String {
    match previous.len() {
        0..=SHOWN_SIZE_BYTES_MAX => format!("value {}", table.show(previous)),
        size_bytes => format!("value of {} bytes", count(size_bytes as u64)),
    }
}

/// Reads all of a file or of stdin.
fn value_of(path: &Path) -> anyhow::Result<Vec<u8>> {
    let source = Source::from(path.to_owned());
    let input: Box<dyn Read> = match &source {
        Source::Stdin => Box::new(io::stdin().lock()),
        Source::File(path) => {
            let opened = File::open(path);
            Box::new(opened.with_context(|| format!("cannot open '{source}'"))?)
        }
    };
    let mut value = Vec::new();
    input
        .take(VALUE_SIZE_BYTES_MAX as u64 + 1)
        .read_to_end(&mut value)
        .with_context(|| format!("cannot read '{source}'"))?;
    if value.len() > VALUE_SIZE_BYTES_MAX {
        let message = format!(
            "the value in '{source}' is larger than the maximum of {VALUE_SIZE_BYTES_MAX} bytes \
             (64 MiB); split it into several values"
        );
        return Err(BadArgument(message).into());
    }
    Ok(value)
}
