//! Contents of pages as values in key order, for splits and moves.

use std::collections::BTreeSet;

use crate::strings::cut::{Ends, Piece};
use crate::strings::error::PageError;
use crate::strings::fence::Fence;
use crate::strings::geometry::PageGeometry;
use crate::strings::image::PageImage;
use crate::strings::outside::Outside;
use crate::strings::record::{NewKey, NewRecord, StoredPrefix, Value};
use crate::strings::space::record_size_words;
use crate::strings::words::Reference;

/// Fence, and the reference of its whole string if that is outside.
#[derive(Clone, Debug)]
pub(crate) struct PageFence {
    pub(crate) fence: Fence,
    pub(crate) block: Option<Reference>,
}

/// Size of a prefix, and its reference if it is outside.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefix {
    pub(crate) size_bytes: usize,
    pub(crate) block: Option<Reference>,
}

/// Record of a page.
#[derive(Clone, Debug)]
pub(crate) struct Content<'a> {
    /// Whole key.
    pub(crate) key: Vec<u8>,
    /// Reference of the key if it is outside.
    pub(crate) key_block: Option<Reference>,
    pub(crate) value: Value<'a>,
}

/// Contents of a page.
#[derive(Clone, Debug)]
pub(crate) struct Contents<'a> {
    pub(crate) geometry: PageGeometry,
    pub(crate) low: PageFence,
    pub(crate) high: PageFence,
    pub(crate) prefix: Prefix,
    /// Records in ascending key order.
    pub(crate) records: Vec<Content<'a>>,
}

/// Where a record was placed among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PutPosition {
    /// The record is new and has this index.
    Inserted(usize),
    /// The record replaced the one with this index.
    Replaced(usize),
}

impl PutPosition {
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Inserted(index) | Self::Replaced(index) => index,
        }
    }

    /// Returns the index of a newly inserted record.
    pub(crate) const fn inserted(self) -> Option<usize> {
        match self {
            Self::Inserted(index) => Some(index),
            Self::Replaced(_) => None,
        }
    }
}

impl<'a> Contents<'a> {
    /// Decodes the contents of an intact page.
    ///
    /// # Errors
    /// A string must be read first, or keys and fences are not in order.
    pub(crate) fn of(image: PageImage<'a>, outside: &Outside) -> Result<Self, PageError> {
        let bound = |stored| -> Result<PageFence, PageError> {
            Ok(PageFence {
                fence: image.whole_fence(stored, outside)?,
                block: stored.reference(),
            })
        };
        let prefix_bytes = image.prefix_bytes(outside)?;
        let mut records = Vec::with_capacity(image.record_count());
        for slot in image.sorted_slots(outside)? {
            records.push(Content {
                key: image.whole_key(slot, outside)?,
                key_block: image.key(slot).reference(),
                value: image.value(slot),
            });
        }
        let contents = Self {
            geometry: image.geometry(),
            low: bound(image.low())?,
            high: bound(image.high())?,
            prefix: Prefix {
                size_bytes: image.prefix_size_bytes(),
                block: match image.prefix() {
                    StoredPrefix::Inline(_) => None,
                    StoredPrefix::Outside { reference, .. } => Some(reference),
                },
            },
            records,
        };
        if contents.is_in_order(prefix_bytes) {
            Ok(contents)
        } else {
            Err(PageError::Disorder)
        }
    }

    /// Returns whether keys ascend between the fences and all have the prefix.
    fn is_in_order(&self, prefix: &[u8]) -> bool {
        let (low, high) = (&self.low.fence, &self.high.fence);
        let fences = [low, high].map(|fence| fence.string());
        let keys = || self.records.iter().map(|record| record.key.as_slice());
        low < high
            && prefix.len() == self.prefix.size_bytes
            && fences
                .into_iter()
                .flatten()
                .chain(keys())
                .all(|it| it.starts_with(prefix))
            && keys().is_sorted_by(|one, next| one < next)
            && keys().all(|key| {
                key.len() <= farleaf_base::limits::KEY_SIZE_BYTES_MAX
                    && !low.is_behind(key)
                    && high.is_behind(key)
            })
    }

    /// Inserts a record, or replaces the one with its key.
    ///
    /// # Errors
    /// The whole fences do not cover the key, although their inline heads did not exclude it.
    pub(crate) fn put(&mut self, record: &NewRecord<'a>) -> Result<PutPosition, PageError> {
        let key = record.key.whole();
        if self.low.fence.is_behind(key) || !self.high.fence.is_behind(key) {
            return Err(PageError::Disorder);
        }
        let content = Content {
            key: key.to_vec(),
            key_block: match record.key {
                NewKey::Inline(_) => None,
                NewKey::Outside(_, block) => Some(block),
            },
            value: record.value,
        };
        let found = self
            .records
            .binary_search_by(|it| it.key.as_slice().cmp(key));
        Ok(match found {
            Ok(index) => {
                self.records[index] = content;
                PutPosition::Replaced(index)
            }
            Err(index) => {
                self.records.insert(index, content);
                PutPosition::Inserted(index)
            }
        })
    }

    /// Returns the records as pieces for a cut.
    pub(crate) fn pieces(&self) -> Vec<Piece<'_>> {
        let piece = |record: &'_ Content<'a>| -> usize {
            let suffix_size_bytes = record.key.len() - self.prefix.size_bytes;
            1 + record_size_words(self.geometry, suffix_size_bytes, record.value)
        };
        let mut pieces = Vec::with_capacity(self.records.len());
        for record in &self.records {
            pieces.push(Piece {
                key: &record.key,
                size_words: piece(record),
            });
        }
        pieces
    }

    /// Returns which ends of its table the page is at.
    pub(crate) fn ends(&self) -> Ends {
        Ends {
            is_first: self.low.fence.is_start(),
            is_last: self.high.fence.is_end(),
            fence_size_bytes_max: self.prefix.size_bytes + self.geometry.suffix_size_bytes_max(),
        }
    }
}

/// Returns the references present before a change but not after it.
pub(crate) fn released(
    before: impl IntoIterator<Item = Reference>,
    after: impl IntoIterator<Item = Reference>,
) -> Vec<Reference> {
    let after: BTreeSet<_> = after.into_iter().collect();
    let before: BTreeSet<_> = before.into_iter().collect();
    before.difference(&after).copied().collect()
}
