//! A region: a range of a table's keys, its replicas, its epoch, and the phase of a change.

use std::fmt;

use farleaf_base::limits::KEY_SIZE_BYTES_MAX;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Record, check_numbers, check_record_key, region_key};
use crate::ids::{Epoch, Life, RegionId, ReplicaNumber, ServerId, TableId, TableIncarnation};

/// Largest number of replicas of a region, including those that are catching up.
pub const REPLICA_COUNT_MAX: usize = 16;

/// A key of a table, or a bound of a range: a byte string, as hexadecimal digits in JSON.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Key(pub Vec<u8>);

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, formatter)
    }
}

impl From<&[u8]> for Key {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let digit = |value: u8| char::from_digit(value.into(), 16).unwrap_or('0');
        let digits = self
            .0
            .iter()
            .flat_map(|it| [digit(it >> 4), digit(it & 15)]);
        serializer.serialize_str(&digits.collect::<String>())
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digit = |byte: u8| (byte as char).to_digit(16).map(|value| value as u8);
        let pair = |pair: &[u8]| Some((digit(pair[0])? << 4) | digit(*pair.get(1)?)?);
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(pair).collect();
        let bytes = bytes.filter(|bytes| bytes.len() <= KEY_SIZE_BYTES_MAX);
        bytes.map(Self).ok_or_else(|| {
            serde::de::Error::custom(format_args!(
                "invalid key: expected hexadecimal digits of at most {KEY_SIZE_BYTES_MAX} bytes"
            ))
        })
    }
}

/// A copy of a region: its number, and the server and life in which it was ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replica {
    /// Number of the replica.
    pub number: ReplicaNumber,
    /// Server of the replica.
    pub server: ServerId,
    /// Life of the server.
    pub life: Life,
    /// Epoch at which the replica was opened again from its copy, after it had broken (CONTROL-16);
    /// 0 if it never was. Its server's reports at earlier epochs are outdated.
    #[serde(default = "never", skip_serializing_if = "is_never")]
    pub opened_again: Epoch,
}

/// A replica that is not the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Backup {
    /// The replica.
    pub replica: Replica,
    /// Whether the backup has everything that the primary has ever acknowledged; otherwise it is
    /// catching up.
    pub in_sync: bool,
    /// Whether the backup's life was over when the primary was promoted. It stays a member until
    /// the primary reports it as failed (CONTROL-13), but never counts as complete.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_lost: bool,
}

impl Backup {
    /// Creates a backup that has everything.
    pub const fn in_sync(replica: Replica) -> Self {
        Self {
            replica,
            in_sync: true,
            is_lost: false,
        }
    }

    /// Creates a backup that is to be filled.
    pub const fn to_fill(replica: Replica) -> Self {
        Self {
            replica,
            in_sync: false,
            is_lost: false,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
pub(super) const fn is_false(value: &bool) -> bool {
    !*value
}

const fn never() -> Epoch {
    Epoch(0)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_never(epoch: &Epoch) -> bool {
    epoch.0 == 0
}

/// Change of a region that takes several steps; [`Steady`](Self::Steady) if none is in progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Phase {
    /// No change is in progress.
    Steady,
    /// A replica moves: another one is being filled, and the first leaves when that one is in sync.
    Moving {
        /// Replica that leaves.
        leaving: ReplicaNumber,
        /// Replica that takes its place.
        arriving: ReplicaNumber,
    },
    /// The primary stops at its epoch, and a backup takes over (CONTROL-15).
    HandingOver {
        /// The in-sync backup that takes over.
        to: ReplicaNumber,
        /// Whether the old primary leaves; otherwise it becomes a backup.
        old_leaves: bool,
    },
    /// The primary prepares to split the region in two, and stops (CONTROL-17).
    Splitting {
        /// First key of the new region.
        at: Key,
        /// Number of the new region.
        child: RegionId,
    },
}

impl fmt::Display for Phase {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steady => formatter.write_str("no change is in progress"),
            Self::Moving { leaving, arriving } => write!(
                formatter,
                "{leaving} is removed when {arriving}, which is catching up, is in sync"
            ),
            Self::HandingOver { to, .. } => {
                write!(formatter, "its primary is handing over to {to}")
            }
            Self::Splitting { at, child } => {
                write!(formatter, "it is being split at {at} into {child}")
            }
        }
    }
}

/// Record of a region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionRecord {
    /// Version of the record: [`FORMAT_VERSION`](super::FORMAT_VERSION).
    pub version: u32,
    /// The table.
    pub table: TableId,
    /// Number of the region.
    pub region: RegionId,
    /// First key of the region.
    pub from: Key,
    /// First key after the region; `None` if the region has no upper bound.
    pub to: Option<Key>,
    /// Epoch since which the primary serves this range.
    pub epoch: Epoch,
    /// The primary; `None` if there has been none yet.
    pub primary: Option<Replica>,
    /// The other replicas.
    pub backups: Vec<Backup>,
    /// Number of the next replica.
    pub next_replica: ReplicaNumber,
    /// Phase of a change.
    pub phase: Phase,
    /// Whether no primary has reported the region open yet (CONTROL-18).
    pub is_new: bool,
    /// Whether the members were recovered from their disks after all were lost (CONTROL-18), and no
    /// primary has filled the others yet. Until then no copy is deleted, however many members have
    /// everything.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_unproven: bool,
    /// Region that this one was split from, if any; its replicas come from there (CONTROL-17).
    pub split_from: Option<RegionId>,
    /// Incarnation of the table; `None` if an older version wrote the record, and its cluster is
    /// not adopted yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<TableIncarnation>,
}

