//! Reading keys in order (D6, D9): a trained piece is one contiguous READ.

use std::collections::HashMap;

use farleaf_fabric::{Batch, Endpoint, ReadSlot};
use farleaf_leaf::{LeafBuffer, Look};
use farleaf_types::RemoteAddr;

use super::Index;
use crate::IndexError;
use crate::hint::{Hint, SearchLayer};

/// Trained leaves that one batch reads at the most.
const LEAF_COUNT_MAX: usize = 512;
/// Leaves read beyond the expected number, in standard deviations of what that number of leaves
/// holds; a second round trip costs more than a leaf.
const SPARE_DEVIATIONS: f64 = 1.0;

/// Where a scan stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanCursor {
    /// The smallest key not passed yet; `None` at the end.
    next_key: Option<u64>,
    /// Where that key was expected, if the scan knows better than the search layer.
    hint: Option<Hint>,
}

/// What one batch of a scan reads: leaves by their addresses, in the order of their keys as far as
/// is known.
#[derive(Debug, Default)]
struct ReadAhead {
    slots: HashMap<RemoteAddr, (ReadSlot, usize)>,
}

impl ScanCursor {
    /// A scan from `key` on, inclusive.
    pub fn from(key: u64) -> Self {
        Self {
            next_key: Some(key),
            hint: None,
        }
    }

    /// Whether all keys have been passed.
    pub fn is_finished(&self) -> bool {
        self.next_key.is_none()
    }
}

impl<E: Endpoint> Index<'_, E> {
    /// Adds at least `wanted` records to `records`, ascending, unless the keys end before; goes on
    /// until a leaf is complete, so there may be more than that. One round trip on a trained table.
    ///
    /// # Errors
    /// The fabric failed, a leaf is damaged, or the table was dropped. The cursor then stands behind
    /// the last record that was added.
    pub async fn scan(
        &self,
        batch: &mut Batch,
        cursor: &mut ScanCursor,
        wanted: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), IndexError> {
        let end = records.len() + wanted;
        while let Some(from) = cursor.next_key {
            if records.len() >= end {
                break;
            }
            let hint = cursor.hint.take().unwrap_or_else(|| self.locate(from));
            let ahead = self
                .read_ahead(batch, hint, from, end - records.len())
                .await?;
            self.consume(batch, cursor, hint, &ahead, end, records)
                .await?;
        }
        Ok(())
    }

    /// Reads the leaf of `hint`, the synonyms known of it, and the trained leaves behind it that are
    /// expected to hold `wanted` records, with their known synonyms: one batch, and one verb for
    /// each contiguous piece.
    async fn read_ahead(
        &self,
        batch: &mut Batch,
        hint: Hint,
        from: u64,
        wanted: usize,
    ) -> Result<ReadAhead, IndexError> {
        batch.clear();
        let mut ahead = ReadAhead::default();
        {
            let layer = self.state.layer.borrow();
            let directory = layer.directory();
            let mean =
                (directory.record_count() as f64 / f64::from(directory.leaf_count())).max(1.0);
            let expected = wanted as f64 / mean;
            let leaves = 1.0 + expected + SPARE_DEVIATIONS * (expected / mean).sqrt();
            let leaf_count = (leaves.ceil() as usize).clamp(1, LEAF_COUNT_MAX);
            let mut synonyms = Vec::new();
            layer.synonyms_above(hint.parent, from, &mut synonyms);
            let mut piece = vec![hint.addr];
            let mut parent = hint.parent;
            while piece.len() < leaf_count && ahead.slots.len() < LEAF_COUNT_MAX {
                let Some(next) = layer.next_trained(parent) else {
                    break;
                };
                let last = piece[piece.len() - 1];
                if next.addr != last.offset_blocks(self.access.geometry.stride_blocks()) {
                    self.post_piece(batch, &piece, &mut ahead);
                    piece.clear();
                }
                piece.push(next.addr);
                parent = next.parent;
                layer.synonyms_above(parent, 0, &mut synonyms);
            }
            self.post_piece(batch, &piece, &mut ahead);
            for synonym in synonyms.iter().take(leaf_count) {
                self.post_piece(batch, core::slice::from_ref(synonym), &mut ahead);
            }
        }
        self.access.endpoint.execute(batch).await?;
        Ok(ahead)
    }

    /// One READ over leaves that lie side by side.
    fn post_piece(&self, batch: &mut Batch, piece: &[RemoteAddr], ahead: &mut ReadAhead) {
        let geometry = self.access.geometry;
        let Some(first) = piece.first() else { return };
        let stride = geometry.stride_words();
        let words = (piece.len() - 1) * stride + geometry.image_size_words();
        let slot = batch.read(geometry.state(*first), words);
        batch.cost_mut().leaves_read += piece.len() as u64;
        for (index, leaf) in piece.iter().enumerate() {
            ahead.slots.entry(*leaf).or_insert((slot, index * stride));
        }
    }

    /// D6: takes leaves from what was read as long as each covers the cursor.
    async fn consume(
        &self,
        batch: &mut Batch,
        cursor: &mut ScanCursor,
        mut hint: Hint,
        ahead: &ReadAhead,
        end: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), IndexError> {
        let geometry = self.access.geometry;
        // A walk uses the batch for itself; what was read ahead is gone then.
        while let Some((from, (slot, offset))) =
            cursor.next_key.zip(ahead.slots.get(&hint.addr).copied())
        {
            let words = &batch.words(slot)[offset..];
            let image = farleaf_leaf::LeafImage::new(geometry, words);
            let look = self.access.look(image, hint.addr, from);
            if look != Look::Here {
                let (found, leaf) = self.walk(batch, from, hint, look).await?;
                self.pass(cursor, found, &leaf, records);
                return Ok(());
            }
            self.pass(cursor, hint, &LeafBuffer::copy_of(image), records);
            let Some(next) = cursor.hint else {
                return Ok(());
            };
            if records.len() >= end {
                return Ok(());
            }
            hint = next;
        }
        Ok(())
    }

    /// Takes the records of a leaf that covers the cursor and moves it behind the leaf.
    fn pass(
        &self,
        cursor: &mut ScanCursor,
        hint: Hint,
        leaf: &LeafBuffer,
        records: &mut Vec<(u64, u64)>,
    ) {
        let image = leaf.image();
        image.append_sorted(cursor.next_key.unwrap_or(u64::MAX), records);
        cursor.next_key = image.high().checked_add(1);
        let link = image.link().place();
        let trained = self.state.layer.borrow().next_trained(hint.parent);
        cursor.hint = (cursor.next_key.is_some() && !link.is_null()).then(|| match trained {
            Some(next) if next.addr == link => next,
            _ => Hint {
                addr: link,
                parent: hint.parent,
            },
        });
    }
}
