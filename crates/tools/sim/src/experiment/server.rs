//! Memory node that answers calls and trains models for clients: the library's dispatcher, tables,
//! worker and trainer.
//!
//! The reading thread takes requests in turns. Each request has a core for `memory.call_ns`, plus
//! `memory.call_record_ns` for each record after the first. The core is the first free one of those
//! that do not train; a node with no others shares the training cores. The effect happens at once
//! at the end of that time, which includes the node's own verbs. Replies go into the windows of
//! clients, through the NICs that these use. A training thread takes `memory.retrain_ns_per_key`
//! for each leaf before its models are published.

use core::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use farleaf_base::OwnerWord;
use farleaf_executor::block_on;
use farleaf_fabric::Batch;
use farleaf_node::calls::dispatcher::TaskBatch;
use farleaf_node::calls::{Dispatcher, RingAssigner, RingRegistry, TableServer, Task};
use farleaf_node::sweep::MemoryMaintainer;
use farleaf_node::xstore::{SessionFactory, Trainer, Worker};
use farleaf_pool::PoolLayout;

use super::image::{Image, TABLE};
use super::machine::SessionRegistry;
use super::plan::ModelPlan;
use super::run::ExperimentState;
use super::training::{Cores, TrainTime, Training, TrainingCounters, TrainingSessionFactory};
use crate::fabric::SharedWorld;
use crate::fabric::endpoint::{SimWindows, StillEndpoint};
use crate::fabric::executor::{Tasks, sleep};
use crate::fabric::world::{ClientId, Nanos};
use crate::nic::model::NetworkModel;
use crate::nic::network::NicEnds;

/// Time between two polls of all mailboxes by the reading thread.
const POLL_INTERVAL_NS: Nanos = 200;
/// Time between two polls of an idle training thread.
const TRAINER_POLL_INTERVAL_NS: Nanos = 1000;

/// Server of one memory node.
#[derive(Debug)]
pub(super) struct Server {
    world: SharedWorld,
    layout: PoolLayout,
    registry: Rc<SessionRegistry>,
    tables: Arc<TableServer>,
    ring_assigner: RingAssigner,
    keeper: MemoryMaintainer<StillEndpoint>,
    dispatcher: RefCell<Dispatcher>,
    worker: Worker<StillSessionFactory>,
    /// Clients on whose behalf replies are written: one for each pair of NICs that clients use.
    writers: Vec<(NicEnds, ClientId)>,
    cores: Rc<Cores>,
    call_ns: f64,
    call_record_ns: f64,
    train_ns_per_leaf: f64,
    tally: TrainingCounters,
    is_loaded: Cell<bool>,
}

/// Gives the node's workers sessions for which virtual time stands still.
#[derive(Debug)]
struct StillSessionFactory {
    world: SharedWorld,
    registry: Rc<SessionRegistry>,
}

impl SessionFactory for StillSessionFactory {
    type Endpoint = StillEndpoint;

    fn open_worker_session(&self) -> Result<(StillEndpoint, OwnerWord), String> {
        let endpoint = StillEndpoint::new(&self.world);
        let owner = self.registry.open(endpoint.client());
        let owner = owner.map_err(|error| error.to_string())?;
        Ok((endpoint, owner))
    }

    fn end_worker_session(&self, owner: OwnerWord) {
        self.registry.close(owner);
    }
}

impl Server {
    pub(super) fn new(
        world: &SharedWorld,
        layout: &PoolLayout,
        registry: &Rc<SessionRegistry>,
        model: &NetworkModel,
    ) -> Rc<Self> {
        let ring_registry = Arc::<RingRegistry>::default();
        let tables = Arc::new(TableServer::new(u64::MAX));
        let ring_assigner = RingAssigner::new(Arc::clone(&ring_registry), Arc::clone(&tables));
        let keeper = MemoryMaintainer {
            blocks: farleaf_node::sweep::BlockSweepers::default(),
            endpoint: StillEndpoint::new(world),
            layout: layout.clone(),
            owner: OwnerWord::FREE,
        };
        let writers = writers(world, usize::from(layout.node.0), model);
        let worker = worker(world, layout, registry, &tables);
        Rc::new(Self {
            world: SharedWorld::clone(world),
            layout: layout.clone(),
            registry: Rc::clone(registry),
            ring_assigner,
            keeper,
            dispatcher: RefCell::new(Dispatcher::new(ring_registry)),
            worker,
            tables,
            writers,
            cores: Cores::new(world, model.memory.cores_per_node.value as usize),
            call_ns: model.memory.call_ns.value,
            call_record_ns: model.memory.call_record_ns.value,
            train_ns_per_leaf: model.memory.retrain_ns_per_key.value,
            tally: TrainingCounters::default(),
            is_loaded: Cell::new(false),
        })
    }

