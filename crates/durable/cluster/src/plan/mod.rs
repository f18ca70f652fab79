//! What the master would do next: a pure function of what it sees (CP11 to CP20).
//!
//! A plan is a list of [`Step`]s, each a transaction that takes effect only on the records that it
//! was made for. No step waits for another one of the same plan; a region is in one at the most.
//! What is to be done by several steps is in the region's record ([`Phase`](crate::record::Phase)),
//! so a new master goes on where the old one stopped.
//!
//! | module | what it holds |
//! |---|---|
//! | `load` | which server is to have what comes next |
//! | `failover` | primaries and backups that are lost |
//! | `recovery` | regions of which every member is lost |
//! | `change` | backups that get in sync, moves, hand-overs, splits |
//! | `wishes` | what administrators want |
//! | `balance` | moves for an even load |

mod balance;
mod change;
mod failover;
mod load;
mod recovery;
mod wishes;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use self::load::Loads;
use crate::coordinator::{Compare, Transaction};
use crate::ids::{RegionId, ServerId, TableId};
use crate::omission::{Check, Omission};
use crate::record::{Record, RegionRecord};
use crate::view::{Seen, View};

/// What a plan goes by, beside what is seen.
#[derive(Clone, Debug)]
pub struct PlanOptions {
    /// Whether regions are moved for an even load.
    pub balances: bool,
    /// So many regions are moved, handed over or filled anew for balance and drains at once.
    pub move_count_max: usize,
    /// Servers whose sizes differ by less than so many bytes are balanced.
    pub imbalance_bytes_min: u64,
    /// Servers whose primaries' operations in a second differ by less than so many are balanced.
    pub imbalance_operations_min: u64,
    /// Servers on which a primary could not keep a backup lately: the last to get another one.
    pub avoided: BTreeSet<(RegionId, ServerId)>,
    /// A check that is left out, in tests of the tests.
    #[doc(hidden)]
    pub omission: Omission,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self {
            balances: true,
            move_count_max: 2,
            imbalance_bytes_min: 64 << 20,
            imbalance_operations_min: 2000,
            avoided: BTreeSet::new(),
            omission: Omission::NONE,
        }
    }
}

/// What a step is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A region gets its first primary.
    Place,
    /// A backup in sync becomes primary.
    Promote,
    /// All members were lost; the one with the newest log goes on (CP18).
    Recover,
    /// Replicas that are lost leave; and what was being done without them ends.
    DropReplicas,
    /// A region was opened: it never begins from nothing again.
    MarkOpened,
    /// Backups count as in sync.
    MarkInSync,
    /// A backup is ordered.
    AddBackup(ServerId),
    /// A replica begins to move.
    BeginMove(ServerId),
    /// A primary is told to stop, for a backup.
    BeginHandOver,
    /// The backup becomes primary.
    HandOver,
    /// A replica that is not needed leaves.
    RemoveReplica,
    /// A primary is told to prepare a split.
    BeginSplit,
    /// A region becomes two.
    Split(RegionId),
    /// Members that do not come back are given up (CP19).
    GiveUp,
    /// A region of a dropped table goes.
    DropRegion,
    /// A dropped table goes.
    DropTable,
    /// A wish cannot be done.
    Refuse(String),
    /// An answer to a wish goes, which nobody has read.
    ForgetAnswer,
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Place => "it gets its first primary",
            Self::Promote => "a backup becomes primary, as the primary is lost",
            Self::Recover => "all its members were lost, and the newest copy goes on",
            Self::DropReplicas => "replicas that are lost leave",
            Self::MarkOpened => "it was opened",
            Self::MarkInSync => "backups have everything from now on",
            Self::AddBackup(server) => {
                return write!(formatter, "{server} gets a backup");
            }
            Self::BeginMove(server) => {
                return write!(formatter, "a replica begins to move to {server}");
            }
            Self::BeginHandOver => "its primary is to stop, for a backup",
            Self::HandOver => "the backup becomes primary, as the primary has stopped for it",
            Self::RemoveReplica => "a replica that is not needed leaves",
            Self::BeginSplit => "its primary is to prepare a split",
            Self::Split(child) => return write!(formatter, "{child} is split off"),
            Self::GiveUp => "members that do not come back are given up",
            Self::DropRegion => "regions of it go, as it was dropped",
            Self::DropTable => "it goes, as it was dropped and has no regions any more",
            Self::Refuse(why) => return write!(formatter, "a wish is refused: {why}"),
            Self::ForgetAnswer => "an answer goes that nobody has read",
        };
        formatter.write_str(text)
    }
}

