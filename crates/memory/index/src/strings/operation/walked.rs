//! Pages as a retraining sees them, and links past retired pages (see
//! [`retrain`](crate::strings::retrain)).

use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_leaf::strings::{Fence, Outside, PageError};
use farleaf_leaf::words::recovery::RETIRED_HOP_COUNT_MAX;
use farleaf_leaf::words::{Contradiction, Critical, LeafError};

use super::ByteIndex;
use crate::strings::error::ByteIndexError;

/// Page as a retraining sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WalkedPage {
    /// Address of the page.
    pub(crate) addr: RemoteAddr,
    /// Key on which models are trained: the smallest key that the page can contain; for the table's
    /// first page, its first key, if any.
    pub(crate) fence: Vec<u8>,
    /// First key of the page.
    pub(crate) first: Option<Vec<u8>>,
    /// Last key of the previous page.
    pub(crate) last_before: Option<Vec<u8>>,
    /// Number of records.
    pub(crate) record_count: u64,
    /// Used bytes of the page.
    pub(crate) used_size_bytes: usize,
    /// Retired pages through which the previous page links to this one, in order.
    pub(crate) retired: Vec<RemoteAddr>,
    /// Whether the page stays beside its left neighbor, because both do not fit into one page, or
    /// there is no free page for them.
    pub(crate) stays: bool,
    begins_table: bool,
}

/// Adjacent pages of a walk.
#[derive(Clone, Debug)]
pub(crate) struct PageWalk {
    /// Page to the left of the first one; `None` if there is none or it is not known.
    pub(crate) left: Option<RemoteAddr>,
    pub(crate) pages: Vec<WalkedPage>,
    /// Link of the last page.
    pub(crate) after: RemoteAddr,
}

impl WalkedPage {
    /// Returns whether the page is the table's first one.
    pub(crate) const fn begins_table(&self) -> bool {
        self.begins_table
    }

    /// Returns the page that replaces this page and the one to the right of it, as far as known.
    pub(super) fn merged_with(
        &self,
        right: &Self,
        addr: RemoteAddr,
        used_size_bytes: usize,
    ) -> Self {
        let first = self.first.clone().or_else(|| right.first.clone());
        let fence = match &first {
            Some(first) if self.begins_table => first.clone(),
            _ => self.fence.clone(),
        };
        Self {
            addr,
            fence,
            first,
            last_before: self.last_before.clone(),
            record_count: self.record_count + right.record_count,
            used_size_bytes,
            retired: Vec::new(),
            stays: false,
            begins_table: self.begins_table,
        }
    }
}

