//! Opens the table to load into, and creates it if necessary.

use std::thread;
use std::time::Duration;

use anyhow::Context;
use farleaf::{
    Bounds, ByteTable, Error, ErrorKind, PartitionError, PartitionedSession, PartitionedTable,
    Session, TableInfo, TableOptions,
};

use super::Target;
use crate::command::table::bounds_text;
use crate::command::target::WordTable;
use crate::records::WordRecord;

/// Number of attempts to open a table over several pools that is being created.
const HALF_THERE_LOOK_COUNT: u32 = 10;
const HALF_THERE_WAIT: Duration = Duration::from_millis(50);

/// Opens or creates a table of words. With `--create`, an existing table must have the given
/// options.
pub(super) fn words(
    session: &Session,
    name: &str,
    wanted: &TableOptions,
) -> anyhow::Result<Target<WordTable>> {
    match session.create_table(name, wanted) {
        Err(error) if exists(&error) => {
            let table = as_wanted(error, wanted, session.open_table(name), |it| it.info())?;
            Ok(Target::existing(WordTable::One(table), name))
        }
        created => {
            let table = created.context("nothing was loaded")?;
            Ok(Target::new(WordTable::One(table), name))
        }
    }
}

/// Opens or creates a table of byte strings. With `--create`, an existing table must have the given
/// options.
pub(super) fn bytes(
    session: &Session,
    name: &str,
    wanted: &TableOptions,
) -> anyhow::Result<Target<ByteTable>> {
    match session.create_byte_table(name, wanted) {
        Err(error) if exists(&error) => {
            let table = as_wanted(error, wanted, session.open_byte_table(name), |it| it.info())?;
            Ok(Target::existing(table, name))
        }
        created => Ok(Target::new(created.context("nothing was loaded")?, name)),
    }
}

fn exists(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::TableExists { .. })
}

/// Returns the existing table if it has the given options; `error` describes the difference.
fn as_wanted<T>(
    error: Error,
    wanted: &TableOptions,
    opened: Result<T, Error>,
    info: impl Fn(&T) -> &TableInfo,
) -> anyhow::Result<T> {
    match opened {
        Ok(table) if info(&table).options == *wanted => return Ok(table),
        Err(other) if !matches!(other.kind(), ErrorKind::TableOfOtherKind { .. }) => {
            return Err(anyhow::Error::new(other).context("nothing was loaded"));
        }
        _ => {}
    }
    let hint = "nothing was loaded; leave out --create to load into the existing table";
    Err(anyhow::Error::new(error).context(hint))
}

/// Opens or creates a table over several pools. Without `--bounds`, each part of a new table gets
/// an equal share of the records.
pub(super) fn parts(
    session: &PartitionedSession,
    name: &str,
    wanted: &TableOptions,
    first_keys: Option<&[u64]>,
    records: &[WordRecord],
) -> anyhow::Result<Target<WordTable>> {
    let open = || open_parts_as(session, name, wanted, first_keys);
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
        // Another client has created it meanwhile.
        return Ok(target);
    }
    let table = WordTable::Parts(created.context("nothing was loaded")?);
    Ok(Target::new(table, name))
}

/// Opens a table over several pools. Retries for a short time if only some parts exist, because
/// another client may be creating it.
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

/// Returns the existing table over several pools if it has the given options; `None` if there is
/// none.
fn open_parts_as(
    session: &PartitionedSession,
    name: &str,
    wanted: &TableOptions,
    first_keys: Option<&[u64]>,
) -> anyhow::Result<Option<Target<WordTable>>> {
    let table = match open_when_whole(session, name) {
        Ok(table) => table,
        Err(error) if matches!(error.kind(), ErrorKind::TableNotFound { .. }) => return Ok(None),
        Err(error) => return Err(anyhow::Error::new(error).context("nothing was loaded")),
    };
    let info = table.info();
    let has_bounds = first_keys.is_none_or(|keys| info.bounds.first_keys() == keys);
    if info.options == *wanted && has_bounds {
        return Ok(Some(Target::existing(WordTable::Parts(table), name)));
    }
    Err(anyhow::anyhow!(
        "nothing was loaded: table '{name}' already exists with other options or other bounds (its \
         bounds are {}); leave out --create to load into the existing table",
        bounds_text(&info.bounds)
    ))
}
