//! Full pages: split in place, or replaced by new ones.

use core::cell::Cell;

use crate::hint::Hint;
use farleaf_base::{NodeId, RemoteAddr};
use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_leaf::blobs::{FatPointer, Role, SizeClass};
use farleaf_leaf::strings::format::PageAccess;
use farleaf_leaf::strings::{
    Fence, InPlace, MoveSource, PageBuffer, PageDraft, Reference, Rewrite, SplitRequest,
    StringPlace, plan_rewrite,
};
use farleaf_leaf::words::LeafLeases;

use super::blocks::{TakeResult, TakenBlock, class_of};
use super::provide::{MissingPieces, PageLockState, Provision, record_of};
use super::write::{LockedPage, RecordWrite, WriteStep};
use super::{ByteIndex, ByteIndexState, Rare};
use crate::strings::error::ByteIndexError;

/// New page and the start of its range.
struct NewPage {
    addr: RemoteAddr,
    low: Fence,
}

/// Pages that a change has taken and that nothing links to yet. If the change fails (the pages are
/// lost, the session is broken, or the page is corrupted), they are no longer awaited.
pub(super) struct UnlinkedPages<'a> {
    leases: &'a LeafLeases,
    count: Cell<u32>,
}

impl<'a> UnlinkedPages<'a> {
    /// Registers one taken page.
    pub(super) fn one(leases: &'a LeafLeases) -> Self {
        let count = Cell::new(1);
        Self { leases, count }
    }

    /// Registers another taken page.
    fn note_taken(&self) {
        self.count.update(|count| count + 1);
    }

    /// Removes a page that is linked to now.
    pub(super) fn note_linked(&self) {
        self.count.update(|count| count - 1);
        self.leases.note_linked();
    }

    /// Returns a page to the leases.
    pub(super) fn put_back<E: Endpoint>(&self, access: &PageAccess<'_, E>, page: RemoteAddr) {
        self.count.update(|count| count - 1);
        self.leases.put_back(access, page);
    }
}

impl Drop for UnlinkedPages<'_> {
    fn drop(&mut self) {
        for _ in 0..self.count.get() {
            self.leases.note_linked();
        }
    }
}

/// Outside strings of new pages, and the blocks taken for them. The blocks are returned unless
/// reachable pages refer to them.
pub(super) struct NewPageBlocks<'s> {
    taken: Vec<(Role, Vec<u8>, Vec<u8>, TakenBlock)>,
    state: &'s ByteIndexState,
}

impl NewPageBlocks<'_> {
    /// Marks the batch that links to the new pages as about to be executed.
    pub(super) fn commit(mut self) {
        self.taken.clear();
    }
}

impl Drop for NewPageBlocks<'_> {
    fn drop(&mut self) {
        // If a node is lost or the session is broken, the store is closed soon.
        for (.., taken) in self.taken.drain(..) {
            self.state.blocks.put_back(taken.pointer);
        }
    }
}

