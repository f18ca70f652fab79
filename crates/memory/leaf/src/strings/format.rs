//! Pages as leaves: the page layout as [`words`](crate::words) needs it to read, lock and recover
//! pages (LEAF-1, LEAF-4, LEAF-5, LEAF-8).

use core::cmp::Ordering;

use crate::blobs::{BlockAccess, BlockError, CopyOutcome, FatPointer};
use crate::words::{Contradiction, LeafAccess, LeafError, LeafFormat};
use farleaf_base::{RemoteAddr, TableId};
use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};

use crate::strings::buffer::PageBuffer;
use crate::strings::error::PageError;
use crate::strings::fence::Fence;
use crate::strings::geometry::{BITMAP_WORD, HIGH_WORD, IMAGE_SIZE_WORDS_MAX, PageGeometry};
use crate::strings::image::PageImage;
use crate::strings::outside::{Outside, Unread};
use crate::strings::recovery::Repair;
use crate::strings::words::Reference;

/// Access to one page through the fabric.
pub type PageAccess<'a, E> = LeafAccess<'a, E, PageGeometry>;

/// Lower fence of a page, and whether it is inline: only then a split in place can have made the
/// page.
#[derive(Clone, Debug)]
pub struct PageLow {
    /// Lower fence.
    pub fence: Fence,
    /// Whether the fence and the prefix are inline.
    pub is_in_page: bool,
}

impl Ord for PageLow {
    fn cmp(&self, other: &Self) -> Ordering {
        self.fence.cmp(&other.fence)
    }
}

impl PartialOrd for PageLow {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PageLow {
    fn eq(&self, other: &Self) -> bool {
        self.fence == other.fence
    }
}

impl Eq for PageLow {}

/// Returns access to value blocks of the same table for the same session.
pub fn block_access<'a, E>(access: &PageAccess<'a, E>) -> BlockAccess<'a, E> {
    BlockAccess {
        endpoint: access.endpoint,
        layout: access.layout,
        table: access.table,
        owner: access.owner,
    }
}

/// Reads a string that a page refers to into `outside`. Returns false if the string is no longer
/// there: then the page is stale. One round trip for each 256,000 bytes.
///
/// # Errors
/// The reference cannot name a string, so the page is corrupted. Or the fabric failed.
pub async fn fetch<E: Endpoint>(
    access: &PageAccess<'_, E>,
    batch: &mut Batch,
    addr: RemoteAddr,
    reference: Reference,
    outside: &mut Outside,
) -> Result<bool, LeafError> {
    let mut string = Vec::new();
    let copied = read_string(access, batch, addr, reference, &mut string).await?;
    Ok(copied == CopyOutcome::Whole && outside.insert(reference, &string))
}

/// Appends a string that a page refers to. One round trip for each 256,000 bytes.
///
/// # Errors
/// As for [`fetch`].
pub async fn read_string<E: Endpoint>(
    access: &PageAccess<'_, E>,
    batch: &mut Batch,
    addr: RemoteAddr,
    reference: Reference,
    to: &mut Vec<u8>,
) -> Result<CopyOutcome, LeafError> {
    let damaged = || access.damaged(addr);
    let pointer = FatPointer::from_word(reference.pointer.word()).ok_or_else(damaged)?;
    let blocks = block_access(access);
    match blocks
        .read(batch, pointer, reference.size_bytes, reference.checksum, to)
        .await
    {
        Ok(copied) => Ok(copied),
        Err(BlockError::Fabric(error)) => Err(error.into()),
        Err(BlockError::Pool(error)) => Err(LeafError::Pool(error)),
        Err(_) => Err(damaged()),
    }
}

impl LeafFormat for PageGeometry {
    type Buffer = PageBuffer;
    type Low = PageLow;

    #[inline]
    fn image_size_words(self) -> usize {
        self.image_size_words()
    }

    fn blank(self) -> PageBuffer {
        PageBuffer::blank(self)
    }

