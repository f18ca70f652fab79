//! What answers calls in a run: the real dispatcher and the real tables, in the simulated world. It
//! outlives agents, as it is the memory node's process and not its agent's thread.

use std::cell::Cell;
use std::rc::Rc;

use farleaf_fabric::Batch;
use farleaf_node::calls::dispatcher::Pile;
use farleaf_node::calls::{Dispatcher, Task};

use super::Stage;
use crate::check::Violation;
use crate::fabric::endpoint::SimEndpoint;
use crate::fabric::executor::{Tasks, sleep};
use crate::fabric::world::Nanos;

/// Between two looks at all mailboxes.
const LOOK_INTERVAL: Nanos = 500;
/// Until a worker begins with a request, at the most.
const WORKER_DELAY_MAX: Nanos = 20_000;
/// Requests that wait for workers or are being answered, at the most (J3).
const TASK_COUNT_MAX: usize = 6;

/// Starts it; it ends when nobody works any more. Each request is answered by a task of its own, in
/// any order.
pub(super) fn start_serving(tasks: &Rc<Tasks<'static>>, stage: &Rc<Stage>) {
    let (own, crew) = (Rc::clone(stage), Rc::clone(tasks));
    tasks.spawn(async move {
        let endpoint = Rc::new(SimEndpoint::with_plant(&own.node.world, own.plant));
        let mut dispatcher = Dispatcher::new(own.node.desk());
        let mut batch = Batch::new();
        let under_way_count = Rc::<Cell<usize>>::default();
        while own.busy.get() > 0 {
            let mut pile = Pile {
                tasks: Vec::new(),
                count_max: TASK_COUNT_MAX.saturating_sub(under_way_count.get()),
            };
            dispatcher.turn(&*endpoint, &mut batch, &mut pile).await;
            for task in pile.tasks {
                under_way_count.set(under_way_count.get() + 1);
                let delay = {
                    let mut world = own.node.world.borrow_mut();
                    world.random().magnitude(WORKER_DELAY_MAX)
                };
                let (stage, endpoint) = (Rc::clone(&own), Rc::clone(&endpoint));
                let count = Rc::clone(&under_way_count);
                crew.spawn_after(delay, async move {
                    answer(&stage, &endpoint, task).await;
                    count.set(count.get() - 1);
                });
            }
            sleep(&own.node.world, LOOK_INTERVAL).await;
        }
    });
}

async fn answer(stage: &Stage, endpoint: &SimEndpoint, task: Task) {
    let mut batch = Batch::new();
    let way = (endpoint, &stage.node.layout);
    if let Err(error) = task.answer(way, &mut batch, stage.node.server()).await {
        let how = format!("a call cannot be answered: {error}");
        stage.complain(Violation::new("errors", how));
    }
}
