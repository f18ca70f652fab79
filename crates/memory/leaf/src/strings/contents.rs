//! What pages list, as values in the order of keys: what splits and moves work on.

use std::collections::BTreeSet;

use crate::cut::{Ends, Piece};
use crate::error::PageError;
use crate::fence::Fence;
use crate::geometry::PageGeometry;
use crate::image::PageImage;
use crate::outside::Outside;
use crate::record::{NewKey, NewRecord, StoredPrefix, Value};
use crate::space::record_size_words;
use crate::words::Reference;

/// A fence, and where its whole string lies if it is outside.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    pub(crate) fence: Fence,
    pub(crate) block: Option<Reference>,
}

/// How long a prefix is, and where it lies if it is outside.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefix {
    pub(crate) size_bytes: usize,
    pub(crate) block: Option<Reference>,
}

/// A record.
#[derive(Clone, Debug)]
pub(crate) struct Content<'a> {
    /// The whole key.
    pub(crate) key: Vec<u8>,
    /// Where it lies if it is outside.
    pub(crate) key_block: Option<Reference>,
    pub(crate) value: Value<'a>,
}

/// All that a page says.
#[derive(Clone, Debug)]
pub(crate) struct Contents<'a> {
    pub(crate) geometry: PageGeometry,
    pub(crate) low: Bound,
    pub(crate) high: Bound,
    pub(crate) prefix: Prefix,
    /// Ascending.
    pub(crate) records: Vec<Content<'a>>,
}

/// Where a record was put among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// It is new, and has this index.
    Inserted(usize),
    /// It took the place of the one with this index.
    Replaced(usize),
}

impl Put {
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Inserted(index) | Self::Replaced(index) => index,
        }
    }

    /// The index of a record that was not there before.
    pub(crate) const fn inserted(self) -> Option<usize> {
        match self {
            Self::Inserted(index) => Some(index),
            Self::Replaced(_) => None,
        }
    }
}

impl<'a> Contents<'a> {
    /// What an intact page says.
    ///
    /// # Errors
    /// A string has to be read first; or keys and fences are not in order.
    pub(crate) fn of(image: PageImage<'a>, outside: &Outside) -> Result<Self, PageError> {
        let bound = |stored| -> Result<Bound, PageError> {
            Ok(Bound {
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

    /// Whether keys ascend between the fences, and all have the prefix.
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
                key.len() <= crate::KEY_SIZE_BYTES_MAX && !low.is_behind(key) && high.is_behind(key)
            })
    }

    /// Puts a record among the others, or in the place of the one with its key.
    ///
    /// # Errors
    /// The whole fences do not cover it, whatever their heads in the page have said.
    pub(crate) fn put(&mut self, record: &NewRecord<'a>) -> Result<Put, PageError> {
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
                Put::Replaced(index)
            }
            Err(index) => {
                self.records.insert(index, content);
                Put::Inserted(index)
            }
        })
    }

    /// The records as what is cut.
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

    /// Which ends of its table the page is at.
    pub(crate) fn ends(&self) -> Ends {
        Ends {
            is_first: self.low.fence.is_start(),
            is_last: self.high.fence.is_end(),
            fence_size_bytes_max: self.prefix.size_bytes + self.geometry.suffix_size_bytes_max(),
        }
    }
}

/// What is named before a change and by nothing after it.
pub(crate) fn released(
    before: impl IntoIterator<Item = Reference>,
    after: impl IntoIterator<Item = Reference>,
) -> Vec<Reference> {
    let after: BTreeSet<_> = after.into_iter().collect();
    let before: BTreeSet<_> = before.into_iter().collect();
    before.difference(&after).copied().collect()
}