impl RegionRecord {
    /// Creates the record of a region without a primary.
    pub fn new(table: TableId, region: RegionId, from: Key, to: Option<Key>) -> Self {
        Self {
            version: super::FORMAT_VERSION,
            table,
            region,
            from,
            to,
            epoch: Epoch(0),
            primary: None,
            backups: Vec::new(),
            next_replica: ReplicaNumber(1),
            phase: Phase::Steady,
            is_new: true,
            is_unproven: false,
            split_from: None,
            incarnation: None,
        }
    }

    /// Returns the key of the record.
    pub fn key(&self) -> String {
        region_key(self.table, self.region)
    }

    /// Returns whether a key of the table is in the region's range.
    pub fn covers(&self, key: &[u8]) -> bool {
        self.from.0.as_slice() <= key && self.to.as_ref().is_none_or(|to| key < to.0.as_slice())
    }

    /// Returns all replicas, the primary first.
    pub fn replicas(&self) -> impl Iterator<Item = Replica> + '_ {
        let backups = self.backups.iter().map(|backup| backup.replica);
        self.primary.into_iter().chain(backups)
    }

    /// Returns the replicas that have everything: the primary, and the in-sync backups.
    pub fn members(&self) -> impl Iterator<Item = Replica> + '_ {
        let in_sync = self.backups.iter().filter(|backup| backup.in_sync);
        self.primary
            .into_iter()
            .chain(in_sync.map(|backup| backup.replica))
    }

    /// Returns the backup with a number.
    pub fn backup(&self, number: ReplicaNumber) -> Option<&Backup> {
        self.backups.iter().find(|it| it.replica.number == number)
    }

    /// Returns the replica on a server.
    pub fn replica_on(&self, server: ServerId) -> Option<Replica> {
        self.replicas().find(|it| it.server == server)
    }

    /// Draws the number of another replica.
    pub(crate) fn draw_replica(&mut self, server: ServerId, life: Life) -> Replica {
        let number = self.next_replica;
        self.next_replica = ReplicaNumber(number.0 + 1);
        Replica {
            number,
            server,
            life,
            opened_again: Epoch(0),
        }
    }

    fn check_replicas(&self) -> Result<(), String> {
        let replicas: Vec<_> = self.replicas().collect();
        if replicas.len() > REPLICA_COUNT_MAX {
            return Err(format!(
                "it has {} replicas; the limit is {REPLICA_COUNT_MAX}",
                replicas.len()
            ));
        }
        for (index, replica) in replicas.iter().enumerate() {
            check_numbers(self.version, &[replica.server.0, replica.life.0.0])?;
            if replica.number.0 == 0 || replica.number >= self.next_replica {
                return Err(format!("{} was never assigned", replica.number));
            }
            if replica.opened_again > self.epoch {
                return Err(format!(
                    "{} is reopened at {}, which is in the future",
                    replica.number, replica.opened_again
                ));
            }
            let before = &replicas[..index];
            if before.iter().any(|it| it.number == replica.number) {
                return Err(format!("duplicate {}", replica.number));
            }
            if before.iter().any(|it| it.server == replica.server) {
                return Err(format!("{} has two replicas", replica.server));
            }
        }
        if self.is_new && !self.backups.is_empty() {
            return Err("it has backups, but was never opened".to_owned());
        }
        if self.primary.is_none() && !self.backups.is_empty() {
            return Err("it has backups, but no primary".to_owned());
        }
        if self.primary.is_some() == (self.epoch == Epoch(0)) {
            return Err("it has a primary without epoch, or an epoch without primary".to_owned());
        }
        if self.primary.is_none() && !self.is_new {
            return Err("it was opened, but has no primary".to_owned());
        }
        Ok(())
    }

    fn check_phase(&self) -> Result<(), String> {
        let missing = |number| {
            Err(format!(
                "its phase refers to {number}, which it does not have"
            ))
        };
        match &self.phase {
            Phase::Steady => Ok(()),
            Phase::Moving { leaving, arriving } => {
                if self.replicas().all(|it| it.number != *leaving) {
                    return missing(*leaving);
                }
                if leaving == arriving || self.backup(*arriving).is_none() {
                    return missing(*arriving);
                }
                Ok(())
            }
            Phase::HandingOver { to, .. } => {
                if self.backup(*to).is_none_or(|backup| !backup.in_sync) {
                    return Err(format!("it is handed over to {to}, which is not in sync"));
                }
                Ok(())
            }
            Phase::Splitting { at, child } => {
                check_numbers(self.version, &[child.0])?;
                if *at <= self.from || self.to.as_ref().is_some_and(|to| at >= to) {
                    return Err(format!("it is split at {at}, which is not within it"));
                }
                if *child <= self.region || self.primary.is_none() {
                    return Err(format!("it cannot be split into {child}"));
                }
                Ok(())
            }
        }
    }
}

impl Record for RegionRecord {
    fn check(&self, key: &str) -> Result<(), String> {
        let numbers = [
            self.table.0,
            self.region.0,
            self.epoch.0,
            self.next_replica.0,
            self.split_from.map_or(0, |it| it.0),
        ];
        check_numbers(self.version, &numbers)?;
        check_record_key(key, &self.key())?;
        if self.to.as_ref().is_some_and(|to| *to <= self.from) {
            return Err("its range is empty".to_owned());
        }
        self.check_replicas()?;
        self.check_phase()
    }
}
