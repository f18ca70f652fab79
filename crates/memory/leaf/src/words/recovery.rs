//! Recovery of leaves whose owners are fenced (LEAF-8). Any session may recover a leaf, and may die
//! while doing so.
//!
//! Recovery waits for no lock. Of a leaf to the right it needs only the lower fence, which never
//! changes, and the link. The link is one word and alone decides whether the leaf is retired or
//! about to be (LEAF-8 finishes that). So recovery reads even a locked neighbor as it is. If it
//! waited for the neighbor while holding the first lock, it would wait as long as a stopped owner,
//! or for itself.

use core::cell::Cell;

use farleaf_base::{OwnerWord, RemoteAddr};
use farleaf_executor::backoff;
use farleaf_fabric::{Batch, Endpoint};

use crate::words::Critical;
use crate::words::access::LeafAccess;
use crate::words::format::{LeafFormat, link_of, was_never_written};
use crate::words::{Contradiction, LeafError};

/// Number of checks of an unlocked leaf that is not intact before it counts as corrupted.
const CORRUPTION_CHECK_COUNT: u32 = 16;
/// Largest number of retired leaves followed in a row: one hop per move of a leaf that a session
/// missed, and one for a load.
pub const RETIRED_HOP_COUNT_MAX: u32 = 1 << 16;

/// What recovery needs of a leaf that it has not locked.
#[derive(Debug)]
struct Neighbour<L> {
    /// Lower fence; `None` if it is no longer readable, because the leaf has been retired.
    low: Option<L>,
    link: RemoteAddr,
}

