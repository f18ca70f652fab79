//! Search layers that a table can use, and the layer of a session. A table's layer is chosen when
//! the table is created.

use core::fmt;
use core::str::FromStr;
use std::sync::Arc;

use farleaf_base::RemoteAddr;
use farleaf_leaf::words::LeafGeometry;

use crate::directory::Directory;
use crate::fg::FgLayer;
use crate::hint::{Announcement, Hint, SearchLayer};
use crate::inner_cache::InnerCacheLayer;
use crate::learned::LearnedLayer;
use crate::partial::{Budget, PartialLayer};
use crate::rf_tree::{RfTreeLayer, SearchLayerCache};
use crate::rolex::RolexLayer;
use crate::snapshot::{PagedSnapshot, SnapshotHeader};
use crate::tree::head::Head;
use crate::xstore::{InnerLayer, XstoreLayer};

/// Search layer of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LayerKind {
    /// Runs, models and residual bytes: one leaf per get.
    #[default]
    Learned,
    /// ROLEX as in its paper: a range of leaves per get.
    Rolex,
    /// RF-tree: a tree in far memory; each compute node caches the level that lists leaves.
    RfTree,
    /// FG: the same tree without a cache, one round trip per level.
    Fg,
    /// Sherman: the same tree with a cache of some of its nodes.
    Sherman,
    /// Cell: the same tree with a cache of all levels but the lowest.
    Cell,
    /// XStore: models that the memory node trains, over leaves that only the node changes.
    Xstore,
    /// No search layer: the memory node holds the records in its own map, and every operation is a
    /// call.
    Rpc,
}

/// Error for a name that is not a search layer.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "'{0}' is not a search layer; expected 'learned', 'rolex', 'rf-tree', 'fg', 'sherman', \
     'cell', 'xstore' or 'rpc'"
)]
pub struct UnknownLayer(pub String);

impl LayerKind {
    /// All search layers.
    pub const ALL: [Self; 8] = [
        Self::Learned,
        Self::Rolex,
        Self::RfTree,
        Self::Fg,
        Self::Sherman,
        Self::Cell,
        Self::Xstore,
        Self::Rpc,
    ];

    /// Search layers whose records are in far-memory leaves that clients read and write by
    /// themselves.
    pub const OF_LEAVES: [Self; 6] = [
        Self::Learned,
        Self::Rolex,
        Self::RfTree,
        Self::Fg,
        Self::Sherman,
        Self::Cell,
    ];

    /// Returns whether leaves are found by a tree in far memory instead of models.
    pub const fn has_tree(self) -> bool {
        matches!(self, Self::RfTree | Self::Fg | Self::Sherman | Self::Cell)
    }

    /// Returns the lowest level whose inner nodes sessions cache one by one; 1 is the level above
    /// the leaves.
    pub const fn cached_level_min(self) -> Option<u16> {
        match self {
            Self::Sherman => Some(1),
            Self::Cell => Some(2),
            _ => None,
        }
    }

    /// Returns whether records are in leaves. If not, they are in the memory node's own memory, and
    /// far memory has a leaf without records.
    pub const fn has_leaves(self) -> bool {
        !matches!(self, Self::Rpc)
    }

    /// Returns whether tables of byte strings support the layer.
    pub const fn has_byte_tables(self) -> bool {
        matches!(self, Self::Learned | Self::RfTree | Self::Rpc)
    }

    /// Returns whether the memory node executes every write while clients read by themselves.
    pub const fn has_node_writes(self) -> bool {
        matches!(self, Self::Xstore)
    }

    /// Returns whether the memory node's background thread, if enabled, trains what clients cache.
    pub const fn is_retrained(self) -> bool {
        !self.has_tree() && !self.has_calls()
    }

    /// Returns whether some operations are calls of the memory node.
    pub const fn has_calls(self) -> bool {
        self.has_node_writes() || !self.has_leaves()
    }

    /// Returns the layer's number in the catalog.
    pub const fn number(self) -> u8 {
        match self {
            Self::Learned => 1,
            Self::Rolex => 2,
            Self::RfTree => 3,
            Self::Fg => 4,
            Self::Sherman => 5,
            Self::Rpc => 6,
            Self::Xstore => 7,
            Self::Cell => 8,
        }
    }

