//! The master's next steps, as a pure function of its view (CONTROL-11 to CONTROL-20).
//!
//! A plan is a list of [`PlanStep`]s. Each is a transaction that takes effect only on the records
//! that it was planned on. No step depends on another one of the same plan, and a region has at
//! most one. Changes in several steps are in the region's record ([`Phase`](crate::record::Phase)),
//! so a new master continues where the old one ended.
//!
//! | module | contents |
//! |---|---|
//! | `load` | choice of the server for the next replica |
//! | `failover` | lost primaries and backups |
//! | `recovery` | regions that have lost all members |
//! | `change` | backups that get in sync, moves, hand-overs, splits |
//! | `admin_requests` | requests of administrators |
//! | `balance` | moves for an even load |

mod admin_requests;
mod balance;
mod change;
mod failover;
mod load;
mod recovery;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use self::load::ServerLoads;
use crate::coordinator::{Compare, Transaction};
use crate::ids::{RegionId, ServerId, TableId};
use crate::omission::{Check, Omission};
use crate::record::{Record, RegionRecord};
use crate::view::{RevisionedRecord, View};

/// Parameters of plans, apart from the view.
#[derive(Clone, Debug)]
pub struct PlanOptions {
    /// Whether regions are moved for an even load.
    pub balances: bool,
    /// Largest number of regions that are moved, handed over or refilled at once for balance and
    /// drains.
    pub move_count_max: usize,
    /// Difference of two servers' sizes, in bytes, below which they are not balanced, if the fuller
    /// one has at least that much.
    pub imbalance_bytes_min: u64,
    /// Difference of two servers' operations per second below which primaries are not balanced.
    pub imbalance_operations_min: u64,
    /// Servers on which a primary could not keep a backup lately; they are chosen last for another
    /// one.
    pub avoided: BTreeSet<(RegionId, ServerId)>,
    /// A check that a test leaves out.
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

/// Kind of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Gives a region its first primary.
    Place,
    /// Promotes an in-sync backup to primary.
    Promote,
    /// Continues with the newest log after all members were lost (CONTROL-18).
    Recover,
    /// Removes lost replicas, and ends a phase that needs them.
    DropReplicas,
    /// Notes that a region was opened, so that it never starts empty again.
    MarkOpened,
    /// Marks backups as in sync.
    MarkInSync,
    /// Orders a backup on a server.
    AddBackup(ServerId),
    /// Begins to move a replica to a server.
    BeginMove(ServerId),
    /// Orders a primary to stop, so that a backup takes over.
    BeginHandOver,
    /// Promotes the backup of a hand-over.
    HandOver,
    /// Removes a replica that is not needed.
    RemoveReplica,
    /// Orders a primary to prepare a split.
    BeginSplit,
    /// Splits a region in two; the number of the new one.
    Split(RegionId),
    /// Gives up members that do not come back (CONTROL-19).
    GiveUp,
    /// Removes a region of a dropped table.
    DropRegion,
    /// Removes a dropped table.
    DropTable,
    /// Refuses a request, with the reason.
    Refuse(String),
    /// Deletes a reply to a request that was never read.
    RemoveReply,
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Place => "assign the first primary",
            Self::Promote => "promote a backup, as the primary is lost",
            Self::Recover => "recover from the newest copy, as all members were lost",
            Self::DropReplicas => "remove lost replicas",
            Self::MarkOpened => "mark the region as opened",
            Self::MarkInSync => "mark backups as in sync",
            Self::AddBackup(server) => {
                return write!(formatter, "add a backup on {server}");
            }
            Self::BeginMove(server) => {
                return write!(formatter, "begin to move a replica to {server}");
            }
            Self::BeginHandOver => "stop the primary for a hand-over",
            Self::HandOver => "promote the backup, as the primary has stopped for the hand-over",
            Self::RemoveReplica => "remove a replica that is not needed",
            Self::BeginSplit => "prepare a split on the primary",
            Self::Split(child) => return write!(formatter, "split off {child}"),
            Self::GiveUp => "give up members that do not come back",
            Self::DropRegion => "remove regions of the dropped table",
            Self::DropTable => "remove the dropped table, which has no regions left",
            Self::Refuse(why) => return write!(formatter, "refuse a request: {why}"),
            Self::RemoveReply => "delete an old reply to a request",
        };
        formatter.write_str(text)
    }
}

