//! Strings outside a page that the caller has already read.

use std::collections::BTreeMap;

use crate::strings::words::Reference;

/// Strings of value blocks that the caller has read: keys, fences, prefixes.
///
/// A function that needs a missing string returns its reference ([`Unread`]); the caller reads it
/// and repeats the call.
#[derive(Clone, Debug, Default)]
pub struct Outside(BTreeMap<Reference, Box<[u8]>>);

/// Reference of a value block that must be read first; an outcome, not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unread(pub Reference);

impl Outside {
    /// Creates an empty set, which suffices for pages without outside strings.
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Adds a string that was read at a reference. Returns false, without adding it, if its size or
    /// checksum differ from the reference.
    #[must_use]
    pub fn insert(&mut self, reference: Reference, string: &[u8]) -> bool {
        let is_named = reference.names(string);
        if is_named {
            self.0.insert(reference, string.into());
        }
        is_named
    }

    /// Returns the string that a reference names.
    ///
    /// # Errors
    /// [`Unread`], if the string was not read yet.
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
    use farleaf_base::RemoteAddr;

    /// A string that does not match the reference is rejected and requested again.
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
