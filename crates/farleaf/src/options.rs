//! What can be chosen, and its limits.

use farleaf_byte_index::load::ByteLoadPlan;
use farleaf_fabric::verbs::VerbsOptions;
use farleaf_index::LayerKind;
use farleaf_index::inner_cache::CACHE_BYTES_DEFAULT;
use farleaf_index::load::LoadPlan;
use farleaf_index::partial::Budget;
use farleaf_index::tree::node::ENTRY_COUNT_MAX;
use farleaf_index::xstore::ModelCache;
use farleaf_leaf::LeafGeometry;
use farleaf_node::{CallOptions, NodeOptions, RetrainPolicy};
use farleaf_page::PageGeometry;
use farleaf_region::catalog::{NAME_SIZE_BYTES_MAX, TableKind as RecordKind, TableRecord};
use farleaf_region::part::PartRecord;
use farleaf_types::BLOCK_SIZE_BYTES;

use crate::{Error, ErrorKind};

/// How a pool inside this process is made.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Over which fabric.
    pub fabric: EmbeddedFabric,
    /// Size of its region in bytes, at least 2 MiB; rounded up to 2 MiB.
    pub size_bytes: u64,
    /// Threads of its node that retrain tables while they are used: 1, or 0 for none.
    pub retrain_thread_count: u32,
    /// Threads of its node that answer calls, 0 to 64, beside the one that reads them; `None`: one
    /// for four processors.
    pub call_worker_count: Option<u32>,
    /// Threads of its node that train the models of tables with the search layer `xstore`, 1 to 64.
    pub train_thread_count: u32,
}

impl PoolOptions {
    /// What its node does beside serving its memory.
    pub(crate) fn node(&self) -> Result<NodeOptions, Error> {
        Ok(NodeOptions {
            retraining: retrain_policy(self.retrain_thread_count)?,
            calls: call_options(self.call_worker_count, self.train_thread_count)?,
        })
    }
}

/// Threads that answer calls, at the most.
const CALL_WORKER_COUNT_MAX: u32 = 64;

/// Threads that train models, at the most.
const TRAIN_THREAD_COUNT_MAX: u32 = 64;

/// How a node answers calls with so many workers, and trains models with so many threads: what
/// `farleaf serve` does with `--call-workers` and `--train-threads`.
///
/// # Errors
/// There cannot be so many.
pub fn call_options(
    worker_count: Option<u32>,
    train_thread_count: u32,
) -> Result<CallOptions, Error> {
    if !(1..=TRAIN_THREAD_COUNT_MAX).contains(&train_thread_count) {
        return Err(ErrorKind::BadOption {
            option: "train-threads",
            given: train_thread_count.to_string(),
            allowed: format!("there can be 1 to {TRAIN_THREAD_COUNT_MAX}"),
        }
        .into());
    }
    let options = CallOptions {
        train_thread_count,
        ..CallOptions::default()
    };
    match worker_count {
        None => Ok(options),
        Some(worker_count @ 0..=CALL_WORKER_COUNT_MAX) => Ok(CallOptions {
            worker_count,
            ..options
        }),
        Some(worker_count) => Err(ErrorKind::BadOption {
            option: "call-workers",
            given: worker_count.to_string(),
            allowed: format!("there can be 0 to {CALL_WORKER_COUNT_MAX}"),
        }
        .into()),
    }
}

/// Which tables a node retrains, and when, for a number of threads: what `farleaf serve` does with
/// `--retrain-threads`.
///
/// # Errors
/// There cannot be so many.
pub fn retrain_policy(thread_count: u32) -> Result<Option<RetrainPolicy>, Error> {
    match thread_count {
        0 => Ok(None),
        1 => Ok(Some(RetrainPolicy::default())),
        _ => Err(ErrorKind::BadOption {
            option: "retrain-threads",
            given: thread_count.to_string(),
            allowed: "it can be 1, or 0 for no retraining".to_owned(),
        }
        .into()),
    }
}

