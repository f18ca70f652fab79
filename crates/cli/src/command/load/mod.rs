//! `farleaf load`: loads a file of records into a table, all of them or with a report of what is
//! missing.
//!
//! | module | contents |
//! |---|---|
//! | `create` | opening or creating the table |
//! | `words`, `bytes` | loads of either kind, in bulk or one by one |
//! | `each` | writing record by record, and its progress |
//! | `persistent` | loads into a table of a cluster |
//! | `served` | check that the pool is still served |

mod bytes;
mod create;
mod each;
mod persistent;
mod served;
mod words;

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use farleaf::{Error, ErrorKind};
use indicatif::ProgressBar;

use super::string_table::StringTable;
use super::table::check_bounds;
use super::target::{AnyTable, Sessions};
use crate::arguments::{PoolArguments, TableArgument};
use crate::cluster_options::{DurabilityArgument, PersistentArguments};
use crate::command::connection::{log_costs, open_sessions};
use crate::failure::{BadArgument, Ending};
use crate::log::say;
use crate::output::print;
use crate::progress::bytes_bar;
use crate::records::{FileFormat, Input, Source, StringRecords, WordRecord, read_words};
use crate::table_options::{BoundsArgument, KindName, TableOptionArguments};

/// Arguments of `farleaf load`.
#[derive(Debug, Args)]
pub(crate) struct LoadArguments {
    /// File to load, plain or gzip, one record per line; - for stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Format of a line. `tsv`: key, tab, value with escapes (bytes), or a key and a value (words;
    /// a key alone is its own value). `json`: an object with key and value
    #[arg(long, value_enum, default_value_t, hide_possible_values = true)]
    format: FileFormat,

    /// Tables of bytes: read keys and values of `tsv` without escapes; the value ends with the line
    #[arg(long, conflicts_with_all = ["format", "hex", "escaped"])]
    raw: bool,

    #[command(flatten)]
    table: TableArgument,

    /// Create the table with the options below if it does not exist
    #[arg(long)]
    create: bool,

    #[command(flatten)]
    options: TableOptionArguments,

    #[command(flatten)]
    bounds: BoundsArgument,

    #[command(flatten)]
    persistent: PersistentArguments,

    #[command(flatten)]
    durability: DurabilityArgument,
}

impl LoadArguments {
    /// Returns the format of a line.
    ///
    /// # Errors
    /// `--hex` or `--escaped` is given with a format that defines itself how bytes are written.
    fn line_format(&self) -> Result<FileFormat, BadArgument> {
        let encoding = self.persistent.encoding();
        match (self.format, encoding.given()) {
            (FileFormat::Json, Some(option)) if !self.persistent.has_split_keys() => {
                Err(BadArgument(format!(
                    "{option} cannot be used with --format json, which has the fields key_hex and \
                     value_hex; leave it out"
                )))
            }
            _ if self.raw => Ok(FileFormat::RawTsv),
            (FileFormat::Tsv, _) if encoding.hex => Ok(FileFormat::HexTsv),
            (format, _) => Ok(format),
        }
    }

    /// Rejects an option of bytes for records of words.
    fn check_encoding(&self, records: &Records) -> Result<(), BadArgument> {
        match (records, self.persistent.encoding().given()) {
            (Records::Words(_), Some(option)) => Err(BadArgument(format!(
                "{option} cannot be used with records of words: it is for tables of bytes; leave \
                 it out"
            ))),
            _ => Ok(()),
        }
    }
}

/// Target of the load.
struct Target<T> {
    table: T,
    name: String,
    /// Whether `--create` has just created the table.
    is_new: bool,
}

impl<T> Target<T> {
    /// Returns the message for a load without any record. A table that was created for this load is
    /// not dropped, because other clients may have written to it.
    fn nothing_loaded(&self) -> String {
        let name = &self.name;
        if self.is_new {
            format!("nothing was loaded; the new table '{name}' remains")
        } else {
            "nothing was loaded".to_owned()
        }
    }
}

/// Contents of a file.
enum Records {
    Words(Vec<WordRecord>),
    Bytes(StringRecords),
}

impl Records {
    fn is_empty(&self) -> bool {
        match self {
            Self::Words(records) => records.is_empty(),
            Self::Bytes(records) => records.count() == 0,
        }
    }
}

/// Reads and checks the whole file, then bulk-loads an empty table, or writes the records one by
/// one into a table that has records.
pub(crate) fn run(pool: &PoolArguments, arguments: &LoadArguments) -> anyhow::Result<Ending> {
    if let Some(address) = &pool.cluster {
        return persistent::run(pool, address, arguments);
    }
    check_bounds(pool, &arguments.bounds)?;
    let format = arguments.line_format()?;
    let kind = arguments.options.kind(pool.addresses().len())?;
    let source = Source::from(arguments.file.clone());
    let name = &arguments.table.table;
    let sessions = open_sessions(pool)?;
    if arguments.create {
        let records = read(&source, format, kind)?;
        arguments.check_encoding(&records)?;
        create_and_load(&sessions, arguments, &source, &records)?;
    } else {
        // Opened first, because reading a long file takes time.
        let opened = sessions.open_table(name);
        let kind = kind_of(&opened.map_err(|error| hint_at_create(error, name))?);
        let records = read(&source, format, Some(kind))?;
        arguments.check_encoding(&records)?;
        let table = sessions.open_table(name).context("nothing was loaded")?;
        load_into(&sessions, table, &source, &records, name)?;
    }
    log_costs(Some(&sessions));
    Ok(Ending::Done)
}

