//! Drafts of new pages: their prefix, whether everything fits, and which strings must be written to
//! value blocks before the page can be built.

use farleaf_base::RemoteAddr;

use crate::strings::buffer::{NewFence, NewPage, NewPrefix, PageBuffer, size_words_of};
use crate::strings::contents::{Content, PageFence, Prefix};
use crate::strings::fence::Fence;
use crate::strings::geometry::{HEADER_SIZE_WORDS, PREFIX_INLINE_SIZE_BYTES_MAX, PageGeometry};
use crate::strings::record::{NewKey, NewRecord};
use crate::strings::space::{record_size_words, suffix_in_page_size_bytes};
use crate::strings::words::{OUTSIDE_PREFIX_SIZE_BYTES, Reference};

/// Divisor of the page size: a longer prefix is worth another page or a value block if it saves
/// this share of a page.
const PREFIX_GAIN_SHARE: usize = 8;

/// Identifies a string of a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StringPlace {
    /// The prefix.
    Prefix,
    /// String of the lower fence.
    Low,
    /// String of the upper fence.
    High,
    /// Key of the record with this index, in key order.
    Key(usize),
}

/// Page to be created.
///
/// Strings already outside stay there, unless they now fit into the page. Other strings that must
/// be outside are [`wanted`](Self::wanted): the caller writes each to its own value block, and
/// [`give`](Self::give)s the references.
#[derive(Clone, Debug)]
pub struct PageDraft<'a> {
    geometry: PageGeometry,
    low: PageFence,
    high: PageFence,
    prefix: Prefix,
    records: Vec<Content<'a>>,
}

/// Returns whether a longer prefix saves enough over `record_count` records to justify its cost.
pub(crate) fn is_worth_it(
    geometry: PageGeometry,
    longer_bytes: usize,
    record_count: usize,
) -> bool {
    longer_bytes * record_count >= geometry.page_size_bytes() / PREFIX_GAIN_SHARE
}

impl<'a> PageDraft<'a> {
    /// Drafts a page with these fences and records, and chooses its prefix: the common prefix of
    /// the fences; if it exceeds 32 bytes and would be outside, only as much as is worth it.
    /// `old_prefix` is a prefix of both fences.
    pub(crate) fn new(
        geometry: PageGeometry,
        low: PageFence,
        high: PageFence,
        old_prefix: Prefix,
        records: Vec<Content<'a>>,
    ) -> Self {
        let common = low.fence.common_prefix_size_bytes(&high.fence);
        // An old prefix that is too long now is not worth a value block for the rest.
        let reused_bytes = if old_prefix.size_bytes <= common {
            old_prefix.size_bytes
        } else {
            0
        };
        let shorter = reused_bytes.max(PREFIX_INLINE_SIZE_BYTES_MAX.min(common));
        let is_longer_better = is_worth_it(geometry, common - shorter, records.len());
        let size_bytes = if is_longer_better { common } else { shorter };
        let block = old_prefix
            .block
            .filter(|_| size_bytes == old_prefix.size_bytes);
        let prefix = Prefix { size_bytes, block };
        Self::with_prefix(geometry, low, high, prefix, records)
    }

    /// Drafts a page whose prefix is inline.
    pub(crate) fn in_page(
        geometry: PageGeometry,
        low: PageFence,
        high: PageFence,
        records: Vec<Content<'a>>,
    ) -> Self {
        let common = low.fence.common_prefix_size_bytes(&high.fence);
        let prefix = Prefix {
            size_bytes: common.min(PREFIX_INLINE_SIZE_BYTES_MAX),
            block: None,
        };
        Self::with_prefix(geometry, low, high, prefix, records)
    }

    fn with_prefix(
        geometry: PageGeometry,
        mut low: PageFence,
        mut high: PageFence,
        prefix: Prefix,
        mut records: Vec<Content<'a>>,
    ) -> Self {
        let is_inline = |string: &[u8]| geometry.is_suffix_inline(string.len() - prefix.size_bytes);
        for bound in [&mut low, &mut high] {
            bound.block = bound
                .block
                .filter(|_| !bound.fence.string().is_none_or(is_inline));
        }
        for record in &mut records {
            record.key_block = record.key_block.filter(|_| !is_inline(&record.key));
        }
        Self {
            geometry,
            low,
            high,
            prefix,
            records,
        }
    }

    /// Returns the lower fence.
    pub const fn low(&self) -> &Fence {
        &self.low.fence
    }

    /// Returns the upper fence.
    pub const fn high(&self) -> &Fence {
        &self.high.fence
    }

