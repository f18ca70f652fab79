//! One compute node's process: what its threads' sessions on one memory node share, as the library
//! has it.

use core::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, channel};

use farleaf::host::{Barrier, Host, PoolShare, ProcessKeeper};
use farleaf::{AsyncSession, SessionOptions};
use farleaf_fabric::ControlError;
use farleaf_node::sessions::{AgentEvent, Sessions};
use farleaf_region::PoolLayout;
use farleaf_types::OwnerWord;

use super::ExperimentError;
use super::plan::ModelPlan;
use super::run::Shared;
use super::server::Server;
use crate::fabric::endpoint::{SimEndpoint, StillEndpoint};
use crate::fabric::executor::sleep;
use crate::fabric::world::{ClientId, SharedWorld};

/// A memory node's session table. Nobody dies in a modelled world, so nobody hears its events.
#[derive(Debug)]
pub(super) struct Registry {
    sessions: RefCell<Sessions<StillEndpoint>>,
    /// Whose sessions there are, by their words.
    clients: RefCell<BTreeMap<u64, ClientId>>,
    _events: Receiver<AgentEvent>,
}

impl Registry {
    /// The session table of a region in which no session is alive.
    pub(super) fn new(world: &SharedWorld, layout: &PoolLayout) -> Rc<Self> {
        let (sender, events) = channel();
        let sessions = Sessions::new(StillEndpoint::new(world), *layout.home(), sender);
        Rc::new(Self {
            sessions: RefCell::new(sessions),
            clients: RefCell::default(),
            _events: events,
        })
    }

    /// A session for a client.
    pub(super) fn open(&self, client: ClientId) -> Result<OwnerWord, ExperimentError> {
        let opened = self.sessions.borrow_mut().open(client.0);
        let owner = opened.map_err(ExperimentError::Session)?;
        self.clients.borrow_mut().insert(owner.word(), client);
        Ok(owner)
    }

    /// Whose session it is.
    pub(super) fn client_of(&self, owner: OwnerWord) -> Option<ClientId> {
        self.clients.borrow().get(&owner.word()).copied()
    }

    /// The session is over.
    pub(super) fn close(&self, owner: OwnerWord) {
        self.sessions.borrow_mut().close(owner);
    }
}

/// A compute node's process and one memory node.
#[derive(Debug)]
pub(super) struct Machine {
    index: usize,
    share: PoolShare,
    registry: Rc<Registry>,
    /// What answers calls, if tables there need that.
    server: Option<Rc<Server>>,
    world: SharedWorld,
}

impl Machine {
    pub(super) fn new(
        index: usize,
        layout: PoolLayout,
        (registry, server): (&Rc<Registry>, Option<&Rc<Server>>),
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

    /// An endpoint on this machine, of its `thread`-th thread.
    fn endpoint(&self, thread: usize) -> SimEndpoint {
        let endpoint = SimEndpoint::new(&self.world);
        let mut world = self.world.borrow_mut();
        world.place_client(endpoint.client(), self.index, thread);
        endpoint
    }

    /// A thread's session on the memory node.
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

    /// What answers calls there.
    pub(super) fn server(&self) -> Option<&Rc<Server>> {
        self.server.as_ref()
    }

    /// The process's thread: looks for new sequence numbers, and publishes for the sessions. It
    /// shares the first client thread's core.
    pub(super) async fn follow(self: Rc<Self>, shared: &Shared<'_>, tick_ns: u64) {
        let keeper = ProcessKeeper::new(self.endpoint(0), &self.share, Barrier::OneThread);
        loop {
            sleep(shared.world, tick_ns).await;
            if shared.is_over() {
                return;
            }
            if let Err(error) = keeper.tick().await {
                return shared.fail(format!("a process cannot follow: {error}"));
            }
        }
    }
}

/// What a session stands on.
#[derive(Debug)]
pub(super) struct Process {
    machine: Rc<Machine>,
    client: ClientId,
}

impl Host for Process {
    type Endpoint = SimEndpoint;

    /// When an experiment is over, so is its world.
    const CLOSES_DROPPED_SESSIONS: bool = false;

    fn share(&self) -> &PoolShare {
        &self.machine.share
    }

    fn close_session(&self, owner: OwnerWord) -> Result<(), ControlError> {
        self.machine.world.borrow_mut().fence(self.client);
        self.machine.registry.close(owner);
        Ok(())
    }

    /// Machines of an experiment do not fail. While the world stands still, whoever waits lets the
    /// node do its part.
    fn is_node_gone(&self, _owner: OwnerWord, _look_count: u32) -> bool {
        if let Some(server) = &self.machine.server
            && self.machine.world.borrow().is_still()
        {
            server.answer_still();
        }
        false
    }
}
