//! A memory node that answers calls, and trains models for clients: the library's own dispatcher,
//! tables, worker and trainer.
//!
//! Requests are taken in turns of the reading thread, and each has a core for `memory.call_ns`, the
//! one that is free first, less those that train; where there are no more cores than these, they
//! share them. What it does takes effect at the end of that, at
//! once: the time of the node's own verbs is in it. Replies go through the node's NICs into the
//! windows of clients. A thread that trains takes `memory.retrain_ns_per_key` for each point, of a
//! sub-model of usual size before its models are there.

use core::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use farleaf_executor::block_on;
use farleaf_fabric::Batch;
use farleaf_node::calls::dispatcher::Pile;
use farleaf_node::calls::{Desk, Dispatcher, Receptionist, TableServer, Task};
use farleaf_node::sweep::Keeper;
use farleaf_node::xstore::{Employer, Trainer, Worker};
use farleaf_region::PoolLayout;
use farleaf_types::OwnerWord;

use super::image::{Image, TABLE};
use super::machine::Registry;
use super::plan::ModelPlan;
use super::run::Shared;
use crate::fabric::endpoint::{SimWindows, StillEndpoint};
use crate::fabric::executor::{Tasks, sleep};
use crate::fabric::world::{ClientId, Nanos, SharedWorld};
use crate::nic::model::NetworkModel;

/// Between two looks of the reading thread at all mailboxes.
const LOOK_INTERVAL_NS: Nanos = 200;
/// Between two looks of a thread that trains at what is due, if nothing is.
const TRAINER_REST_NS: Nanos = 1000;

/// One memory node's.
#[derive(Debug)]
pub(super) struct Server {
    world: SharedWorld,
    layout: PoolLayout,
    registry: Rc<Registry>,
    tables: Arc<TableServer>,
    receptionist: Receptionist,
    keeper: Keeper<StillEndpoint>,
    dispatcher: RefCell<Dispatcher>,
    worker: Worker<StillEmployer>,
    /// In whose names replies are written, by NIC.
    writers: Vec<ClientId>,
    next_writer: Cell<usize>,
    /// When each core has done what it has been given.
    cores: RefCell<Vec<Nanos>>,
    call_ns: Nanos,
    train_ns_per_point: f64,
    is_loaded: Cell<bool>,
}

/// Gives the node's workers sessions for which the world stands still.
#[derive(Debug)]
struct StillEmployer {
    world: SharedWorld,
    registry: Rc<Registry>,
}

impl Employer for StillEmployer {
    type Endpoint = StillEndpoint;

    fn hire(&self) -> Result<(StillEndpoint, OwnerWord), String> {
        let endpoint = StillEndpoint::new(&self.world);
        let owner = self.registry.open(endpoint.client());
        let owner = owner.map_err(|error| error.to_string())?;
        Ok((endpoint, owner))
    }

    fn dismiss(&self, owner: OwnerWord) {
        self.registry.close(owner);
    }
}

impl Server {
    pub(super) fn new(
        world: &SharedWorld,
        layout: &PoolLayout,
        registry: &Rc<Registry>,
        model: &NetworkModel,
    ) -> Rc<Self> {
        let desk = Arc::<Desk>::default();
        let tables = Arc::new(TableServer::new(u64::MAX));
        let receptionist = Receptionist::new(Arc::clone(&desk), Arc::clone(&tables));
        let keeper = Keeper {
            endpoint: StillEndpoint::new(world),
            layout: layout.clone(),
            owner: OwnerWord::FREE,
        };
        let node = usize::from(layout.node.0);
        let nic_count = model.memory.nics_per_node.value as usize;
        let writers = (0..nic_count).map(|nic| {
            let writer = StillEndpoint::new(world).client();
            world.borrow_mut().place_server(writer, node, nic);
            writer
        });
        let writers = writers.collect();
        let worker = worker(world, (layout, registry), &tables);
        Rc::new(Self {
            world: SharedWorld::clone(world),
            layout: layout.clone(),
            registry: Rc::clone(registry),
            receptionist,
            keeper,
            dispatcher: RefCell::new(Dispatcher::new(desk)),
            worker,
            tables,
            writers,
            next_writer: Cell::new(0),
            cores: RefCell::new(vec![0; model.memory.cores_per_node.value as usize]),
            call_ns: model.memory.call_ns.value as Nanos,
            train_ns_per_point: model.memory.retrain_ns_per_key.value,
            is_loaded: Cell::new(false),
        })
    }

