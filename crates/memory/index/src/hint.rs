//! What a search layer offers to the operations.

use std::rc::Rc;

use farleaf_types::{RemoteAddr, WordAddr};

use crate::snapshot::{PageRead, PagedSnapshot};

/// Where a key probably is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    /// The leaf to look at: a trained one or one of its synonyms.
    pub addr: RemoteAddr,
    /// The trained leaf whose range that leaf's is a part of, counted over the whole directory.
    pub parent: u32,
}

/// Where a split is announced to other clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// `slot_use`: how many synonym leaves the model has. FAA.
    pub counter: WordAddr,
    /// Entries that there are room for.
    pub capacity: u32,
    /// The model's number in the directory.
    pub model: u32,
    /// The trained leaf's number in its model.
    pub parent_in_model: u16,
    /// The split that makes the counter reach this makes the model due for retraining.
    pub due_split_count: u64,
}

/// Words of a synonym leaf table before its entries: `slot_use`, and how many of the model's leaves
/// deletes have made underfull.
pub const SYNONYM_TABLE_HEADER_SIZE_WORDS: u64 = 2;

/// Leaves of a model for each of which one may be split before the model is due for retraining.
pub const LEAVES_PER_DUE_SPLIT: u64 = 8;
/// Fewer splits make no model due.
pub const DUE_SPLIT_COUNT_MIN: u64 = 4;

/// How many splits make a model due for retraining: one for eight of its leaves, where the paper
/// has half of the entries of its synonym leaf table, whatever the model's size.
pub fn due_split_count(leaf_count: u32) -> u64 {
    (u64::from(leaf_count) / LEAVES_PER_DUE_SPLIT).max(DUE_SPLIT_COUNT_MIN)
}

/// Half of the 2^8 entries that the paper has.
const PAPER_DUE_SPLIT_COUNT_MAX: u64 = 128;

/// The same as the paper has it: half of what its synonym leaf table has room for.
pub fn paper_due_split_count(synonym_capacity: u32) -> u64 {
    u64::from(synonym_capacity)
        .div_ceil(2)
        .clamp(1, PAPER_DUE_SPLIT_COUNT_MAX)
}

impl Announcement {
    /// The word of an entry.
    pub fn entry(&self, slot: u64) -> WordAddr {
        self.counter.offset(SYNONYM_TABLE_HEADER_SIZE_WORDS + slot)
    }

    /// How many leaves of the model deletes have made underfull. FAA.
    pub fn underfull(&self) -> WordAddr {
        self.counter.offset(1)
    }

    /// The table itself.
    pub fn synonym_table(&self) -> RemoteAddr {
        self.counter.block_start()
    }
}

/// What one doorbell fetches for a key, when the search layer names no single leaf.
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    /// The leaves; the key is probably in one of them.
    pub leaves: Vec<Hint>,
    /// So many of them, from the first on, lie side by side, and are read with one verb.
    pub side_by_side: usize,
    /// The word that tells whether the synonym leaf table has grown.
    pub counter: Option<WordAddr>,
    /// The model, if there is a counter.
    pub model: u32,
    /// Residual pages to read along, of `snapshot` (L3.3).
    pub pages: Vec<PageRead>,
    /// Whose pages they are.
    pub snapshot: Option<Rc<PagedSnapshot>>,
}

impl Candidates {
    /// One leaf.
    pub fn of(leaf: Hint) -> Self {
        Self {
            leaves: vec![leaf],
            ..Self::default()
        }
    }
}

/// A search layer of one session: pure computation over what the session holds; every answer is a
/// hint.
pub trait SearchLayer {
    /// The leaf that a key is most likely in.
    fn locate(&self, key: u64) -> Hint;

    /// The leaf to try when `failed` turned out to be too far right of the key; `None` when there
    /// is nothing further left.
    fn left_of(&self, key: u64, failed: Hint) -> Option<Hint>;

    /// The trained leaf after `parent`; `None` also of a layer that does not know the leaves in
    /// order.
    fn next_trained(&self, parent: u32) -> Option<Hint> {
        let _ = parent;
        None
    }

    /// A leaf that a split made was met, or made by this session. A layer that knows no leaves by
    /// itself learns nothing.
    fn learn(&mut self, low: u64, leaf: Hint) {
        let _ = (low, leaf);
    }

    /// Synonyms known of a trained leaf whose lower fence is above `from`, in order of their
    /// fences, until `found` holds `limit`.
    fn synonyms_above(&self, parent: u32, from: u64, limit: usize, found: &mut Vec<RemoteAddr>) {
        let _ = (parent, from, limit, found);
    }

    /// Where a split of a leaf of this parent is announced; nowhere in a table without models.
    fn announcement(&self, parent: u32) -> Option<Announcement> {
        let _ = parent;
        None
    }

    /// How many announcements of a model this session has read.
    fn announced_seen(&self, model: u32) -> u32 {
        let _ = model;
        0
    }

    /// The first announcements of a model, `entries` since `seen`, have been read.
    fn note_announced(&mut self, model: u32, seen: u32, entries: &[u64]) {
        let _ = (model, seen, entries);
    }

    /// Bytes that the session must hold to work as measured: models, upper models, residuals,
    /// tables, synonyms. Shared structures are counted whole.
    fn metadata_bytes(&self) -> u64;
}
