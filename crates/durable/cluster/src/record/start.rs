//! Records of the coordinator's starts, by which members recognize older copies of its data. See
//! docs/reference/control-plane.md, *Older copies of the coordinator's data*.

use serde::{Deserialize, Serialize};

use super::server::FAILURE_SIZE_BYTES_MAX;
use super::{
    FORMAT_VERSION, Record, START_KEY, START_PREFIX, check_numbers, check_record_key, check_text,
    check_version,
};
use crate::ids::{ServerId, StartNonce};

/// One start of the coordinator. Until the next start it is stored under [`START_KEY`], and also
/// under [`start_key`]. Its first revision is the creation revision of the latter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// Version of the record: [`FORMAT_VERSION`].
    pub version: u32,
    /// Random number of the start.
    pub nonce: StartNonce,
}

impl Start {
    /// Creates the record of a start.
    pub fn new(nonce: StartNonce) -> Self {
        Self {
            version: FORMAT_VERSION,
            nonce,
        }
    }
}

/// Returns the permanent key of a start.
pub fn start_key(nonce: StartNonce) -> String {
    format!("{START_PREFIX}{:032x}", nonce.0)
}

impl Record for Start {
    fn check(&self, key: &str) -> Result<(), String> {
        check_version(self.version, FORMAT_VERSION)?;
        if key == START_KEY {
            return Ok(());
        }
        check_record_key(key, &start_key(self.nonce))
    }
}

/// Record that an operator accepts the loss of a start from the coordinator's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceptedLoss {
    /// Version of the record: [`FORMAT_VERSION`].
    pub version: u32,
    /// The lost start; everything recorded since is lost, too.
    pub nonce: StartNonce,
}

/// Returns the key of the acceptance of a lost start.
pub fn accepted_loss_key(nonce: StartNonce) -> String {
    format!("forgiven/{:032x}", nonce.0)
}

impl Record for AcceptedLoss {
    fn check(&self, key: &str) -> Result<(), String> {
        check_version(self.version, FORMAT_VERSION)?;
        check_record_key(key, &accepted_loss_key(self.nonce))
    }
}

/// Record that a server refuses the coordinator's records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// Version of the record: [`FORMAT_VERSION`].
    pub version: u32,
    /// The server.
    pub server: ServerId,
    /// The start that the server has seen, if it is known; the records lack it or something after
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<StartNonce>,
    /// Reason of the refusal, and the remedy.
    pub how: String,
}

/// Largest size of a refusal's text.
pub const REFUSAL_SIZE_BYTES_MAX: usize = 4 * FAILURE_SIZE_BYTES_MAX;

/// Prefix of the keys of refusals.
pub const REFUSAL_PREFIX: &str = "refusal/";

/// Returns the key of a server's refusal.
pub fn refusal_key(server: ServerId) -> String {
    format!("{REFUSAL_PREFIX}{:020}", server.0)
}

impl Record for Refusal {
    fn check(&self, key: &str) -> Result<(), String> {
        check_numbers(self.version, &[self.server.0])?;
        check_record_key(key, &refusal_key(self.server))?;
        check_text("a refusal", &self.how, REFUSAL_SIZE_BYTES_MAX)
    }
}
