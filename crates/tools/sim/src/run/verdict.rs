//! The last look at a region, and the verdict on a history.

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
use farleaf_node::sweep::{Keeper, SweepReport};
use farleaf_region::allocation::ChunkAllocator;
use farleaf_region::queue::unwritten_count;
use farleaf_region::tally::read_tally;

use super::{Stage, open_asking, open_still};
use crate::check::region::Region;
use crate::check::{self, Violation};
use crate::fabric::endpoint::StillEndpoint;
use crate::history::{Answer, FINAL_CHECK, MAIN_TABLE, Operation};
use crate::node::TABLE_NAME;
use crate::plan::{Mishap, Plan};
use crate::plant::Plant;
use crate::session::Session;
use crate::workers::train_still;

/// Steps in which a dropped table's memory becomes free, when nobody works any more: the number is
/// drawn, then the chunks are freed.
const RECLAIM_COUNT: u32 = 2;
/// Sweeps after which no value block waits for anybody, when nobody works any more: one takes over
/// a list, the next one frees it and finds its parts, if its holder had died with them.
const SWEEP_COUNT: u32 = 4;
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
    let mut found = match plan.strings {
        None => check::steps::check(&stage.node.world.borrow().holding(), plan.node_count),
        // Nothing is retrained there; and words of value blocks look like locks.
        Some(_) => Vec::new(),
    };
    found.extend(check::strings::check(
        stage.node.world.borrow().stale_strings(),
    ));
    found.extend(check::strings::check_parts(
        stage.node.world.borrow().stale_parts(),
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
        stage.complain(violation);
    }
}

/// Sweeps, frees and audits; then reads everything that the tables hold.
fn last_look(stage: &Stage, plan: &Plan) -> Result<(), Box<dyn core::error::Error>> {
    let node = &stage.node;
    // A bug in how the node retrains shows in what it does until nothing is left to do.
    let plant = stage.plant.filter(|plant| *plant == Plant::LossNotPassed);
    let endpoint = StillEndpoint::with_plant(&node.world, plant);
    let owner = node.register(endpoint.client());
    let keeper = node.keeper(endpoint, owner);
    let swept = sweep_to_the_end(stage, &keeper)?;
    // After the sweep: what dead agents were about is this keeper's now (J4).
    if node.takes_calls() && !node.close_desk(&keeper) {
        let how = "nobody works any more, and still rings are held".to_owned();
        stage.complain(Violation::new("progress", how));
    }
    let are_spared = stage.actors.borrow().iter().all(|actor| actor.was_spared);
    // What an agent that died was about is for the sweep, too.
    let is_agent_spared = !plan
        .faults
        .iter()
        .any(|fault| matches!(fault.mishap, Mishap::AgentDeath { .. }));
    // And what a split was to link is nobody's, if its leaf was lost meanwhile (U4).
    let is_judged = are_spared
        && is_agent_spared
        && !stage.has_broken_worker.get()
        && plan.table.retraining.is_none()
        && !stage.has_lost_member.get();
    if is_judged && let Some(left) = check::sweeping::check(&swept) {
        stage.complain(left);
    }
    if is_agent_spared
        && let Some(left) = check::sweeping::check_blocks(&swept, node.holding_count())
    {
        stage.complain(left);
    }
    for _ in 0..RECLAIM_COUNT {
        block_on(keeper.reclaim(), || 0)?;
    }
    let mut batch = Batch::new();
    let tally = read_tally(&keeper.endpoint, &keeper.layout, &mut batch);
    let (tally, _) = block_on(tally, || 0)?;
    stage.reached.borrow_mut().moved_count = tally.moved_count;
    retrain_to_the_end(stage, plan, &keeper)?;
    let unwritten = unwritten_count(&keeper.endpoint, &keeper.layout, &mut batch);
    stage.reached.borrow_mut().lost_ticket_count = block_on(unwritten, || 0)?;
    let entries = block_on(keeper.catalog(), || 0)?;
    let allocator = ChunkAllocator::new(&keeper.endpoint, &keeper.layout, owner);
    let chunks = block_on(allocator.entries(), || 0)?;
    for violation in check::drops::check(&entries, &chunks) {
        stage.complain(violation);
    }
    // What is on a lost node nobody can account for (U4).
    if !stage.has_lost_member.get() {
        for violation in check::bytes::check(&keeper, &entries, &chunks)? {
            stage.complain(violation);
        }
    }
    node.fence(keeper.endpoint.client(), owner);

    let session = open_still(node, &stage.findings, (None, plan.strings.as_ref()))?;
    let region = Region::read(node, &session)?.ok_or("the table is gone")?;
    for violation in region.check() {
        stage.complain(violation);
    }
    for violation in check::draining::check(node, &entries, region.audit()) {
        stage.complain(violation);
    }
    read_everything(stage, plan, &session, &region)?;
    block_on(session.close(), || 0)?;
    search_by_cache(stage, plan, &region)?;
    search_by_models(stage, plan)
}

/// Sweeps until nothing waits for a grace period; what the first sweep found.
fn sweep_to_the_end(
    stage: &Stage,
    keeper: &Keeper<StillEndpoint>,
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
        let how = "nobody works any more, and still the sweep waits".to_owned();
        stage.complain(Violation::new("progress", how));
    }
    Ok(first)
}

