//! Copying announcements from old synonym leaf tables to new ones.

use core::ops::Range;

use farleaf_base::{RemoteAddr, WordAddr};
use farleaf_fabric::{Batch, Endpoint};

use super::super::{Retraining, count};
use super::read::{counters, intact, listed};
use super::{OldCounter, synonym_tables};
use crate::IndexError;
use crate::directory::{Directory, Model};
use crate::hint::{Hint, SYNONYM_TABLE_HEADER_SIZE_WORDS};

/// Largest number of FAAs in one batch.
const ANNOUNCED_COUNT_MAX: usize = 256;

/// Announces in the new tables the leaves announced in the old ones since their counters were
/// `seen`. `new` has the new models, `leaves` their leaves with lower fences. Returns the number of
/// leaves, and the current old counters.
pub(super) async fn announce_late<E: Endpoint>(
    work: &Retraining<'_, E>,
    batch: &mut Batch,
    range: &Range<usize>,
    seen: &[u64],
    new: &[Model],
    leaves: &[(RemoteAddr, u64)],
) -> Result<(u64, Vec<u64>), IndexError> {
    let old = &work.contents.models[range.clone()];
    let tables = synonym_tables(old);
    let now = counters(work, batch, &tables).await?;
    let named = listed(work, batch, &tables, seen, &now).await?;
    let end_key = work.contents.models.get(range.end);
    let end_key = end_key.map(|model| model.first_key);
    let late = intact(work, batch, &named).await?.into_iter();
    let late = late.filter(|leaf| end_key.is_none_or(|end| leaf.low < end));
    let entries = late.filter_map(|leaf| entry_of(leaf.addr, leaf.low, new, leaves));
    let entries: Vec<_> = entries.collect();
    announce(work, batch, &entries).await?;
    Ok((entries.len() as u64, now))
}

/// Announces in the tables in force the leaves announced in old ones since the last call, and
/// updates `old`. `work` must have the snapshot in force. Returns the number of leaves.
///
/// # Errors
/// The fabric failed.
pub async fn announce_later<E: Endpoint>(
    work: &Retraining<'_, E>,
    old: &mut [OldCounter],
) -> Result<u64, IndexError> {
    let mut batch = Batch::new();
    let announced = later(work, &mut batch, old).await;
    count(work, &mut batch);
    announced
}

async fn later<E: Endpoint>(
    work: &Retraining<'_, E>,
    batch: &mut Batch,
    old: &mut [OldCounter],
) -> Result<u64, IndexError> {
    let tables: Vec<_> = old.iter().map(|old| (old.table, old.capacity)).collect();
    let seen: Vec<u64> = old.iter().map(|old| old.seen).collect();
    let now = counters(work, batch, &tables).await?;
    for (old, now) in old.iter_mut().zip(&now) {
        old.seen = *now;
    }
    if now == seen {
        return Ok(0);
    }
    let directory = work.contents.clone().into_directory(work.access.geometry);
    count_unlisted(work, batch, &directory, old, &seen).await?;
    let named = listed(work, batch, &tables, &seen, &now).await?;
    let late = intact(work, batch, &named).await?;
    let mut entries = Vec::new();
    for leaf in late {
        // The candidates include the previous leaf, or the leaf itself if it has been trained
        // since.
        let (from, to) = directory.predicted_range(leaf.low);
        let trained: Vec<Hint> = (from..=to)
            .filter_map(|number| directory.leaf(number))
            .collect();
        if trained.iter().any(|trained| trained.addr == leaf.addr) {
            continue;
        }
        let places: Vec<RemoteAddr> = trained.iter().map(|trained| trained.addr).collect();
        let near = intact(work, batch, &places).await?.into_iter();
        let near = near.filter(|trained| trained.low <= leaf.low);
        let previous = near.max_by_key(|trained| trained.low);
        let parent = previous.and_then(|previous| {
            let mut trained = trained.iter();
            trained.find(|trained| trained.addr == previous.addr)
        });
        let place = parent.and_then(|parent| directory.announcement(parent.parent));
        entries.extend(place.map(|place| LateAnnouncement {
            counter: place.counter,
            capacity: place.capacity,
            leaf: leaf.addr.with_spare(place.parent_in_model),
        }));
    }
    announce(work, batch, &entries).await?;
    Ok(entries.len() as u64)
}