impl<E: Endpoint, F: LeafFormat> LeafAccess<'_, E, F> {
    /// Takes over the lock of `dead`, whose session is fenced, repairs the leaf and unlocks it
    /// (LEAF-8). Returns false if another session was faster. Costs about four round trips, and
    /// waits for no lock. Memory that was never a leaf is unlocked and otherwise unchanged.
    /// `broken` is as for [`lock`](Self::lock).
    ///
    /// # Errors
    /// A leaf to the right is corrupted, or contradicts this one: the lock is `dead`'s again, so
    /// that recovery can be retried. Or the fabric failed: then `dead` or this session still holds
    /// the lock.
    pub async fn recover(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        dead: OwnerWord,
        broken: &Cell<bool>,
    ) -> Result<bool, LeafError> {
        let critical = Critical::enter(broken);
        batch.clear();
        let lock = self.geometry.lock_addr(addr);
        let swap = batch.compare_swap(lock, dead.word(), self.owner.word());
        let read = self.post_image(batch, addr);
        let swapped = self.endpoint.execute(batch).await;
        if let Err(error) = swapped {
            if error.lost_node() == Some(addr.node()) {
                critical.passed();
            }
            return Err(error.into());
        }
        if batch.previous(swap) != dead.word() {
            critical.passed();
            return Ok(false);
        }
        batch.cost_mut().leaves_read += 1;
        let mut leaf = self.copy_of(batch.words(read));
        let image = F::words(&leaf);
        let intact = self.geometry.is_intact(image, addr, self.table);
        let recovered = if was_never_written(image) {
            // No repair could make this memory a leaf.
            batch.clear();
            self.post_unlock(batch, addr);
            self.endpoint.execute(batch).await.map_err(LeafError::from)
        } else if intact {
            self.finish_takeover(batch, addr, &mut leaf).await
        } else {
            self.repair(batch, addr, &mut leaf).await
        };
        let lost_node = recovered.as_ref().err().and_then(LeafError::lost_node);
        let is_untouched = matches!(
            recovered,
            Err(LeafError::Damaged { .. } | LeafError::Contradiction { .. })
        ) || lost_node.is_some_and(|lost| lost != addr.node());
        if is_untouched {
            // Nothing was written. The dead owner's word lets the next session recover the leaf.
            batch.clear();
            batch.write_word(lock, dead.word());
            self.endpoint.execute(batch).await?;
        }
        if is_untouched || recovered.is_ok() || lost_node.is_some() {
            critical.passed();
        }
        recovered.map(|()| true)
    }

    /// Unlocks an intact leaf. If its link leads through retired leaves to one that already covers
    /// its low end, its owner was about to retire it; then retires it to that one.
    async fn finish_takeover(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        leaf: &mut F::Buffer,
    ) -> Result<(), LeafError> {
        let link = link_of(F::words(leaf));
        let mut successor = None;
        if !link.is_retired() {
            let low = self.own_low(batch, addr, leaf).await?;
            let (mut from, mut next) = (addr, link.place());
            let mut hop_count = 0;
            while !next.is_null() {
                let right = match self.read_neighbour(batch, from, next).await {
                    // Part of this leaf's range may be lost with that node. This leaf was not
                    // retired, so it stays valid.
                    Err(error) if error.lost_node() == Some(next.node()) => break,
                    right => right?,
                };
                match right.low {
                    _ if right.link.is_retired() => (from, next) = (next, right.link.place()),
                    Some(right_low) => {
                        successor = (right_low <= low).then_some(next);
                        break;
                    }
                    // The neighbor was retired just now: the next read shows it.
                    None => {}
                }
                hop_count += 1;
                if hop_count > RETIRED_HOP_COUNT_MAX {
                    return Err(self.contradiction(from, Contradiction::RetiredInCycle));
                }
            }
        }
        batch.clear();
        match successor {
            Some(successor) => self.post_retire(batch, addr, leaf, successor),
            None => self.post_unlock(batch, addr),
        }
        Ok(self.endpoint.execute(batch).await?)
    }

    /// Repairs a torn leaf: finishes the retirement or the split that its owner began, and
    /// recomputes the state. Undoes nothing.
    async fn repair(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        leaf: &mut F::Buffer,
    ) -> Result<(), LeafError> {
        let link = link_of(F::words(leaf));
        let mut sibling_low = None;
        if !link.is_retired() && !link.is_null() {
            // Whether the link is old or names a new sibling, the sibling's low shows where this
            // leaf ends (docs/reference/leaf-protocol.md, *Consequences*).
            let low = self.own_low(batch, addr, leaf).await?;
            match self.read_neighbour(batch, addr, link.place()).await {
                // The neighbor is lost with its node and its low is unknown, so this leaf keeps its
                // own upper fence.
                Err(error) if error.lost_node() == Some(link.place().node()) => {}
                Err(error) => return Err(error),
                Ok(sibling) if sibling.low.as_ref().is_some_and(|right| *right <= low) => {
                    return Err(self.contradiction(addr, Contradiction::LinkToTheLeft));
                }
                Ok(sibling) => sibling_low = sibling.low,
            }
        }
        let writes = F::finish(self, batch, addr, leaf, sibling_low.as_ref()).await?;
        batch.clear();
        for (word, value) in writes {
            batch.write_word(addr.word_at(word), value);
        }
        self.post_commit(batch, addr, leaf);
        Ok(self.endpoint.execute(batch).await?)
    }

    /// Returns the lower fence of a leaf that this session has locked and that is not retired, so
    /// the fence is readable.
    async fn own_low(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        leaf: &F::Buffer,
    ) -> Result<F::Low, LeafError> {
        let low = F::low(self, batch, addr, F::words(leaf)).await?;
        low.ok_or_else(|| self.damaged(addr))
    }

    /// Retires a locked leaf in favor of `successor`: link, then state, then unlock.
    pub fn post_retire(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        leaf: &mut F::Buffer,
        successor: RemoteAddr,
    ) {
        let link = successor.place().retired();
        self.geometry.set_link(leaf, link);
        batch.write_word(self.geometry.link_addr(addr), link.word());
        self.post_commit(batch, addr, leaf);
    }

    /// Writes state, then unlock.
    fn post_commit(&self, batch: &mut Batch, addr: RemoteAddr, leaf: &mut F::Buffer) {
        let state = self.geometry.seal(leaf, addr, self.table);
        batch.write_word(self.geometry.state_addr(addr), state);
        self.post_unlock(batch, addr);
    }

    /// Reads the lower fence and link of a leaf that another one links to. The leaf need not be
    /// intact while it is locked. A leaf that is not locked and stays torn is corrupted.
    async fn read_neighbour(
        &self,
        batch: &mut Batch,
        from: RemoteAddr,
        addr: RemoteAddr,
    ) -> Result<Neighbour<F::Low>, LeafError> {
        if self.layout.chunk_of(addr).is_none() {
            // The node may have joined since this process last read the member list.
            let members = self.layout.members();
            members.refresh(self.endpoint, self.layout).await?;
        }
        if self.layout.chunk_of(addr).is_none() {
            return Err(self.contradiction(from, Contradiction::LinkToInvalidAddress));
        }
        let mut previous: Option<Vec<u64>> = None;
        for attempt in 0.. {
            batch.clear();
            let lock = batch.read(self.geometry.lock_addr(addr), 1);
            let read = self.post_image(batch, addr);
            self.endpoint.execute(batch).await?;
            batch.cost_mut().leaves_read += 1;
            let owner = OwnerWord::from_word(batch.words(lock)[0]);
            let seen = batch.words(read).to_vec();
            if self.geometry.is_intact(&seen, addr, self.table) || !owner.is_free() {
                let link = link_of(&seen);
                let low = F::low(self, batch, addr, &seen).await?;
                return Ok(Neighbour { low, link });
            }
            // FABRIC-2 orders neither READ: with a concurrent writer both may have been torn.
            if attempt >= CORRUPTION_CHECK_COUNT && previous.as_ref() == Some(&seen) {
                return Err(self.damaged(addr));
            }
            previous = Some(seen);
            backoff(attempt.min(8)).await;
        }
        unreachable!("there is always another attempt")
    }

    /// Creates the error of a leaf that contradicts another one.
    #[cold]
    pub fn contradiction(&self, addr: RemoteAddr, what: Contradiction) -> LeafError {
        LeafError::Contradiction {
            addr,
            table: self.table,
            what,
        }
    }
}
