//! Loads a table per layer, and counts the costs of operations on it.

use farleaf::{
    Error, Insertion, KindCounters, LayerKind, OperationKind, Pool, PoolOptions, Session, Table,
    Update,
};
use serde::Serialize;

use super::CostsConfig;
use super::rows::{cost_row, header_text};
use crate::dataset::KeySet;
use crate::distribution::{below, numbered_stream};
use crate::runner::{
    BenchError, ProgressSink, Row, TABLE_NAME, check_memory, generate_keys_for, load_keys, size,
};
use crate::verify::loaded_value;

/// Operations between two progress reports.
const OPERATIONS_PER_REPORT: u64 = 1 << 12;

/// Costs of one kind of operation with one layer: means per operation, by the session's counters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CostRow {
    /// Name of the search layer.
    pub index: &'static str,
    /// Name of the operation.
    pub operation: &'static str,
    /// Number of operations.
    pub operations: u64,
    /// Batches awaited one after the other.
    pub round_trips: f64,
    /// Payload of READs, in bytes.
    pub bytes_read: f64,
    /// Payload of WRITEs, in bytes.
    pub bytes_written: f64,
    /// Compare-and-swaps and fetch-and-adds.
    pub atomics: f64,
    /// Leaf images read.
    pub leaves_read: f64,
    /// Links followed, from leaves and inner nodes that have split.
    pub links: f64,
    /// Repeated rounds.
    pub retries: f64,
    /// Round trips that are not counted for the operations: leasing leaves for splits, refreshing
    /// directories and caches.
    pub control_round_trips: f64,
    /// Bytes that the session held to find leaves, after the counted gets.
    pub metadata_bytes: u64,
    /// Bytes per loaded key that the session held to find leaves.
    pub metadata_bytes_per_key: f64,
    /// Operations that failed or returned a wrong answer.
    pub errors: u64,
    /// Operations that did not find an existing record.
    pub missing: u64,
}

impl CostRow {
    /// Returns whether every operation was correct.
    pub fn is_right(&self) -> bool {
        self.errors + self.missing == 0
    }
}

/// Loads a table with each layer and counts every kind of operation.
///
/// Wrong and missing answers are not errors of this function; the rows contain them.
///
/// # Errors
/// An option is out of range, the host has not enough memory, the key file is invalid or too small,
/// or the store failed otherwise.
pub fn run(config: &CostsConfig, sink: &dyn ProgressSink) -> Result<Vec<CostRow>, BenchError> {
    config.validate()?;
    sink.note(&header_text(config));
    let insert_count = config.table.operations;
    for layer in &config.layers {
        check_memory(&config.table_of(*layer), insert_count, None)?;
    }
    let keys = generate_keys_for(&config.table, insert_count, sink)?;
    let mut rows = Vec::new();
    for layer in &config.layers {
        let failed = |source: Error| BenchError::Layer {
            layer: *layer,
            source: Box::new(source),
        };
        let pool = loaded(config, *layer, &keys, sink).map_err(failed)?;
        let session = pool.session().map_err(failed)?;
        let table = session.open_table(TABLE_NAME).map_err(failed)?;
        let mut measurement = Measurement {
            config,
            layer: *layer,
            keys: &keys,
            session: &session,
            table: &table,
            sink,
            metadata_bytes: 0,
        };
        measurement.all(&mut rows);
        drop(table);
        session.close().map_err(failed)?;
    }
    Ok(rows)
}

/// Returns a pool without a retrainer, with the loaded table.
fn loaded(
    config: &CostsConfig,
    layer: LayerKind,
    keys: &KeySet,
    sink: &dyn ProgressSink,
) -> Result<Pool, Error> {
    sink.begin("loading", keys.record_count());
    let table = config.table_of(layer);
    let pool = Pool::embedded(&PoolOptions {
        fabric: table.fabric.embedded(&table.verbs),
        size_bytes: size::pool_size_bytes(&table, table.operations),
        retrain_thread_count: 0,
        ..PoolOptions::default()
    })?;
    load_keys(&pool, &table, keys, sink)?;
    Ok(pool)
}

/// Answer of an operation.
enum Answer {
    Right,
    Wrong,
    Missing,
}

impl Answer {
    fn of(value: Option<u64>, key: u64) -> Self {
        match value {
            Some(value) if value == loaded_value(key) => Self::Right,
            Some(_) => Self::Wrong,
            None => Self::Missing,
        }
    }
}

struct Measurement<'a> {
    config: &'a CostsConfig,
    layer: LayerKind,
    keys: &'a KeySet,
    session: &'a Session,
    table: &'a Table,
    sink: &'a dyn ProgressSink,
    metadata_bytes: u64,
}

