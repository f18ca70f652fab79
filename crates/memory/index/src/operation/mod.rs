//! Operations of one session on one table, over any search layer.
//!
//! Each operation starts from a hint, reads the leaf, and continues as the leaf says (LEAF-4,
//! LEAF-5). The layer learns the leaves that the operation meets. [`IndexState`] has the state that
//! outlives an operation: hints and leased leaves. It is borrowed only between awaits, so a session
//! can have many operations in progress.

mod at_once;
mod leases;
mod lock_queue;
mod pages;
mod read;
mod scan;
mod scan_reverse;
mod survey;
mod tree;
mod tree_cache;
mod write;
mod xstore;

pub use at_once::{GetAtOnce, MissedLeaf, MultiGetAtOnce};
pub use scan::ScanCursor;
pub use scan_reverse::ReverseScanCursor;
pub use survey::{LeafReport, LostRange, Survey};
pub use write::Decision;
pub use xstore::sound_entries;

use core::cell::{Cell, RefCell};
use core::future::Future;
use core::ops::AddAssign;
use core::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use farleaf_base::{RemoteAddr, WordAddr};
use farleaf_fabric::{Batch, Endpoint, ReadSlot};
use farleaf_leaf::words::{
    LeafAccess, LeafBuffer, LeafCheck, LeafError, LeafImage, LeafLease, LeafLeases, LocalLocks,
    SearchPath,
};

use crate::IndexError;
use crate::announced::AnnouncementWords;
use crate::directory::Directory;
use crate::hint::{Hint, SearchLayer};
use crate::layer::Layer;
use crate::partial::{Budget, PartialCounts, PartialLayer};
use crate::snapshot::PagedSnapshot;
use crate::tree::node::ChildEntry;

/// Number of announced leaves that one batch reads.
const CATCH_UP_BATCH_COUNT: usize = 256;

/// Default for the number of links that one lookup of an RF-tree may follow before it wants a newer
/// cache.
pub const LINK_COUNT_MAX_DEFAULT: u32 = 2;

/// Boxed future that is awaited rarely: inline, it would make the enclosing future and its code as
/// large as the largest one inside.
type Rare<'a, R> = Pin<Box<dyn Future<Output = R> + 'a>>;

/// Hints of many keys, and the places of their leaves in the batch.
#[derive(Debug, Default)]
struct Scratch {
    hints: Vec<Hint>,
    reads: Vec<(Hint, ReadSlot)>,
}

/// Counts of wrong hints since a session opened a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HintCounters {
    /// Number of followed links to the right: to leaves made by splits that the session did not
    /// know.
    pub synonym_count: u64,
    /// Number of hints to retired leaves, which a retraining had moved.
    pub stale_count: u64,
    /// Number of hints that were too far right.
    pub left_count: u64,
    /// Number of reads of other sessions' announcements.
    pub catch_up_count: u64,
    /// Number of newer trainings, or newer copies of a tree, that were taken over.
    pub refresh_count: u64,
    /// Number of leaves that could not be listed in the tree: there was no space for an inner node,
    /// the session may not write, or nodes are lost.
    pub unlisted_count: u64,
    /// Number of leaf locks that another session of the process handed over, with the image.
    pub handed_count: u64,
    /// Number of keys that the models did not lead to, so that the memory node was called.
    pub fallback_count: u64,
    /// Number of promised locks that the session had to check at the lock word. The batch that was
    /// to hand them over had failed, was interrupted, or took long.
    pub asked_count: u64,
}

impl AddAssign for HintCounters {
    fn add_assign(&mut self, other: Self) {
        self.synonym_count += other.synonym_count;
        self.stale_count += other.stale_count;
        self.left_count += other.left_count;
        self.catch_up_count += other.catch_up_count;
        self.refresh_count += other.refresh_count;
        self.unlisted_count += other.unlisted_count;
        self.handed_count += other.handed_count;
        self.fallback_count += other.fallback_count;
        self.asked_count += other.asked_count;
    }
}

