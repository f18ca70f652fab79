//! Checksums of the data that a replica wrote to its devices, which replicas compare.

use std::collections::VecDeque;
use std::fmt;

use crc_fast::{CrcAlgorithm, Digest};
use serde::{Deserialize, Serialize};

use crate::device::Device;
use crate::error::LsmError;
use crate::place::SegmentId;

/// CRC-64/NVME, which carry-less multiplication computes at about 10 GB/s.
const ALGORITHM: CrcAlgorithm = CrcAlgorithm::Crc64Nvme;

/// Maximum number of earlier states of a segment's checksum that are kept.
const EARLIER_COUNT_MAX: usize = 8;

/// Length and CRC-64/NVME of bytes that a replica wrote to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenSum {
    /// Number of bytes.
    pub size_bytes: u32,
    /// CRC-64/NVME of the written bytes.
    pub crc: u64,
}

impl WrittenSum {
    /// Computes length and checksum of less than 4 GiB of bytes.
    pub fn of(bytes: &[u8]) -> Self {
        RunningSum::new().plus(bytes).sum()
    }
}

impl fmt::Display for WrittenSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size_bytes, crc } = self;
        write!(f, "{size_bytes} bytes with checksum {crc:016x}")
    }
}

/// Checksum of a segment's first bytes, extended as more bytes are written behind them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunningSum {
    size_bytes: usize,
    state: u64,
}

impl RunningSum {
    /// Creates the checksum of an empty segment.
    pub(crate) fn new() -> Self {
        Self {
            size_bytes: 0,
            state: Digest::new(ALGORITHM).get_state(),
        }
    }

    /// Returns the number of bytes that the checksum covers.
    pub(crate) const fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Writes bytes behind the covered ones, and extends the checksum over them. If the device
    /// fails, the checksum does not change, and the same bytes can be written again.
    ///
    /// # Errors
    /// The device cannot be written.
    pub(crate) fn append(
        &mut self,
        device: &Device,
        segment: SegmentId,
        bytes: &[u8],
    ) -> Result<(), LsmError> {
        device.append(segment, self.size_bytes as u64, bytes)?;
        *self = self.plus(bytes);
        Ok(())
    }

    /// Returns the checksum extended over more bytes, without writing them.
    pub(crate) fn plus(&self, bytes: &[u8]) -> Self {
        let mut digest = Digest::new_with_init_state(ALGORITHM, self.state);
        digest.update(bytes);
        Self {
            size_bytes: self.size_bytes + bytes.len(),
            state: digest.get_state(),
        }
    }

    pub(crate) fn sum(&self) -> WrittenSum {
        WrittenSum {
            size_bytes: u32::try_from(self.size_bytes).expect("a segment has 2 MiB at the most"),
            crc: Digest::new_with_init_state(ALGORITHM, self.state).finalize(),
        }
    }
}

/// Checksum of the written part of a segment, and of shorter prefixes of it. A backup may have
/// synced less than its primary has written.
#[derive(Debug)]
pub(crate) struct SegmentSums {
    latest: RunningSum,
    /// Earlier states, oldest first.
    earlier: VecDeque<RunningSum>,
}

impl SegmentSums {
    /// Creates the checksums of an empty segment.
    pub(crate) fn new() -> Self {
        Self {
            latest: RunningSum::new(),
            earlier: VecDeque::with_capacity(EARLIER_COUNT_MAX),
        }
    }

    /// Starts the next segment, with the checksum of the part that is already written.
    pub(crate) fn begin(&mut self, written: RunningSum) {
        self.latest = written;
        self.earlier.clear();
    }

    /// Returns the checksum of the whole written part.
    pub(crate) const fn latest(&self) -> RunningSum {
        self.latest
    }

    /// Records that more of the segment is written.
    pub(crate) fn note_written(&mut self, latest: RunningSum) {
        if self.earlier.len() == EARLIER_COUNT_MAX {
            self.earlier.pop_front();
        }
        self.earlier
            .push_back(std::mem::replace(&mut self.latest, latest));
    }

    /// Computes the checksum of a prefix of the segment, which the caller has in memory.
    pub(crate) fn up_to(&self, bytes: &[u8]) -> WrittenSum {
        let known = std::iter::once(&self.latest).chain(self.earlier.iter().rev());
        let mut known = known.filter(|it| it.size_bytes <= bytes.len());
        let known = known.next().copied().unwrap_or_else(RunningSum::new);
        known.plus(&bytes[known.size_bytes..]).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;
    use crate::device::open_file;
    use crate::storage::{CrashStorage, Fault, FaultyStorage};

    /// Promise (format): all replicas compute the same checksum, since they compare them.
    #[test]
    fn a_checksum_is_golden() {
        let sum = WrittenSum::of(b"123456789");
        assert_eq!(sum.to_string(), "9 bytes with checksum ae8b14860a799888");
        let golden = r#"{"size_bytes":9,"crc":12577168950296156296}"#;
        assert_eq!(serde_json::to_string(&sum).expect("JSON"), golden);
        assert_eq!(serde_json::from_str::<WrittenSum>(golden).ok(), Some(sum));
        let none = WrittenSum::of(b"");
        assert_eq!(none.to_string(), "0 bytes with checksum 0000000000000000");
    }

    /// Promise: the checksum covers what the device received, however many writes it took. A failed
    /// write leaves it unchanged. Checksums of all shorter prefixes are available, after few and
    /// many writes.
    #[test]
    fn a_checksum_is_of_what_was_written() {
        let storage = FaultyStorage::new(Arc::new(CrashStorage::new(1)));
        let file = open_file(&storage, "log", None).expect("a new one");
        let device = Device::new(file, "log", String::new(), &BTreeSet::new());
        let segment = device.allocate();
        let bytes: Vec<u8> = (0..3000_u32).map(|it| (it * it >> 3) as u8).collect();
        let mut sums = SegmentSums::new();
        for (index, piece) in bytes.chunks(100).enumerate() {
            if index % 7 == 3 {
                let full = storage.set(Fault::Full { after_bytes: 0 });
                let failed = sums.latest().append(&device, segment, piece);
                assert!(failed.is_err_and(|error| error.is_out_of_space()));
                storage.lift(full);
            }
            let mut latest = sums.latest();
            latest
                .append(&device, segment, piece)
                .expect("there is room");
            sums.note_written(latest);
            let end = (index + 1) * 100;
            assert_eq!(sums.latest().sum(), WrittenSum::of(&bytes[..end]));
        }
        let mut read = vec![0; 3000];
        device.read(segment, 0, &mut read).expect("it is there");
        assert!(read == bytes);
        for end in [0, 1, 99, 100, 2199, 2200, 2250, 2900, 2999, 3000] {
            let expected = WrittenSum::of(&bytes[..end]);
            assert_eq!(sums.up_to(&bytes[..end]), expected, "{end}");
        }
        sums.begin(RunningSum::new());
        assert_eq!(sums.up_to(b"abc"), WrittenSum::of(b"abc"));
    }
}