impl<E: Endpoint> ByteIndex<'_, E> {
    /// Splits or replaces a locked page so that a record fits; puts the record, if that is possible
    /// at once. Returns `None` on success, else the step that is needed first. Releases the lock.
    pub(super) async fn split_or_replace(
        &self,
        batch: &mut Batch,
        at: LockedPage<'_>,
        writing: &RecordWrite<'_>,
        provision: &mut Provision,
    ) -> Result<Option<WriteStep>, ByteIndexError> {
        let Some(sibling) = self.state.leases.take_for(at.hint.addr.node()) else {
            self.give_lock_back(batch, at.hint).await?;
            return Ok(Some(WriteStep::LeasePages));
        };
        let pages = UnlinkedPages::one(&self.state.leases);
        self.split(batch, at, writing, provision, sibling, &pages)
            .await
    }

    /// Does the work of [`split_or_replace`](Self::split_or_replace) with a page for the sibling.
    async fn split(
        &self,
        batch: &mut Batch,
        mut at: LockedPage<'_>,
        writing: &RecordWrite<'_>,
        provision: &mut Provision,
        sibling: RemoteAddr,
        pages: &UnlinkedPages<'_>,
    ) -> Result<Option<WriteStep>, ByteIndexError> {
        let hint = at.hint;
        let node = hint.addr.node();
        // If the counter lies on another node, that node may be lost while the split counts.
        let announcement = self.announcement(hint.parent);
        let announcement = announcement.filter(|it| it.synonym_table().node() == node);
        let before = at.page.clone();
        let request = SplitRequest {
            record: record_of(before.image(), writing, provision),
            sibling,
            counter: announcement.map(|announcement| announcement.counter),
        };
        let change = self.change(hint.addr);
        let planned = self
            .with_strings_locked(batch, hint.addr, &mut at.outside, |outside| {
                change.plan_split(&before, &request, outside)
            })
            .await?;
        let InPlace::Split(plan) = planned else {
            let rewrite: Rare<'_, _> =
                Box::pin(self.rewrite(batch, at, writing, provision, sibling, pages));
            return rewrite.await;
        };
        batch.clear();
        if sibling.node() != node && !self.skips_check(ProtocolCheck::SiblingIsCompleteElsewhere) {
            // LEAF-3: the sibling is complete before anything links to it.
            change.write_sibling_of(batch, &plan);
            self.access.endpoint.execute(batch).await?;
            batch.clear();
        }
        self.post_provision(batch, writing, provision)?;
        let unlinked = self.post_unlinks(batch, hint.addr, plan.released()).await?;
        if sibling.node() != node && self.skips_check(ProtocolCheck::SiblingIsCompleteElsewhere) {
            change.write_sibling_of(batch, &plan);
        }
        let split = change.split(batch, at.page, &plan);
        provision.commit();
        self.access.endpoint.execute(batch).await?;
        provision.lock = PageLockState::Released;
        pages.note_linked();
        self.retire_blocks(unlinked);
        let made = NewPage {
            addr: sibling,
            low: split.sibling_low,
        };
        self.learn_made(hint, &made);
        if let (Some(announcement), Some(counter)) = (announcement, split.counter) {
            let slot = batch.previous(counter);
            self.announce(batch, announcement, slot, &[sibling]).await?;
        } else {
            self.count_and_announce(batch, hint.parent, &[sibling])
                .await?;
        }
        Ok(None)
    }

    /// Replaces the page by one or two new ones.
    async fn rewrite(
        &self,
        batch: &mut Batch,
        at: LockedPage<'_>,
        writing: &RecordWrite<'_>,
        provision: &mut Provision,
        left_addr: RemoteAddr,
        pages: &UnlinkedPages<'_>,
    ) -> Result<Option<WriteStep>, ByteIndexError> {
        let (hint, before, mut outside) = (at.hint, &*at.page, at.outside);
        let record = record_of(before.image(), writing, provision);
        // The fences of a new page are built from whole keys, which needs all strings outside the
        // page.
        if !self
            .fetch_strings(batch, hint.addr, before, &mut outside)
            .await?
        {
            return Err(self.damaged(hint.addr));
        }
        let planned = self
            .with_strings_locked(batch, hint.addr, &mut outside, |outside| {
                plan_rewrite(before.image(), Some(&record), outside)
            })
            .await?;
        let Rewrite {
            mut left,
            mut right,
            is_put,
            released,
        } = planned;
        let right_addr = match right.as_ref() {
            None => None,
            right => {
                let taken = right.and_then(|_| self.state.leases.take_for(hint.addr.node()));
                if taken.is_none() {
                    pages.put_back(&self.access, left_addr);
                    self.give_lock_back(batch, hint).await?;
                    return Ok(Some(WriteStep::LeasePages));
                }
                pages.note_taken();
                taken
            }
        };
        let drafts = [Some((left_addr, &mut left)), right_addr.zip(right.as_mut())];
        let given = match self.give_all(drafts, provision.is_elsewhere)? {
            Ok(given) => given,
            Err(missing) => {
                for addr in [Some(left_addr), right_addr].into_iter().flatten() {
                    pages.put_back(&self.access, addr);
                }
                self.give_lock_back(batch, hint).await?;
                return Ok(Some(missing));
            }
        };
        let link = before.image().link().place();
        let replacing = PageReplacement {
            hint,
            left: (left_addr, left.build(link)),
            right: right_addr.zip(right.as_ref().map(|right| right.build(link))),
            is_put,
        };
        batch.clear();
        if is_put {
            self.post_provision(batch, writing, provision)?;
        }
        let replaced = self.replace(batch, before, replacing, given, &released, provision);
        let unlinked = replaced.await?;
        self.retire_blocks(unlinked);
        self.note_new_page(hint, pages, left_addr, &left);
        if let (Some(addr), Some(right)) = (right_addr, &right) {
            self.note_new_page(hint, pages, addr, right);
        }
        let made: Vec<_> = core::iter::once(left_addr).chain(right_addr).collect();
        self.count_and_announce(batch, hint.parent, &made).await?;
        Ok((!is_put).then_some(WriteStep::Again))
    }

    /// Takes blocks for the outside strings of new pages. If something must be leased first, takes
    /// nothing and returns what is missing.
    pub(super) fn give_all<'d, 'p: 'd>(
        &self,
        drafts: [Option<(RemoteAddr, &'d mut PageDraft<'p>)>; 2],
        is_elsewhere: bool,
    ) -> Result<Result<NewPageBlocks<'_>, WriteStep>, ByteIndexError> {
        let mut given = NewPageBlocks {
            taken: Vec::new(),
            state: self.state,
        };
        for (addr, draft) in drafts.into_iter().flatten() {
            let mut nodes = vec![addr.node()];
            if is_elsewhere {
                nodes.extend(self.other_nodes(addr.node()));
            }
            if let Some((role, class)) = self.give_strings(&nodes, draft, &mut given)? {
                let count = given.taken.len() + 1;
                return Ok(Err(WriteStep::LeaseBlocks(MissingPieces {
                    class,
                    count,
                    role,
                })));
            }
        }
        Ok(Ok(given))
    }

    /// Takes blocks for the outside strings of a new page, on the first of these nodes that has
    /// pieces; returns what is missing.
    fn give_strings(
        &self,
        nodes: &[NodeId],
        draft: &mut PageDraft<'_>,
        given: &mut NewPageBlocks<'_>,
    ) -> Result<Option<(Role, SizeClass)>, ByteIndexError> {
        let low = draft.low().least_key().unwrap_or_default();
        let wanted = draft.wanted().into_iter();
        let wanted: Vec<(StringPlace, Vec<u8>)> = wanted
            .map(|(place, string)| (place, string.to_vec()))
            .collect();
        for (place, string) in wanted {
            let (role, locator) = match place {
                StringPlace::Prefix => (Role::Prefix, low.clone()),
                StringPlace::Low => (Role::Low, low.clone()),
                StringPlace::High => (Role::High, low.clone()),
                StringPlace::Key(_) => (Role::Key, string.clone()),
            };
            let content = Self::content(role, &locator, &string)?;
            let mut takes = nodes.iter().map(|node| self.take(*node, &content));
            let taken = takes.find_map(TakeResult::taken);
            let Some(taken) = taken else {
                // The size of a block does not depend on which of the page's strings it contains.
                return Ok(Some((Role::Prefix, class_of(&content))));
            };
            draft.give(place, taken.reference);
            given.taken.push((role, locator, string, taken));
        }
        Ok(None)
    }

    /// Posts the WRITEs of strings on the page's node. Strings on other nodes are written and
    /// awaited at once.
    pub(super) async fn post_new_page_blocks(
        &self,
        batch: &mut Batch,
        node: NodeId,
        given: &NewPageBlocks<'_>,
    ) -> Result<(), ByteIndexError> {
        let mut elsewhere = Batch::new();
        for (role, locator, string, taken) in &given.taken {
            let content = Self::content(*role, locator, string)?;
            let is_here = taken.pointer.place().node() == node;
            let to = if is_here { &mut *batch } else { &mut elsewhere };
            self.post_taken(to, *taken, &content);
        }
        if !elsewhere.is_empty() {
            let executed = self.access.endpoint.execute(&mut elsewhere).await;
            *batch.cost_mut() += elsewhere.take_cost();
            executed?;
        }
        Ok(())
    }

    /// Writes the new pages and their strings, retires the old page in favor of the left one, and
    /// unlocks that. The batch already contains the record's blocks.
    async fn replace(
        &self,
        batch: &mut Batch,
        before: &PageBuffer,
        replacing: PageReplacement,
        given: NewPageBlocks<'_>,
        released: &[Reference],
        provision: &mut Provision,
    ) -> Result<Vec<FatPointer>, ByteIndexError> {
        let PageReplacement {
            hint,
            left: (left_addr, mut left),
            right,
            is_put,
        } = replacing;
        self.post_new_page_blocks(batch, hint.addr.node(), &given)
            .await?;
        let unlinked = self.post_unlinks(batch, hint.addr, released).await?;
        let mut source = MoveSource {
            addr: hint.addr,
            page: before.clone(),
        };
        let owner = self.access.owner;
        let change = self.change(left_addr);
        let right_addr = right.as_ref().map_or(left_addr, |(addr, _)| *addr);
        let is_together =
            left_addr.node() == hint.addr.node() && right_addr.node() == hint.addr.node();
        if is_together {
            match right {
                None => {
                    let sources = core::slice::from_mut(&mut source);
                    change.take_over(batch, owner, &mut left, sources);
                }
                Some((addr, mut right)) => {
                    change.split_out(batch, owner, &mut left, addr, &mut right, &mut source);
                }
            }
            given.commit();
            provision.commit_if(is_put);
            self.access.endpoint.execute(batch).await?;
            provision.lock = PageLockState::Released;
            return Ok(unlinked);
        }
        // Verbs to different nodes are not ordered, so each part is awaited.
        if let Some((addr, mut right)) = right {
            self.change(addr).write_new(batch, &mut right);
            left.set_link(addr);
            self.access.endpoint.execute(batch).await?;
            batch.clear();
        }
        change.write_locked(batch, &mut left, owner);
        self.access.endpoint.execute(batch).await?;
        batch.clear();
        change.retire_sources(batch, core::slice::from_mut(&mut source));
        given.commit();
        provision.commit_if(is_put);
        self.access.endpoint.execute(batch).await?;
        provision.lock = PageLockState::Released;
        batch.clear();
        change.unlock(batch);
        self.access.endpoint.execute(batch).await?;
        Ok(unlinked)
    }

    /// Records a new page that has replaced another.
    fn note_new_page(
        &self,
        hint: Hint,
        pages: &UnlinkedPages<'_>,
        addr: RemoteAddr,
        draft: &PageDraft<'_>,
    ) {
        pages.note_linked();
        let low = draft.low().clone();
        self.learn_made(hint, &NewPage { addr, low });
    }

    fn learn_made(&self, hint: Hint, made: &NewPage) {
        if let Some(low) = made.low.least_key() {
            let addr = made.addr;
            self.learn(&low, Hint { addr, ..hint });
            self.state.note_new_page(&low, addr);
        }
    }
}

/// Replacement of a page.
struct PageReplacement {
    hint: Hint,
    left: (RemoteAddr, PageBuffer),
    right: Option<(RemoteAddr, PageBuffer)>,
    /// Whether the new pages contain the record.
    is_put: bool,
}