    /// Returns the layer with this number in the catalog.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Learned),
            2 => Some(Self::Rolex),
            3 => Some(Self::RfTree),
            4 => Some(Self::Fg),
            5 => Some(Self::Sherman),
            6 => Some(Self::Rpc),
            7 => Some(Self::Xstore),
            8 => Some(Self::Cell),
            _ => None,
        }
    }

    /// Returns the name for users.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Learned => "learned",
            Self::Rolex => "rolex",
            Self::RfTree => "rf-tree",
            Self::Fg => "fg",
            Self::Sherman => "sherman",
            Self::Cell => "cell",
            Self::Xstore => "xstore",
            Self::Rpc => "rpc",
        }
    }
}

impl fmt::Display for LayerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for LayerKind {
    type Err = UnknownLayer;

    fn from_str(name: &str) -> Result<Self, UnknownLayer> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| UnknownLayer(name.to_owned()))
    }
}

/// Search layer of one session on one table.
#[derive(Debug)]
pub enum Layer {
    /// Layer of a session for [`LayerKind::Learned`].
    Learned(LearnedLayer),
    /// Layer of a session for [`LayerKind::Rolex`].
    Rolex(RolexLayer),
    /// Layer of a session for [`LayerKind::Learned`] under a metadata budget.
    Partial(Box<PartialLayer>),
    /// Layer of a session for [`LayerKind::RfTree`].
    RfTree(RfTreeLayer),
    /// Layer of a session for [`LayerKind::Fg`].
    Fg(FgLayer),
    /// Layer of a session for [`LayerKind::Sherman`] or [`LayerKind::Cell`].
    InnerCache(Box<InnerCacheLayer>),
    /// Layer of a client's session for [`LayerKind::Xstore`].
    Xstore(Box<XstoreLayer>),
    /// Layer of the memory node's own sessions for [`LayerKind::Xstore`].
    Inner(Box<InnerLayer>),
}

impl Layer {
    /// Creates a session's layer over a directory that its process shares.
    pub fn new(kind: LayerKind, directory: Arc<Directory>) -> Self {
        match kind {
            // Residuals name leaves of runs. If leaves are not adjacent, ranges of them are read.
            LayerKind::Learned | LayerKind::Rpc | LayerKind::Xstore
                if !directory.has_leaf_table() =>
            {
                Self::Learned(LearnedLayer::new(directory))
            }
            _ => Self::Rolex(RolexLayer::new(directory)),
        }
    }

    /// Replaces the directory by a newer one. May keep what was learned of leaves that stayed.
    pub fn replace_directory(&mut self, directory: Arc<Directory>) {
        match self {
            Self::Learned(layer) if !directory.has_leaf_table() => {
                layer.replace_directory(directory);
            }
            Self::Rolex(layer) => *layer = layer.with_directory(directory),
            Self::Learned(_) => *self = Self::new(LayerKind::Learned, directory),
            Self::Partial(_) => unreachable!("sessions with a budget read snapshots by pages"),
            Self::RfTree(_) | Self::Fg(_) | Self::InnerCache(_) => {
                unreachable!("trees have no directory")
            }
            Self::Xstore(_) | Self::Inner(_) => unreachable!("models are the node's"),
        }
    }

    /// Returns the head of the tree that the layer searches, if any.
    pub fn tree_head(&self) -> Option<&Head> {
        match self {
            Self::RfTree(layer) => Some(layer.cache().head()),
            Self::Fg(layer) => Some(layer.head()),
            Self::InnerCache(layer) => Some(layer.head()),
            Self::Learned(_)
            | Self::Rolex(_)
            | Self::Partial(_)
            | Self::Xstore(_)
            | Self::Inner(_) => None,
        }
    }

    /// Returns a client's layer on a table whose models the memory node trains.
    pub fn as_xstore(&self) -> Option<&XstoreLayer> {
        match self {
            Self::Xstore(layer) => Some(layer),
            _ => None,
        }
    }

    pub(crate) fn as_xstore_mut(&mut self) -> Option<&mut XstoreLayer> {
        match self {
            Self::Xstore(layer) => Some(layer),
            _ => None,
        }
    }

    /// Creates a session's layer on a `learned` table under a metadata budget.
    pub fn partial(snapshot: PagedSnapshot, budget: Budget) -> Self {
        Self::Partial(Box::new(PartialLayer::new(snapshot, budget)))
    }

    /// Returns the layer under a metadata budget, if this is one.
    pub fn as_partial(&self) -> Option<&PartialLayer> {
        match self {
            Self::Partial(layer) => Some(layer),
            _ => None,
        }
    }

