//! One operation, cut off everywhere.

use std::collections::BTreeMap;

use crate::audit::{Model, Usage, audit, usage};
use crate::catalog::{Shape, create, find};
use crate::cutting::{Cut, CuttingEndpoint};
use crate::pool::Pool;
use farleaf_region::catalog::EntryState;
use farleaf_types::OwnerWord;

/// The live tables of a region.
pub(crate) type Tables = BTreeMap<&'static str, Model>;

/// Keys that a visitor adds beside a table's own: enough to split a leaf of any shape.
const VISITOR_KEY_COUNT: u64 = 20;

/// An operation and what it does.
pub(crate) struct Case<'a> {
    /// A region in which it can be begun. What dead sessions have left there is not swept.
    pub(crate) setup: &'a dyn Fn() -> Pool,
    /// Runs it; returns how many of its steps were acknowledged.
    pub(crate) operation: &'a dyn Fn(&Pool, &CuttingEndpoint, OwnerWord) -> usize,
    /// The tables before it and after each step.
    pub(crate) states: Vec<Tables>,
    /// Near which key it works.
    pub(crate) near: u64,
    /// What must go well afterwards, besides reading and writing records.
    pub(crate) afterwards: &'a dyn Fn(&mut Pool, &mut Tables),
    /// Whether it frees chunks one by one; else their use is that of before or after it.
    pub(crate) is_gradual: bool,
    /// At how many places it is cut off, about.
    pub(crate) cut_count_max: usize,
}

/// Who comes first after the crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comer {
    Client,
    Keeper,
}

impl Case<'_> {
    /// Cuts the operation off everywhere, and returns at how many places that was.
    pub(crate) fn run(&self) -> usize {
        let (before, after, cuts) = self.run_whole();
        for cut in &cuts {
            for comer in [Comer::Client, Comer::Keeper] {
                let context = Context(self.near, *cut, comer);
                self.run_cut(*cut, comer, (before, after));
                core::mem::forget(context);
            }
        }
        cuts.len()
    }

    /// Runs it to its end: what is in use before and after, and where it can be cut off.
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

    fn run_cut(&self, cut: Cut, comer: Comer, (before, after): (Usage, Usage)) {
        let mut pool = (self.setup)();
        let owner = pool.register();
        let endpoint = pool.cutting(cut);
        let acknowledged = (self.operation)(&pool, &endpoint, owner);
        pool.fence(owner);
        if comer == Comer::Keeper {
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

    /// A client finds what was there before the step that was cut off, or what is there after it.
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

    /// A client writes where the crash was, until a leaf splits there, and closes.
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

/// Tells where an assertion failed, by being dropped then.
struct Context(u64, Cut, Comer);

impl Drop for Context {
    fn drop(&mut self) {
        eprintln!(
            "near {}, cut off at {:?}, first comes: {:?}",
            self.0, self.1, self.2
        );
    }
}

/// What a client that comes now finds in all tables: by scans, and the same by gets.
pub(crate) fn contents(pool: &mut Pool) -> Tables {
    let owner = pool.register();
    let mut tables = Tables::new();
    for entry in pool.catalog() {
        if entry.state != EntryState::Live {
            continue;
        }
        let mut client = pool.client(owner, &entry);
        let records = client.scan().expect("a scan succeeds");
        assert!(records.windows(2).all(|pair| pair[0].0 < pair[1].0), "D9");
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

/// Keys 100, 200 and so on, with their own values.
pub(crate) fn sample(record_count: u64) -> Vec<(u64, u64)> {
    (1..=record_count)
        .map(|index| (index * 100, index))
        .collect()
}

/// Makes the table `records` and loads it, by a session that closes well.
pub(crate) fn loaded(shape: Shape, record_count: u64) -> Pool {
    let mut pool = Pool::new();
    load_into(&mut pool, shape, record_count);
    pool
}

pub(crate) fn load_into(pool: &mut Pool, shape: Shape, record_count: u64) {
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

/// A region whose only table is `records`.
pub(crate) fn only_records(records: impl IntoIterator<Item = (u64, u64)>) -> Tables {
    Tables::from([("records", records.into_iter().collect())])
}
