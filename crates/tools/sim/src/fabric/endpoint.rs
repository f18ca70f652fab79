//! Endpoints of clients in the simulated fabric.

use core::cell::{Cell, RefCell};
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::sync::Arc;

use farleaf_base::{NodeId, OwnerWord};
use farleaf_fabric::{
    Batch, BatchError, Counters, Endpoint, ProtocolCheck, ProtocolPhase, Windows,
};
use farleaf_pool::members::{MemberState, Members};

use super::shared::SharedWorld;
use super::world::{ClientId, ClientLife};
use crate::plant::Plant;

/// Endpoint of one client, whose batches take virtual time and are subject to everything that the
/// contract permits.
pub type SimEndpoint = ClientEndpoint<false>;

/// Endpoint for which virtual time stands still: for the node's session table, and for audits.
pub type StillEndpoint = ClientEndpoint<true>;

/// Endpoint of one client; `IS_STILL`: whether virtual time always stands still for it.
#[derive(Debug)]
pub struct ClientEndpoint<const IS_STILL: bool> {
    world: SharedWorld,
    client: Cell<ClientId>,
    counters: Counters,
    plant: Option<Plant>,
    /// Membership view of the client's process.
    members: RefCell<Option<Arc<Members>>>,
}

impl<const IS_STILL: bool> ClientEndpoint<IS_STILL> {
    /// Creates an endpoint of a new client.
    pub fn new(world: &SharedWorld) -> Self {
        Self::with_plant(world, None)
    }

    /// Creates an endpoint of a new client whose code has a planted bug.
    pub fn with_plant(world: &SharedWorld, plant: Option<Plant>) -> Self {
        let client = world.borrow_mut().add_client();
        Self {
            world: SharedWorld::clone(world),
            client: Cell::new(client),
            counters: Counters::default(),
            plant,
            members: RefCell::default(),
        }
    }

    /// Attaches the membership view of the client's process. It is refreshed as soon as a node does
    /// not answer, so that an operation that reports a lost node has it in its view.
    pub fn belongs_to(&self, members: &Arc<Members>) {
        self.members.replace(Some(Arc::clone(members)));
    }

    fn learn(&self, lost: NodeId) {
        let members = self.members.borrow();
        if let Some(members) = members.as_ref()
            && let Some(member) = members.get(lost)
        {
            members.learn(member.clone(), MemberState::Lost);
        }
    }

    /// Returns the client whose verbs it posts.
    pub fn client(&self) -> ClientId {
        self.client.get()
    }
}

impl SimEndpoint {
    /// Reconnects if the old connection broke. To the simulator the endpoint is another client from
    /// now on.
    pub fn reconnect(&self) {
        let mut world = self.world.borrow_mut();
        if world.life(self.client.get()) == ClientLife::Broken {
            self.client.set(world.add_client());
        }
    }
}

impl<const IS_STILL: bool> Endpoint for ClientEndpoint<IS_STILL> {
    fn execute<'a>(
        &'a self,
        batch: &'a mut Batch,
    ) -> impl Future<Output = Result<(), BatchError>> + 'a {
        Execution {
            endpoint: self,
            batch,
            posted: None,
        }
    }

    fn skips_check(&self, check: ProtocolCheck) -> bool {
        self.plant.and_then(Plant::left_out) == Some(check)
    }

    fn enters(&self, phase: ProtocolPhase) {
        if !IS_STILL {
            self.world.borrow_mut().enter(self.client(), phase);
        }
    }

    fn note_training(&self, leaf_count: u64, record_count: u64) {
        if !IS_STILL {
            self.world.train(self.client(), leaf_count, record_count);
        }
    }

    fn note_stale_string(&self) {
        if !IS_STILL {
            self.world.borrow_mut().note_stale_string(self.client());
        }
    }

    fn note_stale_part(&self) {
        if !IS_STILL {
            self.world.borrow_mut().note_stale_part(self.client());
        }
    }

    fn open_window(&self, word_count: usize) -> bool {
        self.world.open_window(self.client.get(), word_count)
    }

    fn read_window(&self, index: u64, to: &mut [u64]) -> bool {
        let world = self.world.borrow();
        world.read_window(self.client.get(), index, to)
    }

    fn wakes_when_written(&self, index: u64) -> bool {
        !IS_STILL && self.world.watch_window(self.client(), index)
    }

    fn poll_completions(&self) -> usize {
        0
    }

    fn in_flight_count(&self) -> usize {
        self.world.in_flight_count(self.client.get())
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn memory_word_count(&self, node: NodeId) -> Option<u64> {
        self.world.borrow().memory_word_count(node)
    }
}

/// Batch in flight. Dropping it does not stop its verbs, which are posted.
struct Execution<'a, const IS_STILL: bool> {
    endpoint: &'a ClientEndpoint<IS_STILL>,
    batch: &'a mut Batch,
    posted: Option<u64>,
}

impl<const IS_STILL: bool> Future for Execution<'_, IS_STILL> {
    type Output = Result<(), BatchError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let world = &this.endpoint.world;
        let client = this.endpoint.client.get();
        let (verbs, words, cost) = this.batch.parts_mut();
        if verbs.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let Some(posted) = this.posted else {
            if IS_STILL || world.borrow().is_still() {
                let (executed, result) = world.borrow_mut().execute_now(client, verbs, words);
                *cost += executed;
                return Poll::Ready(result);
            }
            let mut verbs = verbs.to_vec();
            if let Some(plant) = this.endpoint.plant {
                plant.reorder(&mut verbs, words);
            }
            this.posted = Some(world.post(client, verbs, words, context.waker()));
            return Poll::Pending;
        };
        let Some(outcome) = world.take_outcome(posted) else {
            return Poll::Pending;
        };
        words.copy_from_slice(&outcome.words);
        *cost += outcome.cost;
        if let Err(error) = &outcome.result
            && let Some(lost) = error.lost_node()
        {
            this.endpoint.learn(lost);
        }
        Poll::Ready(outcome.result)
    }
}

/// Writes into windows on behalf of an endpoint of the node (FABRIC-10).
#[derive(Debug)]
pub struct SimWindows<'a, F> {
    /// Simulated world.
    pub world: &'a SharedWorld,
    /// Whether virtual time stands still for the writes.
    pub is_still: bool,
    /// Returns the client of a session, and the client on whose behalf it is written to.
    pub ends_of: F,
}

impl<F: Fn(OwnerWord) -> Option<(ClientId, ClientId)>> Windows for SimWindows<'_, F> {
    fn write(&self, owner: OwnerWord, batch: &mut Batch) {
        if let Some((client, writer)) = (self.ends_of)(owner) {
            self.world
                .write_window(writer, self.is_still, client, batch);
        }
    }
}