/// State of one session for one table between operations.
#[derive(Debug)]
pub struct IndexState {
    layer: RefCell<Layer>,
    /// Leaves leased for splits, and the number of leaves and inner nodes taken that nothing links
    /// to yet.
    leases: LeafLeases,
    /// Inner nodes leased for splits in the tree.
    inner_lease: RefCell<Option<LeafLease>>,
    /// Inner nodes leased for trees that the session no longer searches.
    old_leases: RefCell<Vec<LeafLease>>,
    /// Reused buffers for lookups of many keys.
    scratch: RefCell<Scratch>,
    /// Number of times the layer was replaced. An operation that began before must not teach the
    /// new layer what it met by the old layer's hints (LEAF-7).
    layer_version: Cell<u32>,
    hint_counters: Cell<HintCounters>,
    /// Number of links that one lookup may follow before a newer cache of the tree is wanted.
    link_count_max: Cell<u32>,
    /// Set when a newer cache is wanted. `news` notifies the session of that, or of a leaf to be
    /// listed.
    wants_newer: Cell<bool>,
    news: Rc<Cell<bool>>,
    /// Unlisted leaf that the last operation with a link found, and one that two operations found.
    met_unlisted: Cell<Option<ChildEntry>>,
    due_listing: Cell<Option<ChildEntry>>,
    /// True if operations continue from a retired leaf to its successor. Initially false: a newer
    /// root leads there directly, while links lead leaf by leaf.
    follows_retired: Cell<bool>,
    /// Number of operations that follow links as long as necessary after the models were wrong.
    link_follow_count: Cell<u32>,
    /// True if operations follow the first link.
    is_speculative: Cell<bool>,
    /// Set when an operation of the session was interrupted while it may have held a lock or a
    /// chunk that only recovery returns: the session must stop and be closed (FABRIC-6).
    broken: Rc<Cell<bool>>,
    /// Address of the counter of underfull leaves, if models do not count them.
    underfull_counter: Option<WordAddr>,
    /// Queues in which writers of the process wait for each other, if the layer uses them.
    local_locks: Option<Arc<LocalLocks>>,
}

impl IndexState {
    /// Creates a state that has learned and leased nothing.
    ///
    /// `broken` belongs to the session. It is set when an operation, including a read, is
    /// interrupted: its future is dropped, or the fabric fails. The operation may then hold a lock,
    /// or own a chunk that it does not know of. The session must then be closed, so that others
    /// recover what it holds.
    pub fn new(layer: Layer, broken: Rc<Cell<bool>>) -> Self {
        Self {
            layer: RefCell::new(layer),
            leases: LeafLeases::default(),
            inner_lease: RefCell::default(),
            old_leases: RefCell::default(),
            scratch: RefCell::default(),
            layer_version: Cell::new(0),
            hint_counters: Cell::default(),
            link_count_max: Cell::new(LINK_COUNT_MAX_DEFAULT),
            wants_newer: Cell::new(false),
            news: Rc::default(),
            met_unlisted: Cell::new(None),
            due_listing: Cell::new(None),
            follows_retired: Cell::new(false),
            link_follow_count: Cell::new(0),
            is_speculative: Cell::new(true),
            broken,
            underfull_counter: None,
            local_locks: None,
        }
    }

    /// Makes writers of all sessions that share `local_locks` queue up for leaves and hand them
    /// over ([`farleaf_leaf::words::local_locks`]).
    #[must_use]
    pub fn with_local_locks(self, local_locks: Option<Arc<LocalLocks>>) -> Self {
        Self {
            local_locks,
            ..self
        }
    }

    /// Makes deletes count underfull leaves in the catalog entry, for a table with a tree.
    #[must_use]
    pub fn with_underfull_counter(self, underfull_counter: Option<WordAddr>) -> Self {
        Self {
            underfull_counter,
            ..self
        }
    }

    /// Replaces the directory by a newer root's. Keeps what was learned of leaves that stayed.
    pub fn replace_directory(&self, directory: Arc<Directory>) {
        self.layer.borrow_mut().replace_directory(directory);
        self.note_replaced();
    }

    /// Replaces the snapshot of a session with a metadata budget. All pages of the old root are
    /// dropped, unless the simulator sets `keeps_pages` to plant a bug.
    pub fn replace_snapshot(&self, snapshot: PagedSnapshot, budget: Budget, keeps_pages: bool) {
        let newer = match self.layer.borrow_mut().as_partial_mut() {
            Some(layer) => {
                let mut newer = layer.with_snapshot(snapshot);
                if keeps_pages {
                    newer.take_pages(layer);
                }
                Layer::Partial(Box::new(newer))
            }
            None => Layer::partial(snapshot, budget),
        };
        self.layer.replace(newer);
        self.note_replaced();
    }

