//! Progress of the verification of a replica's files.

use serde::{Deserialize, Serialize};

use super::region::is_false;

/// A server's report on the verification of a replica's files: passes that read them, in which a
/// primary also compares them with its backups'.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerificationReport {
    /// Whether the copy is verified: a full pass has read it since a version wrote it that could
    /// omit log segments. Damage that the pass found is in [`fault`](super::ReplicaReport::fault).
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_finished: bool,
    /// Size of the current pass, in bytes.
    pub pass_size_bytes: u64,
    /// Bytes that the current pass has checked.
    pub passed_size_bytes: u64,
    /// End of the last full pass, in seconds since 1970; `None` if no pass has ended since the
    /// replica was opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at_unix_s: Option<u64>,
}

impl VerificationReport {
    pub(super) fn check(&self) -> Result<(), String> {
        if self.passed_size_bytes > self.pass_size_bytes {
            return Err("a verification has checked more bytes than its pass has".to_owned());
        }
        Ok(())
    }

    /// Returns the part that is reported at once, without what every step of a pass changes.
    pub(crate) const fn facts(self) -> Self {
        Self {
            pass_size_bytes: 0,
            passed_size_bytes: 0,
            ended_at_unix_s: None,
            ..self
        }
    }
}