    fn assign(self, buffer: &mut PageBuffer, image: &[u64]) {
        buffer.assign(PageImage::new(self, image));
    }

    fn words(buffer: &PageBuffer) -> &[u64] {
        buffer.image().words()
    }

    #[inline]
    fn is_intact(self, image: &[u64], addr: RemoteAddr, table: TableId) -> bool {
        PageImage::new(self, image).is_intact(addr, table)
    }

    fn is_empty(self, image: &[u64]) -> bool {
        PageImage::new(self, image).record_count() == 0
    }

    fn set_link(self, buffer: &mut PageBuffer, link: RemoteAddr) {
        buffer.set_link(link);
    }

    fn seal(self, buffer: &mut PageBuffer, addr: RemoteAddr, table: TableId) -> u64 {
        buffer.seal(addr, table)
    }

    async fn low<E: Endpoint>(
        access: &PageAccess<'_, E>,
        batch: &mut Batch,
        addr: RemoteAddr,
        image: &[u64],
    ) -> Result<Option<PageLow>, LeafError> {
        let image = PageImage::new(access.geometry, image);
        let mut outside = Outside::new();
        loop {
            match image.whole_fence(image.low(), &outside) {
                Ok(fence) => {
                    let is_in_page = image.low_in_page().is_some();
                    return Ok(Some(PageLow { fence, is_in_page }));
                }
                Err(Unread(reference)) => {
                    if !fetch(access, batch, addr, reference, &mut outside).await? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    async fn finish<E: Endpoint>(
        access: &PageAccess<'_, E>,
        batch: &mut Batch,
        addr: RemoteAddr,
        buffer: &mut PageBuffer,
        sibling_low: Option<&PageLow>,
    ) -> Result<Vec<(u64, u64)>, LeafError> {
        let sibling_low = sibling_low.filter(|low| low.is_in_page);
        let sibling_low = sibling_low.map(|low| &low.fence);
        let mut outside = Outside::new();
        loop {
            match Repair::of(buffer.image(), sibling_low, &outside) {
                Ok(mut repair) => {
                    if access
                        .endpoint
                        .skips_check(ProtocolCheck::TornSplitIsFinished)
                    {
                        repair.high = None;
                    }
                    return Ok(repair.apply(buffer));
                }
                Err(PageError::Unread(reference)) => {
                    fetch_or_damaged(access, batch, addr, reference, &mut outside).await?;
                }
                Err(PageError::LinkToTheLeft) => {
                    return Err(access.contradiction(addr, Contradiction::LinkToTheLeft));
                }
                Err(_) => return Err(access.damaged(addr)),
            }
        }
    }
}

/// Reads a string as [`fetch`] does, but a missing one counts as corruption, because it exists as
/// long as the page does.
async fn fetch_or_damaged<E: Endpoint>(
    access: &PageAccess<'_, E>,
    batch: &mut Batch,
    addr: RemoteAddr,
    reference: Reference,
    outside: &mut Outside,
) -> Result<(), LeafError> {
    if fetch(access, batch, addr, reference, outside).await? {
        return Ok(());
    }
    Err(access.damaged(addr))
}

impl PageBuffer {
    /// Returns a buffer to read into.
    pub(crate) fn blank(geometry: PageGeometry) -> Self {
        let words = [0; IMAGE_SIZE_WORDS_MAX];
        Self::copy_of(PageImage::new(geometry, &words))
    }
}

impl Repair {
    /// Applies the repair to a torn page's buffer; returns the places and values of the words to
    /// write before the state.
    fn apply(self, page: &mut PageBuffer) -> Vec<(u64, u64)> {
        let mut writes = Vec::new();
        if let Some(high) = self.high {
            page.set_high(high);
            writes.push((HIGH_WORD, high.word()));
        }
        if let Some(slots) = self.slots {
            page.set_slots(slots);
            writes.push((BITMAP_WORD, slots.0));
        }
        writes
    }
}
