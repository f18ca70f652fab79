//! Final check of a node's memory, and the verdict on a history.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;

use farleaf::ModelCache;
use farleaf_executor::block_on;
use farleaf_fabric::Batch;
use farleaf_index::LayerKind;
use farleaf_node::members::Draining;
use farleaf_node::retrain::Retrainer;
use farleaf_node::sweep::{MemoryMaintainer, SweepReport};
use farleaf_pool::allocation::ChunkAllocator;
use farleaf_pool::queue::unwritten_count;
use farleaf_pool::tally::read_retrain_counters;

use super::{RunState, open_asking, open_still};
use crate::check::memory::Region;
use crate::check::{self, Violation};
use crate::fabric::endpoint::StillEndpoint;
use crate::history::{Answer, FINAL_CHECK, MAIN_TABLE, Operation};
use crate::node::TABLE_NAME;
use crate::plan::{FaultKind, Plan};
use crate::plant::Plant;
use crate::session::Session;
use crate::workers::train_still;

/// Steps in which a dropped table's memory becomes free, when no client works anymore: draw the
/// number, then free the chunks.
const RECLAIM_COUNT: u32 = 2;
/// Sweeps after which no value block waits for a session, when no client works anymore. One takes
/// over a list; the next one frees it and finds its parts, if its holder had died with them.
const SWEEP_COUNT: u32 = 4;
/// Steps after which certainly nothing is left to retrain or to free.
const RETRAIN_STEP_COUNT_MAX: u32 = 100;
/// Upper bound of the records of any run's table.
const RECORD_COUNT_MAX: usize = 1 << 20;

/// Sweeps, checks everything, and judges the history, when no client works anymore.
pub(super) fn conclude(run_state: &RunState, plan: &Plan) {
    if !run_state.is_lost.get()
        && let Err(error) = final_check(run_state, plan)
    {
        let how = format!("cannot read the memory at the end of the run: {error}");
        run_state.report_violation(Violation::new("region", how));
    }
    let history = run_state.history.borrow();
    let mut found = match plan.strings {
        None => check::steps::check(&run_state.node.world.borrow().holding(), plan.node_count),
        // Such tables are not retrained, and words of value blocks look like locks.
        Some(_) => Vec::new(),
    };
    found.extend(check::strings::check(
        run_state.node.world.borrow().stale_strings(),
    ));
    found.extend(check::strings::check_parts(
        run_state.node.world.borrow().stale_parts(),
    ));
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
        run_state.report_violation(violation);
    }
}

