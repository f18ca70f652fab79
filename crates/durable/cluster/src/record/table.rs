//! The cluster, its tables, and the counters of assigned numbers.

use farleaf_base::limits::TABLE_NAME_SIZE_BYTES_MAX;
use serde::{Deserialize, Serialize};

use super::region::REPLICA_COUNT_MAX;
use super::{
    CLUSTER_KEY, FORMAT_VERSION, IDS_KEY, NUMBER_END, Record, check_numbers, check_record_key,
    check_sizes, check_version, name_key, table_key,
};
use crate::ids::{ClusterId, RegionId, TableId, TableIncarnation};

/// Refuses a version other than the first one, if the record is an old one, or the newest one.
fn check_version_of<R: Record>(version: u32, is_old: bool) -> Result<(), String> {
    check_version(version, if is_old { FORMAT_VERSION } else { R::VERSION })
}

/// Identity of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// [`FORMAT_VERSION`] with the legacy number of an older version, [`Record::VERSION`] with a
    /// 128-bit identifier.
    pub version: u32,
    /// Identifier of the cluster.
    pub cluster: ClusterId,
    /// Legacy number that the cluster had before it was adopted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub formerly: Option<ClusterId>,
}

impl Cluster {
    /// Creates the record of a new or adopted cluster.
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
        check_version_of::<Self>(self.version, is_legacy)?;
        for legacy in [Some(self.cluster).filter(|_| is_legacy), self.formerly] {
            if legacy.is_some_and(|it| it.0 >= NUMBER_END.into()) {
                return Err("the number of an older version's cluster is 2^53 or more".to_owned());
            }
        }
        if is_legacy && self.formerly.is_some() {
            return Err("it was adopted, but has no 128-bit identifier".to_owned());
        }
        check_record_key(key, CLUSTER_KEY)
    }
}

/// Counters for numbers of tables and regions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ids {
    /// [`FORMAT_VERSION`] if no numbers are skipped, [`Record::VERSION`] otherwise.
    pub version: u32,
    /// Number of the next table.
    pub next_table: TableId,
    /// Number of the next region.
    pub next_region: RegionId,
    /// Region numbers that were skipped when an operator accepted a loss, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<SkippedRegions>,
}

/// Range of region numbers that lost records may have assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SkippedRegions {
    /// First number of the range.
    pub from: RegionId,
    /// First number after the range.
    pub to: RegionId,
}

/// Number of tables and regions that are skipped when a loss is accepted: more than were created
/// since any copy.
pub const SKIPPED_COUNT: u64 = 1 << 20;

/// Number of skipped ranges that are kept. If there are more, the first two are merged.
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
    /// Returns whether a region of this number was ever created, or is being created, as far as
    /// these records know (CONTROL-23).
    pub fn has_assigned(&self, region: RegionId) -> bool {
        let is_skipped = |it: &SkippedRegions| (it.from..it.to).contains(&region);
        region < self.next_region && !self.skipped.iter().any(is_skipped)
    }

    /// Skips the numbers that lost records may have assigned. Returns `None` if too few numbers are
    /// left.
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
        check_version_of::<Self>(self.version, is_old)?;
        check_sizes(&[self.next_table.0, self.next_region.0])?;
        if self.next_table.0 == 0 || self.next_region.0 == 0 {
            return Err("a counter is 0".to_owned());
        }
        let mut end = RegionId(1);
        for skipped in &self.skipped {
            if skipped.from < end || skipped.to <= skipped.from || self.next_region < skipped.to {
                return Err("its skipped numbers are not in order".to_owned());
            }
            end = skipped.to;
        }
        if self.skipped.len() > SKIPPED_RANGE_COUNT_MAX {
            return Err("it skips too many ranges of numbers".to_owned());
        }
        check_record_key(key, IDS_KEY)
    }
}

/// The table with a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableName {
    /// Version of the record: [`FORMAT_VERSION`].
    pub version: u32,
    /// Number of the table.
    pub table: TableId,
}

impl Record for TableName {
    fn check(&self, key: &str) -> Result<(), String> {
        check_numbers(self.version, &[self.table.0])?;
        let name = key
            .strip_prefix("name/")
            .ok_or("its key is not the key of a name")?;
        check_name(name)
    }
}

/// Checks the name of a table.
///
/// # Errors
/// A description of what is wrong with it.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if (1..=TABLE_NAME_SIZE_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain) {
        return Ok(());
    }
    Err(format!(
        "invalid table name {name:?}: expected 1 to {TABLE_NAME_SIZE_BYTES_MAX} letters, digits, '-', \
         '_' and '.'"
    ))
}

/// Record of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableRecord {
    /// [`FORMAT_VERSION`] without an incarnation, [`Record::VERSION`] with one.
    pub version: u32,
    /// Number of the table.
    pub table: TableId,
    /// Incarnation of the table; `None` if an older version created it, and its cluster is not
    /// adopted yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<TableIncarnation>,
    /// Name of the table.
    pub name: String,
    /// Number of replicas of each region, including the primary.
    pub replica_count: usize,
    /// Whether the table is being dropped: its regions are removed, then its record.
    pub dropping: bool,
}

impl Record for TableRecord {
    const VERSION: u32 = 2;

    fn check(&self, key: &str) -> Result<(), String> {
        let is_old = self.incarnation.is_none();
        check_version_of::<Self>(self.version, is_old)?;
        check_sizes(&[self.table.0])?;
        check_record_key(key, &table_key(self.table))?;
        check_name(&self.name)?;
        // One more place is reserved for a replica that replaces another one.
        if !(1..REPLICA_COUNT_MAX).contains(&self.replica_count) {
            return Err(format!(
                "invalid number of replicas {}: expected 1 to {}",
                self.replica_count,
                REPLICA_COUNT_MAX - 1
            ));
        }
        Ok(())
    }
}

impl TableRecord {
    /// Returns the keys of its name and of its record.
    pub fn keys(&self) -> [String; 2] {
        [name_key(&self.name), table_key(self.table)]
    }
}
