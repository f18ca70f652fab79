//! How much of what was found goes into a reply.

use super::ByteReply;

/// The room of a reply, as values and records are put into it.
///
/// As many are taken as there is room for, in their order, and the first one whatever its size: if
/// it has no room, then with the beginning of its value. Nothing comes behind that.
#[derive(Clone, Debug)]
pub struct Packing {
    left_bytes: usize,
    is_empty: bool,
}

impl Packing {
    /// Of a reply that may have so many bytes.
    pub fn new(room_bytes: usize) -> Self {
        Self {
            // What is counted of the first is counted with the reply's first word.
            left_bytes: room_bytes.saturating_sub(8),
            is_empty: true,
        }
    }

    /// Takes a value of so many bytes, of a record if there is a key. How many bytes of it go here;
    /// `None`: it is for another reply.
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

    /// Takes a key that is absent; whether there was room to say so.
    pub fn take_absent(&mut self) -> bool {
        let left_bytes = self.left_bytes.checked_sub(8);
        let has_room = left_bytes.is_some() || self.is_empty;
        self.left_bytes = left_bytes.unwrap_or(0);
        self.is_empty = false;
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Promise: what is taken has room, but for the key of the first one; that is taken
        /// always; and one that is not whole is the last.
        #[test]
        fn what_is_taken_has_room(
            room in 0..400_usize,
            sizes in proptest::collection::vec((0..90_usize, 0..90_usize, any::<bool>()), 1..9),
        ) {
            let mut packing = Packing::new(room);
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
                prop_assert!(taken_bytes <= room || taken_count == 1 && taken_bytes == least);
            }
        }
    }
}
