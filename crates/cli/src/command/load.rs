//! `farleaf load`: a file of records into a table, all of it or with a clear word on what is
//! missing.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use farleaf::{
    Bounds, ControlError, Error, ErrorKind, LoadError, PartitionError, PartitionedSession,
    PartitionedTable, Pool, Session, TableOptions,
};
use indicatif::ProgressBar;

use super::table::{bounds_text, check_bounds};
use super::target::{AnyTable, Sessions};
use crate::arguments::{BoundsArgument, PoolArguments, TableArgument, TableOptionArguments};
use crate::command::connection::{log_costs, open_sessions};
use crate::failure::{Ending, tell};
use crate::output::print;
use crate::progress::{bytes_bar, count_bar};
use crate::quantity::count;
use crate::records::{self, Record, Source};
use crate::watch::Watched;

/// Records between two looks at the clock and the signals.
const PROGRESS_RECORD_COUNT: usize = 256;

/// How often a table over several pools is looked at that is half there, and how long between.
const HALF_THERE_LOOK_COUNT: u32 = 10;
const HALF_THERE_WAIT: Duration = Duration::from_millis(50);

/// What to load, and where to.
#[derive(Debug, Args)]
pub(crate) struct LoadArguments {
    /// The file, plain or gzip, or - for stdin: a key, or a key and a value, per line; a key alone
    /// gets itself as its value
    #[arg(value_name = "FILE")]
    file: PathBuf,

    #[command(flatten)]
    table: TableArgument,

    /// Make the table if it is not there, with the options below
    #[arg(long)]
    create: bool,

    #[command(flatten)]
    options: TableOptionArguments,

    #[command(flatten)]
    bounds: BoundsArgument,
}

/// Where to load.
struct Target {
    table: AnyTable,
    /// `--create` made it just now.
    is_new: bool,
}

impl Target {
    fn existing(table: AnyTable) -> Self {
        let is_new = false;
        Self { table, is_new }
    }

    /// What to say when no record came in. A table that was made for this load is not dropped
    /// again: somebody else may have found it and written to it.
    fn nothing_loaded(&self) -> String {
        let name = self.table.name();
        if self.is_new {
            format!("nothing was loaded, and table '{name}', which --create made, stays")
        } else {
            "nothing was loaded".to_owned()
        }
    }
}

/// How far a load of single records came.
struct Stopped {
    written_count: usize,
    why: anyhow::Error,
}

