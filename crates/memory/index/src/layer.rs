//! Which search layer a table uses, chosen when it is created.

use core::fmt;
use core::str::FromStr;
use std::sync::Arc;

use farleaf_leaf::LeafGeometry;
use farleaf_types::RemoteAddr;

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

/// The search layers that a table can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LayerKind {
    /// Runs, models and residual bytes: one leaf per get.
    #[default]
    Learned,
    /// ROLEX as its paper has it: a range of leaves per get.
    Rolex,
    /// RF-tree: a tree in far memory, of which each compute node caches what lists leaves.
    RfTree,
    /// The same tree without any cache, as FG has it: a round trip per level.
    Fg,
    /// The same tree with a cache of some of its nodes, as Sherman has it.
    Sherman,
    /// The same tree with a cache of all levels but the lowest, as Cell has it.
    Cell,
    /// XStore: models that the memory node trains, over leaves that it alone changes.
    Xstore,
    /// None: the memory node holds the records in a map of its own, and every operation is a call.
    Rpc,
}

/// A name that is no search layer's.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "'{0}' is no search layer; there are 'learned', 'rolex', 'rf-tree', 'fg', 'sherman', \
     'cell', 'xstore' and 'rpc'"
)]
pub struct UnknownLayer(pub String);

impl LayerKind {
    /// All of them.
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

    /// Those whose records lie in leaves in far memory that clients read and write by themselves.
    pub const OF_LEAVES: [Self; 6] = [
        Self::Learned,
        Self::Rolex,
        Self::RfTree,
        Self::Fg,
        Self::Sherman,
        Self::Cell,
    ];

    /// Whether leaves are found by a tree in far memory, and not by models.
    pub const fn has_tree(self) -> bool {
        matches!(self, Self::RfTree | Self::Fg | Self::Sherman | Self::Cell)
    }

    /// The lowest level of inner nodes that sessions cache one by one; 1: that above the leaves.
    pub const fn cached_level_min(self) -> Option<u16> {
        match self {
            Self::Sherman => Some(1),
            Self::Cell => Some(2),
            _ => None,
        }
    }

    /// Whether the records lie in leaves, which clients reach by themselves; else in the memory
    /// node's own memory, and what is in far memory is a leaf without records.
    pub const fn has_leaves(self) -> bool {
        !matches!(self, Self::Rpc)
    }

    /// Whether tables of byte strings can have it.
    pub const fn has_byte_tables(self) -> bool {
        matches!(self, Self::Learned | Self::RfTree | Self::Rpc)
    }

    /// Whether the memory node executes every write, and clients read by themselves.
    pub const fn has_node_writes(self) -> bool {
        matches!(self, Self::Xstore)
    }

    /// Whether the memory node's background thread trains what clients cache, where it is told to.
    pub const fn is_retrained(self) -> bool {
        !self.has_tree() && !self.has_calls()
    }

    /// Whether some operations are calls of the memory node.
    pub const fn has_calls(self) -> bool {
        self.has_node_writes() || !self.has_leaves()
    }

    /// The number in the catalog.
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

    /// The layer with this number in the catalog.
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

    /// The name for users.
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

/// The search layer of one session on one table.
#[derive(Debug)]
pub enum Layer {
    /// See [`LayerKind::Learned`].
    Learned(LearnedLayer),
    /// See [`LayerKind::Rolex`].
    Rolex(RolexLayer),
    /// [`LayerKind::Learned`] under a metadata budget (L3.1 to L3.6).
    Partial(Box<PartialLayer>),
    /// See [`LayerKind::RfTree`].
    RfTree(RfTreeLayer),
    /// See [`LayerKind::Fg`].
    Fg(FgLayer),
    /// See [`LayerKind::Sherman`] and [`LayerKind::Cell`].
    InnerCache(Box<InnerCacheLayer>),
    /// See [`LayerKind::Xstore`]: a client's.
    Xstore(Box<XstoreLayer>),
    /// The same: the memory node's own.
    Inner(Box<InnerLayer>),
}

impl Layer {
    /// A session's layer over a directory that its process shares.
    pub fn new(kind: LayerKind, directory: Arc<Directory>) -> Self {
        match kind {
            // Residuals name leaves of runs. Where leaves lie anywhere, ranges of them are read.
            LayerKind::Learned | LayerKind::Rpc | LayerKind::Xstore
                if !directory.has_leaf_table() =>
            {
                Self::Learned(LearnedLayer::new(directory))
            }
            _ => Self::Rolex(RolexLayer::new(directory)),
        }
    }

    /// Searches in a newer directory from now on. What was learned of leaves that have stayed may
    /// be kept.
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

    /// The head of the tree that the layer searches in, if it does.
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

    /// A client's layer on a table whose models the memory node has, if it is one.
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

    /// A session's layer on a `learned` table of which it holds no more than a budget.
    pub fn partial(snapshot: PagedSnapshot, budget: Budget) -> Self {
        Self::Partial(Box::new(PartialLayer::new(snapshot, budget)))
    }

    /// The layer over part of a directory, if it is one.
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

    /// Which training made what it searches in.
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

    /// How many records that was trained on.
    #[inline]
    pub fn record_count(&self) -> u64 {
        if let Self::Learned(layer) = self {
            // Every scan asks.
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

    /// How many trained leaves there are; of a tree without a cache of all of it, how many leaves
    /// there were when its head was read.
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

    /// How many models there are.
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

    /// Number of a model's first leaf, if all models are held.
    pub fn first_leaf_of(&self, model: u32) -> Option<u32> {
        match self.searched() {
            Searched::Directory(directory) => Some(directory.first_leaf_of(model as usize)),
            _ => None,
        }
    }

    /// The trained leaf with this number, and how many of its model lie side by side from it on, of
    /// `count_max` at the most; `None` when there is none, or when its model is not held.
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

    /// The trained leaf with this number, as [`run_from`](Self::run_from) tells it.
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

    /// The table's first leaf.
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

    /// Whether a leaf is the trained one of its number, or may be as far as what is held tells.
    pub fn may_be_trained(&self, leaf: Hint) -> bool {
        match self {
            Self::Partial(layer) => return layer.may_be_trained(leaf),
            // There is nothing to be learned.
            Self::Fg(_) | Self::InnerCache(_) | Self::Xstore(_) => return true,
            Self::Inner(_) => return false,
            Self::Learned(_) | Self::Rolex(_) | Self::RfTree(_) => {}
        }
        let trained = self.leaf(leaf.parent);
        trained.is_some_and(|trained| trained.addr == leaf.addr)
    }
}

/// What a layer searches in.
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

    fn announced_seen(&self, model: u32) -> u32 {
        delegate!(self, layer => layer.announced_seen(model))
    }

    fn note_announced(&mut self, model: u32, seen: u32, entries: &[u64]) {
        delegate!(self, layer => layer.note_announced(model, seen, entries));
    }

    fn metadata_bytes(&self) -> u64 {
        delegate!(self, layer => layer.metadata_bytes())
    }
}