/// Prints that a file has no records, as the dump of an empty table has none. Nothing in such a
/// file shows a kind, so the message names the table's.
fn tell_empty(source: &Source, name: &str, kind: KindName) -> anyhow::Result<()> {
    print(format_args!(
        "loaded 0 records of {source} into table '{name}', which holds {}\n",
        match kind {
            KindName::Words => "64-bit words",
            KindName::Bytes => "byte strings",
        }
    ))
}

fn kind_of(table: &AnyTable) -> KindName {
    match table {
        AnyTable::Words(_) => KindName::Words,
        AnyTable::Bytes(_) => KindName::Bytes,
    }
}

/// Reads all records of the file. Without other options, the first line determines their kind.
fn read(source: &Source, format: FileFormat, kind: Option<KindName>) -> anyhow::Result<Records> {
    let bar = bytes_bar("reading", source.size_bytes());
    let read = read_with(source, format, kind, &bar);
    bar.finish_and_clear();
    read
}

fn read_with(
    source: &Source,
    format: FileFormat,
    kind: Option<KindName>,
    bar: &ProgressBar,
) -> anyhow::Result<Records> {
    let mut input = Input::open(source, bar).context("nothing was loaded")?;
    if format != FileFormat::RawTsv {
        let skipped = input.skip_byte_order_mark();
        skipped.context("nothing was loaded")?;
    }
    // Raw and hexadecimal lines are of bytes; that is no guess.
    let is_of_bytes = matches!(format, FileFormat::RawTsv | FileFormat::HexTsv);
    let kind = kind.or(is_of_bytes.then_some(KindName::Bytes));
    let is_guess = kind.is_none();
    let kind = match kind {
        Some(kind) => kind,
        None => input.kind(format).context("nothing was loaded")?,
    };
    let hint = |other: KindName| {
        if is_guess {
            let (kind, other) = (kind.name(), other.name());
            format!(
                "nothing was loaded (the first line was detected as a record of {kind}; to load \
                 {other}, use --kind {other})"
            )
        } else {
            "nothing was loaded".to_owned()
        }
    };
    let records = match kind {
        KindName::Words => {
            let records = read_words(&mut input, format, is_guess);
            Records::Words(records.with_context(|| hint(KindName::Bytes))?)
        }
        KindName::Bytes => {
            let records = StringRecords::read(&mut input, format);
            Records::Bytes(records.with_context(|| hint(KindName::Words))?)
        }
    };
    if records.is_empty() {
        say(format_args!("{source} is empty: 0 records loaded"));
    }
    Ok(records)
}

fn create_and_load(
    sessions: &Sessions,
    arguments: &LoadArguments,
    source: &Source,
    records: &Records,
) -> anyhow::Result<()> {
    let name = &arguments.table.table;
    match (records, sessions) {
        (Records::Words(records), _) => {
            let options = arguments.options.of_kind(KindName::Words);
            let target = match sessions {
                Sessions::One(session) => create::words(session, name, &options)?,
                Sessions::Parts(session) => {
                    let bounds = arguments.bounds.bounds.as_deref();
                    create::parts(session, name, &options, bounds, records)?
                }
            };
            words::load(source, sessions, &target, records)
        }
        (Records::Bytes(records), Sessions::One(session)) => {
            let options = arguments.options.of_kind(KindName::Bytes);
            let target = create::bytes(session, name, &options)?;
            bytes::load(source, session, &target, records)
        }
        (Records::Bytes(_), Sessions::Parts(_)) => {
            unreachable!("options of a table over several pools are of words")
        }
    }
}

fn load_into(
    sessions: &Sessions,
    table: AnyTable,
    source: &Source,
    records: &Records,
    name: &str,
) -> anyhow::Result<()> {
    match (table, records, sessions) {
        (AnyTable::Words(table), Records::Words(records), _) => {
            let target = Target::existing(table, name);
            words::load(source, sessions, &target, records)
        }
        (
            AnyTable::Bytes(StringTable::Memory(table)),
            Records::Bytes(records),
            Sessions::One(session),
        ) => {
            let target = Target::existing(table, name);
            bytes::load(source, session, &target, records)
        }
        _ => Err(anyhow::anyhow!(
            "nothing was loaded: table '{name}' was dropped and recreated with another kind while \
             {source} was read; load it again"
        )),
    }
}

impl<T> Target<T> {
    fn existing(table: T, name: &str) -> Self {
        Self {
            table,
            name: name.to_owned(),
            is_new: false,
        }
    }

    fn new(table: T, name: &str) -> Self {
        Self {
            table,
            name: name.to_owned(),
            is_new: true,
        }
    }
}

fn hint_at_create(error: Error, name: &str) -> anyhow::Error {
    let is_missing = matches!(error.kind(), ErrorKind::TableNotFound { .. });
    let error = anyhow::Error::new(error);
    if is_missing {
        error.context(format!(
            "nothing was loaded (--create creates table '{name}')"
        ))
    } else {
        error.context("nothing was loaded")
    }
}
