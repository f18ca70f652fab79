//! Options of pools, sessions and tables, and their limits.

use farleaf_base::BLOCK_SIZE_BYTES;
use farleaf_base::limits::TABLE_NAME_SIZE_BYTES_MAX;
use farleaf_fabric::verbs::VerbsOptions;
use farleaf_index::LayerKind;
use farleaf_index::inner_cache::CACHE_BYTES_DEFAULT;
use farleaf_index::load::LoadPlan;
use farleaf_index::partial::Budget;
use farleaf_index::strings::load::ByteLoadPlan;
use farleaf_index::tree::node::ENTRY_COUNT_MAX;
use farleaf_index::xstore::ModelCache;
use farleaf_leaf::strings::PageGeometry;
use farleaf_leaf::words::LeafGeometry;
use farleaf_node::{CallOptions, NodeOptions, RetrainPolicy};
use farleaf_pool::catalog::{TableKind as RecordKind, TableRecord};
use farleaf_pool::part::PartRecord;

use crate::{Error, ErrorKind};

/// Options of a pool inside this process.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Fabric of the pool.
    pub fabric: EmbeddedFabric,
    /// Size of the pool's memory in bytes, at least 2 MiB; rounded up to a multiple of 2 MiB.
    pub size_bytes: u64,
    /// Threads of the node that retrain tables during use: 1, or 0 for none.
    pub retrain_thread_count: u32,
    /// Threads of the node that answer calls, 0 to 64, in addition to the one that reads them;
    /// `None`: one per four processors.
    pub call_worker_count: Option<u32>,
    /// Threads of the node that train the models of tables with the search layer `xstore`, 1 to 64.
    pub train_thread_count: u32,
}

impl PoolOptions {
    /// Returns the options of the node's background threads.
    pub(crate) fn node(&self) -> Result<NodeOptions, Error> {
        Ok(NodeOptions {
            retraining: retrain_policy(self.retrain_thread_count)?,
            calls: call_options(self.call_worker_count, self.train_thread_count)?,
        })
    }
}

/// Largest number of threads that answer calls.
const CALL_WORKER_COUNT_MAX: u32 = 64;

/// Largest number of threads that train models.
const TRAIN_THREAD_COUNT_MAX: u32 = 64;

/// Checks and returns the options for a node's call workers and training threads: `--call-workers`
/// and `--train-threads` of `farleaf serve`.
///
/// # Errors
/// A number is out of range.
pub fn call_options(
    worker_count: Option<u32>,
    train_thread_count: u32,
) -> Result<CallOptions, Error> {
    if !(1..=TRAIN_THREAD_COUNT_MAX).contains(&train_thread_count) {
        return Err(ErrorKind::BadOption {
            option: "train-threads",
            given: train_thread_count.to_string(),
            allowed: format!("expected 1 to {TRAIN_THREAD_COUNT_MAX}"),
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
            allowed: format!("expected 0 to {CALL_WORKER_COUNT_MAX}"),
        }
        .into()),
    }
}

/// Returns the retraining policy of a node with this number of threads: `--retrain-threads` of
/// `farleaf serve`.
///
/// # Errors
/// The number of threads is out of range.
pub fn retrain_policy(thread_count: u32) -> Result<Option<RetrainPolicy>, Error> {
    match thread_count {
        0 => Ok(None),
        1 => Ok(Some(RetrainPolicy::default())),
        _ => Err(ErrorKind::BadOption {
            option: "retrain-threads",
            given: thread_count.to_string(),
            allowed: "expected 1, or 0 for no retraining".to_owned(),
        }
        .into()),
    }
}

/// Fabric of a pool inside this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EmbeddedFabric {
    /// Private memory of this process.
    Mem,
    /// Shared memory; other processes can open it as `shm:NAME`. Without a name, a unique one is
    /// generated.
    Shm {
        /// Name of the pool.
        name: Option<String>,
    },
    /// Memory node that listens on loopback and is accessed like one on another host.
    Tcp,
    /// Several nodes over TCP, each of the pool's size.
    Nodes {
        /// Number of nodes, including the main node; from 1 to 255.
        node_count: u8,
    },
    /// Memory node over TCP whose memory an RDMA device of this host serves through loopback.
    Verbs(VerbsOptions),
}

