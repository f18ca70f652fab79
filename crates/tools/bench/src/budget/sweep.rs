//! Sweep: loads a table once, and measures gets under each budget.

use std::sync::Arc;
use std::time::Instant;

use farleaf::{
    KindCounters, METADATA_BUDGET_BYTES_MIN, OperationKind, PartialCounts, Pool, Session,
    SessionOptions, Table,
};
use serde::Serialize;

use super::BudgetConfig;
use super::rows::{header_text, point_row};
use crate::dataset::KeySet;
use crate::distribution::{Distribution, IndexChooser, numbered_stream};
use crate::runner::fault_counts::FaultCounts;
use crate::runner::{BenchError, LoadedStore, ProgressSink, Row, TABLE_NAME, generate_keys};
use crate::verify::loaded_value;
use crate::workload::WorkloadLetter;

/// Gets between two progress reports.
const GETS_PER_REPORT: u64 = 1 << 12;

/// Means per get.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Mean {
    /// Round trips per get.
    pub round_trips: f64,
    /// Leaves read per get.
    pub leaves: f64,
    /// Bytes read per get.
    pub bytes_read: f64,
    /// Model pages fetched per get.
    pub model_pages: f64,
    /// Residual pages fetched per get.
    pub residual_pages: f64,
    /// Pages evicted per get, of both kinds.
    pub pages_evicted: f64,
}

/// Costs of gets under one budget.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BudgetPoint {
    /// Distribution of requests.
    pub distribution: Distribution,
    /// Budget in percent of the bytes that a session without one holds; `None` if there was no
    /// budget.
    pub percent: Option<f64>,
    /// Budget in bytes.
    pub budget_bytes: Option<u64>,
    /// Bytes that the session held at the end.
    pub held_bytes: u64,
    /// Number of measured gets.
    pub gets: u64,
    /// Gets per second.
    pub gets_per_s: f64,
    /// Means per get.
    pub mean: Mean,
    /// Share of gets that one leaf answered in one round trip.
    pub one_leaf_fraction: f64,
    /// Total number of gets that failed or returned a wrong value.
    pub errors: u64,
    /// Total number of gets that did not find an existing record.
    pub missing: u64,
}

/// Results of a sweep.
#[derive(Clone, Debug)]
pub struct BudgetReport {
    /// Settings of the sweep.
    pub config: BudgetConfig,
    /// Bytes that a session without a budget holds.
    pub full_bytes: u64,
    /// Points, distribution by distribution.
    pub points: Vec<BudgetPoint>,
}

impl BudgetReport {
    /// Returns whether every get was correct.
    pub fn is_right(&self) -> bool {
        let mut points = self.points.iter();
        points.all(|point| point.errors + point.missing == 0)
    }
}

/// Loads the table and measures every budget with every distribution.
///
/// Wrong and missing answers are not errors of this function; the report contains them.
///
/// # Errors
/// An option is out of range, a budget is too small for any table, the host has not enough memory,
/// or the store failed otherwise.
pub fn run(config: &BudgetConfig, sink: &dyn ProgressSink) -> Result<BudgetReport, BenchError> {
    config.validate()?;
    let keys = generate_keys(&config.table, sink)?;
    let store = LoadedStore::load(&config.table, &keys, WorkloadLetter::C, sink)?;
    let sweep = Sweep {
        config,
        keys,
        pool: store.pool(),
        sink,
    };
    let (_session, table) = sweep.open(None)?;
    let full_bytes = table.metadata_bytes();
    drop(table);
    let budgets: Vec<(f64, u64)> = config
        .percents
        .iter()
        .map(|percent| Ok((*percent, budget_bytes(full_bytes, *percent)?)))
        .collect::<Result<_, BenchError>>()?;
    sink.note(&header_text(config, full_bytes));
    let mut points = Vec::new();
    for distribution in &config.distributions {
        let all = budgets.iter().copied().map(Some);
        for budget in core::iter::once(None).chain(all) {
            let point = sweep.measure(*distribution, budget)?;
            sink.row(&Row::new(point_row(&point), &point));
            points.push(point);
        }
    }
    Ok(BudgetReport {
        config: config.clone(),
        full_bytes,
        points,
    })
}

