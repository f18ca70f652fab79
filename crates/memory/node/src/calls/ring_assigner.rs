//! The agent's part of calls: assigns rings to sessions, and takes them back.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use farleaf_base::{Incarnation, OwnerWord, SessionId, TableId};
use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_pool::PoolError;
use farleaf_pool::allocation::ChunkRange;
use farleaf_pool::chunk::{ChunkPurpose, FreeLeaves};
use farleaf_pool::layout::ChunkIndex;
use farleaf_pool::session::{self, RINGS_REFUSED, rings_addr};

use super::ring_registry::{RingRegistry, SessionRings};
use super::server::TableServer;
use crate::sweep::MemoryMaintainer;

/// Assigner of rings, owned by one agent.
#[derive(Debug)]
pub struct RingAssigner {
    ring_registry: Arc<RingRegistry>,
    server: Arc<TableServer>,
    /// Count of ring requests when the sessions were last checked; `None` before the first check.
    seen_count: Cell<Option<u64>>,
    /// Whether the agent may own chunks that are neither registered nor assigned.
    has_orphans: Cell<bool>,
}

impl RingAssigner {
    /// Creates the assigner of an agent that starts.
    pub fn new(ring_registry: Arc<RingRegistry>, server: Arc<TableServer>) -> Self {
        Self {
            ring_registry,
            server,
            seen_count: Cell::default(),
            has_orphans: Cell::new(true),
        }
    }

    /// Records that the agent has taken over chunks of a dead agent.
    pub fn rescan(&self) {
        self.has_orphans.set(true);
    }

