//! What two queue pairs must know of each other; it goes over the control channel.

use core::fmt;

use crate::verbs::device::mtu_number;

/// Numbers of queue pairs and packets have 24 bits.
const NUMBER_END: u64 = 1 << 24;

/// One end of a connection, as the other must know it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueParameters {
    /// Number of the queue pair.
    pub(crate) number: u32,
    /// Number of the first packet that it sends.
    pub(crate) first_packet: u32,
    /// The largest payload of a packet that it takes, in bytes.
    pub(crate) mtu_bytes: u16,
    /// READs and atomics that it answers at a time.
    pub(crate) answered_reads_max: u8,
    /// Its port's address in an `InfiniBand` subnet; 0 elsewhere.
    pub(crate) lid: u16,
    /// Its port's global address.
    pub(crate) gid: [u8; 16],
}

impl fmt::Debug for QueueParameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gid = std::net::Ipv6Addr::from(self.gid);
        write!(f, "queue pair {} at {gid}", self.number)
    }
}

impl QueueParameters {
    /// As six words, the last two of which are the global address.
    pub(crate) fn words(&self) -> [u64; 5] {
        [
            u64::from(self.number),
            u64::from(self.first_packet),
            u64::from(self.mtu_bytes),
            u64::from(self.answered_reads_max),
            u64::from(self.lid),
        ]
    }

    /// `None`: no queue pair is like that.
    pub(crate) fn from_words(words: [u64; 5], gid: [u8; 16]) -> Option<Self> {
        let [number, first_packet, mtu_bytes, answered_reads_max, lid] = words;
        let mtu_bytes = u16::try_from(mtu_bytes).ok()?;
        mtu_number(mtu_bytes)?;
        let answered_reads_max = u8::try_from(answered_reads_max).ok()?;
        let is_possible =
            number < NUMBER_END && first_packet < NUMBER_END && answered_reads_max > 0;
        is_possible.then_some(Self {
            number: number as u32,
            first_packet: first_packet as u32,
            mtu_bytes,
            answered_reads_max,
            lid: u16::try_from(lid).ok()?,
            gid,
        })
    }
}

/// A node's answer: its end, and where its memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeQueue {
    pub(crate) parameters: QueueParameters,
    /// Where the region begins, as verbs name it.
    pub(crate) region_addr: u64,
    /// The key to it.
    pub(crate) region_key: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: what no queue pair can be is refused before a card is told of it.
    #[test]
    fn impossible_ends_are_refused() {
        let words = [1, 2, 1024, 16, 0];
        let good = QueueParameters::from_words(words, [1; 16]).expect("possible");
        assert_eq!(good.words(), words);
        for (index, bad) in [
            (0, 1 << 24),
            (1, 1 << 24),
            (2, 1500),
            (3, 0),
            (3, 256),
            (4, 1 << 16),
        ] {
            let mut words = words;
            words[index] = bad;
            assert_eq!(
                QueueParameters::from_words(words, [1; 16]),
                None,
                "{words:?}"
            );
        }
    }
}
