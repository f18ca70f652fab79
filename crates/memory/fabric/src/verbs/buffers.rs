//! Registered memory for what a queue pair's verbs bring and take: pieces of a few sizes, cut from
//! slabs that are registered when they are first needed.

use std::io;
use std::sync::Arc;

use crate::mapped::MappedRegion;
use crate::verbs::sys::{Access, Domain, Place, QueuePair, RegisteredMemory};

/// The smallest piece; a get needs 20 words and one more.
const PIECE_SIZE_WORDS_MIN: usize = 32;
/// Pieces of 32 words, 64, and so on up to a slab.
const CLASS_COUNT: usize = 11;
const SLAB_SIZE_WORDS: usize = PIECE_SIZE_WORDS_MIN << (CLASS_COUNT - 1);

/// A piece that an operation has.
#[derive(Debug)]
pub(super) struct Buffer {
    pub(super) place: Place,
    /// Of the piece; `None`: the operation is so large that it has a slab of its own.
    class: Option<usize>,
}

/// The pieces that are free.
#[derive(Debug)]
pub(super) struct Buffers {
    domain: Arc<Domain>,
    free: [Vec<Place>; CLASS_COUNT],
    /// What has not been cut yet of the newest slab.
    uncut: Option<Place>,
}

impl Buffers {
    pub(super) fn new(domain: &Arc<Domain>) -> Self {
        Self {
            domain: Arc::clone(domain),
            free: Default::default(),
            uncut: None,
        }
    }

    /// A piece of at least so many words.
    ///
    /// # Errors
    /// No more memory can be registered.
    #[inline]
    pub(super) fn take(&mut self, queue: &mut QueuePair, word_count: usize) -> io::Result<Buffer> {
        let size = word_count.next_power_of_two().max(PIECE_SIZE_WORDS_MIN);
        let class = (size / PIECE_SIZE_WORDS_MIN).trailing_zeros() as usize;
        if class >= CLASS_COUNT {
            let memory_index = self.register(queue, word_count)?;
            let place = Place {
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

    /// Takes a piece back of which no verb is under way.
    #[inline]
    pub(super) fn give_back(&mut self, queue: &mut QueuePair, buffer: &Buffer) {
        match buffer.class {
            Some(class) => self.free[class].push(buffer.place),
            None => queue.remove_memory(buffer.place.memory_index),
        }
    }

    fn cut(&mut self, queue: &mut QueuePair, size: usize) -> io::Result<Place> {
        let fits = |place: &Place| place.first_word as usize + size <= SLAB_SIZE_WORDS;
        // What is left of a slab and is too small stays unused: at most half of it.
        let place = match self.uncut.take().filter(fits) {
            Some(place) => place,
            None => Place {
                memory_index: self.register(queue, SLAB_SIZE_WORDS)?,
                first_word: 0,
            },
        };
        self.uncut = Some(Place {
            first_word: place.first_word + size as u32,
            ..place
        });
        Ok(place)
    }

    fn register(&self, queue: &mut QueuePair, word_count: usize) -> io::Result<u32> {
        let memory = Arc::new(MappedRegion::for_card(word_count as u64 * 8)?);
        let registered = RegisteredMemory::new(&self.domain, &memory, Access::Local)?;
        Ok(queue.add_memory(registered))
    }
}
