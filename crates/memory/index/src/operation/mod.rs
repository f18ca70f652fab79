//! Operations on one table in the name of one session, over any search layer.
//!
//! Each operation starts from a hint, looks at the leaf, and moves on as the leaf says (D4, D5);
//! what it meets on the way it teaches the layer. The state that outlives an operation, hints and
//! leased leaves, is in [`IndexState`]; it is borrowed only between awaits, so many operations of a
//! session can be under way.

mod at_once;
mod in_turn;
mod leases;
mod pages;
mod read;
mod scan;
mod survey;
mod tree;
mod tree_cache;
mod write;
mod xstore;

pub use at_once::{Elsewhere, GetAtOnce, MultiGetAtOnce};
pub use scan::ScanCursor;
pub use survey::{LeafReport, LostRange, Survey};
pub use write::Decision;
pub use xstore::sound_entries;

use core::cell::{Cell, RefCell};
use core::future::Future;
use core::ops::AddAssign;
use core::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use farleaf_fabric::{Batch, Endpoint, ReadSlot};
use farleaf_leaf::{
    Course, LeafAccess, LeafBuffer, LeafError, LeafImage, LeafLease, LeafLeases, LocalLocks, Look,
};
use farleaf_types::{RemoteAddr, WordAddr};

use crate::IndexError;
use crate::announced::Announced;
use crate::directory::Directory;
use crate::hint::{Hint, SearchLayer};
use crate::layer::Layer;
use crate::partial::{Budget, PartialCounts, PartialLayer};
use crate::snapshot::PagedSnapshot;
use crate::tree::node::Entry;

/// Announced leaves that are read with one batch.
const CATCH_UP_BATCH_COUNT: usize = 256;

/// Links that one lookup of an RF-tree may follow before it wants a newer cache, unless a session
/// chooses otherwise.
pub const LINK_COUNT_MAX_DEFAULT: u32 = 2;

/// What is awaited rarely: a future is as large as the largest one inside it, and so is its code,
/// unless that is unknown.
type Rare<'a, R> = Pin<Box<dyn Future<Output = R> + 'a>>;

/// Hints of many keys, and where their leaves will be in the batch.
#[derive(Debug, Default)]
struct Scratch {
    hints: Vec<Hint>,
    reads: Vec<(Hint, ReadSlot)>,
}

/// How often hints were not right, since a session opened a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HintCounters {
    /// Links to the right that were followed: to leaves that splits had made, which this session
    /// did not know of.
    pub synonym_count: u64,
    /// Hints to leaves that were retired: moved by a retraining.
    pub stale_count: u64,
    /// Hints that were too far right.
    pub left_count: u64,
    /// Reads of what other sessions have announced.
    pub catch_up_count: u64,
    /// Newer trainings, or newer copies of a tree, that were taken over.
    pub refresh_count: u64,
    /// Leaves that could not be listed in the tree: there was no room for an inner node, or the
    /// session may not write, or nodes are lost.
    pub unlisted_count: u64,
    /// Locks of leaves that another session of the process handed over, with the image (H2).
    pub handed_count: u64,
    /// Keys that the models did not lead to, so the memory node was asked (Y6).
    pub fallback_count: u64,
    /// Locks that one had promised, and that had to be asked for, as the batch that was to hand
    /// them over failed, was cut off, or took long (H3).
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

