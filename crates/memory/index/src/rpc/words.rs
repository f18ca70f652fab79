//! Decoding of words that a peer has sent.

use thiserror::Error;

/// Reason why bytes are not a valid request or reply. The text completes "invalid request: ...".
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct BadWords(pub(super) &'static str);

impl BadWords {
    /// Returns the text of the reason.
    pub fn text(self) -> &'static str {
        self.0
    }
}

/// Decoder of words.
#[derive(Clone, Debug)]
pub(super) struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Result<Self, BadWords> {
        if bytes.len().is_multiple_of(8) {
            Ok(Self(bytes))
        } else {
            Err(BadWords("its size is not a multiple of 8 bytes"))
        }
    }

    pub(super) fn next(&mut self) -> Result<u64, BadWords> {
        let (word, rest) = self
            .0
            .split_first_chunk::<8>()
            .ok_or(BadWords("it is truncated"))?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*word))
    }

    /// Reads `COUNT` words.
    pub(super) fn array<const COUNT: usize>(&mut self) -> Result<[u64; COUNT], BadWords> {
        let mut words = [0; COUNT];
        for word in &mut words {
            *word = self.next()?;
        }
        Ok(words)
    }

    /// Reads a string of `size_bytes` bytes, which zeros pad to whole words.
    pub(super) fn bytes(&mut self, size_bytes: usize) -> Result<&'a [u8], BadWords> {
        if size_bytes > self.0.len() {
            return Err(BadWords("it is truncated"));
        }
        // The rest is whole words, so it includes the padding.
        let (padded, rest) = self.0.split_at(size_bytes.next_multiple_of(8));
        let (bytes, padding) = padded.split_at(size_bytes);
        if padding.iter().any(|byte| *byte != 0) {
            return Err(BadWords("the padding of a string is not zero"));
        }
        self.0 = rest;
        Ok(bytes)
    }

    /// Reads all remaining words.
    pub(super) fn rest(self) -> impl ExactSizeIterator<Item = u64> + Clone + 'a {
        let word = |bytes: &[u8]| {
            let mut word = [0; 8];
            word.copy_from_slice(bytes);
            u64::from_le_bytes(word)
        };
        self.0.chunks_exact(8).map(word)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn end(self) -> Result<(), BadWords> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(BadWords("unexpected data after its end"))
        }
    }
}

pub(super) fn put(bytes: &mut Vec<u8>, words: impl IntoIterator<Item = u64>) {
    for word in words {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
}

/// Appends a string, padded to whole words with zeros.
pub(super) fn put_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend_from_slice(bytes);
    to.resize(to.len().next_multiple_of(8), 0);
}
