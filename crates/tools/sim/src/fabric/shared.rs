//! World and its network, as endpoints, tasks and faults share them.

use core::cell::{Ref, RefCell, RefMut};
use std::rc::Rc;
use std::task::Waker;

use farleaf_base::NodeId;
use farleaf_base::random::Random;
use farleaf_fabric::{Batch, Verb};

use super::adversarial::AdversarialNetwork;
use super::event::{BatchOutcome, DueEvent, Step};
use super::ids::{ClientId, Nanos};
use super::modelled::ModelledNetwork;
use super::network::Network;
use super::schedule::Freedoms;
use super::world::{ClientLife, World};
use crate::nic::network::Network as Machines;

/// Range of delays after which a task that backs off is polled again, where the NIC does not
/// determine it.
const BACKOFF_TURN_NS: (Nanos, Nanos) = (20, 2020);

/// Reference to a world and its network.
#[derive(Clone, Debug)]
pub struct SharedWorld(Rc<Fabric>);

#[derive(Debug)]
struct Fabric {
    world: RefCell<World>,
    network: RefCell<Network>,
}

impl SharedWorld {
    /// Creates a world with one zeroed memory of this size per node, and an adversarial network.
    pub fn new(memory_word_counts: &[usize], freedoms: Freedoms, random: Random) -> Self {
        let nodes = memory_word_counts.iter().map(|count| vec![0; *count]);
        let network = Network::Adversarial(AdversarialNetwork::new(freedoms));
        Self::with_network(World::new(nodes.collect(), random), network)
    }

    /// Creates a world with these memories of nodes, and a network that only takes time.
    pub fn with_machines(nodes: Vec<Vec<u64>>, machines: Machines, random: Random) -> Self {
        let network = Network::Modelled(Box::new(ModelledNetwork::new(machines)));
        Self::with_network(World::new(nodes, random), network)
    }

    fn with_network(world: World, network: Network) -> Self {
        Self(Rc::new(Fabric {
            world: RefCell::new(world),
            network: RefCell::new(network),
        }))
    }

