//! The session table, as the node maintains it.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use farleaf_base::locks::lock;
use farleaf_base::{Incarnation, NodeId, OwnerWord, SessionId};
use farleaf_executor::block_on;
use farleaf_fabric::SessionService;
use farleaf_fabric::mapped::{MappedEndpoint, MappedMemory};
use farleaf_fabric::{Batch, BatchError, Endpoint, SessionLife};
use farleaf_pool::session::{
    HEARTBEAT_DRAINED, SESSION_COUNT, SESSION_SIZE_WORDS, SessionRecord, alive_word, fenced_word,
    session_ids,
};
use farleaf_pool::{NodeLayout, Superblock};

use crate::NodeError;
use crate::endpoint::NodeEndpoint;

/// Event for the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentEvent {
    /// The session is fenced; it may hold locks or chunks.
    Fenced(OwnerWord),
    /// The node shuts down.
    Stop,
}

/// Registers and fences sessions in the memory's session table.
#[derive(Debug)]
pub struct Sessions<E = MappedEndpoint> {
    endpoint: E,
    layout: NodeLayout,
    events: Sender<AgentEvent>,
    /// Index at which the search for a free number continues, so that numbers are reused late.
    next_index: usize,
}

/// Formats fresh memory: writes its superblock. All other words are zero already, which means an
/// empty catalog, no sessions and no chunks in use.
///
/// # Errors
/// The memory is too small.
pub fn format_memory(memory: &Arc<MappedMemory>) -> Result<NodeLayout, NodeError> {
    let size_bytes = memory.word_count() * 8;
    let mut seed = [0; 8];
    // The number only has to differ from those of other memories. Zero is acceptable if the system
    // has no randomness.
    let _ = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty());
    let superblock = Superblock::new(size_bytes, u64::from_le_bytes(seed))?;
    let endpoint = MappedEndpoint::new(Arc::clone(memory));
    let mut batch = Batch::new();
    batch.write(NodeLayout::superblock_addr(NodeId(0)), &superblock.encode());
    endpoint.execute_now(&mut batch)?;
    Ok(NodeLayout {
        node: NodeId(0),
        superblock,
    })
}

impl<E: Endpoint> Sessions<E> {
    /// Creates the session table of a freshly formatted memory, accessed through the node's own
    /// endpoint. `events` receives the sessions that ended.
    pub fn new(endpoint: E, layout: NodeLayout, events: Sender<AgentEvent>) -> Self {
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

    /// Registers a session.
    ///
    /// # Errors
    /// All session numbers are in use, or the memory refused.
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

    /// Returns the life of a session, read from its block.
    ///
    /// # Errors
    /// The memory refused. The session's state is then unknown, and it must not be treated as
    /// fenced.
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

    /// Marks a session as fenced. The caller ensures that none of its verbs can take effect any
    /// more.
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
            // Without an agent, clients still recover the locks that they encounter.
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

    /// Returns the process of a session that is alive. A session whose block cannot be read counts
    /// as alive, in a process without a number.
    fn process_of(&mut self, owner: OwnerWord) -> Option<u32> {
        match self.life(owner) {
            Ok(SessionLife::Alive { pid }) => Some(pid),
            Ok(SessionLife::Fenced) => None,
            Err(error) => {
                tracing::error!(%owner, %error, "cannot determine whether a session is fenced");
                Some(0)
            }
        }
    }
}

/// Sessions shared by several listeners.
#[derive(Clone, Debug)]
pub(crate) struct SharedSessions(pub(crate) Arc<Mutex<Sessions<NodeEndpoint>>>);

impl SharedSessions {
    fn with<R>(&self, work: impl FnOnce(&mut Sessions<NodeEndpoint>) -> R) -> R {
        work(&mut lock(&self.0))
    }
}

impl SessionService for SharedSessions {
    fn register(&mut self, pid: u32) -> Result<OwnerWord, String> {
        self.with(|sessions| sessions.register(pid))
    }

    fn fence(&mut self, owner: OwnerWord) {
        self.with(|sessions| sessions.fence(owner));
    }

    fn process_of(&mut self, owner: OwnerWord) -> Option<u32> {
        self.with(|sessions| sessions.process_of(owner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const REGION_SIZE_BYTES: u64 = 4 << 20;

    /// Promise (FABRIC-6): a session whose block cannot be read is not treated as fenced.
    #[test]
    fn a_session_whose_block_cannot_be_read_is_not_taken_for_fenced() {
        let superblock = Superblock::new(REGION_SIZE_BYTES, 1).expect("large enough");
        let owner = OwnerWord::new(SessionId::new(1).expect("a number"), Incarnation::new(1));
        let sessions_of = |node| {
            let memory = MappedMemory::anonymous(REGION_SIZE_BYTES).expect("memory");
            Sessions::new(
                MappedEndpoint::new(Arc::new(memory)),
                NodeLayout { node, superblock },
                channel().0,
            )
        };
        let mut sessions = sessions_of(NodeId(0));
        assert_eq!(sessions.life(owner).ok(), Some(SessionLife::Fenced), "S3");
        assert_eq!(sessions.process_of(owner), None);
        // Memory of a node that does not exist cannot be read.
        let mut sessions = sessions_of(NodeId(1));
        assert!(sessions.life(owner).is_err());
        assert_eq!(sessions.process_of(owner), Some(0));
    }
}
