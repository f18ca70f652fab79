//! Findings of an audit.

use farleaf_base::{OwnerWord, RemoteAddr, TableId};
use farleaf_pool::layout::ChunkIndex;
use thiserror::Error;

/// Invariant of a node's memory that a finding violates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Promise {
    /// The catalog is readable, and its tables have distinct numbers and names.
    Catalog,
    /// Ranges of leaves tile the keys, and each record lies in its leaf's range, once (LEAF-6).
    Tiling,
    /// No locks and no leases are held (LEAF-8).
    Locks,
    /// Every chunk and every leaf is in use or free, never both, and free chunks are zero.
    Leaks,
    /// The root matches the first leaf and the load, and leads to the chain.
    Root,
}

/// Violation of an invariant in a node's memory.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Finding {
    /// The catalog is locked.
    #[error("the catalog is locked by {owner}")]
    CatalogLocked {
        /// Holder of the lock.
        owner: OwnerWord,
    },
    /// The checksum of a catalog entry does not match.
    #[error("catalog entry {index} is corrupted: checksum mismatch")]
    EntryDamaged {
        /// Index of the entry.
        index: u64,
    },
    /// Two tables have the same number or name.
    #[error("catalog entry {index} has the same number ({table}) or name as another entry")]
    EntryTwice {
        /// Index of the later entry.
        index: u64,
        /// Number of the table.
        table: TableId,
    },
    /// The number of slots per leaf is unsupported.
    #[error("{table} has an unsupported leaf size: {slots} slots")]
    SlotsUnknown {
        /// Number of the table.
        table: TableId,
        /// Slots per leaf in the catalog entry.
        slots: u8,
    },

    /// The checksum of a leaf's image does not match; the walk ends here.
    #[error("leaf {leaf} of {table} is corrupted: checksum mismatch")]
    LeafDamaged {
        /// Table of the leaf.
        table: TableId,
        /// Address of the leaf.
        leaf: RemoteAddr,
    },
    /// The links form a cycle; the walk ends here.
    #[error("leaf {leaf} of {table} is linked twice")]
    LeafLinkedTwice {
        /// Table of the leaf.
        table: TableId,
        /// Address of the leaf.
        leaf: RemoteAddr,
    },
    /// A link leads to an address where the table has no leaf; the walk ends here.
    #[error("a link in {table} leads to {leaf}, which is not a leaf in the table's chunks")]
    LeafElsewhere {
        /// Table of the leaf.
        table: TableId,
        /// Address in the link.
        leaf: RemoteAddr,
    },
    /// A link leads to a retired leaf. Only the first leaf may be retired, by a load.
    #[error("leaf {leaf} of {table} is retired but still linked")]
    LeafRetired {
        /// Table of the leaf.
        table: TableId,
        /// Address of the leaf.
        leaf: RemoteAddr,
    },
    /// The range of a leaf does not begin where the previous one ended.
    #[error("leaf {leaf} of {table} has keys {low:#x} to {high:#x}, but should begin at {due:#x}")]
    RangeBroken {
        /// Table of the leaf.
        table: TableId,
        /// Address of the leaf.
        leaf: RemoteAddr,
        /// Lower fence of the leaf.
        low: u64,
        /// Upper fence of the leaf.
        high: u64,
        /// Expected lower fence.
        due: u64,
    },
    /// The links end before the largest key.
    #[error("the leaves of {table} end before {due:#x}")]
    ChainShort {
        /// Table of the chain.
        table: TableId,
        /// First key that no leaf covers.
        due: u64,
    },
    /// A key is in its leaf twice, or lies outside the leaf's fences.
    #[error("leaf {leaf} of {table} has a duplicate key, or a key outside its fences")]
    RecordMisplaced {
        /// Table of the leaf.
        table: TableId,
        /// Address of the leaf.
        leaf: RemoteAddr,
    },

    /// A leaf, or free space for one, is locked.
    #[error("leaf {leaf} is locked by {owner}")]
    LeafLocked {
        /// Address of the leaf.
        leaf: RemoteAddr,
        /// Holder of the lock.
        owner: OwnerWord,
    },
    /// A chunk is leased.
    #[error("chunk {} is leased by {owner}", .chunk.0)]
    ChunkLeased {
        /// Number of the chunk.
        chunk: ChunkIndex,
        /// Holder of the lease.
        owner: OwnerWord,
    },

    /// A free chunk contains words that are not zero.
    #[error("chunk {} is free but not zero", .chunk.0)]
    ChunkNotZero {
        /// Number of the chunk.
        chunk: ChunkIndex,
    },
    /// This version does not know the purpose of a chunk.
    #[error("chunk {} has an unknown purpose", .chunk.0)]
    PurposeUnknown {
        /// Number of the chunk.
        chunk: ChunkIndex,
    },
    /// A chunk in use belongs to no table.
    #[error("chunk {} belongs to {table}, which does not exist", .chunk.0)]
    ChunkOfNoTable {
        /// Number of the chunk.
        chunk: ChunkIndex,
        /// Table in the chunk's entry.
        table: TableId,
    },
    /// The chunk's leaves differ in size from those of its table.
    #[error("chunk {} of {table} has leaves of {slots} slots, unlike its table", .chunk.0)]
    ChunkOfOtherSlots {
        /// Number of the chunk.
        chunk: ChunkIndex,
        /// Table of the chunk.
        table: TableId,
        /// Slots per leaf in the chunk's entry.
        slots: u8,
    },
    /// A chunk belongs to a load that is not committed.
    #[error("chunk {} of {table} belongs to load {generation}, which is not committed", .chunk.0)]
    ChunkOfNoLoad {
        /// Number of the chunk.
        chunk: ChunkIndex,
        /// Table of the chunk.
        table: TableId,
        /// Generation of the load.
        generation: u16,
    },
    /// A chunk of a run contains no linked leaf.
    #[error("chunk {} of {table} belongs to a run but has no linked leaf", .chunk.0)]
    RunChunkUnused {
        /// Number of the chunk.
        chunk: ChunkIndex,
        /// Table of the chunk.
        table: TableId,
    },
    /// The root names chunks that do not belong to the table, or that have another purpose.
    #[error(
        "the root of {table}, of generation {generation}, names {expected} chunks, but \
         {found} were found"
    )]
    NamedChunkMissing {
        /// Table of the root.
        table: TableId,
        /// Generation of the root's load or retraining.
        generation: u16,
        /// Number of named chunks that were found.
        found: u64,
        /// Number of named chunks.
        expected: u64,
    },
    /// A leaf may be leased although it is in use.
    #[error("leaf {leaf} of {table} is marked as free but in use")]
    LeafFreeAndUsed {
        /// Table of the leaf.
        table: TableId,
        /// Address of the leaf.
        leaf: RemoteAddr,
    },
    /// A leaf is neither in use nor free, so it can never be used again.
    #[error("leaf {leaf} of {table} is neither free nor in use")]
    LeafLost {
        /// Table of the leaf.
        table: TableId,
        /// Address of the leaf.
        leaf: RemoteAddr,
    },
    /// Free bits are set for leaves beyond the end of the chunk.
    #[error("chunk {} has {found} free leaves, but only {possible} are possible", .chunk.0)]
    FreeBeyondEnd {
        /// Number of the chunk.
        chunk: ChunkIndex,
        /// Bits that are set.
        found: u64,
        /// Bits that stand for a leaf.
        possible: u64,
    },

    /// The root's generation contradicts the state of the first leaf, which a load retires.
    #[error(
        "the root of {table} is of load {generation} (0: none), but its first leaf is {}retired",
        if *.is_retired { "" } else { "not " }
    )]
    RootContradictsFirstLeaf {
        /// Table of the root.
        table: TableId,
        /// Generation of the root's load.
        generation: u16,
        /// Whether a load has retired the first leaf.
        is_retired: bool,
    },
    /// A load is committed, but its root was never swapped in.
    #[error("the root of {table} is {root}, but its committed load has root {pending}")]
    RootUnfinished {
        /// Table of the root.
        table: TableId,
        /// Current root.
        root: RemoteAddr,
        /// Root of the load.
        pending: RemoteAddr,
    },
    /// The root does not name a snapshot of its load.
    #[error("the root of {table}, {root}, is not the start of a snapshot of the table")]
    RootElsewhere {
        /// Table of the root.
        table: TableId,
        /// Current root.
        root: RemoteAddr,
    },
    /// The snapshot that the root names is corrupted.
    #[error("the snapshot of {table} at {root} is corrupted: {how}")]
    SnapshotDamaged {
        /// Table of the snapshot.
        table: TableId,
        /// Root that names it.
        root: RemoteAddr,
        /// Reason why it counts as corrupted.
        how: String,
    },
    /// The nodes of a level of the tree do not cover all keys exactly once.
    #[error(
        "inner nodes of level {level} of {table} do not cover every key once: wrong range at {node}"
    )]
    InnerRangeBroken {
        /// Table of the tree.
        table: TableId,
        /// Number of the level.
        level: u16,
        /// Node at which the walk along the level ended, or whose range was not the expected one.
        node: RemoteAddr,
    },
    /// The tree lists an address where the table has no leaf.
    #[error("inner node {node} of {table} lists {child}, which is not a leaf of the table")]
    ChildNotLinked {
        /// Table of the tree.
        table: TableId,
        /// Node with the entry.
        node: RemoteAddr,
        /// Listed address.
        child: RemoteAddr,
    },
    /// The snapshot names a leaf that is not in the chain, or another first leaf.
    #[error("the snapshot of {table} leads to leaf {leaf}, which is not in the chain")]
    TrainedLeafNotLinked {
        /// Table of the snapshot.
        table: TableId,
        /// Address of the leaf.
        leaf: RemoteAddr,
    },
}

impl Finding {
    /// Returns the invariant that the finding violates.
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
