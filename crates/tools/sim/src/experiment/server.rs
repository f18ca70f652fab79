//! A memory node that answers calls, and trains models for clients: the library's own dispatcher,
//! tables, worker and trainer.
//!
//! Requests are taken in turns of the reading thread, and each has a core for `memory.call_ns`, and
//! `memory.call_record_ns` for each record beyond the first that it asks for: the core that is free
//! first, less those that train; where there are no more cores than these, they share them. What
//! it does takes effect at the end of that, at once: the time of the node's own verbs is in it.
//! Replies go into the windows of clients, by the NICs that these use. A thread that trains takes
//! `memory.retrain_ns_per_key` for each leaf, before its models are there.

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
use super::training::{Cores, TrainTime, Training, TrainingEmployer, TrainingTally};
use crate::fabric::endpoint::{SimWindows, StillEndpoint};
use crate::fabric::executor::{Tasks, sleep};
use crate::fabric::world::{ClientId, Nanos, SharedWorld};
use crate::nic::model::NetworkModel;
use crate::nic::network::NicEnds;

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
    /// In whose names replies are written: one for each pair of NICs that clients use.
    writers: Vec<(NicEnds, ClientId)>,
    cores: Rc<Cores>,
    call_ns: f64,
    call_record_ns: f64,
    train_ns_per_leaf: f64,
    tally: TrainingTally,
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
            blocks: farleaf_node::sweep::BlockSweepers::default(),
            endpoint: StillEndpoint::new(world),
            layout: layout.clone(),
            owner: OwnerWord::FREE,
        };
        let writers = writers(world, usize::from(layout.node.0), model);
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
            cores: Cores::new(world, model.memory.cores_per_node.value as usize),
            call_ns: model.memory.call_ns.value,
            call_record_ns: model.memory.call_record_ns.value,
            train_ns_per_leaf: model.memory.retrain_ns_per_key.value,
            tally: TrainingTally::default(),
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
        let way = (&self.layout, &self.registry);
        let trainer = Trainer::new(worker(&self.world, way, &self.tables));
        while self.tables.leaves().due_count() > 0 {
            let trained = block_on(trainer.train_next(), || 0);
            trained.expect("there is room for models");
        }
        block_on(trainer.worker().close(), || 0).expect("inside the region");
    }

    /// What it has trained in time until now.
    pub(super) fn training(&self) -> Training {
        self.note_due();
        self.tally.done()
    }

    fn note_due(&self) {
        let now = self.world.borrow().now();
        self.tally.note_due(now, self.tables.leaves().due_count());
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
        let has_own_cores = train_count == 0 || self.cores.give_away(train_count);
        let time = Rc::new(TrainTime {
            ns_per_leaf: self.train_ns_per_leaf,
            cores: (!has_own_cores).then(|| Rc::clone(&self.cores)),
        });
        self.note_due();
        tasks.spawn(async move { own.serve(shared, &crew).await });
        for _ in 0..train_count {
            let (own, time) = (Rc::clone(self), Rc::clone(&time));
            tasks.spawn(async move { own.train(shared, time).await });
        }
    }

    async fn serve<'a>(self: &Rc<Self>, shared: &'a Shared<'a>, crew: &Rc<Tasks<'a>>) {
        // Whoever has called is answered.
        while shared.is_working() {
            for task in self.take(false) {
                let own = Rc::clone(self);
                let after = self.cores.take(self.call_time(&task));
                crew.spawn_after(after, async move {
                    own.answer(task, false);
                    own.note_due();
                });
            }
            sleep(&self.world, LOOK_INTERVAL_NS).await;
        }
    }

    fn call_time(&self, task: &Task) -> Nanos {
        let more_count = task.record_count_max() - 1;
        (self.call_ns + more_count as f64 * self.call_record_ns) as Nanos
    }

    async fn train(&self, shared: &Shared<'_>, time: Rc<TrainTime>) {
        let employer = TrainingEmployer {
            world: SharedWorld::clone(&self.world),
            registry: Rc::clone(&self.registry),
            time,
        };
        let leaves = Arc::clone(self.tables.leaves());
        let trainer = Trainer::new(Worker::new(employer, self.layout.clone(), leaves));
        let counts = || (trainer.sub_model_count(), trainer.point_count());
        while !shared.is_over() {
            let before = counts();
            self.tally.begin();
            let trained = trainer.train_next().await;
            self.note_due();
            let has_trained = matches!(trained, Ok(true));
            let after = counts();
            self.tally.end(Training {
                done_count: has_trained.into(),
                sub_model_count: after.0 - before.0,
                leaf_count: after.1 - before.1,
                waited_ns: 0,
            });
            self.note_due();
            match trained {
                Ok(true) => {}
                // Nothing is due, or others train it.
                Ok(false) => sleep(&self.world, TRAINER_REST_NS).await,
                Err(error) => {
                    return shared.fail(format!("a memory node cannot train models: {error}"));
                }
            }
        }
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

    /// A reply leaves by the NIC that its session's requests come by, and comes by the one that
    /// they leave by.
    fn windows(&self, is_still: bool) -> impl farleaf_fabric::Windows {
        SimWindows {
            world: &self.world,
            is_still,
            ends_of: |owner| {
                let client = self.registry.client_of(owner)?;
                let ends = self.world.borrow().ends_of(client);
                let mut writers = self.writers.iter();
                let writer = writers.find(|(of, _)| *of == ends);
                let (_, writer) = writer.expect("one for each pair of NICs");
                Some((client, *writer))
            },
        }
    }
}

/// Somebody on a memory node for each pair of NICs that clients use.
fn writers(world: &SharedWorld, node: usize, model: &NetworkModel) -> Vec<(NicEnds, ClientId)> {
    let counts = [&model.memory.nics_per_node, &model.compute.nics_per_node];
    let [memory_count, compute_count] = counts.map(|it| it.value as usize);
    let pairs = (0..memory_count).flat_map(|memory_nic| {
        (0..compute_count).map(move |compute_nic| NicEnds {
            memory_nic,
            compute_nic,
        })
    });
    let writers = pairs.map(|ends| {
        let writer = StillEndpoint::new(world).client();
        world.borrow_mut().place_server(writer, node, ends);
        (ends, writer)
    });
    writers.collect()
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
