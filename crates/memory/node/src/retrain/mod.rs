//! Retraining, as the node does it: which models of which tables, and when what they leave behind
//! is reused (DESIGN L4, D7; the rules R1 to R9 of `farleaf_index::retrain`, and for `rolex` tables
//! X1 to X9 of `farleaf_index::retrain::paper`).
//!
//! | module | what it holds |
//! |---|---|
//! | `policy` | which models are due (T1) |
//! | `look` | a table, as the node looks at it |
//! | `garbage` | what nothing names any more, until it is reused (T2 to T4) |
//! | `chunks` | chunks of that, changed one by one |
//! | `drain` | what is moved away from a node that is to be left |
//! | `accounts` | what has been done, for whoever wants to see it |
//! | `trees` | tables with a tree |
//! | `turns` | whether a table is retrained for itself or for a drain |
//! | `rests` | what has failed, and is not tried again at once |
//! | `lost` | models that fail again and again because a node is lost |
//!
//! - **T1.** A model is due when splits have added one leaf to so many of its own, or deletes have
//!   made one of so many underfull; and, with fewer splits, when there was none for a while. The
//!   node learns of it by the queue (Q1 to Q5 of `farleaf_region::queue`), and by looking at all
//!   counters from time to time. Those that are due are retrained together with their neighbours,
//!   so that runs are long, fullest first.
//! - **T2.** What a table has of chunks that nobody leases and that its root does not name is
//!   garbage: the chunks are listed first, then the root is read, so that what is committed between
//!   the two is not taken for garbage.
//! - **T3.** Garbage waits for its grace period, in groups: a sequence number is drawn when nothing
//!   in far memory names the group any more, and when every session that is not fenced has
//!   published it, the group is freed: chunks are zeroed, leaves of shared chunks marked as free. A
//!   leaf whose chunk is leased waits on.
//! - **T4.** Nothing of this needs to be known by who comes next: garbage is found again.
//! - **T5.** Retraining begins when a sweep has found nothing more of the dead: what another
//!   retrainer has left half done is finished by it (R6). It does not wait for value blocks that
//!   are swept again as their grace period is not over.
//! - **T6.** Sessions that have not followed yet announce splits in old synonym leaf tables. They
//!   cannot do so any more when they have passed; then, and before its group is freed, each old
//!   table is looked into once more, and what is new there is announced where it belongs now. For
//!   `rolex` tables, whose old models stay good for longer, this is done at every tick (X7).
//! - **T7.** A retraining takes chunks before it makes room, and chunks that splits share become
//!   free only when the last leaf in them is moved. So in a full pool those that bring synonyms
//!   home leave a reserve (A6), as splits do; only where half of the leaves are underfull they take
//!   it.

mod accounts;
mod bytes;
mod chunks;
mod drain;
mod garbage;
mod look;
mod lost;
mod policy;
mod rests;
mod trees;
mod turns;

pub use policy::RetrainPolicy;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::AtomicBool;

use farleaf_fabric::{Batch, Endpoint, OperationKind};
use farleaf_index::directory::Model;
use farleaf_index::retrain::paper::retrain_in_place;
use farleaf_index::retrain::{Stretch, retrain};
use farleaf_index::{IndexError, LayerKind};
use farleaf_leaf::LeafError;
use farleaf_region::RegionError;
use farleaf_region::catalog::{CatalogEntry, EntryState};
use farleaf_region::layout::ChunkIndex;
use farleaf_region::members::MemberState;
use farleaf_region::queue::QueueReader;
use farleaf_region::tally::RetrainTally;
use farleaf_types::{RemoteAddr, TableId};

use crate::patience::Patience;
use crate::redirected::Redirected;
use crate::sweep::Keeper;
use bytes::StalePage;
use garbage::{Garbage, old_counters};
use look::{Looked, Looks};
use lost::LostModels;
use policy::{Counted, Seen, Shape};
use rests::Rests;
use turns::Turns;