    /// Does the work that is due. Costs one round trip if there is none, and one more while there
    /// are tables.
    ///
    /// # Errors
    /// The fabric failed; the next call does the work again.
    pub async fn tick<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
    ) -> Result<(), PoolError> {
        let mut batch = Batch::new();
        let wished = batch.read(maintainer.layout.ring_request_count(), 1);
        let open = self.ring_registry.open();
        let lives: Vec<_> = open
            .iter()
            .map(|session_rings| {
                let life = session::life_of(&maintainer.layout, session_rings.owner);
                life.map(|(life, incarnation)| (batch.read(life, 1), incarnation))
            })
            .collect();
        maintainer.endpoint.execute(&mut batch).await?;
        let wished_count = batch.words(wished)[0];
        let mut lives = lives.into_iter();
        self.close(|_| {
            let life = lives.next().expect("one for each");
            life.is_none_or(|(read, incarnation)| {
                session::is_fenced(incarnation, batch.words(read)[0])
            })
        });
        self.take_back(maintainer).await?;
        if self.seen_count.get() != Some(wished_count) {
            self.answer_ring_requests(maintainer).await?;
            self.seen_count.set(Some(wished_count));
        }
        if self.has_orphans.get() {
            self.free_orphans(maintainer).await?;
            self.has_orphans.set(false);
        }
        self.server.remove_dropped(maintainer).await
    }

    /// Unregisters rings.
    fn close(&self, mut is_over: impl FnMut(&SessionRings) -> bool) {
        let mut places = self.ring_registry.places();
        let (over, open): (Vec<_>, Vec<_>) = places
            .open
            .drain(..)
            .partition(|session_rings| is_over(session_rings));
        places.open = open;
        if !over.is_empty() {
            places.closing.extend(over);
            self.ring_registry.note_change();
        }
    }

    /// Frees the rings that no thread holds any more.
    async fn take_back<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
    ) -> Result<(), PoolError> {
        loop {
            let session_rings = {
                let is_let_go = |session_rings: &Arc<SessionRings>| {
                    let endpoint = &maintainer.endpoint;
                    Arc::strong_count(session_rings) == 1
                        || endpoint.skips_check(ProtocolCheck::RingsAreReleased)
                };
                let mut places = self.ring_registry.places();
                let mut closing = places.closing.iter();
                let free = closing.position(is_let_go);
                // If the agent dies before the chunk is free, it leaves an orphan. If it died after
                // that and the rings were still listed here, they would be freed twice.
                free.map(|index| places.closing.swap_remove(index))
            };
            let Some(session_rings) = session_rings else {
                return Ok(());
            };
            // Writes of threads that held the rings happen before the chunk is zeroed.
            fence(Ordering::Acquire);
            self.server.drop_session(session_rings.owner);
            if let Err(error) = self.free(maintainer, session_rings.chunk).await {
                self.has_orphans.set(true);
                return Err(error);
            }
        }
    }

    async fn free<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
        chunk: ChunkIndex,
    ) -> Result<(), PoolError> {
        let allocator = maintainer.allocator();
        let range = ChunkRange::one(chunk);
        let free = FreeLeaves::default();
        let given = allocator.give_back(range, ChunkPurpose::Free, TableId(0), free);
        given.await
    }

    /// Answers requests for rings.
    async fn answer_ring_requests<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
    ) -> Result<(), PoolError> {
        let mut batch = Batch::new();
        let records =
            session::read_sessions(&maintainer.endpoint, &maintainer.layout, &mut batch).await?;
        for (session, record) in records {
            let Some((incarnation, reply_place)) = record.alive().zip(record.reply_place()) else {
                continue;
            };
            let owner = OwnerWord::new(session, incarnation);
            let chunk = match record.rings() {
                // Earlier there was no free chunk; there may be one now.
                None | Some(RINGS_REFUSED) => self.give(maintainer, session, incarnation).await?,
                // Assigned by an agent that has died since, or already registered.
                Some(word) => word.checked_sub(1),
            };
            let chunk_count = maintainer.layout.main_node().superblock.chunk_count;
            if let Some(number) = chunk.filter(|number| *number < chunk_count) {
                let chunk = ChunkIndex::new(maintainer.layout.main_node().node, number);
                self.put(SessionRings::new(
                    &maintainer.layout,
                    owner,
                    reply_place,
                    chunk,
                ));
            }
        }
        Ok(())
    }

    /// Assigns rings to a session and reports them to it; returns the number of their chunk, or
    /// `None` if there is no free chunk.
    async fn give<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
        session: SessionId,
        incarnation: Incarnation,
    ) -> Result<Option<u64>, PoolError> {
        // Until the assignment is reported, the chunk would be an orphan.
        let had_orphans = self.has_orphans.replace(true);
        let number = self.claim(maintainer).await?.map(ChunkIndex::number);
        let word = number.map_or(RINGS_REFUSED, |number| number + 1);
        let mut batch = Batch::new();
        let place = rings_addr(&maintainer.layout, session);
        // The incarnation for which the assignment holds is written last.
        batch.write_word(place, word);
        batch.write_word(place.offset(1), incarnation.number());
        maintainer.endpoint.execute(&mut batch).await?;
        self.has_orphans.set(had_orphans);
        Ok(number)
    }

    /// Registers rings, unless their session already has some.
    fn put(&self, session_rings: SessionRings) {
        let mut places = self.ring_registry.places();
        let mut open = places.open.iter();
        if open.any(|other| other.owner == session_rings.owner) {
            return;
        }
        tracing::debug!(owner = %session_rings.owner, "assigned call rings to a session");
        places.open.push(Arc::new(session_rings));
        self.ring_registry.note_change();
    }

    /// Claims a zeroed chunk; `None` if there is no free chunk.
    async fn claim<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
    ) -> Result<Option<ChunkIndex>, PoolError> {
        let allocator = maintainer.allocator();
        let allocator = allocator.taking_used_first();
        let claimed = allocator.claim(1, ChunkPurpose::Rings, TableId(0)).await;
        match claimed {
            Ok(range) => Ok(Some(range.first)),
            Err(PoolError::Full { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Frees chunks that a dead agent claimed and did not assign.
    async fn free_orphans<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
    ) -> Result<(), PoolError> {
        let allocator = maintainer.allocator();
        for (index, chunk) in allocator.entries().await?.iter() {
            let is_rings = chunk.purpose == Some(ChunkPurpose::Rings);
            if !is_rings || chunk.owner != maintainer.owner {
                continue;
            }
            let is_known = {
                let places = self.ring_registry.places();
                let mut known = places.open.iter().chain(&places.closing);
                known.any(|session_rings| session_rings.chunk == index)
            };
            if !is_known {
                self.free(maintainer, index).await?;
            }
        }
        Ok(())
    }
}