/// What one session keeps of one table between operations.
#[derive(Debug)]
pub struct IndexState {
    layer: RefCell<Layer>,
    /// Leaves for splits, and how many leaves and inner nodes were taken that nothing links to yet.
    leases: LeafLeases,
    /// Inner nodes for splits in the tree.
    inner_lease: RefCell<Option<LeafLease>>,
    /// Inner nodes that were leased for trees that the session searches by no more.
    old_leases: RefCell<Vec<LeafLease>>,
    /// Buffers for asking for many keys at once, kept for the next time.
    scratch: RefCell<Scratch>,
    /// How often the layer was replaced: an operation that began before must not teach the new one
    /// what it met by the old one's hints (D7).
    layer_version: Cell<u32>,
    hint_counters: Cell<HintCounters>,
    /// Links that one lookup may follow before a newer cache of the tree is wanted.
    link_count_max: Cell<u32>,
    /// Whether one is wanted; and what tells the session of that, or of a listing that is due.
    wants_newer: Cell<bool>,
    news: Rc<Cell<bool>>,
    /// The leaf that the last operation with a link has found unlisted, and one that two have.
    met_unlisted: Cell<Option<Entry>>,
    due_listing: Cell<Option<Entry>>,
    /// Whether to go on from a retired leaf to its successor. Not at first: a newer root leads
    /// there at once, where links lead leaf by leaf.
    follows_retired: Cell<bool>,
    /// How many operations go on by links for as long as it takes, where models led wrong (Y6).
    patient_count: Cell<u32>,
    /// Whether they follow the first one.
    is_speculative: Cell<bool>,
    /// An operation of the session was cut off while it may have held a lock or a chunk that
    /// nobody else gives back: the session must stop and be closed (F6).
    broken: Rc<Cell<bool>>,
    /// Where underfull leaves are counted, if not in models.
    underfull_counter: Option<WordAddr>,
    /// Where writers of the process wait for each other, if the layer is one that has them do so.
    local_locks: Option<Arc<LocalLocks>>,
}

impl IndexState {
    /// State with nothing learned and nothing leased. `broken` is the session's: it is set when an
    /// operation, a read too, is cut off (its future is dropped, or the fabric fails) while it may
    /// hold a lock, or own a chunk that it does not know of. The session must be closed then:
    /// others recover what it holds.
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
            patient_count: Cell::new(0),
            is_speculative: Cell::new(true),
            broken,
            underfull_counter: None,
            local_locks: None,
        }
    }

    /// Writers wait among themselves for leaves, and hand them over (H1 to H5), with all of a
    /// process that share these.
    #[must_use]
    pub fn with_local_locks(self, local_locks: Option<Arc<LocalLocks>>) -> Self {
        Self {
            local_locks,
            ..self
        }
    }

    /// Counts leaves that deletes make underfull in the catalog entry of a table with a tree (C7).
    #[must_use]
    pub fn with_underfull_counter(self, underfull_counter: Option<WordAddr>) -> Self {
        Self {
            underfull_counter,
            ..self
        }
    }

    /// Searches in a newer root's directory from now on. Of what was learned, it keeps what belongs
    /// to leaves that have stayed.
    pub fn replace_directory(&self, directory: Arc<Directory>) {
        self.layer.borrow_mut().replace_directory(directory);
        self.note_replaced();
    }

    /// The same for a session with a metadata budget: all pages of the old root are dropped (L3.4),
    /// unless the simulator `keeps_pages` as a planted bug.
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

    /// How often hints were not right.
    pub fn hint_counters(&self) -> HintCounters {
        self.hint_counters.get()
    }

    fn count_hint(&self, change: impl FnOnce(&mut HintCounters)) {
        let mut counters = self.hint_counters.get();
        change(&mut counters);
        self.hint_counters.set(counters);
    }

    /// The root was looked at and is the newest: from now on retired leaves are followed.
    pub fn follow_retired(&self) {
        self.follows_retired.set(true);
    }

    /// Bytes that the session holds to find leaves.
    pub fn metadata_bytes(&self) -> u64 {
        self.layer.borrow().metadata_bytes()
    }

    /// How often pages were fetched and evicted; `None` without a metadata budget.
    pub fn partial_counts(&self) -> Option<PartialCounts> {
        let layer = self.layer.borrow();
        layer.as_partial().map(PartialLayer::counts)
    }

    /// The directory's load and counts: generation, trained records, leaves, models.
    pub fn training(&self) -> (u16, u64, u64, u64) {
        let layer = self.layer.borrow();
        (
            layer.generation(),
            layer.record_count(),
            layer.leaf_count().into(),
            layer.model_count() as u64,
        )
    }

    /// Every leaf that the training knows, in order; under a metadata budget, as far as models are
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
    /// Of the layer when the operation began.
    layer_version: u32,
}