/// Over which fabric a pool inside this process is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EmbeddedFabric {
    /// Memory of this process alone.
    Mem,
    /// Shared memory; other processes can open `shm:NAME`. Without a name, a name is made up.
    Shm {
        /// The pool's name.
        name: Option<String>,
    },
    /// A memory node that listens on loopback, and is reached as one on another host would be.
    Tcp,
    /// The same with further nodes beside it, each of the pool's size: a pool of several nodes.
    Nodes {
        /// How many nodes there are, with the first one; from 1 to 255.
        node_count: u8,
    },
    /// The same, whose memory an RDMA device of this host serves, over itself.
    Verbs(VerbsOptions),
}

impl Default for PoolOptions {
    /// 256 MiB of this process's memory; one thread retrains.
    fn default() -> Self {
        Self {
            fabric: EmbeddedFabric::Mem,
            size_bytes: 256 << 20,
            retrain_thread_count: 1,
            call_worker_count: None,
            train_thread_count: 1,
        }
    }
}

/// What a table's keys and values are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TableKind {
    /// Words of 64 bits.
    #[default]
    Words,
    /// Byte strings: keys of 0 to 4,096 bytes, values of 0 to 64 MiB.
    Bytes(PageOptions),
}

impl TableKind {
    /// The name for users.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Words => "words",
            Self::Bytes(_) => "bytes",
        }
    }
}

/// What the pages of a table of byte strings are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageOptions {
    /// Size of a page: 512, 1,024 or 2,048 bytes. Smaller ones make reads smaller, larger ones make
    /// metadata smaller.
    pub page_size_bytes: u64,
    /// The largest value that lies in a page, and so comes with the key, in bytes; a larger one
    /// costs a round trip of its own. From 0 to what there is room for in a page.
    pub inline_value_size_bytes: u64,
}

impl Default for PageOptions {
    fn default() -> Self {
        Self {
            page_size_bytes: 1024,
            inline_value_size_bytes: 128,
        }
    }
}

/// How a table is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TableOptions {
    /// What its keys and values are.
    pub kind: TableKind,
    /// Records that a leaf can hold, of a table of words: 8, 12 or 16. Fewer make reads smaller,
    /// more make metadata smaller.
    pub slots: u64,
    /// The search layer.
    pub layer: LayerKind,
    /// How full a bulk load makes leaves, in percent, 25 to 100.
    pub fill_percent: u8,
    /// Error bound of the models in keys, 0.5 to 1024. Smaller makes more models.
    pub epsilon_keys: f64,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self {
            kind: TableKind::Words,
            slots: 8,
            layer: LayerKind::Learned,
            fill_percent: 75,
            epsilon_keys: 16.0,
        }
    }
}

impl TableOptions {
    /// Options of a table of byte strings, the others as they are by default.
    pub fn bytes() -> Self {
        Self {
            kind: TableKind::Bytes(PageOptions::default()),
            ..Self::default()
        }
    }

