//! New pages that are being thought of: which prefix they have, whether all has room, and which
//! strings have to be written to value blocks before they can be built.

use farleaf_types::RemoteAddr;

use crate::buffer::{NewFence, NewPage, NewPrefix, PageBuffer, size_words_of};
use crate::contents::{Bound, Content, Prefix};
use crate::fence::Fence;
use crate::geometry::{HEADER_SIZE_WORDS, PREFIX_INLINE_SIZE_BYTES_MAX, PageGeometry};
use crate::record::{NewKey, NewRecord};
use crate::space::{record_size_words, suffix_in_page_size_bytes};
use crate::words::{OUTSIDE_PREFIX_SIZE_BYTES, Reference};

/// A longer prefix is worth another page, or a value block, when it saves this share of a page.
const PREFIX_GAIN_SHARE: usize = 8;

/// Which string of a draft is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StringPlace {
    /// The prefix.
    Prefix,
    /// The lower fence's.
    Low,
    /// The upper fence's.
    High,
    /// The key of the record with this index, in the order of keys.
    Key(usize),
}

/// A page that is to be made.
///
/// Strings that are outside already stay where they are, unless they have room in the page now.
/// Others that must be outside are [`wanted`](Self::wanted): the caller writes them to value
/// blocks, each to its own, and [`give`](Self::give)s the references.
#[derive(Clone, Debug)]
pub struct PageDraft<'a> {
    geometry: PageGeometry,
    low: Bound,
    high: Bound,
    prefix: Prefix,
    records: Vec<Content<'a>>,
}

/// Whether a longer prefix for so many records is worth more than what is written for it.
pub(crate) fn is_worth_it(
    geometry: PageGeometry,
    longer_bytes: usize,
    record_count: usize,
) -> bool {
    longer_bytes * record_count >= geometry.page_size_bytes() / PREFIX_GAIN_SHARE
}

impl<'a> PageDraft<'a> {
    /// A page with these fences and records, whose prefix is chosen: what the fences have in
    /// common; but of more than 32 bytes, which are outside, only as much as is worth it. `kept` is
    /// a prefix of both fences.
    pub(crate) fn new(
        geometry: PageGeometry,
        (low, high): (Bound, Bound),
        kept: Prefix,
        records: Vec<Content<'a>>,
    ) -> Self {
        let common = low.fence.common_prefix_size_bytes(&high.fence);
        // One that is too long now is not worth a value block for what is left of it.
        let still_kept = if kept.size_bytes <= common {
            kept.size_bytes
        } else {
            0
        };
        let shorter = still_kept.max(PREFIX_INLINE_SIZE_BYTES_MAX.min(common));
        let is_longer_better = is_worth_it(geometry, common - shorter, records.len());
        let size_bytes = if is_longer_better { common } else { shorter };
        let block = kept.block.filter(|_| size_bytes == kept.size_bytes);
        let prefix = Prefix { size_bytes, block };
        Self::with_prefix(geometry, (low, high), prefix, records)
    }

    /// A page whose prefix lies in it.
    pub(crate) fn in_page(
        geometry: PageGeometry,
        (low, high): (Bound, Bound),
        records: Vec<Content<'a>>,
    ) -> Self {
        let common = low.fence.common_prefix_size_bytes(&high.fence);
        let prefix = Prefix {
            size_bytes: common.min(PREFIX_INLINE_SIZE_BYTES_MAX),
            block: None,
        };
        Self::with_prefix(geometry, (low, high), prefix, records)
    }

    fn with_prefix(
        geometry: PageGeometry,
        (mut low, mut high): (Bound, Bound),
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

    /// The lower fence.
    pub const fn low(&self) -> &Fence {
        &self.low.fence
    }

    /// The upper fence.
    pub const fn high(&self) -> &Fence {
        &self.high.fence
    }

    /// The prefix.
    pub fn prefix(&self) -> &[u8] {
        let low = self.low.fence.string().unwrap_or_default();
        &low[..self.prefix.size_bytes]
    }

    /// How many records it has.
    pub fn record_count(&self) -> usize {
        self.records.len()
    }

    /// Words that it takes, all in all.
    pub fn size_words(&self) -> usize {
        let prefix = if self.is_prefix_outside() {
            OUTSIDE_PREFIX_SIZE_BYTES
        } else {
            self.prefix.size_bytes
        };
        let suffix_size_bytes = |string: &[u8]| string.len() - self.prefix.size_bytes;
        let fence = |bound: &Bound| {
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

    /// Whether a page has room for all of it.
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

    /// The strings that must be outside and have no value block yet.
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

    /// Tells where a wanted string lies. Panics when it is not wanted, or the reference is another
    /// string's.
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

    /// Everything outside that the page will name, as far as it is known.
    pub fn references(&self) -> impl Iterator<Item = Reference> + '_ {
        let page = [self.prefix.block, self.low.block, self.high.block];
        let records = self.records.iter();
        let records = records.flat_map(|record| [record.key_block, record.value.reference()]);
        page.into_iter().chain(records).flatten()
    }

    /// The page, without a checksum. Panics when it has no room ([`fits`](Self::fits)), or strings
    /// are still wanted.
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
