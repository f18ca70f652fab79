//! Merges two neighbors into one page: a step of a retraining (see
//! [`retrain`](crate::strings::retrain)).

use farleaf_base::{NodeId, RemoteAddr, WORD_SIZE_BYTES};
use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_leaf::strings::{Merge, MoveSource, Outside, PageBuffer, plan_merge};
use farleaf_leaf::words::Critical;
use farleaf_pool::catalog::{self, CatalogEntry};

use super::ByteIndex;
use super::provide::MissingPieces;
use super::splitting::{NewPageBlocks, UnlinkedPages};
use super::walked::WalkedPage;
use super::write::WriteStep;
use crate::strings::error::ByteIndexError;

/// Maximum used part of an underfull page after a delete, in eighths: two such pages fit into one.
const UNDERFULL_EIGHTHS: usize = 3;
/// Maximum used part of a merged page, in eighths: two eighths stay unused.
const MERGED_EIGHTHS_MAX: usize = 6;

/// Result of a merge step.
pub(crate) enum MergeResult {
    /// The two pages are one now.
    Done(Box<WalkedPage>),
    /// The records do not fit into one page, or the pages lie on different nodes or there is no
    /// free page on theirs.
    Not,
    /// The left page is locked by another session, or a page has changed since the walk.
    Hindered,
    /// There is no free space for a new page or its strings.
    NoSpace(ByteIndexError),
}

/// Two neighbors to be merged.
struct PagePair<'a> {
    entry: &'a CatalogEntry,
    addrs: [RemoteAddr; 2],
    /// Link of the right page, as the walk has seen it.
    after: RemoteAddr,
    /// Whether the new page's strings may be placed on any node because the page's node is full.
    is_elsewhere: bool,
}

/// Result of an attempt with both pages locked.
enum LockedMergeResult {
    /// Address of the merged page and its used bytes.
    Done(RemoteAddr, usize),
    TooFull,
    NotAsSeen,
    MissingPieces(MissingPieces),
}

