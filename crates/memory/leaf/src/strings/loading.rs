//! New pages of a load, from records that come in order and are in no page yet.

use crate::strings::buffer::size_words_of;
use crate::strings::contents::{Content, PageFence, Prefix};
use crate::strings::draft::{PageDraft, is_worth_it};
use crate::strings::fence::Fence;
use crate::strings::geometry::{HEADER_SIZE_WORDS, PREFIX_INLINE_SIZE_BYTES_MAX, PageGeometry};
use crate::strings::record::Value;
use crate::strings::space::{record_size_words, suffix_in_page_size_bytes};
use crate::strings::words::OUTSIDE_PREFIX_SIZE_BYTES;

impl<'a> PageDraft<'a> {
    /// Drafts a page with these fences and ascending records, and chooses its prefix. Strings that
    /// must be outside are [`wanted`](Self::wanted).
    pub fn of_records(
        geometry: PageGeometry,
        low: Fence,
        high: Fence,
        records: impl IntoIterator<Item = (Vec<u8>, Value<'a>)>,
    ) -> Self {
        let bound = |fence| PageFence { fence, block: None };
        let records = records.into_iter().map(|(key, value)| Content {
            key,
            key_block: None,
            value,
        });
        let no_prefix = Prefix {
            size_bytes: 0,
            block: None,
        };
        Self::new(
            geometry,
            bound(low),
            bound(high),
            no_prefix,
            records.collect(),
        )
    }

    /// Returns the size in words of a page with these fences and values, and keys of these sizes:
    /// [`size_words`](Self::size_words) of [`of_records`](Self::of_records), without drafting the
    /// page.
    pub fn size_words_of<'v>(
        geometry: PageGeometry,
        low: &Fence,
        high: &Fence,
        records: impl Iterator<Item = (usize, Value<'v>)> + Clone,
    ) -> usize {
        let common = low.common_prefix_size_bytes(high);
        let shorter = PREFIX_INLINE_SIZE_BYTES_MAX.min(common);
        let record_count = records.clone().count();
        let is_longer_better = is_worth_it(geometry, common - shorter, record_count);
        let prefix = if is_longer_better { common } else { shorter };
        let prefix_in_page = if prefix > PREFIX_INLINE_SIZE_BYTES_MAX {
            OUTSIDE_PREFIX_SIZE_BYTES
        } else {
            prefix
        };
        let fence = |fence: &Fence| {
            let suffix = fence.string().map_or(0, |string| string.len() - prefix);
            size_words_of(suffix_in_page_size_bytes(geometry, suffix))
        };
        let record = |(key_size_bytes, value): (usize, Value<'_>)| {
            1 + record_size_words(geometry, key_size_bytes - prefix, value)
        };
        HEADER_SIZE_WORDS
            + size_words_of(prefix_in_page)
            + fence(low)
            + fence(high)
            + records.map(record).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Promise: the size of a page is known before it is drafted.
        #[test]
        fn sizes_are_those_of_drafts(
            shared in 0_usize..80,
            keys in prop::collection::btree_set(prop::collection::vec(0_u8..3, 1..200), 2..20),
            value_size_bytes in 0_usize..40,
            size in prop::sample::select(vec![512_u64, 1024, 2048]),
        ) {
            let geometry = PageGeometry::new(size).expect("allowed");
            let keys = keys.into_iter().map(|key| [vec![7; shared], key].concat());
            let keys: Vec<Vec<u8>> = keys.collect();
            let (last, keys) = keys.split_last().expect("two at least");
            let low = Fence::Before(keys[0].clone());
            let high = Fence::between(keys.last().expect("one"), last).expect("ascending");
            let value = vec![1; value_size_bytes];
            let records = keys.iter().map(|key| (key.clone(), Value::Inline(&value)));
            let draft = PageDraft::of_records(geometry, low.clone(), high.clone(), records);
            let sizes = keys.iter().map(|key| (key.len(), Value::Inline(&value[..])));
            let size_words = PageDraft::size_words_of(geometry, &low, &high, sizes);
            prop_assert_eq!(size_words, draft.size_words());
        }
    }
}
