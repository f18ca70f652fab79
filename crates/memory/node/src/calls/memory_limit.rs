//! Limit on the node's own memory for its tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory limit: maximum and used bytes.
#[derive(Debug)]
pub(super) struct MemoryLimit {
    size_bytes: AtomicU64,
    size_bytes_max: u64,
}

/// Reserved part of the memory limit; released when dropped.
#[derive(Debug)]
pub(super) struct MemoryShare {
    limit: Arc<MemoryLimit>,
    size_bytes: u64,
}

impl MemoryLimit {
    /// Creates a limit of which nothing is used.
    pub(super) fn new(size_bytes_max: u64) -> Self {
        Self {
            size_bytes: AtomicU64::new(0),
            size_bytes_max,
        }
    }

    /// Reserves bytes if so many are left; returns whether it did.
    pub(super) fn take(&self, size_bytes: u64) -> bool {
        // Not added and then taken back: other requests would be refused in the meantime.
        let taken = |before: u64| {
            let after = before.checked_add(size_bytes)?;
            (after <= self.size_bytes_max).then_some(after)
        };
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        self.size_bytes.fetch_update(set, fetch, taken).is_ok()
    }

    /// Releases bytes.
    pub(super) fn give(&self, size_bytes: u64) {
        self.size_bytes.fetch_sub(size_bytes, Ordering::Relaxed);
    }

    /// Returns the used bytes.
    #[cfg(test)]
    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Relaxed)
    }
}

impl MemoryShare {
    /// Creates an empty share.
    pub(super) fn new(limit: &Arc<MemoryLimit>) -> Self {
        Self {
            limit: Arc::clone(limit),
            size_bytes: 0,
        }
    }

    /// Changes the share's size; returns false and changes nothing if the limit would be exceeded.
    pub(super) fn resize(&mut self, size_bytes: u64) -> bool {
        let has_capacity = if let Some(more) = size_bytes.checked_sub(self.size_bytes) {
            self.limit.take(more)
        } else {
            self.limit.give(self.size_bytes - size_bytes);
            true
        };
        if has_capacity {
            self.size_bytes = size_bytes;
        }
        has_capacity
    }

    /// Changes the share's size like [`resize`](Self::resize), and first takes over the bytes of
    /// another share of the same limit, which is empty then.
    pub(super) fn resize_with(&mut self, other: &mut Self, size_bytes: u64) -> bool {
        self.size_bytes += other.size_bytes;
        let has_capacity = self.resize(size_bytes);
        if has_capacity {
            other.size_bytes = 0;
        } else {
            self.size_bytes -= other.size_bytes;
        }
        has_capacity
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.limit.give(self.size_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the used bytes are the sum of all shares, whatever happens to them; a refused
    /// change changes nothing.
    #[test]
    fn shares_add_up() {
        let limit = Arc::new(MemoryLimit::new(100));
        let (mut one, mut other) = (MemoryShare::new(&limit), MemoryShare::new(&limit));
        assert!(one.resize(60) && other.resize(40));
        assert!(!one.resize(61) && !limit.take(1) && !limit.take(u64::MAX));
        assert!(!one.resize_with(&mut other, 101));
        assert_eq!((one.size_bytes, other.size_bytes), (60, 40));
        assert!(one.resize_with(&mut other, 90));
        assert_eq!((other.size_bytes, limit.size_bytes()), (0, 90));
        drop(other);
        assert!(one.resize(10));
        assert_eq!(limit.size_bytes(), 10);
        drop(one);
        assert_eq!(limit.size_bytes(), 0);
    }
}
