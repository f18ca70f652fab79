//! Superblock, and the places that it determines.

use farleaf_base::size_text::size_in_bytes;
use farleaf_base::{BLOCK_SIZE_BYTES, NodeId, RemoteAddr, WordAddr, crc32c};
use farleaf_fabric::{Batch, BatchError, Endpoint};
use thiserror::Error;

use crate::{catalog, members, queue, session, tally};

/// Version of everything in a node's memory. Increases with every layout change.
pub const FORMAT_VERSION: u64 = 7;
/// Magic: "FARLEAF" and a zero, in memory order.
const MAGIC: u64 = u64::from_le_bytes(*b"FARLEAF\0");
/// Size in bytes of the unit that sessions lease and tables own.
pub const CHUNK_SIZE_BYTES: u64 = 64 << 10;
/// [`CHUNK_SIZE_BYTES`] in blocks.
pub const CHUNK_SIZE_BLOCKS: u64 = CHUNK_SIZE_BYTES / BLOCK_SIZE_BYTES;
/// Number of words of the superblock, written once when the memory is created.
pub const SUPERBLOCK_SIZE_WORDS: usize = 8;

/// Block of the number of chunks ever handed out. Chunks below it may be claimed, as may the chunks
/// reserved for retraining, of which there may be more. CAS.
const ALLOC_NUM_BLOCK: u64 = 1;
/// Block of the owner word of the catalog's lock. CAS.
const CATALOG_LOCK_BLOCK: u64 = 2;
/// Block of the sequence number of the last removal of something that readers may use (LEAF-7).
/// FAA.
const SEQUENCE_BLOCK: u64 = 3;
/// Block of the number of table ids ever given. FAA.
const TABLE_NUM_BLOCK: u64 = 4;
/// Block of the number of sessions ever registered. FAA, by the node alone.
const INCARNATION_BLOCK: u64 = 5;
/// First block of the counters of retraining. Written by the node alone.
const RETRAIN_COUNTERS_BLOCK: u64 = 6;
/// Block of the number of tickets ever drawn at the retraining queue. FAA.
const QUEUE_TAIL_BLOCK: u64 = 8;
/// Block of the number of tickets that the node has served. Written by the node alone.
const QUEUE_HEAD_BLOCK: u64 = 9;
/// Block of the number of changes of the member table. FAA, by the main node alone. See
/// [`members`].
const MEMBERS_VERSION_BLOCK: u64 = 10;
/// Block of the number of sessions' requests for rings. FAA. See [`session`].
const RING_REQUEST_COUNT_BLOCK: u64 = 11;
/// First block of the retraining queue's entries.
const QUEUE_BLOCK: u64 = 16;
const SESSIONS_BLOCK: u64 = 64;
const CATALOG_BLOCK: u64 = SESSIONS_BLOCK + session::SESSION_COUNT;
const MEMBERS_BLOCK: u64 = CATALOG_BLOCK + catalog::TABLE_COUNT_MAX * catalog::ENTRY_SIZE_BLOCKS;
const CHUNK_TABLE_BLOCK: u64 =
    MEMBERS_BLOCK + members::MEMBER_COUNT_MAX * members::MEMBER_SIZE_BLOCKS;

const _: () =
    assert!(RETRAIN_COUNTERS_BLOCK + tally::RETRAIN_COUNTERS_SIZE_BLOCKS <= QUEUE_TAIL_BLOCK);
const _: () = assert!(QUEUE_BLOCK + queue::QUEUE_SIZE_BLOCKS <= SESSIONS_BLOCK);

/// Size in bytes of the smallest memory that can hold a table.
pub const MEMORY_SIZE_BYTES_MIN: u64 = 2 << 20;
const _: () =
    assert!(CHUNK_TABLE_BLOCK * BLOCK_SIZE_BYTES + 16 * CHUNK_SIZE_BYTES < MEMORY_SIZE_BYTES_MIN);

/// Superblock: description of a node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Size of the memory in bytes.
    pub size_bytes: u64,
    /// Random number of the memory, drawn when it was created.
    pub memory_id: u64,
    /// Number of chunks.
    pub chunk_count: u64,
    /// Block at which the first chunk starts.
    pub first_chunk_block: u64,
}

