//! Interface between search layers and operations.

use std::rc::Rc;

use farleaf_base::{RemoteAddr, WordAddr};

use crate::snapshot::{PageRead, PagedSnapshot};

/// Leaf where a key probably is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    /// Address of the leaf to read: a trained leaf or one of its synonyms.
    pub addr: RemoteAddr,
    /// Number, in the whole directory, of the trained leaf whose range contains this leaf's range.
    pub parent: u32,
}

/// Place where a split is announced to other clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Address of `slot_use`, the number of the model's synonym leaves, changed by FAA.
    pub counter: WordAddr,
    /// Number of entries that the synonym leaf table has space for.
    pub capacity: u32,
    /// Number of the model in the directory.
    pub model: u32,
    /// Number of the trained leaf in its model.
    pub parent_in_model: u16,
    /// Value of the counter at which the model is due for retraining.
    pub due_split_count: u64,
}

/// Words of a synonym leaf table before its entries: `slot_use`, and the number of the model's
/// leaves that deletes have made underfull.
pub const SYNONYM_TABLE_HEADER_SIZE_WORDS: u64 = 2;

/// Number of leaves of a model per split that makes the model due for retraining.
pub const LEAVES_PER_DUE_SPLIT: u64 = 8;
/// Smallest number of splits that makes a model due for retraining.
pub const DUE_SPLIT_COUNT_MIN: u64 = 4;

/// Returns the number of splits that makes a model due for retraining: one per eight of its leaves.
/// The paper uses half of the entries of the synonym leaf table, whatever the model's size.
pub fn due_split_count(leaf_count: u32) -> u64 {
    (u64::from(leaf_count) / LEAVES_PER_DUE_SPLIT).max(DUE_SPLIT_COUNT_MIN)
}

/// Half of the paper's 2^8 entries.
const PAPER_DUE_SPLIT_COUNT_MAX: u64 = 128;

/// Returns the paper's number of splits that makes a model due for retraining: half of the entries
/// that its synonym leaf table has space for.
pub fn paper_due_split_count(synonym_capacity: u32) -> u64 {
    u64::from(synonym_capacity)
        .div_ceil(2)
        .clamp(1, PAPER_DUE_SPLIT_COUNT_MAX)
}

impl Announcement {
    /// Returns the address of an entry's word.
    pub fn entry(&self, slot: u64) -> WordAddr {
        self.counter.offset(SYNONYM_TABLE_HEADER_SIZE_WORDS + slot)
    }

    /// Returns the address of the counter of the model's leaves that deletes have made underfull,
    /// changed by FAA.
    pub fn underfull(&self) -> WordAddr {
        self.counter.offset(1)
    }

    /// Returns the address of the synonym leaf table.
    pub fn synonym_table(&self) -> RemoteAddr {
        self.counter.block_start()
    }
}

/// Leaves that one doorbell fetches for a key, when the search layer names no single leaf.
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    /// Leaves, one of which probably has the key.
    pub leaves: Vec<Hint>,
    /// Number of leaves, from the first on, that are adjacent and are read with one verb.
    pub side_by_side: usize,
    /// Address of the word that shows whether the synonym leaf table has grown.
    pub counter: Option<WordAddr>,
    /// Number of the model, if there is a counter.
    pub model: u32,
    /// Residual pages of `snapshot` to read in the same batch.
    pub pages: Vec<PageRead>,
    /// Snapshot that `pages` belong to.
    pub snapshot: Option<Rc<PagedSnapshot>>,
}

impl Candidates {
    /// Returns candidates with a single leaf.
    pub fn of(leaf: Hint) -> Self {
        Self {
            leaves: vec![leaf],
            ..Self::default()
        }
    }
}

/// Search layer of one session. All methods are pure computation over what the session holds, and
/// all results are hints.
pub trait SearchLayer {
    /// Returns the leaf that the key is most likely in.
    fn locate(&self, key: u64) -> Hint;

    /// Returns the leaf to try when `failed` was too far right of the key; `None` if no leaf is
    /// known further left.
    fn left_of(&self, key: u64, failed: Hint) -> Option<Hint>;

    /// Returns the trained leaf after `parent`; `None` if there is none, or if the layer does not
    /// know the leaves in order.
    fn next_trained(&self, parent: u32) -> Option<Hint> {
        let _ = parent;
        None
    }

    /// Records a leaf that a split made, by this session or another. The default does nothing, for
    /// layers that cache no leaves.
    fn learn(&mut self, low: u64, leaf: Hint) {
        let _ = (low, leaf);
    }

    /// Adds the known synonyms of a trained leaf with lower fences above `from` to `found`, in
    /// order, until `found` has `limit` leaves.
    fn synonyms_above(&self, parent: u32, from: u64, limit: usize, found: &mut Vec<RemoteAddr>) {
        let _ = (parent, from, limit, found);
    }

    /// Returns where a split of a leaf with this parent is announced; `None` in tables without
    /// models.
    fn announcement(&self, parent: u32) -> Option<Announcement> {
        let _ = parent;
        None
    }

    /// Returns how many announcements of a model this session has read.
    fn announced_read_count(&self, model: u32) -> u32 {
        let _ = model;
        0
    }

    /// Records that `entries`, the announcements of a model from number `seen` on, have been read.
    fn note_announced(&mut self, model: u32, seen: u32, entries: &[u64]) {
        let _ = (model, seen, entries);
    }

    /// Returns the bytes that the session holds for this layer: models, upper models, residuals,
    /// tables, synonyms. Shared structures are counted completely.
    fn metadata_bytes(&self) -> u64;
}
