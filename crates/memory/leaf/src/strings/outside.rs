//! What lies outside a page and was read already.

use std::collections::BTreeMap;

use crate::words::Reference;

/// Strings of value blocks that the caller has read: keys, fences, prefixes.
///
/// Whoever needs one that is missing says which ([`Unread`]); the caller reads it, and asks again.
#[derive(Clone, Debug, Default)]
pub struct Outside(BTreeMap<Reference, Box<[u8]>>);

/// A value block has to be read before the question can be answered: an outcome, not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unread(pub Reference);

impl Outside {
    /// No strings: all that pages without anything outside need.
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Takes a string that was read where a reference says; false, and not taken, when it is
    /// another string: its size or its checksum are not the reference's.
    #[must_use]
    pub fn insert(&mut self, reference: Reference, string: &[u8]) -> bool {
        let is_named = reference.names(string);
        if is_named {
            self.0.insert(reference, string.into());
        }
        is_named
    }

    /// The string that a reference names.
    ///
    /// # Errors
    /// It was not read yet.
    pub fn get(&self, reference: Reference) -> Result<&[u8], Unread> {
        match self.0.get(&reference) {
            Some(string) => Ok(string),
            None => Err(Unread(reference)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_types::RemoteAddr;

    /// A string that is not the named one is refused, and asked for again.
    #[test]
    fn only_the_named_string_is_taken() {
        let mut outside = Outside::new();
        let reference = Reference::of(RemoteAddr::NULL, b"right");
        assert_eq!(outside.get(reference), Err(Unread(reference)));
        assert!(!outside.insert(reference, b"wrong") && !outside.insert(reference, b""));
        assert_eq!(outside.get(reference), Err(Unread(reference)));
        assert!(outside.insert(reference, b"right"));
        assert_eq!(outside.get(reference), Ok(&b"right"[..]));
    }
}