/// Reason why a superblock is rejected.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum SuperblockError {
    /// The magic is missing.
    #[error("this is not a Farleaf pool: its memory starts with {found:#018x}")]
    NotFarleaf {
        /// Word found instead of the magic.
        found: u64,
    },
    /// The memory has another format version.
    #[error(
        "the pool has format version {found}, but this program requires version \
         {FORMAT_VERSION}; use the version of farleaf that serves the pool, or serve a new pool"
    )]
    Version {
        /// Version of the memory.
        found: u64,
    },
    /// The checksum does not match.
    #[error("the pool's superblock is corrupted: checksum mismatch")]
    Damaged,
    /// The checksum matches, but the sizes contradict each other.
    #[error(
        "the pool's superblock is invalid: its chunks do not fit its size of {size_bytes} bytes; \
         another program wrote it"
    )]
    Inconsistent {
        /// Size according to the superblock.
        size_bytes: u64,
    },
    /// Less memory is mapped than the superblock gives.
    #[error(
        "the pool's superblock is invalid: it gives a size of {said_bytes} bytes, and \
         {mapped_bytes} bytes are mapped"
    )]
    Truncated {
        /// Size according to the superblock.
        said_bytes: u64,
        /// Mapped size in bytes.
        mapped_bytes: u64,
    },
    /// The memory is too small to hold a table.
    #[error(
        "a pool of {} is too small; the minimum is {}",
        size_in_bytes(*size_bytes),
        size_in_bytes(MEMORY_SIZE_BYTES_MIN)
    )]
    TooSmall {
        /// Requested size in bytes.
        size_bytes: u64,
    },
}

impl Superblock {
    /// Computes the layout of a new memory.
    ///
    /// # Errors
    /// The size is below [`MEMORY_SIZE_BYTES_MIN`].
    pub fn new(size_bytes: u64, memory_id: u64) -> Result<Self, SuperblockError> {
        if size_bytes < MEMORY_SIZE_BYTES_MIN {
            return Err(SuperblockError::TooSmall { size_bytes });
        }
        let block_count = size_bytes / BLOCK_SIZE_BYTES;
        // Each chunk takes its own blocks and one of the chunk table; chunks are aligned.
        let most = (block_count - CHUNK_TABLE_BLOCK) / (CHUNK_SIZE_BLOCKS + 1);
        let first = (CHUNK_TABLE_BLOCK + most).next_multiple_of(CHUNK_SIZE_BLOCKS);
        let chunk_count = ((block_count - first) / CHUNK_SIZE_BLOCKS).min(most);
        Ok(Self {
            size_bytes,
            memory_id,
            chunk_count,
            first_chunk_block: first,
        })
    }

    /// Encodes block 0.
    pub fn encode(&self) -> [u64; SUPERBLOCK_SIZE_WORDS] {
        let mut words = [
            MAGIC,
            FORMAT_VERSION,
            self.size_bytes,
            self.memory_id,
            self.chunk_count,
            self.first_chunk_block,
            0,
            0,
        ];
        words[7] = u64::from(crc32c(&words[..7]));
        words
    }

    /// Reads the superblock of the memory that an endpoint calls node 0, as every memory calls
    /// itself, and of which `mapped_bytes` are mapped. One round trip.
    ///
    /// # Errors
    /// The fabric failed; the inner error is that of [`decode`](Self::decode).
    pub async fn read<E: Endpoint>(
        endpoint: &E,
        mapped_bytes: u64,
    ) -> Result<Result<Self, SuperblockError>, BatchError> {
        let mut batch = Batch::new();
        let place = NodeLayout::superblock_addr(NodeId(0));
        let read = batch.read(place, SUPERBLOCK_SIZE_WORDS);
        endpoint.execute(&mut batch).await?;
        let mut words = [0; SUPERBLOCK_SIZE_WORDS];
        words.copy_from_slice(batch.words(read));
        Ok(Self::decode(&words, mapped_bytes))
    }

    /// Decodes block 0 of a node's memory of which `mapped_bytes` are mapped.
    ///
    /// # Errors
    /// The memory is not a node's, has another version, is corrupted, or is not mapped completely.
    pub fn decode(
        words: &[u64; SUPERBLOCK_SIZE_WORDS],
        mapped_bytes: u64,
    ) -> Result<Self, SuperblockError> {
        if words[0] != MAGIC {
            return Err(SuperblockError::NotFarleaf { found: words[0] });
        }
        if words[1] != FORMAT_VERSION {
            return Err(SuperblockError::Version { found: words[1] });
        }
        if words[7] != u64::from(crc32c(&words[..7])) {
            return Err(SuperblockError::Damaged);
        }
        let size_bytes = words[2];
        match Self::new(size_bytes, words[3]) {
            Ok(superblock) if superblock.encode() != *words => {
                Err(SuperblockError::Inconsistent { size_bytes })
            }
            Ok(superblock) if size_bytes <= mapped_bytes => Ok(superblock),
            Ok(_) => Err(SuperblockError::Truncated {
                said_bytes: size_bytes,
                mapped_bytes,
            }),
            Err(error) => Err(error),
        }
    }
}

