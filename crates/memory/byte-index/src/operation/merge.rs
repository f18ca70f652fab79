//! Neighbours that become one page (BR6): a step of whoever retrains.

use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_leaf::Critical;
use farleaf_page::{Merge, Outside, PageBuffer, Source, plan_merge};
use farleaf_region::catalog::{self, CatalogEntry};
use farleaf_types::{NodeId, RemoteAddr, WORD_SIZE_BYTES};

use super::ByteIndex;
use super::provide::Lacking;
use super::room::{Given, Unlinked};
use super::walked::WalkedPage;
use super::write::Step;
use crate::error::ByteIndexError;

/// A page is underfull when a delete leaves not more than three of so many parts of it used: two
/// of them have room in one.
const UNDERFULL_EIGHTHS: usize = 3;
/// Pages become one that has two of so many parts unused at least.
const MERGED_EIGHTHS_MAX: usize = 6;

/// What became of a step.
pub(crate) enum Merged {
    /// There is one page now.
    Done(Box<WalkedPage>),
    /// Both have no room in one page, or there is none for it on their node (M4).
    Not,
    /// Somebody holds the left one, or they are not as they were seen.
    Hindered,
    /// There is no room for a new page or its strings.
    NoRoom(ByteIndexError),
}

/// What became of it with both pages locked.
enum Locked {
    /// There is a page that takes so many bytes.
    Done(RemoteAddr, usize),
    TooFull,
    NotAsSeen,
    Lacking(Lacking),
}

