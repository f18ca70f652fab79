//! Sessions of the simulated node that change leaves, and that train models
//! ([`farleaf_node::xstore`]).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use farleaf_executor::block_on;
use farleaf_node::xstore::{Employer, Trainer, Worker};
use farleaf_types::OwnerWord;

use crate::fabric::endpoint::{SimEndpoint, StillEndpoint};
use crate::fabric::world::ClientId;
use crate::node::Node;
use crate::plant::Plant;

/// Trainings after which something keeps itself due, by far.
const TRAINING_COUNT_MAX: u32 = 10_000;

/// Gives workers what they work with in a run.
#[derive(Debug)]
pub struct SimEmployer {
    node: Rc<Node>,
    plant: Option<Plant>,
    clients: RefCell<BTreeMap<u64, ClientId>>,
}

impl SimEmployer {
    fn new(node: &Rc<Node>, plant: Option<Plant>) -> Self {
        Self {
            node: Rc::clone(node),
            plant,
            clients: RefCell::default(),
        }
    }
}

impl Employer for SimEmployer {
    type Endpoint = SimEndpoint;

    fn hire(&self) -> Result<(SimEndpoint, OwnerWord), String> {
        let endpoint = SimEndpoint::with_plant(&self.node.world, self.plant);
        let owner = self.node.register(endpoint.client());
        let mut clients = self.clients.borrow_mut();
        clients.insert(owner.word(), endpoint.client());
        self.node.hire(endpoint.client());
        Ok((endpoint, owner))
    }

    fn dismiss(&self, owner: OwnerWord) {
        if let Some(client) = self.clients.borrow_mut().remove(&owner.word()) {
            self.node.dismiss(client);
            self.node.fence(client, owner);
        }
    }
}

/// A worker in a run.
pub fn worker(node: &Rc<Node>, plant: Option<Plant>) -> Worker<SimEmployer> {
    let tables = Arc::clone(node.server().leaves());
    Worker::new(SimEmployer::new(node, plant), node.layout.clone(), tables)
}

/// The same while the world stands still.
#[derive(Debug)]
pub struct StillEmployer<'a> {
    node: &'a Node,
    plant: Option<Plant>,
    client: Cell<Option<ClientId>>,
}

impl Employer for StillEmployer<'_> {
    type Endpoint = StillEndpoint;

    fn hire(&self) -> Result<(StillEndpoint, OwnerWord), String> {
        let endpoint = StillEndpoint::with_plant(&self.node.world, self.plant);
        let owner = self.node.register(endpoint.client());
        self.client.set(Some(endpoint.client()));
        Ok((endpoint, owner))
    }

    fn dismiss(&self, owner: OwnerWord) {
        if let Some(client) = self.client.take() {
            self.node.fence(client, owner);
        }
    }
}

/// A worker while the world stands still.
pub fn still_worker(node: &Node, plant: Option<Plant>) -> Worker<StillEmployer<'_>> {
    let tables = Arc::clone(node.server().leaves());
    let employer = StillEmployer {
        node,
        plant,
        client: Cell::default(),
    };
    Worker::new(employer, node.layout.clone(), tables)
}

/// Trains all that is due, while the world stands still. False: there is no end to it.
///
/// # Panics
/// The region is not there, which it is.
pub fn train_still(node: &Node, plant: Option<Plant>) -> bool {
    let trainer = Trainer::new(still_worker(node, plant));
    let mut training_count = 0;
    let is_over = loop {
        // Where there is no room for models, clients do without.
        match block_on(trainer.train_next(), || 0) {
            Ok(false) => break true,
            Ok(true) => training_count += 1,
            Err(error) if error.is_full() => training_count += 1,
            Err(_) => break false,
        }
        if training_count > TRAINING_COUNT_MAX {
            break false;
        }
    };
    let closed = block_on(trainer.worker().close(), || 0);
    closed.expect("inside the region");
    is_over
}
