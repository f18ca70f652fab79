//! The agent's part: gives rings to sessions, and takes them back (J1, J2, J4).

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_region::RegionError;
use farleaf_region::allocation::{ChunkAllocator, ChunkRange};
use farleaf_region::chunk::{ChunkPurpose, FreeLeaves};
use farleaf_region::layout::ChunkIndex;
use farleaf_region::session::{self, RINGS_REFUSED, rings_addr};
use farleaf_types::{Incarnation, OwnerWord, SessionId, TableId};

use super::desk::{Desk, Line};
use super::server::TableServer;
use crate::sweep::Keeper;

/// One agent's.
#[derive(Debug)]
pub struct Receptionist {
    desk: Arc<Desk>,
    server: Arc<TableServer>,
    /// How many wishes there were when the sessions were asked last; `None`: they were not yet.
    seen_count: Cell<Option<u64>>,
    /// Chunks may be the agent's of which nobody knows (J4).
    has_orphans: Cell<bool>,
}

impl Receptionist {
    /// Of an agent that begins.
    pub fn new(desk: Arc<Desk>, server: Arc<TableServer>) -> Self {
        Self {
            desk,
            server,
            seen_count: Cell::default(),
            has_orphans: Cell::new(true),
        }
    }

    /// The agent has taken over what a dead one held.
    pub fn look_again(&self) {
        self.has_orphans.set(true);
    }

    /// What is due. One round trip while there is nothing, and one more while there are tables.
    ///
    /// # Errors
    /// The fabric failed; it is done again with the next one.
    pub async fn tick<E: Endpoint>(&self, keeper: &Keeper<E>) -> Result<(), RegionError> {
        let mut batch = Batch::new();
        let wished = batch.read(keeper.layout.rings_wanted(), 1);
        let open = self.desk.open();
        let lives: Vec<_> = open
            .iter()
            .map(|line| {
                let life = session::life_of(&keeper.layout, line.owner);
                life.map(|(life, incarnation)| (batch.read(life, 1), incarnation))
            })
            .collect();
        keeper.endpoint.execute(&mut batch).await?;
        let wished_count = batch.words(wished)[0];
        let mut lives = lives.into_iter();
        self.close(|_| {
            let life = lives.next().expect("one for each");
            life.is_none_or(|(read, incarnation)| {
                session::is_fenced(incarnation, batch.words(read)[0])
            })
        });
        self.take_back(keeper).await?;
        if self.seen_count.get() != Some(wished_count) {
            self.answer_wishes(keeper).await?;
            self.seen_count.set(Some(wished_count));
        }
        if self.has_orphans.get() {
            self.free_orphans(keeper).await?;
            self.has_orphans.set(false);
        }
        self.server.forget_dropped(keeper).await
    }

    /// J2: takes lines off the desk.
    fn close(&self, mut is_over: impl FnMut(&Line) -> bool) {
        let mut places = self.desk.places();
        let (over, open): (Vec<_>, Vec<_>) = places.open.drain(..).partition(|line| is_over(line));
        places.open = open;
        if !over.is_empty() {
            places.closing.extend(over);
            self.desk.note_change();
        }
    }

    /// J2: the rings that nobody holds any more.
    async fn take_back<E: Endpoint>(&self, keeper: &Keeper<E>) -> Result<(), RegionError> {
        loop {
            let line = {
                let is_let_go = |line: &Arc<Line>| {
                    let endpoint = &keeper.endpoint;
                    Arc::strong_count(line) == 1
                        || endpoint.leaves_out(ProtocolCheck::RingsAreLetGo)
                };
                let mut places = self.desk.places();
                let mut closing = places.closing.iter();
                let free = closing.position(is_let_go);
                // J4: an agent that dies before they are free leaves an orphan; one that died
                // after that, and had left them here, would have them freed again.
                free.map(|index| places.closing.swap_remove(index))
            };
            let Some(line) = line else {
                return Ok(());
            };
            // What those who have let go of it wrote comes before it is zeroed.
            fence(Ordering::Acquire);
            self.server.forget_session(line.owner);
            if let Err(error) = self.free(keeper, line.chunk).await {
                self.has_orphans.set(true);
                return Err(error);
            }
        }
    }

