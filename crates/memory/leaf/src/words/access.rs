//! Access to one leaf through the fabric: reading it (LEAF-4), locking it (LEAF-5), and waiting for
//! its owner.

use core::cell::Cell;

use farleaf_base::{OwnerWord, RemoteAddr, TableId};
use farleaf_executor::backoff;
use farleaf_fabric::{Batch, BatchError, Endpoint, ProtocolCheck, ReadSlot};
use farleaf_pool::PoolLayout;
use farleaf_pool::session;

use crate::words::Critical;
use crate::words::LeafError;
use crate::words::change::LeafChange;
use crate::words::format::LeafFormat;
use crate::words::geometry::LeafGeometry;
use crate::words::image::{KeyPlacement, LeafImage, LeafProbe, probe_size_words};

/// Number of torn reads before the lock is checked (LEAF-4).
const TORN_READ_COUNT_MAX: u32 = 8;
/// Number of attempts at a lock before its owner's liveness is checked, and between such checks.
pub(crate) const LOCK_ATTEMPT_COUNT_PER_LIVENESS_CHECK: u32 = 4;
/// Number of checks of a free lock over an unverifiable leaf before the leaf counts as corrupted
/// (LEAF-4).
const CORRUPTION_CHECK_COUNT: u32 = 16;

/// Context for operations on the leaves of one table by one session.
#[derive(Debug)]
pub struct LeafAccess<'a, E, F = LeafGeometry> {
    /// Endpoint of the session.
    pub endpoint: &'a E,
    /// Layout of the pool that holds the leaves.
    pub layout: &'a PoolLayout,
    /// Shape of the leaves.
    pub geometry: F,
    /// Table of the leaves.
    pub table: TableId,
    /// Owner word of the session, written to locks that it takes.
    pub owner: OwnerWord,
}

impl<E, F: Copy> Clone for LeafAccess<'_, E, F> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<E, F: Copy> Copy for LeafAccess<'_, E, F> {}

/// Result of one attempt to lock.
enum LockAttempt {
    /// This session holds the lock, and the leaf is intact.
    Locked,
    /// The previous owner holds the lock; or, if free, this session holds it but the leaf is not
    /// intact.
    Failed(OwnerWord),
}

/// Returns whether a release left nothing locked: it succeeded, or the leaf's node is lost.
pub(crate) fn is_over(given_back: &Result<(), BatchError>, addr: RemoteAddr) -> bool {
    match given_back {
        Ok(()) => true,
        Err(error) => error.lost_node() == Some(addr.node()),
    }
}

/// Result of checking a leaf image for a key; an outcome, not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafCheck {
    /// The leaf covers the key.
    Here,
    /// The key belongs to the right; holds the link.
    Right(RemoteAddr),
    /// The key belongs to the left: the hint was too far right.
    Left,
    /// The leaf was retired in favor of this one.
    Retired(RemoteAddr),
    /// The image is not intact: a write was in progress.
    Torn,
}

impl<E: Endpoint> LeafAccess<'_, E> {
    /// Starts a change of the leaf.
    pub fn change(&self, addr: RemoteAddr) -> LeafChange {
        LeafChange {
            geometry: self.geometry,
            addr,
            table: self.table,
            next: OwnerWord::FREE,
        }
    }

    /// Checks an image that was just read, for a key (LEAF-4).
    #[inline]
    pub fn look(&self, image: LeafImage<'_>, addr: RemoteAddr, key: u64) -> LeafCheck {
        if self.is_intact(image.words(), addr) {
            self.check_intact(image, key)
        } else {
            LeafCheck::Torn
        }
    }

    /// Checks an image that is known to be intact, for a key.
    #[inline]
    pub fn check_intact(&self, image: LeafImage<'_>, key: u64) -> LeafCheck {
        if image.is_retired() && !self.endpoint.skips_check(ProtocolCheck::LeafIsNotRetired) {
            return LeafCheck::Retired(image.link().place());
        }
        match image.placement(key) {
            KeyPlacement::Here => LeafCheck::Here,
            KeyPlacement::Right => LeafCheck::Right(image.link().place()),
            KeyPlacement::Left => LeafCheck::Left,
        }
    }

    /// Looks up a key in one leaf without batch, future and counters. Returns its value (`Ok`), or
    /// what the leaf shows instead (`Err`, never [`LeafCheck::Here`]). Returns `None`, without
    /// reading, if the endpoint cannot read at once. Costs one round trip and one leaf, which the
    /// caller counts.
    #[inline]
    pub fn probe(&self, addr: RemoteAddr, key: u64) -> Option<Result<Option<u64>, LeafCheck>> {
        match self.geometry.slot_count() {
            8 => self.probe_of::<8, { probe_size_words(8) }>(addr, key),
            12 => self.probe_of::<12, { probe_size_words(12) }>(addr, key),
            _ => self.probe_of::<16, { probe_size_words(16) }>(addr, key),
        }
    }

    #[inline]
    fn probe_of<const SLOTS: usize, const WORDS: usize>(
        &self,
        addr: RemoteAddr,
        key: u64,
    ) -> Option<Result<Option<u64>, LeafCheck>> {
        let mut probe = LeafProbe::<SLOTS, WORDS>::new();
        let state = self.geometry.state(addr);
        let is_read = self.endpoint.read_at_once(state, probe.image_mut());
        is_read.then(|| probe.get(addr, self.table, key))
    }
}

