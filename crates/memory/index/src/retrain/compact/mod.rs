//! Compaction: what retraining is to a table with a tree (RF-tree: merges of underfull leaves and
//! inner nodes).
//!
//! - **K1.** R1 holds: one retrainer works on a table, and it alone retires leaves of a table that
//!   is not empty, and swaps the root after a load.
//! - **K2.** Two neighbours whose records fit into one leaf become one, and a leaf moves away from
//!   a node that is to be left, by M1 to M4, into a leaf that is leased like a split's; from right
//!   to left. It waits for the right one's lock while it holds none, and for the left one's not at
//!   all. Then the leaf to the left is linked to the new one, under its lock. (R8 holds.)
//! - **K3.** When the steps are over, a whole new tree is written over the leaves that there are,
//!   and the root is swapped to its head: the commit point. So inner nodes that have become empty
//!   are merged, and none is on a node that is to be left. Until then the old tree lists leaves
//!   that are retired, and they lead on.
//! - **K4.** What was retired is listed by old trees alone from then on. An operation lists a leaf
//!   in no tree but that which it began with: it may have met the leaf before that was retired.
//!   Inner nodes are leased for one tree.
//! - **K5.** Leaves, and nodes of the old tree, are reused when every session has passed (D7, T3).
//!   The head of a tree says whether the table was ever compacted, so that sessions may be in other
//!   trees than the root's: then a sweep frees none of these at once.
//! - **K6.** If a retrainer dies, links to what it has retired, and entries for it, may be left.
//!   The next one finds the retired leaves (T4), links what leads to them to what they lead to,
//!   and goes on with K3: then they are garbage as by K5.

mod chain;
mod room;

use core::cell::Cell;

use farleaf_fabric::{Batch, Course, Endpoint, OperationKind, ProtocolCheck, ProtocolPhase};
use farleaf_leaf::moving::Source;
use farleaf_leaf::{Contradiction, Critical, LeafAccess, Look};
use farleaf_region::catalog::{self, CatalogEntry};
use farleaf_types::{NodeId, RemoteAddr};

use super::RetrainSummary;
use super::redirect::{link_at, redirect_first};
use super::step::{lock_left, take_over};
use super::swap_root;
use crate::IndexError;
use crate::load::draw_generation;
use crate::tree::TreeAccess;
use crate::tree::build::{Plan, build};
use crate::tree::head::Head;
use chain::{Chain, Seen};
pub use room::Leased;

/// What a retrainer compacts.
#[derive(Debug)]
pub struct Compaction<'a, E> {
    /// The table's leaves, in the name of the retrainer's session.
    pub access: LeafAccess<'a, E>,
    /// The table's catalog entry, as it was read before anything else.
    pub entry: &'a CatalogEntry,
    /// What the root names.
    pub head: &'a Head,
    /// The root.
    pub root: RemoteAddr,
    /// Records that two leaves may have together to become one.
    pub merged_count_max: usize,
    /// The retrainer's session: set when it was cut off while it may have held something.
    pub broken: &'a Cell<bool>,
}

/// What a compaction is to do.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Steps at the most.
    pub step_count_max: u64,
    /// Whether leaves were found that another retrainer has retired (K6): a new tree is written
    /// whatever else there is to do.
    pub finishes_another: bool,
    /// Whether some of the tree itself is on a node that is to be left.
    pub moves_tree: bool,
}

/// What became of a compaction.
#[derive(Clone, Debug)]
pub enum Compacted {
    /// A new tree is in force.
    Done(RetrainSummary),
    /// No new tree is written.
    Nothing {
        /// Whether there seemed to be something to do, and somebody was in the way: held the leaf
        /// to the left, or had changed what was seen.
        was_hindered: bool,
    },
    /// The table was loaded meanwhile, and the load's root is in force. Leaves of it may have been
    /// moved: they are found when nobody leases their chunks any more (K6, T4).
    Loaded,
}

/// What became of a step.
enum Step {
    Done,
    /// The leaves are not as they seemed.
    Skipped,
    NoRoom(IndexError),
}