    /// Returns the prefix.
    pub fn prefix(&self) -> &[u8] {
        let low = self.low.fence.string().unwrap_or_default();
        &low[..self.prefix.size_bytes]
    }

    /// Returns the number of records.
    pub fn record_count(&self) -> usize {
        self.records.len()
    }

    /// Returns the total size of the page in words.
    pub fn size_words(&self) -> usize {
        let prefix = if self.is_prefix_outside() {
            OUTSIDE_PREFIX_SIZE_BYTES
        } else {
            self.prefix.size_bytes
        };
        let suffix_size_bytes = |string: &[u8]| string.len() - self.prefix.size_bytes;
        let fence = |bound: &PageFence| {
            let size_bytes = bound.fence.string().map_or(0, suffix_size_bytes);
            size_words_of(suffix_in_page_size_bytes(self.geometry, size_bytes))
        };
        let record = |record: &Content<'_>| {
            let suffix_size_bytes = suffix_size_bytes(&record.key);
            1 + record_size_words(self.geometry, suffix_size_bytes, record.value)
        };
        HEADER_SIZE_WORDS
            + size_words_of(prefix)
            + fence(&self.low)
            + fence(&self.high)
            + self.records.iter().map(record).sum::<usize>()
    }

    /// Returns whether everything fits into a page.
    pub fn fits(&self) -> bool {
        self.size_words() <= self.geometry.page_size_words()
            && self.records.len() <= self.geometry.slot_count_max()
    }

    const fn is_prefix_outside(&self) -> bool {
        self.prefix.size_bytes > PREFIX_INLINE_SIZE_BYTES_MAX
    }

    fn is_outside(&self, string: &[u8]) -> bool {
        !self
            .geometry
            .is_suffix_inline(string.len() - self.prefix.size_bytes)
    }

    /// Returns the strings that must be outside and have no value block yet.
    pub fn wanted(&self) -> Vec<(StringPlace, &[u8])> {
        let mut wanted = Vec::new();
        if self.is_prefix_outside() && self.prefix.block.is_none() {
            wanted.push((StringPlace::Prefix, self.prefix()));
        }
        for (place, bound) in [
            (StringPlace::Low, &self.low),
            (StringPlace::High, &self.high),
        ] {
            let string = bound.fence.string();
            if let (Some(string), None) = (string.filter(|it| self.is_outside(it)), bound.block) {
                wanted.push((place, string));
            }
        }
        for (index, record) in self.records.iter().enumerate() {
            if self.is_outside(&record.key) && record.key_block.is_none() {
                wanted.push((StringPlace::Key(index), &record.key));
            }
        }
        wanted
    }

    /// Sets the reference of a wanted string.
    ///
    /// # Panics
    ///
    /// If the string is not wanted, or the reference is another string's.
    pub fn give(&mut self, place: StringPlace, reference: Reference) {
        let wanted = self.wanted();
        let string = wanted.iter().find(|(wanted, _)| *wanted == place);
        assert!(
            string.is_some_and(|(_, string)| reference.names(string)),
            "what is given is what was wanted"
        );
        let block = match place {
            StringPlace::Prefix => &mut self.prefix.block,
            StringPlace::Low => &mut self.low.block,
            StringPlace::High => &mut self.high.block,
            StringPlace::Key(index) => &mut self.records[index].key_block,
        };
        *block = Some(reference);
    }

    /// Returns the known references to outside strings that the page will have.
    pub fn references(&self) -> impl Iterator<Item = Reference> + '_ {
        let page = [self.prefix.block, self.low.block, self.high.block];
        let records = self.records.iter();
        let records = records.flat_map(|record| [record.key_block, record.value.reference()]);
        page.into_iter().chain(records).flatten()
    }

    /// Builds the page, without a checksum.
    ///
    /// # Panics
    ///
    /// If the page does not fit ([`fits`](Self::fits)), or strings are still wanted.
    pub fn build(&self, link: RemoteAddr) -> PageBuffer {
        let mut records = Vec::with_capacity(self.records.len());
        for content in &self.records {
            records.push(NewRecord {
                key: match content.key_block {
                    None => NewKey::Inline(&content.key),
                    Some(block) => NewKey::Outside(&content.key, block),
                },
                value: content.value,
            });
        }
        let page = NewPage {
            low: NewFence {
                fence: &self.low.fence,
                block: self.low.block,
            },
            high: NewFence {
                fence: &self.high.fence,
                block: self.high.block,
            },
            prefix: NewPrefix {
                bytes: self.prefix(),
                block: self.prefix.block,
            },
            link,
        };
        let built = PageBuffer::build(self.geometry, &page, &records);
        built.expect("whoever builds a draft has asked whether it fits")
    }
}