impl<E: Endpoint> ByteIndex<'_, E> {
    /// Whether a delete has made a page underfull that had so many bytes used before.
    pub(super) fn becomes_underfull(&self, before_bytes: usize, after_bytes: usize) -> bool {
        let most = self.access.geometry.page_size_bytes() * UNDERFULL_EIGHTHS / 8;
        before_bytes > most && after_bytes <= most
    }

    /// Whether two neighbours seem to have room in one page, and lie on one node (M4).
    pub(crate) fn is_pair(&self, left: &WalkedPage, right: &WalkedPage) -> bool {
        let most = self.merged_size_bytes_max();
        let size_bytes = left.used_size_bytes + right.used_size_bytes;
        let is_together = left.addr.node() == right.addr.node();
        is_together && size_bytes <= most && !right.stays
    }

    fn merged_size_bytes_max(&self) -> usize {
        self.access.geometry.page_size_bytes() * MERGED_EIGHTHS_MAX / 8
    }

    /// BR6: makes two neighbours one page, of which `after` is the right one's link. It waits for
    /// the right one's lock while it holds none, and for the left one's not at all. Three round
    /// trips, and one for each string of theirs that lies outside.
    ///
    /// # Errors
    /// Pages are damaged, or the fabric failed.
    pub(crate) async fn merge_pair(
        &self,
        batch: &mut Batch,
        entry: &CatalogEntry,
        (left, right, after): (&WalkedPage, &WalkedPage, RemoteAddr),
    ) -> Result<Merged, ByteIndexError> {
        let (node, mut is_elsewhere) = (right.addr.node(), false);
        loop {
            // Nothing is leased while something is locked (R8).
            match self.provide_page(node).await {
                Ok(true) => {}
                Ok(false) => return Ok(Merged::Not),
                Err(error) if error.is_full() => return Ok(Merged::NoRoom(error)),
                Err(error) => return Err(error),
            }
            let at = (entry, after, is_elsewhere);
            match self.try_merge(batch, at, [left.addr, right.addr]).await? {
                Locked::Done(place, size_bytes) => {
                    let made = left.merged_with(right, (place, size_bytes));
                    return Ok(Merged::Done(Box::new(made)));
                }
                Locked::Lacking(lacking) => {
                    let leased = self.lease_for_page(node, lacking, &mut is_elsewhere);
                    match leased.await {
                        Err(error) if error.is_full() => return Ok(Merged::NoRoom(error)),
                        leased => leased?,
                    }
                }
                Locked::TooFull => return Ok(Merged::Not),
                Locked::NotAsSeen => return Ok(Merged::Hindered),
            }
        }
    }

    /// Sees to it that there is a leased page on this node; false: there is none but elsewhere.
    async fn provide_page(&self, node: NodeId) -> Result<bool, ByteIndexError> {
        let leases = &self.state.leases;
        for is_last in [false, true] {
            // What waits for a lock may be cut off: nothing is taken before.
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

    /// Locks both, and merges them if that can be done at once; else nothing is locked any more.
    async fn try_merge(
        &self,
        batch: &mut Batch,
        at: (&CatalogEntry, RemoteAddr, bool),
        addrs: [RemoteAddr; 2],
    ) -> Result<Locked, ByteIndexError> {
        let broken = &*self.state.broken;
        let mut sources = addrs.map(|addr| Source {
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
                return Ok(Locked::NotAsSeen);
            }
            Err(error) => {
                return Err(self.fail_merge(batch, critical, &sources[1..], error).await);
            }
        }
        let leases = &self.state.leases;
        let place = leases.take_for(addrs[1].node());
        let place = place.expect("provided before anything was locked");
        let pages = Unlinked::one(leases);
        let merged = self
            .merge_locked(batch, at, &mut sources, (place, &pages))
            .await;
        // Where it is not known whether the new page is linked to, the lease is the sweep's.
        let is_unlinked = match &merged {
            Ok(locked) => !matches!(locked, Locked::Done(..)),
            Err(error) => error.fabric_failure().is_none() || error.lost_node().is_some(),
        };
        if is_unlinked {
            pages.put_back(&self.access, place);
        }
        match merged {
            Ok(Locked::Done(place, size_bytes)) => {
                critical.passed();
                Ok(Locked::Done(place, size_bytes))
            }
            Ok(locked) => {
                self.give_locks_back(batch, &sources).await?;
                critical.passed();
                Ok(locked)
            }
            Err(error) => Err(self.fail_merge(batch, critical, &sources, error).await),
        }
    }

    /// M1: the left one's lock, too, if nobody has it.
    async fn lock_left(
        &self,
        batch: &mut Batch,
        left: &mut Source,
    ) -> Result<bool, ByteIndexError> {
        let broken = &*self.state.broken;
        if self.leaves_out(ProtocolCheck::MergedLeavesAreLocked) {
            left.page = self.access.read_intact(batch, left.addr, broken).await?;
            return Ok(true);
        }
        let locked = self
            .access
            .lock_if_free(batch, left.addr, &mut left.page, broken);
        Ok(locked.await?)
    }

    /// M2 and M3, with both locked.
    async fn merge_locked(
        &self,
        batch: &mut Batch,
        (entry, after, is_elsewhere): (&CatalogEntry, RemoteAddr, bool),
        sources: &mut [Source; 2],
        (place, pages): (RemoteAddr, &Unlinked<'_>),
    ) -> Result<Locked, ByteIndexError> {
        let [left, right] = &*sources;
        let (left_link, link) = (left.page.image().link(), right.page.image().link());
        if left_link != right.addr || link.is_retired() || link != after {
            return Ok(Locked::NotAsSeen);
        }
        let before = [left.page.clone(), right.page.clone()];
        let at = [left.addr, right.addr];
        let mut outside = Outside::new();
        let planned = self.plan_pair(batch, at, &before, &mut outside).await?;
        let Some(Merge { mut page, released }) = planned else {
            return Ok(Locked::TooFull);
        };
        let size_bytes = page.size_words() * WORD_SIZE_BYTES as usize;
        if size_bytes > self.merged_size_bytes_max() {
            return Ok(Locked::TooFull);
        }
        let drafts = [Some((place, &mut page)), None];
        let given: Given<'_> = match self.give_all(drafts, is_elsewhere)? {
            Ok(given) => given,
            Err(Step::LeaseBlocks(lacking)) => return Ok(Locked::Lacking(lacking)),
            Err(_) => unreachable!("strings lack nothing but blocks"),
        };
        let mut made = page.build(link);
        batch.clear();
        let first = entry.record.first_leaf.place();
        if at.contains(&first) {
            // R1: before the first page is retired, and under its lock, which a load needs.
            let pending = catalog::pending_root_addr(self.access.layout, entry.index);
            batch.write_word(pending, 0);
        }
        self.post_given(batch, place.node(), &given).await?;
        let unlinked = self.post_unlinks(batch, (at[0], &*released)).await?;
        self.change(place)
            .take_over(batch, self.access.owner, &mut made, sources);
        given.commit();
        self.access.endpoint.execute(batch).await?;
        pages.note_linked();
        self.retire_blocks(unlinked);
        Ok(Locked::Done(place, size_bytes))
    }

    /// What takes their place; `None`: they have no room in one page.
    async fn plan_pair<'p>(
        &self,
        batch: &mut Batch,
        at: [RemoteAddr; 2],
        pages: &'p [PageBuffer; 2],
        outside: &mut Outside,
    ) -> Result<Option<Merge<'p>>, ByteIndexError> {
        for (addr, page) in at.into_iter().zip(pages) {
            if !self.fetch_strings(batch, (addr, page), outside).await? {
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
        sources: &[Source],
    ) -> Result<(), ByteIndexError> {
        batch.clear();
        for source in sources {
            self.access.post_unlock(batch, source.addr);
        }
        Ok(self.access.endpoint.execute(batch).await?)
    }

    /// Unless the fabric has failed, nothing has been changed, and these locks are given back. U4:
    /// where the pages are lost with their node, so are the locks; where another node is, on which
    /// strings of theirs lie, nothing has been changed either.
    #[cold]
    async fn fail_merge(
        &self,
        batch: &mut Batch,
        critical: Critical<'_>,
        sources: &[Source],
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