    async fn free<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        chunk: ChunkIndex,
    ) -> Result<(), RegionError> {
        let allocator = ChunkAllocator::new(&keeper.endpoint, &keeper.layout, keeper.owner);
        let range = ChunkRange {
            first: chunk,
            count: 1,
        };
        let free = FreeLeaves::default();
        let given = allocator.give_back(range, ChunkPurpose::Free, TableId(0), free);
        given.await
    }

    /// S5.
    async fn answer_wishes<E: Endpoint>(&self, keeper: &Keeper<E>) -> Result<(), RegionError> {
        let mut batch = Batch::new();
        let records = session::read_sessions(&keeper.endpoint, &keeper.layout, &mut batch).await?;
        for (session, record) in records {
            let Some((incarnation, wish)) = record.alive().zip(record.wish()) else {
                continue;
            };
            let owner = OwnerWord::new(session, incarnation);
            let chunk = match record.rings() {
                // S5: there may be room by now.
                None | Some(RINGS_REFUSED) => self.give(keeper, (session, incarnation)).await?,
                // J4: told by an agent that has died since, or on the desk.
                Some(word) => word.checked_sub(1),
            };
            let chunk_count = keeper.layout.home().superblock.chunk_count;
            if let Some(number) = chunk.filter(|number| *number < chunk_count) {
                let chunk = ChunkIndex::new(keeper.layout.home().node, number);
                self.put(Line::new(&keeper.layout, (owner, wish), chunk));
            }
        }
        Ok(())
    }

    /// Gives a session rings, and tells it: the number of their chunk; `None`: there is no room.
    async fn give<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        (session, incarnation): (SessionId, Incarnation),
    ) -> Result<Option<u64>, RegionError> {
        // J4: until it is told, nobody knows of the chunk.
        let had_orphans = self.has_orphans.replace(true);
        let number = self.claim(keeper).await?.map(ChunkIndex::number);
        let word = number.map_or(RINGS_REFUSED, |number| number + 1);
        let mut batch = Batch::new();
        let place = rings_addr(&keeper.layout, session);
        // S5: for whom it is, last.
        batch.write_word(place, word);
        batch.write_word(place.offset(1), incarnation.number());
        keeper.endpoint.execute(&mut batch).await?;
        self.has_orphans.set(had_orphans);
        Ok(number)
    }

    /// Puts a line on the desk, if its session has none there.
    fn put(&self, line: Line) {
        let mut places = self.desk.places();
        let mut open = places.open.iter();
        if open.any(|other| other.owner == line.owner) {
            return;
        }
        tracing::debug!(owner = %line.owner, "a session can make calls");
        places.open.push(Arc::new(line));
        self.desk.note_change();
    }

    /// A chunk of zeros (A4); `None`: there is no room.
    async fn claim<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
    ) -> Result<Option<ChunkIndex>, RegionError> {
        let allocator = ChunkAllocator::new(&keeper.endpoint, &keeper.layout, keeper.owner);
        let allocator = allocator.taking_used_first();
        let claimed = allocator.claim(1, ChunkPurpose::Rings, TableId(0)).await;
        match claimed {
            Ok(range) => Ok(Some(range.first)),
            Err(RegionError::Full { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// J4.
    async fn free_orphans<E: Endpoint>(&self, keeper: &Keeper<E>) -> Result<(), RegionError> {
        let allocator = ChunkAllocator::new(&keeper.endpoint, &keeper.layout, keeper.owner);
        for (index, chunk) in allocator.entries().await?.iter() {
            let is_rings = chunk.purpose == Some(ChunkPurpose::Rings);
            if !is_rings || chunk.owner != keeper.owner {
                continue;
            }
            let is_known = {
                let places = self.desk.places();
                let mut known = places.open.iter().chain(&places.closing);
                known.any(|line| line.chunk == index)
            };
            if !is_known {
                self.free(keeper, index).await?;
            }
        }
        Ok(())
    }
}
