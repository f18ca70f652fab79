//! Loads records of words into a table, of one pool or over several.

use anyhow::Context;
use farleaf::{ErrorKind, LoadError, PartitionError};

use super::each::Writing;
use super::served::check_pool_served;
use super::{Target, tell_empty};
use crate::command::target::{Sessions, WordTable};
use crate::output::{counted, print};
use crate::progress::count_bar;
use crate::records::{Source, WordRecord};
use crate::table_options::KindName;
use farleaf_bench::quantity::count;

/// Bulk-loads an empty table, or writes the records one by one into one that has records.
pub(super) fn load(
    source: &Source,
    sessions: &Sessions,
    target: &Target<WordTable>,
    records: &[WordRecord],
) -> anyhow::Result<()> {
    let table = &target.table;
    let name = table.name();
    if records.is_empty() {
        return tell_empty(source, name, KindName::Words);
    }
    let first = table.range(0..=u64::MAX, false).next().transpose();
    let is_empty = first.with_context(|| target.nothing_loaded())?.is_none();
    if is_empty && load_at_once(source, sessions, target, records)? {
        return Ok(());
    }
    let writing = Writing {
        source,
        name,
        records,
    };
    let updated_count = writing.run(|index| {
        let WordRecord { key, value, .. } = records[index];
        Ok(table.put(key, value)?.is_some())
    })?;
    check_served(sessions, target, records)?;
    writing.tell_written(updated_count)
}

/// Bulk-loads the table. Returns `false` if that is not possible because it had records once.
fn load_at_once(
    source: &Source,
    sessions: &Sessions,
    target: &Target<WordTable>,
    records: &[WordRecord],
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
                "loaded {} of {source} into table '{}' (leaves {}, models {})\n",
                counted(summary.record_count as usize, "record"),
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
        // The error names the parts that are loaded.
        return Err(error.into());
    }
    let context = match error.kind_in_pool() {
        ErrorKind::Load(LoadError::TableNotEmpty) => return Ok(false),
        ErrorKind::Fabric(_) if matches!(table, WordTable::Parts(_)) => {
            "the load was interrupted: that part has either all its records or none, and the parts \
             after it are unchanged; check with `farleaf stats`"
                .to_owned()
        }
        ErrorKind::Fabric(_) => {
            "the load was interrupted: either all records are in the table, or none; check with \
             `farleaf stats`"
                .to_owned()
        }
        ErrorKind::TableDropped { .. } => "nothing was loaded".to_owned(),
        _ => target.nothing_loaded(),
    };
    Err(anyhow::Error::new(error).context(context))
}

/// Checks that the pools that received records are still served.
fn check_served(
    sessions: &Sessions,
    target: &Target<WordTable>,
    records: &[WordRecord],
) -> anyhow::Result<()> {
    let pools = sessions.pools().into_iter().enumerate();
    // Pools that received no records need not be served any more.
    let has_some = |number: usize| match &target.table {
        WordTable::One(_) => true,
        WordTable::Parts(table) => {
            let range = table.info().bounds.range(number);
            records.iter().any(|record| range.contains(&record.key))
        }
    };
    let mut pools = pools.filter(|(number, _)| has_some(*number));
    pools.try_for_each(|(_, pool)| check_pool_served(pool))
}
