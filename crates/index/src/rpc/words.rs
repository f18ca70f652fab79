//! Words one after the other, as a peer has sent them.

use thiserror::Error;

/// Why bytes are no request, or no reply to one. The text completes "the peer sent ...".
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct BadWords(pub(super) &'static str);

impl BadWords {
    /// What was sent, in words.
    pub fn text(self) -> &'static str {
        self.0
    }
}

/// Reads words off.
#[derive(Clone, Debug)]
pub(super) struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Result<Self, BadWords> {
        if bytes.len().is_multiple_of(8) {
            Ok(Self(bytes))
        } else {
            Err(BadWords("something that is not made of whole words"))
        }
    }

    pub(super) fn next(&mut self) -> Result<u64, BadWords> {
        let (word, rest) = self
            .0
            .split_first_chunk::<8>()
            .ok_or(BadWords("something that ends too early"))?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*word))
    }

    /// So many.
    pub(super) fn array<const COUNT: usize>(&mut self) -> Result<[u64; COUNT], BadWords> {
        let mut words = [0; COUNT];
        for word in &mut words {
            *word = self.next()?;
        }
        Ok(words)
    }

    /// All that are left.
    pub(super) fn rest(self) -> impl ExactSizeIterator<Item = u64> + Clone + 'a {
        let word = |bytes: &[u8]| {
            let mut word = [0; 8];
            word.copy_from_slice(bytes);
            u64::from_le_bytes(word)
        };
        self.0.chunks_exact(8).map(word)
    }

    pub(super) fn end(self) -> Result<(), BadWords> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(BadWords("something that goes on behind its end"))
        }
    }
}

pub(super) fn put(bytes: &mut Vec<u8>, words: impl IntoIterator<Item = u64>) {
    for word in words {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
}
