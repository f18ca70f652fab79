//! The cluster, its tables, and the counters that numbers are drawn from.

use serde::{Deserialize, Serialize};

use super::region::REPLICA_COUNT_MAX;
use super::{
    CLUSTER_KEY, FORMAT_VERSION, IDS_KEY, NUMBER_END, Record, check_numbers, check_place,
    check_sizes, check_version, name_key, table_key,
};
use crate::ids::{ClusterId, RegionId, TableId, TableIncarnation};

/// A table's name may have so many bytes.
pub const NAME_SIZE_BYTES_MAX: usize = 64;

/// That there is a cluster, and which (ID1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// [`FORMAT_VERSION`] with the number of an older version's cluster,
    /// [`Record::VERSION`] with a 128-bit identifier.
    pub version: u32,
    /// Which one.
    pub cluster: ClusterId,
    /// The number that an older version had drawn for it, before it was adopted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub formerly: Option<ClusterId>,
}

impl Cluster {
    /// The record of a new cluster, or of one that is adopted.
    pub fn new(cluster: ClusterId, formerly: Option<ClusterId>) -> Self {
        Self {
            version: Self::VERSION,
            cluster,
            formerly,
        }
    }
}

impl Record for Cluster {
    const VERSION: u32 = 2;

    fn check(&self, key: &str) -> Result<(), String> {
        let is_legacy = self.cluster.is_legacy();
        let version = if is_legacy {
            FORMAT_VERSION
        } else {
            Self::VERSION
        };
        check_version(self.version, version)?;
        for legacy in [Some(self.cluster).filter(|_| is_legacy), self.formerly] {
            if legacy.is_some_and(|it| it.0 >= NUMBER_END.into()) {
                return Err("the number of an older version's cluster is 2^53 or more".to_owned());
            }
        }
        if is_legacy && self.formerly.is_some() {
            return Err("it was adopted, and has no 128-bit identifier".to_owned());
        }
        check_place(key, CLUSTER_KEY)
    }
}

/// The numbers that the next table and the next region get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ids {
    /// [`FORMAT_VERSION`] if nothing is skipped, [`Record::VERSION`] if something is.
    pub version: u32,
    /// The next table.
    pub next_table: TableId,
    /// The next region.
    pub next_region: RegionId,
    /// Numbers of regions that were skipped when an operator accepted a loss (ID5), in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<SkippedRegions>,
}

/// Numbers of regions that may have been given away by records that were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SkippedRegions {
    /// The first one.
    pub from: RegionId,
    /// The first one behind them.
    pub to: RegionId,
}

/// So many numbers are skipped when a loss is accepted: more tables and regions than were made
/// since any copy.
pub const SKIPPED_COUNT: u64 = 1 << 20;

/// So many ranges of skipped numbers are kept. If there are more, the first two become one.
pub const SKIPPED_RANGE_COUNT_MAX: usize = 8;

impl Default for Ids {
    fn default() -> Self {
        Self {
            version: FORMAT_VERSION,
            next_table: TableId(1),
            next_region: RegionId(1),
            skipped: Vec::new(),
        }
    }
}

impl Ids {
    /// CP23: whether a region of this number ever was, or is being made, as far as these records
    /// know.
    pub fn have_given(&self, region: RegionId) -> bool {
        let is_skipped = |it: &SkippedRegions| (it.from..it.to).contains(&region);
        region < self.next_region && !self.skipped.iter().any(is_skipped)
    }

    /// With the numbers skipped that may have been given away by records that were lost (ID5).
    /// None: there are not as many numbers.
    #[must_use]
    pub fn skipping_lost(mut self) -> Option<Self> {
        let from = self.next_region;
        let to = RegionId(from.0.checked_add(SKIPPED_COUNT)?);
        self.next_table.0 = self.next_table.0.checked_add(SKIPPED_COUNT)?;
        self.next_region = to;
        match self.skipped.last_mut() {
            Some(last) if last.to == from => last.to = to,
            _ => self.skipped.push(SkippedRegions { from, to }),
        }
        if self.skipped.len() > SKIPPED_RANGE_COUNT_MAX {
            let first = self.skipped.remove(0);
            self.skipped[0].from = first.from;
        }
        self.version = Self::VERSION;
        Some(self)
    }
}

impl Record for Ids {
    const VERSION: u32 = 2;

    fn check(&self, key: &str) -> Result<(), String> {
        let is_old = self.skipped.is_empty();
        let version = if is_old {
            FORMAT_VERSION
        } else {
            Self::VERSION
        };
        check_version(self.version, version)?;
        check_sizes(&[self.next_table.0, self.next_region.0])?;
        if self.next_table.0 == 0 || self.next_region.0 == 0 {
            return Err("a counter is 0".to_owned());
        }
        let mut end = RegionId(1);
        for skipped in &self.skipped {
            if skipped.from < end || skipped.to <= skipped.from || self.next_region < skipped.to {
                return Err("numbers that it skips are not in order".to_owned());
            }
            end = skipped.to;
        }
        if self.skipped.len() > SKIPPED_RANGE_COUNT_MAX {
            return Err("it skips too many ranges of numbers".to_owned());
        }
        check_place(key, IDS_KEY)
    }
}

/// Which table a name is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableName {
    /// [`FORMAT_VERSION`].
    pub version: u32,
    /// Which table.
    pub table: TableId,
}

impl Record for TableName {
    fn check(&self, key: &str) -> Result<(), String> {
        check_numbers(self.version, &[self.table.0])?;
        let name = key.strip_prefix("name/").ok_or("its key is no name's")?;
        check_name(name)
    }
}

/// Refuses what cannot be a table's name.
///
/// # Errors
/// What is wrong with it.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if (1..=NAME_SIZE_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain) {
        return Ok(());
    }
    Err(format!(
        "a table is named {name:?}; a name has 1 to {NAME_SIZE_BYTES_MAX} letters, digits, '-', \
         '_' and '.'"
    ))
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableRecord {
    /// [`FORMAT_VERSION`] without an incarnation, [`Record::VERSION`] with
    /// one.
    pub version: u32,
    /// Which one.
    pub table: TableId,
    /// Which creation of a table this is (ID4). None: an older version made it, and its cluster is
    /// not adopted yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<TableIncarnation>,
    /// What it is called.
    pub name: String,
    /// How many replicas each region is to have, the primary included.
    pub replica_count: usize,
    /// It is being dropped: its regions go, then its record.
    pub dropping: bool,
}

impl Record for TableRecord {
    const VERSION: u32 = 2;

    fn check(&self, key: &str) -> Result<(), String> {
        let is_old = self.incarnation.is_none();
        let version = if is_old {
            FORMAT_VERSION
        } else {
            Self::VERSION
        };
        check_version(self.version, version)?;
        check_sizes(&[self.table.0])?;
        check_place(key, &table_key(self.table))?;
        check_name(&self.name)?;
        // One place is kept for a replica that takes another one's.
        if !(1..REPLICA_COUNT_MAX).contains(&self.replica_count) {
            return Err(format!(
                "it is to have {} replicas, and can have 1 to {}",
                self.replica_count,
                REPLICA_COUNT_MAX - 1
            ));
        }
        Ok(())
    }
}

impl TableRecord {
    /// The keys of its name and of itself.
    pub fn keys(&self) -> [String; 2] {
        [name_key(&self.name), table_key(self.table)]
    }
}
