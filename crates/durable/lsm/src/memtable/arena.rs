//! Arena: memory that is allocated piece by piece and freed as a whole. Allocated items never move.

use std::sync::OnceLock;

use zerocopy::{FromZeros, KnownLayout};

/// Number of chunks. Each is twice as long as the one before; with the shortest first chunk, all of
/// them have as many items as a `u32` can number.
const CHUNK_COUNT: usize = 29;

/// Numbered items, initially zero. Readers never wait; allocation is serialized.
#[derive(Debug)]
pub(super) struct Arena<T, const FIRST_LENGTH_LOG2: u32> {
    chunks: [OnceLock<Box<[T]>>; CHUNK_COUNT],
}

impl<T, const FIRST_LENGTH_LOG2: u32> Arena<T, FIRST_LENGTH_LOG2>
where
    T: FromZeros + KnownLayout<PointerMetadata = ()>,
{
    const ALL_NUMBERS: () = assert!(FIRST_LENGTH_LOG2 as usize + CHUNK_COUNT >= 32);

    pub(super) fn new() -> Self {
        let () = Self::ALL_NUMBERS;
        Self {
            chunks: [const { OnceLock::new() }; CHUNK_COUNT],
        }
    }

    /// Returns the chunk of a number, and the index there.
    const fn place_of(number: u32) -> (usize, usize) {
        let from_first = number as u64 + (1 << FIRST_LENGTH_LOG2);
        let length_log2 = from_first.ilog2();
        let chunk = (length_log2 - FIRST_LENGTH_LOG2) as usize;
        (chunk, (from_first - (1 << length_log2)) as usize)
    }

    /// Returns an allocated item.
    pub(super) fn get(&self, number: u32) -> &T {
        &self.some(number, 1)[0]
    }

    /// Returns consecutive items that were allocated together.
    pub(super) fn some(&self, number: u32, count: usize) -> &[T] {
        let (chunk, offset) = Self::place_of(number);
        let chunk = self.chunks[chunk].get();
        let chunk = chunk.expect("the chunk is allocated before its number is published");
        &chunk[offset..offset + count]
    }

    /// Allocates consecutive items at this number, or at the next one where they fit; returns the
    /// first one.
    pub(super) fn allocate(&self, mut number: u32, count: usize) -> u32 {
        loop {
            let (chunk, offset) = Self::place_of(number);
            let length = 1_usize << (FIRST_LENGTH_LOG2 as usize + chunk);
            if offset + count <= length {
                self.chunks[chunk].get_or_init(|| {
                    <[T]>::new_box_zeroed_with_elems(length)
                        .unwrap_or_else(|_| panic!("out of memory: cannot allocate an L0"))
                });
                return number;
            }
            let next = u64::from(number) + (length - offset) as u64;
            number = u32::try_from(next).expect("an L0 is smaller than that");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Promise: each number is a separate item, initially zero, which never moves. Items that are
    /// allocated together are adjacent.
    #[test]
    fn numbers_are_items() {
        let arena = Arena::<AtomicU64, 4>::new();
        let mut next = 0;
        let mut allocated = Vec::new();
        for count in (1..60).chain([300, 1]) {
            let number = arena.allocate(next, count);
            assert!(number >= next);
            next = number + count as u32;
            let items = arena.some(number, count);
            assert_eq!(items.len(), count);
            for item in items {
                assert_eq!(item.swap(u64::from(number), Ordering::Relaxed), 0);
            }
            allocated.push((number, count));
        }
        for (number, count) in allocated {
            for index in 0..count as u32 {
                let item = arena.get(number + index);
                assert_eq!(item.load(Ordering::Relaxed), u64::from(number));
            }
        }
    }
}