/// What the node keeps of retraining between its ticks.
pub struct Retrainer {
    policy: RetrainPolicy,
    /// Nanoseconds since some moment: of the system, or of a simulated world.
    clock: Box<dyn Fn() -> u64>,
    garbage: RefCell<Vec<Garbage>>,
    /// Somebody died, or a retraining was cut off: there may be runs to adopt, and retired leaves
    /// that are in no group (T4). Also at first.
    is_scan_due: Cell<bool>,
    queue: RefCell<QueueReader>,
    /// Synonym leaf tables that were in the queue, until nothing is due.
    queued: RefCell<BTreeSet<RemoteAddr>>,
    /// Whether more was due at the end of the last tick.
    is_more_due: Cell<bool>,
    /// Tables of which the log says that they cannot be moved.
    told_undrained: RefCell<BTreeSet<TableId>>,
    /// Whether what is on a node that is to be left comes before what is due, of each table.
    turns: RefCell<Turns>,
    /// Ticks for which the oldest garbage has waited for a session.
    waiting_tick_count: Cell<u32>,
    rests: RefCell<Rests>,
    lost_models: RefCell<LostModels>,
    /// Trees of which a compaction found nothing to do, and what was counted of them then.
    fruitless: RefCell<BTreeMap<TableId, (RemoteAddr, u64)>>,
    /// Chunks that no sweep could sort, and that it was tried with once more.
    unsorted: RefCell<BTreeSet<ChunkIndex>>,
    /// Retired pages that another retrainer has left (BR8).
    stale_pages: RefCell<BTreeMap<TableId, Vec<StalePage>>>,
    /// Whether a sweep of its own has given something up (W6).
    wants_sweep: Cell<bool>,
    /// Whether value blocks are its own that nothing refers to, and that a sweep finds (W5).
    left_blocks: Cell<bool>,
    /// When ticks were last counted, by the clock.
    counted_ns: Cell<u64>,
    /// Ticks until the node looks at all counters by itself.
    ticks_to_look: Cell<u32>,
    /// Where splits may still be announced after a retraining (X8).
    redirected: Redirected,
    looks: Looks,
    seen: RefCell<Seen>,
    tally: Cell<RetrainTally>,
    /// The tally as it was last written to the region.
    published: Cell<RetrainTally>,
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
    /// Nothing retrained yet. `clock` tells nanoseconds since some moment.
    pub fn new(policy: RetrainPolicy, clock: impl Fn() -> u64 + 'static) -> Self {
        Self {
            policy,
            clock: Box::new(clock),
            garbage: RefCell::default(),
            is_scan_due: Cell::new(true),
            queue: RefCell::default(),
            queued: RefCell::default(),
            is_more_due: Cell::new(false),
            told_undrained: RefCell::default(),
            turns: RefCell::default(),
            waiting_tick_count: Cell::new(0),
            rests: RefCell::default(),
            lost_models: RefCell::default(),
            fruitless: RefCell::default(),
            unsorted: RefCell::default(),
            stale_pages: RefCell::default(),
            wants_sweep: Cell::new(false),
            left_blocks: Cell::new(false),
            counted_ns: Cell::new(0),
            ticks_to_look: Cell::new(0),
            redirected: Redirected::default(),
            looks: Looks::default(),
            seen: RefCell::default(),
            tally: Cell::default(),
            published: Cell::default(),
        }
    }

    /// Whether anything waits for its grace period.
    pub fn has_garbage(&self) -> bool {
        !self.garbage.borrow().is_empty()
    }

    /// A sweep has found something: retired leaves are looked for once more (T4).
    pub fn look_again(&self) {
        self.is_scan_due.set(true);
    }

    /// Whether a sweep of its own has given something up (W6) since this was last asked: another
    /// one is due, before it goes on (T5).
    pub fn take_wanted_sweep(&self) -> bool {
        self.wants_sweep.take()
    }

    /// Whether it has left value blocks for a sweep since this was last asked, which it does not
    /// wait for.
    pub fn take_left_blocks(&self) -> bool {
        self.left_blocks.take()
    }

    /// What it has done; the region's tally says the same.
    pub fn tally(&self) -> RetrainTally {
        self.tally.get()
    }

