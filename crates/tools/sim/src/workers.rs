//! Sessions of the simulated node that change leaves, and that train models
//! ([`farleaf_node::xstore`]).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use farleaf_base::OwnerWord;
use farleaf_executor::block_on;
use farleaf_node::xstore::{SessionFactory, Trainer, Worker};

use crate::fabric::endpoint::{SimEndpoint, StillEndpoint};
use crate::fabric::world::ClientId;
use crate::node::Node;
use crate::plant::Plant;

/// Trainings after which a task certainly keeps itself due forever.
const TRAINING_COUNT_MAX: u32 = 10_000;

/// Gives workers of a run their sessions.
#[derive(Debug)]
pub struct SimSessionFactory {
    node: Rc<Node>,
    plant: Option<Plant>,
    clients: RefCell<BTreeMap<u64, ClientId>>,
}

impl SimSessionFactory {
    fn new(node: &Rc<Node>, plant: Option<Plant>) -> Self {
        Self {
            node: Rc::clone(node),
            plant,
            clients: RefCell::default(),
        }
    }
}

impl SessionFactory for SimSessionFactory {
    type Endpoint = SimEndpoint;

    fn open_worker_session(&self) -> Result<(SimEndpoint, OwnerWord), String> {
        let endpoint = SimEndpoint::with_plant(&self.node.world, self.plant);
        let owner = self.node.register(endpoint.client());
        let mut clients = self.clients.borrow_mut();
        clients.insert(owner.word(), endpoint.client());
        self.node.open_worker_session(endpoint.client());
        Ok((endpoint, owner))
    }

    fn end_worker_session(&self, owner: OwnerWord) {
        if let Some(client) = self.clients.borrow_mut().remove(&owner.word()) {
            self.node.end_worker_session(client);
            self.node.fence(client, owner);
        }
    }
}

/// Creates a worker of a run.
pub fn worker(node: &Rc<Node>, plant: Option<Plant>) -> Worker<SimSessionFactory> {
    let tables = Arc::clone(node.server().leaves());
    Worker::new(
        SimSessionFactory::new(node, plant),
        node.layout.clone(),
        tables,
    )
}

/// Gives workers their sessions while virtual time stands still.
#[derive(Debug)]
pub struct StillSessionFactory<'a> {
    node: &'a Node,
    plant: Option<Plant>,
    client: Cell<Option<ClientId>>,
}

impl SessionFactory for StillSessionFactory<'_> {
    type Endpoint = StillEndpoint;

    fn open_worker_session(&self) -> Result<(StillEndpoint, OwnerWord), String> {
        let endpoint = StillEndpoint::with_plant(&self.node.world, self.plant);
        let owner = self.node.register(endpoint.client());
        self.client.set(Some(endpoint.client()));
        Ok((endpoint, owner))
    }

    fn end_worker_session(&self, owner: OwnerWord) {
        if let Some(client) = self.client.take() {
            self.node.fence(client, owner);
        }
    }
}

/// Creates a worker for which virtual time stands still.
pub fn still_worker(node: &Node, plant: Option<Plant>) -> Worker<StillSessionFactory<'_>> {
    let tables = Arc::clone(node.server().leaves());
    let session_factory = StillSessionFactory {
        node,
        plant,
        client: Cell::default(),
    };
    Worker::new(session_factory, node.layout.clone(), tables)
}

/// Executes all due training while virtual time stands still. Returns false if it does not end.
///
/// # Panics
/// The memory does not exist, which it does.
pub fn train_still(node: &Node, plant: Option<Plant>) -> bool {
    let trainer = Trainer::new(still_worker(node, plant));
    let mut training_count = 0;
    let is_over = loop {
        // Without space for models, clients work without them.
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
    closed.expect("inside the memory");
    is_over
}
