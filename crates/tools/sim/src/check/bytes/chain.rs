//! Walks the pages along their links and reads all that they refer to.

use std::collections::BTreeSet;

use farleaf_base::RemoteAddr;
use farleaf_executor::block_on;
use farleaf_fabric::{Batch, BatchError};
use farleaf_index::strings::load::page_shape;
use farleaf_leaf::blobs::{CopyOutcome, FatPointer};
use farleaf_leaf::strings::{Fence, Outside, PageImage, Reference, Unread};
use farleaf_pool::allocation::ChunkTable;
use farleaf_pool::catalog::CatalogEntry;
use farleaf_pool::chunk::ChunkEntry;

use super::TableCheck;

/// Pages of a table that cover its keys.
#[derive(Default)]
pub(super) struct Chain {
    pub(super) pages: BTreeSet<RemoteAddr>,
    /// References that these pages contain.
    pub(super) linked: Vec<FatPointer>,
}

impl TableCheck<'_> {
    /// Follows the links from the first page that the table ever had and checks each page (LEAF-6,
    /// LEAF-8).
    pub(super) fn walk(&mut self, entry: &CatalogEntry) -> Result<Chain, BatchError> {
        let mut chain = Chain::default();
        let (mut addr, mut due) = (entry.record.first_leaf.place(), Fence::START);
        let mut visited = BTreeSet::new();
        loop {
            if addr.is_null() || !visited.insert(addr) {
                self.report_violation(
                    "tiling",
                    format!("the chain of pages ends at {addr}, before {due:?}"),
                );
                return Ok(chain);
            }
            let words = self.read(self.geometry.lock(addr), self.geometry.page_size_words())?;
            if words[0] != 0 {
                self.report_violation("locks", format!("page {addr} is locked: {:#x}", words[0]));
            }
            let image = PageImage::new(self.geometry, &words[1..]);
            if !image.is_intact(addr, self.table) {
                self.report_violation("tiling", format!("page {addr} is corrupted"));
                return Ok(chain);
            }
            let link = image.link().place();
            if image.is_retired() {
                addr = link;
                continue;
            }
            let Some(outside) = self.read_all(addr, image, &mut chain) else {
                return Ok(chain);
            };
            let read = "all strings of it were read";
            let high = image.whole_fence(image.high(), &outside).expect(read);
            let low = image.whole_fence(image.low(), &outside).expect(read);
            if low != due || high <= low {
                let how = format!(
                    "page {addr} covers {low:?} to {high:?}, expected it to start at {due:?}"
                );
                self.report_violation("tiling", how);
            }
            if !is_sound(image, &low, &high, &outside).expect(read) {
                let how = format!("page {addr} has duplicate keys or keys outside its fences");
                self.report_violation("tiling", how);
            }
            chain.pages.insert(addr);
            if high == Fence::End {
                return Ok(chain);
            }
            (addr, due) = (link, high);
        }
    }

    /// Reads all strings that a page refers to; `None` if one is not intact.
    fn read_all(
        &mut self,
        addr: RemoteAddr,
        image: PageImage<'_>,
        chain: &mut Chain,
    ) -> Option<Outside> {
        let mut outside = Outside::new();
        for reference in image.references() {
            let Some((pointer, string)) = self.string(reference) else {
                let how = format!("page {addr} refers to {reference:?}, which is corrupted");
                self.report_violation("strings", how);
                return None;
            };
            assert!(outside.insert(reference, &string), "its sum was right");
            chain.linked.push(pointer);
        }
        Some(outside)
    }

    fn string(&self, reference: Reference) -> Option<(FatPointer, Vec<u8>)> {
        let pointer = FatPointer::from_word(reference.pointer.word())?;
        let (mut batch, mut string) = (Batch::new(), Vec::new());
        let blocks = self.blocks();
        let read = blocks.read(
            &mut batch,
            pointer,
            reference.size_bytes,
            reference.checksum,
            &mut string,
        );
        let is_whole = block_on(read, || 0).ok()? == CopyOutcome::Whole;
        is_whole.then_some((pointer, string))
    }

    /// Checks that each page in chunks from which splits allocate is in the chain, free, or left
    /// behind by the operation that replaced it.
    pub(super) fn account_for_pages(
        &mut self,
        entry: &CatalogEntry,
        chain: &Chain,
        chunks: &ChunkTable,
    ) -> Result<(), BatchError> {
        let shape = page_shape(self.geometry);
        let first = entry.record.first_leaf.place();
        let is_own =
            |chunk: &ChunkEntry| chunk.table == self.table && chunk.purpose == Some(shape.purpose);
        let own: Vec<_> = chunks.iter().filter(|(_, chunk)| is_own(chunk)).collect();
        for (index, chunk) in own {
            let start = self.keeper.layout.chunk_start(index);
            for piece in 0..shape.piece_count {
                let page = start.offset_blocks(piece * shape.stride_blocks);
                let is_free = chunk.free.contains(piece);
                let is_used = page == first || chain.pages.contains(&page);
                if is_free && is_used {
                    self.report_violation("leaks", format!("page {page} is free but linked"));
                } else if !is_free && !is_used {
                    let words =
                        self.read(self.geometry.state(page), self.geometry.image_size_words())?;
                    let image = PageImage::new(self.geometry, &words);
                    if !image.is_retired() || image.link().place().is_null() {
                        self.report_violation("leaks", format!("leaked page {page}"));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns whether a page's keys ascend, are distinct, and lie between its fences.
fn is_sound(
    image: PageImage<'_>,
    low: &Fence,
    high: &Fence,
    outside: &Outside,
) -> Result<bool, Unread> {
    let slots = image.sorted_slots(outside)?.into_iter();
    let keys = slots.map(|slot| image.whole_key(slot, outside));
    let keys = keys.collect::<Result<Vec<_>, _>>()?;
    let is_between = |key: &Vec<u8>| !low.is_behind(key) && high.is_behind(key);
    Ok(keys.is_sorted_by(|one, next| one < next) && keys.iter().all(is_between))
}