    /// One step for every table: retrains the models that are due most, if any, and frees what has
    /// passed its grace period. Returns whether more is due already. While nothing is, and nothing
    /// is in the queue, one round trip.
    ///
    /// # Errors
    /// The fabric failed, or a table is damaged.
    pub async fn tick<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        stop: &AtomicBool,
    ) -> Result<bool, IndexError> {
        let ticked = self.tick_once(keeper, stop).await;
        if ticked.is_err() {
            self.rest();
        }
        ticked
    }

    /// What has failed is not tried again at once: it would fail again, and tell so in the log.
    fn rest(&self) {
        self.is_scan_due.set(true);
        self.rests
            .borrow_mut()
            .rest_all(self.policy.look_tick_count);
    }

    /// Frees what has passed its grace period, while nothing can be retrained: a sweep that does
    /// not come to its end may need the room (T5). One round trip while nothing has.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn reuse<E: Endpoint>(&self, keeper: &Keeper<E>) -> Result<(), IndexError> {
        self.mark_over(keeper).await?;
        self.free(keeper, false).await?;
        Ok(self.publish_tally(keeper).await?)
    }

    async fn tick_once<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        stop: &AtomicBool,
    ) -> Result<bool, IndexError> {
        let patience = Patience::new(stop);
        let passed = self.count_ticks();
        self.take_queue(keeper).await?;
        self.mark_over(keeper).await?;
        if self.rests.borrow_mut().pass_all(passed) {
            self.free(keeper, false).await?;
            return Ok(false);
        }
        let is_own_look = self.is_look_due(passed);
        // X7: what is freed at the end of this tick is read for the last time.
        let is_asked = !self.redirected.is_empty()
            || self.has_late()
            || self.is_more_due.get()
            || self.is_scan_due.get()
            || !self.queued.borrow().is_empty();
        let mut is_more_due = false;
        if is_own_look || is_asked {
            is_more_due = self.look_at_all(keeper, &patience, is_own_look).await?;
        }
        self.is_more_due.set(is_more_due);
        if !is_more_due {
            self.queued.borrow_mut().clear();
        }
        self.free(keeper, true).await?;
        self.publish_tally(keeper).await?;
        Ok(is_more_due)
    }

    /// How many ticks have passed since the last one, which is one, unless they come at once.
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
        if self.rests.borrow_mut().pass(passed) {
            self.is_scan_due.set(true);
        }
        passed
    }

    /// Whether it is time for the node's own look.
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

    async fn take_queue<E: Endpoint>(&self, keeper: &Keeper<E>) -> Result<(), RegionError> {
        let mut batch = Batch::new();
        let mut queue = self.queue.take();
        let taken = queue.take(&keeper.endpoint, &keeper.layout, &mut batch);
        let taken = taken.await;
        self.queue.replace(queue);
        let counters = keeper.endpoint.counters();
        counters.record(OperationKind::Control, &batch.take_cost());
        self.queued.borrow_mut().extend(taken?);
        Ok(())
    }

    /// Whether more is due after this.
    async fn look_at_all<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        patience: &Patience<'_>,
        is_own_look: bool,
    ) -> Result<bool, IndexError> {
        let is_scan_due = self.is_scan_due.replace(false);
        let mut is_more_due = false;
        let catalog = keeper.catalog().await?;
        let is_there = |id| catalog.iter().any(|entry| entry.record.id == id);
        self.redirected.retain(is_there);
        self.rests.borrow_mut().keep(is_there);
        self.lost_models.borrow_mut().keep(is_there);
        self.fruitless.borrow_mut().retain(|id, _| is_there(*id));
        self.stale_pages.borrow_mut().retain(|id, _| is_there(*id));
        self.turns.borrow_mut().keep(is_there);
        let is_live = |entry: &CatalogEntry| {
            let is_known = LayerKind::from_number(entry.record.search_layer)
                .is_some_and(|kind| kind.has_leaves() && !kind.has_node_writes());
            is_known && entry.state == EntryState::Live
        };
        let live: Vec<CatalogEntry> = catalog.into_iter().filter(is_live).collect();
        self.looks.keep(&live);
        self.seen.borrow_mut().keep(&live);
        self.forget_late(|table| !live.iter().any(|entry| entry.record.id == table));
        for entry in live {
            let id = entry.record.id;
            if patience.is_over() {
                break;
            }
            if self.rests.borrow().has(id) {
                continue;
            }
            let looks = (is_scan_due, is_own_look);
            match self.look_at(keeper, entry, patience, looks).await {
                Ok(is_due) => is_more_due |= is_due,
                Err(error) if error.fabric_failure().is_some() && error.lost_node().is_none() => {
                    return Err(error);
                }
                Err(IndexError::Leaf(LeafError::TableDropped { .. })) => {}
                Err(error) => {
                    // The others go on (W7); what nobody can read holds up no memory.
                    tracing::error!(table = %id, %error, "cannot retrain; trying again");
                    self.forget_late(|table| table == id);
                    self.rest_table(id);
                }
            }
        }
        Ok(is_more_due)
    }

    /// Whether more is due in a table after this.
    async fn look_at<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        entry: CatalogEntry,
        patience: &Patience<'_>,
        (is_scan_due, is_own_look): (bool, bool),
    ) -> Result<bool, IndexError> {
        let has_tree =
            LayerKind::from_number(entry.record.search_layer).is_some_and(LayerKind::has_tree);
        if entry.record.kind.slots().is_none() {
            // BT2: the generation of the root is the load's.
            return if has_tree {
                Ok(false)
            } else {
                let looks = (is_scan_due, is_own_look);
                self.look_at_bytes(keeper, &entry, patience, looks).await
            };
        }
        if has_tree {
            let looks = (is_scan_due, is_own_look);
            return self.look_at_tree(keeper, entry, patience, looks).await;
        }
        if is_scan_due {
            match keeper.adopt_orphans(&entry, patience).await {
                Ok(Some(_)) => {}
                Ok(None) => {
                    // It waits for somebody.
                    self.rest_table(entry.record.id);
                    return Ok(false);
                }
                Err(error) if error.is_full() => {
                    self.rest_until_room(entry.record.id, &error);
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        let Some(table) = self.looks.look(keeper, entry, patience).await? else {
            self.is_scan_due.set(is_scan_due || self.is_scan_due.get());
            return Ok(false);
        };
        if is_scan_due {
            let of = (table.entry.record.first_leaf, &table.chunks);
            let leaves = self.stale_leaves(keeper, &table.access, of).await?;
            self.collect(keeper, &table, leaves, Vec::new()).await?;
        }
        if table.has_orphan_run(keeper) {
            // What is announced in old tables holds up no memory.
            self.forget_late(|id| id == table.access.table);
            return Ok(false);
        }
        self.retrain_table(keeper, &table, patience, is_own_look)
            .await
    }

    /// Where something waits for its grace period, there may be room soon; and for what shrinks
    /// there may be some already (T7).
    fn rest_until_room(&self, table: TableId, error: &dyn core::fmt::Display) {
        self.count(|tally| tally.no_room_count += 1);
        let is_news = self.rests.borrow_mut().lacks_room(table);
        if is_news || self.has_garbage() {
            return self.rests.borrow_mut().rest(table, 2);
        }
        if self.rests.borrow_mut().tell(table) {
            tracing::warn!(%table, "no room to retrain, trying again from time to time: {error}");
        }
        self.rest_table(table);
    }

    /// Counts a failure of models whose leaves were on a lost node; any other one is not counted.
    fn note_failure(&self, table: TableId, models: &[Model], error: &IndexError) {
        if error.lost_node().is_some() {
            self.lost_models.borrow_mut().note_failure(table, models);
        }
    }

    /// A table in which something failed is not tried again at once. Then orphans are looked for.
    fn rest_table(&self, table: TableId) {
        let tick_count = self.policy.look_tick_count.max(1);
        self.rests.borrow_mut().rest(table, tick_count);
    }

    async fn retrain_table<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        table: &Looked<'_, E>,
        patience: &Patience<'_>,
        is_own_look: bool,
    ) -> Result<bool, IndexError> {
        let broken = Cell::new(false);
        let work = table.work(&broken);
        let late_count = self.redirected.announce(&work).await?;
        let late_count = late_count + self.announce_late(&work).await?;
        self.count(|tally| tally.late_count += late_count);
        let mut counted = look::count_changes(keeper, &table.contents).await?;
        if table.kind() == LayerKind::Rolex {
            // X1: retraining of `rolex` moves no leaf, so it merges none.
            for counted in &mut counted {
                counted.underfull = 0;
            }
        }
        let due = self.due(table, &counted, is_own_look);
        let draining = self
            .due_for_drain(keeper, table, &counted, (patience, is_own_look))
            .await?;
        let id = table.access.table;
        let chosen = self.turns.borrow_mut().choose(id, draining, due);
        let Some(stretch) = chosen else {
            let none = (Vec::new(), Vec::new());
            self.collect(keeper, table, none.0, none.1).await?;
            return Ok(false);
        };
        let begun = (self.clock)();
        let retrained = Box::pin(async {
            match table.kind() {
                LayerKind::Learned => retrain(&work, &stretch, || !patience.is_over()).await,
                // X1: it holds nothing while it waits, so there is nothing to stop for.
                _ => retrain_in_place(&work, stretch.models.clone()).await,
            }
        });
        // What was given up for now is found as an orphan (R6).
        let Some(summary) = patience.wait(retrained).await else {
            self.is_scan_due.set(true);
            return Ok(false);
        };
        let summary = match summary {
            Ok(summary) => summary,
            Err(error) if error.is_full() => {
                // It may have been full in the middle, too: then a run waits to be adopted.
                self.rest_until_room(table.access.table, &error);
                return Ok(false);
            }
            Err(error) => {
                self.note_failure(id, &table.contents.models[stretch.models], &error);
                return Err(error);
            }
        };
        let done = &table.contents.models[stretch.models.clone()];
        self.lost_models.borrow_mut().forget(id, done);
        if !stretch.makes_room && self.rests.borrow_mut().has_room(table.access.table) {
            tracing::info!(table = %table.access.table, "room to retrain again");
        }
        let time_ns = (self.clock)().saturating_sub(begun);
        let late = old_counters(table, &counted, &stretch);
        self.note(table, stretch.models, &summary, time_ns);
        self.redirected
            .note(table.access.table, &summary.old_counters);
        let first_leaf = table.entry.record.first_leaf;
        let mut shared = summary.retired;
        let entry = table.entry.clone();
        if let Some(table) = self.looks.look(keeper, entry, patience).await? {
            // As chunks are now: splits may have taken some since the first look.
            shared.retain(|leaf| *leaf != first_leaf && table.is_shared(*leaf));
            // Models that it did not come to, because it stopped (R6), keep their tables.
            let mut late = late;
            let models = &table.contents.models;
            late.retain(|old| models.iter().all(|it| it.synonym_table != old.table));
            self.collect(keeper, &table, shared, late).await?;
        } else {
            self.is_scan_due.set(true);
        }
        Ok(true)
    }

    /// T1, and T7 for a table that there was no room for.
    fn due<E>(
        &self,
        table: &Looked<'_, E>,
        counted: &[Counted],
        is_own_look: bool,
    ) -> Option<Stretch> {
        let mut seen = self.seen.borrow_mut();
        let (models, id) = (&table.contents.models, table.access.table);
        let shapes: Vec<Shape> = models.iter().map(Shape::of).collect();
        let quiet = seen.quiet(id, (&shapes, counted), is_own_look, &self.policy);
        // U4: what is lost is not retrained, and nothing together with it.
        let members = table.access.layout.members();
        let lost_models = self.lost_models.borrow();
        let is_reachable = |model: &Model| {
            let state = members.state(model.base.node());
            state.is_some_and(MemberState::is_reachable) && !lost_models.is_given_up(id, model)
        };
        let is_open: Vec<bool> = models.iter().map(is_reachable).collect();
        let is_joined =
            |number: usize| is_open[number] && !lost_models.is_alone(id, &models[number]);
        let joined: Vec<bool> = (0..models.len()).map(is_joined).collect();
        let closed = |models: &Range<usize>| !is_open[models.clone()].iter().all(|it| *it);
        let is_lacking = self.rests.borrow().is_lacking(id);
        let for_room = || {
            let is_still = seen.still(id, (models, counted));
            self.policy.due_for_room(models, counted, &is_still)
        };
        let for_room = is_lacking.then(for_room).flatten();
        let for_room = for_room.filter(|models| !closed(models));
        let makes_room = for_room.is_some();
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
        let models = for_room.or_else(due)?;
        let synonym_count = counted[models.clone()]
            .iter()
            .map(|model| model.splits)
            .sum();
        Some(Stretch {
            models,
            synonym_count,
            makes_room,
        })
    }
}