    /// Whether there can be such a table.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.kind {
            TableKind::Words => self.leaf_geometry().map(drop),
            TableKind::Bytes(pages) => self.page_geometry(pages).map(drop),
        }
    }

    /// What the pages of a table of byte strings are like.
    pub(crate) fn page_geometry(&self, pages: PageOptions) -> Result<PageGeometry, Error> {
        self.check_training()?;
        let geometry = PageGeometry::new(pages.page_size_bytes).map_err(|error| {
            let given = format!("{} bytes", pages.page_size_bytes);
            bad("page size", given, &error.to_string())
        })?;
        if !self.layer.has_byte_tables() {
            let given = self.layer.to_string();
            let allowed = "a table of byte strings can have 'learned', 'rf-tree' or 'rpc'";
            return Err(bad("search layer", given, allowed));
        }
        let inline = pages.inline_value_size_bytes;
        let inline_max = geometry.value_size_bytes_max();
        if inline > inline_max as u64 {
            let allowed = format!(
                "in a page of {} bytes there is room for values of up to {inline_max} bytes",
                pages.page_size_bytes
            );
            let given = format!("{inline} bytes");
            return Err(bad("inline value size", given, &allowed));
        }
        Ok(geometry)
    }

    /// Whether a table can be loaded and trained so.
    fn check_training(&self) -> Result<(), Error> {
        if !(25..=100).contains(&self.fill_percent) {
            let given = format!("{} %", self.fill_percent);
            return Err(bad("fill", given, "it can be 25 to 100 %"));
        }
        if !(0.5..=1024.0).contains(&self.epsilon_keys) {
            let given = self.epsilon_keys.to_string();
            return Err(bad("epsilon", given, "it can be 0.5 to 1024 keys"));
        }
        Ok(())
    }

    /// What the leaves of a table of words are like.
    pub(crate) fn leaf_geometry(&self) -> Result<LeafGeometry, Error> {
        self.check_training()?;
        LeafGeometry::new(self.slots)
            .map_err(|error| bad("slots", self.slots.to_string(), &error.to_string()))
    }

    /// How tables with these options are loaded and retrained.
    pub(crate) fn load_plan(&self) -> LoadPlan {
        LoadPlan {
            kind: self.layer,
            fill_percent: self.fill_percent,
            epsilon_keys: self.epsilon_keys,
            entry_count_max: ENTRY_COUNT_MAX as u32,
        }
    }

    /// How tables of byte strings with these options are loaded and retrained.
    pub(crate) fn byte_load_plan(&self, pages: PageOptions) -> ByteLoadPlan {
        ByteLoadPlan {
            fill_percent: self.fill_percent,
            epsilon_keys: self.epsilon_keys,
            inline_value_size_bytes: pages.inline_value_size_bytes as usize,
            lists_pages: self.has_listing(),
        }
    }

    /// Whether another table lists the pages of such a table (BT1).
    pub(crate) const fn has_listing(&self) -> bool {
        matches!(self.kind, TableKind::Bytes(_)) && matches!(self.layer, LayerKind::RfTree)
    }

    /// The kind as the catalog stores it; of options that were checked.
    pub(crate) fn record_kind(&self) -> RecordKind {
        match self.kind {
            TableKind::Words => RecordKind::Words {
                slots: self.slots as u8,
            },
            TableKind::Bytes(pages) => RecordKind::Bytes {
                page_size_blocks: (pages.page_size_bytes / BLOCK_SIZE_BYTES) as u8,
                inline_value_size_bytes: pages.inline_value_size_bytes as u16,
            },
        }
    }

    /// Epsilon as the catalog stores it.
    pub(crate) fn epsilon_milli(&self) -> u32 {
        (self.epsilon_keys * 1000.0).round() as u32
    }
}

fn bad(option: &'static str, given: String, allowed: &str) -> Error {
    ErrorKind::BadOption {
        option,
        given,
        allowed: allowed.to_owned(),
    }
    .into()
}

/// How a session is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionOptions {
    /// The most bytes that the session holds to find leaves, of each table that it opens; `None`:
    /// as many as there are, shared with the other sessions of the process. With a budget the
    /// session has them for itself, and fetches what it does not hold when it needs it: slower,
    /// never wrong. At least 1 KiB, and for tables of [`LayerKind::Learned`] and
    /// [`LayerKind::Sherman`] and [`LayerKind::Cell`] only; `None` means 64 MiB for the latter two.
    pub metadata_budget_bytes: Option<u64>,
    /// Links that one lookup in a table of [`LayerKind::RfTree`] may follow before the process
    /// reads the tree anew; `None`: 2.
    pub link_count_max: Option<u32>,
    /// What the session keeps of the models of tables of [`LayerKind::Xstore`].
    pub model_cache: ModelCache,
    /// Whether the memory node is asked as soon as a model of such a table has led to a leaf that
    /// does not cover the key, and not only after the link of that was followed.
    pub does_not_speculate: bool,
}

