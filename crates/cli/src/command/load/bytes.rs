//! Records of byte strings into a table.

use anyhow::Context;
use farleaf::{ByteLoadError, ByteTable, ErrorKind, Session};

use super::Target;
use super::each::Writing;
use super::served::check_pool_served;
use crate::output::print;
use crate::progress::count_bar;
use crate::quantity::count;
use crate::records::{Source, StringRecords};

/// Loads an empty table at once, or writes the records into one that has records already.
pub(super) fn load(
    source: &Source,
    session: &Session,
    target: &Target<ByteTable>,
    records: &StringRecords,
) -> anyhow::Result<()> {
    let table = &target.table;
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

/// `false` if the table cannot be loaded at once, because it had records once.
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
                "loaded {} records of {source} into table '{}' (pages {}, models {}, value blocks \
                 {})\n",
                count(summary.record_count),
                target.name,
                count(summary.page_count),
                count(summary.model_count),
                count(summary.block_count)
            ))?;
            return Ok(true);
        }
        Err(error) => error,
    };
    let told = match error.kind() {
        ErrorKind::ByteLoad(ByteLoadError::TableNotEmpty) => return Ok(false),
        ErrorKind::Fabric(_) => {
            "the load was cut off: all records are in the table, or none; `farleaf stats` tells which"
                .to_owned()
        }
        ErrorKind::TableDropped { .. } => "nothing was loaded".to_owned(),
        _ => target.nothing_loaded(),
    };
    Err(anyhow::Error::new(error).context(told))
}