/// Compacts a table. `is_left` tells which nodes are to be left; `may_go_on` is asked before each
/// step. The sources' memory, and the old tree's, is the caller's to reuse (K5), and what is left
/// of `leased` to give back, also if this was cut off while it waited for a lock.
///
/// # Errors
/// The pool is full, a leaf is damaged, a node is lost or the fabric failed: what was done is for
/// the next compaction to finish (K6).
pub async fn compact<E: Endpoint>(
    work: &Compaction<'_, E>,
    leased: &Leased,
    wanted: Wanted,
    (is_left, may_go_on): (impl Fn(NodeId) -> bool, impl Fn() -> bool),
) -> Result<Compacted, IndexError> {
    let _course = Course::begin(work.access.endpoint, ProtocolPhase::Gather);
    let mut batch = Batch::new();
    let compacted = Box::pin(compact_with(
        work,
        &mut batch,
        (leased, wanted),
        (is_left, may_go_on),
    ));
    let compacted = compacted.await;
    let counters = work.access.endpoint.counters();
    counters.record(OperationKind::Control, &batch.take_cost());
    compacted
}

async fn compact_with<E: Endpoint>(
    work: &Compaction<'_, E>,
    batch: &mut Batch,
    (leased, wanted): (&Leased, Wanted),
    (is_left, may_go_on): (impl Fn(NodeId) -> bool, impl Fn() -> bool),
) -> Result<Compacted, IndexError> {
    let tree = TreeAccess {
        leaves: work.access,
        broken: work.broken,
    };
    let level = tree.level(work.head.generation).await?;
    let mut chain = Chain::read(work, batch, &level.entries).await?;
    work.access.endpoint.enters(ProtocolPhase::Redirect);
    for number in core::mem::take(&mut chain.behind_retired) {
        work.link_left(batch, &chain, number).await?;
    }
    work.access.endpoint.enters(ProtocolPhase::Steps);
    let mut summary = RetrainSummary::default();
    // Steps go from right to left: the numbers of what is left of one stay good.
    let (mut step_count, mut no_room, mut was_hindered) = (0, None, false);
    for is_pair in [false, true] {
        let numbers = if is_pair {
            work.pairs(&chain)
        } else {
            chain.on_nodes(&is_left)
        };
        for number in numbers {
            if !may_go_on() || step_count == wanted.step_count_max {
                break;
            }
            step_count += 1;
            let step = work.step(batch, leased, (&mut chain, number), is_pair, &mut summary);
            match step.await? {
                Step::Done => {}
                Step::Skipped => was_hindered = true,
                Step::NoRoom(error) => {
                    no_room = Some(error);
                    break;
                }
            }
        }
    }
    let is_worth_it = !summary.retired.is_empty() || wanted.finishes_another || wanted.moves_tree;
    if !is_worth_it {
        return no_room.map_or(Ok(Compacted::Nothing { was_hindered }), Err);
    }
    if !publish(work, batch, &chain, leased).await? {
        return Ok(Compacted::Loaded);
    }
    summary.moved_count = summary.retired.len() as u64;
    summary.record_count = chain.record_count();
    Ok(Compacted::Done(summary))
}