/// A change that the master would make.
#[derive(Clone, Debug)]
pub struct Step {
    /// What it is.
    pub action: Action,
    /// Of which table.
    pub table: TableId,
    /// Of which region, if of one.
    pub region: Option<RegionId>,
    /// The change; the master adds that it is master (CP11).
    pub transaction: Transaction,
}

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.region {
            Some(region) => write!(formatter, "{region} of {}: {}", self.table, self.action),
            None => write!(formatter, "{}: {}", self.table, self.action),
        }
    }
}

/// Why a region is not served, or not as it should be, and nothing can be done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Which region.
    pub region: RegionId,
    /// For what.
    pub what: String,
}

/// A plan.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// What can be done now.
    pub steps: Vec<Step>,
    /// What waits for servers to come, or to come back.
    pub waiting: Vec<Waiting>,
}

/// What the master would do next: nothing while a server refuses the records (ID5). They are an
/// older copy then, by which a replica that lacks acknowledged writes could become primary. Nothing
/// either before a cluster of an older version is adopted (ID1): its servers do nothing till then.
pub fn plan(view: &View, options: &PlanOptions) -> Plan {
    if !view.refusals.is_empty() {
        return Plan::default();
    }
    if view.is_unadopted() {
        let waiting = view.regions.keys().map(|region| Waiting {
            region: *region,
            what: "`farleaf cluster adopt`".to_owned(),
        });
        return Plan {
            steps: Vec::new(),
            waiting: waiting.collect(),
        };
    }
    let mut planner = Planner {
        view,
        options,
        loads: Loads::new(view),
        plan: Plan::default(),
        busy: BTreeSet::new(),
    };
    planner.drop_tables();
    for seen in view.regions.values() {
        planner.region(seen);
    }
    planner.tell_of_the_unknown();
    planner.wishes();
    if options.balances && planner.plan.steps.is_empty() {
        planner.balance();
    }
    planner.plan
}

/// So many regions of a dropped table go at once: each is one write.
const DROP_REGION_COUNT_MAX: usize = 64;

struct Planner<'v> {
    view: &'v View,
    options: &'v PlanOptions,
    loads: Loads<'v>,
    plan: Plan,
    /// Regions that a step of this plan is about.
    busy: BTreeSet<RegionId>,
}

