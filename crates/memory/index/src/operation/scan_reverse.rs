//! Reading keys in descending order (LEAF-6, LEAF-9): one READ for adjacent trained leaves.

use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint, ReadSlot};
use farleaf_leaf::words::{LeafCheck, LeafImage};

use super::Index;
use super::scan::{ReadAhead, expected_leaf_count};
use crate::IndexError;
use crate::hint::{Candidates, Hint};
use crate::layer::Layer;

/// Position of a scan in descending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReverseScanCursor {
    /// Largest key not passed yet; `None` at the end.
    next_key: Option<u64>,
    /// Leaf where the memory node has found that key, and the version of the search layer.
    leaf: Option<(RemoteAddr, u32)>,
    /// Largest number of leaves to read ahead: twice as many as the last batch had in use. Leaves
    /// that splits have made are not adjacent to the others, so reading on would be for nothing.
    ahead_count_max: u64,
}

impl ReverseScanCursor {
    /// Creates a cursor for a scan from `key` down, inclusive.
    pub fn from(key: u64) -> Self {
        Self {
            next_key: Some(key),
            leaf: None,
            ahead_count_max: u64::MAX,
        }
    }

    /// Creates a cursor that has passed all keys.
    pub fn at_end() -> Self {
        Self {
            next_key: None,
            leaf: None,
            ahead_count_max: u64::MAX,
        }
    }

    /// Returns the largest key not passed yet; `None` at the end.
    pub fn next_key(&self) -> Option<u64> {
        self.next_key
    }

    /// Takes the records of a leaf that covers the cursor, and moves the cursor before the leaf.
    fn pass(&mut self, image: LeafImage<'_>, records: &mut Vec<(u64, u64)>) {
        let Some(key) = self.next_key else {
            return;
        };
        let start = records.len();
        image.append_sorted(0, records);
        let above = records[start..].partition_point(|record| record.0 <= key);
        records.truncate(start + above);
        records[start..].reverse();
        self.next_key = image.low().checked_sub(1);
    }
}

/// Leaf that was read, and the place of its image.
#[derive(Clone, Copy, Debug)]
struct ReadLeaf {
    hint: Hint,
    /// Lower fence; meaningful only if the image proves to be intact.
    low: u64,
    slot: ReadSlot,
    /// Number of the leaf in the READ.
    number: u64,
}

