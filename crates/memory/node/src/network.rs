//! The node's door to the network: the `tcp` backend's.

use core::ops::Range;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use farleaf_fabric::mapped::MappedRegion;
use farleaf_fabric::tcp::{
    Grant, JoinRequest, Joined, MemberReply, Pass, Rights, TcpListenOptions, TcpListener,
    TcpService,
};
use farleaf_fabric::verbs::VerbsNode;
use farleaf_fabric::{Doors, SessionService, StopSignal};
use farleaf_region::RegionLayout;
use farleaf_region::catalog::{TABLE_COUNT_MAX, root_addr};
use farleaf_region::layout::ChunkIndex;
use farleaf_region::session::{heartbeat_addr, wants_rings_addr};
use farleaf_types::{BLOCK_SIZE_WORDS, NodeId, OwnerWord, WordAddr};

use crate::NodeError;
use crate::members::{FencingThread, GuestState, PoolHome};
use crate::shm::SharedSessions;

/// A listener at work; stopped when dropped.
#[derive(Debug)]
pub(crate) struct NetworkDoor {
    pub(crate) address: SocketAddr,
    stop: StopSignal,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl NetworkDoor {
    /// Listens, and serves from threads of its own until it is dropped or `stop` is heard.
    pub(crate) fn open(
        region: &Arc<MappedRegion>,
        role: Role,
        layout: RegionLayout,
        options: &TcpListenOptions,
        (verbs, doors): (Option<Arc<VerbsNode>>, Option<Arc<Doors>>),
        stop: StopSignal,
    ) -> Result<Self, NodeError> {
        let mut listener = TcpListener::bind(region, options)?;
        if let Some(verbs) = verbs {
            listener.offer_verbs(verbs);
        }
        if let Some(doors) = doors {
            listener.offer_windows(doors);
        }
        if let Role::Home { home, .. } = &role {
            home.give_pass_key(listener.pass_key(home.pool_id()));
        }
        let address = listener.address();
        let heard = stop.clone();
        // Nobody reaches such a node in another way; its process ends, and is started again.
        let end = EndOfNode((!matches!(role, Role::Alone(_))).then(|| stop.clone()));
        let mut service = NetworkService { role, layout };
        let thread = std::thread::Builder::new().name("farleaf-tcp".to_owned());
        let thread = thread
            .spawn(move || {
                let _end = end;
                let served = listener.run(&mut service, &heard);
                if let Err(error) = &served {
                    tracing::error!(%error, "the network is not served any more");
                }
                served
            })
            .map_err(NodeError::Thread)?;
        Ok(Self {
            address,
            stop,
            thread: Some(thread),
        })
    }
}

impl NetworkDoor {
    /// Waits until it has been stopped.
    ///
    /// # Errors
    /// The listener could not go on.
    pub(crate) fn wait(&mut self) -> Result<(), NodeError> {
        match self.thread.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(error))) => Err(NodeError::Thread(error)),
            Some(Err(_)) => Err(NodeError::Thread(std::io::Error::other(
                "the network's listener panicked",
            ))),
        }
    }
}

/// Stops a node when it is dropped, by a panic, too.
struct EndOfNode(Option<StopSignal>);

impl Drop for EndOfNode {
    fn drop(&mut self) {
        if let Some(stop) = &self.0 {
            stop.stop();
        }
    }
}

impl Drop for NetworkDoor {
    fn drop(&mut self) {
        self.stop.stop();
        if let Err(error) = self.wait() {
            tracing::error!(%error, "the network's listener did not stop cleanly");
        }
    }
}

/// What a node is to its pool.
pub(crate) enum Role {
    /// All of it.
    Alone(SharedSessions),
    /// Its home.
    Home {
        sessions: SharedSessions,
        home: Arc<PoolHome>,
        fencing: FencingThread,
    },
    /// One of the others.
    Guest(Arc<GuestState>),
}

/// The sessions, and what of the region who may change (F7).
struct NetworkService {
    role: Role,
    layout: RegionLayout,
}

impl SessionService for NetworkService {
    fn register(&mut self, pid: u32) -> Result<OwnerWord, String> {
        match &mut self.role {
            Role::Alone(sessions) | Role::Home { sessions, .. } => sessions.register(pid),
            Role::Guest(guest) => Err(format!(
                "sessions are registered at the pool's home node, {}",
                guest.home_address
            )),
        }
    }

