//! Starts of the coordinator (ID5): by them its members see that its data are an older copy.

use serde::{Deserialize, Serialize};

use super::server::FAILURE_SIZE_BYTES_MAX;
use super::{
    FORMAT_VERSION, Record, START_KEY, START_PREFIX, check_numbers, check_place, check_text,
    check_version,
};
use crate::ids::{ServerId, StartNonce};

/// One start of the coordinator. It lies under [`START_KEY`], until the next one, and under
/// [`start_key`] from then on; its first revision is the one at which that came into being.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// [`FORMAT_VERSION`].
    pub version: u32,
    /// Which one.
    pub nonce: StartNonce,
}

impl Start {
    /// The record of this start.
    pub fn new(nonce: StartNonce) -> Self {
        Self {
            version: FORMAT_VERSION,
            nonce,
        }
    }
}

/// The key under which a start stays.
pub fn start_key(nonce: StartNonce) -> String {
    format!("{START_PREFIX}{:032x}", nonce.0)
}

impl Record for Start {
    fn check(&self, key: &str) -> Result<(), String> {
        check_version(self.version, FORMAT_VERSION)?;
        if key == START_KEY {
            return Ok(());
        }
        check_place(key, &start_key(self.nonce))
    }
}

/// That an operator accepts that a start is not in the coordinator's history any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forgiven {
    /// [`FORMAT_VERSION`].
    pub version: u32,
    /// Which one is lost, with all that it has recorded.
    pub nonce: StartNonce,
}

/// The key under which it is accepted that a start is lost.
pub fn forgiven_key(nonce: StartNonce) -> String {
    format!("forgiven/{:032x}", nonce.0)
}

impl Record for Forgiven {
    fn check(&self, key: &str) -> Result<(), String> {
        check_version(self.version, FORMAT_VERSION)?;
        check_place(key, &forgiven_key(self.nonce))
    }
}

/// That a server refuses the coordinator's records, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// [`FORMAT_VERSION`].
    pub version: u32,
    /// Which server.
    pub server: ServerId,
    /// The start that it has seen, and of which the records lack something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<StartNonce>,
    /// Why, and what to do.
    pub how: String,
}

/// What a refusal may have of text.
pub const REFUSAL_SIZE_BYTES_MAX: usize = 4 * FAILURE_SIZE_BYTES_MAX;

/// What the keys of refusals begin with.
pub const REFUSAL_PREFIX: &str = "refusal/";

/// The key of a server's refusal.
pub fn refusal_key(server: ServerId) -> String {
    format!("{REFUSAL_PREFIX}{:020}", server.0)
}

impl Record for Refusal {
    fn check(&self, key: &str) -> Result<(), String> {
        check_numbers(self.version, &[self.server.0])?;
        check_place(key, &refusal_key(self.server))?;
        check_text("a refusal", &self.how, REFUSAL_SIZE_BYTES_MAX)
    }
}
