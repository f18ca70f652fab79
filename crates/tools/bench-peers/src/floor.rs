//! Physical floor: the same requests, as bare copies of leaves.
//!
//! The floor has as many leaves as a freshly loaded table, of the same size, in the same kind of
//! mapping. A request copies the leaf that would hold the key, word by word like the fabric, and
//! computes the checksum over as many words as a reader does. There is no search layer, no
//! protocol, and no search in the leaf: no store that reads a leaf and checks it can be faster.

use std::hint::black_box;
use std::io;
use std::sync::Barrier;
use std::sync::atomic::Ordering;
use std::time::Instant;

use farleaf_base::crc32c;
use farleaf_bench::distribution::numbered_stream;
use farleaf_fabric::mapped::{MappedMemory, PageKind};
use farleaf_leaf::words::LeafGeometry;
use farleaf_leaf::words::geometry::{IMAGE_SIZE_WORDS_MAX, SLOT_COUNT_MAX};
use rand::Rng;
use serde::Serialize;

use crate::peer::{GROUP_SIZE, PeerError};
use crate::records::WordRecords;
use crate::requests::Requests;
use crate::subject::{Outcome, Subject, Task};

/// Words of a checksum's input besides keys and values: address, table with version and bitmap,
/// fences and link.
const CHECKED_HEADER_SIZE_WORDS: usize = 5;
const CHECKED_SIZE_WORDS_MAX: usize = CHECKED_HEADER_SIZE_WORDS + 2 * SLOT_COUNT_MAX;
const _: () = assert!(CHECKED_SIZE_WORDS_MAX == IMAGE_SIZE_WORDS_MAX + 1);

const CACHE_LINE_SIZE_WORDS: usize = 8;

/// Manner in which requests follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FloorManner {
    /// The next leaf is known only after the checksum of the previous one: no two cache misses
    /// overlap.
    Dependent,
    /// The processor may start the next leaf as early as it can.
    Independent,
    /// All lines of [`GROUP_SIZE`] leaves are prefetched, then each is copied and checked.
    Grouped,
}

impl FloorManner {
    /// All manners.
    pub const ALL: [Self; 3] = [Self::Dependent, Self::Independent, Self::Grouped];
}

/// Leaves of random contents with correct checksums.
#[derive(Debug)]
pub struct FloorMemory {
    memory: MappedMemory,
    page_kind: PageKind,
    geometry: LeafGeometry,
    records_per_leaf: u32,
}

impl FloorMemory {
    /// Creates leaves for `record_count` records, filled like a bulk load: to three quarters.
    ///
    /// # Errors
    /// Leaves cannot have this many slots, or the host lacks the memory.
    pub fn new(record_count: usize, slots: u64, seed: u64) -> Result<Self, PeerError> {
        let geometry = LeafGeometry::new(slots)?;
        let records_per_leaf = geometry.slot_count() * 3 / 4;
        let leaf_count = record_count.div_ceil(records_per_leaf);
        let size_bytes = (leaf_count * geometry.stride_words() * size_of::<u64>()) as u64;
        let (memory, page_kind) = map(size_bytes).map_err(|source| PeerError::Io {
            what: "cannot map the floor's leaves",
            source,
        })?;
        let memory = Self {
            memory,
            page_kind,
            geometry,
            records_per_leaf: records_per_leaf as u32,
        };
        memory.fill(leaf_count, seed);
        Ok(memory)
    }

    /// Returns the kind of pages of the mapping.
    pub fn page_kind(&self) -> PageKind {
        self.page_kind
    }

    fn fill(&self, leaf_count: usize, seed: u64) {
        let mut random = numbered_stream(seed, 0);
        let image_size_words = self.geometry.image_size_words();
        let mut checked = [0; CHECKED_SIZE_WORDS_MAX];
        for leaf_index in 0..leaf_count {
            let checked = &mut checked[..=image_size_words];
            checked.fill_with(|| random.next_u64());
            checked[0] = leaf_index as u64;
            checked[1] >>= u32::BITS;
            let state = checked[1] << u32::BITS | u64::from(crc32c(checked));
            let words = &self.memory.words()[self.image_start(leaf_index)..];
            words[0].store(state, Ordering::Relaxed);
            for (word, value) in words[1..].iter().zip(&checked[2..]) {
                word.store(*value, Ordering::Relaxed);
            }
        }
    }

    /// The image starts after the lock.
    #[inline]
    fn image_start(&self, leaf_index: usize) -> usize {
        leaf_index * self.geometry.stride_words() + 1
    }

