//! Selection of the results that fit into a reply.

use super::ByteReply;

/// Space left in a reply while values and records are added.
///
/// Results are taken in order as long as they fit. The first one is always taken; if it does not
/// fit, with the beginning of its value. A partial value is the last one.
#[derive(Clone, Debug)]
pub struct Packing {
    left_bytes: usize,
    is_empty: bool,
}

impl Packing {
    /// Creates the space of a reply of at most `space_bytes` bytes.
    pub fn new(space_bytes: usize) -> Self {
        Self {
            // The reply's first word is counted with the first result.
            left_bytes: space_bytes.saturating_sub(8),
            is_empty: true,
        }
    }

    /// Takes a value, with its key if it is a record. Returns how many of its bytes go into the
    /// reply; `None` if it belongs to another reply.
    pub fn take(
        &mut self,
        key_size_bytes: Option<usize>,
        value_size_bytes: usize,
    ) -> Option<usize> {
        let size_bytes = ByteReply::size_bytes(key_size_bytes, value_size_bytes) - 8;
        if let Some(left_bytes) = self.left_bytes.checked_sub(size_bytes) {
            self.left_bytes = left_bytes;
            self.is_empty = false;
            return Some(value_size_bytes);
        }
        if !core::mem::replace(&mut self.is_empty, false) {
            self.left_bytes = 0;
            return None;
        }
        let around_bytes = ByteReply::size_bytes(key_size_bytes, 0) - 8;
        let here = self.left_bytes.saturating_sub(around_bytes) / 8 * 8;
        self.left_bytes = 0;
        Some(here.min(value_size_bytes))
    }

    /// Takes an absent key; returns whether it fits.
    pub fn take_absent(&mut self) -> bool {
        let left_bytes = self.left_bytes.checked_sub(8);
        let has_space = left_bytes.is_some() || self.is_empty;
        self.left_bytes = left_bytes.unwrap_or(0);
        self.is_empty = false;
        has_space
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Checks that taken results fit, except for the first one's key, which is always taken. A
        /// partial value is the last one.
        #[test]
        fn what_is_taken_has_space(
            capacity in 0..400_usize,
            sizes in proptest::collection::vec((0..90_usize, 0..90_usize, any::<bool>()), 1..9),
        ) {
            let mut packing = Packing::new(capacity);
            let (mut taken_bytes, mut taken_count, mut is_over) = (8, 0, false);
            for (key, value, has_key) in sizes {
                let key = has_key.then_some(key);
                let here = packing.take(key, value);
                prop_assert!(here.is_some() || taken_count > 0, "the first one is taken");
                prop_assert!(here.is_none() || !is_over, "nothing behind one that is cut");
                let Some(here) = here else {
                    is_over = true;
                    continue;
                };
                is_over = here < value;
                taken_bytes += ByteReply::size_bytes(key, here) - 8;
                taken_count += 1;
                let least = ByteReply::size_bytes(key, 0);
                prop_assert!(taken_bytes <= capacity || taken_count == 1 && taken_bytes == least);
            }
        }
    }
}
