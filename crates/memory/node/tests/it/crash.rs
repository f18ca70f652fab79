//! Interrupts one operation at every possible place.

use std::collections::BTreeMap;

use crate::audit::{Model, Usage, audit, usage};
use crate::catalog::{TableShape, create, find};
use crate::cutting::{Cut, CuttingEndpoint};
use crate::pool::Pool;
use farleaf_base::OwnerWord;
use farleaf_pool::catalog::EntryState;

/// Live tables of a node's memory.
pub(crate) type Tables = BTreeMap<&'static str, Model>;

/// Number of keys that a visitor adds beside a table's own: enough to split a leaf of any shape.
const VISITOR_KEY_COUNT: u64 = 20;

/// Operation and its effects.
pub(crate) struct Case<'a> {
    /// Creates a node's memory in which the operation can begin. Leftovers of dead sessions there
    /// are not swept.
    pub(crate) setup: &'a dyn Fn() -> Pool,
    /// Runs the operation; returns how many of its steps were acknowledged.
    pub(crate) operation: &'a dyn Fn(&Pool, &CuttingEndpoint, OwnerWord) -> usize,
    /// Tables before the operation and after each step.
    pub(crate) states: Vec<Tables>,
    /// Key near which the operation works.
    pub(crate) near: u64,
    /// Work that must succeed afterwards, besides reading and writing records.
    pub(crate) afterwards: &'a dyn Fn(&mut Pool, &mut Tables),
    /// Whether the operation frees chunks one by one; otherwise the usage afterwards is that of
    /// before or after it.
    pub(crate) is_gradual: bool,
    /// Approximate number of places at which it is interrupted.
    pub(crate) cut_count_max: usize,
}

/// Process that comes first after the crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FirstVisitor {
    Client,
    MemoryMaintainer,
}

impl Case<'_> {
    /// Interrupts the operation at every place; returns how many these were.
    pub(crate) fn run(&self) -> usize {
        let (before, after, cuts) = self.run_whole();
        for cut in &cuts {
            for comer in [FirstVisitor::Client, FirstVisitor::MemoryMaintainer] {
                let context = Context(self.near, *cut, comer);
                self.run_cut(*cut, comer, before, after);
                core::mem::forget(context);
            }
        }
        cuts.len()
    }

    /// Runs the operation to its end; returns the usage before and after, and where it can be
    /// interrupted.
    fn run_whole(&self) -> (Usage, Usage, Vec<Cut>) {
        let mut pool = (self.setup)();
        pool.sweep();
        let before = usage(&pool);
        assert_eq!(contents(&mut pool), self.states[0], "the setup");
        let mut pool = (self.setup)();
        let owner = pool.register();
        let endpoint = pool.cutting(Cut::NEVER);
        let step_count = (self.operation)(&pool, &endpoint, owner);
        assert_eq!(step_count + 1, self.states.len(), "nothing stops it");
        pool.fence(owner);
        pool.sweep();
        assert_eq!(
            contents(&mut pool),
            self.states[step_count],
            "the operation"
        );
        audit_tables(&pool, &self.states[step_count]);
        (before, usage(&pool), endpoint.cuts(self.cut_count_max))
    }

    fn run_cut(&self, cut: Cut, comer: FirstVisitor, before: Usage, after: Usage) {
        let mut pool = (self.setup)();
        let owner = pool.register();
        let endpoint = pool.cutting(cut);
        let acknowledged = (self.operation)(&pool, &endpoint, owner);
        pool.fence(owner);
        if comer == FirstVisitor::MemoryMaintainer {
            pool.sweep();
            let tables = self.assert_old_or_new(&mut pool, acknowledged);
            audit_tables(&pool, &tables);
            let used = usage(&pool);
            let few = before.leaves.min(after.leaves)..=before.leaves.max(after.leaves);
            assert!(few.contains(&used.leaves), "{used:?}");
            let has = |usage: Usage| (used.runs, used.snapshots) == (usage.runs, usage.snapshots);
            let is_old = tables == self.states[0];
            let is_new = tables == self.states[self.states.len() - 1];
            assert!(
                self.is_gradual
                    || is_old && has(before)
                    || is_new && has(after)
                    || !is_old && !is_new,
                "{used:?} where {before:?} or {after:?} was expected"
            );
        }
        let mut tables = self.assert_old_or_new(&mut pool, acknowledged);
        (self.afterwards)(&mut pool, &mut tables);
        self.visit(&mut pool, &mut tables);
        pool.sweep();
        assert_eq!(contents(&mut pool), tables, "at last");
        audit_tables(&pool, &tables);
    }

    /// Checks that a client finds the state before the interrupted step, or the state after it.
    fn assert_old_or_new(&self, pool: &mut Pool, acknowledged: usize) -> Tables {
        let found = contents(pool);
        let last = (acknowledged + 1).min(self.states.len() - 1);
        let allowed = &self.states[acknowledged..=last];
        assert!(
            allowed.contains(&found),
            "found {found:?} where one of {allowed:?} was expected"
        );
        found
    }

    /// Writes as a client near the crash until a leaf splits there, and closes.
    fn visit(&self, pool: &mut Pool, tables: &mut Tables) {
        let owner = pool.register();
        for (name, model) in tables.iter_mut() {
            let entry = find(pool, name).expect("it is live");
            let mut client = pool.client(owner, &entry);
            let first = self.near.saturating_sub(VISITOR_KEY_COUNT / 2);
            let first = first.min(u64::MAX - VISITOR_KEY_COUNT);
            for key in (first..).take(VISITOR_KEY_COUNT as usize) {
                client.put(key, 7).expect("a later put succeeds");
                model.insert(key, 7);
                assert_eq!(client.get(key).expect("a later get succeeds"), Some(7));
            }
            client.give_back().expect("closing succeeds");
        }
        pool.fence(owner);
    }
}

