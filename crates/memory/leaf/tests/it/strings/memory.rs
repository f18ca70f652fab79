//! Far memory as a map of words, batches on it, and the effects of a crash during a batch
//! (FABRIC-5).

use std::collections::BTreeMap;

use farleaf_base::{RemoteAddr, WordAddr};
use farleaf_fabric::{Batch, VerbKind};
use farleaf_leaf::strings::{PageGeometry, PageImage};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::Rng;

/// Written words; all others are 0.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory(BTreeMap<WordAddr, u64>);

/// One WRITE.
pub(crate) struct Write {
    addr: WordAddr,
    words: Vec<u64>,
}

/// Returns the WRITEs of a batch that has no other verbs.
pub(crate) fn writes_of(batch: &mut Batch) -> Vec<Write> {
    let (verbs, words, _) = batch.parts_mut();
    let write = |verb: &farleaf_fabric::Verb| {
        assert_eq!(verb.kind, VerbKind::Write, "page changes only write");
        let words = &words[verb.start as usize..][..verb.word_count as usize];
        Write {
            addr: verb.addr,
            words: words.to_vec(),
        }
    };
    verbs.iter().map(write).collect()
}

impl Memory {
    pub(crate) fn word(&self, addr: WordAddr) -> u64 {
        self.0.get(&addr).copied().unwrap_or_default()
    }

    pub(crate) fn set(&mut self, addr: WordAddr, word: u64) {
        self.0.insert(addr, word);
    }

    /// Returns the words of a page's image.
    pub(crate) fn image_words(&self, geometry: PageGeometry, page: RemoteAddr) -> Vec<u64> {
        let words = 1..geometry.page_size_words();
        words
            .map(|offset| self.word(geometry.word(page, offset)))
            .collect()
    }

    pub(crate) fn apply(&mut self, writes: &[Write]) {
        for write in writes {
            for (index, word) in write.words.iter().enumerate() {
                self.set(write.addr.offset(index as u64), *word);
            }
        }
    }

    /// Returns the memories after every prefix of the WRITEs, plus some words of the next WRITE
    /// (FABRIC-5).
    pub(crate) fn crashed(&self, writes: &[Write], rng: &mut Xoshiro256PlusPlus) -> Vec<Self> {
        let mut states = Vec::new();
        let mut memory = self.clone();
        for write in writes {
            states.push(memory.clone());
            if write.words.len() > 1 {
                for _ in 0..2 {
                    let mut torn = memory.clone();
                    for (index, word) in write.words.iter().enumerate() {
                        if rng.next_u32().is_multiple_of(2) {
                            torn.set(write.addr.offset(index as u64), *word);
                        }
                    }
                    states.push(torn);
                }
            }
            memory.apply(core::slice::from_ref(write));
        }
        states.push(memory);
        states
    }
}

/// Interprets words as an image.
pub(crate) fn image(geometry: PageGeometry, words: &[u64]) -> PageImage<'_> {
    PageImage::new(geometry, words)
}
