//! Compaction: the retraining of tables with a tree (RF-tree's merges of underfull leaves and inner
//! nodes).
//!
//! - **One retrainer.** One retrainer works on a table at a time, as in [`retrain`](super). Only it
//!   retires leaves of a table that is not empty, and swaps the root after a load.
//! - **Steps.** Two neighbors whose records fit into one leaf become one, and leaves move away from
//!   a draining node. Steps move leaves as in [`farleaf_leaf::words::moving`], from right to left,
//!   into leaves that are leased like those of a split. A step waits for the right leaf's lock
//!   while it holds none, and does not wait for the left one's. Then the leaf on the left is linked
//!   to the new one, under its lock. An operation waits for at most one step.
//! - **New tree.** After the steps a whole new tree is written over the current leaves, and the
//!   root is swapped to its head: the commit point. This merges empty inner nodes, and leaves none
//!   on a draining node. Until then the old tree lists retired leaves, whose links lead on.
//! - **Listing.** From then on only old trees list retired leaves. An operation lists a leaf only
//!   in the tree that it began with, because it may have met the leaf before the leaf was retired.
//!   Inner nodes are leased for one tree.
//! - **Reuse.** Leaves and nodes of the old tree are reused when every session has passed (LEAF-7).
//!   The head of a tree says whether the table was ever compacted. If it was, sessions may use
//!   other trees than the root's, and a sweep frees none of those at once.
//! - **Recovery.** If a retrainer dies, links to leaves that it retired, and entries for them, may
//!   remain. The next retrainer finds the retired leaves, links their predecessors to their
//!   successors, and writes a new tree. Then the leaves are garbage.

mod chain;
mod leases;

use core::cell::Cell;

use farleaf_base::{NodeId, RemoteAddr};
use farleaf_fabric::{Batch, Endpoint, OperationKind, PhaseGuard, ProtocolCheck, ProtocolPhase};
use farleaf_leaf::words::moving::MoveSource;
use farleaf_leaf::words::{Contradiction, Critical, LeafAccess, LeafCheck};
use farleaf_pool::catalog::{self, CatalogEntry};

use super::RetrainSummary;
use super::redirect::{link_at, redirect_first};
use super::step::{lock_left, take_over};
use super::swap_root;
use crate::IndexError;
use crate::load::draw_generation;
use crate::tree::TreeAccess;
use crate::tree::build::{TreePlan, build};
use crate::tree::head::Head;
use chain::{ChainLeaf, TableChain};
pub use leases::CompactionLeases;

/// Table and parameters of a compaction.
#[derive(Debug)]
pub struct Compaction<'a, E> {
    /// Access to the table's leaves by the retrainer's session.
    pub access: LeafAccess<'a, E>,
    /// Catalog entry of the table, read before anything else.
    pub entry: &'a CatalogEntry,
    /// Head of the tree that the root names.
    pub head: &'a Head,
    /// Root word of the table.
    pub root: RemoteAddr,
    /// Largest number of records of two leaves that are merged into one.
    pub merged_count_max: usize,
    /// Flag of the retrainer's session: set if it was interrupted while it may have held a lock or
    /// chunk.
    pub broken: &'a Cell<bool>,
}

/// Work of a compaction.
#[derive(Clone, Copy, Debug)]
pub struct CompactionGoal {
    /// Largest number of steps.
    pub step_count_max: u64,
    /// True if leaves were found that another retrainer has retired: then a new tree is written
    /// even if there is nothing else to do.
    pub finishes_another: bool,
    /// True if part of the tree itself is on a draining node.
    pub moves_tree: bool,
}

/// Result of a compaction.
#[derive(Clone, Debug)]
pub enum Compacted {
    /// A new tree is in force.
    Done(RetrainSummary),
    /// No new tree was written.
    Nothing {
        /// True if a step was skipped because another session held the left leaf's lock, or had
        /// changed the leaves.
        was_hindered: bool,
    },
    /// The table was loaded meanwhile, and the load's root is in force. Leaves may have been moved;
    /// they are found as garbage when no session leases their chunks any more.
    Loaded,
}

/// Result of a step.
enum StepOutcome {
    Done,
    /// The leaves have changed since they were read.
    Skipped,
    NoSpace(IndexError),
}

/// Compacts a table. `is_left` returns whether a node is being drained; `may_continue` is called
/// before each step. The caller reuses the memory of the sources and of the old tree once all
/// sessions have passed. The caller also releases the rest of `leased`, even if this was
/// interrupted while it waited for a lock.
///
/// # Errors
/// The pool is full, a leaf is corrupted, a node is lost or the fabric failed: the next compaction
/// finishes what was done.
pub async fn compact<E: Endpoint>(
    work: &Compaction<'_, E>,
    leased: &CompactionLeases,
    wanted: CompactionGoal,
    is_left: impl Fn(NodeId) -> bool,
    may_continue: impl Fn() -> bool,
) -> Result<Compacted, IndexError> {
    let _course = PhaseGuard::begin(work.access.endpoint, ProtocolPhase::Gather);
    let mut batch = Batch::new();
    let compacted = Box::pin(compact_with(
        work,
        &mut batch,
        leased,
        wanted,
        is_left,
        may_continue,
    ));
    let compacted = compacted.await;
    let counters = work.access.endpoint.counters();
    counters.record(OperationKind::Control, &batch.take_cost());
    compacted
}