impl Default for PoolOptions {
    /// Returns options for 256 MiB of this process's memory and one retraining thread.
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

/// Type of a table's keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TableKind {
    /// 64-bit integers.
    #[default]
    Words,
    /// Byte strings: keys of 0 to 4,096 bytes, values of 0 to 64 MiB.
    Bytes(PageOptions),
}

impl TableKind {
    /// Returns the name of the kind as users see it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Words => "words",
            Self::Bytes(_) => "bytes",
        }
    }
}

/// Page format of a table of byte strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageOptions {
    /// Size of a page: 512, 1,024 or 2,048 bytes. Smaller pages make reads smaller, larger ones
    /// make metadata smaller.
    pub page_size_bytes: u64,
    /// Largest value in bytes that is stored in the page with its key; a larger one costs another
    /// round trip. From 0 to the space that a page has.
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

/// Options of a new table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TableOptions {
    /// Type of keys and values.
    pub kind: TableKind,
    /// Records per leaf of a table of words: 8, 12 or 16. Fewer make reads smaller, more make
    /// metadata smaller.
    pub slots: u64,
    /// Search layer of the table.
    pub layer: LayerKind,
    /// Percentage of a leaf's slots that a bulk load fills, 25 to 100.
    pub fill_percent: u8,
    /// Error bound of the models in keys, 0.5 to 1024. A smaller bound makes more models.
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
    /// Returns the default options of a table of byte strings.
    pub fn bytes() -> Self {
        Self {
            kind: TableKind::Bytes(PageOptions::default()),
            ..Self::default()
        }
    }

    /// Checks whether a table can have these options.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.kind {
            TableKind::Words => self.leaf_geometry().map(drop),
            TableKind::Bytes(pages) => self.page_geometry(pages).map(drop),
        }
    }

    /// Returns the page format of a table of byte strings.
    pub(crate) fn page_geometry(&self, pages: PageOptions) -> Result<PageGeometry, Error> {
        self.check_training()?;
        let geometry = PageGeometry::new(pages.page_size_bytes).map_err(|error| {
            let given = format!("{} bytes", pages.page_size_bytes);
            bad("page size", given, &error.to_string())
        })?;
        if !self.layer.has_byte_tables() {
            let given = self.layer.to_string();
            let allowed = "expected 'learned', 'rf-tree' or 'rpc' for a table of byte strings";
            return Err(bad("search layer", given, allowed));
        }
        let inline = pages.inline_value_size_bytes;
        let inline_max = geometry.value_size_bytes_max();
        if inline > inline_max as u64 {
            let allowed = format!(
                "a page of {} bytes has space for values of up to {inline_max} bytes",
                pages.page_size_bytes
            );
            let given = format!("{inline} bytes");
            return Err(bad("inline value size", given, &allowed));
        }
        Ok(geometry)
    }

    /// Checks the options for loading and training.
    fn check_training(&self) -> Result<(), Error> {
        if !(25..=100).contains(&self.fill_percent) {
            let given = format!("{} %", self.fill_percent);
            return Err(bad("fill", given, "expected 25 to 100 %"));
        }
        if !(0.5..=1024.0).contains(&self.epsilon_keys) {
            let given = self.epsilon_keys.to_string();
            return Err(bad("epsilon", given, "expected 0.5 to 1024 keys"));
        }
        Ok(())
    }

    /// Returns the leaf format of a table of words.
    pub(crate) fn leaf_geometry(&self) -> Result<LeafGeometry, Error> {
        self.check_training()?;
        LeafGeometry::new(self.slots)
            .map_err(|error| bad("slots", self.slots.to_string(), &error.to_string()))
    }

    /// Returns the load and retraining plan of tables with these options.
    pub(crate) fn load_plan(&self) -> LoadPlan {
        LoadPlan {
            kind: self.layer,
            fill_percent: self.fill_percent,
            epsilon_keys: self.epsilon_keys,
            entry_count_max: ENTRY_COUNT_MAX as u32,
        }
    }

    /// Returns the load and retraining plan of tables of byte strings with these options.
    pub(crate) fn byte_load_plan(&self, pages: PageOptions) -> ByteLoadPlan {
        ByteLoadPlan {
            fill_percent: self.fill_percent,
            epsilon_keys: self.epsilon_keys,
            inline_value_size_bytes: pages.inline_value_size_bytes as usize,
            lists_pages: self.has_listing(),
        }
    }

    /// Returns whether such a table has a second table that lists its pages.
    pub(crate) const fn has_listing(&self) -> bool {
        matches!(self.kind, TableKind::Bytes(_)) && matches!(self.layer, LayerKind::RfTree)
    }

    /// Returns the kind as the catalog stores it. The options must have been checked.
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

    /// Returns epsilon as the catalog stores it, in thousandths.
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