/// Reads and checks the whole file, then loads an empty table at once, or writes the records into
/// one that has records already.
pub(crate) fn run(pool: &PoolArguments, arguments: &LoadArguments) -> anyhow::Result<Ending> {
    check_bounds(pool, &arguments.bounds)?;
    let source = Source::from(arguments.file.clone());
    let name = &arguments.table.table;
    let sessions = open_sessions(pool)?;
    if !arguments.create {
        // Before a long file is read in vain.
        sessions
            .open_table(name)
            .map_err(|error| hint_at_create(error, name))?;
    }
    let bar = bytes_bar("reading", source.size_bytes());
    let read = records::read(&source, &bar);
    bar.finish_and_clear();
    let records = read.context("nothing was loaded")?;
    let target = if arguments.create {
        let wanted = arguments.options.into();
        match &sessions {
            Sessions::One(session) => create_or_open(session, name, &wanted)?,
            Sessions::Parts(session) => {
                let bounds = arguments.bounds.bounds.as_deref();
                create_or_open_parts(session, name, (&wanted, bounds), &records)?
            }
        }
    } else {
        Target::existing(sessions.open_table(name).context("nothing was loaded")?)
    };
    load(&source, &sessions, &target, &records)?;
    log_costs(&sessions);
    Ok(Ending::Done)
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

/// With `--create` a table that is there must be as it would have been made.
fn create_or_open(session: &Session, name: &str, wanted: &TableOptions) -> anyhow::Result<Target> {
    match session.create_table(name, wanted) {
        Err(error) if matches!(error.kind(), ErrorKind::TableExists { .. }) => {
            let table = session.open_table(name).context("nothing was loaded")?;
            if table.info().options == *wanted {
                return Ok(Target::existing(AnyTable::One(table)));
            }
            let hint = "nothing was loaded; leave out --create to load into the table as it is";
            Err(anyhow::Error::new(error).context(hint))
        }
        created => {
            let table = AnyTable::One(created.context("nothing was loaded")?);
            let is_new = true;
            Ok(Target { table, is_new })
        }
    }
}

/// The same over several pools; without `--bounds`, each part of a new table gets as many of the
/// records.
fn create_or_open_parts(
    session: &PartitionedSession,
    name: &str,
    (wanted, first_keys): (&TableOptions, Option<&[u64]>),
    records: &[Record],
) -> anyhow::Result<Target> {
    let open = || open_parts_as(session, name, (wanted, first_keys));
    if let Some(target) = open()? {
        return Ok(target);
    }
    let bounds = if let Some(keys) = first_keys {
        Bounds::new(keys.to_vec())
    } else {
        let keys = records.iter().map(|record| record.key);
        Bounds::of_sample(keys.collect(), session.sessions().len())
    };
    let bounds = bounds.context("nothing was loaded")?;
    let created = session.create_table(name, wanted, &bounds);
    if let Err(error) = &created
        && matches!(error.kind_in_pool(), ErrorKind::TableExists { .. })
        && let Some(target) = open()?
    {
        // Somebody has made it meanwhile.
        return Ok(target);
    }
    let table = AnyTable::Parts(created.context("nothing was loaded")?);
    let is_new = true;
    Ok(Target { table, is_new })
}

/// Opens a table over several pools; one that is half there for a moment, as somebody makes it just
/// now, when that is over.
fn open_when_whole(session: &PartitionedSession, name: &str) -> Result<PartitionedTable, Error> {
    for _ in 0..HALF_THERE_LOOK_COUNT {
        let opened = session.open_table(name);
        let is_half = |error: &Error| {
            matches!(
                error.kind(),
                ErrorKind::Partition(PartitionError::HalfThere { .. })
            )
        };
        if !opened.as_ref().is_err_and(is_half) {
            return opened;
        }
        thread::sleep(HALF_THERE_WAIT);
    }
    session.open_table(name)
}

/// The table over several pools that is there, if it is as it would have been made; `None`: there
/// is none.
fn open_parts_as(
    session: &PartitionedSession,
    name: &str,
    (wanted, first_keys): (&TableOptions, Option<&[u64]>),
) -> anyhow::Result<Option<Target>> {
    let table = match open_when_whole(session, name) {
        Ok(table) => table,
        Err(error) if matches!(error.kind(), ErrorKind::TableNotFound { .. }) => return Ok(None),
        Err(error) => return Err(anyhow::Error::new(error).context("nothing was loaded")),
    };
    let info = table.info();
    let has_bounds = first_keys.is_none_or(|keys| info.bounds.first_keys() == keys);
    if info.options == *wanted && has_bounds {
        return Ok(Some(Target::existing(AnyTable::Parts(table))));
    }
    Err(anyhow::anyhow!(
        "nothing was loaded; leave out --create to load into the table as it is: there is a table \
         '{name}' already, with other options, or other bounds: its own are {}",
        bounds_text(&info.bounds)
    ))
}

fn load(
    source: &Source,
    sessions: &Sessions,
    target: &Target,
    records: &[Record],
) -> anyhow::Result<()> {
    let table = &target.table;
    let name = table.name();
    let first = table.range(0..=u64::MAX).next().transpose();
    let is_empty = first.with_context(|| target.nothing_loaded())?.is_none();
    if is_empty && load_at_once(source, sessions, target, records)? {
        return Ok(());
    }
    let bar = count_bar("writing", records.len() as u64);
    let written = write_each(source, table, records, &bar);
    bar.finish_and_clear();
    let updated_count = written.map_err(|stopped| partly_loaded(source, name, records, stopped))?;
    check_served(sessions, target, records)?;
    print(format_args!(
        "wrote {} records of {source} into table '{name}', which had records: {} inserted, {} \
         updated\n",
        count(records.len() as u64),
        count((records.len() - updated_count) as u64),
        count(updated_count as u64),
    ))
}

/// `false` if the table cannot be loaded at once, because it had records once.
fn load_at_once(
    source: &Source,
    sessions: &Sessions,
    target: &Target,
    records: &[Record],
) -> anyhow::Result<bool> {
    let table = &target.table;
    let bar = count_bar("loading", records.len() as u64);
    let pairs = records.iter().map(|record| (record.key, record.value));
    let loaded = table.bulk_load(pairs, |record_count| bar.set_position(record_count));
    bar.finish_and_clear();
    let error = match loaded {
        Ok(summary) => {
            check_served(sessions, target, records)?;
            print(format_args!(
                "loaded {} records of {source} into table '{}' (leaves {}, models {})\n",
                count(summary.record_count),
                table.name(),
                count(summary.leaf_count),
                count(summary.model_count)
            ))?;
            return Ok(true);
        }
        Err(error) => error,
    };
    let is_untouched = !matches!(
        error.kind_in_pool(),
        ErrorKind::Load(LoadError::TableNotEmpty)
    );
    if matches!(
        error.kind(),
        ErrorKind::Partition(PartitionError::PartlyLoaded { .. })
    ) && is_untouched
    {
        // It says which parts are loaded.
        return Err(error.into());
    }
    let told = match error.kind_in_pool() {
        ErrorKind::Load(LoadError::TableNotEmpty) => return Ok(false),
        ErrorKind::Fabric(_) if matches!(table, AnyTable::Parts(_)) => {
            "the load was cut off: of that part, all records are in the table or none, and those \
             behind it are as they were; `farleaf stats` tells which"
                .to_owned()
        }
        ErrorKind::Fabric(_) => {
            "the load was cut off: all records are in the table, or none; `farleaf stats` tells which"
                .to_owned()
        }
        ErrorKind::TableDropped { .. } => "nothing was loaded".to_owned(),
        _ => target.nothing_loaded(),
    };
    Err(anyhow::Error::new(error).context(told))
}

/// A process that has mapped a pool's memory can go on writing to it when its node has ended; but
/// nobody will ever see that.
fn check_served(sessions: &Sessions, target: &Target, records: &[Record]) -> anyhow::Result<()> {
    let pools = sessions.pools().into_iter().enumerate();
    // What has got none of them may end as it likes (O7).
    let has_some = |number: usize| match &target.table {
        AnyTable::One(_) => true,
        AnyTable::Parts(table) => {
            let range = table.info().bounds.range(number);
            records.iter().any(|record| range.contains(&record.key))
        }
    };
    let mut pools = pools.filter(|(number, _)| has_some(*number));
    pools.try_for_each(|(_, pool)| check_pool_served(pool))
}

fn check_pool_served(pool: &Pool) -> anyhow::Result<()> {
    match pool.session() {
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::Control(ControlError::Silent { .. })
            ) =>
        {
            tracing::warn!("what was written is lost if the memory node ends: {error}");
            Ok(())
        }
        probe => probe.map(drop).context(
            "the memory node ended meanwhile, and what was written is gone with its memory",
        ),
    }
}

