//! One leaf through the fabric: reading it (D4), locking it (D5), waiting for who holds it.

use core::cell::Cell;

use farleaf_executor::backoff;
use farleaf_fabric::{Batch, BatchError, Endpoint, ProtocolCheck};
use farleaf_region::PoolLayout;
use farleaf_region::session;
use farleaf_types::{OwnerWord, RemoteAddr, TableId};

use crate::Critical;
use crate::LeafError;
use crate::change::LeafChange;
use crate::format::LeafFormat;
use crate::geometry::LeafGeometry;
use crate::image::{Glance, LeafImage, Placement, glance_size_words};

/// D4: so many torn reads before the lock is looked at.
const TORN_READ_COUNT_MAX: u32 = 8;
/// So many attempts at a lock before its owner's life is looked at, and between two such looks.
pub(crate) const LOCK_ATTEMPT_COUNT_PER_LOOK: u32 = 4;
/// D4: so many looks at a free lock over an unverifiable leaf before it is called damaged.
const DAMAGED_LOOK_COUNT: u32 = 16;

/// Everything needed to work on the leaves of one table in the name of one session.
#[derive(Debug)]
pub struct LeafAccess<'a, E, F = LeafGeometry> {
    /// The session's endpoint.
    pub endpoint: &'a E,
    /// The region that the leaves are in.
    pub layout: &'a PoolLayout,
    /// The leaves' shape.
    pub geometry: F,
    /// Whose leaves they are.
    pub table: TableId,
    /// In whose name locks are taken.
    pub owner: OwnerWord,
}

impl<E, F: Copy> Clone for LeafAccess<'_, E, F> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<E, F: Copy> Copy for LeafAccess<'_, E, F> {}

/// What became of one attempt at a lock.
enum Attempt {
    /// It is ours, and the leaf is intact.
    Locked,
    /// Who held it; nobody: it is ours, but the leaf is not intact.
    Failed(OwnerWord),
}

/// Whether nothing of a leaf is held any more after its lock was given back: it was, or its node is
/// lost with everything on it (U4).
pub(crate) fn is_over(given_back: &Result<(), BatchError>, addr: RemoteAddr) -> bool {
    match given_back {
        Ok(()) => true,
        Err(error) => error.lost_node() == Some(addr.node()),
    }
}

/// What one look at a leaf told about a key: an outcome, not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The key belongs here.
    Here,
    /// The key belongs to the right; the link.
    Right(RemoteAddr),
    /// The key belongs to the left: the hint was too far right.
    Left,
    /// The leaf was retired in favour of this one.
    Retired(RemoteAddr),
    /// The image is none: a write was under way.
    Torn,
}

impl<E: Endpoint> LeafAccess<'_, E> {
    /// The leaf as something to be changed.
    pub fn change(&self, addr: RemoteAddr) -> LeafChange {
        LeafChange {
            geometry: self.geometry,
            addr,
            table: self.table,
            next: OwnerWord::FREE,
        }
    }

    /// D4: what an image that was just read tells about a key.
    #[inline]
    pub fn look(&self, image: LeafImage<'_>, addr: RemoteAddr, key: u64) -> Look {
        if self.is_intact(image.words(), addr) {
            self.look_intact(image, key)
        } else {
            Look::Torn
        }
    }

    /// What an image that is known to be intact tells about a key.
    #[inline]
    pub fn look_intact(&self, image: LeafImage<'_>, key: u64) -> Look {
        if image.is_retired() && !self.endpoint.leaves_out(ProtocolCheck::LeafIsNotRetired) {
            return Look::Retired(image.link().place());
        }
        match image.placement(key) {
            Placement::Here => Look::Here,
            Placement::Right => Look::Right(image.link().place()),
            Placement::Left => Look::Left,
        }
    }

    /// Looks a key up in one leaf without batch, future and count: its value (`Ok`), or what the
    /// leaf tells instead (`Err`, never [`Look::Here`]). One round trip, one leaf, which the caller
    /// records. `None`: the endpoint does not read at once, and nothing has been read.
    #[inline]
    pub fn glance(&self, addr: RemoteAddr, key: u64) -> Option<Result<Option<u64>, Look>> {
        match self.geometry.slot_count() {
            8 => self.glance_of::<8, { glance_size_words(8) }>(addr, key),
            12 => self.glance_of::<12, { glance_size_words(12) }>(addr, key),
            _ => self.glance_of::<16, { glance_size_words(16) }>(addr, key),
        }
    }

    #[inline]
    fn glance_of<const SLOTS: usize, const WORDS: usize>(
        &self,
        addr: RemoteAddr,
        key: u64,
    ) -> Option<Result<Option<u64>, Look>> {
        let mut glance = Glance::<SLOTS, WORDS>::new();
        let state = self.geometry.state(addr);
        let is_read = self.endpoint.read_at_once(state, glance.image_mut());
        is_read.then(|| glance.get(addr, self.table, key))
    }
}