#[expect(clippy::cast_sign_loss, reason = "percents are positive")]
fn budget_bytes(full_bytes: u64, percent: f64) -> Result<u64, BenchError> {
    let bytes = (full_bytes as f64 * percent / 100.0) as u64;
    if bytes >= METADATA_BUDGET_BYTES_MIN {
        return Ok(bytes);
    }
    let given = format!("{percent} % of {full_bytes} bytes ({bytes} bytes)");
    let allowed =
        format!("at least {METADATA_BUDGET_BYTES_MIN} bytes; use larger budgets or more --records");
    Err(BenchError::bad("budgets", given, allowed))
}

struct Sweep<'a> {
    config: &'a BudgetConfig,
    keys: Arc<KeySet>,
    pool: &'a Pool,
    sink: &'a dyn ProgressSink,
}

/// Values of the counters of gets at a moment.
struct GetCounters {
    gets: KindCounters,
    pages: PartialCounts,
}

impl GetCounters {
    fn now(session: &Session, table: &Table) -> Self {
        Self {
            gets: session.counters(OperationKind::Get),
            // Without a budget nothing is fetched.
            pages: table.partial_counts().unwrap_or_default(),
        }
    }
}

impl Sweep<'_> {
    fn open(&self, metadata_budget_bytes: Option<u64>) -> Result<(Session, Table), BenchError> {
        let failed = BenchError::store(WorkloadLetter::C, "opening a session");
        let options = SessionOptions {
            metadata_budget_bytes,
            ..SessionOptions::default()
        };
        let session = self.pool.session_with(&options).map_err(failed)?;
        let failed = BenchError::store(WorkloadLetter::C, "opening the table");
        let table = session.open_table(TABLE_NAME).map_err(failed)?;
        Ok((session, table))
    }

    fn measure(
        &self,
        distribution: Distribution,
        budget: Option<(f64, u64)>,
    ) -> Result<BudgetPoint, BenchError> {
        let gets = self.config.table.operations;
        self.sink.begin("running", 2 * gets);
        let budget_bytes = budget.map(|(_, bytes)| bytes);
        let (session, table) = self.open(budget_bytes)?;
        let mut chooser = IndexChooser::new(distribution, self.keys.record_count(), 0);
        let mut random = numbered_stream(self.config.table.seed, 0);
        let mut faults = FaultCounts::default();
        let mut run_gets = |earlier_gets: u64| {
            for index in 0..gets {
                let key = self.keys.key(chooser.choose(&mut random, 0));
                match table.get(key) {
                    Ok(Some(value)) if value == loaded_value(key) => {}
                    Ok(None) => faults.missing += 1,
                    Ok(Some(_)) | Err(_) => faults.errors += 1,
                }
                if index % GETS_PER_REPORT == 0 {
                    self.sink.advance(earlier_gets + index);
                }
            }
        };
        run_gets(0);
        let before = GetCounters::now(&session, &table);
        let started = Instant::now();
        run_gets(gets);
        let seconds = started.elapsed().as_secs_f64();
        let after = GetCounters::now(&session, &table);
        let one_leaf = after.gets.one_leaf_operations - before.gets.one_leaf_operations;
        Ok(BudgetPoint {
            distribution,
            percent: budget.map(|(percent, _)| percent),
            budget_bytes,
            held_bytes: table.metadata_bytes(),
            gets,
            gets_per_s: gets as f64 / seconds.max(1e-9),
            mean: mean(gets, &before, &after),
            one_leaf_fraction: one_leaf as f64 / gets as f64,
            errors: faults.errors,
            missing: faults.missing,
        })
    }
}

fn mean(gets: u64, before: &GetCounters, after: &GetCounters) -> Mean {
    let (cost, cost_before) = (after.gets.cost, before.gets.cost);
    let (pages, pages_before) = (after.pages, before.pages);
    let of = |after: u64, before: u64| (after - before) as f64 / gets as f64;
    Mean {
        round_trips: of(cost.round_trips, cost_before.round_trips),
        leaves: of(cost.leaves_read, cost_before.leaves_read),
        bytes_read: of(cost.bytes_read, cost_before.bytes_read),
        model_pages: of(pages.model_pages_fetched, pages_before.model_pages_fetched),
        residual_pages: of(
            pages.residual_pages_fetched,
            pages_before.residual_pages_fetched,
        ),
        pages_evicted: of(pages.pages_evicted, pages_before.pages_evicted),
    }
}