/// A change planned by the master.
#[derive(Clone, Debug)]
pub struct PlanStep {
    /// Kind of the step.
    pub action: Action,
    /// The table.
    pub table: TableId,
    /// The region, if the step concerns one.
    pub region: Option<RegionId>,
    /// The change; the master adds the comparison that it is master (CONTROL-11).
    pub transaction: Transaction,
}

impl fmt::Display for PlanStep {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.region {
            Some(region) => write!(formatter, "{region} of {}: {}", self.table, self.action),
            None => write!(formatter, "{}: {}", self.table, self.action),
        }
    }
}

/// Reason why a region is not served or incomplete, while nothing can be done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The region.
    pub region: RegionId,
    /// Description of what the region waits for.
    pub what: String,
}

/// Steps to execute, and regions that wait.
#[derive(Clone, Debug, Default)]
pub struct MasterPlan {
    /// Steps that can be executed now.
    pub steps: Vec<PlanStep>,
    /// Regions that wait for servers.
    pub waiting: Vec<Waiting>,
}

/// Plans the master's next steps. The plan is empty in two cases:
///
/// - A server refuses the records. They are an older copy then, by which a replica that lacks
///   acknowledged writes could become primary.
/// - A cluster of an older version is not adopted: its servers do nothing until then.
pub fn plan(view: &View, options: &PlanOptions) -> MasterPlan {
    if !view.refusals.is_empty() {
        return MasterPlan::default();
    }
    if view.is_unadopted() {
        let waiting = view.regions.keys().map(|region| Waiting {
            region: *region,
            what: "`farleaf cluster adopt`".to_owned(),
        });
        return MasterPlan {
            steps: Vec::new(),
            waiting: waiting.collect(),
        };
    }
    let mut planner = Planner {
        view,
        options,
        loads: ServerLoads::new(view),
        plan: MasterPlan::default(),
        busy: BTreeSet::new(),
    };
    planner.drop_tables();
    for current in view.regions.values() {
        planner.region(current);
    }
    planner.report_unknown_copies();
    planner.admin_requests();
    if options.balances && planner.plan.steps.is_empty() {
        planner.balance();
    }
    planner.plan
}

/// A region's record, as the view has it.
type CurrentRegion = RevisionedRecord<RegionRecord>;

/// Number of regions of a dropped table that are removed at once: each is one write.
const DROP_REGION_COUNT_MAX: usize = 64;

struct Planner<'v> {
    view: &'v View,
    options: &'v PlanOptions,
    loads: ServerLoads<'v>,
    plan: MasterPlan,
    /// Regions with a step in this plan.
    busy: BTreeSet<RegionId>,
}

