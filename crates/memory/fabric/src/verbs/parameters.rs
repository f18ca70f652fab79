//! Parameters that two queue pairs exchange over the control channel.

use core::fmt;

use crate::verbs::device::mtu_number;

/// Numbers of queue pairs and packets have 24 bits.
const NUMBER_END: u64 = 1 << 24;

/// One end of a connection, as described to the other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueParameters {
    /// Number of the queue pair.
    pub(crate) number: u32,
    /// Number of the first packet that this end sends.
    pub(crate) first_packet: u32,
    /// Largest payload of a packet that this end accepts, in bytes.
    pub(crate) mtu_bytes: u16,
    /// Number of READs and atomics that this end answers at a time.
    pub(crate) answered_reads_max: u8,
    /// Address of the port in an `InfiniBand` subnet; 0 elsewhere.
    pub(crate) lid: u16,
    /// Global address of the port.
    pub(crate) gid: [u8; 16],
}

impl fmt::Debug for QueueParameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gid = std::net::Ipv6Addr::from(self.gid);
        write!(f, "queue pair {} at {gid}", self.number)
    }
}

impl QueueParameters {
    /// Returns the parameters as words, without the global address.
    pub(crate) fn words(&self) -> [u64; 5] {
        [
            u64::from(self.number),
            u64::from(self.first_packet),
            u64::from(self.mtu_bytes),
            u64::from(self.answered_reads_max),
            u64::from(self.lid),
        ]
    }

    /// Decodes and checks the parameters; `None` if no queue pair can have them.
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

/// Reply of a node: its end, and the address of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeQueue {
    pub(crate) parameters: QueueParameters,
    /// Start of the memory, as verbs address it.
    pub(crate) memory_addr: u64,
    /// Key for the memory.
    pub(crate) memory_key: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: impossible parameters are refused before they reach a card.
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