    /// Takes the keys with which the node's own table is loaded; the first caller gets them.
    pub(super) fn take_loading<'a>(&self, image: &'a Image) -> Option<&'a [u64]> {
        let is_first = !self.is_loaded.replace(true);
        (is_first && !image.plan.layer.has_leaves()).then(|| image.part(self.layout.node))
    }

    /// Gives rings to the sessions that request them, and answers all requests, at once.
    pub(super) fn answer_still(&self) {
        let ticked = block_on(self.ring_assigner.tick(&self.keeper), || 0);
        ticked.expect("inside the memory");
        for task in self.take(true) {
            self.answer(task, true);
        }
    }

    /// Executes all due training at once.
    pub(super) fn train_still(&self) {
        let trainer = Trainer::new(worker(
            &self.world,
            &self.layout,
            &self.registry,
            &self.tables,
        ));
        while self.tables.leaves().due_count() > 0 {
            let trained = block_on(trainer.train_next(), || 0);
            trained.expect("there is room for models");
        }
        block_on(trainer.worker().close(), || 0).expect("inside the memory");
    }

    /// Returns the training in time so far.
    pub(super) fn training(&self) -> Training {
        self.note_due();
        self.tally.total()
    }

    fn note_due(&self) {
        let now = self.world.borrow().now();
        self.tally.note_due(now, self.tables.leaves().due_count());
    }

    /// Returns one key of each sub-model.
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

    /// Starts the tasks that answer and train in time, until the experiment is over.
    pub(super) fn start<'a>(
        self: &Rc<Self>,
        tasks: &Rc<Tasks<'a>>,
        shared: &'a ExperimentState<'a>,
        models: ModelPlan,
    ) {
        let (own, crew) = (Rc::clone(self), Rc::clone(tasks));
        let train_count = if shared.image.plan.layer.has_node_writes() {
            models.train_thread_count
        } else {
            0
        };
        let has_own_cores = train_count == 0 || self.cores.reserve(train_count);
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

    async fn serve<'a>(self: &Rc<Self>, shared: &'a ExperimentState<'a>, crew: &Rc<Tasks<'a>>) {
        // Each caller gets its reply.
        while shared.is_working() {
            for task in self.take(false) {
                let own = Rc::clone(self);
                let after = self.cores.take(self.call_time(&task));
                crew.spawn_after(after, async move {
                    own.answer(task, false);
                    own.note_due();
                });
            }
            sleep(&self.world, POLL_INTERVAL_NS).await;
        }
    }

    fn call_time(&self, task: &Task) -> Nanos {
        let more_count = task.record_count_max() - 1;
        (self.call_ns + more_count as f64 * self.call_record_ns) as Nanos
    }

    async fn train(&self, shared: &ExperimentState<'_>, time: Rc<TrainTime>) {
        let session_factory = TrainingSessionFactory {
            world: SharedWorld::clone(&self.world),
            registry: Rc::clone(&self.registry),
            time,
        };
        let leaves = Arc::clone(self.tables.leaves());
        let trainer = Trainer::new(Worker::new(session_factory, self.layout.clone(), leaves));
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
                // Nothing is due, or other threads train it.
                Ok(false) => sleep(&self.world, TRAINER_POLL_INTERVAL_NS).await,
                Err(error) => {
                    return shared.fail(format!("a memory node cannot train models: {error}"));
                }
            }
        }
    }

    /// Reads all mailboxes and returns their requests.
    fn take(&self, is_still: bool) -> Vec<Task> {
        let mut pile = TaskBatch {
            tasks: Vec::new(),
            count_max: usize::MAX,
        };
        let mut batch = Batch::new();
        let windows = self.windows(is_still);
        let mut dispatcher = self.dispatcher.borrow_mut();
        let turned = dispatcher.turn(&self.keeper.endpoint, &windows, &mut batch, &mut pile);
        block_on(turned, || 0);
        pile.tasks
    }

    fn answer(&self, task: Task, is_still: bool) {
        let windows = self.windows(is_still);
        let mut batch = Batch::new();
        let answered = task.answer(
            &self.keeper.endpoint,
            &self.layout,
            &windows,
            &mut batch,
            &self.tables,
            &self.worker,
        );
        block_on(answered, || 0).expect("inside the memory");
    }

    /// A reply leaves by the NIC through which its session's requests arrive, and arrives by the
    /// one through which they leave.
    fn windows(&self, is_still: bool) -> impl farleaf_fabric::Windows {
        SimWindows {
            world: &self.world,
            is_still,
            ends_of: |owner| {
                let client = self.registry.client_of(owner)?;
                let ends = self.world.modelled().machines.ends_of(client);
                let mut writers = self.writers.iter();
                let writer = writers.find(|(of, _)| *of == ends);
                let (_, writer) = writer.expect("one for each pair of NICs");
                Some((client, *writer))
            },
        }
    }
}

/// Creates a client on the memory node for each pair of NICs that clients use.
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
        world.modelled().machines.place_server(writer, node, ends);
        (ends, writer)
    });
    writers.collect()
}

fn worker(
    world: &SharedWorld,
    layout: &PoolLayout,
    registry: &Rc<SessionRegistry>,
    tables: &TableServer,
) -> Worker<StillSessionFactory> {
    let session_factory = StillSessionFactory {
        world: SharedWorld::clone(world),
        registry: Rc::clone(registry),
    };
    Worker::new(session_factory, layout.clone(), Arc::clone(tables.leaves()))
}