impl Planner<'_> {
    /// A step that writes a region's record, on the one that was seen (CP11).
    fn step(&mut self, action: Action, seen: &Seen<RegionRecord>, record: &RegionRecord) {
        self.step_with(action, seen, record, Transaction::new());
    }

    /// Such a step, with more writes.
    fn step_with(
        &mut self,
        action: Action,
        seen: &Seen<RegionRecord>,
        record: &RegionRecord,
        more: Transaction,
    ) {
        let key = record.key();
        if let Err(how) = record.check(&key) {
            // Its numbers have come to their end, which no honest record's do.
            self.wait(record.region, format!("somebody to mend its record: {how}"));
            return;
        }
        let mut transaction = more.put(key.clone(), record.encode());
        if !self.options.omission.leaves_out(Check::RecordIsCompared) {
            transaction = transaction.when(Compare::Modified(key, seen.modified));
        }
        self.busy.insert(record.region);
        self.plan.steps.push(Step {
            action,
            table: record.table,
            region: Some(record.region),
            transaction,
        });
    }

    /// CP23: says of which regions there are copies that the coordinator has forgotten.
    fn tell_of_the_unknown(&mut self) {
        let in_the_way = self.view.copies_in_the_way().into_iter();
        let in_the_way: BTreeSet<RegionId> = in_the_way.map(|(region, _)| region).collect();
        let mut servers: BTreeMap<RegionId, Vec<String>> = BTreeMap::new();
        for (region, server) in self.view.copies_of_the_unknown() {
            servers.entry(region).or_default().push(server.to_string());
        }
        for (region, servers) in servers {
            let (servers, number) = (servers.join(", "), region.0);
            let what = if in_the_way.contains(&region) {
                format!(
                    "the coordinator to have back what it lost: there are copies of this region \
                     ({servers}), and the coordinator has never heard of it, so its own data are \
                     older than these, or were cut. Stop the servers and restore the coordinator's \
                     data; or, if nobody needs the copies, stop those servers, remove \
                     regions/{number}-* of their directories, and start them again; until then no \
                     table is created and no region is split"
                )
            } else {
                format!(
                    "an operator: its records were lost, and that was accepted; copies of it \
                     ({servers}) are kept and not used. If nobody needs them, stop those servers, \
                     remove regions/{number}-* of their directories, and start them again"
                )
            };
            self.wait(region, what);
        }
    }

    fn wait(&mut self, region: RegionId, what: String) {
        self.plan.waiting.push(Waiting { region, what });
    }

    /// The next step of a region, if it needs one.
    fn region(&mut self, seen: &Seen<RegionRecord>) {
        let record = &seen.record;
        let Some(table) = self.view.tables.get(&record.table) else {
            return; // Its table cannot be decoded: nobody knows what is wanted.
        };
        if table.record.dropping {
            return;
        }
        let wanted = table.record.replica_count;
        let _ = self.place_first(seen)
            || self.replace_primary(seen)
            || self.drop_lost(seen)
            || self.mark_in_sync(seen)
            || self.go_on_with_phase(seen)
            || self.add_backup(seen, wanted)
            || self.remove_surplus(seen, wanted)
            || self.drain(seen)
            || self.leave_full(seen)
            || self.mark_opened(seen);
        self.wait_for_room(record);
    }

    /// A primary that is not open, and could be if its disk was not full, is waited for: nobody
    /// else has everything, or it would be broken (RS10).
    fn wait_for_room(&mut self, record: &RegionRecord) {
        let Some(primary) = record.primary else {
            return;
        };
        let report = self.view.report(record.region, primary);
        if self.is_usable(record, primary) && report.is_some_and(|it| it.lacked_room) {
            let server = primary.server;
            let what = format!(
                "room on the disk of {server}, which is full: make room on it, or enlarge it; it \
                 is served then by itself"
            );
            self.wait(record.region, what);
        }
    }

    /// Regions of dropped tables go, then the tables.
    fn drop_tables(&mut self) {
        for table in self.view.tables.values().filter(|it| it.record.dropping) {
            let mut transaction = Transaction::new();
            for key in table.record.keys().into_iter().skip(1) {
                transaction = transaction.when(Compare::Modified(key, table.modified));
            }
            let regions = self.view.regions.values();
            let left: Vec<_> = regions
                .filter(|it| it.record.table == table.record.table)
                .take(DROP_REGION_COUNT_MAX)
                .collect();
            let action = if left.is_empty() {
                for key in table.record.keys() {
                    transaction = transaction.delete(key);
                }
                Action::DropTable
            } else {
                for region in &left {
                    transaction = transaction.delete(region.record.key());
                }
                Action::DropRegion
            };
            self.plan.steps.push(Step {
                action,
                table: table.record.table,
                region: None,
                transaction,
            });
        }
    }
}
