//! Where the time of a batch, or of an operation, went.

use core::ops::{AddAssign, Sub};

use super::queue::Picos;

/// Time by part, in picoseconds. What is served counts where it is served; all waiting for somebody
/// who came before is `queue`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// The client thread's processor, but for checksums.
    pub processor: Picos,
    /// The processor, over the checksums of what was read.
    pub checksum: Picos,
    /// NICs at both ends, and their links: pipelines, doorbells, bytes.
    pub nic: Picos,
    /// From NIC to NIC, or from a NIC back to itself.
    pub wire: Picos,
    /// Waiting before any of them: a thread that does something else, NICs, links, locking tables.
    pub queue: Picos,
}

impl Parts {
    /// All of it.
    pub fn total(&self) -> Picos {
        self.processor + self.checksum + self.nic + self.wire + self.queue
    }

    /// What of so long a time was not served is waiting. Services that overlap fill it at the most.
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

    /// Promise: parts are never more than the time that they are of, and waiting is what is left.
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