/// Counts splits for which an old table had no entry left. Their leaves are unknown, so they are
/// counted where the old model began. A retraining there finds them by links.
async fn count_unlisted<E: Endpoint>(
    work: &Retraining<'_, E>,
    batch: &mut Batch,
    directory: &Directory,
    old: &[OldCounter],
    seen: &[u64],
) -> Result<(), IndexError> {
    batch.clear();
    for (old, seen) in old.iter().zip(seen) {
        let listed = (*seen).max(old.capacity.into());
        let unlisted = old.seen.saturating_sub(listed);
        let (parent, _) = directory.predicted_range(old.first_key);
        if let Some(place) = directory.announcement(parent).filter(|_| unlisted > 0) {
            batch.fetch_add(place.counter, unlisted);
        }
    }
    if !batch.is_empty() {
        work.access.endpoint.execute(batch).await?;
    }
    Ok(())
}

/// New entry of a synonym leaf table, to be written.
struct LateAnnouncement {
    counter: WordAddr,
    capacity: u32,
    /// Address of the leaf, with the number of its parent in its model.
    leaf: RemoteAddr,
}

/// Returns the entry for a leaf by the previous-leaf rule; `None` if the leaf is trained, or
/// outside of the range.
fn entry_of(
    addr: RemoteAddr,
    low: u64,
    new: &[Model],
    leaves: &[(RemoteAddr, u64)],
) -> Option<LateAnnouncement> {
    let previous = leaves.partition_point(|(_, fence)| *fence <= low);
    let previous = previous.checked_sub(1)?;
    if leaves[previous].0 == addr {
        return None;
    }
    let mut parent = previous;
    for model in new {
        let leaf_count = model.leaf_count as usize;
        if parent < leaf_count {
            return (!model.synonym_table.is_null()).then(|| LateAnnouncement {
                counter: model.synonym_table.word_at(0),
                capacity: model.synonym_capacity,
                leaf: addr.with_spare(parent as u16),
            });
        }
        parent -= leaf_count;
    }
    unreachable!("the models have all of the leaves")
}

/// Announces leaves as a split does: FAA, then the entry with that number, if there is space.
async fn announce<E: Endpoint>(
    work: &Retraining<'_, E>,
    batch: &mut Batch,
    entries: &[LateAnnouncement],
) -> Result<(), IndexError> {
    let endpoint = work.access.endpoint;
    for entries in entries.chunks(ANNOUNCED_COUNT_MAX) {
        batch.clear();
        let drawn: Vec<_> = entries
            .iter()
            .map(|entry| batch.fetch_add(entry.counter, 1))
            .collect();
        endpoint.execute(batch).await?;
        let numbers: Vec<u64> = drawn.iter().map(|slot| batch.previous(*slot)).collect();
        batch.clear();
        for (entry, number) in entries.iter().zip(numbers) {
            if number < u64::from(entry.capacity) {
                batch.write_word(
                    entry
                        .counter
                        .offset(SYNONYM_TABLE_HEADER_SIZE_WORDS + number),
                    entry.leaf.word(),
                );
            }
        }
        endpoint.execute(batch).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::NodeId;

    fn place(block: u64) -> RemoteAddr {
        RemoteAddr::new(NodeId(0), block)
    }

    /// A leaf is announced with the model and number of the trained leaf to its left. A trained
    /// leaf, or one before the range, is not announced.
    #[test]
    fn a_leaf_belongs_to_the_trained_leaf_to_its_left() {
        let leaves: Vec<_> = (1..6).map(|number| (place(number), number * 100)).collect();
        let model = |first: u64, leaf_count| Model {
            first_key: first * 100,
            slope: 0.01,
            intercept: 0.0,
            error_max: 0.1,
            base: place(first),
            leaf_count,
            synonym_table: place(first * 1000),
            synonym_capacity: 4,
        };
        let new = [model(1, 2), model(3, 3)];
        let found = |addr: u64, low: u64| {
            let entry = entry_of(place(addr), low, &new, &leaves)?;
            Some((entry.counter, entry.leaf.place(), entry.leaf.spare()))
        };
        let (first, second) = (place(1000).word_at(0), place(3000).word_at(0));
        assert_eq!(found(9, 150), Some((first, place(9), 0)));
        assert_eq!(found(9, 299), Some((first, place(9), 1)));
        assert_eq!(found(9, 450), Some((second, place(9), 1)));
        assert_eq!(found(9, u64::MAX), Some((second, place(9), 2)));
        assert_eq!(found(4, 400), None, "it is trained");
        assert_eq!(found(9, 99), None, "it is not of this range");
    }
}