/// Puts one record after the other, and yields how many keys were there before. SIGINT and SIGTERM
/// stop it between two records, or while it waits for another client.
fn write_each(
    source: &Source,
    table: &AnyTable,
    records: &[Record],
    bar: &ProgressBar,
) -> Result<usize, Stopped> {
    let name = table.name();
    let watched = Watched::new().map_err(|error| Stopped {
        written_count: 0,
        why: error.into(),
    })?;
    let interrupted = |written_count| Stopped {
        written_count,
        why: anyhow::anyhow!("interrupted"),
    };
    tracing::info!("the table has records: writing record by record");
    let work = || {
        let mut updated_count = 0;
        for (written_count, record) in records.iter().enumerate() {
            if written_count % PROGRESS_RECORD_COUNT == 0 {
                bar.set_position(written_count as u64);
            }
            if watched.note(written_count) {
                return Err(interrupted(written_count));
            }
            match table.put(record.key, record.value) {
                Ok(previous) => updated_count += usize::from(previous.is_some()),
                Err(error) => {
                    return Err(Stopped {
                        written_count,
                        why: error.into(),
                    });
                }
            }
        }
        Ok(updated_count)
    };
    let tell_waiting = |written_count: usize| {
        let key = records.get(written_count).map_or(0, |record| record.key);
        tracing::warn!(
            "waiting at key {key} of table '{name}' for another client, which holds its leaf: is \
             one of them stopped?"
        );
    };
    let give_up = |written_count| {
        bar.finish_and_clear();
        let stopped = interrupted(written_count);
        tell(&partly_loaded(source, name, records, stopped));
        // Nothing is held by who waits, and its session is swept.
        std::process::exit(1);
    };
    watched.run(work, tell_waiting, give_up)
}

fn partly_loaded(
    source: &Source,
    name: &str,
    records: &[Record],
    stopped: Stopped,
) -> anyhow::Error {
    let (written, all) = (stopped.written_count, records.len());
    let which = match (written.checked_sub(1), records.get(written)) {
        (Some(last), Some(next)) => {
            format!(
                "the keys up to {} were, {} perhaps",
                records[last].key, next.key
            )
        }
        (None, Some(next)) => format!("key {} perhaps was", next.key),
        (_, None) => "all of them".to_owned(),
    };
    stopped.why.context(format!(
        "only {} of {} records of {source} were written into table '{name}' ({which}); loading the \
         file again begins with the first",
        count(written as u64),
        count(all as u64)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a load that stops half way says how many of how many records were written, up to
    /// which key, and why, also when it stopped at the first record.
    #[test]
    fn a_load_that_stops_says_how_far_it_came() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("records.txt");
        std::fs::write(&path, "1\n2\n3\n5\n").expect("a file");
        let records = records::read(&Source::File(path), &ProgressBar::hidden()).expect("records");
        let told = |written_count| {
            let why = anyhow::anyhow!("the table 't' was dropped");
            let stopped = Stopped { written_count, why };
            format!(
                "{:#}",
                partly_loaded(&Source::Stdin, "t", &records, stopped)
            )
        };
        let half = told(2);
        assert!(half.contains("only 2 of 4 records of stdin"), "{half}");
        assert!(
            half.contains("(the keys up to 2 were, 3 perhaps)"),
            "{half}"
        );
        assert!(
            half.contains("begins with the first: the table 't' was dropped"),
            "{half}"
        );
        assert!(
            told(0).contains("only 0 of 4 records of stdin"),
            "{}",
            told(0)
        );
        assert!(told(0).contains("(key 1 perhaps was)"), "{}", told(0));
    }
}
