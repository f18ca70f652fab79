//! Leaves of a table with a tree, left to right, as one pass finds them.

use std::collections::BTreeMap;

use farleaf_base::{NodeId, RemoteAddr};
use farleaf_fabric::{Batch, Endpoint};
use farleaf_leaf::words::recovery::RETIRED_HOP_COUNT_MAX;
use farleaf_leaf::words::{Contradiction, record_count_of};

use super::Compaction;
use crate::IndexError;
use crate::tree::node::ChildEntry;

/// Number of leaves whose first words one batch reads.
const BATCH_LEAF_COUNT: usize = 512;
/// Number of words read of a leaf: state, low, high and link.
const HEAD_SIZE_WORDS: usize = 4;

/// Leaf that is not retired.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChainLeaf {
    pub(super) addr: RemoteAddr,
    /// Lower fence, which never changes.
    pub(super) low: u64,
    /// Number of records in the state when it was read; not verified by the checksum.
    pub(super) record_count: usize,
}

/// All leaves that links lead to, and what is known of the links.
#[derive(Debug)]
pub(super) struct TableChain {
    pub(super) leaves: Vec<ChainLeaf>,
    /// Numbers of the leaves that are reached by way of a retired leaf.
    pub(super) behind_retired: Vec<usize>,
}

/// First words of a leaf, which suffice to continue from it.
#[derive(Clone, Copy, Debug)]
struct LeafHead {
    state: u64,
    low: u64,
    link: RemoteAddr,
}

impl LeafHead {
    fn of(words: &[u64]) -> Self {
        Self {
            state: words[0],
            low: words[1],
            link: RemoteAddr::from_word(words[3]),
        }
    }
}

impl TableChain {
    /// Follows the links from the first leaf on. Listed leaves are read ahead, 512 with one round
    /// trip, 32 bytes each; any other costs its own round trip. Lower fences and links are valid
    /// whatever happens to a leaf's records meanwhile: each is one word.
    ///
    /// # Errors
    /// The leaves contradict each other, one of them is lost with its node, or the fabric failed.
    pub(super) async fn read<E: Endpoint>(
        work: &Compaction<'_, E>,
        batch: &mut Batch,
        listed: &[ChildEntry],
    ) -> Result<Self, IndexError> {
        let known = read_ahead(work, batch, listed).await?;
        let mut chain = Self {
            leaves: Vec::with_capacity(known.len()),
            behind_retired: Vec::new(),
        };
        let mut addr = work.entry.record.first_leaf.place();
        let mut retired_count = 0;
        loop {
            let head = match known.get(&addr) {
                Some(head) => *head,
                None => read_one(work, batch, addr).await?,
            };
            let next = head.link.place();
            if head.link.is_retired() {
                retired_count += 1;
                if retired_count > RETIRED_HOP_COUNT_MAX || next.is_null() {
                    return Err(work.contradiction(addr, Contradiction::RetiredInCycle));
                }
                addr = next;
                continue;
            }
            let before = chain.leaves.last();
            if before.map_or(head.low != 0, |before| head.low <= before.low) {
                return Err(work.contradiction(addr, Contradiction::LinkToTheLeft));
            }
            if retired_count > 0 {
                chain.behind_retired.push(chain.leaves.len());
                retired_count = 0;
            }
            chain.leaves.push(ChainLeaf {
                addr,
                low: head.low,
                record_count: record_count_of(head.state),
            });
            if next.is_null() {
                return Ok(chain);
            }
            addr = next;
        }
    }

    /// Returns the address that the leaf with this number must link to.
    pub(super) fn link_of(&self, number: usize) -> RemoteAddr {
        let next = self.leaves.get(number + 1);
        next.map_or(RemoteAddr::NULL, |next| next.addr)
    }

    /// Returns pairs of neighbors on one node that seem to fit into one leaf, from right to left:
    /// the numbers of the right leaves.
    pub(super) fn pairs(&self, merged_count_max: usize) -> Vec<usize> {
        let mut pairs = Vec::new();
        let mut right = self.leaves.len().saturating_sub(1);
        while right > 0 {
            let (one, other) = (self.leaves[right - 1], self.leaves[right]);
            let fits = one.record_count + other.record_count <= merged_count_max;
            if fits && one.addr.node() == other.addr.node() {
                pairs.push(right);
                right = right.saturating_sub(2);
            } else {
                right -= 1;
            }
        }
        pairs
    }

    /// Returns the leaves on nodes for which `is_meant` is true, from right to left.
    pub(super) fn on_nodes(&self, is_meant: impl Fn(NodeId) -> bool) -> Vec<usize> {
        let numbers = (0..self.leaves.len()).rev();
        let is_there = |number: &usize| is_meant(self.leaves[*number].addr.node());
        numbers.filter(is_there).collect()
    }

    /// Returns the number of records, as far as they were seen.
    pub(super) fn record_count(&self) -> u64 {
        self.leaves
            .iter()
            .map(|leaf| leaf.record_count as u64)
            .sum()
    }

    /// Returns the entries of a tree over the chain.
    pub(super) fn entries(&self) -> Vec<ChildEntry> {
        let leaves = self.leaves.iter();
        let entries = leaves.map(|leaf| ChildEntry {
            low: leaf.low,
            child: leaf.addr,
        });
        entries.collect()
    }
}

async fn read_ahead<E: Endpoint>(
    work: &Compaction<'_, E>,
    batch: &mut Batch,
    listed: &[ChildEntry],
) -> Result<BTreeMap<RemoteAddr, LeafHead>, IndexError> {
    let access = &work.access;
    let mut known = BTreeMap::new();
    for part in listed.chunks(BATCH_LEAF_COUNT) {
        batch.clear();
        let reads: Vec<_> = part
            .iter()
            .map(|entry| {
                let state = access.geometry.state(entry.child.place());
                (entry.child.place(), batch.read(state, HEAD_SIZE_WORDS))
            })
            .collect();
        match access.endpoint.execute(batch).await {
            // The leaf may have been moved before its node was lost; then nothing leads to it.
            Err(error) if error.lost_node().is_some() => continue,
            executed => executed?,
        }
        let heads = reads.into_iter();
        known.extend(heads.map(|(addr, read)| (addr, LeafHead::of(batch.words(read)))));
    }
    Ok(known)
}

async fn read_one<E: Endpoint>(
    work: &Compaction<'_, E>,
    batch: &mut Batch,
    addr: RemoteAddr,
) -> Result<LeafHead, IndexError> {
    let access = &work.access;
    if access.layout.chunk_of(addr).is_none() {
        return Err(work.contradiction(addr, Contradiction::LinkToInvalidAddress));
    }
    batch.clear();
    let read = batch.read(access.geometry.state(addr), HEAD_SIZE_WORDS);
    access.endpoint.execute(batch).await?;
    Ok(LeafHead::of(batch.words(read)))
}
