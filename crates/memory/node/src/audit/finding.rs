//! What an audit can find.

use farleaf_region::layout::ChunkIndex;
use farleaf_types::{OwnerWord, RemoteAddr, TableId};
use thiserror::Error;

/// A promise that something in a region breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Promise {
    /// The catalog can be read, and no two tables of it are alike (C1, C2).
    Catalog,
    /// Ranges tile the keys, and each record lies in its leaf's range, once (D6).
    Tiling,
    /// Nobody holds anything (D8, A1).
    Locks,
    /// Every chunk and every leaf is in use or free, never both, and what is free is zero (A4, W3,
    /// W4).
    Leaks,
    /// The root is the one that the first leaf and the load agree on, and leads to the chain (B2 to
    /// B4).
    Root,
}

/// Something in a region that breaks a promise.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Finding {
    /// C1.
    #[error("the catalog is locked by {owner}")]
    CatalogLocked {
        /// By whom.
        owner: OwnerWord,
    },
    /// An entry's checksum does not match.
    #[error("catalog entry {index} is damaged")]
    EntryDamaged {
        /// Which.
        index: u64,
    },
    /// A table that has the number or the name of another.
    #[error("catalog entry {index} has the number {table} or the name of another")]
    EntryTwice {
        /// The later of the two.
        index: u64,
        /// Its number.
        table: TableId,
    },
    /// No leaf has so many slots.
    #[error("{table} has leaves of {slots} slots, which there are not")]
    SlotsUnknown {
        /// Which table.
        table: TableId,
        /// What its entry says.
        slots: u8,
    },

    /// An image whose checksum does not match: the walk ends here.
    #[error("leaf {leaf} of {table} is damaged: its checksum does not match")]
    LeafDamaged {
        /// Whose.
        table: TableId,
        /// Which.
        leaf: RemoteAddr,
    },
    /// The links lead in a circle: the walk ends here.
    #[error("leaf {leaf} of {table} is linked twice")]
    LeafLinkedTwice {
        /// Whose.
        table: TableId,
        /// Which.
        leaf: RemoteAddr,
    },
    /// A link leads to a place where the table has no leaf: the walk ends here.
    #[error("leaf {leaf} of {table} is no place for a leaf in the table's chunks")]
    LeafElsewhere {
        /// Whose.
        table: TableId,
        /// The place.
        leaf: RemoteAddr,
    },
    /// A link leads to a leaf that was retired; only the first leaf may be, by a load.
    #[error("leaf {leaf} of {table} is retired and linked")]
    LeafRetired {
        /// Whose.
        table: TableId,
        /// Which.
        leaf: RemoteAddr,
    },
    /// The range of a leaf does not begin where the one before it ended.
    #[error("leaf {leaf} of {table} has keys {low:#x} to {high:#x}, where {due:#x} was due")]
    RangeBroken {
        /// Whose.
        table: TableId,
        /// Which.
        leaf: RemoteAddr,
        /// Its lower fence.
        low: u64,
        /// Its upper fence.
        high: u64,
        /// Where it has to begin.
        due: u64,
    },
    /// The links end before the largest key.
    #[error("the leaves of {table} end before {due:#x}")]
    ChainShort {
        /// Whose.
        table: TableId,
        /// The first key that no leaf covers.
        due: u64,
    },
    /// A key twice, or outside of its leaf's fences.
    #[error("leaf {leaf} of {table} has a key twice or outside of its fences")]
    RecordMisplaced {
        /// Whose.
        table: TableId,
        /// Which.
        leaf: RemoteAddr,
    },

    /// A leaf, or a place for one, whose lock somebody holds.
    #[error("leaf {leaf} is locked by {owner}")]
    LeafLocked {
        /// Which.
        leaf: RemoteAddr,
        /// By whom.
        owner: OwnerWord,
    },
    /// A chunk that somebody leases.
    #[error("chunk {} is leased by {owner}", .chunk.0)]
    ChunkLeased {
        /// Which.
        chunk: ChunkIndex,
        /// By whom.
        owner: OwnerWord,
    },

    /// A4.
    #[error("chunk {} is free and not zero", .chunk.0)]
    ChunkNotZero {
        /// Which.
        chunk: ChunkIndex,
    },
    /// A purpose that this version does not know.
    #[error("chunk {} is for something unknown", .chunk.0)]
    PurposeUnknown {
        /// Which.
        chunk: ChunkIndex,
    },
    /// A chunk in use that belongs to no table.
    #[error("chunk {} is of {table}, which there is not", .chunk.0)]
    ChunkOfNoTable {
        /// Which.
        chunk: ChunkIndex,
        /// Whose it says it is.
        table: TableId,
    },
    /// A chunk of leaves of another size than its table's.
    #[error("chunk {} of {table} has leaves of {slots} slots, the table has not", .chunk.0)]
    ChunkOfOtherSlots {
        /// Which.
        chunk: ChunkIndex,
        /// Whose.
        table: TableId,
        /// What the chunk says.
        slots: u8,
    },
    /// W4.
    #[error("chunk {} of {table} is of load {generation}, which never happened", .chunk.0)]
    ChunkOfNoLoad {
        /// Which.
        chunk: ChunkIndex,
        /// Whose.
        table: TableId,
        /// Of which load.
        generation: u16,
    },
    /// A chunk of a run in which no linked leaf lies.
    #[error("chunk {} of {table} is of a run and holds no linked leaf", .chunk.0)]
    RunChunkUnused {
        /// Which.
        chunk: ChunkIndex,
        /// Whose.
        table: TableId,
    },
    /// The root names chunks that the table has not, or not for that.
    #[error(
        "{table} has {found} of {expected} chunks that its root of generation {generation} names"
    )]
    NamedChunkMissing {
        /// Whose.
        table: TableId,
        /// Of which load or retraining the root is.
        generation: u16,
        /// How many it has.
        found: u64,
        /// How many are named.
        expected: u64,
    },
    /// W3: a leaf that may be leased while it is in use.
    #[error("leaf {leaf} of {table} is free and in use")]
    LeafFreeAndUsed {
        /// Whose.
        table: TableId,
        /// Which.
        leaf: RemoteAddr,
    },
    /// W3: a leaf that nobody can ever use again.
    #[error("leaf {leaf} of {table} is neither free nor in use")]
    LeafLost {
        /// Whose.
        table: TableId,
        /// Which.
        leaf: RemoteAddr,
    },
    /// Free bits of leaves that the chunk has not.
    #[error("chunk {} has {found} free leaves, of which only {possible} can be", .chunk.0)]
    FreeBeyondEnd {
        /// Which.
        chunk: ChunkIndex,
        /// Bits that are set.
        found: u64,
        /// Those that stand for a leaf.
        possible: u64,
    },

    /// B4: the root is of a load, or of none, and the first leaf tells otherwise.
    #[error(
        "the root of {table} is of load {generation} (0: none), but its first leaf is {}retired",
        if *.is_retired { "" } else { "not " }
    )]
    RootContradictsFirstLeaf {
        /// Whose.
        table: TableId,
        /// Of which load the root is.
        generation: u16,
        /// Whether the first leaf was retired by a load.
        is_retired: bool,
    },
    /// B4: a load is committed and its root was never swapped in.
    #[error("the root of {table} is {root}, and {pending} was to be installed")]
    RootUnfinished {
        /// Whose.
        table: TableId,
        /// What it is.
        root: RemoteAddr,
        /// What it is to be.
        pending: RemoteAddr,
    },
    /// The root names no snapshot of its load.
    #[error("the root of {table}, {root}, is not where a snapshot of the table begins")]
    RootElsewhere {
        /// Whose.
        table: TableId,
        /// What it is.
        root: RemoteAddr,
    },
    /// The snapshot that the root names.
    #[error("the snapshot of {table} at {root} is damaged: {how}")]
    SnapshotDamaged {
        /// Whose.
        table: TableId,
        /// What names it.
        root: RemoteAddr,
        /// What is wrong with it.
        how: String,
    },
    /// I2: the nodes of a level of the tree do not cover all keys, each once.
    #[error("inner nodes of level {level} of {table} are broken at {node}")]
    InnerRangeBroken {
        /// Whose.
        table: TableId,
        /// Of which level.
        level: u16,
        /// Where the walk along the level ended, or met another range than was due.
        node: RemoteAddr,
    },
    /// I3: the tree names a place where the table has no leaf.
    #[error("inner node {node} of {table} lists {child}, where the table has no leaf")]
    ChildNotLinked {
        /// Whose.
        table: TableId,
        /// Which.
        node: RemoteAddr,
        /// What it lists.
        child: RemoteAddr,
    },
    /// The snapshot knows a leaf that is not in the chain, or another first one.
    #[error("the snapshot of {table} leads to leaf {leaf}, which is not the chain's")]
    TrainedLeafNotLinked {
        /// Whose.
        table: TableId,
        /// Which.
        leaf: RemoteAddr,
    },
}