/// K3. False: the table was loaded meanwhile, and no new tree is in force.
async fn publish<E: Endpoint>(
    work: &Compaction<'_, E>,
    batch: &mut Batch,
    chain: &Chain,
    leased: &Leased,
) -> Result<bool, IndexError> {
    let access = &work.access;
    access.endpoint.enters(ProtocolPhase::Snapshot);
    let plan = Plan {
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
        // The swap may have taken effect: the sweep will tell (W4).
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

    /// R1: a table of one leaf that never had another one may be empty, and loaded just now: then
    /// under that leaf's lock, which the load needs. False: it was loaded, and the root is not
    /// this.
    async fn swap_root(
        &self,
        batch: &mut Batch,
        chain: &Chain,
        root: RemoteAddr,
    ) -> Result<bool, IndexError> {
        let (access, broken) = (&self.access, self.broken);
        let first_leaf = self.entry.record.first_leaf.place();
        let roots = (self.root, root);
        if chain.leaves.len() > 1 || chain.leaves[0].addr != first_leaf {
            return swap_root(access, batch, self.entry, roots).await;
        }
        let mut leaf = access.blank();
        let lock = access.lock(batch, first_leaf, None, &mut leaf, broken);
        lock.await?;
        let critical = Critical::enter(broken);
        let was_loaded = leaf.image().is_retired();
        let mut swapped = Ok(false);
        if !was_loaded {
            swapped = swap_root(access, batch, self.entry, roots).await;
        }
        // Whatever became of the root; only a fabric that fails keeps the lock.
        access.unlock(batch, first_leaf, broken).await?;
        critical.passed();
        swapped
    }

    /// C7: what was counted when the entry was read, before the leaves were, is dealt with, but for
    /// these. If this is cut off, somebody looks once more.
    async fn count_left(&self, batch: &mut Batch, pair_count: u64) -> Result<(), IndexError> {
        let access = &self.access;
        let place = catalog::underfull_count_addr(access.layout, self.entry.index);
        batch.clear();
        batch.fetch_add(place, pair_count.wrapping_sub(self.entry.underfull_count));
        Ok(access.endpoint.execute(batch).await?)
    }

    fn pairs(&self, chain: &Chain) -> Vec<usize> {
        chain.pairs(self.merged_count_max)
    }

    /// K2: moves the leaf with this number, and its left neighbour with it if they are a pair.
    async fn step(
        &self,
        batch: &mut Batch,
        leased: &Leased,
        (chain, number): (&mut Chain, usize),
        is_pair: bool,
        summary: &mut RetrainSummary,
    ) -> Result<Step, IndexError> {
        let (access, broken) = (&self.access, self.broken);
        let right = chain.leaves[number].addr;
        // Nothing is leased while something is locked (R8).
        match leased.provide(access, right.node()).await {
            Err(error) if error.is_full() => return Ok(Step::NoRoom(error)),
            provided => provided?,
        }
        let before = batch.cost_mut().round_trips;
        let mut leaf = access.blank();
        let lock = access.lock(batch, right, None, &mut leaf, broken);
        lock.await?;
        let critical = Critical::enter(broken);
        let (is_retired, link) = (leaf.image().is_retired(), leaf.image().link());
        let mut sources = vec![Source { addr: right, leaf }];
        let mut is_as_seen = !is_retired && link == chain.link_of(number);
        if is_as_seen && is_pair {
            let left = chain.leaves[number - 1].addr;
            let most = self.merged_count_max;
            let left = lock_left(access, batch, (left, &sources[0]), most, broken).await?;
            is_as_seen = left.is_some();
            sources.splice(0..0, left);
        }
        if !is_as_seen {
            access.unlock(batch, right, broken).await?;
            critical.passed();
            if is_retired {
                return Err(self.contradiction(right, Contradiction::RetiredByNobody));
            }
            return Ok(Step::Skipped);
        }
        let place = leased.take(right.node());
        let place = place.expect("provided before anything was locked");
        batch.clear();
        let first_leaf = self.entry.record.first_leaf;
        if sources.iter().any(|source| source.addr == first_leaf) {
            // R1: before the first leaf is retired, and under its lock, which a load needs.
            let pending = catalog::pending_root_addr(access.layout, self.entry.index);
            batch.write_word(pending, 0);
        }
        let made = take_over(access, batch, (place, link), &mut sources, critical).await?;
        let spent = batch.cost_mut().round_trips - before;
        summary.step_round_trips_max = summary.step_round_trips_max.max(spent);
        summary.made_count += 1;
        summary.retired.extend(sources.iter().map(|it| it.addr));
        let first = number + 1 - sources.len();
        let made = Seen {
            addr: place,
            low: made.image().low(),
            record_count: made.image().record_count(),
        };
        chain.leaves.splice(first..=number, [made]);
        self.link_left(batch, chain, first).await?;
        Ok(Step::Done)
    }

    /// K2: links what is to the left of the leaf with this number to that. What is lost with its
    /// node (U4) links to nothing any more.
    async fn link_left(
        &self,
        batch: &mut Batch,
        chain: &Chain,
        number: usize,
    ) -> Result<(), IndexError> {
        let to = chain.leaves[number];
        let linked = match number.checked_sub(1) {
            Some(left) => {
                let left = chain.leaves[left].addr;
                self.link_from(batch, left, to).await
            }
            None => redirect_first(&self.access, batch, (self.entry, self.broken), to.addr).await,
        };
        match linked {
            Err(error) if error.lost_node().is_some() => Ok(()),
            linked => linked,
        }
    }

    /// `from` was the left neighbour when it was seen; it may have been split since.
    async fn link_from(
        &self,
        batch: &mut Batch,
        from: RemoteAddr,
        to: Seen,
    ) -> Result<(), IndexError> {
        let (access, broken) = (&self.access, self.broken);
        if access
            .endpoint
            .leaves_out(ProtocolCheck::LinksAreRedirected)
        {
            return Ok(());
        }
        let mut addr = from;
        loop {
            let of = (addr, to.low - 1);
            let look = link_at(access, batch, of, to.addr, broken).await?;
            match look {
                Look::Here => return Ok(()),
                Look::Right(next) => addr = next.place(),
                // K1, and it begins left of what it linked to.
                Look::Retired(_) | Look::Left | Look::Torn => {
                    return Err(self.contradiction(addr, Contradiction::RetiredByNobody));
                }
            }
        }
    }
}
