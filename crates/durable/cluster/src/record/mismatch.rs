//! Backups that did not write what their primary wrote, as the primary reports them.

use serde::{Deserialize, Serialize};

use super::{FORMAT_VERSION, check_numbers, check_text};
use crate::ids::{ReplicaNumber, ServerId};

/// Description of a compared part may have so many bytes.
pub const PART_SIZE_BYTES_MAX: usize = 128;

/// A primary reports so many mismatches that are not repaired at the most: the newest ones.
pub const MISMATCH_COUNT_MAX: usize = 8;

/// Length and checksum of a part of a replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartSum {
    /// Number of bytes.
    pub size_bytes: u64,
    /// CRC-64/NVME of these bytes, as 16 hexadecimal digits: not every reader of JSON can tell
    /// larger numbers than 2^53 exactly.
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
    /// What differed, for people: `log segment 7`.
    pub part: String,
    /// What the primary has.
    pub primary: PartSum,
    /// What the backup had.
    pub backup: PartSum,
}

impl MismatchReport {
    pub(super) fn check(&self) -> Result<(), String> {
        for sum in [&self.primary, &self.backup] {
            let digits = sum.checksum.as_bytes();
            if digits.len() != 16 || !digits.iter().all(u8::is_ascii_hexdigit) {
                return Err("a checksum has 16 hexadecimal digits".to_owned());
            }
            check_numbers(FORMAT_VERSION, &[sum.size_bytes])?;
        }
        check_text("a part of a replica", &self.part, PART_SIZE_BYTES_MAX)
    }
}