/// Number of a chunk in its pool: the node (from bit 32 on), and the number in the node's memory.
/// Numbers of one node's chunks are consecutive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkIndex(pub u64);

impl ChunkIndex {
    const NODE_SHIFT: u32 = 32;

    /// Creates the number of a node's chunk from its number in the node's memory.
    pub const fn new(node: NodeId, number: u64) -> Self {
        Self((node.0 as u64) << Self::NODE_SHIFT | number)
    }

    /// Returns the node of the chunk.
    pub const fn node(self) -> NodeId {
        NodeId((self.0 >> Self::NODE_SHIFT) as u8)
    }

    /// Returns the number in the node's memory.
    pub const fn number(self) -> u64 {
        self.0 & ((1 << Self::NODE_SHIFT) - 1)
    }
}

// Block numbers have 40 bits, so chunk numbers need 30.
const _: () =
    assert!(RemoteAddr::BLOCK_COUNT_MAX / CHUNK_SIZE_BLOCKS < 1 << ChunkIndex::NODE_SHIFT);

/// Layout of a node's memory whose superblock has been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLayout {
    /// Node of the memory.
    pub node: NodeId,
    /// Superblock of the memory.
    pub superblock: Superblock,
}

impl NodeLayout {
    /// Returns block 0 of a node's memory.
    pub const fn superblock_addr(node: NodeId) -> WordAddr {
        WordAddr::new(node, 0)
    }

    const fn block(&self, block: u64) -> WordAddr {
        RemoteAddr::new(self.node, block).word_at(0)
    }

    /// Returns the address of the number of chunks ever handed out. CAS.
    pub const fn alloc_num(&self) -> WordAddr {
        self.block(ALLOC_NUM_BLOCK)
    }

    /// Returns the address of the owner word of the catalog's lock. CAS.
    pub const fn catalog_lock(&self) -> WordAddr {
        self.block(CATALOG_LOCK_BLOCK)
    }

    /// Returns the address of the sequence number of the last removal of something that readers may
    /// use (LEAF-7). FAA.
    pub const fn sequence(&self) -> WordAddr {
        self.block(SEQUENCE_BLOCK)
    }

    /// Returns the address of the number of table ids ever given. FAA.
    pub const fn table_num(&self) -> WordAddr {
        self.block(TABLE_NUM_BLOCK)
    }

    /// Returns the address of the number of sessions ever registered. FAA.
    pub const fn incarnation_num(&self) -> WordAddr {
        self.block(INCARNATION_BLOCK)
    }

    /// Returns the address of the counters of retraining; see [`tally`].
    pub const fn tally(&self) -> WordAddr {
        self.block(RETRAIN_COUNTERS_BLOCK)
    }

    /// Returns the address of the number of tickets drawn at the retraining queue. FAA. See
    /// [`queue`].
    pub const fn queue_tail(&self) -> WordAddr {
        self.block(QUEUE_TAIL_BLOCK)
    }

    /// Returns the address of the number of tickets that the node has served.
    pub const fn queue_head(&self) -> WordAddr {
        self.block(QUEUE_HEAD_BLOCK)
    }

    /// Returns the first word of the retraining queue's entries.
    pub const fn queue_entries(&self) -> WordAddr {
        self.block(QUEUE_BLOCK)
    }

    /// Returns the first word of the session table.
    pub const fn sessions(&self) -> WordAddr {
        self.block(SESSIONS_BLOCK)
    }

    /// Returns the first word of a session's block.
    pub const fn session(&self, session: farleaf_base::SessionId) -> WordAddr {
        self.block(SESSIONS_BLOCK + session.number() as u64)
    }

    /// Returns the first word of a catalog entry.
    pub const fn catalog_entry(&self, index: u64) -> WordAddr {
        self.block(CATALOG_BLOCK + index * catalog::ENTRY_SIZE_BLOCKS)
    }

    /// Returns the address of the number of changes of the member table. FAA, by the main node
    /// alone.
    pub const fn members_version(&self) -> WordAddr {
        self.block(MEMBERS_VERSION_BLOCK)
    }

    /// Returns the address of the number of sessions' requests for rings. FAA.
    pub const fn ring_request_count(&self) -> WordAddr {
        self.block(RING_REQUEST_COUNT_BLOCK)
    }

    /// Returns the first word of a node's entry in the member table.
    pub const fn member_entry(&self, node: NodeId) -> WordAddr {
        self.block(MEMBERS_BLOCK + node.0 as u64 * members::MEMBER_SIZE_BLOCKS)
    }

    /// Returns the first word of a chunk's block in the chunk table.
    pub const fn chunk_entry(&self, chunk: ChunkIndex) -> WordAddr {
        self.block(CHUNK_TABLE_BLOCK + chunk.number())
    }