impl Planner<'_> {
    /// Adds a step that writes a region's record, compared with the seen one (CONTROL-11).
    fn step(&mut self, action: Action, current: &CurrentRegion, record: &RegionRecord) {
        self.step_with(action, current, record, Transaction::new());
    }

    /// Adds such a step with more writes.
    fn step_with(
        &mut self,
        action: Action,
        current: &CurrentRegion,
        record: &RegionRecord,
        more: Transaction,
    ) {
        let key = record.key();
        if let Err(how) = record.check(&key) {
            // The record's numbers are exhausted, which never happens to a valid record.
            self.wait(
                record.region,
                format!("an operator to repair its record: {how}"),
            );
            return;
        }
        let mut transaction = more.put(key.clone(), record.encode());
        if !self.options.omission.skips_check(Check::RecordIsCompared) {
            transaction = transaction.when(Compare::Modified(key, current.modified));
        }
        self.busy.insert(record.region);
        self.plan.steps.push(PlanStep {
            action,
            table: record.table,
            region: Some(record.region),
            transaction,
        });
    }

    /// Reports copies of regions that the coordinator has lost (CONTROL-23).
    fn report_unknown_copies(&mut self) {
        let in_the_way = self.view.blocking_copies().into_iter();
        let in_the_way: BTreeSet<RegionId> = in_the_way.map(|(region, _)| region).collect();
        let mut servers: BTreeMap<RegionId, Vec<String>> = BTreeMap::new();
        for (region, server) in self.view.copies_of_unknown_regions() {
            servers.entry(region).or_default().push(server.to_string());
        }
        for (region, servers) in servers {
            let (servers, number) = (servers.join(", "), region.0);
            let what = if in_the_way.contains(&region) {
                format!(
                    "the coordinator's data to be restored: there are copies of this region \
                     ({servers}), but it is unknown to the coordinator, whose data are older than \
                     the copies, or were truncated; stop the servers and restore the coordinator's \
                     data; or, if the copies are not needed, stop those servers, remove \
                     regions/{number}-* from their directories, and restart them; until then, no \
                     table is created and no region is split"
                )
            } else {
                format!(
                    "an operator: its records were lost, and the loss was accepted; its copies \
                     ({servers}) are kept but not used; if they are not needed, stop those \
                     servers, remove regions/{number}-* from their directories, and restart them"
                )
            };
            self.wait(region, what);
        }
    }

    /// Reports that a region waits for a server, for this purpose.
    fn wait_for_server(&mut self, record: &RegionRecord, purpose: &str) {
        let lacks_only_space = self.loads.lacks_only_space(record);
        let with_space = if lacks_only_space {
            " with free space"
        } else {
            ""
        };
        self.wait(record.region, format!("a server{with_space} {purpose}"));
    }

    fn wait(&mut self, region: RegionId, what: String) {
        self.plan.waiting.push(Waiting { region, what });
    }

    /// Plans the next step of a region, if it needs one.
    fn region(&mut self, current: &CurrentRegion) {
        let record = &current.record;
        let Some(table) = self.view.tables.get(&record.table) else {
            return; // The table cannot be decoded.
        };
        if table.record.dropping {
            return;
        }
        let wanted = table.record.replica_count;
        let _ = self.place_first(current)
            || self.replace_primary(current)
            || self.drop_lost(current)
            || self.mark_in_sync(current)
            || self.continue_phase(current)
            || self.add_backup(current, wanted)
            || self.remove_surplus(current, wanted)
            || self.drain(current)
            || self.hand_over_full_primary(current)
            || self.mark_opened(current);
        self.wait_for_space(record);
    }

    /// Reports that a region waits for free space on its primary's disk. If another member had
    /// everything, the primary would be broken instead.
    fn wait_for_space(&mut self, record: &RegionRecord) {
        let Some(primary) = record.primary else {
            return;
        };
        let report = self.view.report(record.region, primary);
        if self.is_usable(record, primary) && report.is_some_and(|it| it.lacked_space) {
            let server = primary.server;
            let what = format!(
                "free space on the disk of {server}, which is full; free space on it, or enlarge \
                 it, and the region is served again"
            );
            self.wait(record.region, what);
        }
    }

    /// Removes the regions of dropped tables, then the tables.
    fn drop_tables(&mut self) {
        for table in self.view.tables.values().filter(|it| it.record.dropping) {
            let mut transaction = Transaction::new();
            for key in table.record.keys().into_iter().skip(1) {
                transaction = transaction.when(Compare::Modified(key, table.modified));
            }
            let regions = self.view.regions.values();
            let remaining: Vec<_> = regions
                .filter(|it| it.record.table == table.record.table)
                .take(DROP_REGION_COUNT_MAX)
                .collect();
            let action = if remaining.is_empty() {
                for key in table.record.keys() {
                    transaction = transaction.delete(key);
                }
                Action::DropTable
            } else {
                for region in &remaining {
                    transaction = transaction.delete(region.record.key());
                }
                Action::DropRegion
            };
            self.plan.steps.push(PlanStep {
                action,
                table: table.record.table,
                region: None,
                transaction,
            });
        }
    }
}
