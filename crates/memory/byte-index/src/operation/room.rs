//! Pages that are full: split in place (BP5), or replaced by new ones (BP6).

use core::cell::Cell;

use farleaf_block::{FatPointer, Role, SizeClass};
use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_index::hint::Hint;
use farleaf_leaf::LeafLeases;
use farleaf_page::format::PageAccess;
use farleaf_page::{
    Fence, InPlace, Outside, PageBuffer, PageDraft, Reference, Rewrite, Source, SplitRequest,
    StringPlace, plan_rewrite,
};
use farleaf_types::{NodeId, RemoteAddr};

use super::blocks::{Take, Taken, class_of};
use super::provide::{Lacking, Lock, Provision, record_of};
use super::write::{Step, Writing};
use super::{ByteIndex, ByteIndexState, Rare};
use crate::error::ByteIndexError;

/// A page that was made, and where its range begins.
struct Made {
    addr: RemoteAddr,
    low: Fence,
}

/// Pages that a change has taken and that nothing links to yet. Where it fails (they are lost, or
/// the session is broken, or the page is damaged) nobody waits for them any more.
pub(super) struct Unlinked<'a> {
    leases: &'a LeafLeases,
    count: Cell<u32>,
}

impl<'a> Unlinked<'a> {
    /// One was taken.
    pub(super) fn one(leases: &'a LeafLeases) -> Self {
        let count = Cell::new(1);
        Self { leases, count }
    }

    /// Another one was taken.
    fn note_taken(&self) {
        self.count.update(|count| count + 1);
    }

    /// One is linked to.
    pub(super) fn note_linked(&self) {
        self.count.update(|count| count - 1);
        self.leases.note_linked();
    }

    /// One comes back.
    pub(super) fn put_back<E: Endpoint>(&self, access: &PageAccess<'_, E>, page: RemoteAddr) {
        self.count.update(|count| count - 1);
        self.leases.put_back(access, page);
    }
}

impl Drop for Unlinked<'_> {
    fn drop(&mut self) {
        for _ in 0..self.count.get() {
            self.leases.note_linked();
        }
    }
}

/// Strings of new pages that must be outside, and the blocks taken for them, which go back unless
/// pages that somebody may reach refer to them.
pub(super) struct Given<'s> {
    taken: Vec<(Role, Vec<u8>, Vec<u8>, Taken)>,
    state: &'s ByteIndexState,
}

impl Given<'_> {
    /// The batch that links to the new pages is about to be executed.
    pub(super) fn commit(mut self) {
        self.taken.clear();
    }
}

impl Drop for Given<'_> {
    fn drop(&mut self) {
        // Where a node is lost, or the session is broken, its store holds nothing for long.
        for (.., taken) in self.taken.drain(..) {
            self.state.blocks.put_back(taken.pointer);
        }
    }
}

