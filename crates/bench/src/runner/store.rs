//! A store of its own for each workload: made, loaded, run, checked.

use std::sync::Arc;

use farleaf::{Error, ErrorKind, LayerKind, Pool, PoolOptions, Session, Table, TableOptions};

use super::audit::audit;
use super::crew::{Assignment, CrewResult, run_operations};
use super::{BenchError, Phase, PhaseKind, ProgressSink, RunConfig, size};
use crate::dataset::KeySet;
use crate::report::RunReport;
use crate::verify::{ScanChecker, loaded_value};
use crate::workload::{InsertLedger, WorkloadLetter, WorkloadSpec};

/// The table, as YCSB calls it.
pub(crate) const TABLE_NAME: &str = "usertable";

/// A pool is made twice as large when its keys turn out not to fit, so often at the most.
const ENLARGEMENT_COUNT_MAX: u32 = 4;

/// A pool inside this process with a loaded table, for one run of one workload.
///
/// [`run`](super::run) does all of it; the steps are apart for those who want to do something to
/// the store in between, through [`pool`](Self::pool).
#[derive(Debug)]
pub struct LoadedStore {
    config: RunConfig,
    workload: WorkloadLetter,
    keys: Arc<KeySet>,
    pool: Pool,
}

impl LoadedStore {
    /// Makes a pool with room for all records and inserts, and loads the keys.
    ///
    /// # Errors
    /// The host has not enough memory, or the store failed.
    pub fn load(
        config: &RunConfig,
        keys: &Arc<KeySet>,
        workload: WorkloadLetter,
        progress: &dyn ProgressSink,
    ) -> Result<Self, BenchError> {
        let kind = PhaseKind::Loading;
        progress.begin(Phase {
            workload: Some(workload),
            kind,
            total: keys.record_count(),
        });
        let mut size_bytes = size::pool_size_bytes(config, config.insert_count_of(workload));
        let mut enlargement_count = 0;
        let pool = loop {
            let fabric = config.fabric.embedded(&config.verbs);
            let pool = Pool::embedded(&PoolOptions {
                fabric,
                size_bytes,
                ..PoolOptions::default()
            });
            let pool = pool.map_err(BenchError::store(workload, "making a pool"))?;
            match load_keys(&pool, config, keys, progress) {
                Ok(()) => break pool,
                // How many models keys need is known only when they are loaded.
                Err(error)
                    if matches!(error.kind(), ErrorKind::Full(_))
                        && enlargement_count < ENLARGEMENT_COUNT_MAX =>
                {
                    enlargement_count += 1;
                    size_bytes = size_bytes.saturating_mul(2);
                }
                Err(error) => return Err(BenchError::store(workload, "loading")(error)),
            }
        };
        Ok(Self {
            config: config.clone(),
            workload,
            keys: Arc::clone(keys),
            pool,
        })
    }

    /// The pool, whose only table is the loaded one.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Runs the workload, then checks all of the table.
    ///
    /// # Errors
    /// The store failed outside of the operations that are counted, or a thread cannot be started.
    pub fn run(self, progress: &dyn ProgressSink) -> Result<RunReport, BenchError> {
        let Self {
            config,
            workload,
            keys,
            pool,
        } = &self;
        let spec = WorkloadSpec::of(*workload);
        let ledger = InsertLedger::new(keys.record_count(), config.insert_count_of(*workload));
        let ledger = Arc::new(ledger);
        let checker = ScanChecker::new(Arc::clone(keys), Arc::clone(&ledger));

        let kind = PhaseKind::Running;
        progress.begin(Phase {
            workload: Some(*workload),
            kind,
            total: config.operations,
        });
        let assignment = Assignment {
            config,
            spec,
            pool,
            keys,
            ledger: &ledger,
            checker: &checker,
        };
        let mut crew = run_operations(assignment, progress)?;

        let kind = PhaseKind::Checking;
        progress.begin(Phase {
            workload: Some(*workload),
            kind,
            total: ledger.existing_count(),
        });
        let failed = BenchError::store(*workload, "opening the table for the check");
        let (session, table) = open(pool).map_err(failed)?;
        let record_count = audit(&table, &checker, &mut crew.tally, progress);
        let memory_bytes = table.memory_bytes();
        let memory_bytes =
            memory_bytes.map_err(BenchError::store(*workload, "measuring the table"))?;
        drop(table);
        session
            .close()
            .map_err(BenchError::store(*workload, "closing a session"))?;

        for description in &crew.tally.descriptions {
            progress.fault(*workload, description);
        }
        Ok(self.report(&crew, record_count, memory_bytes))
    }

    fn report(&self, crew: &CrewResult, record_count: u64, memory_bytes: u64) -> RunReport {
        let config = &self.config;
        let operation_count = crew.recorder.operation_count();
        let spec = WorkloadSpec::of(self.workload);
        // An empty table has lost all its records, which `missing` says.
        let per_key = |bytes: u64| bytes as f64 / record_count.max(1) as f64;
        let seconds = crew.wall_time.as_secs_f64();
        let is_xstore = config.layer == LayerKind::Xstore;
        RunReport {
            workload: self.workload.to_string(),
            index: config.layer.to_string(),
            fabric: config.fabric.to_string(),
            dataset: config.dataset.to_string(),
            distribution: config.distribution.unwrap_or(spec.distribution).to_string(),
            records: config.records,
            operations: operation_count,
            threads: config.threads as u64,
            seed: config.seed,
            commit: config.commit.clone(),
            modelled: false,
            throughput_ops_per_s: if seconds > 0.0 {
                operation_count as f64 / seconds
            } else {
                0.0
            },
            metadata_bytes_per_key: per_key(crew.metadata_bytes_max),
            memory_bytes_per_key: per_key(memory_bytes),
            errors: crew.tally.errors,
            missing: crew.tally.missing,
            operations_by_kind: crew.recorder.operations_by_kind(),
            slots: Some(config.slots),
            fill_percent: Some(config.fill_percent.into()),
            epsilon: Some(config.epsilon_keys),
            in_flight: Some(config.in_flight as u64),
            metadata_budget_bytes: config.metadata_budget_bytes,
            link_count_max: config.link_count_max,
            model_cache: is_xstore.then(|| config.model_cache.to_string()),
            fallback_count: is_xstore.then_some(crew.fallback_count),
        }
    }
}

/// Makes the table and loads all keys, with the values that [`loaded_value`] gives them.
pub(crate) fn load_keys(
    pool: &Pool,
    config: &RunConfig,
    keys: &KeySet,
    progress: &dyn ProgressSink,
) -> Result<(), Error> {
    let options = TableOptions {
        slots: config.slots,
        layer: config.layer,
        fill_percent: config.fill_percent,
        epsilon_keys: config.epsilon_keys,
    };
    let session = pool.session()?;
    let table = session.create_table(TABLE_NAME, &options)?;
    let records = keys.loaded().iter().map(|key| (*key, loaded_value(*key)));
    table.bulk_load(records, |done| progress.advance(done))?;
    drop(table);
    session.close()
}

fn open(pool: &Pool) -> Result<(Session, Table), Error> {
    let session = pool.session()?;
    let table = session.open_table(TABLE_NAME)?;
    Ok((session, table))
}
