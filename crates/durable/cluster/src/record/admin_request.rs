//! Requests of administrators to the master. The master executes or refuses them, and replies in
//! the same records.

use serde::{Deserialize, Serialize};

use super::region::Key;
use super::server::FAILURE_SIZE_BYTES_MAX;
use super::{ADMIN_REQUEST_PREFIX, Record, check_numbers, check_text, number_behind};
use crate::ids::{RegionId, ServerId, TableId};

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum AdminRequestKind {
    /// Split a region in two.
    Split {
        /// The table.
        table: TableId,
        /// The region.
        region: RegionId,
        /// First key of the new region.
        at: Key,
    },
    /// Move a replica to another server; the primary, if `from` has it.
    Move {
        /// The table.
        table: TableId,
        /// The region.
        region: RegionId,
        /// Server that has the replica.
        from: ServerId,
        /// Server that is to have the replica. If it already has an in-sync backup and `from` has
        /// the primary, that backup becomes primary.
        to: ServerId,
    },
    /// Continue a region without members whose servers do not come back; data that only they have
    /// are given up (CONTROL-19).
    GiveUp {
        /// The table.
        table: TableId,
        /// The region.
        region: RegionId,
        /// Servers that are no longer waited for.
        servers: Vec<ServerId>,
    },
}

/// Reply to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum AdminReply {
    /// The change was started; the region's record shows when it is done.
    Begun,
    /// The request is refused, with the reason.
    Refused(String),
}

/// Record of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdminRequest {
    /// Version of the record: [`FORMAT_VERSION`](super::FORMAT_VERSION).
    pub version: u32,
    /// The request.
    pub kind: AdminRequestKind,
    /// The reply; `None` if the master has not decided yet.
    pub answer: Option<AdminReply>,
}

impl AdminRequestKind {
    /// Returns the region that the request concerns.
    pub fn region(&self) -> (TableId, RegionId) {
        match self {
            Self::Split { table, region, .. }
            | Self::Move { table, region, .. }
            | Self::GiveUp { table, region, .. } => (*table, *region),
        }
    }
}

impl Record for AdminRequest {
    fn check(&self, key: &str) -> Result<(), String> {
        number_behind(key, ADMIN_REQUEST_PREFIX).ok_or("its key has no number")?;
        let (table, region) = self.kind.region();
        check_numbers(self.version, &[table.0, region.0])?;
        match &self.answer {
            Some(AdminReply::Refused(why)) => check_text("an answer", why, FAILURE_SIZE_BYTES_MAX),
            Some(AdminReply::Begun) | None => Ok(()),
        }
    }
}
