//! Registered memory for the data of a queue pair's verbs: pieces of a few sizes, cut from slabs
//! that are registered when first needed.

use std::io;
use std::sync::Arc;

use crate::mapped::MappedMemory;
use crate::verbs::sys::{Access, Domain, QueuePair, RegisteredMemory, RegisteredRange};

/// Size of the smallest piece in words; a get needs 20 words and one more.
const PIECE_SIZE_WORDS_MIN: usize = 32;
/// Number of piece sizes: 32 words, 64, and so on up to a slab.
const CLASS_COUNT: usize = 11;
const SLAB_SIZE_WORDS: usize = PIECE_SIZE_WORDS_MIN << (CLASS_COUNT - 1);

/// A piece in use by an operation.
#[derive(Debug)]
pub(super) struct Buffer {
    pub(super) place: RegisteredRange,
    /// Size class of the piece; `None` if the operation is so large that it has its own slab.
    class: Option<usize>,
}

/// Allocator of the pieces of one queue pair.
#[derive(Debug)]
pub(super) struct Buffers {
    domain: Arc<Domain>,
    free: [Vec<RegisteredRange>; CLASS_COUNT],
    /// The part of the newest slab that has not been cut into pieces.
    uncut: Option<RegisteredRange>,
}

impl Buffers {
    pub(super) fn new(domain: &Arc<Domain>) -> Self {
        Self {
            domain: Arc::clone(domain),
            free: Default::default(),
            uncut: None,
        }
    }

    /// Returns a piece of at least `word_count` words.
    ///
    /// # Errors
    /// No more memory can be registered.
    #[inline]
    pub(super) fn take(&mut self, queue: &mut QueuePair, word_count: usize) -> io::Result<Buffer> {
        let size = word_count.next_power_of_two().max(PIECE_SIZE_WORDS_MIN);
        let class = (size / PIECE_SIZE_WORDS_MIN).trailing_zeros() as usize;
        if class >= CLASS_COUNT {
            let memory_index = self.register(queue, word_count)?;
            let place = RegisteredRange {
                memory_index,
                first_word: 0,
            };
            return Ok(Buffer { place, class: None });
        }
        let place = match self.free[class].pop() {
            Some(place) => place,
            None => self.cut(queue, size)?,
        };
        let class = Some(class);
        Ok(Buffer { place, class })
    }

    /// Releases a piece that no verb in flight uses.
    #[inline]
    pub(super) fn release_buffer(&mut self, queue: &mut QueuePair, buffer: &Buffer) {
        match buffer.class {
            Some(class) => self.free[class].push(buffer.place),
            None => queue.remove_memory(buffer.place.memory_index),
        }
    }

    fn cut(&mut self, queue: &mut QueuePair, size: usize) -> io::Result<RegisteredRange> {
        let fits = |place: &RegisteredRange| place.first_word as usize + size <= SLAB_SIZE_WORDS;
        // A rest of a slab that is too small stays unused: at most half of it.
        let place = match self.uncut.take().filter(fits) {
            Some(place) => place,
            None => RegisteredRange {
                memory_index: self.register(queue, SLAB_SIZE_WORDS)?,
                first_word: 0,
            },
        };
        self.uncut = Some(RegisteredRange {
            first_word: place.first_word + size as u32,
            ..place
        });
        Ok(place)
    }

    fn register(&self, queue: &mut QueuePair, word_count: usize) -> io::Result<u32> {
        let memory = Arc::new(MappedMemory::for_card(word_count as u64 * 8)?);
        let registered = RegisteredMemory::new(&self.domain, &memory, Access::Local)?;
        Ok(queue.add_memory(registered))
    }
}