/// Sweeps, frees and audits; then reads all records of the tables.
fn final_check(run_state: &RunState, plan: &Plan) -> Result<(), Box<dyn core::error::Error>> {
    let node = &run_state.node;
    // A bug in how the node retrains shows in the work until nothing is left to do.
    let plant = run_state
        .plant
        .filter(|plant| *plant == Plant::LossNotPassed);
    let endpoint = StillEndpoint::with_plant(&node.world, plant);
    let owner = node.register(endpoint.client());
    let keeper = node.keeper(endpoint, owner);
    let swept = sweep_to_the_end(run_state, &keeper)?;
    // After the sweep: this keeper has taken over the work of dead agents.
    if node.takes_calls() && !node.close_ring_registry(&keeper) {
        let how = "all clients have ended, but rings are still held".to_owned();
        run_state.report_violation(Violation::new("progress", how));
    }
    let are_spared = run_state
        .run_clients
        .borrow()
        .iter()
        .all(|actor| actor.has_no_fault);
    // The sweep handles the work of a dead agent, too.
    let is_agent_spared = !plan
        .faults
        .iter()
        .any(|fault| matches!(fault.mishap, FaultKind::AgentDeath { .. }));
    // A split's new leaf has no owner if the leaf that it split was lost meanwhile.
    let is_judged = are_spared
        && is_agent_spared
        && !run_state.has_broken_worker.get()
        && plan.table.retraining.is_none()
        && !run_state.has_lost_member.get();
    if is_judged && let Some(violation) = check::sweeping::check(&swept) {
        run_state.report_violation(violation);
    }
    if is_agent_spared
        && let Some(violation) = check::sweeping::check_blocks(&swept, node.holding_count())
    {
        run_state.report_violation(violation);
    }
    for _ in 0..RECLAIM_COUNT {
        block_on(keeper.reclaim(), || 0)?;
    }
    let mut batch = Batch::new();
    let tally = read_retrain_counters(&keeper.endpoint, &keeper.layout, &mut batch);
    let (tally, _) = block_on(tally, || 0)?;
    run_state.rare_events.borrow_mut().moved_count = tally.moved_count;
    retrain_to_the_end(run_state, plan, &keeper)?;
    let unwritten = unwritten_count(&keeper.endpoint, &keeper.layout, &mut batch);
    run_state.rare_events.borrow_mut().lost_ticket_count = block_on(unwritten, || 0)?;
    let entries = block_on(keeper.catalog(), || 0)?;
    let allocator = ChunkAllocator::new(&keeper.endpoint, &keeper.layout, owner);
    let chunks = block_on(allocator.entries(), || 0)?;
    for violation in check::drops::check(&entries, &chunks) {
        run_state.report_violation(violation);
    }
    // What is on a lost node cannot be accounted for.
    if !run_state.has_lost_member.get() {
        for violation in check::bytes::check(&keeper, &entries, &chunks)? {
            run_state.report_violation(violation);
        }
    }
    node.fence(keeper.endpoint.client(), owner);

    let session = open_still(node, &run_state.findings, None, plan.strings.as_ref())?;
    let memory = Region::read(node, &session)?.ok_or("the table does not exist")?;
    for violation in memory.check() {
        run_state.report_violation(violation);
    }
    for violation in check::draining::check(node, &entries, memory.audit()) {
        run_state.report_violation(violation);
    }
    read_everything(run_state, plan, &session, &memory)?;
    block_on(session.close(), || 0)?;
    search_by_cache(run_state, plan, &memory)?;
    search_by_models(run_state, plan)
}

/// Sweeps until nothing waits for a grace period; returns the result of the first sweep.
fn sweep_to_the_end(
    run_state: &RunState,
    keeper: &MemoryMaintainer<StillEndpoint>,
) -> Result<SweepReport, Box<dyn core::error::Error>> {
    let first = block_on(keeper.sweep(), || 0)?;
    let mut last = first;
    for _ in 0..SWEEP_COUNT {
        if last.given_up_count + last.waiting_count == 0 {
            return Ok(first);
        }
        last = block_on(keeper.sweep(), || 0)?;
    }
    if last.given_up_count + last.waiting_count > 0 {
        let how = "all clients have ended, but the sweep still waits".to_owned();
        run_state.report_violation(Violation::new("progress", how));
    }
    Ok(first)
}

/// Checks that a new process's search by models finds every key.
fn search_by_models(run_state: &RunState, plan: &Plan) -> Result<(), Box<dyn core::error::Error>> {
    // Models that lead to leaves on a lost node cannot be read, and are not trained.
    if plan.table.layer != LayerKind::Xstore || run_state.has_lost_member.get() {
        return Ok(());
    }
    let session = open_asking(&run_state.node, &run_state.findings, ModelCache::All)?;
    let keys = plan.keys().into_iter();
    let mut keys: Vec<u64> = keys
        .flat_map(|key| [key.saturating_sub(1), key, key.saturating_add(1)])
        .chain([0, u64::MAX])
        .collect();
    keys.sort_unstable();
    keys.dedup();
    // The first request makes the node build a tree, if there was none before. A split by a worker
    // whose connection broke is in no tree before a request.
    let asked_count = if run_state.has_broken_worker.get() {
        keys.len()
    } else {
        1
    };
    for key in keys.iter().take(asked_count) {
        block_on(session.perform(&Operation::Get(*key), None), || 0)?;
    }
    if !train_still(&run_state.node, run_state.plant) {
        let how = "training of models does not end".to_owned();
        run_state.report_violation(Violation::new("progress", how));
    }
    block_on(session.close(), || 0)?;
    for cache in ModelCache::ALL {
        let session = open_asking(&run_state.node, &run_state.findings, cache)?;
        if let Some(violation) = check::models::check(&session, &keys)? {
            run_state.report_violation(violation);
        }
        block_on(session.close(), || 0)?;
    }
    Ok(())
}

