//! Loads records of byte strings into a table.

use anyhow::Context;
use farleaf::{ByteLoadError, ByteTable, ErrorKind, Session};

use super::each::Writing;
use super::served::check_pool_served;
use super::{Target, tell_empty};
use crate::output::{counted, print};
use crate::progress::count_bar;
use crate::records::{Source, StringRecords};
use crate::table_options::KindName;
use farleaf_bench::quantity::count;

/// Bulk-loads an empty table, or writes the records one by one into one that has records.
pub(super) fn load(
    source: &Source,
    session: &Session,
    target: &Target<ByteTable>,
    records: &StringRecords,
) -> anyhow::Result<()> {
    let table = &target.table;
    if records.count() == 0 {
        return tell_empty(source, &target.name, KindName::Bytes);
    }
    let first = table.range(b"", None).keys_only().next().transpose();
    let is_empty = first.with_context(|| target.nothing_loaded())?.is_none();
    if is_empty && load_at_once(source, session, target, records)? {
        return Ok(());
    }
    let writing = Writing {
        source,
        name: &target.name,
        records,
    };
    let updated_count = writing.run(|index| {
        let (key, value) = records.get(index).expect("it is one of them");
        table.put(key, value)
    })?;
    check_pool_served(session.pool())?;
    writing.tell_written(updated_count)
}

/// Bulk-loads the table. Returns `false` if that is not possible because it had records once.
fn load_at_once(
    source: &Source,
    session: &Session,
    target: &Target<ByteTable>,
    records: &StringRecords,
) -> anyhow::Result<bool> {
    let bar = count_bar("loading", records.count() as u64);
    let progress = |record_count| bar.set_position(record_count);
    let loaded = target.table.bulk_load(records.iter(), progress);
    bar.finish_and_clear();
    let error = match loaded {
        Ok(summary) => {
            check_pool_served(session.pool())?;
            print(format_args!(
                "loaded {} of {source} into table '{}' (pages {}, models {}, value blocks {})\n",
                counted(summary.record_count as usize, "record"),
                target.name,
                count(summary.page_count),
                count(summary.model_count),
                count(summary.block_count)
            ))?;
            return Ok(true);
        }
        Err(error) => error,
    };
    let context = match error.kind() {
        ErrorKind::ByteLoad(ByteLoadError::TableNotEmpty) => return Ok(false),
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
