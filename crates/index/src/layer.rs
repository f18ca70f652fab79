//! Which search layer a table uses, chosen when it is created.

use core::fmt;
use core::str::FromStr;
use std::sync::Arc;

use farleaf_types::RemoteAddr;

use crate::directory::Directory;
use crate::hint::{Announcement, Hint, SearchLayer};
use crate::learned::LearnedLayer;
use crate::partial::{Budget, PartialLayer};
use crate::rolex::RolexLayer;
use crate::snapshot::{PagedSnapshot, SnapshotHeader};

/// The search layers that a table can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LayerKind {
    /// Runs, models and residual bytes: one leaf per get.
    #[default]
    Learned,
    /// ROLEX as its paper has it: a range of leaves per get.
    Rolex,
}

/// A name that is no search layer's.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("'{0}' is no search layer; there are 'learned' and 'rolex'")]
pub struct UnknownLayer(pub String);

impl LayerKind {
    /// The number in the catalog.
    pub const fn number(self) -> u8 {
        match self {
            Self::Learned => 1,
            Self::Rolex => 2,
        }
    }

    /// The layer with this number in the catalog.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Learned),
            2 => Some(Self::Rolex),
            _ => None,
        }
    }

    /// The name for users.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Learned => "learned",
            Self::Rolex => "rolex",
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
        [Self::Learned, Self::Rolex]
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
}

impl Layer {
    /// A session's layer over a directory that its process shares.
    pub fn new(kind: LayerKind, directory: Arc<Directory>) -> Self {
        match kind {
            // Residuals name leaves of runs. Where leaves lie anywhere, ranges of them are read.
            LayerKind::Learned if !directory.has_leaf_table() => {
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
            Self::Learned(_) | Self::Rolex(_) => None,
        }
    }

    pub(crate) fn as_partial_mut(&mut self) -> Option<&mut PartialLayer> {
        match self {
            Self::Partial(layer) => Some(layer),
            Self::Learned(_) | Self::Rolex(_) => None,
        }
    }

    fn searched(&self) -> Searched<'_> {
        match self {
            Self::Learned(layer) => Searched::Directory(layer.directory()),
            Self::Rolex(layer) => Searched::Directory(layer.directory()),
            Self::Partial(layer) => Searched::Snapshot(layer.snapshot().header()),
        }
    }

    /// Which training made what it searches in.
    pub fn generation(&self) -> u16 {
        match self.searched() {
            Searched::Directory(directory) => directory.generation(),
            Searched::Snapshot(header) => header.generation,
        }
    }

    /// How many records that was trained on.
    pub fn record_count(&self) -> u64 {
        match self.searched() {
            Searched::Directory(directory) => directory.record_count(),
            Searched::Snapshot(header) => header.record_count,
        }
    }

    /// How many trained leaves there are.
    pub fn leaf_count(&self) -> u32 {
        match self.searched() {
            Searched::Directory(directory) => directory.leaf_count(),
            Searched::Snapshot(header) => header.leaf_count,
        }
    }

    /// How many models there are.
    pub fn model_count(&self) -> usize {
        match self.searched() {
            Searched::Directory(directory) => directory.model_count(),
            Searched::Snapshot(header) => header.model_count as usize,
        }
    }

    /// Number of a model's first leaf, if all models are held.
    pub fn first_leaf_of(&self, model: u32) -> Option<u32> {
        match self.searched() {
            Searched::Directory(directory) => Some(directory.first_leaf_of(model as usize)),
            Searched::Snapshot(_) => None,
        }
    }

    /// The trained leaf with this number, and how many of its model lie side by side from it on, of
    /// `count_max` at the most; `None` when there is none, or when its model is not held.
    pub fn run_from(&self, number: u32, count_max: u32) -> Option<(Hint, u32)> {
        match self {
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
            Searched::Snapshot(_) => self.run_from(number, 1).map(|(leaf, _)| leaf),
        }
    }

    /// The table's first leaf.
    pub fn first_leaf(&self) -> Hint {
        match self {
            Self::Partial(layer) => layer.first_of_page(0),
            _ => self.leaf(0).expect("a directory has at least one leaf"),
        }
    }

    /// Whether a leaf is the trained one of its number, or may be as far as what is held tells.
    pub fn may_be_trained(&self, leaf: Hint) -> bool {
        if let Self::Partial(layer) = self {
            return layer.may_be_trained(leaf);
        }
        let trained = self.leaf(leaf.parent);
        trained.is_some_and(|trained| trained.addr == leaf.addr)
    }
}

/// What a layer searches in.
enum Searched<'a> {
    Directory(&'a Directory),
    Snapshot(&'a SnapshotHeader),
}

macro_rules! delegate {
    ($self:ident, $layer:ident => $call:expr) => {
        match $self {
            Layer::Learned($layer) => $call,
            Layer::Rolex($layer) => $call,
            Layer::Partial($layer) => $call,
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
        delegate!(self, layer => layer.next_trained(parent))
    }

    fn learn(&mut self, low: u64, leaf: Hint) {
        delegate!(self, layer => layer.learn(low, leaf));
    }

    fn synonyms_above(&self, parent: u32, from: u64, limit: usize, found: &mut Vec<RemoteAddr>) {
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
