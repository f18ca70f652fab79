//! Limit of the number of connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Permit for one connection; returned when dropped.
#[derive(Debug)]
pub struct Permit(Arc<AtomicUsize>);

/// Pool of a limited number of permits.
#[derive(Debug)]
pub struct Permits {
    taken_count: Arc<AtomicUsize>,
    count_max: usize,
}

impl Permits {
    /// Creates a pool of `count_max` permits.
    pub fn new(count_max: usize) -> Self {
        Self {
            taken_count: Arc::default(),
            count_max,
        }
    }

    /// Takes a permit; `None` if all are taken. To be called by one thread only.
    pub fn take(&self) -> Option<Permit> {
        if self.taken_count.load(Ordering::Relaxed) >= self.count_max {
            return None;
        }
        self.taken_count.fetch_add(1, Ordering::Relaxed);
        Some(Permit(Arc::clone(&self.taken_count)))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
