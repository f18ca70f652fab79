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

use super::world::{ClientId, ClientLife, SharedWorld};
use crate::plant::Plant;

/// Endpoint of one client, whose batches take virtual time and are subject to everything that the
/// contract permits.
#[derive(Debug)]
pub struct SimEndpoint {
    world: SharedWorld,
    client: Cell<ClientId>,
    counters: Counters,
    plant: Option<Plant>,
    /// Membership view of the client's process.
    members: RefCell<Option<Arc<Members>>>,
}

impl SimEndpoint {
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

    /// Reconnects if the old connection broke. To the simulator the endpoint is another client from
    /// now on.
    pub fn reconnect(&self) {
        let mut world = self.world.borrow_mut();
        if world.life(self.client.get()) == ClientLife::Broken {
            self.client.set(world.add_client());
        }
    }
}

impl Endpoint for SimEndpoint {
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
        let mut world = self.world.borrow_mut();
        world.enter(self.client.get(), phase);
    }

    fn note_training(&self, leaf_count: u64, record_count: u64) {
        let mut world = self.world.borrow_mut();
        world.train(self.client.get(), leaf_count, record_count);
    }

    fn note_stale_string(&self) {
        let mut world = self.world.borrow_mut();
        world.note_stale_string(self.client.get());
    }

    fn note_stale_part(&self) {
        self.world.borrow_mut().note_stale_part(self.client.get());
    }

    fn open_window(&self, word_count: usize) -> bool {
        let mut world = self.world.borrow_mut();
        world.open_window(self.client.get(), word_count)
    }

    fn read_window(&self, index: u64, to: &mut [u64]) -> bool {
        let world = self.world.borrow();
        world.read_window(self.client.get(), index, to)
    }

    fn wakes_when_written(&self, index: u64) -> bool {
        let mut world = self.world.borrow_mut();
        world.watch_window(self.client.get(), index)
    }

    fn poll_completions(&self) -> usize {
        0
    }

    fn in_flight_count(&self) -> usize {
        self.world.borrow().in_flight_count(self.client.get())
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn memory_word_count(&self, node: NodeId) -> Option<u64> {
        self.world.borrow().memory_word_count(node)
    }
}

/// Batch in flight. Dropping it does not stop its verbs, which are posted.
struct Execution<'a> {
    endpoint: &'a SimEndpoint,
    batch: &'a mut Batch,
    posted: Option<u64>,
}

impl Future for Execution<'_> {
    type Output = Result<(), BatchError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut world = this.endpoint.world.borrow_mut();
        let (verbs, words, cost) = this.batch.parts_mut();
        if verbs.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let Some(posted) = this.posted else {
            if world.is_still {
                let (executed, result) =
                    world.execute_now(this.endpoint.client.get(), verbs, words);
                *cost += executed;
                return Poll::Ready(result);
            }
            let task = world.current;
            let mut verbs = verbs.to_vec();
            if let Some(plant) = this.endpoint.plant {
                plant.reorder(&mut verbs, words);
            }
            let posted = world.post(this.endpoint.client.get(), task, verbs, words);
            world.wake_when_complete(posted, context.waker());
            this.posted = Some(posted);
            return Poll::Pending;
        };
        let Some(landed) = world.take_outcome(posted) else {
            return Poll::Pending;
        };
        words.copy_from_slice(&landed.words);
        *cost += landed.cost;
        drop(world);
        if let Err(error) = &landed.result
            && let Some(lost) = error.lost_node()
        {
            this.endpoint.learn(lost);
        }
        Poll::Ready(landed.result)
    }
}

/// Endpoint for which virtual time stands still: for the node's session table, and for audits.
#[derive(Debug)]
pub struct StillEndpoint {
    world: SharedWorld,
    client: ClientId,
    counters: Counters,
    plant: Option<Plant>,
}

impl StillEndpoint {
    /// Creates an endpoint of a new client.
    pub fn new(world: &SharedWorld) -> Self {
        Self::with_plant(world, None)
    }

    /// Creates an endpoint of a new client whose code omits a check.
    pub fn with_plant(world: &SharedWorld, plant: Option<Plant>) -> Self {
        let client = world.borrow_mut().add_client();
        Self {
            world: SharedWorld::clone(world),
            client,
            counters: Counters::default(),
            plant,
        }
    }

    /// Returns the client whose verbs it posts.
    pub fn client(&self) -> ClientId {
        self.client
    }

    fn execute_now(&self, batch: &mut Batch) -> Result<(), BatchError> {
        let (verbs, words, cost) = batch.parts_mut();
        if verbs.is_empty() {
            return Ok(());
        }
        let mut world = self.world.borrow_mut();
        let (executed, result) = world.execute_now(self.client, verbs, words);
        *cost += executed;
        result
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
            let mut world = self.world.borrow_mut();
            world.write_window((writer, self.is_still), client, batch);
        }
    }
}

impl Endpoint for StillEndpoint {
    fn execute<'a>(
        &'a self,
        batch: &'a mut Batch,
    ) -> impl Future<Output = Result<(), BatchError>> + 'a {
        core::future::ready(self.execute_now(batch))
    }

    fn open_window(&self, word_count: usize) -> bool {
        let mut world = self.world.borrow_mut();
        world.open_window(self.client, word_count)
    }

    fn read_window(&self, index: u64, to: &mut [u64]) -> bool {
        self.world.borrow().read_window(self.client, index, to)
    }

    fn poll_completions(&self) -> usize {
        0
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn skips_check(&self, check: ProtocolCheck) -> bool {
        self.plant.and_then(Plant::left_out) == Some(check)
    }

    fn memory_word_count(&self, node: NodeId) -> Option<u64> {
        self.world.borrow().memory_word_count(node)
    }
}