/// Guard that reports where an assertion failed, when it is dropped by a panic.
struct Context(u64, Cut, FirstVisitor);

impl Drop for Context {
    fn drop(&mut self) {
        eprintln!(
            "near {}, cut off at {:?}, first comes: {:?}",
            self.0, self.1, self.2
        );
    }
}

/// Returns what a new client finds in all tables by scans, and checks it by gets.
pub(crate) fn contents(pool: &mut Pool) -> Tables {
    let owner = pool.register();
    let mut tables = Tables::new();
    for entry in pool.catalog() {
        if entry.state != EntryState::Live {
            continue;
        }
        let mut client = pool.client(owner, &entry);
        let records = client.scan().expect("a scan succeeds");
        assert!(
            records.windows(2).all(|pair| pair[0].0 < pair[1].0),
            "LEAF-9"
        );
        for (key, value) in &records {
            assert_eq!(client.get(*key).expect("a get succeeds"), Some(*value));
        }
        let name = ["records", "other"]
            .into_iter()
            .find(|it| *it == entry.record.name);
        tables.insert(
            name.expect("a name of these tests"),
            records.into_iter().collect(),
        );
    }
    pool.fence(owner);
    tables
}

pub(crate) fn audit_tables(pool: &Pool, tables: &Tables) {
    let models: Vec<_> = tables.iter().map(|(name, model)| (*name, model)).collect();
    audit(pool, &models);
}

/// Returns keys 100, 200 and so on, each with its own value.
pub(crate) fn sample(record_count: u64) -> Vec<(u64, u64)> {
    (1..=record_count)
        .map(|index| (index * 100, index))
        .collect()
}

/// Creates the table `records` and loads it, in a session that closes normally.
pub(crate) fn loaded(shape: TableShape, record_count: u64) -> Pool {
    let mut pool = Pool::new();
    load_into(&mut pool, shape, record_count);
    pool
}

pub(crate) fn load_into(pool: &mut Pool, shape: TableShape, record_count: u64) {
    let owner = pool.register();
    create(pool, &pool.plain, owner, "records", shape).expect("a first table can be made");
    let entry = find(pool, "records").expect("it was made");
    if record_count > 0 {
        let mut client = pool.client(owner, &entry);
        client
            .load(&sample(record_count))
            .expect("an empty table can be loaded");
    }
    pool.fence(owner);
}

/// Returns a node's memory whose only table is `records`.
pub(crate) fn only_records(records: impl IntoIterator<Item = (u64, u64)>) -> Tables {
    Tables::from([("records", records.into_iter().collect())])
}
