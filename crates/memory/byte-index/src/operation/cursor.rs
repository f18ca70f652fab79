//! Where a scan in ascending order stands.

use core::cmp::Ordering;

use farleaf_index::hint::Hint;
use farleaf_page::{Fence, StoredFence};

/// Where a scan stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanCursor {
    /// The smallest key not passed yet; `None` at the end.
    pub(super) next_key: Option<Vec<u8>>,
    /// The first key that is not wanted any more; `None`: all are.
    end: Option<Vec<u8>>,
    /// Whether values are read, too.
    pub(super) has_values: bool,
    /// Where the next key was expected, and of which directory that is: when there is a newer one,
    /// the page may be anything by now (D7).
    pub(super) hint: Option<(Hint, u32)>,
}

impl ScanCursor {
    /// A scan from `key` on, inclusive, to `end`, exclusive, or to the last key.
    pub fn new(key: &[u8], end: Option<&[u8]>) -> Self {
        let is_empty = end.is_some_and(|end| end <= key);
        Self {
            next_key: (!is_empty).then(|| key.to_vec()),
            end: end.map(<[u8]>::to_vec),
            has_values: true,
            hint: None,
        }
    }

    /// The same, which reads no values: those that are outside cost a round trip per scan.
    #[must_use]
    pub fn of_keys(self) -> Self {
        Self {
            has_values: false,
            ..self
        }
    }

    /// Whether all keys have been passed.
    pub const fn is_finished(&self) -> bool {
        self.next_key.is_none()
    }

    /// The smallest key not passed yet; `None` at the end.
    pub fn next_key(&self) -> Option<&[u8]> {
        self.next_key.as_deref()
    }

    /// The first key that is not wanted any more; `None`: all are.
    pub fn end(&self) -> Option<&[u8]> {
        self.end.as_deref()
    }

    /// Whether values are read, too.
    pub const fn has_values(&self) -> bool {
        self.has_values
    }

    pub(super) fn is_wanted(&self, key: &[u8]) -> bool {
        self.end.as_deref().is_none_or(|end| key < end)
    }

    /// Whether a key in two parts is before the end.
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

    /// Goes on from the fence at which a page ends.
    pub(super) fn pass(&mut self, high: &Fence) {
        self.next_key = high.least_key().filter(|key| self.is_wanted(key));
    }

    /// Goes on right behind a key.
    pub fn pass_key(&mut self, key: &[u8]) {
        self.next_key = Some([key, &[0]].concat()).filter(|key| self.is_wanted(key));
    }

    /// Goes on from the fence at which a page with this prefix ends, which lies in the page. Uses
    /// the memory again that it has.
    pub(super) fn pass_stored(&mut self, prefix: &[u8], high: StoredFence<'_>) {
        let (stored, tail) = match high {
            StoredFence::Before(stored) => (stored, &[][..]),
            StoredFence::Behind(stored) => (stored, &[0][..]),
            StoredFence::End => return self.finish(),
        };
        self.go_on_at([prefix, stored.in_page(), tail]);
    }

    /// Goes on right behind a key, in the memory that it has.
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

    /// All keys have been passed.
    pub fn finish(&mut self) {
        self.next_key = None;
    }
}