    fn note_replaced(&self) {
        self.layer_version.update(|version| version.wrapping_add(1));
        self.follows_retired.set(false);
        self.count_hint(|counters| counters.refresh_count += 1);
    }

    /// Returns the counts of wrong hints.
    pub fn hint_counters(&self) -> HintCounters {
        self.hint_counters.get()
    }

    fn count_hint(&self, change: impl FnOnce(&mut HintCounters)) {
        let mut counters = self.hint_counters.get();
        change(&mut counters);
        self.hint_counters.set(counters);
    }

    /// Makes operations follow retired leaves: the session has checked that its root is the newest.
    pub fn follow_retired(&self) {
        self.follows_retired.set(true);
    }

    /// Returns the bytes that the session holds to find leaves.
    pub fn metadata_bytes(&self) -> u64 {
        self.layer.borrow().metadata_bytes()
    }

    /// Returns how often pages were fetched and evicted; `None` without a metadata budget.
    pub fn partial_counts(&self) -> Option<PartialCounts> {
        let layer = self.layer.borrow();
        layer.as_partial().map(PartialLayer::counts)
    }

    /// Returns the directory's generation, trained records, leaves and models.
    pub fn training(&self) -> (u16, u64, u64, u64) {
        let layer = self.layer.borrow();
        (
            layer.generation(),
            layer.record_count(),
            layer.leaf_count().into(),
            layer.model_count() as u64,
        )
    }

    /// Returns all trained leaves in order; under a metadata budget only those whose models are
    /// held.
    pub fn trained_leaves(&self) -> Vec<RemoteAddr> {
        let layer = self.layer.borrow();
        let leaves = (0..layer.leaf_count()).filter_map(|number| layer.leaf(number));
        leaves.map(|leaf| leaf.addr).collect()
    }
}

/// One table, as one session works on it.
#[derive(Debug)]
pub struct Index<'a, E> {
    access: LeafAccess<'a, E>,
    state: &'a IndexState,
    /// Version of the layer when the operation began.
    layer_version: u32,
}

impl<E> Clone for Index<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<E> Copy for Index<'_, E> {}

impl<'a, E: Endpoint> Index<'a, E> {
    /// Combines a session's access with its state.
    #[inline]
    pub fn new(access: LeafAccess<'a, E>, state: &'a IndexState) -> Self {
        let layer_version = state.layer_version.get();
        Self {
            access,
            state,
            layer_version,
        }
    }

    #[inline]
    fn locate(&self, key: u64) -> Hint {
        self.state.layer.borrow().locate(key)
    }

    /// Posts the READ of a leaf's image.
    #[inline]
    fn post_leaf(&self, batch: &mut Batch, addr: RemoteAddr) -> ReadSlot {
        let geometry = self.access.geometry;
        batch.cost_mut().leaves_read += 1;
        batch.read(geometry.state(addr), geometry.image_size_words())
    }

