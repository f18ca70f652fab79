//! The six core workloads of YCSB, as its property files `workloada` to `workloadf` define them.
//!
//! | | mix | distribution |
//! |---|---|---|
//! | A | 50 % read, 50 % update | zipfian |
//! | B | 95 % read, 5 % update | zipfian |
//! | C | 100 % read | zipfian |
//! | D | 95 % read, 5 % insert | latest |
//! | E | 95 % scan of 1 to 100 records, 5 % insert | zipfian |
//! | F | 50 % read, 50 % read-modify-write | zipfian |
//!
//! [`OperationStream`] yields a thread's operations over record indexes. The threads share an
//! [`InsertLedger`], which hands out inserts and records which are acknowledged.

mod ledger;
mod stream;

use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use ledger::InsertLedger;
pub use stream::{Operation, OperationStream, WorkloadError};

use crate::distribution::Distribution;
use crate::named::named;

/// Core workload, by its letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum WorkloadLetter {
    /// Update heavy: a session store.
    A,
    /// Read mostly: photo tagging.
    B,
    /// Read only: a cache of user profiles.
    C,
    /// Read latest: status updates.
    D,
    /// Short ranges: threaded conversations.
    E,
    /// Read-modify-write: a user database.
    F,
}

named!(
    WorkloadLetter,
    A = "A",
    B = "B",
    C = "C",
    D = "D",
    E = "E",
    F = "F",
);

/// No core workload has this letter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown workload `{0}`: expected a letter from A to F")]
pub struct UnknownWorkload(pub String);

impl FromStr for WorkloadLetter {
    type Err = UnknownWorkload;

    /// Parses the letter in either case.
    fn from_str(letter: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL
            .into_iter()
            .find(|known| known.name().eq_ignore_ascii_case(letter));
        known.ok_or_else(|| UnknownWorkload(letter.to_owned()))
    }
}

/// Kind of an operation, also in reports, in the order of YCSB's operation chooser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationKind {
    /// Reads one record.
    Read,
    /// Writes a new value to an existing record.
    Update,
    /// Adds a record.
    Insert,
    /// Reads records in key order from a given one on.
    Scan,
    /// Reads a record, then updates it; timed as one operation.
    ReadModifyWrite,
}

named!(
    OperationKind,
    Read = "read",
    Update = "update",
    Insert = "insert",
    Scan = "scan",
    ReadModifyWrite = "read_modify_write",
);

/// Share of each kind of operation; the shares add up to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    /// Share of reads: YCSB's `readproportion`.
    pub read: f64,
    /// Share of updates: YCSB's `updateproportion`.
    pub update: f64,
    /// Share of inserts: YCSB's `insertproportion`.
    pub insert: f64,
    /// Share of scans: YCSB's `scanproportion`.
    pub scan: f64,
    /// Share of read-modify-writes: YCSB's `readmodifywriteproportion`.
    pub read_modify_write: f64,
}

impl Mix {
    const NONE: Self = Self {
        read: 0.0,
        update: 0.0,
        insert: 0.0,
        scan: 0.0,
        read_modify_write: 0.0,
    };

    /// Returns the share of `kind`.
    pub const fn share(&self, kind: OperationKind) -> f64 {
        match kind {
            OperationKind::Read => self.read,
            OperationKind::Update => self.update,
            OperationKind::Insert => self.insert,
            OperationKind::Scan => self.scan,
            OperationKind::ReadModifyWrite => self.read_modify_write,
        }
    }
}

/// Definition of a core workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkloadSpec {
    /// Letter of the workload.
    pub letter: WorkloadLetter,
    /// Share of each kind of operation.
    pub mix: Mix,
    /// YCSB's `requestdistribution`, unless the user chooses another.
    pub distribution: Distribution,
    /// YCSB's `maxscanlength`: scans have 1 to this many records, each length equally likely.
    pub scan_length_max: u32,
}

impl WorkloadSpec {
    /// Returns the definition of a core workload.
    pub const fn of(letter: WorkloadLetter) -> Self {
        let none = Mix::NONE;
        let mix = match letter {
            WorkloadLetter::A => Mix {
                read: 0.5,
                update: 0.5,
                ..none
            },
            WorkloadLetter::B => Mix {
                read: 0.95,
                update: 0.05,
                ..none
            },
            WorkloadLetter::C => Mix { read: 1.0, ..none },
            WorkloadLetter::D => Mix {
                read: 0.95,
                insert: 0.05,
                ..none
            },
            WorkloadLetter::E => Mix {
                scan: 0.95,
                insert: 0.05,
                ..none
            },
            WorkloadLetter::F => Mix {
                read: 0.5,
                read_modify_write: 0.5,
                ..none
            },
        };
        let distribution = match letter {
            WorkloadLetter::D => Distribution::Latest,
            _ => Distribution::Zipfian,
        };
        Self {
            letter,
            mix,
            distribution,
            scan_length_max: 100,
        }
    }

    /// Returns the number of insert keys to prepare for `operation_count` operations: twice the
    /// expected number, YCSB's own allowance, and some more for short runs. One run in 10^10 needs
    /// more.
    #[expect(clippy::cast_sign_loss, reason = "counts and shares are positive")]
    pub fn insert_count_max(&self, operation_count: u64) -> u64 {
        /// At an expectation of 48 inserts, twice as many are seven standard deviations off.
        const ALLOWANCE_MIN: u64 = 96;
        if self.mix.insert == 0.0 {
            return 0;
        }
        let twice_expected = (operation_count as f64 * self.mix.insert * 2.0) as u64;
        twice_expected.max(ALLOWANCE_MIN).min(operation_count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the shares of every workload add up to 1, and only D and E prepare inserts.
    #[test]
    fn shares_add_up_and_only_d_and_e_insert() {
        for letter in WorkloadLetter::ALL {
            let spec = WorkloadSpec::of(letter);
            let sum: f64 = OperationKind::ALL
                .iter()
                .map(|kind| spec.mix.share(*kind))
                .sum();
            assert!((sum - 1.0).abs() < 1e-12, "{letter}: {sum}");
            let inserts = spec.insert_count_max(1_000_000);
            let inserts_want = if matches!(letter, WorkloadLetter::D | WorkloadLetter::E) {
                100_000
            } else {
                0
            };
            assert_eq!(inserts, inserts_want, "{letter}");
            assert!(spec.insert_count_max(10) <= 10);
        }
    }

    /// Promise: letters parse in either case, and the error of an invalid letter names it.
    #[test]
    fn letters_are_read_in_either_case() {
        assert_eq!("e".parse(), Ok(WorkloadLetter::E));
        assert_eq!("B".parse(), Ok(WorkloadLetter::B));
        let error = "G".parse::<WorkloadLetter>().unwrap_err();
        assert!(error.to_string().contains("`G`"), "{error}");
    }

    /// Promise: a kind has one name, in tables and in JSON.
    #[test]
    fn a_kind_has_one_name() {
        for kind in OperationKind::ALL {
            let json = serde_json::to_string(&kind).expect("a name");
            assert_eq!(json, format!("\"{kind}\""));
        }
    }
}
