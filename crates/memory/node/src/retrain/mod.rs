//! Schedules retraining in the node: which models of which tables, and when the memory that they
//! leave is reused (LEAF-7). The protocols are in `farleaf_index::retrain`, and for `rolex` tables
//! in `farleaf_index::retrain::paper`; see also docs/explanation/retraining.md.
//!
//! | module | contents |
//! |---|---|
//! | `policy` | decides which models are due |
//! | `look` | state of a table as the retrainer reads it |
//! | `garbage` | memory that nothing names any more, until it is reused |
//! | `chunks` | changes single chunks of garbage |
//! | `drain` | moves runs away from draining nodes |
//! | `statistics` | statistics |
//! | `trees` | tables with a tree |
//! | `turns` | alternates between a table's own needs and drains |
//! | `retry_delays` | delays retries after failures |
//! | `lost` | models that fail repeatedly because a node is lost |
//!
//! - **Due models.** A model is due when splits have added enough leaves relative to its own, or
//!   deletes have made enough leaves underfull. Fewer splits suffice if there was none for a while.
//!   The node learns of splits from the retraining queue (`farleaf_pool::queue`), and reads all
//!   counters from time to time. Due models are retrained together with their neighbors, so that
//!   runs are long; the fullest come first.
//! - **Garbage.** Chunks of a table that are not leased and that its root does not name are
//!   garbage. The chunks are listed first, and the root is read afterwards, so that a commit in
//!   between is not mistaken for garbage.
//! - **Grace period.** Garbage waits in groups. A sequence number is drawn when nothing in far
//!   memory names the group any more. When every session that is not fenced has published it, the
//!   group is freed: chunks are zeroed, and leaves of shared chunks are marked as free. A leaf
//!   whose chunk is leased keeps waiting.
//! - **Crashes.** Nothing of this is recorded: the next agent finds the garbage again.
//! - **Order.** Retraining starts when a sweep has finished with dead sessions: the sweep also
//!   completes what another retrainer left half done. It does not wait for value blocks whose grace
//!   period is not over.
//! - **Late announcements.** Sessions that have not followed yet announce splits in old synonym
//!   leaf tables until they have passed. Then, before the group is freed, each old table is read
//!   once more, and new announcements are copied to the current tables. For `rolex` tables, whose
//!   old models remain useful longer, this happens at every tick.
//! - **Full pool.** A retraining takes chunks before it frees any, and chunks that splits share
//!   become free only when their last leaf is moved. So in a full pool retrainings of synonyms
//!   leave a reserve, like splits do. Only models with half of their leaves underfull use it.

mod bytes;
mod chunks;
mod drain;
mod garbage;
mod look;
mod lost;
mod policy;
mod retry_delays;
mod statistics;
mod trees;
mod turns;

pub use policy::RetrainPolicy;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::AtomicBool;

use farleaf_base::{RemoteAddr, TableId};
use farleaf_fabric::Endpoint;
use farleaf_index::directory::Model;
use farleaf_index::retrain::paper::retrain_in_place;
use farleaf_index::retrain::{Stretch, retrain};
use farleaf_index::{IndexError, LayerKind};
use farleaf_leaf::words::LeafError;
use farleaf_pool::PoolError;
use farleaf_pool::catalog::{CatalogEntry, EntryState};
use farleaf_pool::layout::ChunkIndex;
use farleaf_pool::queue::QueueReader;
use farleaf_pool::tally::RetrainCounters;

use crate::redirected::Redirected;
use crate::sweep::MemoryMaintainer;
use crate::wait_limit::WaitLimit;
use bytes::StalePage;
use garbage::{GarbageGroup, old_counters};
use look::{LearnedTableView, SnapshotCache};
use lost::LostModels;
use policy::{LastCounters, ModelChanges, ModelShape};
use retry_delays::RetryDelays;
use turns::DrainTurns;