impl<E: Endpoint> ByteIndex<'_, E> {
    /// Returns whether a delete that reduced the used bytes from `before_bytes` has made a page
    /// underfull.
    pub(super) fn becomes_underfull(&self, before_bytes: usize, after_bytes: usize) -> bool {
        let most = self.access.geometry.page_size_bytes() * UNDERFULL_EIGHTHS / 8;
        before_bytes > most && after_bytes <= most
    }

    /// Returns whether two neighbors probably fit into one page and lie on one node.
    pub(crate) fn is_pair(&self, left: &WalkedPage, right: &WalkedPage) -> bool {
        let most = self.merged_size_bytes_max();
        let size_bytes = left.used_size_bytes + right.used_size_bytes;
        let is_together = left.addr.node() == right.addr.node();
        is_together && size_bytes <= most && !right.stays
    }

    fn merged_size_bytes_max(&self) -> usize {
        self.access.geometry.page_size_bytes() * MERGED_EIGHTHS_MAX / 8
    }

    /// Merges two neighbors into one page; `after` is the right one's link. Waits for the right
    /// page's lock while it holds none, and does not wait for the left one's. Costs three round
    /// trips, and one for each string outside the pages.
    ///
    /// # Errors
    /// Pages are corrupted, or the fabric failed.
    pub(crate) async fn merge_pair(
        &self,
        batch: &mut Batch,
        entry: &CatalogEntry,
        left: &WalkedPage,
        right: &WalkedPage,
        after: RemoteAddr,
    ) -> Result<MergeResult, ByteIndexError> {
        let node = right.addr.node();
        let mut pair = PagePair {
            entry,
            addrs: [left.addr, right.addr],
            after,
            is_elsewhere: false,
        };
        loop {
            // Leases are taken before any page is locked, so that operations wait for at most one
            // step.
            match self.provide_page(node).await {
                Ok(true) => {}
                Ok(false) => return Ok(MergeResult::Not),
                Err(error) if error.is_full() => return Ok(MergeResult::NoSpace(error)),
                Err(error) => return Err(error),
            }
            match self.try_merge(batch, &pair).await? {
                LockedMergeResult::Done(place, size_bytes) => {
                    let made = left.merged_with(right, place, size_bytes);
                    return Ok(MergeResult::Done(Box::new(made)));
                }
                LockedMergeResult::MissingPieces(lacking) => {
                    let leased = self.lease_for_page(node, lacking, &mut pair.is_elsewhere);
                    match leased.await {
                        Err(error) if error.is_full() => return Ok(MergeResult::NoSpace(error)),
                        leased => leased?,
                    }
                }
                LockedMergeResult::TooFull => return Ok(MergeResult::Not),
                LockedMergeResult::NotAsSeen => return Ok(MergeResult::Hindered),
            }
        }
    }

    /// Ensures that a leased page is available on this node; returns false if there are free pages
    /// only on other nodes.
    async fn provide_page(&self, node: NodeId) -> Result<bool, ByteIndexError> {
        let leases = &self.state.leases;
        for is_last in [false, true] {
            // Waiting for a lock may be interrupted, so take nothing before it.
            if let Some(place) = leases.take_for(node) {
                leases.put_back(&self.access, place);
                return Ok(place.node() == node);
            }
            if !is_last {
                self.lease_pages(node).await?;
            }
        }
        Ok(false)
    }

    /// Locks both pages and merges them if that is possible at once; otherwise leaves nothing
    /// locked.
    async fn try_merge(
        &self,
        batch: &mut Batch,
        pair: &PagePair<'_>,
    ) -> Result<LockedMergeResult, ByteIndexError> {
        let addrs = pair.addrs;
        let broken = &*self.state.broken;
        let mut sources = addrs.map(|addr| MoveSource {
            addr,
            page: self.access.blank(),
        });
        let [left, right] = &mut sources;
        self.access
            .lock(batch, right.addr, None, &mut right.page, broken)
            .await?;
        let critical = Critical::enter(broken);
        match self.lock_left(batch, left).await {
            Ok(true) => {}
            Ok(false) => {
                self.access.unlock(batch, addrs[1], broken).await?;
                critical.passed();
                return Ok(LockedMergeResult::NotAsSeen);
            }
            Err(error) => {
                return Err(self.fail_merge(batch, critical, &sources[1..], error).await);
            }
        }
        let leases = &self.state.leases;
        let place = leases.take_for(addrs[1].node());
        let place = place.expect("provided before anything was locked");
        let pages = UnlinkedPages::one(leases);
        let merged = self
            .merge_locked(batch, pair, &mut sources, place, &pages)
            .await;
        // If it is unknown whether the new page is linked to, leave the lease to the sweep.
        let is_unlinked = match &merged {
            Ok(locked) => !matches!(locked, LockedMergeResult::Done(..)),
            Err(error) => error.fabric_failure().is_none() || error.lost_node().is_some(),
        };
        if is_unlinked {
            pages.put_back(&self.access, place);
        }
        match merged {
            Ok(LockedMergeResult::Done(place, size_bytes)) => {
                critical.passed();
                Ok(LockedMergeResult::Done(place, size_bytes))
            }
            Ok(locked) => {
                self.give_locks_back(batch, &sources).await?;
                critical.passed();
                Ok(locked)
            }
            Err(error) => Err(self.fail_merge(batch, critical, &sources, error).await),
        }
    }

    /// Locks the left page too, if it is free.
    async fn lock_left(
        &self,
        batch: &mut Batch,
        left: &mut MoveSource,
    ) -> Result<bool, ByteIndexError> {
        let broken = &*self.state.broken;
        if self.skips_check(ProtocolCheck::MergedLeavesAreLocked) {
            left.page = self.access.read_intact(batch, left.addr, broken).await?;
            return Ok(true);
        }
        let locked = self
            .access
            .lock_if_free(batch, left.addr, &mut left.page, broken);
        Ok(locked.await?)
    }

    /// Writes the merged page and retires both sources, which are locked.
    async fn merge_locked(
        &self,
        batch: &mut Batch,
        pair: &PagePair<'_>,
        sources: &mut [MoveSource; 2],
        place: RemoteAddr,
        pages: &UnlinkedPages<'_>,
    ) -> Result<LockedMergeResult, ByteIndexError> {
        let [left, right] = &*sources;
        let (left_link, link) = (left.page.image().link(), right.page.image().link());
        if left_link != right.addr || link.is_retired() || link != pair.after {
            return Ok(LockedMergeResult::NotAsSeen);
        }
        let before = [left.page.clone(), right.page.clone()];
        let at = pair.addrs;
        let mut outside = Outside::new();
        let planned = self.plan_pair(batch, at, &before, &mut outside).await?;
        let Some(Merge { mut page, released }) = planned else {
            return Ok(LockedMergeResult::TooFull);
        };
        let size_bytes = page.size_words() * WORD_SIZE_BYTES as usize;
        if size_bytes > self.merged_size_bytes_max() {
            return Ok(LockedMergeResult::TooFull);
        }
        let drafts = [Some((place, &mut page)), None];
        let given: NewPageBlocks<'_> = match self.give_all(drafts, pair.is_elsewhere)? {
            Ok(given) => given,
            Err(WriteStep::LeaseBlocks(lacking)) => {
                return Ok(LockedMergeResult::MissingPieces(lacking));
            }
            Err(_) => unreachable!("strings lack nothing but blocks"),
        };
        let mut made = page.build(link);
        batch.clear();
        let first = pair.entry.record.first_leaf.place();
        if at.contains(&first) {
            // The pending root is cleared before the first page is retired, and under its lock,
            // which a load needs.
            let pending = catalog::pending_root_addr(self.access.layout, pair.entry.index);
            batch.write_word(pending, 0);
        }
        self.post_new_page_blocks(batch, place.node(), &given)
            .await?;
        let unlinked = self.post_unlinks(batch, at[0], &released).await?;
        self.change(place)
            .take_over(batch, self.access.owner, &mut made, sources);
        given.commit();
        self.access.endpoint.execute(batch).await?;
        pages.note_linked();
        self.retire_blocks(unlinked);
        Ok(LockedMergeResult::Done(place, size_bytes))
    }

    /// Plans the page that replaces both; `None` if they do not fit into one.
    async fn plan_pair<'p>(
        &self,
        batch: &mut Batch,
        at: [RemoteAddr; 2],
        pages: &'p [PageBuffer; 2],
        outside: &mut Outside,
    ) -> Result<Option<Merge<'p>>, ByteIndexError> {
        for (addr, page) in at.into_iter().zip(pages) {
            if !self.fetch_strings(batch, addr, page, outside).await? {
                return Err(self.damaged(addr));
            }
        }
        let images = pages.each_ref().map(PageBuffer::image);
        let planned = self.with_strings_locked(batch, at[0], outside, |outside| {
            plan_merge(&images, outside)
        });
        planned.await
    }

    async fn give_locks_back(
        &self,
        batch: &mut Batch,
        sources: &[MoveSource],
    ) -> Result<(), ByteIndexError> {
        batch.clear();
        for source in sources {
            self.access.post_unlock(batch, source.addr);
        }
        Ok(self.access.endpoint.execute(batch).await?)
    }

    /// Releases the locks if the cause is not the fabric; nothing has changed then. If the pages'
    /// node is lost, the locks are lost with it. If another node with strings of the pages is lost,
    /// nothing has changed either.
    #[cold]
    async fn fail_merge(
        &self,
        batch: &mut Batch,
        critical: Critical<'_>,
        sources: &[MoveSource],
        error: ByteIndexError,
    ) -> ByteIndexError {
        let lost = error.lost_node();
        let is_unchanged = error.fabric_failure().is_none() || lost.is_some();
        let is_over = lost == Some(sources[0].addr.node())
            || is_unchanged && self.give_locks_back(batch, sources).await.is_ok();
        if is_over {
            critical.passed();
        }
        error
    }
}