    pub(crate) fn as_partial_mut(&mut self) -> Option<&mut PartialLayer> {
        match self {
            Self::Partial(layer) => Some(layer),
            _ => None,
        }
    }

    fn searched(&self) -> Searched<'_> {
        match self {
            Self::Learned(layer) => Searched::Directory(layer.directory()),
            Self::Rolex(layer) => Searched::Directory(layer.directory()),
            Self::Partial(layer) => Searched::Snapshot(layer.snapshot().header()),
            Self::RfTree(layer) => Searched::Cache(layer.cache()),
            Self::Fg(layer) => Searched::Tree(layer.head()),
            Self::InnerCache(layer) => Searched::Tree(layer.head()),
            Self::Xstore(layer) => Searched::Models(layer),
            Self::Inner(layer) => Searched::Inner(layer),
        }
    }

    /// Returns the generation of the training that the layer uses.
    pub fn generation(&self) -> u16 {
        match self.searched() {
            Searched::Directory(directory) => directory.generation(),
            Searched::Snapshot(header) => header.generation,
            Searched::Cache(cache) => cache.head().generation,
            Searched::Tree(head) => head.generation,
            Searched::Models(layer) => layer.head().map_or(0, |head| head.generation as u16),
            Searched::Inner(_) => 0,
        }
    }

    /// Returns the number of records that the training saw.
    #[inline]
    pub fn record_count(&self) -> u64 {
        if let Self::Learned(layer) = self {
            // Fast path: every scan calls this.
            return layer.directory().record_count();
        }
        match self.searched() {
            Searched::Directory(directory) => directory.record_count(),
            Searched::Snapshot(header) => header.record_count,
            Searched::Cache(cache) => cache.head().record_count,
            Searched::Tree(head) => head.record_count,
            Searched::Models(layer) => layer.head().map_or(0, |head| head.record_count),
            Searched::Inner(_) => 0,
        }
    }

    /// Returns the number of trained leaves; for a tree without a complete cache, the number of
    /// leaves when its head was read.
    #[inline]
    pub fn leaf_count(&self) -> u32 {
        if let Self::Learned(layer) = self {
            return layer.directory().leaf_count();
        }
        match self.searched() {
            Searched::Directory(directory) => directory.leaf_count(),
            Searched::Snapshot(header) => header.leaf_count,
            Searched::Cache(cache) => cache.leaf_count(),
            Searched::Tree(head) => u32::try_from(head.leaf_count).unwrap_or(u32::MAX),
            Searched::Models(layer) => {
                let leaf_count = layer.head().map_or(1, |head| head.leaf_count);
                u32::try_from(leaf_count).unwrap_or(u32::MAX)
            }
            Searched::Inner(layer) => u32::try_from(layer.tree().leaf_count()).unwrap_or(u32::MAX),
        }
    }

    /// Returns the number of models.
    pub fn model_count(&self) -> usize {
        match self.searched() {
            Searched::Directory(directory) => directory.model_count(),
            Searched::Snapshot(header) => header.model_count as usize,
            Searched::Models(layer) => {
                let head = layer.head();
                head.map_or(0, |head| head.sub_model_count as usize)
            }
            Searched::Cache(_) | Searched::Tree(_) | Searched::Inner(_) => 0,
        }
    }

    /// Returns the number of a model's first leaf, if all models are held.
    pub fn first_leaf_of(&self, model: u32) -> Option<u32> {
        match self.searched() {
            Searched::Directory(directory) => Some(directory.first_leaf_of(model as usize)),
            _ => None,
        }
    }

    /// Returns the trained leaf with this number, and how many leaves of its model are adjacent
    /// from it on, at most `count_max`. `None` if there is no such leaf, or if its model is not
    /// held.
    pub fn run_from(
        &self,
        geometry: LeafGeometry,
        number: u32,
        count_max: u32,
    ) -> Option<(Hint, u32)> {
        if let Self::Learned(layer) = self {
            return layer.directory().run_from(number, count_max);
        }
        match self {
            Self::RfTree(layer) => layer.run_from(number, count_max, geometry.stride_blocks()),
            Self::Fg(_) | Self::InnerCache(_) | Self::Xstore(_) | Self::Inner(_) => {
                (number == 0).then(|| (self.first_leaf(), 1))
            }
            Self::Learned(layer) => layer.directory().run_from(number, count_max),
            Self::Rolex(layer) => layer.directory().run_from(number, count_max),
            Self::Partial(layer) => {
                let (leaf, count) = layer.run_from(number)?;
                Some((leaf, count.min(count_max.max(1))))
            }
        }
    }

    /// Returns the trained leaf with this number, if [`run_from`](Self::run_from) would find it.
    pub fn leaf(&self, number: u32) -> Option<Hint> {
        match self.searched() {
            Searched::Directory(directory) => directory.leaf(number),
            Searched::Snapshot(_) => {
                let layer = self.as_partial()?;
                layer.run_from(number).map(|(leaf, _)| leaf)
            }
            Searched::Cache(cache) => cache.leaf(number),
            Searched::Tree(_) | Searched::Models(_) | Searched::Inner(_) => {
                (number == 0).then(|| self.first_leaf())
            }
        }
    }

    /// Returns the table's first leaf.
    pub fn first_leaf(&self) -> Hint {
        match self {
            Self::Partial(layer) => layer.first_of_page(0),
            Self::Fg(_) | Self::InnerCache(_) => {
                let head = self.tree_head().expect("a tree");
                Hint {
                    addr: head.first_leaf,
                    parent: 0,
                }
            }
            Self::Xstore(layer) => Hint {
                addr: layer.first_leaf(),
                parent: 0,
            },
            Self::Inner(layer) => Hint {
                addr: layer.tree().find(0),
                parent: 0,
            },
            _ => self.leaf(0).expect("a directory has at least one leaf"),
        }
    }

    /// Returns whether a leaf is, or may be, the trained leaf with its number.
    pub fn may_be_trained(&self, leaf: Hint) -> bool {
        match self {
            Self::Partial(layer) => return layer.may_be_trained(leaf),
            // Layers of these kinds learn no leaves.
            Self::Fg(_) | Self::InnerCache(_) | Self::Xstore(_) => return true,
            Self::Inner(_) => return false,
            Self::Learned(_) | Self::Rolex(_) | Self::RfTree(_) => {}
        }
        let trained = self.leaf(leaf.parent);
        trained.is_some_and(|trained| trained.addr == leaf.addr)
    }
}