/// Checks that a new process's cache, if any, leads to each listed leaf.
fn search_by_cache(
    run_state: &RunState,
    plan: &Plan,
    memory: &Region,
) -> Result<(), Box<dyn core::error::Error>> {
    let is_of_words = plan.strings.is_none();
    if plan.table.layer != LayerKind::RfTree || !is_of_words || run_state.has_lost_member.get() {
        return Ok(());
    }
    let session = open_still(&run_state.node, &run_state.findings, run_state.plant, None)?;
    let tables = memory.audit().tables.iter();
    for table in tables.filter(|table| table.entry.record.name == TABLE_NAME) {
        if let Some(violation) = check::caches::check(&session, &table.listed)? {
            run_state.report_violation(violation);
        }
    }
    Ok(block_on(session.close(), || 0)?)
}

/// Reads all records of the tables into the history.
fn read_everything(
    run_state: &RunState,
    plan: &Plan,
    session: &Session<StillEndpoint>,
    memory: &Region,
) -> Result<(), Box<dyn core::error::Error>> {
    let mut last = vec![Operation::Scan(0, RECORD_COUNT_MAX), Operation::Open];
    if run_state.has_lost_member.get() {
        // A scan stops at a lost node; there may be keys beyond it.
        last.extend(plan.keys().into_iter().map(Operation::Get));
    }
    let elsewhere = last
        .iter()
        .filter(|operation| **operation != Operation::Open);
    let elsewhere = elsewhere.map(|operation| Operation::Other(Box::new(operation.clone())));
    let elsewhere: Vec<Operation> = elsewhere.collect();
    last.push(Operation::List);
    for operation in last.into_iter().chain(elsewhere) {
        if session.must_open(&operation) {
            continue;
        }
        let table = session.table_of(&operation);
        let call = run_state
            .history
            .borrow_mut()
            .call(FINAL_CHECK, operation.clone(), table, None);
        let answer = block_on(session.perform(&operation, None), || 0)?;
        // Searches may still lead to a lost node for leaves that an uncommitted retraining has
        // moved away from it.
        if answer == Answer::NodeLost
            && plan.table.retraining.is_none()
            && let Some(how) = memory.should_answer(table, &operation)
        {
            run_state.report_violation(Violation::new("lost", how));
        }
        run_state.history.borrow_mut().answer(call, answer);
    }
    Ok(())
}

/// Retrains until nothing is left to do, and until draining nodes have left.
fn retrain_to_the_end(
    run_state: &RunState,
    plan: &Plan,
    keeper: &MemoryMaintainer<StillEndpoint>,
) -> Result<(), Box<dyn core::error::Error>> {
    let Some(policy) = plan.table.retraining else {
        return Ok(());
    };
    let (now, stop) = (Rc::new(Cell::new(0)), AtomicBool::new(false));
    let clock = Rc::clone(&now);
    let retrainer = Retrainer::new(policy, move || clock.get());
    let (mut draining, mut step_count) = (Draining::default(), 0);
    // Leaves that remain on a node are found at intervals of the retrainer.
    let drain_step_count_max =
        4 * (policy.look_tick_count + RECLAIM_COUNT) + RETRAIN_STEP_COUNT_MAX;
    loop {
        now.set(now.get() + policy.tick_ns);
        let is_busy = block_on(retrainer.tick(keeper, &stop), || 0)? || retrainer.has_garbage();
        if retrainer.take_wanted_sweep() || retrainer.take_left_blocks() {
            sweep_to_the_end(run_state, keeper)?;
        }
        block_on(draining.tick(keeper), || 0)?;
        run_state.node.stop_left();
        let is_draining = run_state.node.is_draining() && step_count < drain_step_count_max;
        if !is_busy && !is_draining {
            // For sweeps, strings that the retrainer has written are its own as long as it lives.
            let swept = sweep_to_the_end(run_state, keeper)?;
            if swept.chunk_count == 0 {
                return Ok(());
            }
            // The sweep has finished a failed retraining. The old snapshot is garbage now, and only
            // a retrainer collects it.
            retrainer.rescan();
        }
        step_count += 1;
        if step_count > RETRAIN_STEP_COUNT_MAX + drain_step_count_max {
            let how = "retraining does not end".to_owned();
            run_state.report_violation(Violation::new("progress", how));
            return Ok(());
        }
    }
}