impl Measurement<'_> {
    fn all(&mut self, rows: &mut Vec<CostRow>) {
        let (keys, table) = (self.keys, self.table);
        let loaded = keys.loaded();
        let mut random = numbered_stream(self.config.table.seed, 0);
        let mut place = || below(&mut random, keys.record_count()) as usize;
        let mut get = |_: u64| {
            let key = loaded[place()];
            Ok(Answer::of(table.get(key)?, key))
        };
        let warm = self.count("warm up", OperationKind::Get, &mut get);
        let search = self.count("search", OperationKind::Get, &mut get);
        self.metadata_bytes = table.metadata_bytes();
        // Errors of the gets before must not be lost.
        rows.push(self.with_held_bytes(CostRow {
            errors: search.errors + warm.errors,
            missing: search.missing + warm.missing,
            ..search
        }));
        let mut found = Vec::new();
        for (name, length) in [("scan 10", 10), ("scan 100", 100)] {
            let scan = |_| {
                let from = place();
                table.scan_into(loaded[from], length, &mut found)?;
                let expected = &loaded[from..loaded.len().min(from + length)];
                let expected = expected.iter().map(|key| (*key, loaded_value(*key)));
                let is_right = expected.eq(found.iter().copied());
                Ok(if is_right {
                    Answer::Right
                } else {
                    Answer::Wrong
                })
            };
            rows.push(self.with_held_bytes(self.count(name, OperationKind::Scan, scan)));
        }
        let update = |_| {
            let key = loaded[place()];
            // To its current value: later operations then know the expected value.
            Ok(match table.update(key, loaded_value(key))? {
                Update::Updated(previous) => Answer::of(Some(previous), key),
                Update::Absent => Answer::Missing,
            })
        };
        rows.push(self.with_held_bytes(self.count("update", OperationKind::Update, update)));
        let insert = |index| {
            let key = keys.key(keys.record_count() + index);
            Ok(match table.insert(key, loaded_value(key))? {
                Insertion::Inserted => Answer::Right,
                Insertion::AlreadyPresent(_) => Answer::Wrong,
            })
        };
        rows.push(self.with_held_bytes(self.count("insert", OperationKind::Insert, insert)));
        let delete = |index| {
            let key = keys.key(index);
            Ok(Answer::of(table.delete(key)?, key))
        };
        rows.push(self.with_held_bytes(self.count("delete", OperationKind::Delete, delete)));
    }

    fn with_held_bytes(&self, row: CostRow) -> CostRow {
        let row = CostRow {
            metadata_bytes: self.metadata_bytes,
            metadata_bytes_per_key: self.metadata_bytes as f64 / self.keys.record_count() as f64,
            ..row
        };
        self.sink.row(&Row::new(cost_row(&row), &row));
        row
    }

    /// Executes one kind of operation repeatedly. The bytes that a session holds are not known
    /// here.
    fn count(
        &self,
        operation: &'static str,
        kind: OperationKind,
        mut perform: impl FnMut(u64) -> Result<Answer, Error>,
    ) -> CostRow {
        let operations = self.config.table.operations;
        self.sink.begin("running", operations);
        let counters = || [kind, OperationKind::Control].map(|kind| self.session.counters(kind));
        let before = counters();
        let (mut errors, mut missing) = (0, 0);
        for index in 0..operations {
            match perform(index) {
                Ok(Answer::Right) => {}
                Ok(Answer::Missing) => missing += 1,
                Ok(Answer::Wrong) | Err(_) => errors += 1,
            }
            if index % OPERATIONS_PER_REPORT == 0 {
                self.sink.advance(index);
            }
        }
        let after = counters();
        let mean = |index: usize, of: fn(&KindCounters) -> u64| {
            (of(&after[index]) - of(&before[index])) as f64 / operations as f64
        };
        CostRow {
            index: self.layer.name(),
            operation,
            operations,
            round_trips: mean(0, |it| it.cost.round_trips),
            bytes_read: mean(0, |it| it.cost.bytes_read),
            bytes_written: mean(0, |it| it.cost.bytes_written),
            atomics: mean(0, |it| it.cost.atomics),
            leaves_read: mean(0, |it| it.cost.leaves_read),
            links: mean(0, |it| it.cost.links),
            retries: mean(0, |it| it.cost.retries),
            control_round_trips: mean(1, |it| it.cost.round_trips),
            metadata_bytes: 0,
            metadata_bytes_per_key: 0.0,
            errors,
            missing,
        }
    }
}
