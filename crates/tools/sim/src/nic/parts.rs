//! Time parts of a batch or an operation.

use core::ops::{AddAssign, Sub};

use super::queue::Picos;

/// Time by part, in picoseconds. Service time counts where it is served; all waiting for earlier
/// work counts as `queue`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Client thread's processor, without checksums.
    pub processor: Picos,
    /// Processor, for checksums of data that was read.
    pub checksum: Picos,
    /// NICs at both ends, and their links: pipelines, doorbells, bytes.
    pub nic: Picos,
    /// Time from NIC to NIC, or from a NIC back to itself.
    pub wire: Picos,
    /// Time of waiting before any of them: for a busy thread, NICs, links, locking tables.
    pub queue: Picos,
}

impl Parts {
    /// Returns the sum of all parts.
    pub fn total(&self) -> Picos {
        self.processor + self.checksum + self.nic + self.wire + self.queue
    }

    /// Counts as waiting the part of `duration` that was not served. Overlapping services fill it
    /// at most.
    pub(crate) fn waited(self, duration: Picos) -> Self {
        let served = self.total();
        Self {
            nic: self.nic.saturating_sub(served.saturating_sub(duration)),
            queue: duration.saturating_sub(served),
            ..self
        }
    }
}

impl AddAssign for Parts {
    fn add_assign(&mut self, other: Self) {
        self.processor += other.processor;
        self.checksum += other.checksum;
        self.nic += other.nic;
        self.wire += other.wire;
        self.queue += other.queue;
    }
}

impl Sub for Parts {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            processor: self.processor - other.processor,
            checksum: self.checksum - other.checksum,
            nic: self.nic - other.nic,
            wire: self.wire - other.wire,
            queue: self.queue - other.queue,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: parts never exceed their duration, and the rest of it is waiting.
    #[test]
    fn parts_fill_the_time() {
        let parts = Parts {
            nic: 300,
            wire: 900,
            ..Parts::default()
        };
        let waited = parts.waited(1500);
        assert_eq!((waited.queue, waited.total()), (300, 1500));
        let overlapped = parts.waited(1100);
        assert_eq!((overlapped.nic, overlapped.total()), (200, 1100));
    }
}