/// State of retraining between the ticks of a node.
pub struct Retrainer {
    policy: RetrainPolicy,
    /// Clock, in nanoseconds since an arbitrary time: of the system, or of a simulation.
    clock: Box<dyn Fn() -> u64>,
    garbage: RefCell<Vec<GarbageGroup>>,
    /// Set when a session died or a retraining was interrupted, and initially: there may be runs to
    /// adopt, and retired leaves that are in no group.
    is_scan_due: Cell<bool>,
    queue: RefCell<QueueReader>,
    /// Synonym leaf tables that were in the queue, until nothing is due.
    queued: RefCell<BTreeSet<RemoteAddr>>,
    /// Whether more was due at the end of the last tick.
    is_more_due: Cell<bool>,
    /// Tables that cannot be moved, which has been logged.
    logged_undrained: RefCell<BTreeSet<TableId>>,
    /// For each table, whether a drain has priority over due models.
    turns: RefCell<DrainTurns>,
    /// Number of ticks for which the oldest garbage has waited for a session.
    waiting_tick_count: Cell<u32>,
    retry_delays: RefCell<RetryDelays>,
    lost_models: RefCell<LostModels>,
    /// Trees for which a compaction found nothing to do, and the count at that time.
    empty_compactions: RefCell<BTreeMap<TableId, (RemoteAddr, u64)>>,
    /// Chunks that no sweep could sort, even when it was retried.
    unsorted: RefCell<BTreeSet<ChunkIndex>>,
    /// Retired pages that another retrainer has left.
    stale_pages: RefCell<BTreeMap<TableId, Vec<StalePage>>>,
    /// Whether a sweep by the retrainer has skipped something.
    wants_sweep: Cell<bool>,
    /// Whether the node owns unreferenced value blocks, which a sweep finds.
    left_blocks: Cell<bool>,
    /// Clock time when ticks were last counted.
    counted_ns: Cell<u64>,
    /// Number of ticks until the node reads all counters.
    ticks_to_look: Cell<u32>,
    /// Old tables in which splits may still be announced after a retraining.
    redirected: Redirected,
    snapshots: SnapshotCache,
    seen: RefCell<LastCounters>,
    tally: Cell<RetrainCounters>,
    /// Statistics as they were last written to the memory.
    published: Cell<RetrainCounters>,
}

impl core::fmt::Debug for Retrainer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Retrainer")
            .field("policy", &self.policy)
            .field("tally", &self.tally.get())
            .finish_non_exhaustive()
    }
}

impl Retrainer {
    /// Creates a retrainer. `clock` returns nanoseconds since an arbitrary time.
    pub fn new(policy: RetrainPolicy, clock: impl Fn() -> u64 + 'static) -> Self {
        Self {
            policy,
            clock: Box::new(clock),
            garbage: RefCell::default(),
            is_scan_due: Cell::new(true),
            queue: RefCell::default(),
            queued: RefCell::default(),
            is_more_due: Cell::new(false),
            logged_undrained: RefCell::default(),
            turns: RefCell::default(),
            waiting_tick_count: Cell::new(0),
            retry_delays: RefCell::default(),
            lost_models: RefCell::default(),
            empty_compactions: RefCell::default(),
            unsorted: RefCell::default(),
            stale_pages: RefCell::default(),
            wants_sweep: Cell::new(false),
            left_blocks: Cell::new(false),
            counted_ns: Cell::new(0),
            ticks_to_look: Cell::new(0),
            redirected: Redirected::default(),
            snapshots: SnapshotCache::default(),
            seen: RefCell::default(),
            tally: Cell::default(),
            published: Cell::default(),
        }
    }

    /// Returns whether garbage waits for its grace period.
    pub fn has_garbage(&self) -> bool {
        !self.garbage.borrow().is_empty()
    }

    /// Requests another search for retired leaves, after a sweep has found something.
    pub fn rescan(&self) {
        self.is_scan_due.set(true);
    }

    /// Returns whether a sweep by the retrainer has skipped something since the last call. Another
    /// sweep must then run before retraining continues.
    pub fn take_wanted_sweep(&self) -> bool {
        self.wants_sweep.take()
    }

    /// Returns whether value blocks were left for a sweep since the last call. Retraining does not
    /// wait for that sweep.
    pub fn take_left_blocks(&self) -> bool {
        self.left_blocks.take()
    }

    /// Returns the statistics, which are also in the memory.
    pub fn tally(&self) -> RetrainCounters {
        self.tally.get()
    }

