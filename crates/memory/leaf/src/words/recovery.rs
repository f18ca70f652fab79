//! Recovery of leaves whose owners are fenced (D8). Any session may do it, and may die of it.
//!
//! It waits for nobody. What it needs of a leaf to the right is the lower fence, which never
//! changes, and the link, which is one word and settles by itself whether the leaf is, or is about
//! to be, retired (D8 finishes that). So a neighbour that somebody holds is read as it is; whoever
//! waited for it, with the first lock in hand, would wait for as long as a living owner is stopped,
//! or for itself.

use core::cell::Cell;

use farleaf_executor::backoff;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_types::{OwnerWord, RemoteAddr};

use crate::Critical;
use crate::access::LeafAccess;
use crate::format::{LeafFormat, link_of, was_never_written};
use crate::{Contradiction, LeafError};

/// So many looks at a leaf that nobody holds and that is not intact before it is called damaged.
const DAMAGED_LOOK_COUNT: u32 = 16;
/// Retired leaves that are followed in a row at the most: one hop per move of a leaf that a session
/// has slept through, and one for a load (B2).
pub const RETIRED_HOP_COUNT_MAX: u32 = 1 << 16;

/// What recovery needs of a leaf that it does not hold.
#[derive(Debug)]
struct Neighbour<L> {
    /// `None`: it cannot be told any more, as the leaf has been retired.
    low: Option<L>,
    link: RemoteAddr,
}

impl<E: Endpoint, F: LeafFormat> LeafAccess<'_, E, F> {
    /// D8: takes the lock over from `dead`, whose session is fenced, repairs the leaf and unlocks
    /// it. Returns false when somebody else was faster. Costs about four round trips, and waits for
    /// no lock. Memory that was never a leaf is unlocked and stays as it is. `broken` is as for
    /// [`lock`](Self::lock).
    ///
    /// # Errors
    /// A leaf to the right is damaged, or contradicts this one: the lock is `dead`'s again, so that
    /// it can be tried anew. Or the fabric failed: the lock is then still held by `dead` or by this
    /// session.
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
        let read = batch.read(
            self.geometry.state_addr(addr),
            self.geometry.image_size_words(),
        );
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
            // Nothing that could be made of it would be a leaf.
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
            // Nothing was written. The dead owner's word says all that whoever comes next needs.
            batch.clear();
            batch.write_word(lock, dead.word());
            self.endpoint.execute(batch).await?;
        }
        if is_untouched || recovered.is_ok() || lost_node.is_some() {
            critical.passed();
        }
        recovered.map(|()| true)
    }

    /// An intact leaf keeps its state, unless it was about to be retired: then its link leads
    /// through retired leaves to the one that already covers its low end, and it is retired to
    /// that.
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
                let right = match self.read_neighbour(batch, (from, next)).await {
                    // U4: what this leaf covers may be lost with that one's node, or not. It has
                    // not been retired, so it counts.
                    Err(error) if error.lost_node() == Some(next.node()) => break,
                    right => right?,
                };
                match right.low {
                    _ if right.link.is_retired() => (from, next) = (next, right.link.place()),
                    Some(right_low) => {
                        successor = (right_low <= low).then_some(next);
                        break;
                    }
                    // It was retired just now: it says so when it is read again.
                    None => {}
                }
                hop_count += 1;
                if hop_count > RETIRED_HOP_COUNT_MAX {
                    return Err(self.contradiction(from, Contradiction::RetiredInCircles));
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

    /// A torn leaf: the retirement or the split that its owner began is finished, and the state is
    /// computed anew. Nothing is undone.
    async fn repair(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        leaf: &mut F::Buffer,
    ) -> Result<(), LeafError> {
        let link = link_of(F::words(leaf));
        let mut sibling_low = None;
        if !link.is_retired() && !link.is_null() {
            // Whether the link is old or names a new sibling, the sibling's low tells where this
            // leaf ends (the second consequence in the rules).
            let low = self.own_low(batch, addr, leaf).await?;
            match self.read_neighbour(batch, (addr, link.place())).await {
                // U4: what it covers is lost; where it began nobody knows, so this one ends where
                // it says itself.
                Err(error) if error.lost_node() == Some(link.place().node()) => {}
                Err(error) => return Err(error),
                Ok(sibling) if sibling.low.as_ref().is_some_and(|right| *right <= low) => {
                    return Err(self.contradiction(addr, Contradiction::LinkToTheLeft));
                }
                Ok(sibling) => sibling_low = sibling.low,
            }
        }
        let writes = F::finish(self, batch, (addr, leaf), sibling_low.as_ref()).await?;
        batch.clear();
        for (word, value) in writes {
            batch.write_word(addr.word_at(word), value);
        }
        self.post_commit(batch, addr, leaf);
        Ok(self.endpoint.execute(batch).await?)
    }

    /// The lower fence of a leaf whose lock this session has, which is not retired: it can be told.
    async fn own_low(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        leaf: &F::Buffer,
    ) -> Result<F::Low, LeafError> {
        let low = F::low(self, batch, (addr, F::words(leaf))).await?;
        low.ok_or(LeafError::Damaged {
            addr,
            table: self.table,
        })
    }

    /// Retires a locked leaf in favour of `successor`: link, then state, then unlock.
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

    /// State, then unlock.
    fn post_commit(&self, batch: &mut Batch, addr: RemoteAddr, leaf: &mut F::Buffer) {
        let state = self.geometry.seal(leaf, addr, self.table);
        batch.write_word(self.geometry.state_addr(addr), state);
        self.post_unlock(batch, addr);
    }

    /// Reads what never changes of a leaf that another one links to. It need not be intact as long
    /// as somebody holds it; one that nobody holds and that stays torn is damaged, and says
    /// nothing.
    async fn read_neighbour(
        &self,
        batch: &mut Batch,
        (from, addr): (RemoteAddr, RemoteAddr),
    ) -> Result<Neighbour<F::Low>, LeafError> {
        if self.layout.chunk_of(addr).is_none() {
            // The node may have joined since this process looked last.
            let members = self.layout.members();
            members.refresh(self.endpoint, self.layout).await?;
        }
        if self.layout.chunk_of(addr).is_none() {
            return Err(self.contradiction(from, Contradiction::LinkToNowhere));
        }
        let mut previous: Option<Vec<u64>> = None;
        for attempt in 0.. {
            batch.clear();
            let lock = batch.read(self.geometry.lock_addr(addr), 1);
            let read = batch.read(
                self.geometry.state_addr(addr),
                self.geometry.image_size_words(),
            );
            self.endpoint.execute(batch).await?;
            batch.cost_mut().leaves_read += 1;
            let owner = OwnerWord::from_word(batch.words(lock)[0]);
            let seen = batch.words(read).to_vec();
            if self.geometry.is_intact(&seen, addr, self.table) || !owner.is_free() {
                let link = link_of(&seen);
                let low = F::low(self, batch, (addr, &seen)).await?;
                return Ok(Neighbour { low, link });
            }
            // F2 orders neither READ: beside a living writer both may have been unlucky.
            if attempt >= DAMAGED_LOOK_COUNT && previous.as_ref() == Some(&seen) {
                return Err(LeafError::Damaged {
                    addr,
                    table: self.table,
                });
            }
            previous = Some(seen);
            backoff(attempt.min(8)).await;
        }
        unreachable!("there is always another attempt")
    }

    /// That a leaf contradicts another one.
    #[cold]
    pub fn contradiction(&self, addr: RemoteAddr, what: Contradiction) -> LeafError {
        LeafError::Contradiction {
            addr,
            table: self.table,
            what,
        }
    }
}