impl<E> Clone for Index<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<E> Copy for Index<'_, E> {}

impl<'a, E: Endpoint> Index<'a, E> {
    /// Joins what a session may do with what it knows.
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

    /// Adds the READ of a leaf's image.
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

    /// [`next_hint`](Self::next_hint) on an operation's course; `low` is the leaf's lower fence, if
    /// known.
    fn go_on(
        &self,
        batch: &mut Batch,
        course: &mut Course,
        key: u64,
        (hint, low): (Hint, Option<u64>),
        look: Look,
    ) -> Result<Hint, IndexError> {
        if let Err(what) = course.leave(hint.parent, low, look) {
            return Err(self.access.contradiction(hint.addr, what).into());
        }
        self.check_way(course, key, look)?;
        let next = self.next_hint(batch, key, hint, look);
        self.note_wrong_hint(key);
        next
    }

    /// Reads a leaf; see [`LeafAccess::read_intact`].
    async fn read_intact(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
    ) -> Result<LeafBuffer, LeafError> {
        let broken = &self.state.broken;
        self.access.read_intact(batch, addr, broken).await
    }

    /// Where to look next after a leaf that does not cover the key; a link that leads there is
    /// counted in the batch. `look` is neither [`Look::Here`] nor [`Look::Torn`].
    fn next_hint(
        &self,
        batch: &mut Batch,
        key: u64,
        hint: Hint,
        look: Look,
    ) -> Result<Hint, IndexError> {
        let layer = self.state.layer.borrow();
        self.state.count_hint(|counters| match look {
            Look::Right(_) => counters.synonym_count += 1,
            Look::Retired(_) => counters.stale_count += 1,
            Look::Left | Look::Here | Look::Torn => counters.left_count += 1,
        });
        match look {
            Look::Right(link) => {
                batch.cost_mut().links += 1;
                match layer.next_trained(hint.parent) {
                    Some(next) if next.addr == link => Ok(next),
                    _ => Ok(Hint {
                        addr: link,
                        parent: hint.parent,
                    }),
                }
            }
            Look::Retired(link) if link.is_null() => Err(LeafError::TableDropped {
                table: self.access.table,
            }
            .into()),
            Look::Retired(_) if !self.state.follows_retired.get() => Err(IndexError::Outdated),
            Look::Retired(link) => {
                batch.cost_mut().links += 1;
                Ok(Hint {
                    addr: link,
                    parent: hint.parent,
                })
            }
            Look::Left | Look::Here | Look::Torn => {
                let left = layer.left_of(key, hint);
                Ok(left.unwrap_or_else(|| layer.first_leaf()))
            }
        }
    }

    /// Whether the layer is still the one that the operation began with.
    #[inline]
    fn is_current(&self) -> bool {
        self.layer_version == self.state.layer_version.get()
    }

    /// Notes a leaf that was met: a synonym of its parent, unless it is the trained leaf itself.
    fn learn(&self, low: u64, leaf: Hint) {
        if !self.is_current() {
            return;
        }
        let mut layer = self.state.layer.borrow_mut();
        if !layer.may_be_trained(leaf) {
            layer.learn(low, leaf);
        }
    }

    /// Reads the announcements that a model's synonym leaf table has beyond those this session has
    /// read, and the leaves that they name. Two round trips; one if few entries are new and were
    /// read with the counter.
    async fn catch_up(
        &self,
        batch: &mut Batch,
        parent: u32,
        announced: &Announced,
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
                layer.announced_seen(announcement.model),
                first_leaf,
            )
        };
        self.state
            .count_hint(|counters| counters.catch_up_count += 1);
        let unread = announced.unread(self.access.endpoint, batch, (&announcement, seen));
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
                // A torn one is met again when it is needed.
                if image.is_intact(leaf.addr, self.access.table) && !image.is_retired() {
                    self.learn(image.low(), leaf);
                }
            }
        }
        if !self.is_current() {
            return Ok(());
        }
        let mut layer = self.state.layer.borrow_mut();
        // What an entry names is only a hint; one that names no chunk must not be read.
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
