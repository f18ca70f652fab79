//! The session table, as the node keeps it (rules S1 to S3 of the session blocks).

use std::sync::Arc;
use std::sync::mpsc::Sender;

use farleaf_executor::block_on;
use farleaf_fabric::SessionService;
use farleaf_fabric::mapped::{MappedEndpoint, MappedRegion};
use farleaf_fabric::{Batch, BatchError, Endpoint, SessionLife};
use farleaf_region::session::{
    HEARTBEAT_DRAINED, SESSION_COUNT, SESSION_SIZE_WORDS, SessionRecord, alive_word, fenced_word,
    session_ids,
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
pub struct Sessions<E = MappedEndpoint> {
    endpoint: E,
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

impl<E: Endpoint> Sessions<E> {
    /// The table of a region that has just been made, through the node's own endpoint. `events`
    /// hears of sessions that ended.
    pub fn new(endpoint: E, layout: RegionLayout, events: Sender<AgentEvent>) -> Self {
        Self {
            endpoint,
            layout,
            events,
            next_index: 0,
        }
    }

    fn record(&self, session: SessionId) -> Result<SessionRecord, BatchError> {
        let mut batch = Batch::new();
        let read = batch.read(self.layout.session(session), SESSION_SIZE_WORDS);
        block_on(
            self.endpoint.execute(&mut batch),
            self.endpoint.completions(),
        )?;
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
            block_on(
                self.endpoint.execute(&mut batch),
                self.endpoint.completions(),
            )
            .map_err(refused)?;
            let incarnation = Incarnation::new(batch.previous(number) + 1);
            let block = self.layout.session(session);
            batch.clear();
            batch.write(block.offset(1), &[0, 0, 0, pid.into(), 0, 0, 0]);
            batch.write_word(block, alive_word(incarnation));
            block_on(
                self.endpoint.execute(&mut batch),
                self.endpoint.completions(),
            )
            .map_err(refused)?;
            return Ok(OwnerWord::new(session, incarnation));
        }
        Err(format!(
            "all {} sessions of this pool are in use",
            ids.len()
        ))
    }

    /// S3: whether a session is fenced, as its block says.
    ///
    /// # Errors
    /// The region refused: nobody can tell, and the session must not be taken for fenced.
    pub fn life(&self, owner: OwnerWord) -> Result<SessionLife, BatchError> {
        let Some((session, incarnation)) = owner.holder() else {
            return Ok(SessionLife::Fenced);
        };
        if u64::from(session.number()) >= SESSION_COUNT {
            return Ok(SessionLife::Fenced);
        }
        let record = self.record(session)?;
        Ok(if record.alive() == Some(incarnation) {
            SessionLife::Alive { pid: record.pid }
        } else {
            SessionLife::Fenced
        })
    }

    /// S2: says that a session is fenced. The caller knows that no verb of it can take effect.
    pub fn close(&mut self, owner: OwnerWord) {
        let Some((session, incarnation)) = owner.holder() else {
            return;
        };
        let record = match self.record(session) {
            Ok(record) => record,
            Err(error) => {
                tracing::error!(%owner, %error, "cannot fence a session: its block cannot be read");
                return;
            }
        };
        if record.alive() != Some(incarnation) {
            return;
        }
        let mut batch = Batch::new();
        batch.write_word(self.layout.session(session), fenced_word(incarnation));
        let written = block_on(
            self.endpoint.execute(&mut batch),
            self.endpoint.completions(),
        );
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

impl<E: Endpoint + Send> SessionService for Sessions<E> {
    fn register(&mut self, pid: u32) -> Result<OwnerWord, String> {
        let owner = self.open(pid)?;
        tracing::debug!(%owner, pid, "session registered");
        Ok(owner)
    }

    fn fence(&mut self, owner: OwnerWord) {
        self.close(owner);
    }

    /// Of a session whose block cannot be read, nobody can tell that it is fenced: it counts as
    /// alive, in a process without number.
    fn process_of(&mut self, owner: OwnerWord) -> Option<u32> {
        match self.life(owner) {
            Ok(SessionLife::Alive { pid }) => Some(pid),
            Ok(SessionLife::Fenced) => None,
            Err(error) => {
                tracing::error!(%owner, %error, "cannot tell whether a session is fenced");
                Some(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const REGION_SIZE_BYTES: u64 = 4 << 20;

    /// F6: who cannot be looked at is not fenced.
    #[test]
    fn a_session_whose_block_cannot_be_read_is_not_taken_for_fenced() {
        let superblock = Superblock::new(REGION_SIZE_BYTES, 1).expect("large enough");
        let owner = OwnerWord::new(SessionId::new(1).expect("a number"), Incarnation::new(1));
        let sessions_of = |node| {
            let region = MappedRegion::anonymous(REGION_SIZE_BYTES).expect("memory");
            Sessions::new(
                MappedEndpoint::new(Arc::new(region)),
                RegionLayout { node, superblock },
                channel().0,
            )
        };
        let mut sessions = sessions_of(NodeId(0));
        assert_eq!(sessions.life(owner).ok(), Some(SessionLife::Fenced), "S3");
        assert_eq!(sessions.process_of(owner), None);
        // Of a node that the pool does not have, nothing can be read.
        let mut sessions = sessions_of(NodeId(1));
        assert!(sessions.life(owner).is_err());
        assert_eq!(sessions.process_of(owner), Some(0));
    }
}