    /// The keys that the node's own table is to be loaded with, for who asks first.
    pub(super) fn take_loading<'a>(&self, image: &'a Image) -> Option<&'a [u64]> {
        let is_first = !self.is_loaded.replace(true);
        (is_first && !image.plan.layer.has_leaves()).then(|| image.part(self.layout.node))
    }

    /// Gives rings to who wants some, and answers all requests, at once.
    pub(super) fn answer_still(&self) {
        let ticked = block_on(self.receptionist.tick(&self.keeper), || 0);
        ticked.expect("inside the region");
        for task in self.take(true) {
            self.answer(task, true);
        }
    }

    /// Trains all that is due, at once.
    pub(super) fn train_still(&self) {
        let trainer = self.trainer();
        while self.tables.leaves().due_count() > 0 {
            let trained = block_on(trainer.train_next(), || 0);
            trained.expect("there is room for models");
        }
        block_on(trainer.worker().close(), || 0).expect("inside the region");
    }

    /// A key of each sub-model.
    pub(super) fn sub_model_begins(&self) -> Vec<u64> {
        let table = self.tables.leaves().get(TABLE);
        let models = table.and_then(|table| table.built()?.models());
        let Some(models) = models else {
            return Vec::new();
        };
        let top = &models.top;
        let spans = (0..top.sub_model_count()).filter_map(|number| top.span(number));
        spans.map(|span| *span.start()).collect()
    }

    /// Answers and trains in time, until the experiment is over.
    pub(super) fn start<'a>(
        self: &Rc<Self>,
        tasks: &Rc<Tasks<'a>>,
        shared: &'a Shared<'a>,
        models: ModelPlan,
    ) {
        let (own, crew) = (Rc::clone(self), Rc::clone(tasks));
        let train_count = if shared.image.plan.layer.has_node_writes() {
            models.train_thread_count
        } else {
            0
        };
        let core_count = self.cores.borrow().len();
        let has_own_cores = core_count > train_count;
        if has_own_cores {
            self.cores.borrow_mut().truncate(core_count - train_count);
        }
        tasks.spawn(async move { own.serve(shared, &crew).await });
        for _ in 0..train_count {
            let own = Rc::clone(self);
            tasks.spawn(async move { own.train(shared, has_own_cores).await });
        }
    }

    async fn serve<'a>(self: &Rc<Self>, shared: &'a Shared<'a>, crew: &Rc<Tasks<'a>>) {
        // Whoever has called is answered.
        while shared.is_working() {
            for task in self.take(false) {
                let own = Rc::clone(self);
                let after = self.take_core(self.call_ns);
                crew.spawn_after(after, async move { own.answer(task, false) });
            }
            sleep(&self.world, LOOK_INTERVAL_NS).await;
        }
    }

    /// How long it takes until something that is to be done now has had its time of a core.
    fn take_core(&self, duration_ns: Nanos) -> Nanos {
        let now = self.world.borrow().now();
        let mut cores = self.cores.borrow_mut();
        let first = cores.iter_mut().min().expect("there is a core");
        *first = (*first).max(now) + duration_ns;
        *first - now
    }

    async fn train(&self, shared: &Shared<'_>, has_own_core: bool) {
        let rest = |duration_ns: Nanos| {
            let taken_ns = if has_own_core {
                duration_ns
            } else {
                self.take_core(duration_ns)
            };
            sleep(&self.world, taken_ns)
        };
        let trainer = self.trainer();
        while !shared.is_over() {
            if self.tables.leaves().due_count() == 0 {
                sleep(&self.world, TRAINER_REST_NS).await;
                continue;
            }
            let usual_count = self.tables.leaves().leaves_per_sub_model();
            let usual_ns = self.train_time(usual_count);
            rest(usual_ns).await;
            let before = trainer.point_count();
            if let Err(error) = block_on(trainer.train_next(), || 0) {
                return shared.fail(format!("a memory node cannot train models: {error}"));
            }
            let duration_ns = self.train_time(trainer.point_count() - before);
            rest(duration_ns.saturating_sub(usual_ns)).await;
        }
    }

    fn train_time(&self, point_count: u64) -> Nanos {
        ((point_count as f64 * self.train_ns_per_point) as Nanos).max(1)
    }

    /// What can be read of all mailboxes.
    fn take(&self, is_still: bool) -> Vec<Task> {
        let mut pile = Pile {
            tasks: Vec::new(),
            count_max: usize::MAX,
        };
        let mut batch = Batch::new();
        let windows = self.windows(is_still);
        let mut dispatcher = self.dispatcher.borrow_mut();
        let turned = dispatcher.turn((&self.keeper.endpoint, &windows), &mut batch, &mut pile);
        block_on(turned, || 0);
        pile.tasks
    }

    fn answer(&self, task: Task, is_still: bool) {
        let windows = self.windows(is_still);
        let way = (&self.keeper.endpoint, &self.layout, &windows);
        let mut batch = Batch::new();
        let answered = task.answer(way, &mut batch, (&self.tables, &self.worker));
        block_on(answered, || 0).expect("inside the region");
    }

    fn windows(&self, is_still: bool) -> impl farleaf_fabric::Windows {
        let turn = self.next_writer.get();
        self.next_writer.set((turn + 1) % self.writers.len());
        SimWindows {
            world: &self.world,
            writer: self.writers[turn],
            is_still,
            client_of: |owner| self.registry.client_of(owner),
        }
    }

    fn trainer(&self) -> Trainer<StillEmployer> {
        let way = (&self.layout, &self.registry);
        Trainer::new(worker(&self.world, way, &self.tables))
    }
}

fn worker(
    world: &SharedWorld,
    (layout, registry): (&PoolLayout, &Rc<Registry>),
    tables: &TableServer,
) -> Worker<StillEmployer> {
    let employer = StillEmployer {
        world: SharedWorld::clone(world),
        registry: Rc::clone(registry),
    };
    Worker::new(employer, layout.clone(), Arc::clone(tables.leaves()))
}