    /// Does one step for every table: retrains the models that are due most, if any, and frees
    /// garbage whose grace period is over. Returns whether more is already due. Costs one round
    /// trip if nothing is due or queued.
    ///
    /// # Errors
    /// The fabric failed, or a table is corrupted.
    pub async fn tick<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
        stop: &AtomicBool,
    ) -> Result<bool, IndexError> {
        let ticked = self.tick_once(maintainer, stop).await;
        if ticked.is_err() {
            self.rest();
        }
        ticked
    }

    /// Delays the next attempt after a failure: it would fail and be logged again.
    fn rest(&self) {
        self.is_scan_due.set(true);
        self.retry_delays
            .borrow_mut()
            .delay_all(self.policy.look_tick_count);
    }

    /// Frees garbage whose grace period is over while retraining is not possible: a sweep that
    /// cannot finish may need the space. Costs one round trip if there is none.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn reuse<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
    ) -> Result<(), IndexError> {
        self.mark_over(maintainer).await?;
        self.free(maintainer, false).await?;
        Ok(self.publish_tally(maintainer).await?)
    }

    async fn tick_once<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
        stop: &AtomicBool,
    ) -> Result<bool, IndexError> {
        let wait_limit = WaitLimit::new(stop);
        let passed = self.count_ticks();
        self.take_queue(maintainer).await?;
        self.mark_over(maintainer).await?;
        if self.retry_delays.borrow_mut().pass_all(passed) {
            self.free(maintainer, false).await?;
            return Ok(false);
        }
        let is_own_look = self.is_look_due(passed);
        // Old tables that are freed at the end of this tick are read for the last time.
        let is_asked = !self.redirected.is_empty()
            || self.has_late()
            || self.is_more_due.get()
            || self.is_scan_due.get()
            || !self.queued.borrow().is_empty();
        let mut is_more_due = false;
        if is_own_look || is_asked {
            is_more_due = self
                .check_all_tables(maintainer, &wait_limit, is_own_look)
                .await?;
        }
        self.is_more_due.set(is_more_due);
        if !is_more_due {
            self.queued.borrow_mut().clear();
        }
        self.free(maintainer, true).await?;
        self.publish_tally(maintainer).await?;
        Ok(is_more_due)
    }

    /// Returns the number of ticks since the last call: one, unless ticks come without a pause.
    fn count_ticks(&self) -> u32 {
        let (now, before) = ((self.clock)(), self.counted_ns.get());
        let mut passed = 1;
        let mut counted = now;
        if self.is_more_due.get() {
            let ticks = now.saturating_sub(before) / self.policy.tick_ns.max(1);
            passed = ticks.min(u32::MAX.into()) as u32;
            counted = before + u64::from(passed) * self.policy.tick_ns;
        }
        self.counted_ns.set(counted);
        let waiting = self.waiting_tick_count.get();
        self.waiting_tick_count.set(waiting.saturating_add(passed));
        if self.retry_delays.borrow_mut().pass(passed) {
            self.is_scan_due.set(true);
        }
        passed
    }

    /// Returns whether it is time to read all counters.
    fn is_look_due(&self, passed: u32) -> bool {
        let left = self.ticks_to_look.get();
        let is_due = left == 0 && (passed > 0 || self.policy.look_tick_count == 0);
        self.ticks_to_look.set(if is_due {
            self.policy.look_tick_count
        } else {
            left.saturating_sub(passed)
        });
        is_due
    }

    async fn take_queue<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
    ) -> Result<(), PoolError> {
        let mut batch = maintainer.counted_batch();
        let mut queue = self.queue.take();
        let taken = queue.take(&maintainer.endpoint, &maintainer.layout, &mut batch);
        let taken = taken.await;
        self.queue.replace(queue);
        self.queued.borrow_mut().extend(taken?);
        Ok(())
    }

    /// Checks all tables; returns whether more is due.
    async fn check_all_tables<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
        wait_limit: &WaitLimit<'_>,
        is_own_look: bool,
    ) -> Result<bool, IndexError> {
        let is_scan_due = self.is_scan_due.replace(false);
        let mut is_more_due = false;
        let catalog = maintainer.catalog().await?;
        let is_there = |id| catalog.iter().any(|entry| entry.record.id == id);
        self.redirected.retain(is_there);
        self.retry_delays.borrow_mut().keep(is_there);
        self.lost_models.borrow_mut().keep(is_there);
        self.empty_compactions
            .borrow_mut()
            .retain(|id, _| is_there(*id));
        self.stale_pages.borrow_mut().retain(|id, _| is_there(*id));
        self.turns.borrow_mut().keep(is_there);
        let is_live = |entry: &CatalogEntry| {
            let is_known = LayerKind::from_number(entry.record.search_layer)
                .is_some_and(|kind| kind.has_leaves() && !kind.has_node_writes());
            is_known && entry.state == EntryState::Live
        };
        let live: Vec<CatalogEntry> = catalog.into_iter().filter(is_live).collect();
        self.snapshots.keep(&live);
        self.seen.borrow_mut().keep(&live);
        self.forget_late(|table| !live.iter().any(|entry| entry.record.id == table));
        for entry in live {
            let id = entry.record.id;
            if wait_limit.is_over() {
                break;
            }
            if self.retry_delays.borrow().has(id) {
                continue;
            }
            let checked = self.check_table(maintainer, entry, wait_limit, is_scan_due, is_own_look);
            match checked.await {
                Ok(is_due) => is_more_due |= is_due,
                Err(error) if error.fabric_failure().is_some() && error.lost_node().is_none() => {
                    return Err(error);
                }
                Err(IndexError::Leaf(LeafError::TableDropped { .. })) => {}
                Err(error) => {
                    // Continue with the other tables. An unreadable table must not keep memory from
                    // being freed.
                    tracing::error!(table = %id, %error, "cannot retrain a table; retrying");
                    self.forget_late(|table| table == id);
                    self.delay_table(id);
                }
            }
        }
        Ok(is_more_due)
    }

    /// Checks one table; returns whether more is due in it.
    async fn check_table<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
        entry: CatalogEntry,
        wait_limit: &WaitLimit<'_>,
        is_scan_due: bool,
        is_own_look: bool,
    ) -> Result<bool, IndexError> {
        let has_tree =
            LayerKind::from_number(entry.record.search_layer).is_some_and(LayerKind::has_tree);
        if entry.record.kind.slots().is_none() {
            // The generation of the root belongs to the load, by which entries of the listing are
            // valid.
            return if has_tree {
                Ok(false)
            } else {
                self.check_byte_table(maintainer, &entry, wait_limit, is_scan_due, is_own_look)
                    .await
            };
        }
        if has_tree {
            return self
                .check_tree_table(maintainer, entry, wait_limit, is_scan_due, is_own_look)
                .await;
        }
        if is_scan_due {
            match maintainer.adopt_orphans(&entry, wait_limit).await {
                Ok(Some(_)) => {}
                Ok(None) => {
                    // It waits for a lock holder.
                    self.delay_table(entry.record.id);
                    return Ok(false);
                }
                Err(error) if error.is_full() => {
                    self.delay_until_space(entry.record.id, &error);
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        let Some(table) = self.snapshots.look(maintainer, entry, wait_limit).await? else {
            self.is_scan_due.set(is_scan_due || self.is_scan_due.get());
            return Ok(false);
        };
        if is_scan_due {
            let (access, first) = (&table.access, table.entry.record.first_leaf);
            let leaves = self.stale_leaves(maintainer, access, first, &table.chunks);
            let leaves = leaves.await?;
            self.collect(maintainer, &table, leaves, Vec::new()).await?;
        }
        if table.has_orphan_run(maintainer) {
            // Announcements in old tables must not keep memory from being freed.
            self.forget_late(|id| id == table.access.table);
            return Ok(false);
        }
        self.retrain_table(maintainer, &table, wait_limit, is_own_look)
            .await
    }

    /// Delays a table that lacks space. If garbage waits for its grace period, there may be space
    /// soon; for tables that shrink there may be some already.
    fn delay_until_space(&self, table: TableId, error: &dyn core::fmt::Display) {
        self.count(|tally| tally.no_space_count += 1);
        let is_news = self.retry_delays.borrow_mut().note_lack_of_space(table);
        if is_news || self.has_garbage() {
            return self.retry_delays.borrow_mut().rest(table, 2);
        }
        if self.retry_delays.borrow_mut().tell(table) {
            tracing::warn!(%table, "out of space to retrain; retrying periodically: {error}");
        }
        self.delay_table(table);
    }

    /// Counts a failure of models whose leaves were on a lost node; ignores other failures.
    fn note_failure(&self, table: TableId, models: &[Model], error: &IndexError) {
        if error.lost_node().is_some() {
            self.lost_models.borrow_mut().note_failure(table, models);
        }
    }

    /// Delays a table in which something failed. Afterwards orphans are searched for.
    fn delay_table(&self, table: TableId) {
        let tick_count = self.policy.look_tick_count.max(1);
        self.retry_delays.borrow_mut().rest(table, tick_count);
    }

    async fn retrain_table<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
        table: &LearnedTableView<'_, E>,
        wait_limit: &WaitLimit<'_>,
        is_own_look: bool,
    ) -> Result<bool, IndexError> {
        let broken = Cell::new(false);
        let work = table.work(&broken);
        let late_count = self.redirected.announce(&work).await?;
        let late_count = late_count + self.announce_late(&work).await?;
        self.count(|tally| tally.late_count += late_count);
        let mut counted = look::count_changes(maintainer, &table.contents).await?;
        if table.kind() == LayerKind::Rolex {
            // Retraining of `rolex` tables moves no leaves, so it merges none.
            for counted in &mut counted {
                counted.underfull = 0;
            }
        }
        let due = self.due(table, &counted, is_own_look);
        let draining = self
            .due_for_drain(maintainer, table, &counted, wait_limit, is_own_look)
            .await?;
        let id = table.access.table;
        let chosen = self.turns.borrow_mut().choose(id, draining, due);
        let Some(stretch) = chosen else {
            let none = (Vec::new(), Vec::new());
            self.collect(maintainer, table, none.0, none.1).await?;
            return Ok(false);
        };
        let started_at_ns = (self.clock)();
        let retrained = Box::pin(async {
            match table.kind() {
                LayerKind::Learned => retrain(&work, &stretch, || !wait_limit.is_over()).await,
                // It holds nothing while it waits, so it does not have to be interrupted.
                _ => retrain_in_place(&work, stretch.models.clone()).await,
            }
        });
        // Work that was given up for now is found as an orphan.
        let Some(summary) = wait_limit.wait(retrained).await else {
            self.is_scan_due.set(true);
            return Ok(false);
        };
        let summary = match summary {
            Ok(summary) => summary,
            Err(error) if error.is_full() => {
                // The pool may also have become full midway; then a run waits to be adopted.
                self.delay_until_space(table.access.table, &error);
                return Ok(false);
            }
            Err(error) => {
                self.note_failure(id, &table.contents.models[stretch.models], &error);
                return Err(error);
            }
        };
        let done = &table.contents.models[stretch.models.clone()];
        self.lost_models.borrow_mut().forget(id, done);
        if !stretch.frees_space && self.retry_delays.borrow_mut().has_space(table.access.table) {
            tracing::info!(table = %table.access.table, "space to retrain is available again");
        }
        let time_ns = (self.clock)().saturating_sub(started_at_ns);
        let late = old_counters(table, &counted, &stretch);
        self.note(table, stretch.models, &summary, time_ns);
        self.redirected
            .note(table.access.table, &summary.old_counters);
        let first_leaf = table.entry.record.first_leaf;
        let mut shared = summary.retired;
        let entry = table.entry.clone();
        if let Some(table) = self.snapshots.look(maintainer, entry, wait_limit).await? {
            // By the current chunks: splits may have taken some since the first look.
            shared.retain(|leaf| {
                *leaf != first_leaf && look::is_shared(&table.access, &table.chunks, *leaf)
            });
            // Models that an interrupted retraining did not reach keep their tables.
            let mut late = late;
            let models = &table.contents.models;
            late.retain(|old| models.iter().all(|it| it.synonym_table != old.table));
            self.collect(maintainer, &table, shared, late).await?;
        } else {
            self.is_scan_due.set(true);
        }
        Ok(true)
    }

    /// Returns the due models; for a table that lacks space, only those that shrink.
    fn due<E>(
        &self,
        table: &LearnedTableView<'_, E>,
        counted: &[ModelChanges],
        is_own_look: bool,
    ) -> Option<Stretch> {
        let mut seen = self.seen.borrow_mut();
        let (models, id) = (&table.contents.models, table.access.table);
        let shapes: Vec<ModelShape> = models.iter().map(ModelShape::of).collect();
        let quiet = seen.quiet(id, &shapes, counted, is_own_look, &self.policy);
        // Lost models are not retrained, nor anything together with them.
        let members = table.access.layout.members();
        let lost_models = self.lost_models.borrow();
        let is_reachable = |model: &Model| {
            members.is_reachable(model.base.node()) && !lost_models.is_given_up(id, model)
        };
        let is_open: Vec<bool> = models.iter().map(is_reachable).collect();
        let is_joined =
            |number: usize| is_open[number] && !lost_models.is_alone(id, &models[number]);
        let joined: Vec<bool> = (0..models.len()).map(is_joined).collect();
        let closed = |models: &Range<usize>| !is_open[models.clone()].iter().all(|it| *it);
        let lacks_space = self.retry_delays.borrow().lacks_space(id);
        let for_space = || {
            let is_still = seen.still(id, models, counted);
            self.policy.due_for_space(models, counted, &is_still)
        };
        let for_space = lacks_space.then(for_space).flatten();
        let for_space = for_space.filter(|models| !closed(models));
        let frees_space = for_space.is_some();
        let due = || {
            let joined = self.policy.due(models, counted, &quiet, &joined);
            let alone = (0..models.len()).filter(|number| is_open[*number] && !is_joined(*number));
            joined.or_else(|| {
                alone.map(|number| number..number + 1).find(|one| {
                    let is_quiet = quiet[one.start];
                    let leaf_count = models[one.start].leaf_count.into();
                    self.policy.is_due(leaf_count, counted[one.start], is_quiet)
                })
            })
        };
        let models = for_space.or_else(due)?;
        let synonym_count = counted[models.clone()]
            .iter()
            .map(|model| model.splits)
            .sum();
        Some(Stretch {
            models,
            synonym_count,
            frees_space,
        })
    }
}
