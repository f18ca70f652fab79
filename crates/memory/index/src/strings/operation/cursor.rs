//! Position of an ascending scan.

use core::cmp::Ordering;

use crate::hint::Hint;
use farleaf_leaf::strings::{Fence, StoredFence};

/// Position and bounds of an ascending scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanCursor {
    /// Smallest key not passed yet; `None` at the end.
    pub(super) next_key: Option<Vec<u8>>,
    /// Exclusive end of the scan; `None` if it has no end.
    end: Option<Vec<u8>>,
    /// Whether the scan reads values.
    pub(super) has_values: bool,
    /// Page where the next key was expected, and the version of the layer. In a newer layer, the
    /// page may have another use (LEAF-7).
    pub(super) hint: Option<(Hint, u32)>,
}

impl ScanCursor {
    /// Creates a scan from `key`, inclusive, to `end`, exclusive, or to the last key.
    pub fn new(key: &[u8], end: Option<&[u8]>) -> Self {
        let is_empty = end.is_some_and(|end| end <= key);
        Self {
            next_key: (!is_empty).then(|| key.to_vec()),
            end: end.map(<[u8]>::to_vec),
            has_values: true,
            hint: None,
        }
    }

    /// Makes the scan read keys only. Values outside their pages cost a round trip per scan.
    #[must_use]
    pub fn of_keys(self) -> Self {
        Self {
            has_values: false,
            ..self
        }
    }

    /// Returns whether all keys have been passed.
    pub const fn is_finished(&self) -> bool {
        self.next_key.is_none()
    }

    /// Returns the smallest key not passed yet; `None` at the end.
    pub fn next_key(&self) -> Option<&[u8]> {
        self.next_key.as_deref()
    }

    /// Returns the exclusive end of the scan; `None` if it has no end.
    pub fn end(&self) -> Option<&[u8]> {
        self.end.as_deref()
    }

    /// Returns whether the scan reads values.
    pub const fn has_values(&self) -> bool {
        self.has_values
    }

    pub(super) fn is_wanted(&self, key: &[u8]) -> bool {
        self.end.as_deref().is_none_or(|end| key < end)
    }

    /// Returns whether a key in two parts is below the end.
    pub(super) fn is_wanted_parts(&self, prefix: &[u8], suffix: &[u8]) -> bool {
        let Some(end) = self.end.as_deref() else {
            return true;
        };
        let (head, tail) = end.split_at(prefix.len().min(end.len()));
        match prefix.cmp(head) {
            Ordering::Equal => suffix < tail,
            order => order.is_lt(),
        }
    }

    /// Moves to the upper fence of a page.
    pub(super) fn pass(&mut self, high: &Fence) {
        self.next_key = high.least_key().filter(|key| self.is_wanted(key));
    }

    /// Moves to the position right after a key.
    pub fn pass_key(&mut self, key: &[u8]) {
        self.next_key = Some([key, &[0]].concat()).filter(|key| self.is_wanted(key));
    }

    /// Moves to the upper fence of a page with this prefix; the fence is stored in the page. Reuses
    /// the allocated memory.
    pub(super) fn pass_stored(&mut self, prefix: &[u8], high: StoredFence<'_>) {
        let (stored, tail) = match high {
            StoredFence::Before(stored) => (stored, &[][..]),
            StoredFence::Behind(stored) => (stored, &[0][..]),
            StoredFence::End => return self.finish(),
        };
        self.go_on_at([prefix, stored.in_page(), tail]);
    }

    /// Moves to the position right after a key in two parts. Reuses the allocated memory.
    pub(super) fn pass_parts(&mut self, prefix: &[u8], suffix: &[u8]) {
        self.go_on_at([prefix, suffix, &[0]]);
    }

    fn go_on_at(&mut self, parts: [&[u8]; 3]) {
        let mut next = self.next_key.take().unwrap_or_default();
        next.clear();
        for part in parts {
            next.extend_from_slice(part);
        }
        self.next_key = Some(next).filter(|next| self.is_wanted(next));
    }

    /// Moves to the end.
    pub fn finish(&mut self) {
        self.next_key = None;
    }
}