    /// Returns the first block of a chunk.
    pub const fn chunk_start(&self, chunk: ChunkIndex) -> RemoteAddr {
        let block = self.superblock.first_chunk_block + chunk.number() * CHUNK_SIZE_BLOCKS;
        RemoteAddr::new(self.node, block)
    }

    /// Returns the chunk that contains a block; `None` if no chunk of this memory does.
    pub fn chunk_of(&self, addr: RemoteAddr) -> Option<ChunkIndex> {
        let block = addr
            .block()
            .checked_sub(self.superblock.first_chunk_block)?;
        let chunk = block / CHUNK_SIZE_BLOCKS;
        let inside = addr.node() == self.node && chunk < self.superblock.chunk_count;
        inside.then_some(ChunkIndex::new(self.node, chunk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn superblock_words_are_golden() {
        let words = Superblock::new(1 << 30, 0x1122)
            .expect("large enough")
            .encode();
        let first_chunk_block = (CHUNK_TABLE_BLOCK + 16364).next_multiple_of(1024);
        assert_eq!(
            words[..7],
            [
                0x0046_4145_4C52_4146,
                7,
                1 << 30,
                0x1122,
                words[4],
                words[5],
                0
            ]
        );
        assert_eq!((words[4], words[5]), (16365, first_chunk_block));
        assert_eq!(words[7], u64::from(crc32c(&words[..7])));
    }

    #[test]
    fn chunks_lie_in_the_region_behind_the_chunk_table_at_every_size() {
        for size_mib in [2, 3, 64, 1000, 4096, 1 << 20] {
            let superblock = Superblock::new(size_mib << 20, 7).expect("large enough");
            assert!(
                superblock.chunk_count >= 15,
                "{size_mib} MiB: {superblock:?}"
            );
            let table_end = CHUNK_TABLE_BLOCK + superblock.chunk_count;
            assert!(superblock.first_chunk_block >= table_end);
            let end = superblock.first_chunk_block + superblock.chunk_count * CHUNK_SIZE_BLOCKS;
            assert!(end * BLOCK_SIZE_BYTES <= superblock.size_bytes);
            let waste = superblock.size_bytes - end * BLOCK_SIZE_BYTES;
            assert!(
                waste < 3 * CHUNK_SIZE_BYTES,
                "{size_mib} MiB: {waste} bytes unused"
            );
        }
        let small = Superblock::new(MEMORY_SIZE_BYTES_MIN - 1, 7);
        assert!(matches!(small, Err(SuperblockError::TooSmall { .. })));
    }

    #[test]
    fn foreign_old_damaged_and_truncated_regions_are_told_apart() {
        let good = Superblock::new(64 << 20, 5).expect("large enough");
        assert_eq!(Superblock::decode(&good.encode(), 64 << 20), Ok(good));
        assert_eq!(
            Superblock::decode(&[0; 8], 64 << 20),
            Err(SuperblockError::NotFarleaf { found: 0 })
        );
        let mut words = good.encode();
        words[1] = 9;
        let version = Superblock::decode(&words, 64 << 20);
        assert_eq!(version, Err(SuperblockError::Version { found: 9 }));
        let mut words = good.encode();
        words[3] ^= 1;
        assert_eq!(
            Superblock::decode(&words, 64 << 20),
            Err(SuperblockError::Damaged)
        );
        let truncated = Superblock::decode(&good.encode(), 32 << 20);
        assert!(matches!(truncated, Err(SuperblockError::Truncated { .. })));
        let mut words = good.encode();
        words[4] += 1;
        words[7] = u64::from(crc32c(&words[..7]));
        let contradicting = Superblock::decode(&words, 64 << 20);
        let size_bytes = 64 << 20;
        assert_eq!(
            contradicting,
            Err(SuperblockError::Inconsistent { size_bytes })
        );
    }

    #[test]
    fn an_address_leads_back_to_its_chunk() {
        let superblock = Superblock::new(64 << 20, 5).expect("large enough");
        let layout = NodeLayout {
            node: NodeId(0),
            superblock,
        };
        for chunk in [0, 1, superblock.chunk_count - 1].map(ChunkIndex) {
            let start = layout.chunk_start(chunk);
            assert_eq!(layout.chunk_of(start), Some(chunk));
            assert_eq!(
                layout.chunk_of(start.offset_blocks(CHUNK_SIZE_BLOCKS - 1)),
                Some(chunk)
            );
        }
        assert_eq!(layout.chunk_of(RemoteAddr::NULL), None);
        let end = layout.chunk_start(ChunkIndex(superblock.chunk_count));
        assert_eq!(layout.chunk_of(end), None);
    }
}