    /// Borrows the world.
    pub fn borrow(&self) -> Ref<'_, World> {
        self.0.world.borrow()
    }

    /// Borrows the world to change it.
    pub fn borrow_mut(&self) -> RefMut<'_, World> {
        self.0.world.borrow_mut()
    }

    /// Borrows the modeled network.
    ///
    /// # Panics
    /// The network is not modeled.
    pub fn modelled(&self) -> RefMut<'_, ModelledNetwork> {
        RefMut::map(self.0.network.borrow_mut(), |network| match network {
            Network::Modelled(network) => &mut **network,
            Network::Adversarial(_) => panic!("the network is not modeled"),
        })
    }

    fn is_modelled(&self) -> bool {
        matches!(*self.0.network.borrow(), Network::Modelled(_))
    }

    /// Draws the delay after which a task that backs off from a lock is polled again.
    pub(super) fn backoff_turn(&self) -> Nanos {
        let (min, max) = match &*self.0.network.borrow() {
            Network::Modelled(network) => network.machines.backoff_turn_ns(),
            Network::Adversarial(_) => BACKOFF_TURN_NS,
        };
        min + self.borrow_mut().random().magnitude(max - min)
    }

    /// Executes the next due event, at its time. Effects and completions happen here; polls are
    /// left to the executor.
    pub(super) fn step(&self) -> Step {
        let mut world = self.borrow_mut();
        match world.take_due() {
            None => Step::Over,
            Some(DueEvent::Poll(task)) => Step::Poll(task),
            Some(DueEvent::Batch { batch, event }) => {
                let mut network = self.0.network.borrow_mut();
                let task = network.execute(&mut world, batch, event);
                task.map_or(Step::Happened, Step::Poll)
            }
        }
    }

    /// Posts a batch for the task that is being polled, and wakes a future when it is complete.
    pub(super) fn post(
        &self,
        client: ClientId,
        verbs: Vec<Verb>,
        words: &[u64],
        waker: &Waker,
    ) -> u64 {
        let mut world = self.borrow_mut();
        let mut network = self.0.network.borrow_mut();
        let task = world.current;
        let batch = network.post(&mut world, client, task, verbs, words);
        network.wake_when_complete(batch, waker);
        batch
    }

    /// Takes the result of a batch, once it is complete.
    pub(super) fn take_outcome(&self, batch: u64) -> Option<BatchOutcome> {
        let mut network = self.0.network.borrow_mut();
        network.take_outcome(&mut self.borrow_mut(), batch)
    }

    /// Returns the number of batches of a client that are not complete, whether or not a task waits
    /// for them.
    pub fn in_flight_count(&self, client: ClientId) -> usize {
        self.0.network.borrow().in_flight_count(client)
    }

    /// Fences a client: none of its verbs takes effect after this (FABRIC-6).
    pub fn fence(&self, client: ClientId) {
        self.disconnect(client, ClientLife::Fenced);
    }

    /// Breaks a client's connection: the outcome of batches in flight is unknown, and later batches
    /// fail.
    pub fn break_connection(&self, client: ClientId) {
        self.disconnect(client, ClientLife::Broken);
    }

    /// Restarts a node with empty memory, after all connections have broken.
    pub fn lose_node(&self, node: NodeId) {
        let client_count = self.borrow().client_count();
        for client in 0..client_count {
            self.break_connection(ClientId(client));
        }
        self.borrow_mut().clear_memory(node);
    }

    fn disconnect(&self, client: ClientId, life: ClientLife) {
        let mut world = self.borrow_mut();
        if world.disconnect(client, life)
            && let Network::Adversarial(network) = &mut *self.0.network.borrow_mut()
        {
            network.cut_batches(&mut world, client);
        }
    }

    /// Charges a client for trained models: its next batch waits until its core has trained them.
    /// In an adversarial network, computing takes no time.
    pub(super) fn train(&self, client: ClientId, leaf_count: u64, record_count: u64) {
        if let Network::Modelled(network) = &mut *self.0.network.borrow_mut() {
            let now = self.borrow().now();
            network
                .machines
                .train(now, client, leaf_count, record_count);
        }
    }

    /// Returns whether the client has a window, or gets one of this many words now (FABRIC-10).
    pub(super) fn open_window(&self, client: ClientId, word_count: usize) -> bool {
        let machine = || match &*self.0.network.borrow() {
            Network::Modelled(network) => network.machines.machine_of(client),
            Network::Adversarial(_) => 0,
        };
        self.borrow_mut().open_window(client, word_count, machine)
    }

    /// Registers the task that is being polled, to be polled again when this word of the client's
    /// window is written (FABRIC-10). Returns whether that is possible: only in a modeled network,
    /// whose connections never break.
    pub(super) fn watch_window(&self, client: ClientId, index: u64) -> bool {
        self.is_modelled() && self.borrow_mut().watch_window(client, index)
    }

    /// Posts a batch of WRITEs into `of`'s window on behalf of a client on its node (FABRIC-10),
    /// which does not wait for it. The batch is executed at once if virtual time stands still for
    /// it. Without such a window nothing happens.
    ///
    /// # Panics
    /// A WRITE is outside the window; nothing else would detect that.
    pub fn write_window(&self, writer: ClientId, is_still: bool, of: ClientId, batch: &mut Batch) {
        let mut world = self.borrow_mut();
        let (verbs, words, _) = batch.parts_mut();
        let Some(verbs) = world.verbs_to_window(of, verbs) else {
            return;
        };
        if is_still || world.is_still() {
            let (_, result) = world.execute_now(writer, &verbs, words);
            result.expect("it is inside");
        } else {
            let mut network = self.0.network.borrow_mut();
            let batch = network.post(&mut world, writer, None, verbs, words);
            network.forget(batch);
        }
    }
}
