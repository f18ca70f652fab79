//! State that the sessions of one modeled client process share for one memory node, as in the
//! library.

use core::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, channel};

use farleaf::host::{Barrier, PoolShare, SequencePublisher, SessionHost};
use farleaf::{AsyncSession, SessionOptions};
use farleaf_base::OwnerWord;
use farleaf_fabric::ControlError;
use farleaf_node::sessions::{AgentEvent, Sessions};
use farleaf_pool::PoolLayout;

use super::ExperimentError;
use super::plan::ModelPlan;
use super::run::ExperimentState;
use super::server::Server;
use crate::fabric::SharedWorld;
use crate::fabric::endpoint::{SimEndpoint, StillEndpoint};
use crate::fabric::executor::sleep;
use crate::fabric::world::ClientId;

/// Session table of a memory node. No client dies in a modeled world, so nothing handles its
/// events.
#[derive(Debug)]
pub(super) struct SessionRegistry {
    sessions: RefCell<Sessions<StillEndpoint>>,
    /// Clients of the sessions, by their owner words.
    clients: RefCell<BTreeMap<u64, ClientId>>,
    _events: Receiver<AgentEvent>,
}

impl SessionRegistry {
    /// Creates the session table for a node's memory in which no session is alive.
    pub(super) fn new(world: &SharedWorld, layout: &PoolLayout) -> Rc<Self> {
        let (sender, events) = channel();
        let sessions = Sessions::new(StillEndpoint::new(world), *layout.main_node(), sender);
        Rc::new(Self {
            sessions: RefCell::new(sessions),
            clients: RefCell::default(),
            _events: events,
        })
    }

    /// Opens a session for a client.
    pub(super) fn open(&self, client: ClientId) -> Result<OwnerWord, ExperimentError> {
        let opened = self.sessions.borrow_mut().open(client.0);
        let owner = opened.map_err(ExperimentError::Session)?;
        self.clients.borrow_mut().insert(owner.word(), client);
        Ok(owner)
    }

    /// Returns the client of a session.
    pub(super) fn client_of(&self, owner: OwnerWord) -> Option<ClientId> {
        self.clients.borrow().get(&owner.word()).copied()
    }

    /// Closes a session.
    pub(super) fn close(&self, owner: OwnerWord) {
        self.sessions.borrow_mut().close(owner);
    }
}

/// Process of a compute node, for one memory node.
#[derive(Debug)]
pub(super) struct Machine {
    index: usize,
    share: PoolShare,
    registry: Rc<SessionRegistry>,
    /// Server that answers calls, if tables of the node need it.
    server: Option<Rc<Server>>,
    world: SharedWorld,
}

impl Machine {
    pub(super) fn new(
        index: usize,
        layout: PoolLayout,
        registry: &Rc<SessionRegistry>,
        server: Option<&Rc<Server>>,
        world: &SharedWorld,
    ) -> Rc<Self> {
        Rc::new(Self {
            index,
            share: PoolShare::new("modelled".to_owned(), layout),
            registry: Rc::clone(registry),
            server: server.map(Rc::clone),
            world: SharedWorld::clone(world),
        })
    }

    /// Creates an endpoint for thread number `thread` of this machine.
    fn endpoint(&self, thread: usize) -> SimEndpoint {
        let endpoint = SimEndpoint::new(&self.world);
        let mut network = self.world.modelled();
        let client = endpoint.client();
        network.machines.place(client, self.index, thread);
        endpoint
    }

    /// Opens a thread's session on the memory node.
    pub(super) fn session(
        self: &Rc<Self>,
        thread: usize,
        models: ModelPlan,
    ) -> Result<AsyncSession<Process>, ExperimentError> {
        let endpoint = self.endpoint(thread);
        let client = endpoint.client();
        let owner = self.registry.open(client)?;
        let process = Process {
            machine: Rc::clone(self),
            client,
        };
        let options = SessionOptions {
            model_cache: models.cache,
            does_not_speculate: !models.is_speculative,
            ..SessionOptions::default()
        };
        let session = AsyncSession::with_options(process, endpoint, owner, &options);
        Ok(session)
    }

    /// Returns the server that answers calls.
    pub(super) fn server(&self) -> Option<&Rc<Server>> {
        self.server.as_ref()
    }

    /// Runs the process's thread: it polls for new sequence numbers and publishes for the sessions.
    /// The thread shares the first client thread's core.
    pub(super) async fn follow(self: Rc<Self>, shared: &ExperimentState<'_>, tick_ns: u64) {
        let keeper = SequencePublisher::new(self.endpoint(0), &self.share, Barrier::OneThread);
        loop {
            sleep(shared.world, tick_ns).await;
            if shared.is_over() {
                return;
            }
            if let Err(error) = keeper.tick().await {
                return shared.fail(format!("a process cannot catch up: {error}"));
            }
        }
    }
}

/// Host of the sessions of a process.
#[derive(Debug)]
pub(super) struct Process {
    machine: Rc<Machine>,
    client: ClientId,
}

impl SessionHost for Process {
    type Endpoint = SimEndpoint;

    /// The world ends with the experiment.
    const CLOSES_DROPPED_SESSIONS: bool = false;

    fn share(&self) -> &PoolShare {
        &self.machine.share
    }

    fn close_session(&self, owner: OwnerWord) -> Result<(), ControlError> {
        self.machine.world.fence(self.client);
        self.machine.registry.close(owner);
        Ok(())
    }

    /// Machines of an experiment do not fail. While virtual time stands still, a waiting session
    /// lets the node do its part here.
    fn is_node_gone(&self, _owner: OwnerWord, _look_count: u32) -> bool {
        if let Some(server) = &self.machine.server
            && self.machine.world.borrow().is_still()
        {
            server.answer_still();
        }
        false
    }
}
