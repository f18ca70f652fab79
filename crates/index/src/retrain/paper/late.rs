//! X7: what was announced in old tables while new ones were made.

use core::ops::Range;

use farleaf_fabric::{Batch, Endpoint};
use farleaf_types::{RemoteAddr, WordAddr};

use super::super::Retraining;
use super::read::{counters, intact, listed};
use crate::IndexError;
use crate::directory::Model;

/// FAAs in one batch.
const ANNOUNCED_COUNT_MAX: usize = 256;

/// Announces in the new tables what has been announced in the old ones since their counters were
/// `seen`. `new`: the new models, and their leaves with their lower fences. Returns how many.
pub(super) async fn announce_late<E: Endpoint>(
    work: &Retraining<'_, E>,
    batch: &mut Batch,
    (range, seen): (&Range<usize>, &[u64]),
    (new, leaves): (&[Model], &[(RemoteAddr, u64)]),
) -> Result<u64, IndexError> {
    let old = &work.contents.models[range.clone()];
    let now = counters(work, batch, old).await?;
    let mut named = listed(work, batch, old, (seen, &now)).await?;
    named.sort_unstable();
    named.dedup();
    let end_key = work.contents.models.get(range.end);
    let end_key = end_key.map(|model| model.first_key);
    let late = intact(work, batch, &named).await?.into_iter();
    let late = late.filter(|leaf| end_key.is_none_or(|end| leaf.low < end));
    let entries = late.filter_map(|leaf| entry_of(leaf.addr, leaf.low, new, leaves));
    let entries: Vec<_> = entries.collect();
    for part in entries.chunks(ANNOUNCED_COUNT_MAX) {
        announce(work, batch, part).await?;
    }
    Ok(entries.len() as u64)
}

/// A table's entry that is to be written.
struct Entry {
    counter: WordAddr,
    capacity: u32,
    /// The leaf, with the number of its parent in its model.
    leaf: RemoteAddr,
}

/// The previous leaf rule. `None`: it is trained, or not of this range.
fn entry_of(
    addr: RemoteAddr,
    low: u64,
    new: &[Model],
    leaves: &[(RemoteAddr, u64)],
) -> Option<Entry> {
    let previous = leaves.partition_point(|(_, fence)| *fence <= low);
    let previous = previous.checked_sub(1)?;
    if leaves[previous].0 == addr {
        return None;
    }
    let mut parent = previous;
    for model in new {
        let leaf_count = model.leaf_count as usize;
        if parent < leaf_count {
            return (!model.synonym_table.is_null()).then(|| Entry {
                counter: model.synonym_table.word_at(0),
                capacity: model.synonym_capacity,
                leaf: addr.with_spare(parent as u16),
            });
        }
        parent -= leaf_count;
    }
    unreachable!("the models have all of the leaves")
}

/// As a split announces its sibling: FAA, then the entry that it names, if there is room.
async fn announce<E: Endpoint>(
    work: &Retraining<'_, E>,
    batch: &mut Batch,
    entries: &[Entry],
) -> Result<(), IndexError> {
    let endpoint = work.access.endpoint;
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
            batch.write_word(entry.counter.offset(1 + number), entry.leaf.word());
        }
    }
    Ok(endpoint.execute(batch).await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_types::NodeId;

    fn place(block: u64) -> RemoteAddr {
        RemoteAddr::new(NodeId(0), block)
    }

    /// A leaf is announced with the model and the number of the trained leaf to its left; one that
    /// is trained, or lies before the range, not at all.
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