impl Finding {
    /// The promise that it breaks.
    pub fn promise(&self) -> Promise {
        match self {
            Self::EntryDamaged { .. } | Self::EntryTwice { .. } | Self::SlotsUnknown { .. } => {
                Promise::Catalog
            }
            Self::LeafDamaged { .. }
            | Self::LeafLinkedTwice { .. }
            | Self::LeafElsewhere { .. }
            | Self::LeafRetired { .. }
            | Self::RangeBroken { .. }
            | Self::ChainShort { .. }
            | Self::RecordMisplaced { .. } => Promise::Tiling,
            Self::CatalogLocked { .. } | Self::LeafLocked { .. } | Self::ChunkLeased { .. } => {
                Promise::Locks
            }
            Self::ChunkNotZero { .. }
            | Self::PurposeUnknown { .. }
            | Self::ChunkOfNoTable { .. }
            | Self::ChunkOfOtherSlots { .. }
            | Self::ChunkOfNoLoad { .. }
            | Self::RunChunkUnused { .. }
            | Self::NamedChunkMissing { .. }
            | Self::LeafFreeAndUsed { .. }
            | Self::LeafLost { .. }
            | Self::FreeBeyondEnd { .. } => Promise::Leaks,
            Self::RootContradictsFirstLeaf { .. }
            | Self::RootUnfinished { .. }
            | Self::RootElsewhere { .. }
            | Self::SnapshotDamaged { .. }
            | Self::InnerRangeBroken { .. }
            | Self::ChildNotLinked { .. }
            | Self::TrainedLeafNotLinked { .. } => Promise::Root,
        }
    }
}