impl<E: Endpoint> Index<'_, E> {
    /// Adds at least `wanted` records to `records` in descending order, or fewer if the keys end
    /// first. Each leaf is completed, so there may be more. Costs one round trip per 512 leaves on
    /// a loaded table of layer `learned`, `rolex` or `rf-tree` without a metadata budget; otherwise
    /// up to a get per leaf, also for leaves that splits have made since the last training.
    ///
    /// # Errors
    /// The fabric failed, a leaf is corrupted, or the table was dropped. The cursor is then after
    /// the last record that was added.
    pub async fn scan_reverse(
        &self,
        batch: &mut Batch,
        cursor: &mut ReverseScanCursor,
        wanted: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), IndexError> {
        let end = records.len().saturating_add(wanted);
        while let Some(key) = cursor.next_key
            && records.len() < end
        {
            let is_run_known = matches!(
                &*self.state.layer.borrow(),
                Layer::Learned(_) | Layer::Rolex(_) | Layer::RfTree(_)
            );
            if is_run_known {
                let wanted = end - records.len();
                self.pass_run(batch, cursor, key, wanted, records).await?;
            } else {
                self.pass_leaf(batch, cursor, key, records).await?;
            }
        }
        Ok(())
    }

    /// Sets the leaf of the cursor's next key, as returned by the memory node.
    pub fn set_reverse_leaf(&self, cursor: &mut ReverseScanCursor, leaf: RemoteAddr) {
        cursor.leaf = Some((leaf, self.layer_version));
    }

    /// Reads the leaf that covers a key, and takes its records.
    async fn pass_leaf(
        &self,
        batch: &mut Batch,
        cursor: &mut ReverseScanCursor,
        key: u64,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), IndexError> {
        let known = cursor.leaf.take();
        let known = known.filter(|(_, version)| *version == self.layer_version);
        let candidates = match known {
            Some((addr, _)) => Candidates::of(Hint { addr, parent: 0 }),
            None => self.candidates(batch, key).await?,
        };
        let (hint, look, leaf) = self.read_range(batch, key, &candidates).await?;
        let leaf = match leaf {
            Some(leaf) => leaf,
            None => Box::pin(self.walk(batch, key, hint, look)).await?.1,
        };
        cursor.pass(leaf.image(), records);
        Ok(())
    }

    /// Reads the trained leaves that end with the one of a key in one batch, and takes their
    /// records as long as each leaf covers the cursor (LEAF-6).
    async fn pass_run(
        &self,
        batch: &mut Batch,
        cursor: &mut ReverseScanCursor,
        key: u64,
        wanted: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), IndexError> {
        let hint = self.locate(key);
        let ahead = self.read_before(batch, hint, wanted, cursor.ahead_count_max);
        let ahead = ahead.await?;
        let end = records.len().saturating_add(wanted);
        // Where a walk starts if no leaf covers the key: the nearest leaf to its left.
        let (mut nearest, mut used_count) = (None, 0);
        for leaf in self.leaves_read(batch, &ahead) {
            let Some(key) = cursor.next_key.filter(|_| records.len() < end) else {
                return Ok(());
            };
            if leaf.low > key {
                continue;
            }
            let image = self.image_of(batch, &leaf);
            let look = self.access.look(image, leaf.hint.addr, key);
            if look == LeafCheck::Here {
                cursor.pass(image, records);
                used_count += 1;
            } else if nearest.is_none() {
                nearest = Some((leaf.hint, look));
            }
        }
        cursor.ahead_count_max = 2 * used_count.max(1);
        if used_count > 0 {
            return Ok(());
        }
        match nearest {
            Some((hint, look)) => {
                let (_, leaf) = Box::pin(self.walk(batch, key, hint, look)).await?;
                cursor.pass(leaf.image(), records);
                Ok(())
            }
            None => self.pass_leaf(batch, cursor, key, records).await,
        }
    }

    fn image_of<'b>(&self, batch: &'b Batch, leaf: &ReadLeaf) -> LeafImage<'b> {
        let geometry = self.access.geometry;
        let words = batch.words(leaf.slot);
        LeafImage::new(
            geometry,
            &words[leaf.number as usize * geometry.stride_words()..],
        )
    }

    /// Returns the leaves of a batch, by descending lower fence.
    fn leaves_read(&self, batch: &Batch, ahead: &ReadAhead) -> Vec<ReadLeaf> {
        let geometry = self.access.geometry;
        let mut leaves = Vec::new();
        for piece in &ahead.pieces {
            for number in 0..piece.count {
                let mut leaf = ReadLeaf {
                    hint: piece.leaf(number, geometry.stride_blocks()),
                    low: 0,
                    slot: piece.slot,
                    number,
                };
                leaf.low = self.image_of(batch, &leaf).low();
                leaves.push(leaf);
            }
        }
        leaves.sort_by_key(|leaf| core::cmp::Reverse(leaf.low));
        leaves
    }

    /// Reads a leaf, and the trained leaves up to it that are expected to have `wanted` records, at
    /// most `count_max`.
    async fn read_before(
        &self,
        batch: &mut Batch,
        hint: Hint,
        wanted: usize,
        count_max: u64,
    ) -> Result<ReadAhead, IndexError> {
        batch.clear();
        let mut ahead = ReadAhead::default();
        {
            let layer = self.state.layer.borrow();
            let geometry = self.access.geometry;
            let limit = expected_leaf_count(&layer, geometry, wanted).min(count_max);
            let last = hint.parent;
            let mut parent = last.saturating_sub(limit as u32 - 1);
            while parent <= last {
                let Some((first, count)) = layer.run_from(geometry, parent, last - parent + 1)
                else {
                    break;
                };
                self.post_piece(batch, &mut ahead, first, count.into(), true);
                parent += count;
            }
            if ahead.find(hint.addr, geometry.stride_blocks()).is_none() {
                self.post_piece(batch, &mut ahead, hint, 1, false);
            }
        }
        self.access.endpoint.execute(batch).await?;
        Ok(ahead)
    }
}
