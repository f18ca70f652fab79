//! Reports of a primary about backups that did not write what it wrote.

use serde::{Deserialize, Serialize};

use super::{FORMAT_VERSION, check_numbers, check_text};
use crate::ids::{ReplicaNumber, ServerId};

/// Largest size of a compared part's description.
pub const PART_SIZE_BYTES_MAX: usize = 128;

/// Number of unrepaired mismatches that a primary reports, newest first.
pub const MISMATCH_COUNT_MAX: usize = 8;

/// Length and checksum of a part of a replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartSum {
    /// Number of bytes.
    pub size_bytes: u64,
    /// CRC-64/NVME of the part's bytes, as 16 hexadecimal digits. As a number, not every JSON
    /// reader could represent it: some are exact only below 2^53.
    pub checksum: String,
}

/// A backup whose data differed from those of its primary, and that has not been repaired yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MismatchReport {
    /// Number of the backup.
    pub replica: ReplicaNumber,
    /// Server that had the backup.
    pub server: ServerId,
    /// Part that differed, for people: `log segment 7`.
    pub part: String,
    /// Length and checksum on the primary.
    pub primary: PartSum,
    /// Length and checksum on the backup.
    pub backup: PartSum,
}

impl MismatchReport {
    pub(super) fn check(&self) -> Result<(), String> {
        for sum in [&self.primary, &self.backup] {
            let digits = sum.checksum.as_bytes();
            if digits.len() != 16 || !digits.iter().all(u8::is_ascii_hexdigit) {
                return Err("a checksum does not have 16 hexadecimal digits".to_owned());
            }
            check_numbers(FORMAT_VERSION, &[sum.size_bytes])?;
        }
        check_text("a part of a replica", &self.part, PART_SIZE_BYTES_MAX)
    }
}