async fn compact_with<E: Endpoint>(
    work: &Compaction<'_, E>,
    batch: &mut Batch,
    leased: &CompactionLeases,
    wanted: CompactionGoal,
    is_left: impl Fn(NodeId) -> bool,
    may_continue: impl Fn() -> bool,
) -> Result<Compacted, IndexError> {
    let tree = TreeAccess {
        leaves: work.access,
        broken: work.broken,
    };
    let level = tree.level(work.head.generation).await?;
    let mut chain = TableChain::read(work, batch, &level.entries).await?;
    work.access.endpoint.enters(ProtocolPhase::Redirect);
    for number in core::mem::take(&mut chain.behind_retired) {
        work.link_left(batch, &chain, number).await?;
    }
    work.access.endpoint.enters(ProtocolPhase::Steps);
    let mut summary = RetrainSummary::default();
    // Steps go from right to left, so the numbers of leaves further left stay valid.
    let (mut step_count, mut no_space, mut was_hindered) = (0, None, false);
    for is_pair in [false, true] {
        let numbers = if is_pair {
            work.pairs(&chain)
        } else {
            chain.on_nodes(&is_left)
        };
        for number in numbers {
            if !may_continue() || step_count == wanted.step_count_max {
                break;
            }
            step_count += 1;
            let step = work.step(batch, leased, &mut chain, number, is_pair, &mut summary);
            match step.await? {
                StepOutcome::Done => {}
                StepOutcome::Skipped => was_hindered = true,
                StepOutcome::NoSpace(error) => {
                    no_space = Some(error);
                    break;
                }
            }
        }
    }
    let is_worth_it = !summary.retired.is_empty() || wanted.finishes_another || wanted.moves_tree;
    if !is_worth_it {
        return no_space.map_or(Ok(Compacted::Nothing { was_hindered }), Err);
    }
    if !publish(work, batch, &chain, leased).await? {
        return Ok(Compacted::Loaded);
    }
    summary.moved_count = summary.retired.len() as u64;
    summary.record_count = chain.record_count();
    Ok(Compacted::Done(summary))
}

/// Writes a new tree and swaps the root. Returns false if the table was loaded meanwhile, and no
/// new tree is in force.
async fn publish<E: Endpoint>(
    work: &Compaction<'_, E>,
    batch: &mut Batch,
    chain: &TableChain,
    leased: &CompactionLeases,
) -> Result<bool, IndexError> {
    let access = &work.access;
    access.endpoint.enters(ProtocolPhase::Snapshot);
    let plan = TreePlan {
        generation: draw_generation(access, batch).await?,
        record_count: chain.record_count(),
        fill_percent: work.entry.record.fill_percent,
        entry_count_max: work.head.entry_count_max,
        takes_reserve: true,
        is_compacted: true,
    };
    let tree = build(access, plan, &chain.entries()).await?;
    access.endpoint.enters(ProtocolPhase::RootSwap);
    let root = tree.root;
    leased.keep(tree);
    let swapped = work.swap_root(batch, chain, root).await;
    let tree = leased.take_tree();
    if let Err(error) = &swapped
        && error.fabric_failure().is_some()
    {
        // The swap may have taken effect; the sweep determines this.
        return swapped;
    }
    access.endpoint.enters(ProtocolPhase::GiveBack);
    tree.give_back(access, matches!(swapped, Ok(true))).await?;
    if matches!(swapped, Ok(true)) {
        work.count_left(batch, work.pairs(chain).len() as u64)
            .await?;
    }
    swapped
}

