//! The last look at a region, and the verdict on a history.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use farleaf_executor::block_on;
use farleaf_fabric::Batch;
use farleaf_node::retrain::Retrainer;
use farleaf_region::allocation::ChunkAllocator;
use farleaf_region::queue::unwritten_count;

use super::{Stage, open_still};
use crate::check::region::Region;
use crate::check::{self, Violation};
use crate::fabric::endpoint::StillEndpoint;
use crate::history::{FINAL_CHECK, MAIN_TABLE, Operation};
use crate::plan::{Mishap, Plan};

/// Steps in which a dropped table's memory becomes free, when nobody works any more: the number is
/// drawn, then the chunks are freed.
const RECLAIM_COUNT: u32 = 2;
/// Steps after which nothing is left to retrain or to free, by far.
const RETRAIN_STEP_COUNT_MAX: u32 = 100;
/// More records than any run's table has.
const RECORD_COUNT_MAX: usize = 1 << 20;

/// Nobody works any more: sweeps, looks at everything, and judges the history.
pub(super) fn conclude(stage: &Stage, plan: &Plan) {
    if !stage.is_lost.get()
        && let Err(error) = last_look(stage, plan)
    {
        let how = format!("the region cannot be read in the end: {error}");
        stage.complain(Violation::new("region", how));
    }
    let history = stage.history.borrow();
    let mut found = check::steps::check(&stage.node.world.borrow().holding(), plan.node_count);
    found.extend(check::names::check(&history));
    found.extend(check::lists::check(&history));
    found.extend(check::refusals::check(&history, |table| {
        table == MAIN_TABLE && !plan.table.loaded.is_empty()
    }));
    for table in history.tables() {
        let initial: BTreeMap<u64, u64> = match table {
            MAIN_TABLE => plan.table.loaded.iter().copied().collect(),
            _ => BTreeMap::new(),
        };
        let history = history.of_table(table);
        found.extend(check::linearizability::check(
            &history,
            &initial,
            &plan.keys(),
        ));
        found.extend(check::scans::check(&history));
    }
    drop(history);
    for violation in found {
        stage.complain(violation);
    }
}

/// Sweeps, frees and audits; then reads everything that the tables hold.
fn last_look(stage: &Stage, plan: &Plan) -> Result<(), Box<dyn core::error::Error>> {
    let node = &stage.node;
    let endpoint = StillEndpoint::new(&node.world);
    let owner = node.register(endpoint.client());
    let keeper = node.keeper(endpoint, owner);
    let swept = block_on(keeper.sweep(), || 0)?;
    if swept.given_up_count > 0 {
        let how = "nobody works any more, and still the sweep waits".to_owned();
        stage.complain(Violation::new("progress", how));
    }
    let are_spared = stage.actors.borrow().iter().all(|actor| actor.was_spared);
    // What an agent that died was about is for the sweep, too.
    let is_agent_spared = !plan
        .faults
        .iter()
        .any(|fault| matches!(fault.mishap, Mishap::AgentDeath { .. }));
    let is_judged = are_spared && is_agent_spared && plan.table.retraining.is_none();
    if is_judged && let Some(left) = check::sweeping::check(&swept) {
        stage.complain(left);
    }
    for _ in 0..RECLAIM_COUNT {
        block_on(keeper.reclaim(), || 0)?;
    }
    if let Some(policy) = plan.table.retraining {
        let (retrainer, stop) = (Retrainer::new(policy, || 0), AtomicBool::new(false));
        let mut step_count = 0;
        while block_on(retrainer.tick(&keeper, &stop), || 0)? || retrainer.has_garbage() {
            step_count += 1;
            if step_count > RETRAIN_STEP_COUNT_MAX {
                let how = "retraining does not come to an end".to_owned();
                stage.complain(Violation::new("progress", how));
                break;
            }
        }
    }
    let mut batch = Batch::new();
    let unwritten = unwritten_count(&keeper.endpoint, &keeper.layout, &mut batch);
    stage.reached.borrow_mut().lost_ticket_count = block_on(unwritten, || 0)?;
    let entries = block_on(keeper.catalog(), || 0)?;
    let allocator = ChunkAllocator::new(&keeper.endpoint, &keeper.layout, owner);
    let chunks = block_on(allocator.entries(), || 0)?;
    for violation in check::drops::check(&entries, &chunks) {
        stage.complain(violation);
    }
    node.fence(keeper.endpoint.client(), owner);

    let session = open_still(node, &stage.findings)?;
    let region = Region::read(node, &session)?.ok_or("the table is gone")?;
    for violation in region.check() {
        stage.complain(violation);
    }
    let everything = Operation::Scan(0, RECORD_COUNT_MAX);
    let elsewhere = Operation::Other(Box::new(everything.clone()));
    for operation in [everything, Operation::List, Operation::Open, elsewhere] {
        if session.must_open(&operation) {
            continue;
        }
        let on = (session.table_of(&operation), None);
        let call = stage
            .history
            .borrow_mut()
            .call(FINAL_CHECK, operation.clone(), on);
        let answer = block_on(session.perform(&operation, None), || 0)?;
        stage.history.borrow_mut().answer(call, answer);
    }
    block_on(session.close(), || 0)?;
    Ok(())
}
