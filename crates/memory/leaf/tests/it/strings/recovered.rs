//! Recovery after a crash (LEAF-8), and a walk over everything that a table lists.

use farleaf_base::RemoteAddr;
use farleaf_fabric::Batch;
use farleaf_leaf::strings::{Fence, PageBuffer, PageImage, Repair};

use crate::strings::memory::{Memory, image, writes_of};
use crate::strings::table::{Model, ModelValue, TABLE, Table};

impl Table {
    /// Returns the memories after a crash during the recovery of the first page that needs one.
    pub(crate) fn recoveries(&self, memory: &Memory) -> Vec<Memory> {
        let mut addr = self.first;
        let mut rng = self.rng.clone();
        loop {
            if memory.word(self.geometry.lock(addr)) != 0 {
                let mut batch = self.recovery(memory, addr);
                return memory.crashed(&writes_of(&mut batch), &mut rng);
            }
            let words = memory.image_words(self.geometry, addr);
            addr = image(self.geometry, &words).link().place();
            if addr.is_null() {
                return Vec::new();
            }
        }
    }

    /// Returns the recovery of one page that a dead owner holds (LEAF-8).
    pub(crate) fn recovery(&self, memory: &Memory, addr: RemoteAddr) -> Batch {
        let mut batch = Batch::new();
        let words = memory.image_words(self.geometry, addr);
        let page = image(self.geometry, &words);
        let mut buffer = PageBuffer::copy_of(page);
        let change = self.change(addr);
        let (link, words_at_link) = (
            page.link().place(),
            memory.image_words(self.geometry, page.link()),
        );
        let neighbour = image(self.geometry, &words_at_link);
        if !page.is_intact(addr, TABLE) {
            let sibling_low = (!page.is_retired() && !link.is_null())
                .then(|| neighbour.low_in_page())
                .flatten();
            let repair = Repair::of(page, sibling_low.as_ref(), &self.outside);
            change.repair(&mut batch, &mut buffer, &repair.expect("it was no damage"));
            return batch;
        }
        // Was the page about to be retired together with its neighbor, which already is?
        if !page.is_retired() && !link.is_null() && neighbour.is_retired() {
            let successor = self.successor(memory, link);
            let words = memory.image_words(self.geometry, successor);
            let taken = image(self.geometry, &words);
            let low = |page: PageImage<'_>| {
                page.whole_fence(page.low(), &self.outside)
                    .expect("all was read")
            };
            if low(taken) <= low(page) {
                change.retire(&mut batch, &mut buffer, successor);
                return batch;
            }
        }
        change.unlock(&mut batch);
        batch
    }

    /// Returns the page that finally replaced a retired one.
    pub(crate) fn successor(&self, memory: &Memory, retired: RemoteAddr) -> RemoteAddr {
        let mut addr = retired;
        loop {
            let words = memory.image_words(self.geometry, addr);
            let page = image(self.geometry, &words);
            if !page.is_retired() {
                return addr;
            }
            addr = page.link().place();
        }
    }

    /// Returns everything that the table lists, recovering pages as needed. Checks that the pages
    /// cover all keys, and list only what they cover.
    pub(crate) fn walk(&self, memory: &mut Memory) -> Model {
        self.walk_pages(memory).0
    }

    /// Walks as [`walk`](Self::walk) does, and also returns the pages.
    pub(crate) fn walk_pages(&self, memory: &mut Memory) -> (Model, Vec<RemoteAddr>) {
        let mut pages = Vec::new();
        let (mut addr, mut cursor, mut listed) = (self.first, Fence::START, Model::new());
        loop {
            if memory.word(self.geometry.lock(addr)) != 0 {
                let mut batch = self.recovery(memory, addr);
                memory.apply(&writes_of(&mut batch));
            }
            let words = memory.image_words(self.geometry, addr);
            let page = image(self.geometry, &words);
            assert!(page.is_intact(addr, TABLE), "{addr} is torn and nobody's");
            if page.is_retired() {
                addr = page.link().place();
                continue;
            }
            pages.push(addr);
            let fence = |fence| {
                page.whole_fence(fence, &self.outside)
                    .expect("all was read")
            };
            assert_eq!(fence(page.low()), cursor, "no gap, and nothing twice");
            let high = fence(page.high());
            let mut previous: Option<Vec<u8>> = None;
            for slot in page.sorted_slots(&self.outside).expect("all was read") {
                let key = page.whole_key(slot, &self.outside).expect("all was read");
                assert!(
                    !cursor.is_behind(&key) && high.is_behind(&key),
                    "it covers what it lists"
                );
                assert!(previous.is_none_or(|previous| previous < key));
                previous = Some(key.clone());
                listed.insert(key, ModelValue::of(page.value(slot)));
            }
            if high.is_end() {
                return (listed, pages);
            }
            (cursor, addr) = (high, page.link());
        }
    }

    /// Returns whether a page that the walk skipped has a successor; otherwise two pages would
    /// cover a key.
    pub(crate) fn is_retired(&self, memory: &mut Memory, addr: RemoteAddr) -> bool {
        if memory.word(self.geometry.lock(addr)) != 0 {
            let mut batch = self.recovery(memory, addr);
            memory.apply(&writes_of(&mut batch));
        }
        let words = memory.image_words(self.geometry, addr);
        let page = image(self.geometry, &words);
        page.is_intact(addr, TABLE) && page.is_retired()
    }
}
