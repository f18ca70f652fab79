//! Pages as leaves: what the protocol of `farleaf-leaf` needs to know of them, which reads, locks
//! and recovers them as it does leaves of words (D1, D4, D5, D8).

use core::cmp::Ordering;

use farleaf_block::{BlockAccess, BlockError, Copied, FatPointer};
use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_leaf::{Contradiction, LeafAccess, LeafError, LeafFormat};
use farleaf_types::{RemoteAddr, TableId};

use crate::buffer::PageBuffer;
use crate::error::PageError;
use crate::fence::Fence;
use crate::geometry::{BITMAP_WORD, HIGH_WORD, IMAGE_SIZE_WORDS_MAX, PageGeometry};
use crate::image::PageImage;
use crate::outside::{Outside, Unread};
use crate::recovery::Repair;
use crate::words::Reference;

/// One page through the fabric.
pub type PageAccess<'a, E> = LeafAccess<'a, E, PageGeometry>;

/// A page's lower fence, and whether all of it lies in the page: only then a split in place can
/// have made the page (BP5).
#[derive(Clone, Debug)]
pub struct PageLow {
    /// The fence.
    pub fence: Fence,
    /// Whether the fence and the prefix lie in the page.
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

/// The value blocks of the same table, in the name of the same session.
pub fn block_access<'a, E>(access: &PageAccess<'a, E>) -> BlockAccess<'a, E> {
    BlockAccess {
        endpoint: access.endpoint,
        layout: access.layout,
        table: access.table,
        owner: access.owner,
    }
}

/// Reads a string that a page refers to, and takes it; false when it is not there (any more): then
/// the page is stale (BV2). One round trip for each 256,000 bytes.
///
/// # Errors
/// No string can be where the page says: it is damaged. Or the fabric failed.
pub async fn fetch<E: Endpoint>(
    access: &PageAccess<'_, E>,
    batch: &mut Batch,
    (addr, reference): (RemoteAddr, Reference),
    outside: &mut Outside,
) -> Result<bool, LeafError> {
    let mut string = Vec::new();
    let copied = read_string(access, batch, (addr, reference), &mut string).await?;
    Ok(copied == Copied::Whole && outside.insert(reference, &string))
}

/// Appends a string that a page refers to. One round trip for each 256,000 bytes.
///
/// # Errors
/// As for [`fetch`].
pub async fn read_string<E: Endpoint>(
    access: &PageAccess<'_, E>,
    batch: &mut Batch,
    (addr, reference): (RemoteAddr, Reference),
    to: &mut Vec<u8>,
) -> Result<Copied, LeafError> {
    let damaged = || LeafError::Damaged {
        addr,
        table: access.table,
    };
    let pointer = FatPointer::from_word(reference.pointer.word()).ok_or_else(damaged)?;
    let blocks = block_access(access);
    let sum = (reference.size_bytes, reference.checksum);
    match blocks.read(batch, pointer, sum, to).await {
        Ok(copied) => Ok(copied),
        Err(BlockError::Fabric(error)) => Err(error.into()),
        Err(BlockError::Region(error)) => Err(LeafError::Region(error)),
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
        (addr, image): (RemoteAddr, &[u64]),
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
                    if !fetch(access, batch, (addr, reference), &mut outside).await? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    async fn finish<E: Endpoint>(
        access: &PageAccess<'_, E>,
        batch: &mut Batch,
        (addr, buffer): (RemoteAddr, &mut PageBuffer),
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
                        .leaves_out(ProtocolCheck::TornSplitIsFinished)
                    {
                        repair.high = None;
                    }
                    return Ok(repair.apply(buffer));
                }
                Err(PageError::Unread(reference)) => {
                    fetch_or_damaged(access, batch, (addr, reference), &mut outside).await?;
                }
                Err(PageError::LinkToTheLeft) => {
                    return Err(access.contradiction(addr, Contradiction::LinkToTheLeft));
                }
                Err(_) => {
                    let table = access.table;
                    return Err(LeafError::Damaged { addr, table });
                }
            }
        }
    }
}

/// [`fetch`] of a string that is there as long as the page is.
async fn fetch_or_damaged<E: Endpoint>(
    access: &PageAccess<'_, E>,
    batch: &mut Batch,
    at: (RemoteAddr, Reference),
    outside: &mut Outside,
) -> Result<(), LeafError> {
    if fetch(access, batch, at, outside).await? {
        return Ok(());
    }
    Err(LeafError::Damaged {
        addr: at.0,
        table: access.table,
    })
}

impl PageBuffer {
    /// A buffer to be read into: no page.
    pub(crate) fn blank(geometry: PageGeometry) -> Self {
        let words = [0; IMAGE_SIZE_WORDS_MAX];
        Self::copy_of(PageImage::new(geometry, &words))
    }
}

impl Repair {
    /// Changes a torn page's buffer as it has to be; the words to be written before the state, and
    /// where.
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