impl SessionOptions {
    /// The budget to search a table of this search layer under, if it is one of models.
    pub(crate) fn budget_for(&self, layer: LayerKind) -> Result<Option<Budget>, Error> {
        let Some(bytes) = self.metadata_budget_bytes else {
            return Ok(None);
        };
        let bad = |given, allowed| ErrorKind::BadOption {
            option: "metadata budget",
            given,
            allowed,
        };
        let budget = Budget::new(bytes).ok_or_else(|| {
            let allowed = format!("it can be {} bytes or more", Budget::BYTES_MIN);
            bad(format!("{bytes} bytes"), allowed)
        })?;
        match layer {
            LayerKind::Learned => Ok(Some(budget)),
            LayerKind::Sherman | LayerKind::Cell => Ok(None),
            other => {
                let given = format!("{bytes} bytes for a table with search layer '{other}'");
                let allowed =
                    "only search layers 'learned', 'sherman' and 'cell' can do with less than all"
                        .to_owned();
                Err(bad(given, allowed).into())
            }
        }
    }

    /// Bytes of inner nodes that a session caches.
    pub(crate) fn cache_bytes(&self) -> u64 {
        self.metadata_budget_bytes.unwrap_or(CACHE_BYTES_DEFAULT)
    }
}

pub(crate) fn check_name(name: &str) -> Result<(), Error> {
    let good = (1..=NAME_SIZE_BYTES_MAX).contains(&name.len()) && !name.contains(char::is_control);
    if good {
        return Ok(());
    }
    Err(ErrorKind::BadOption {
        option: "table name",
        given: format!("{name:?}"),
        allowed: format!(
            "it can be 1 to {NAME_SIZE_BYTES_MAX} bytes of UTF-8 without control characters"
        ),
    }
    .into())
}

/// What there is to know of a table without looking into it.
#[derive(Clone, Debug, PartialEq)]
pub struct TableInfo {
    /// Its name.
    pub name: String,
    /// Its number, never reused in a pool.
    pub id: u32,
    /// How it was made.
    pub options: TableOptions,
    /// Which part of a table over several pools it is; `None`: it is a table by itself.
    pub part: Option<PartRecord>,
}

impl TableInfo {
    /// Refuses a table that is not of this kind, whatever its pages are like.
    pub(crate) fn check_kind(&self, wanted: TableKind) -> Result<(), Error> {
        let (kind, wanted) = (self.options.kind.name(), wanted.name());
        if kind == wanted {
            return Ok(());
        }
        Err(ErrorKind::TableOfOtherKind {
            name: self.name.clone(),
            kind,
            wanted,
        }
        .into())
    }

    pub(crate) fn from_record(record: &TableRecord) -> Result<Self, Error> {
        let unknown = |what| {
            Error::from(ErrorKind::TableUnknown {
                name: record.name.clone(),
                what,
            })
        };
        let layer = LayerKind::from_number(record.search_layer)
            .ok_or_else(|| unknown(format!("search layer {}", record.search_layer)))?;
        let (kind, slots) = match record.kind {
            RecordKind::Words { slots } => (TableKind::Words, u64::from(slots)),
            RecordKind::Bytes {
                page_size_blocks,
                inline_value_size_bytes,
            } => {
                let pages = PageOptions {
                    page_size_bytes: u64::from(page_size_blocks) * BLOCK_SIZE_BYTES,
                    inline_value_size_bytes: inline_value_size_bytes.into(),
                };
                (TableKind::Bytes(pages), TableOptions::default().slots)
            }
        };
        let options = TableOptions {
            kind,
            slots,
            layer,
            fill_percent: record.fill_percent,
            epsilon_keys: f64::from(record.epsilon_milli) / 1000.0,
        };
        options
            .check()
            .map_err(|error| unknown(error.to_string()))?;
        Ok(Self {
            name: record.name.clone(),
            id: record.id.0,
            options,
            part: record.part,
        })
    }
}
