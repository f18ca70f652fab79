//! Cuts a stream of records into pages.

use farleaf_leaf::strings::words::Reference;
use farleaf_leaf::strings::{Fence, PageDraft, PageGeometry};

/// Record of a load: its key, and its value in the page or outside.
#[derive(Clone, Debug)]
pub(super) struct LoadRecord {
    pub(super) key: Vec<u8>,
    pub(super) value: LoadValue,
}

/// Value of a load.
#[derive(Clone, Debug)]
pub(super) enum LoadValue {
    Inline(Vec<u8>),
    Outside(Reference),
}

impl LoadValue {
    pub(super) fn as_value(&self) -> farleaf_leaf::strings::Value<'_> {
        match self {
            Self::Inline(value) => farleaf_leaf::strings::Value::Inline(value),
            Self::Outside(reference) => farleaf_leaf::strings::Value::Outside(*reference),
        }
    }
}

/// Records of one page, and its fences.
#[derive(Clone, Debug)]
pub(super) struct CutPage {
    pub(super) low: Fence,
    pub(super) high: Fence,
    pub(super) records: Vec<LoadRecord>,
}

/// Takes records in ascending order and returns each page when it is complete.
///
/// The size of a page depends on the common prefix of its fences, and therefore on the first record
/// after it. A page is closed before the record that would exceed the fill limit, if its records
/// fit with that fence. This is nearly always so for pages that are not filled to the last byte;
/// otherwise the page's last records move to the next one.
#[derive(Debug)]
pub(super) struct Cutter {
    geometry: PageGeometry,
    target_size_words: usize,
    low: Fence,
    records: Vec<LoadRecord>,
}

impl Cutter {
    pub(super) fn new(geometry: PageGeometry, fill_percent: u8) -> Self {
        Self {
            geometry,
            target_size_words: geometry.page_size_words() * usize::from(fill_percent) / 100,
            low: Fence::START,
            records: Vec::new(),
        }
    }

    /// Adds a record, whose key is above all previous ones. Returns a page that is complete without
    /// it.
    pub(super) fn push(&mut self, record: LoadRecord) -> Option<CutPage> {
        self.records.push(record);
        let count = self.records.len();
        if count == 1 || self.size_words(count, &self.estimated_high()) <= self.target_size_words {
            return None;
        }
        Some(self.cut())
    }

    /// Returns the remaining pages.
    pub(super) fn finish(mut self) -> Vec<CutPage> {
        let mut pages = Vec::new();
        loop {
            let count = self.records.len();
            if count <= 1 || self.fits(count, &Fence::End) {
                break;
            }
            pages.push(self.cut());
        }
        if !self.records.is_empty() {
            pages.push(CutPage {
                low: self.low,
                high: Fence::End,
                records: self.records,
            });
        }
        pages
    }

    /// Closes a page before the last record, or before an earlier one if the records do not fit.
    fn cut(&mut self) -> CutPage {
        let mut count = self.records.len() - 1;
        let mut high = self.fence_behind(count);
        while count > 1 && !self.fits(count, &high) {
            count -= 1;
            high = self.fence_behind(count);
        }
        let rest = self.records.split_off(count);
        let records = core::mem::replace(&mut self.records, rest);
        let low = core::mem::replace(&mut self.low, high.clone());
        CutPage { low, high, records }
    }

    /// Returns the shortest fence after the first `count` records.
    fn fence_behind(&self, count: usize) -> Fence {
        let (left, right) = (&self.records[count - 1].key, &self.records[count].key);
        Fence::between(left, right).expect("keys ascend")
    }

    /// Returns a fence that is not below the upper fence that the page will have.
    fn estimated_high(&self) -> Fence {
        let last = self.records.last().expect("there is a record");
        Fence::Behind(last.key.clone())
    }

    fn size_words(&self, count: usize, high: &Fence) -> usize {
        let records = self.records[..count].iter();
        let records = records.map(|record| (record.key.len(), record.value.as_value()));
        PageDraft::size_words_of(self.geometry, &self.low, high, records)
    }

    fn fits(&self, count: usize, high: &Fence) -> bool {
        count <= self.geometry.slot_count_max()
            && self.size_words(count, high) <= self.geometry.page_size_words()
    }
}
