//! Server of calls in a run: the real dispatcher, tables, workers and trainers, in the simulated
//! world. It outlives agents, as it is the memory node's process and not its agent's thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt::Display;
use std::rc::Rc;

use farleaf_fabric::Batch;
use farleaf_index::IndexError;
use farleaf_node::calls::dispatcher::TaskBatch;
use farleaf_node::calls::{Dispatcher, Task};
use farleaf_node::xstore::{Trainer, Worker};

use super::RunState;
use crate::check::Violation;
use crate::fabric::endpoint::SimEndpoint;
use crate::fabric::executor::{Tasks, sleep};
use crate::fabric::world::Nanos;
use crate::workers::{SimSessionFactory, worker};

/// Time between two polls of all mailboxes.
const POLL_INTERVAL: Nanos = 500;
/// Longest time until a worker starts a request.
const WORKER_DELAY_MAX: Nanos = 20_000;
/// Maximal number of requests that wait for workers or are being answered.
const TASK_COUNT_MAX: usize = 6;
/// Polls of the mailboxes after which idle workers follow changes.
const FOLLOW_POLL_COUNT: u64 = 16;
/// Longest time until a trainer starts due work.
const TRAINER_DELAY_MAX: Nanos = 10_000;
/// Number of trainers: several train sub-models at once, but only one trains a full set.
const TRAINER_COUNT: usize = 2;

type IdleWorkers = Rc<RefCell<VecDeque<Worker<SimSessionFactory>>>>;

/// Starts the server, which ends when no client works anymore. Each request is answered by a task
/// of its own, in any order.
pub(super) fn start_serving(tasks: &Rc<Tasks<'static>>, run_state: &Rc<RunState>) {
    let (own, crew) = (Rc::clone(run_state), Rc::clone(tasks));
    tasks.spawn(async move { serve(&own, &crew).await });
    for _ in 0..TRAINER_COUNT {
        let own = Rc::clone(run_state);
        tasks.spawn(async move { train(&own).await });
    }
}

async fn serve(own: &Rc<RunState>, crew: &Rc<Tasks<'static>>) {
    let world = &own.node.world;
    let endpoint = Rc::new(SimEndpoint::with_plant(world, own.plant));
    let mut dispatcher = Dispatcher::new(own.node.ring_registry());
    let mut batch = Batch::new();
    let under_way_count = Rc::<Cell<usize>>::default();
    // One more than tasks, as one may be following.
    let workers = (0..=TASK_COUNT_MAX).map(|_| worker(&own.node, own.plant));
    let workers: IdleWorkers = Rc::new(RefCell::new(workers.collect()));
    let mut poll_count = 0_u64;
    while own.busy.get() > 0 || under_way_count.get() > 0 {
        let mut pile = TaskBatch {
            tasks: Vec::new(),
            count_max: TASK_COUNT_MAX.saturating_sub(under_way_count.get()),
        };
        if own.busy.get() > 0 {
            let windows = own.node.windows(endpoint.client(), false);
            dispatcher
                .turn(&*endpoint, &windows, &mut batch, &mut pile)
                .await;
        }
        for task in pile.tasks {
            under_way_count.set(under_way_count.get() + 1);
            let delay = world.borrow_mut().random().magnitude(WORKER_DELAY_MAX);
            let (run_state, endpoint) = (Rc::clone(own), Rc::clone(&endpoint));
            let (count, idle) = (Rc::clone(&under_way_count), Rc::clone(&workers));
            crew.spawn_after(delay, async move {
                let worker = idle.borrow_mut().pop_back();
                let worker = worker.expect("as many as tasks");
                answer(&run_state, &endpoint, &worker, task).await;
                idle.borrow_mut().push_back(worker);
                count.set(count.get() - 1);
            });
        }
        poll_count += 1;
        if poll_count.is_multiple_of(FOLLOW_POLL_COUNT) {
            follow_all(own, &workers).await;
        }
        sleep(world, POLL_INTERVAL).await;
    }
    for worker in workers.take() {
        own.expect_of_worker(
            "a worker cannot give back what it holds",
            worker.close().await,
        );
    }
}

/// Lets the idle workers follow changes.
async fn follow_all(run_state: &RunState, workers: &IdleWorkers) {
    let idle_count = workers.borrow().len();
    for _ in 0..idle_count {
        let worker = workers.borrow_mut().pop_front();
        let Some(worker) = worker else {
            return;
        };
        run_state.expect_of_worker("a worker cannot follow", worker.follow().await);
        workers.borrow_mut().push_back(worker);
    }
}

async fn answer(
    run_state: &RunState,
    endpoint: &SimEndpoint,
    worker: &Worker<SimSessionFactory>,
    task: Task,
) {
    let mut batch = Batch::new();
    let windows = run_state.node.windows(endpoint.client(), false);
    let answered = task.answer(
        endpoint,
        &run_state.node.layout,
        &windows,
        &mut batch,
        run_state.node.server(),
        worker,
    );
    run_state.expect("a call cannot be answered", answered.await);
}

/// Trains models, with delays that the world draws.
async fn train(run_state: &RunState) {
    let world = &run_state.node.world;
    let trainer = Trainer::new(worker(&run_state.node, run_state.plant));
    while run_state.busy.get() > 0 {
        // There may be no space for models: clients work without them.
        match trainer.train_next().await {
            Err(error) if !error.is_full() => {
                run_state.expect_of_worker("models cannot be trained", Err(error));
            }
            _ => {}
        }
        let followed = trainer.worker().follow().await;
        run_state.expect_of_worker("a trainer cannot follow", followed);
        let delay = world.borrow_mut().random().magnitude(TRAINER_DELAY_MAX);
        sleep(world, POLL_INTERVAL + delay).await;
    }
    let closed = trainer.worker().close().await;
    run_state.expect_of_worker("a trainer cannot give back what it holds", closed);
}

impl RunState {
    /// Reports a failure, unless the worker lost its connection or needs a lost node.
    fn expect_of_worker(&self, what: &str, outcome: Result<(), IndexError>) {
        let may_fail = |error: &IndexError| {
            let met_loss = self.has_lost_member.get() && error.lost_node().is_some();
            met_loss || self.has_broken_worker.get() && error.fabric_failure().is_some()
        };
        if !matches!(&outcome, Err(error) if may_fail(error)) {
            self.expect(what, outcome);
        }
    }

    /// Reports a failure that no run may have.
    fn expect<T, E: Display>(&self, what: &str, outcome: Result<T, E>) {
        if let Err(error) = outcome {
            self.report_violation(Violation::new("errors", format!("{what}: {error}")));
        }
    }
}