/// Structure that a layer searches.
enum Searched<'a> {
    Directory(&'a Directory),
    Snapshot(&'a SnapshotHeader),
    Cache(&'a SearchLayerCache),
    Tree(&'a Head),
    Models(&'a XstoreLayer),
    Inner(&'a InnerLayer),
}

macro_rules! delegate {
    ($self:ident, $layer:ident => $call:expr) => {
        match $self {
            Layer::Learned($layer) => $call,
            Layer::Rolex($layer) => $call,
            Layer::Partial($layer) => $call,
            Layer::RfTree($layer) => $call,
            Layer::Fg($layer) => $call,
            Layer::InnerCache($layer) => $call,
            Layer::Xstore($layer) => $call,
            Layer::Inner($layer) => $call,
        }
    };
}

impl SearchLayer for Layer {
    #[inline]
    fn locate(&self, key: u64) -> Hint {
        delegate!(self, layer => layer.locate(key))
    }

    fn left_of(&self, key: u64, failed: Hint) -> Option<Hint> {
        delegate!(self, layer => layer.left_of(key, failed))
    }

    #[inline]
    fn next_trained(&self, parent: u32) -> Option<Hint> {
        if let Self::Learned(layer) = self {
            return layer.next_trained(parent);
        }
        delegate!(self, layer => layer.next_trained(parent))
    }

    fn learn(&mut self, low: u64, leaf: Hint) {
        delegate!(self, layer => layer.learn(low, leaf));
    }

    #[inline]
    fn synonyms_above(&self, parent: u32, from: u64, limit: usize, found: &mut Vec<RemoteAddr>) {
        if let Self::Learned(layer) = self {
            return layer.synonyms_above(parent, from, limit, found);
        }
        delegate!(self, layer => layer.synonyms_above(parent, from, limit, found));
    }

    fn announcement(&self, parent: u32) -> Option<Announcement> {
        delegate!(self, layer => layer.announcement(parent))
    }

    fn announced_read_count(&self, model: u32) -> u32 {
        delegate!(self, layer => layer.announced_read_count(model))
    }

    fn note_announced(&mut self, model: u32, seen: u32, entries: &[u64]) {
        delegate!(self, layer => layer.note_announced(model, seen, entries));
    }

    fn metadata_bytes(&self) -> u64 {
        delegate!(self, layer => layer.metadata_bytes())
    }
}
