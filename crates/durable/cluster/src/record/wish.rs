//! What administrators want of the master: it reads wishes, does what it can, and answers in their
//! place.

use serde::{Deserialize, Serialize};

use super::region::Key;
use super::server::FAILURE_SIZE_BYTES_MAX;
use super::{Record, WISH_PREFIX, check_numbers, check_text, number_behind};
use crate::ids::{RegionId, ServerId, TableId};

/// What is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum WishKind {
    /// A region become two.
    Split {
        /// Of which table.
        table: TableId,
        /// Which region.
        region: RegionId,
        /// Where the second one begins.
        at: Key,
    },
    /// A replica go to another server; the primary, if `from` has it.
    Move {
        /// Of which table.
        table: TableId,
        /// Which region.
        region: RegionId,
        /// Which server has it.
        from: ServerId,
        /// Which is to have it; one that has a backup in sync already becomes primary, if `from`
        /// has that.
        to: ServerId,
    },
    /// A region go on without members whose servers do not come back: what they alone have is
    /// given up (CP19).
    GiveUp {
        /// Of which table.
        table: TableId,
        /// Which region.
        region: RegionId,
        /// The servers that are not waited for.
        servers: Vec<ServerId>,
    },
}

/// What came of a wish.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum WishAnswer {
    /// It was begun; the region's record tells when it is done.
    Begun,
    /// It cannot be done.
    Refused(String),
}

/// A wish.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wish {
    /// [`FORMAT_VERSION`](super::FORMAT_VERSION).
    pub version: u32,
    /// What is wanted.
    pub kind: WishKind,
    /// What came of it; none: it is not looked at yet.
    pub answer: Option<WishAnswer>,
}

impl WishKind {
    /// About which region it is.
    pub fn region(&self) -> (TableId, RegionId) {
        match self {
            Self::Split { table, region, .. }
            | Self::Move { table, region, .. }
            | Self::GiveUp { table, region, .. } => (*table, *region),
        }
    }
}

impl Record for Wish {
    fn check(&self, key: &str) -> Result<(), String> {
        number_behind(key, WISH_PREFIX).ok_or("its key has no number")?;
        let (table, region) = self.kind.region();
        check_numbers(self.version, &[table.0, region.0])?;
        match &self.answer {
            Some(WishAnswer::Refused(why)) => check_text("an answer", why, FAILURE_SIZE_BYTES_MAX),
            Some(WishAnswer::Begun) | None => Ok(()),
        }
    }
}
