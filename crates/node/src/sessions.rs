//! The session table, as the node keeps it (rules S1 to S3 of the session blocks).

use std::sync::Arc;
use std::sync::mpsc::Sender;

use farleaf_executor::block_on;
use farleaf_fabric::mapped::{MappedEndpoint, MappedRegion};
use farleaf_fabric::shm::SessionService;
use farleaf_fabric::{Batch, BatchError, Endpoint};
use farleaf_region::session::{
    HEARTBEAT_DRAINED, SESSION_SIZE_WORDS, SessionRecord, alive_word, fenced_word, session_ids,
};
use farleaf_region::{RegionLayout, Superblock};
use farleaf_types::{Incarnation, NodeId, OwnerWord, SessionId};

use crate::NodeError;

/// What the agent is told when a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentEvent {
    /// The session is fenced; it may have held something.
    Fenced(OwnerWord),
    /// The node stops.
    Stop,
}

/// Registers and fences sessions in the region's session table.
#[derive(Debug)]
pub struct Sessions {
    endpoint: MappedEndpoint,
    layout: RegionLayout,
    events: Sender<AgentEvent>,
    /// Where the search for a free number goes on, so that numbers are reused late.
    next_index: usize,
}

/// Makes a fresh region: writes its superblock. All other words are zero already, which is an empty
/// catalog, no session and no chunk handed out.
///
/// # Errors
/// The region is too small.
pub fn format_region(region: &Arc<MappedRegion>) -> Result<RegionLayout, NodeError> {
    let size_bytes = region.word_count() * 8;
    let mut seed = [0; 8];
    // A region's number only has to differ from those of other regions; zero is as good as any if
    // the system has no randomness left.
    let _ = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty());
    let superblock = Superblock::new(size_bytes, u64::from_le_bytes(seed))?;
    let endpoint = MappedEndpoint::new(Arc::clone(region));
    let mut batch = Batch::new();
    batch.write(
        RegionLayout::superblock_addr(NodeId(0)),
        &superblock.encode(),
    );
    endpoint.execute_now(&mut batch)?;
    Ok(RegionLayout {
        node: NodeId(0),
        superblock,
    })
}

impl Sessions {
    /// The table of a region that has just been made. `events` hears of sessions that ended.
    pub fn new(
        region: Arc<MappedRegion>,
        layout: RegionLayout,
        events: Sender<AgentEvent>,
    ) -> Self {
        Self {
            endpoint: MappedEndpoint::new(region),
            layout,
            events,
            next_index: 0,
        }
    }

    fn record(&self, session: SessionId) -> Result<SessionRecord, BatchError> {
        let mut batch = Batch::new();
        let read = batch.read(self.layout.session(session), SESSION_SIZE_WORDS);
        block_on(self.endpoint.execute(&mut batch), || 0)?;
        let mut words = [0; SESSION_SIZE_WORDS];
        words.copy_from_slice(batch.words(read));
        Ok(SessionRecord::decode(&words))
    }

    /// Brings a session to life: S1.
    ///
    /// # Errors
    /// All numbers are in use, or the region refused.
    pub fn open(&mut self, pid: u32) -> Result<OwnerWord, String> {
        let refused = |error: BatchError| error.to_string();
        let ids: Vec<SessionId> = session_ids().collect();
        for step in 0..ids.len() {
            let index = (self.next_index + step) % ids.len();
            let session = ids[index];
            if self.record(session).map_err(refused)?.alive().is_some() {
                continue;
            }
            self.next_index = index + 1;
            let mut batch = Batch::new();
            let number = batch.fetch_add(self.layout.incarnation_num(), 1);
            block_on(self.endpoint.execute(&mut batch), || 0).map_err(refused)?;
            let incarnation = Incarnation::new(batch.previous(number) + 1);
            let block = self.layout.session(session);
            batch.clear();
            batch.write(block.offset(1), &[0, 0, pid.into()]);
            batch.write_word(block, alive_word(incarnation));
            block_on(self.endpoint.execute(&mut batch), || 0).map_err(refused)?;
            return Ok(OwnerWord::new(session, incarnation));
        }
        Err(format!(
            "all {} sessions of this pool are in use",
            ids.len()
        ))
    }

    /// S2: says that a session is fenced. The caller knows that no verb of it can take effect.
    pub fn close(&mut self, owner: OwnerWord) {
        let Some((session, incarnation)) = owner.holder() else {
            return;
        };
        let Ok(record) = self.record(session) else {
            return;
        };
        if record.alive() != Some(incarnation) {
            return;
        }
        let mut batch = Batch::new();
        batch.write_word(self.layout.session(session), fenced_word(incarnation));
        let written = block_on(self.endpoint.execute(&mut batch), || 0);
        if let Err(error) = written {
            tracing::error!(%owner, %error, "cannot fence a session");
            return;
        }
        let drained = record.heartbeat == HEARTBEAT_DRAINED;
        tracing::debug!(%owner, pid = record.pid, drained, "session fenced");
        if !drained {
            // Without an agent, clients still recover what they meet.
            let _ = self.events.send(AgentEvent::Fenced(owner));
        }
    }
}

impl SessionService for Sessions {
    fn register(&mut self, pid: u32) -> Result<OwnerWord, String> {
        let owner = self.open(pid)?;
        tracing::debug!(%owner, pid, "session registered");
        Ok(owner)
    }

    fn fence(&mut self, owner: OwnerWord) {
        self.close(owner);
    }

    fn process_of(&mut self, owner: OwnerWord) -> Option<u32> {
        let (session, incarnation) = owner.holder()?;
        let record = self.record(session).ok()?;
        (record.alive() == Some(incarnation)).then_some(record.pid)
    }
}