impl<E: Endpoint, F: LeafFormat> LeafAccess<'_, E, F> {
    /// D4.
    #[inline]
    pub fn is_intact(&self, image: &[u64], addr: RemoteAddr) -> bool {
        self.geometry.is_intact(image, addr, self.table)
            || self.endpoint.leaves_out(ProtocolCheck::LeafIsIntact)
    }

    /// Reads one leaf and returns an intact copy, retired or not. One round trip when nobody
    /// writes it. `broken` is as for [`lock`](Self::lock).
    ///
    /// # Errors
    /// [`LeafError::Damaged`], or the fabric failed.
    pub async fn read_intact(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        broken: &Cell<bool>,
    ) -> Result<F::Buffer, LeafError> {
        let mut attempt = 0;
        loop {
            batch.clear();
            let read = batch.read(
                self.geometry.state_addr(addr),
                self.geometry.image_size_words(),
            );
            self.endpoint.execute(batch).await?;
            batch.cost_mut().leaves_read += 1;
            let image = batch.words(read);
            if self.is_intact(image, addr) {
                return Ok(self.copy_of(image));
            }
            let after_torn = self.after_torn(batch, addr, &mut attempt, broken);
            if let Some(leaf) = after_torn.await? {
                return Ok(leaf);
            }
        }
    }

    /// D4: what to do after a torn read. `None`: read again. After a bounded number of torn reads
    /// the lock is looked at, and the leaf is recovered, waited for, or read under its lock.
    /// `broken` is as for [`lock`](Self::lock).
    ///
    /// # Errors
    /// [`LeafError::Damaged`], or the fabric failed.
    #[cold]
    pub async fn after_torn(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        attempt: &mut u32,
        broken: &Cell<bool>,
    ) -> Result<Option<F::Buffer>, LeafError> {
        batch.cost_mut().retries += 1;
        *attempt += 1;
        if *attempt < TORN_READ_COUNT_MAX {
            core::hint::spin_loop();
            return Ok(None);
        }
        // Reading under the lock is the only read that a stream of writers cannot keep torn.
        let mut leaf = self.blank();
        match self.lock(batch, addr, None, &mut leaf, broken).await {
            Ok(()) => {}
            Err(LeafError::Fabric(error)) if error.is_forbidden() => {
                return Box::pin(self.read_patiently(batch, addr)).await.map(Some);
            }
            Err(error) => return Err(error),
        }
        self.unlock(batch, addr, broken).await?;
        Ok(Some(leaf))
    }

    /// D4, for a session that may only read (F7): it waits until writers let it read, or somebody
    /// has recovered the leaf of one that died. A leaf that stays as it is, held by nobody, is
    /// damaged.
    async fn read_patiently(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
    ) -> Result<F::Buffer, LeafError> {
        let mut last = Vec::new();
        let mut still_count = 0;
        for attempt in 0.. {
            backoff(attempt).await;
            batch.clear();
            let lock = self.geometry.lock_addr(addr);
            let before = batch.read(lock, 1);
            let read = batch.read(
                self.geometry.state_addr(addr),
                self.geometry.image_size_words(),
            );
            let after = batch.read(lock, 1);
            self.endpoint.execute(batch).await?;
            batch.cost_mut().leaves_read += 1;
            batch.cost_mut().retries += 1;
            let words = batch.words(read);
            if self.is_intact(words, addr) {
                return Ok(self.copy_of(words));
            }
            let is_free = batch.words(before)[0] == 0 && batch.words(after)[0] == 0;
            if is_free && last == words {
                still_count += 1;
                if still_count >= DAMAGED_LOOK_COUNT {
                    break;
                }
            } else {
                still_count = 0;
                last.clear();
                last.extend_from_slice(words);
            }
        }
        Err(LeafError::Damaged {
            addr,
            table: self.table,
        })
    }

    /// Adds the WRITE that gives a lock back.
    #[inline]
    pub fn post_unlock(&self, batch: &mut Batch, addr: RemoteAddr) {
        batch.write_word(self.geometry.lock_addr(addr), OwnerWord::FREE.word());
    }

    /// Gives a lock back that this session holds. One round trip.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn unlock(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        broken: &Cell<bool>,
    ) -> Result<(), LeafError> {
        let critical = Critical::enter(broken);
        batch.clear();
        self.post_unlock(batch, addr);
        let unlocked = self.endpoint.execute(batch).await;
        if is_over(&unlocked, addr) {
            critical.passed();
        }
        Ok(unlocked?)
    }

    /// A leaf to be read into.
    #[inline]
    pub fn blank(&self) -> F::Buffer {
        self.geometry.blank()
    }

    /// A copy of an image.
    pub(crate) fn copy_of(&self, image: &[u64]) -> F::Buffer {
        let mut leaf = self.blank();
        self.geometry.assign(&mut leaf, image);
        leaf
    }

    /// D5: takes the lock of a leaf and reads it in the same batch, and gives the lock `release`
    /// back first. Waits for a living owner; recovers from a fenced one (D8). The image is intact;
    /// the leaf may be retired, and the key may belong elsewhere: that is for the caller to check.
    /// One round trip when the lock is free.
    ///
    /// `broken` is the session's: it is set when the future is dropped, or fails, while it may hold
    /// a lock. Dropping it while it waits for an owner does no harm. Once it has returned, the
    /// caller holds the lock, and enters a [`Critical`] of its own before it awaits anything.
    ///
    /// # Errors
    /// [`LeafError::Damaged`] or [`LeafError::Contradiction`]: the lock was given back, if it was
    /// had. [`LeafError::SessionBroken`]: another operation was cut off while this one waited. Or
    /// the fabric failed.
    #[inline]
    pub async fn lock(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        release: Option<RemoteAddr>,
        leaf: &mut F::Buffer,
        broken: &Cell<bool>,
    ) -> Result<(), LeafError> {
        batch.clear();
        if let Some(release) = release {
            if release.node() == addr.node() {
                self.post_unlock(batch, release);
            } else {
                // One of the two nodes may be lost, and the other's verb would count all the same.
                self.release_elsewhere(batch, release, broken).await?;
            }
        }
        match self.try_lock(batch, addr, leaf, broken).await? {
            Attempt::Locked => Ok(()),
            // Boxed: a future is as large as the largest one inside it.
            Attempt::Failed(owner) => {
                Box::pin(self.lock_slowly(batch, addr, owner, leaf, broken)).await
            }
        }
    }

    /// Gives a lock back before one on another node is asked for. A lock that is lost with its node
    /// (U4) is in nobody's way.
    #[cold]
    async fn release_elsewhere(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        broken: &Cell<bool>,
    ) -> Result<(), LeafError> {
        let unlocked = Box::pin(self.unlock(batch, addr, broken)).await;
        batch.clear();
        match unlocked {
            Err(error) if error.lost_node() == Some(addr.node()) => Ok(()),
            unlocked => unlocked,
        }
    }

    /// One attempt at [`lock`](Self::lock), that waits for nobody; false when somebody holds the
    /// lock, or the leaf is not intact. One round trip.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn lock_if_free(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        leaf: &mut F::Buffer,
        broken: &Cell<bool>,
    ) -> Result<bool, LeafError> {
        batch.clear();
        match self.try_lock(batch, addr, leaf, broken).await? {
            Attempt::Locked => Ok(true),
            Attempt::Failed(owner) => {
                if owner.is_free() {
                    self.unlock(batch, addr, broken).await?;
                }
                Ok(false)
            }
        }
    }

    /// One attempt. The leaf is read whether or not the lock was free.
    #[inline]
    async fn try_lock(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        leaf: &mut F::Buffer,
        broken: &Cell<bool>,
    ) -> Result<Attempt, LeafError> {
        let is_alone = batch.is_empty();
        let critical = Critical::enter(broken);
        let swap = batch.compare_swap(self.geometry.lock_addr(addr), 0, self.owner.word());
        let read = batch.read(
            self.geometry.state_addr(addr),
            self.geometry.image_size_words(),
        );
        if let Err(error) = self.endpoint.execute(batch).await {
            // F7: the swap was the first verb, and nothing of it took effect. U4: what this
            // session holds on a node that is lost is in nobody's way; what it gave back with the
            // same batch, on another node, is given back.
            if is_alone && error.is_forbidden() || error.lost_node() == Some(addr.node()) {
                critical.passed();
            }
            return Err(error.into());
        }
        // If the lock is ours now, nothing is awaited before the next critical time begins.
        critical.passed();
        batch.cost_mut().leaves_read += 1;
        let previous = OwnerWord::from_word(batch.previous(swap));
        let image = batch.words(read);
        if previous.is_free() && self.is_intact(image, addr) {
            self.geometry.assign(leaf, image);
            return Ok(Attempt::Locked);
        }
        Ok(Attempt::Failed(previous))
    }

    #[cold]
    async fn lock_slowly(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        first_owner: OwnerWord,
        leaf: &mut F::Buffer,
        broken: &Cell<bool>,
    ) -> Result<(), LeafError> {
        let mut owner = first_owner;
        let mut unverifiable_count = 0;
        for attempt in 0.. {
            if owner.is_free() {
                // Ours, and unverifiable: no leaf that anyone committed (D2).
                self.unlock(batch, addr, broken).await?;
                unverifiable_count += 1;
                if unverifiable_count >= DAMAGED_LOOK_COUNT {
                    break;
                }
            } else if attempt % LOCK_ATTEMPT_COUNT_PER_LOOK == LOCK_ATTEMPT_COUNT_PER_LOOK - 1
                && self.is_fenced(batch, owner).await?
            {
                // Boxed because it is rare. It waits for nobody, and holds no lock afterwards.
                Box::pin(self.recover(batch, addr, owner, broken)).await?;
            } else {
                backoff(attempt).await;
            }
            if broken.get() {
                return Err(LeafError::SessionBroken);
            }
            batch.cost_mut().retries += 1;
            batch.clear();
            match self.try_lock(batch, addr, leaf, broken).await? {
                Attempt::Locked => return Ok(()),
                Attempt::Failed(previous) => owner = previous,
            }
        }
        Err(LeafError::Damaged {
            addr,
            table: self.table,
        })
    }

    /// Whether an owner is fenced (rule S3 of the session blocks). One round trip.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn is_fenced(&self, batch: &mut Batch, owner: OwnerWord) -> Result<bool, LeafError> {
        Ok(session::is_owner_fenced(self.endpoint, self.layout, batch, owner).await?)
    }
}