    /// Copies a leaf and checks it. The result is 0, but neither compiler nor processor knows that
    /// beforehand.
    #[inline]
    fn check<const IMAGE_SIZE_WORDS: usize>(&self, leaf_index: usize) -> usize {
        let start = self.image_start(leaf_index);
        let image = &self.memory.words()[start..start + IMAGE_SIZE_WORDS];
        let mut checked = [0; CHECKED_SIZE_WORDS_MAX];
        MappedMemory::copy_out(image, &mut checked[1..=IMAGE_SIZE_WORDS]);
        let state = checked[1];
        checked[0] = leaf_index as u64;
        checked[1] = state >> u32::BITS;
        (crc32c(&checked[..=IMAGE_SIZE_WORDS]) ^ state as u32) as usize
    }

    #[inline]
    fn prefetch<const IMAGE_SIZE_WORDS: usize>(&self, leaf_index: usize) {
        let start = self.image_start(leaf_index);
        let image = &self.memory.words()[start..start + IMAGE_SIZE_WORDS];
        let lines = image.iter().step_by(CACHE_LINE_SIZE_WORDS);
        lines.for_each(MappedMemory::prefetch);
        MappedMemory::prefetch(&image[IMAGE_SIZE_WORDS - 1]);
    }

    /// Reads the leaves. Returns the sum of the differences between checksums stored and computed.
    fn read<const IMAGE_SIZE_WORDS: usize>(
        &self,
        leaf_indexes: &[u32],
        manner: FloorManner,
    ) -> usize {
        let mut difference_sum = 0;
        match manner {
            FloorManner::Dependent => {
                for leaf_index in leaf_indexes {
                    let leaf_index = *leaf_index as usize + difference_sum;
                    difference_sum += self.check::<IMAGE_SIZE_WORDS>(leaf_index);
                }
            }
            FloorManner::Independent => {
                for leaf_index in leaf_indexes {
                    difference_sum += self.check::<IMAGE_SIZE_WORDS>(*leaf_index as usize);
                }
            }
            FloorManner::Grouped => {
                for group in leaf_indexes.chunks(GROUP_SIZE) {
                    for leaf_index in group {
                        self.prefetch::<IMAGE_SIZE_WORDS>(*leaf_index as usize);
                    }
                    for leaf_index in group {
                        difference_sum += self.check::<IMAGE_SIZE_WORDS>(*leaf_index as usize);
                    }
                }
            }
        }
        difference_sum
    }

    fn read_any(&self, leaf_indexes: &[u32], manner: FloorManner) -> usize {
        match self.geometry.slot_count() {
            8 => self.read::<20>(leaf_indexes, manner),
            12 => self.read::<28>(leaf_indexes, manner),
            _ => self.read::<36>(leaf_indexes, manner),
        }
    }
}

fn map(size_bytes: u64) -> io::Result<(MappedMemory, PageKind)> {
    let (memory, size_bytes, page_kind) = MappedMemory::create_shared("farleaf-floor", size_bytes)?;
    Ok((MappedMemory::map_shared(memory, size_bytes)?, page_kind))
}

/// Floor for one manner of reading.
#[derive(Clone, Copy, Debug)]
pub struct Floor<'a> {
    /// Leaves to read.
    pub memory: &'a FloorMemory,
    /// Manner of reading.
    pub manner: FloorManner,
}

impl Subject<WordRecords> for Floor<'_> {
    /// Runs one thread's share.
    ///
    /// # Panics
    /// A leaf has a checksum mismatch.
    fn run(
        &self,
        _task: Task,
        requests: &Requests<WordRecords>,
        start: &Barrier,
    ) -> Result<Outcome, PeerError> {
        let leaf_of = |rank: &u32| rank / self.memory.records_per_leaf;
        let leaf_indexes: Vec<u32> = requests.timed_ranks().iter().map(leaf_of).collect();
        start.wait();
        let started_at = Instant::now();
        let difference_sum = black_box(self.memory.read_any(&leaf_indexes, self.manner));
        let duration = started_at.elapsed();
        assert_eq!(difference_sum, 0, "the floor's leaves are intact");
        let checksum = 0;
        Ok(Outcome { duration, checksum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: leaves of all slot counts are intact in all manners, and a changed word is
    /// detected.
    #[test]
    fn leaves_are_intact_until_one_is_changed() {
        for slots in [8, 12, 16] {
            let memory = FloorMemory::new(1000, slots, 1).expect("memory");
            let leaf_count = 1000_u32.div_ceil(memory.records_per_leaf);
            let all: Vec<u32> = (0..leaf_count).collect();
            for manner in FloorManner::ALL {
                assert_eq!(memory.read_any(&all, manner), 0, "{slots} {manner:?}");
            }
            let start = memory.image_start(7);
            let last = start + memory.geometry.image_size_words() - 1;
            memory.memory.words()[last].fetch_xor(1, Ordering::Relaxed);
            assert_ne!(memory.read_any(&all[..8], FloorManner::Independent), 0);
            assert_eq!(memory.read_any(&all[..7], FloorManner::Independent), 0);
        }
    }
}
