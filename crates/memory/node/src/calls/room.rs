//! How much memory of the node's own its tables may take (J9).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many bytes there may be, and how many are taken.
#[derive(Debug)]
pub(super) struct Room {
    size_bytes: AtomicU64,
    size_bytes_max: u64,
}

/// What somebody has taken of it; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    room: Arc<Room>,
    size_bytes: u64,
}

impl Room {
    /// So many bytes, of which none is taken.
    pub(super) fn new(size_bytes_max: u64) -> Self {
        Self {
            size_bytes: AtomicU64::new(0),
            size_bytes_max,
        }
    }

    /// Whether so many bytes more are left; then they are taken.
    pub(super) fn take(&self, size_bytes: u64) -> bool {
        // Not added and taken back: others would be refused meanwhile.
        let taken = |before: u64| {
            let after = before.checked_add(size_bytes)?;
            (after <= self.size_bytes_max).then_some(after)
        };
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        self.size_bytes.fetch_update(set, fetch, taken).is_ok()
    }

    /// So many bytes are not taken any more.
    pub(super) fn give(&self, size_bytes: u64) {
        self.size_bytes.fetch_sub(size_bytes, Ordering::Relaxed);
    }

    /// How many are taken.
    #[cfg(test)]
    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Relaxed)
    }
}

impl Share {
    /// Nothing yet.
    pub(super) fn new(room: &Arc<Room>) -> Self {
        Self {
            room: Arc::clone(room),
            size_bytes: 0,
        }
    }

    /// Makes it so many bytes; false, and nothing has changed: there is no room.
    pub(super) fn resize(&mut self, size_bytes: u64) -> bool {
        let has_room = if let Some(more) = size_bytes.checked_sub(self.size_bytes) {
            self.room.take(more)
        } else {
            self.room.give(self.size_bytes - size_bytes);
            true
        };
        if has_room {
            self.size_bytes = size_bytes;
        }
        has_room
    }

    /// [`resize`](Self::resize), with what another one has taken of the same room, which has
    /// nothing then.
    pub(super) fn resize_with(&mut self, other: &mut Self, size_bytes: u64) -> bool {
        self.size_bytes += other.size_bytes;
        let has_room = self.resize(size_bytes);
        if has_room {
            other.size_bytes = 0;
        } else {
            self.size_bytes -= other.size_bytes;
        }
        has_room
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.room.give(self.size_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise (J9): what is taken is what shares have, whatever becomes of them; what there is no
    /// room for changes nothing.
    #[test]
    fn shares_add_up() {
        let room = Arc::new(Room::new(100));
        let (mut one, mut other) = (Share::new(&room), Share::new(&room));
        assert!(one.resize(60) && other.resize(40));
        assert!(!one.resize(61) && !room.take(1) && !room.take(u64::MAX));
        assert!(!one.resize_with(&mut other, 101));
        assert_eq!((one.size_bytes, other.size_bytes), (60, 40));
        assert!(one.resize_with(&mut other, 90));
        assert_eq!((other.size_bytes, room.size_bytes()), (0, 90));
        drop(other);
        assert!(one.resize(10));
        assert_eq!(room.size_bytes(), 10);
        drop(one);
        assert_eq!(room.size_bytes(), 0);
    }
}
