//! `farleaf load`: a file of records into a table, all of it or with a clear word on what is
//! missing.
//!
//! | module | what it holds |
//! |---|---|
//! | `create` | the table, if `--create` is to make it |
//! | `words`, `bytes` | records of either kind, at once or one by one |
//! | `each` | record by record, and how far that came |
//! | `persistent` | records into a table of a cluster |
//! | `served` | whether anybody will see what was written |

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
use crate::failure::Ending;
use crate::progress::bytes_bar;
use crate::records::{FileFormat, Input, Source, StringRecords, WordRecord, read_words};
use crate::table_options::{BoundsArgument, KindName, TableOptionArguments};

/// What to load, and where to.
#[derive(Debug, Args)]
pub(crate) struct LoadArguments {
    /// The file, plain or gzip, or - for stdin: a record per line
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// What a line is: `tsv`, of bytes key, tab and value, with escapes, of words a key, or a key
    /// and a value, where a key alone gets itself as its value; or `json`, an object
    #[arg(long, value_enum, default_value_t, hide_possible_values = true)]
    format: FileFormat,

    #[command(flatten)]
    table: TableArgument,

    /// Make the table if it is not there, with the options below
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

/// Where to load.
struct Target<T> {
    table: T,
    name: String,
    /// `--create` made it just now.
    is_new: bool,
}

impl<T> Target<T> {
    /// What to say when no record came in. A table that was made for this load is not dropped
    /// again: somebody else may have found it and written to it.
    fn nothing_loaded(&self) -> String {
        let name = &self.name;
        if self.is_new {
            format!("nothing was loaded, and table '{name}', which --create made, stays")
        } else {
            "nothing was loaded".to_owned()
        }
    }
}

/// What is in a file.
enum Records {
    Words(Vec<WordRecord>),
    Bytes(StringRecords),
}

/// Reads and checks the whole file, then loads an empty table at once, or writes the records into
/// one that has records already.
pub(crate) fn run(pool: &PoolArguments, arguments: &LoadArguments) -> anyhow::Result<Ending> {
    if let Some(address) = &pool.cluster {
        return persistent::run(pool, address, arguments);
    }
    check_bounds(pool, &arguments.bounds)?;
    let kind = arguments.options.kind(pool.addresses().len())?;
    let source = Source::from(arguments.file.clone());
    let name = &arguments.table.table;
    let sessions = open_sessions(pool)?;
    if arguments.create {
        let records = read(&source, arguments.format, kind)?;
        create_and_load(&sessions, arguments, &source, &records)?;
    } else {
        // Before a long file is read in vain.
        let opened = sessions.open_table(name);
        let kind = kind_of(&opened.map_err(|error| hint_at_create(error, name))?);
        let records = read(&source, arguments.format, Some(kind))?;
        let table = sessions.open_table(name).context("nothing was loaded")?;
        load_into(&sessions, table, &source, &records, name)?;
    }
    log_costs(Some(&sessions));
    Ok(Ending::Done)
}

fn kind_of(table: &AnyTable) -> KindName {
    match table {
        AnyTable::Words(_) => KindName::Words,
        AnyTable::Bytes(_) => KindName::Bytes,
    }
}

/// All records of the file; of which kind they are the first line tells, if nothing else does.
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
    let is_guess = kind.is_none();
    let kind = match kind {
        Some(kind) => kind,
        None => input.kind(format).context("nothing was loaded")?,
    };
    let hint = |other: KindName| {
        if is_guess {
            let (kind, other) = (kind.name(), other.name());
            format!(
                "nothing was loaded (taken for records of {kind}, as its first line is; --kind \
                 {other} takes it for {other})"
            )
        } else {
            "nothing was loaded".to_owned()
        }
    };
    Ok(match kind {
        KindName::Words => {
            let records = read_words(&mut input, format, is_guess);
            Records::Words(records.with_context(|| hint(KindName::Bytes))?)
        }
        KindName::Bytes => {
            let records = StringRecords::read(&mut input, format);
            Records::Bytes(records.with_context(|| hint(KindName::Words))?)
        }
    })
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
                    create::parts(session, name, (&options, bounds), records)?
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
            "nothing was loaded: table '{name}' was dropped and made again with another kind while \
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
            "nothing was loaded (--create makes table '{name}')"
        ))
    } else {
        error.context("nothing was loaded")
    }
}
