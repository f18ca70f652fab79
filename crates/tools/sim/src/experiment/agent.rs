//! Background thread of a memory node, on one of its cores: the real retrainer.

use std::rc::Rc;

use farleaf_node::retrain::Retrainer;
use farleaf_node::sweep::MemoryMaintainer;
use farleaf_pool::PoolLayout;

use super::ExperimentError;
use super::machine::SessionRegistry;
use super::plan::RetrainPlan;
use super::run::ExperimentState;
use crate::fabric::SharedWorld;
use crate::fabric::endpoint::SimEndpoint;
use crate::fabric::executor::sleep;

/// Background thread. It accesses its own node's memory through the node's NIC, like every client
/// (FABRIC-4).
pub(super) struct Agent {
    keeper: MemoryMaintainer<SimEndpoint>,
    retrainer: Rc<Retrainer>,
    tick_ns: u64,
}

impl Agent {
    pub(super) fn new(
        world: &SharedWorld,
        layout: PoolLayout,
        registry: &SessionRegistry,
        plan: RetrainPlan,
    ) -> Result<Self, ExperimentError> {
        let endpoint = SimEndpoint::new(world);
        let client = endpoint.client();
        let node = layout.node.0.into();
        world.modelled().machines.place_at_memory(client, node);
        let owner = registry.open(client)?;
        let clock_world = SharedWorld::clone(world);
        let clock = move || clock_world.borrow().now();
        Ok(Self {
            keeper: MemoryMaintainer {
                blocks: farleaf_node::sweep::BlockSweepers::default(),
                endpoint,
                layout,
                owner,
            },
            retrainer: Rc::new(Retrainer::new(plan.policy(), clock)),
            tick_ns: plan.tick_ns,
        })
    }

    /// Returns the retrainer, which counts its work.
    pub(super) fn retrainer(&self) -> &Rc<Retrainer> {
        &self.retrainer
    }

    /// Ticks like the library's agent, until the experiment is over.
    pub(super) async fn work(self, shared: &ExperimentState<'_>) {
        let mut is_more_due = false;
        loop {
            if !is_more_due {
                sleep(shared.world, self.tick_ns).await;
            }
            if shared.is_over() {
                return;
            }
            if let Err(error) = self.keeper.reclaim().await {
                return shared.fail(format!("a memory node cannot reclaim memory: {error}"));
            }
            match self.retrainer.tick(&self.keeper, &shared.stop).await {
                Ok(more) => is_more_due = more,
                Err(error) => {
                    return shared.fail(format!("a memory node cannot retrain: {error}"));
                }
            }
        }
    }
}
