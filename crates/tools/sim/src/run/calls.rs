//! What answers calls in a run: the real dispatcher, the real tables, and real workers and trainers
//! of tables of leaves, in the simulated world. It outlives agents, as it is the memory node's
//! process and not its agent's thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt::Display;
use std::rc::Rc;

use farleaf_fabric::Batch;
use farleaf_index::IndexError;
use farleaf_node::calls::dispatcher::Pile;
use farleaf_node::calls::{Dispatcher, Task};
use farleaf_node::xstore::{Trainer, Worker};

use super::Stage;
use crate::check::Violation;
use crate::fabric::endpoint::SimEndpoint;
use crate::fabric::executor::{Tasks, sleep};
use crate::fabric::world::Nanos;
use crate::workers::{SimEmployer, worker};

/// Between two looks at all mailboxes.
const LOOK_INTERVAL: Nanos = 500;
/// Until a worker begins with a request, at the most.
const WORKER_DELAY_MAX: Nanos = 20_000;
/// Requests that wait for workers or are being answered, at the most (J3).
const TASK_COUNT_MAX: usize = 6;
/// Looks at the mailboxes after which workers without work look for what has changed (Z1).
const FOLLOW_LOOK_COUNT: u64 = 16;
/// Until a trainer begins with what is due, at the most.
const TRAINER_DELAY_MAX: Nanos = 10_000;
/// Trainers: sub-models may be trained at once, one of them may not (Z3).
const TRAINER_COUNT: usize = 2;

type IdleWorkers = Rc<RefCell<VecDeque<Worker<SimEmployer>>>>;

/// Starts it; it ends when nobody works any more. Each request is answered by a task of its own, in
/// any order.
pub(super) fn start_serving(tasks: &Rc<Tasks<'static>>, stage: &Rc<Stage>) {
    let (own, crew) = (Rc::clone(stage), Rc::clone(tasks));
    tasks.spawn(async move { serve(&own, &crew).await });
    for _ in 0..TRAINER_COUNT {
        let own = Rc::clone(stage);
        tasks.spawn(async move { train(&own).await });
    }
}

async fn serve(own: &Rc<Stage>, crew: &Rc<Tasks<'static>>) {
    let world = &own.node.world;
    let endpoint = Rc::new(SimEndpoint::with_plant(world, own.plant));
    let mut dispatcher = Dispatcher::new(own.node.desk());
    let mut batch = Batch::new();
    let under_way_count = Rc::<Cell<usize>>::default();
    // One more than tasks, as one may be following.
    let workers = (0..=TASK_COUNT_MAX).map(|_| worker(&own.node, own.plant));
    let workers: IdleWorkers = Rc::new(RefCell::new(workers.collect()));
    let mut look_count = 0_u64;
    while own.busy.get() > 0 || under_way_count.get() > 0 {
        let mut pile = Pile {
            tasks: Vec::new(),
            count_max: TASK_COUNT_MAX.saturating_sub(under_way_count.get()),
        };
        if own.busy.get() > 0 {
            let windows = own.node.windows(endpoint.client(), false);
            let way = (&*endpoint, &windows);
            dispatcher.turn(way, &mut batch, &mut pile).await;
        }
        for task in pile.tasks {
            under_way_count.set(under_way_count.get() + 1);
            let delay = world.borrow_mut().random().magnitude(WORKER_DELAY_MAX);
            let (stage, endpoint) = (Rc::clone(own), Rc::clone(&endpoint));
            let (count, idle) = (Rc::clone(&under_way_count), Rc::clone(&workers));
            crew.spawn_after(delay, async move {
                let worker = idle.borrow_mut().pop_back();
                let worker = worker.expect("as many as tasks");
                answer(&stage, (&endpoint, &worker), task).await;
                idle.borrow_mut().push_back(worker);
                count.set(count.get() - 1);
            });
        }
        look_count += 1;
        if look_count.is_multiple_of(FOLLOW_LOOK_COUNT) {
            follow_all(own, &workers).await;
        }
        sleep(world, LOOK_INTERVAL).await;
    }
    for worker in workers.take() {
        own.expect_of_worker(
            "a worker cannot give back what it holds",
            worker.close().await,
        );
    }
}

/// Z1, of those that have nothing to do.
async fn follow_all(stage: &Stage, workers: &IdleWorkers) {
    let idle_count = workers.borrow().len();
    for _ in 0..idle_count {
        let worker = workers.borrow_mut().pop_front();
        let Some(worker) = worker else {
            return;
        };
        stage.expect_of_worker("a worker cannot follow", worker.follow().await);
        workers.borrow_mut().push_back(worker);
    }
}

async fn answer(
    stage: &Stage,
    (endpoint, worker): (&SimEndpoint, &Worker<SimEmployer>),
    task: Task,
) {
    let mut batch = Batch::new();
    let windows = stage.node.windows(endpoint.client(), false);
    let way = (endpoint, &stage.node.layout, &windows);
    let answered = task.answer(way, &mut batch, (stage.node.server(), worker));
    stage.expect("a call cannot be answered", answered.await);
}

/// What trains models, as slowly as the world likes.
async fn train(stage: &Stage) {
    let world = &stage.node.world;
    let trainer = Trainer::new(worker(&stage.node, stage.plant));
    while stage.busy.get() > 0 {
        // There may be no room for models: clients do without.
        match trainer.train_next().await {
            Err(error) if !error.is_full() => {
                stage.expect_of_worker("models cannot be trained", Err(error));
            }
            _ => {}
        }
        let followed = trainer.worker().follow().await;
        stage.expect_of_worker("a trainer cannot follow", followed);
        let delay = world.borrow_mut().random().magnitude(TRAINER_DELAY_MAX);
        sleep(world, LOOK_INTERVAL + delay).await;
    }
    let closed = trainer.worker().close().await;
    stage.expect_of_worker("a trainer cannot give back what it holds", closed);
}

impl Stage {
    /// Something that fails only for who has lost its connection, or needs a node that is lost.
    fn expect_of_worker(&self, what: &str, outcome: Result<(), IndexError>) {
        let may_fail = |error: &IndexError| {
            let met_loss = self.has_lost_member.get() && error.lost_node().is_some();
            met_loss || self.has_broken_worker.get() && error.fabric_failure().is_some()
        };
        if !matches!(&outcome, Err(error) if may_fail(error)) {
            self.expect(what, outcome);
        }
    }

    /// Something that does not fail in any run.
    fn expect<T, E: Display>(&self, what: &str, outcome: Result<T, E>) {
        if let Err(error) = outcome {
            self.complain(Violation::new("errors", format!("{what}: {error}")));
        }
    }
}