    fn fence(&mut self, owner: OwnerWord) {
        match &mut self.role {
            Role::Alone(sessions) => sessions.fence(owner),
            // V3.
            Role::Home {
                sessions,
                home,
                fencing,
            } => {
                if !home.fence_if_alone(|| sessions.fence(owner)) {
                    fencing.begin(owner);
                }
            }
            // V3: that a client is gone says nothing of the session, which the home fences.
            Role::Guest(_) => {}
        }
    }

    fn process_of(&mut self, owner: OwnerWord) -> Option<u32> {
        match &mut self.role {
            Role::Alone(sessions) | Role::Home { sessions, .. } => sessions.process_of(owner),
            // Only the home can tell that a session is fenced everywhere.
            Role::Guest(_) => Some(0),
        }
    }
}

/// From one word up to another, by their indexes.
fn words(from: WordAddr, to: WordAddr) -> Range<u64> {
    from.index()..to.index()
}

impl TcpService for NetworkService {
    /// Nobody changes the superblock, the node's own counters, or the life of a session. Writers
    /// change chunks, what belongs to them, roots and the retraining queue. Who takes the catalog's
    /// lock, to create or drop a table, has to be an administrator.
    fn grant(&self, rights: Rights) -> Grant {
        let layout = &self.layout;
        let hot = |at: WordAddr| words(at, at.offset(BLOCK_SIZE_WORDS));
        let mut open = vec![
            hot(layout.alloc_num()),
            hot(layout.sequence()),
            hot(layout.table_num()),
            hot(layout.queue_tail()),
            hot(layout.rings_wanted()),
            words(layout.queue_entries(), layout.sessions()),
        ];
        // Of an entry, the roots; all of it only for who may take the lock before it.
        for entry in 0..TABLE_COUNT_MAX {
            open.push(words(
                root_addr(layout, entry),
                layout.catalog_entry(entry + 1),
            ));
        }
        match rights {
            Rights::Read => return Grant::nothing(),
            Rights::Write => {}
            Rights::Admin => open.extend([
                hot(layout.catalog_lock()),
                words(
                    layout.catalog_entry(0),
                    layout.catalog_entry(TABLE_COUNT_MAX),
                ),
            ]),
        }
        Grant {
            open_from: layout.chunk_entry(ChunkIndex(0)).index(),
            open,
        }
    }

    fn own_words(&self, owner: OwnerWord) -> Range<u64> {
        let Some((session, _)) = owner.holder() else {
            return 0..0;
        };
        let layout = &self.layout;
        let (first, last) = (
            heartbeat_addr(layout, session),
            wants_rings_addr(layout, session),
        );
        words(first, last.offset(1))
    }

    fn home_address(&self) -> Option<String> {
        match &self.role {
            Role::Guest(guest) => Some(guest.home_address.clone()),
            Role::Alone(_) | Role::Home { .. } => None,
        }
    }

    fn pool_id(&self) -> u64 {
        match &self.role {
            Role::Home { home, .. } => home.pool_id(),
            Role::Alone(_) | Role::Guest(_) => 0,
        }
    }

    fn is_being_fenced(&self, owner: OwnerWord) -> bool {
        match &self.role {
            Role::Home { fencing, .. } => fencing.is_under_way(owner),
            Role::Alone(_) | Role::Guest(_) => false,
        }
    }

    fn admit(&mut self, owner: OwnerWord, pass: &Pass) -> Result<(), String> {
        match &self.role {
            Role::Guest(guest) => guest.admit(owner, pass),
            _ => Err(format!("{owner} is none of this client's sessions")),
        }
    }

    fn bar(&mut self, owner: OwnerWord) -> bool {
        if let Role::Guest(guest) = &self.role {
            guest.bar(owner);
        }
        matches!(self.role, Role::Guest(_))
    }

    fn join(&mut self, request: &JoinRequest) -> Result<Joined, String> {
        self.home()?.join(request)
    }

    fn set_member(&mut self, node: NodeId, state: u64) -> Result<MemberReply, String> {
        let home = self.home()?;
        home.set_state(node, state)?;
        Ok(home.member(node))
    }

    fn member(&mut self, node: NodeId) -> MemberReply {
        match &self.role {
            Role::Home { home, .. } => home.member(node),
            _ => MemberReply {
                state: 0,
                pool_id: 0,
                answered_count: 0,
            },
        }
    }
}

impl NetworkService {
    fn home(&self) -> Result<&PoolHome, String> {
        match &self.role {
            Role::Home { home, .. } => Ok(home),
            Role::Guest(guest) => Err(format!(
                "that is for the pool's home node, {}",
                guest.home_address
            )),
            Role::Alone(_) => Err("its pool has one node: it is served without --pool".to_owned()),
        }
    }
}
