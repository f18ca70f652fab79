//! Scopes, which limit derived keys to a part of the data, and ids of keys.

use core::fmt;
use std::sync::Arc;

/// Size of the longest scope in bytes.
pub const SCOPE_SIZE_BYTES_MAX: usize = 127;

/// Part of the data to which a derived key is limited, as bytes that the server's protocol
/// interprets. No bytes: not limited.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Scope(Arc<[u8]>);

impl Scope {
    /// Creates a scope; `None` if it is longer than [`SCOPE_SIZE_BYTES_MAX`].
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (bytes.len() <= SCOPE_SIZE_BYTES_MAX).then(|| Self(bytes.into()))
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns whether the key is not limited.
    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({})", self.0.escape_ascii())
    }
}

/// Id of a key for logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyId(pub u32);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}