    #[inline]
    fn image<'b>(&self, batch: &'b Batch, slot: ReadSlot) -> LeafImage<'b> {
        LeafImage::new(self.access.geometry, batch.words(slot))
    }

    /// Checks an operation's path and does [`next_hint`](Self::next_hint); `low` is the leaf's
    /// lower fence, if known.
    fn continue_from(
        &self,
        batch: &mut Batch,
        course: &mut SearchPath,
        key: u64,
        hint: Hint,
        low: Option<u64>,
        look: LeafCheck,
    ) -> Result<Hint, IndexError> {
        if let Err(what) = course.leave(hint.parent, low, look) {
            return Err(self.access.contradiction(hint.addr, what).into());
        }
        self.check_link_count(course, key, look)?;
        let next = self.next_hint(batch, key, hint, look);
        self.note_wrong_hint(key);
        next
    }

    /// Reads a leaf with [`LeafAccess::read_intact`].
    async fn read_intact(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
    ) -> Result<LeafBuffer, LeafError> {
        let broken = &self.state.broken;
        self.access.read_intact(batch, addr, broken).await
    }

    /// Returns where to look after a leaf that does not cover the key, and counts a followed link
    /// in the batch. `look` must be neither [`LeafCheck::Here`] nor [`LeafCheck::Torn`].
    fn next_hint(
        &self,
        batch: &mut Batch,
        key: u64,
        hint: Hint,
        look: LeafCheck,
    ) -> Result<Hint, IndexError> {
        let layer = self.state.layer.borrow();
        self.state.count_hint(|counters| match look {
            LeafCheck::Right(_) => counters.synonym_count += 1,
            LeafCheck::Retired(_) => counters.stale_count += 1,
            LeafCheck::Left | LeafCheck::Here | LeafCheck::Torn => counters.left_count += 1,
        });
        match look {
            LeafCheck::Right(link) => {
                batch.cost_mut().links += 1;
                match layer.next_trained(hint.parent) {
                    Some(next) if next.addr == link => Ok(next),
                    _ => Ok(Hint {
                        addr: link,
                        parent: hint.parent,
                    }),
                }
            }
            LeafCheck::Retired(link) if link.is_null() => Err(LeafError::TableDropped {
                table: self.access.table,
            }
            .into()),
            LeafCheck::Retired(_) if !self.state.follows_retired.get() => Err(IndexError::Outdated),
            LeafCheck::Retired(link) => {
                batch.cost_mut().links += 1;
                Ok(Hint {
                    addr: link,
                    parent: hint.parent,
                })
            }
            LeafCheck::Left | LeafCheck::Here | LeafCheck::Torn => {
                let left = layer.left_of(key, hint);
                Ok(left.unwrap_or_else(|| layer.first_leaf()))
            }
        }
    }

    /// Returns whether the layer is still the one that the operation began with.
    #[inline]
    fn is_current(&self) -> bool {
        self.layer_version == self.state.layer_version.get()
    }

    /// Records a leaf that was met as a synonym of its parent, unless it is the trained leaf
    /// itself.
    fn learn(&self, low: u64, leaf: Hint) {
        if !self.is_current() {
            return;
        }
        let mut layer = self.state.layer.borrow_mut();
        if !layer.may_be_trained(leaf) {
            layer.learn(low, leaf);
        }
    }

    /// Reads the announcements of a model that this session has not read, and the leaves that they
    /// name. Costs two round trips; one if few entries are new and were read with the counter.
    async fn catch_up(
        &self,
        batch: &mut Batch,
        parent: u32,
        announced: &AnnouncementWords,
    ) -> Result<(), IndexError> {
        let (announcement, seen, first_leaf) = {
            let layer = self.state.layer.borrow();
            let Some(announcement) = layer.announcement(parent) else {
                return Ok(());
            };
            let Some(first_leaf) = layer.first_leaf_of(announcement.model) else {
                return Ok(());
            };
            (
                announcement,
                layer.announced_read_count(announcement.model),
                first_leaf,
            )
        };
        self.state
            .count_hint(|counters| counters.catch_up_count += 1);
        let unread = announced.unread(self.access.endpoint, batch, &announcement, seen);
        let mut entries = unread.await?;
        for part in entries.chunks(CATCH_UP_BATCH_COUNT) {
            let leaves = part.iter().map(|entry| RemoteAddr::from_word(*entry));
            let leaves: Vec<Hint> = leaves
                .filter(|entry| self.access.layout.chunk_of(*entry).is_some())
                .map(|entry| Hint {
                    addr: entry.place(),
                    parent: first_leaf + u32::from(entry.spare()),
                })
                .filter(|leaf| leaf.parent < self.state.layer.borrow().leaf_count())
                .collect();
            batch.clear();
            let reads: Vec<_> = leaves
                .iter()
                .map(|leaf| (*leaf, self.post_leaf(batch, leaf.addr)))
                .collect();
            self.access.endpoint.execute(batch).await?;
            for (leaf, read) in reads {
                let image = self.image(batch, read);
                // A torn leaf will be met again when it is needed.
                if image.is_intact(leaf.addr, self.access.table) && !image.is_retired() {
                    self.learn(image.low(), leaf);
                }
            }
        }
        if !self.is_current() {
            return Ok(());
        }
        let mut layer = self.state.layer.borrow_mut();
        // An entry is only a hint; one that names no place in a chunk must not be read.
        for entry in &mut entries {
            if self
                .access
                .layout
                .chunk_of(RemoteAddr::from_word(*entry))
                .is_none()
            {
                *entry = 0;
            }
        }
        layer.note_announced(announcement.model, announced.count(), &entries);
        Ok(())
    }
}