impl<E: Endpoint> Compaction<'_, E> {
    fn contradiction(&self, addr: RemoteAddr, what: Contradiction) -> IndexError {
        self.access.contradiction(addr, what).into()
    }

    /// Swaps the root. A table of one leaf that never had another may be empty and just being
    /// loaded: then the swap takes that leaf's lock, which the load needs. Returns false if the
    /// table was loaded, and the root is a different one.
    async fn swap_root(
        &self,
        batch: &mut Batch,
        chain: &TableChain,
        root: RemoteAddr,
    ) -> Result<bool, IndexError> {
        let (access, broken) = (&self.access, self.broken);
        let first_leaf = self.entry.record.first_leaf.place();
        let before = self.root;
        if chain.leaves.len() > 1 || chain.leaves[0].addr != first_leaf {
            return swap_root(access, batch, self.entry, before, root).await;
        }
        let mut leaf = access.blank();
        let lock = access.lock(batch, first_leaf, None, &mut leaf, broken);
        lock.await?;
        let critical = Critical::enter(broken);
        let was_loaded = leaf.image().is_retired();
        let mut swapped = Ok(false);
        if !was_loaded {
            swapped = swap_root(access, batch, self.entry, before, root).await;
        }
        // The lock is released whatever happened to the root; it stays only if the fabric fails.
        access.unlock(batch, first_leaf, broken).await?;
        critical.passed();
        swapped
    }

    /// Reduces the catalog's count of underfull leaves to `pair_count`: those counted before the
    /// entry was read are done, except for these. If this is interrupted, the next check repeats
    /// the work.
    async fn count_left(&self, batch: &mut Batch, pair_count: u64) -> Result<(), IndexError> {
        let access = &self.access;
        let place = catalog::underfull_count_addr(access.layout, self.entry.index);
        batch.clear();
        batch.fetch_add(place, pair_count.wrapping_sub(self.entry.underfull_count));
        Ok(access.endpoint.execute(batch).await?)
    }

    fn pairs(&self, chain: &TableChain) -> Vec<usize> {
        chain.pairs(self.merged_count_max)
    }

    /// Moves the leaf with this number, and its left neighbor too if they are a pair.
    async fn step(
        &self,
        batch: &mut Batch,
        leased: &CompactionLeases,
        chain: &mut TableChain,
        number: usize,
        is_pair: bool,
        summary: &mut RetrainSummary,
    ) -> Result<StepOutcome, IndexError> {
        let (access, broken) = (&self.access, self.broken);
        let right = chain.leaves[number].addr;
        // Nothing is leased while a lock is held.
        match leased.provide(access, right.node()).await {
            Err(error) if error.is_full() => return Ok(StepOutcome::NoSpace(error)),
            provided => provided?,
        }
        let before = batch.cost_mut().round_trips;
        let mut leaf = access.blank();
        let lock = access.lock(batch, right, None, &mut leaf, broken);
        lock.await?;
        let critical = Critical::enter(broken);
        let (is_retired, link) = (leaf.image().is_retired(), leaf.image().link());
        let mut sources = vec![MoveSource { addr: right, leaf }];
        let mut is_as_seen = !is_retired && link == chain.link_of(number);
        if is_as_seen && is_pair {
            let left = chain.leaves[number - 1].addr;
            let most = self.merged_count_max;
            let left = lock_left(access, batch, left, &sources[0], most, broken).await?;
            is_as_seen = left.is_some();
            sources.splice(0..0, left);
        }
        if !is_as_seen {
            access.unlock(batch, right, broken).await?;
            critical.passed();
            if is_retired {
                return Err(self.contradiction(right, Contradiction::RetiredWithoutRetraining));
            }
            return Ok(StepOutcome::Skipped);
        }
        let place = leased.take(right.node());
        let place = place.expect("provided before anything was locked");
        batch.clear();
        let first_leaf = self.entry.record.first_leaf;
        if sources.iter().any(|source| source.addr == first_leaf) {
            // The pending root is zeroed before the first leaf is retired, and under the first
            // leaf's lock, which a load needs.
            let pending = catalog::pending_root_addr(access.layout, self.entry.index);
            batch.write_word(pending, 0);
        }
        let made = take_over(access, batch, place, link, &mut sources, critical).await?;
        let spent = batch.cost_mut().round_trips - before;
        summary.step_round_trips_max = summary.step_round_trips_max.max(spent);
        summary.made_count += 1;
        summary.retired.extend(sources.iter().map(|it| it.addr));
        let first = number + 1 - sources.len();
        let made = ChainLeaf {
            addr: place,
            low: made.image().low(),
            record_count: made.image().record_count(),
        };
        chain.leaves.splice(first..=number, [made]);
        self.link_left(batch, chain, first).await?;
        Ok(StepOutcome::Done)
    }

    /// Links the left neighbor of the leaf with this number to it. A left neighbor on a lost node
    /// needs no link.
    async fn link_left(
        &self,
        batch: &mut Batch,
        chain: &TableChain,
        number: usize,
    ) -> Result<(), IndexError> {
        let to = chain.leaves[number];
        let linked = match number.checked_sub(1) {
            Some(left) => {
                let left = chain.leaves[left].addr;
                self.link_from(batch, left, to).await
            }
            None => redirect_first(&self.access, batch, self.entry, self.broken, to.addr).await,
        };
        match linked {
            Err(error) if error.lost_node().is_some() => Ok(()),
            linked => linked,
        }
    }

    /// Links `from` to `to`. `from` was the left neighbor when it was read; it may have been split
    /// since.
    async fn link_from(
        &self,
        batch: &mut Batch,
        from: RemoteAddr,
        to: ChainLeaf,
    ) -> Result<(), IndexError> {
        let (access, broken) = (&self.access, self.broken);
        if access
            .endpoint
            .skips_check(ProtocolCheck::LinksAreRedirected)
        {
            return Ok(());
        }
        let mut addr = from;
        loop {
            let look = link_at(access, batch, addr, to.low - 1, to.addr, broken).await?;
            match look {
                LeafCheck::Here => return Ok(()),
                LeafCheck::Right(next) => addr = next.place(),
                // Only the retrainer retires leaves, and the left neighbor begins further left.
                LeafCheck::Retired(_) | LeafCheck::Left | LeafCheck::Torn => {
                    return Err(self.contradiction(addr, Contradiction::RetiredWithoutRetraining));
                }
            }
        }
    }
}
