//! Cutting a sorted sequence into leaves where the gaps between keys are wide.
//!
//! A residual byte can name a leaf without error if a point of its grid is in the gap before the
//! leaf's first key (see `docs/explanation/learned-layer.md`). Cutting at the widest of three gaps
//! makes that nearly certain, and keeps the mean fill.

use crate::LoadError;

/// Number of records between two calls of a progress callback.
const PROGRESS_RECORD_COUNT: u64 = 1 << 16;

/// Number of records that the leaves of a load get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FillTarget {
    least: usize,
    wanted: usize,
    most: usize,
}

impl FillTarget {
    /// Creates a target for leaves of `slots` slots, filled to `fill_percent`, with at least 2
    /// records.
    pub fn new(slots: usize, fill_percent: u8) -> Self {
        let wanted = (slots * usize::from(fill_percent))
            .div_euclid(100)
            .clamp(2, slots);
        let most = (wanted + 1).min(slots);
        Self {
            least: (most - 2).max(1),
            wanted,
            most,
        }
    }

    /// Returns the mean number of records per leaf when gaps are random.
    pub fn mean(self) -> f64 {
        (self.least + self.most) as f64 / 2.0
    }
}

/// Collector of records that decides where leaves end.
#[derive(Debug)]
pub struct Cutter {
    target: FillTarget,
    pending: Vec<(u64, u64)>,
}

impl Cutter {
    /// Creates a cutter without records.
    pub fn new(target: FillTarget) -> Self {
        Self {
            target,
            pending: Vec::with_capacity(target.most + 1),
        }
    }

    /// Returns the key of the last record.
    pub fn last_key(&self) -> Option<u64> {
        self.pending.last().map(|(key, _)| *key)
    }

    /// Adds a record with a key above the last. When a leaf is complete, its records are moved to
    /// the end of `records` and their number is returned.
    pub fn push(&mut self, record: (u64, u64), records: &mut Vec<(u64, u64)>) -> Option<usize> {
        self.pending.push(record);
        (self.pending.len() > self.target.most).then(|| {
            let count = self.widest_cut();
            records.extend(self.pending.drain(..count));
            count
        })
    }

    /// Moves the remaining records to the end of `records`: one leaf, or none.
    pub fn finish(&mut self, records: &mut Vec<(u64, u64)>) -> Option<usize> {
        let count = self.pending.len().min(self.target.most);
        records.extend(self.pending.drain(..count));
        (count > 0).then_some(count)
    }

    /// Returns the cut before the widest gap; the wanted one if gaps are equal.
    fn widest_cut(&self) -> usize {
        let gap = |count: usize| self.pending[count].0 - self.pending[count - 1].0;
        let cuts = self.target.least..=self.target.most;
        let key = |count: &usize| (gap(*count), *count == self.target.wanted);
        cuts.max_by_key(key).unwrap_or(self.target.wanted)
    }
}

/// Receiver of the leaves of a load.
pub(super) trait LeafSink {
    /// Returns the vector for the records of the next leaf.
    fn records_mut(&mut self) -> &mut Vec<(u64, u64)>;

    /// Makes a leaf of the last `count` records.
    ///
    /// # Errors
    /// The pool is full, or the fabric failed.
    async fn add_leaf(&mut self, count: usize) -> Result<(), LoadError>;
}

/// Cuts records, which must ascend by key, into leaves. Repeatedly calls `progress` with the number
/// of records received. Returns their total number.
///
/// # Errors
/// The records do not ascend, or [`LeafSink::add_leaf`] failed.
pub(super) async fn cut_into(
    target: FillTarget,
    records: impl Iterator<Item = (u64, u64)>,
    leaves: &mut impl LeafSink,
    progress: &mut impl FnMut(u64),
) -> Result<u64, LoadError> {
    let mut cutter = Cutter::new(target);
    let mut record_count = 0;
    for record in records {
        if let Some(previous) = cutter.last_key().filter(|previous| *previous >= record.0) {
            return Err(LoadError::NotAscending {
                index: record_count,
                key: record.0,
                previous,
            });
        }
        record_count += 1;
        if let Some(count) = cutter.push(record, leaves.records_mut()) {
            leaves.add_leaf(count).await?;
        }
        if record_count % PROGRESS_RECORD_COUNT == 0 {
            progress(record_count);
        }
    }
    while let Some(count) = cutter.finish(leaves.records_mut()) {
        leaves.add_leaf(count).await?;
    }
    Ok(record_count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(keys: impl Iterator<Item = u64>, target: FillTarget) -> Vec<Vec<u64>> {
        let mut cutter = Cutter::new(target);
        let mut records = Vec::new();
        let mut counts = Vec::new();
        for key in keys {
            counts.extend(cutter.push((key, 0), &mut records));
        }
        while let Some(count) = cutter.finish(&mut records) {
            counts.push(count);
        }
        let mut records = records.into_iter().map(|(key, _)| key);
        counts
            .iter()
            .map(|count| records.by_ref().take(*count).collect())
            .collect()
    }

    #[test]
    fn targets_stay_within_slots() {
        for slots in [8, 12, 16] {
            for fill in 1..=100 {
                let FillTarget {
                    least,
                    wanted,
                    most,
                } = FillTarget::new(slots, fill);
                assert!(1 <= least && least <= wanted && wanted <= most && most <= slots);
            }
        }
        assert_eq!(
            FillTarget::new(8, 75),
            FillTarget {
                least: 5,
                wanted: 6,
                most: 7
            }
        );
        assert_eq!(
            FillTarget::new(8, 100),
            FillTarget {
                least: 6,
                wanted: 8,
                most: 8
            }
        );
    }

    #[test]
    fn dense_keys_are_cut_evenly() {
        let leaves = cut(0..60, FillTarget::new(8, 75));
        assert!(
            leaves.iter().rev().skip(2).all(|leaf| leaf.len() == 6),
            "{leaves:?}"
        );
    }

    #[test]
    fn the_widest_gap_is_taken_and_no_key_is_lost() {
        let keys = [1, 2, 3, 4, 5, 900, 901, 902, 903, 904, 905, 906, 9000];
        let leaves = cut(keys.into_iter(), FillTarget::new(8, 75));
        assert_eq!(leaves[0], [1, 2, 3, 4, 5]);
        assert_eq!(leaves.concat(), keys);
        assert_eq!(
            cut([].into_iter(), FillTarget::new(8, 75)),
            Vec::<Vec<u64>>::new()
        );
        assert_eq!(cut([7].into_iter(), FillTarget::new(8, 75)), [[7]]);
    }
}