impl<E: Endpoint> ByteIndex<'_, E> {
    /// Returns the pages from the one that covers `from` to where `end` begins, or to the last one.
    /// Follows the links from a page that is not to the right of the first one. Costs a round trip
    /// for each page, and one for each string outside it.
    ///
    /// # Errors
    /// Pages are corrupted, or the fabric failed.
    pub(crate) async fn pages_between(
        &self,
        batch: &mut Batch,
        start: RemoteAddr,
        from: &[u8],
        end: Option<&[u8]>,
    ) -> Result<PageWalk, ByteIndexError> {
        let mut walked = PageWalk {
            left: None,
            pages: Vec::new(),
            after: RemoteAddr::NULL,
        };
        let (mut addr, mut retired, mut stale_count) = (start, Vec::new(), 0);
        let mut last_before = None;
        loop {
            let broken = &self.state.broken;
            let page = self.access.read_intact(batch, addr, broken).await?;
            let link = page.image().link();
            if link.is_retired() {
                if link.place().is_null() {
                    let table = self.access.table;
                    return Err(LeafError::TableDropped { table }.into());
                }
                retired.push(addr);
                addr = link.place();
                let mut hop_count = retired.len() as u32;
                self.note_hop(addr, &mut hop_count)?;
                continue;
            }
            let mut outside = Outside::new();
            let read = self
                .with_strings(batch, addr, &mut outside, |outside| {
                    let image = page.image();
                    let slots = image.sorted_slots(outside)?;
                    let key = |slot: Option<&usize>| {
                        let key = slot.map(|slot| image.whole_key(*slot, outside));
                        key.transpose()
                    };
                    let ends = (key(slots.first())?, key(slots.last())?);
                    let low = image.whole_fence(image.low(), outside)?;
                    Ok::<_, PageError>((ends, low, slots.len()))
                })
                .await?;
            let Some(((first, last), low, record_count)) = read else {
                self.note_stale(addr, &mut stale_count)?;
                continue;
            };
            stale_count = 0;
            let least = low.least_key().unwrap_or_default();
            if end.is_some_and(|end| *end <= *least) && !walked.pages.is_empty() {
                return Ok(walked);
            }
            if *least <= *from {
                // The previous page does not belong to the range.
                walked.left = walked.pages.pop().map(|page| page.addr);
            }
            walked.pages.push(WalkedPage {
                addr,
                fence: fence_of(&low, first.as_ref(), least),
                first,
                last_before: last_before.take(),
                record_count: record_count as u64,
                used_size_bytes: page.image().used_size_bytes(),
                retired: core::mem::take(&mut retired),
                stays: false,
                begins_table: low.is_start(),
            });
            last_before = last;
            walked.after = link;
            if link.is_null() {
                return Ok(walked);
            }
            addr = link.place();
        }
    }

    /// Replaces the link to a retired page by a link to its live successor, under the lock of the
    /// linking page: `left`, or a page split from it since. Costs two round trips. Returns false if
    /// none of these pages links to the retired one.
    ///
    /// # Errors
    /// Pages are corrupted, or the fabric failed.
    pub(crate) async fn relink(
        &self,
        batch: &mut Batch,
        left: RemoteAddr,
        retired: RemoteAddr,
        to: RemoteAddr,
    ) -> Result<bool, ByteIndexError> {
        if self.skips_check(ProtocolCheck::LinksAreRedirected) {
            return Ok(true);
        }
        let (mut addr, mut hop_count) = (left, 0);
        while addr != to && !addr.is_null() {
            let broken = &*self.state.broken;
            let mut page = self.access.blank();
            let lock = self.access.lock(batch, addr, None, &mut page, broken);
            lock.await?;
            let critical = Critical::enter(broken);
            let link = page.image().link();
            let is_it = !link.is_retired() && link == retired;
            batch.clear();
            if is_it {
                self.change(addr).relink(batch, &mut page, to);
            } else {
                self.access.post_unlock(batch, addr);
            }
            let executed = self.access.endpoint.execute(batch).await;
            let executed = executed.map_err(ByteIndexError::from);
            if executed.is_ok()
                || executed
                    .as_ref()
                    .err()
                    .and_then(ByteIndexError::lost_node)
                    .is_some()
            {
                critical.passed();
            }
            executed?;
            if is_it {
                return Ok(true);
            }
            addr = link.place();
            self.note_hop(addr, &mut hop_count)?;
        }
        Ok(false)
    }

    /// Counts a page on a walk.
    ///
    /// # Errors
    /// The walk does not end.
    fn note_hop(&self, addr: RemoteAddr, hop_count: &mut u32) -> Result<(), ByteIndexError> {
        *hop_count += 1;
        if *hop_count > RETIRED_HOP_COUNT_MAX {
            let what = Contradiction::RetiredInCycle;
            return Err(self.access.contradiction(addr, what).into());
        }
        Ok(())
    }

    /// Links the table's first page, which keeps its address forever, to the page at the low end
    /// once it is retired.
    ///
    /// # Errors
    /// Fails like [`relink`](Self::relink).
    pub(crate) async fn relink_first(
        &self,
        batch: &mut Batch,
        first: RemoteAddr,
        to: RemoteAddr,
    ) -> Result<(), ByteIndexError> {
        let broken = &*self.state.broken;
        let mut page = self.access.blank();
        let lock = self.access.lock(batch, first, None, &mut page, broken);
        lock.await?;
        let critical = Critical::enter(broken);
        batch.clear();
        if page.image().is_retired() && page.image().link().place() != to {
            self.change(first).relink(batch, &mut page, to);
        } else {
            self.access.post_unlock(batch, first);
        }
        self.access.endpoint.execute(batch).await?;
        critical.passed();
        Ok(())
    }
}

fn fence_of(low: &Fence, first: Option<&Vec<u8>>, least: Vec<u8>) -> Vec<u8> {
    match first {
        Some(first) if low.is_start() => first.clone(),
        _ => least,
    }
}