impl<E: Endpoint, F: LeafFormat> LeafAccess<'_, E, F> {
    /// Returns whether an image is intact (LEAF-4).
    #[inline]
    pub fn is_intact(&self, image: &[u64], addr: RemoteAddr) -> bool {
        self.geometry.is_intact(image, addr, self.table)
            || self.endpoint.skips_check(ProtocolCheck::LeafIsIntact)
    }

    /// Posts the READ of a leaf's image.
    #[inline]
    pub(crate) fn post_image(&self, batch: &mut Batch, addr: RemoteAddr) -> ReadSlot {
        batch.read(
            self.geometry.state_addr(addr),
            self.geometry.image_size_words(),
        )
    }

    /// Creates the error of a corrupted leaf.
    #[cold]
    pub(crate) fn damaged(&self, addr: RemoteAddr) -> LeafError {
        LeafError::Damaged {
            addr,
            table: self.table,
        }
    }

    /// Reads one leaf and returns an intact copy, retired or not. Costs one round trip if no
    /// session is writing to the leaf. `broken` is as for [`lock`](Self::lock).
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
            let read = self.post_image(batch, addr);
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

    /// Handles a torn read (LEAF-4). Returns `None` if the caller must read again. After a bounded
    /// number of torn reads it checks the lock, and recovers the leaf, waits for the owner, or
    /// reads the leaf under its lock. `broken` is as for [`lock`](Self::lock).
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
        // Only a read under the lock cannot be torn by a stream of writers.
        let mut leaf = self.blank();
        match self.lock(batch, addr, None, &mut leaf, broken).await {
            Ok(()) => {}
            Err(LeafError::Fabric(error)) if error.is_forbidden() => {
                return Box::pin(self.read_with_backoff(batch, addr))
                    .await
                    .map(Some);
            }
            Err(error) => return Err(error),
        }
        self.unlock(batch, addr, broken).await?;
        Ok(Some(leaf))
    }

    /// Handles torn reads for a session with read-only rights (FABRIC-7). It waits until writers
    /// pause, or until another session has recovered a dead owner's leaf (LEAF-4). A torn leaf that
    /// does not change and is not locked is corrupted.
    async fn read_with_backoff(
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
            let read = self.post_image(batch, addr);
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
                if still_count >= CORRUPTION_CHECK_COUNT {
                    break;
                }
            } else {
                still_count = 0;
                last.clear();
                last.extend_from_slice(words);
            }
        }
        Err(self.damaged(addr))
    }

    /// Adds the WRITE that releases a lock.
    #[inline]
    pub fn post_unlock(&self, batch: &mut Batch, addr: RemoteAddr) {
        batch.write_word(self.geometry.lock_addr(addr), OwnerWord::FREE.word());
    }

    /// Releases a lock that this session holds. One round trip.
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

    /// Returns a buffer for a leaf.
    #[inline]
    pub fn blank(&self) -> F::Buffer {
        self.geometry.blank()
    }

    /// Copies an image.
    pub(crate) fn copy_of(&self, image: &[u64]) -> F::Buffer {
        let mut leaf = self.blank();
        self.geometry.assign(&mut leaf, image);
        leaf
    }

    /// Locks a leaf and reads it in the same batch (LEAF-5), after releasing the lock `release`.
    /// Waits for a live owner; recovers the lock of a fenced one (LEAF-8). The image is intact, but
    /// the leaf may be retired or not cover the key: the caller must check. One round trip if the
    /// lock is free.
    ///
    /// `broken` is the session's flag. It is set if the future is dropped or fails while it may
    /// hold a lock. Dropping the future while it waits for an owner is harmless. When it has
    /// returned, the caller holds the lock, and must enter a [`Critical`] of its own before
    /// awaiting anything.
    ///
    /// # Errors
    /// [`LeafError::Damaged`] or [`LeafError::Contradiction`]: the lock, if taken, was released.
    /// [`LeafError::SessionBroken`]: another operation was interrupted while this one waited.
    /// Otherwise, the fabric failed.
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
                // One of the two nodes may be lost, and the other one's verb would take effect all
                // the same.
                self.release_elsewhere(batch, release, broken).await?;
            }
        }
        match self.try_lock(batch, addr, leaf, broken).await? {
            LockAttempt::Locked => Ok(()),
            // Boxed: a future is as large as the largest one inside it.
            LockAttempt::Failed(owner) => {
                Box::pin(self.lock_slowly(batch, addr, owner, leaf, broken)).await
            }
        }
    }

    /// Releases a lock before locking a leaf on another node. A lock on a lost node blocks nobody.
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

    /// Attempts [`lock`](Self::lock) once, without waiting. Returns false if the lock is held or
    /// the leaf is not intact. One round trip.
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
            LockAttempt::Locked => Ok(true),
            LockAttempt::Failed(owner) => {
                if owner.is_free() {
                    self.unlock(batch, addr, broken).await?;
                }
                Ok(false)
            }
        }
    }

    /// Attempts to lock once. Reads the leaf whether or not the lock was free.
    #[inline]
    async fn try_lock(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        leaf: &mut F::Buffer,
        broken: &Cell<bool>,
    ) -> Result<LockAttempt, LeafError> {
        let is_alone = batch.is_empty();
        let critical = Critical::enter(broken);
        let swap = batch.compare_swap(self.geometry.lock_addr(addr), 0, self.owner.word());
        let read = self.post_image(batch, addr);
        if let Err(error) = self.endpoint.execute(batch).await {
            // FABRIC-7: the swap was the first verb, so nothing took effect. A lock on a lost node
            // blocks nobody, and a lock on another node that the same batch released is released.
            if is_alone && error.is_forbidden() || error.lost_node() == Some(addr.node()) {
                critical.passed();
            }
            return Err(error.into());
        }
        // If this session holds the lock now, nothing is awaited before the next critical time
        // begins.
        critical.passed();
        batch.cost_mut().leaves_read += 1;
        let previous = OwnerWord::from_word(batch.previous(swap));
        let image = batch.words(read);
        if previous.is_free() && self.is_intact(image, addr) {
            self.geometry.assign(leaf, image);
            return Ok(LockAttempt::Locked);
        }
        Ok(LockAttempt::Failed(previous))
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
                // Locked by this session but unverifiable: not a committed leaf (LEAF-2).
                self.unlock(batch, addr, broken).await?;
                unverifiable_count += 1;
                if unverifiable_count >= CORRUPTION_CHECK_COUNT {
                    break;
                }
            } else if attempt % LOCK_ATTEMPT_COUNT_PER_LIVENESS_CHECK
                == LOCK_ATTEMPT_COUNT_PER_LIVENESS_CHECK - 1
                && self.is_fenced(batch, owner).await?
            {
                // Boxed because it is rare. Recovery waits for no lock and holds none afterwards.
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
                LockAttempt::Locked => return Ok(()),
                LockAttempt::Failed(previous) => owner = previous,
            }
        }
        Err(self.damaged(addr))
    }

    /// Returns whether an owner is fenced, according to its session block. One round trip.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn is_fenced(&self, batch: &mut Batch, owner: OwnerWord) -> Result<bool, LeafError> {
        Ok(session::is_owner_fenced(self.endpoint, self.layout, batch, owner).await?)
    }
}
