//! A region: a range of a table's keys, who serves it since which epoch, and what is being done.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Record, check_numbers, check_place, region_key};
use crate::ids::{Epoch, Life, RegionId, ReplicaNumber, ServerId, TableId, TableIncarnation};

/// A region has so many replicas at the most, the ones that are being filled included.
pub const REPLICA_COUNT_MAX: usize = 16;

/// A key may have so many bytes, as in the engine.
pub const KEY_SIZE_BYTES_MAX: usize = 4096;

/// A key of a table, or where a range begins or ends: a byte string, in JSON as hexadecimal digits.
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
                "a key is not hexadecimal digits of up to {KEY_SIZE_BYTES_MAX} bytes"
            ))
        })
    }
}

/// A copy of a region: which one, and in which life of which server it was ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replica {
    /// Which one.
    pub number: ReplicaNumber,
    /// Where.
    pub server: ServerId,
    /// In which life of the server.
    pub life: Life,
    /// At which epoch it was opened again, from its copy, after it had broken for want of room
    /// (CP16); 0: it never was. What its server says of it at an earlier epoch is of before that.
    #[serde(default = "never", skip_serializing_if = "is_never")]
    pub opened_again: Epoch,
}

/// A replica that is not the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Backup {
    /// Which one.
    pub replica: Replica,
    /// Whether it has all that the primary has ever acknowledged; else it is being filled.
    pub in_sync: bool,
    /// Whether its life was over when the primary became that: it is a member until the primary
    /// says that it has failed (CP13), and nobody counts on it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_lost: bool,
}

impl Backup {
    /// One that has all.
    pub const fn in_sync(replica: Replica) -> Self {
        Self {
            replica,
            in_sync: true,
            is_lost: false,
        }
    }

    /// One that is to be filled.
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

/// What is being done with a region, by several steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Phase {
    /// Nothing.
    Steady,
    /// A replica goes to where another one is being filled, and leaves when that one is in sync.
    Moving {
        /// Which one goes.
        leaving: ReplicaNumber,
        /// Which one takes its place.
        arriving: ReplicaNumber,
    },
    /// The primary stops at its epoch, and a backup takes over (CP15).
    HandingOver {
        /// The backup, which is in sync.
        to: ReplicaNumber,
        /// Whether the old primary leaves; else it is a backup from then on.
        old_leaves: bool,
    },
    /// The primary prepares two regions out of one, and stops (CP17).
    Splitting {
        /// Where the second one begins.
        at: Key,
        /// Which region the second one will be.
        child: RegionId,
    },
}

impl fmt::Display for Phase {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steady => formatter.write_str("nothing is being done with it"),
            Self::Moving { leaving, arriving } => write!(
                formatter,
                "{leaving} leaves when {arriving}, which is being filled, has everything"
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

/// A region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionRecord {
    /// [`FORMAT_VERSION`](super::FORMAT_VERSION).
    pub version: u32,
    /// Of which table.
    pub table: TableId,
    /// Which one.
    pub region: RegionId,
    /// The first key.
    pub from: Key,
    /// The first key behind it; none: it goes on to the end.
    pub to: Option<Key>,
    /// Since which epoch the primary is primary, of this range.
    pub epoch: Epoch,
    /// Who serves it; nobody yet, if none.
    pub primary: Option<Replica>,
    /// The other replicas.
    pub backups: Vec<Backup>,
    /// The number that the next replica gets.
    pub next_replica: ReplicaNumber,
    /// What is being done.
    pub phase: Phase,
    /// Whether nobody has told yet that it was opened (CP18).
    pub is_new: bool,
    /// Whether its members are what was found on disks after all were lost (CP18), and no primary
    /// has filled the others from its own yet: until then no copy is given up, whoever has more.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_unproven: bool,
    /// The region that it was split from, if it was; replicas are taken from there (CP17).
    pub split_from: Option<RegionId>,
    /// The incarnation of its table (ID4). None: an older version wrote it, and its cluster is not
    /// adopted yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<TableIncarnation>,
}

impl RegionRecord {
    /// A region that nobody serves yet.
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

    /// Where it lies.
    pub fn key(&self) -> String {
        region_key(self.table, self.region)
    }

    /// Whether a key of the table is in its range.
    pub fn covers(&self, key: &[u8]) -> bool {
        self.from.0.as_slice() <= key && self.to.as_ref().is_none_or(|to| key < to.0.as_slice())
    }

    /// All replicas, the primary first.
    pub fn replicas(&self) -> impl Iterator<Item = Replica> + '_ {
        let backups = self.backups.iter().map(|backup| backup.replica);
        self.primary.into_iter().chain(backups)
    }

    /// The replicas that have everything: the primary, and the backups in sync.
    pub fn members(&self) -> impl Iterator<Item = Replica> + '_ {
        let in_sync = self.backups.iter().filter(|backup| backup.in_sync);
        self.primary
            .into_iter()
            .chain(in_sync.map(|backup| backup.replica))
    }

    /// The backup of this number.
    pub fn backup(&self, number: ReplicaNumber) -> Option<&Backup> {
        self.backups.iter().find(|it| it.replica.number == number)
    }

    /// The replica on a server.
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
            return Err(format!("it has {} replicas", replicas.len()));
        }
        for (index, replica) in replicas.iter().enumerate() {
            check_numbers(self.version, &[replica.server.0, replica.life.0.0])?;
            if replica.number.0 == 0 || replica.number >= self.next_replica {
                return Err(format!("{} was never drawn", replica.number));
            }
            if replica.opened_again > self.epoch {
                return Err(format!(
                    "{} is opened again at {}, which is yet to come",
                    replica.number, replica.opened_again
                ));
            }
            let before = &replicas[..index];
            if before.iter().any(|it| it.number == replica.number) {
                return Err(format!("{} is there twice", replica.number));
            }
            if before.iter().any(|it| it.server == replica.server) {
                return Err(format!("{} has two replicas", replica.server));
            }
        }
        if self.is_new && !self.backups.is_empty() {
            return Err("it has backups, and was never opened".to_owned());
        }
        if self.primary.is_none() && !self.backups.is_empty() {
            return Err("it has backups and no primary".to_owned());
        }
        if self.primary.is_some() == (self.epoch == Epoch(0)) {
            return Err("it has a primary and no epoch, or the other way round".to_owned());
        }
        if self.primary.is_none() && !self.is_new {
            return Err("it has no primary, and was opened".to_owned());
        }
        Ok(())
    }

    fn check_phase(&self) -> Result<(), String> {
        let missing = |number| Err(format!("its phase is about {number}, which is not there"));
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
        check_place(key, &self.key())?;
        if self.to.as_ref().is_some_and(|to| *to <= self.from) {
            return Err("its range is empty".to_owned());
        }
        self.check_replicas()?;
        self.check_phase()
    }
}