/// Options of a new session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionOptions {
    /// Most bytes of metadata that the session holds to find leaves, per table that it opens.
    /// `None` means no limit, and a cache shared with the process's other sessions; for
    /// [`LayerKind::Sherman`] and [`LayerKind::Cell`] it means 64 MiB. With a budget the session
    /// has its own cache and fetches missing metadata when needed, which is slower but never wrong.
    /// At least 1 KiB, and only for tables of [`LayerKind::Learned`], [`LayerKind::Sherman`] and
    /// [`LayerKind::Cell`].
    pub metadata_budget_bytes: Option<u64>,
    /// Links that one lookup in a table of [`LayerKind::RfTree`] may follow before the process
    /// reads the tree again; `None`: 2.
    pub link_count_max: Option<u32>,
    /// Part of the models of [`LayerKind::Xstore`] tables that the session caches.
    pub model_cache: ModelCache,
    /// Whether the session asks the memory node at once when a model leads to a leaf that does not
    /// cover the key. By default it follows that leaf's link first.
    pub does_not_speculate: bool,
}

impl SessionOptions {
    /// Returns the metadata budget for a table of this search layer, if the layer has models.
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
            let allowed = format!("expected at least {} bytes", Budget::BYTES_MIN);
            bad(format!("{bytes} bytes"), allowed)
        })?;
        match layer {
            LayerKind::Learned => Ok(Some(budget)),
            LayerKind::Sherman | LayerKind::Cell => Ok(None),
            other => {
                let given = format!("{bytes} bytes for a table with search layer '{other}'");
                let allowed =
                    "only the search layers 'learned', 'sherman' and 'cell' support a budget"
                        .to_owned();
                Err(bad(given, allowed).into())
            }
        }
    }

    /// Returns the bytes of inner nodes that a session caches.
    pub(crate) fn cache_bytes(&self) -> u64 {
        self.metadata_budget_bytes.unwrap_or(CACHE_BYTES_DEFAULT)
    }
}

pub(crate) fn check_name(name: &str) -> Result<(), Error> {
    let good =
        (1..=TABLE_NAME_SIZE_BYTES_MAX).contains(&name.len()) && !name.contains(char::is_control);
    if good {
        return Ok(());
    }
    Err(ErrorKind::BadOption {
        option: "table name",
        given: format!("{name:?}"),
        allowed: format!(
            "expected 1 to {TABLE_NAME_SIZE_BYTES_MAX} bytes of UTF-8 without control characters"
        ),
    }
    .into())
}

/// Properties of a table that are known without reading its leaves.
#[derive(Clone, Debug, PartialEq)]
pub struct TableInfo {
    /// Name of the table.
    pub name: String,
    /// Number of the table, never reused in a pool.
    pub id: u32,
    /// Options with which the table was created.
    pub options: TableOptions,
    /// Identity of the part, if the table is a part of a table over several pools; else `None`.
    pub part: Option<PartRecord>,
}

impl TableInfo {
    /// Returns an error if the table is of another kind; page formats are not compared.
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
            .ok_or_else(|| unknown(format!("unknown search layer {}", record.search_layer)))?;
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
