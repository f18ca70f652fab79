//! Which search layer a table uses, chosen when it is created.

use core::fmt;
use core::str::FromStr;
use std::sync::Arc;

use farleaf_types::RemoteAddr;

use crate::directory::Directory;
use crate::hint::{Announcement, Hint, SearchLayer};
use crate::learned::LearnedLayer;
use crate::rolex::RolexLayer;

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
}

impl Layer {
    /// A session's layer over a directory that its process shares.
    pub fn new(kind: LayerKind, directory: Arc<Directory>) -> Self {
        match kind {
            LayerKind::Learned => Self::Learned(LearnedLayer::new(directory)),
            LayerKind::Rolex => Self::Rolex(RolexLayer::new(directory)),
        }
    }

    /// Searches in a newer directory from now on. What was learned of leaves that have stayed may
    /// be kept.
    pub fn replace_directory(&mut self, directory: Arc<Directory>) {
        match self {
            Self::Learned(layer) => layer.replace_directory(directory),
            Self::Rolex(layer) => *layer = RolexLayer::new(directory),
        }
    }

    /// The directory that it searches in.
    pub fn directory(&self) -> &Arc<Directory> {
        match self {
            Self::Learned(layer) => layer.directory(),
            Self::Rolex(layer) => layer.directory(),
        }
    }
}

macro_rules! delegate {
    ($self:ident, $layer:ident => $call:expr) => {
        match $self {
            Layer::Learned($layer) => $call,
            Layer::Rolex($layer) => $call,
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