impl<E: Endpoint> ByteIndex<'_, E> {
    /// Splits a locked page, or replaces it, so that a record finds room; puts the record, if that
    /// can be done at once. `None`: it is done; else what has to be done before it can be. The
    /// lock was given back.
    pub(super) async fn make_room(
        &self,
        batch: &mut Batch,
        (hint, page): (Hint, &mut PageBuffer),
        (writing, provision): (&Writing<'_>, &mut Provision),
        outside: Outside,
    ) -> Result<Option<Step>, ByteIndexError> {
        let Some(sibling) = self.state.leases.take_for(hint.addr.node()) else {
            self.give_lock_back(batch, hint).await?;
            return Ok(Some(Step::LeasePages));
        };
        let pages = Unlinked::one(&self.state.leases);
        let made = self.split(
            batch,
            (hint, page),
            (writing, provision),
            (sibling, outside, &pages),
        );
        made.await
    }

    /// [`make_room`](Self::make_room) with a page for the sibling.
    async fn split(
        &self,
        batch: &mut Batch,
        (hint, page): (Hint, &mut PageBuffer),
        (writing, provision): (&Writing<'_>, &mut Provision),
        (sibling, mut outside, pages): (RemoteAddr, Outside, &Unlinked<'_>),
    ) -> Result<Option<Step>, ByteIndexError> {
        let node = hint.addr.node();
        // U4: where the counter lies on another node, that may be lost while the split counts.
        let announcement = self.announcement(hint.parent);
        let announcement = announcement.filter(|it| it.synonym_table().node() == node);
        let before = page.clone();
        let request = SplitRequest {
            record: record_of(before.image(), writing, provision),
            sibling,
            counter: announcement.map(|announcement| announcement.counter),
        };
        let change = self.change(hint.addr);
        let planned = self
            .with_strings_locked(batch, hint.addr, &mut outside, |outside| {
                change.plan_split(&before, &request, outside)
            })
            .await?;
        let InPlace::Split(plan) = planned else {
            let rewrite: Rare<'_, _> = Box::pin(self.rewrite(
                batch,
                (hint, &before),
                (writing, provision),
                (sibling, outside, pages),
            ));
            return rewrite.await;
        };
        batch.clear();
        if sibling.node() != node && !self.leaves_out(ProtocolCheck::SiblingIsWholeElsewhere) {
            // D3: complete before anything links to it.
            change.write_sibling_of(batch, &plan);
            self.access.endpoint.execute(batch).await?;
            batch.clear();
        }
        self.post_provision(batch, writing, provision)?;
        let unlinked = self
            .post_unlinks(batch, (hint.addr, plan.released()))
            .await?;
        if sibling.node() != node && self.leaves_out(ProtocolCheck::SiblingIsWholeElsewhere) {
            change.write_sibling_of(batch, &plan);
        }
        let split = change.split(batch, page, &plan);
        provision.commit();
        self.access.endpoint.execute(batch).await?;
        provision.lock = Lock::Released;
        pages.note_linked();
        self.retire_blocks(unlinked);
        let made = Made {
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

    /// BP6: the page is replaced by one or two new ones.
    async fn rewrite(
        &self,
        batch: &mut Batch,
        (hint, before): (Hint, &PageBuffer),
        (writing, provision): (&Writing<'_>, &mut Provision),
        (left_addr, mut outside, pages): (RemoteAddr, Outside, &Unlinked<'_>),
    ) -> Result<Option<Step>, ByteIndexError> {
        let record = record_of(before.image(), writing, provision);
        // A new page's fences are made of whole keys, which takes all that the page has outside.
        let at = (hint.addr, before);
        if !self.fetch_strings(batch, at, &mut outside).await? {
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
                    return Ok(Some(Step::LeasePages));
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
        let replacing = Replacing {
            hint,
            left: (left_addr, left.build(link)),
            right: right_addr.zip(right.as_ref().map(|right| right.build(link))),
        };
        batch.clear();
        if is_put {
            self.post_provision(batch, writing, provision)?;
        }
        let with = (given, &*released, (is_put, provision));
        let unlinked = self.replace(batch, before, replacing, with).await?;
        self.retire_blocks(unlinked);
        self.note_made(hint, pages, (left_addr, &left));
        if let (Some(addr), Some(right)) = (right_addr, &right) {
            self.note_made(hint, pages, (addr, right));
        }
        let made: Vec<_> = core::iter::once(left_addr).chain(right_addr).collect();
        self.count_and_announce(batch, hint.parent, &made).await?;
        Ok((!is_put).then_some(Step::Again))
    }

    /// Takes blocks for the strings that new pages want outside; or what has to be leased before,
    /// and nothing was taken.
    pub(super) fn give_all<'d, 'p: 'd>(
        &self,
        drafts: [Option<(RemoteAddr, &'d mut PageDraft<'p>)>; 2],
        is_elsewhere: bool,
    ) -> Result<Result<Given<'_>, Step>, ByteIndexError> {
        let mut given = Given {
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
                return Ok(Err(Step::LeaseBlocks(Lacking { class, count, role })));
            }
        }
        Ok(Ok(given))
    }

    /// Takes blocks for the strings that a new page wants outside, on the first of these nodes that
    /// there are pieces on; what is missing.
    fn give_strings(
        &self,
        nodes: &[NodeId],
        draft: &mut PageDraft<'_>,
        given: &mut Given<'_>,
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
            let taken = takes.find_map(Take::taken);
            let Some(taken) = taken else {
                // As a page's string, whichever of its strings it is.
                return Ok(Some((Role::Prefix, class_of(&content))));
            };
            draft.give(place, taken.reference);
            given.taken.push((role, locator, string, taken));
        }
        Ok(None)
    }

    /// BV1: posts the WRITEs of strings that lie on the page's node; those elsewhere are written at
    /// once, and awaited.
    pub(super) async fn post_given(
        &self,
        batch: &mut Batch,
        node: NodeId,
        given: &Given<'_>,
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

    /// M2, M4: writes the new pages and their strings, retires the old page in favour of the left
    /// one, and unlocks that. The batch has the blocks of the record already.
    async fn replace(
        &self,
        batch: &mut Batch,
        before: &PageBuffer,
        replacing: Replacing,
        (given, released, (is_put, provision)): (Given<'_>, &[Reference], (bool, &mut Provision)),
    ) -> Result<Vec<FatPointer>, ByteIndexError> {
        let Replacing { hint, left, right } = replacing;
        let (left_addr, mut left) = left;
        self.post_given(batch, hint.addr.node(), &given).await?;
        let unlinked = self.post_unlinks(batch, (hint.addr, released)).await?;
        let mut source = Source {
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
                    let pages = (&mut left, (addr, &mut right));
                    change.split_out(batch, owner, pages, &mut source);
                }
            }
            given.commit();
            provision.commit_if(is_put);
            self.access.endpoint.execute(batch).await?;
            provision.lock = Lock::Released;
            return Ok(unlinked);
        }
        // Nothing orders verbs to different nodes: each part is awaited.
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
        provision.lock = Lock::Released;
        batch.clear();
        change.unlock(batch);
        self.access.endpoint.execute(batch).await?;
        Ok(unlinked)
    }

    /// A new page has taken its place.
    fn note_made(
        &self,
        hint: Hint,
        pages: &Unlinked<'_>,
        (addr, draft): (RemoteAddr, &PageDraft<'_>),
    ) {
        pages.note_linked();
        let low = draft.low().clone();
        self.learn_made(hint, &Made { addr, low });
    }

    fn learn_made(&self, hint: Hint, made: &Made) {
        if let Some(low) = made.low.least_key() {
            let addr = made.addr;
            self.learn(&low, Hint { addr, ..hint });
            self.state.note_made(&low, addr);
        }
    }
}

/// What takes a page's place.
struct Replacing {
    hint: Hint,
    left: (RemoteAddr, PageBuffer),
    right: Option<(RemoteAddr, PageBuffer)>,
}