/// Y6: a process that has not known the table before searches by models.
fn search_by_models(stage: &Stage, plan: &Plan) -> Result<(), Box<dyn core::error::Error>> {
    // What leads to leaves on a lost node cannot be read, and is not trained.
    if plan.table.layer != LayerKind::Xstore || stage.has_lost_member.get() {
        return Ok(());
    }
    let session = open_asking(&stage.node, &stage.findings, ModelCache::All)?;
    let keys = plan.keys().into_iter();
    let mut keys: Vec<u64> = keys
        .flat_map(|key| [key.saturating_sub(1), key, key.saturating_add(1)])
        .chain([0, u64::MAX])
        .collect();
    keys.sort_unstable();
    keys.dedup();
    // Once it was asked, the node makes a tree if nobody has asked before. And what a worker split
    // whose connection broke is in no tree before somebody has asked for it (Y4).
    let asked_count = if stage.has_broken_worker.get() {
        keys.len()
    } else {
        1
    };
    for key in keys.iter().take(asked_count) {
        block_on(session.perform(&Operation::Get(*key), None), || 0)?;
    }
    if !train_still(&stage.node, stage.plant) {
        let how = "training models does not come to an end".to_owned();
        stage.complain(Violation::new("progress", how));
    }
    block_on(session.close(), || 0)?;
    for cache in ModelCache::ALL {
        let session = open_asking(&stage.node, &stage.findings, cache)?;
        if let Some(violation) = check::models::check(&session, &keys)? {
            stage.complain(violation);
        }
        block_on(session.close(), || 0)?;
    }
    Ok(())
}

/// A process that has not known the table before searches by a cache of its own, if there is one.
fn search_by_cache(
    stage: &Stage,
    plan: &Plan,
    region: &Region,
) -> Result<(), Box<dyn core::error::Error>> {
    let is_of_words = plan.strings.is_none();
    if plan.table.layer != LayerKind::RfTree || !is_of_words || stage.has_lost_member.get() {
        return Ok(());
    }
    let session = open_still(&stage.node, &stage.findings, (stage.plant, None))?;
    let tables = region.audit().tables.iter();
    for table in tables.filter(|table| table.entry.record.name == TABLE_NAME) {
        if let Some(violation) = check::caches::check(&session, &table.listed)? {
            stage.complain(violation);
        }
    }
    Ok(block_on(session.close(), || 0)?)
}

/// Reads everything that the tables hold, and notes it in the history.
fn read_everything(
    stage: &Stage,
    plan: &Plan,
    session: &Session<StillEndpoint>,
    region: &Region,
) -> Result<(), Box<dyn core::error::Error>> {
    let mut last = vec![Operation::Scan(0, RECORD_COUNT_MAX), Operation::Open];
    if stage.has_lost_member.get() {
        // A scan stops where a node is lost; keys beyond it may be there.
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
        let call = stage
            .history
            .borrow_mut()
            .call(FINAL_CHECK, operation.clone(), (table, None));
        let answer = block_on(session.perform(&operation, None), || 0)?;
        // What retraining has moved away from a lost node may still be searched for there, if it
        // was cut off before it was committed.
        if answer == Answer::NodeLost
            && plan.table.retraining.is_none()
            && let Some(how) = region.should_answer(table, &operation)
        {
            stage.complain(Violation::new("lost", how));
        }
        stage.history.borrow_mut().answer(call, answer);
    }
    Ok(())
}

/// Retrains until there is nothing left to do, and until nodes that are to be left have been.
fn retrain_to_the_end(
    stage: &Stage,
    plan: &Plan,
    keeper: &Keeper<StillEndpoint>,
) -> Result<(), Box<dyn core::error::Error>> {
    let Some(policy) = plan.table.retraining else {
        return Ok(());
    };
    let (now, stop) = (Rc::new(Cell::new(0)), AtomicBool::new(false));
    let clock = Rc::clone(&now);
    let retrainer = Retrainer::new(policy, move || clock.get());
    let (mut draining, mut step_count) = (Draining::default(), 0);
    // Leaves that are left on a node are looked for at the retrainer's own looks.
    let drain_step_count_max =
        4 * (policy.look_tick_count + RECLAIM_COUNT) + RETRAIN_STEP_COUNT_MAX;
    loop {
        now.set(now.get() + policy.tick_ns);
        let is_busy = block_on(retrainer.tick(keeper, &stop), || 0)? || retrainer.has_garbage();
        if retrainer.take_wanted_sweep() || retrainer.take_left_blocks() {
            sweep_to_the_end(stage, keeper)?;
        }
        block_on(draining.tick(keeper), || 0)?;
        stage.node.stop_left();
        let is_draining = stage.node.is_draining() && step_count < drain_step_count_max;
        if !is_busy && !is_draining {
            // Strings that it has written are its own as long as it lives, as far as sweeps know.
            let swept = sweep_to_the_end(stage, keeper)?;
            if swept.chunk_count == 0 {
                return Ok(());
            }
            // The sweep has finished a retraining that had failed (R6). The old snapshot is garbage
            // now (T2), and only a retrainer collects it.
            retrainer.look_again();
        }
        step_count += 1;
        if step_count > RETRAIN_STEP_COUNT_MAX + drain_step_count_max {
            let how = "retraining does not come to an end".to_owned();
            stage.complain(Violation::new("progress", how));
            return Ok(());
        }
    }
}
