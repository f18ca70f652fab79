//! A store of its own for each workload: made, loaded, run, checked.

use std::sync::Arc;

use farleaf::{
    Error, ErrorKind, LayerKind, PageOptions, PartitionedPool, Pool, PoolOptions, SessionOptions,
    TableKind, TableOptions,
};

use super::audit::audit;
use super::crew::{Assignment, CrewResult, run_operations};
use super::spelling::Spelling;
use super::subject::{OneTable, Pools, StringTable, Subject, TableOfParts};
use super::tally::Tally;
use super::{BenchError, Phase, PhaseKind, ProgressSink, RunConfig, size};
use crate::dataset::KeySet;
use crate::report::RunReport;
use crate::verify::{ScanChecker, loaded_value};
use crate::workload::{InsertLedger, WorkloadLetter, WorkloadSpec};

/// The table, as YCSB calls it.
pub(crate) const TABLE_NAME: &str = "usertable";

/// A pool is made twice as large when its keys turn out not to fit, so often at the most.
const ENLARGEMENT_COUNT_MAX: u32 = 4;

/// A pool inside this process with a loaded table, or several, for one run of one workload.
///
/// [`run`](super::run) does all of it; the steps are apart for those who want to do something to
/// the store in between, through [`pool`](Self::pool).
#[derive(Debug)]
pub struct LoadedStore {
    config: RunConfig,
    workload: WorkloadLetter,
    keys: Arc<KeySet>,
    pools: Pools,
}

impl LoadedStore {
    /// Makes a pool with room for all records and inserts, or several, and loads the keys.
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
        let insert_count = config.insert_count_of(workload);
        let strings = keys.strings().map(AsRef::as_ref);
        let mut size_bytes = size::part_size_bytes(config, insert_count, strings);
        let mut enlargement_count = 0;
        let pools = loop {
            let pools = make_pools(config, keys, size_bytes);
            let pools = pools.map_err(BenchError::store(workload, "making a pool"))?;
            match load_into(&pools, config, keys, progress) {
                Ok(()) => break pools,
                // How many models keys need is known only when they are loaded.
                Err(error)
                    if matches!(error.kind_in_pool(), ErrorKind::Full(_))
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
            pools,
        })
    }

    /// The pool, whose only table is the loaded one; with partitions, the first part's.
    pub fn pool(&self) -> &Pool {
        self.pools.first()
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
            pools,
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
            pools,
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
        let (record_count, memory_bytes) = match pools {
            Pools::One(pool) => {
                self.check::<OneTable>(pool, &checker, (&mut crew.tally, progress))?
            }
            Pools::Several(pools) => {
                self.check::<TableOfParts>(pools, &checker, (&mut crew.tally, progress))?
            }
            Pools::Strings(pool) => {
                self.check::<StringTable>(pool, &checker, (&mut crew.tally, progress))?
            }
        };

        for description in &crew.tally.descriptions {
            progress.fault(*workload, description);
        }
        Ok(self.report(&crew, record_count, memory_bytes))
    }

    /// Checks all of the table; how many records it has, and how many bytes of far memory.
    fn check<S: Subject>(
        &self,
        place: &S::Place,
        checker: &ScanChecker,
        (tally, progress): (&mut Tally, &dyn ProgressSink),
    ) -> Result<(u64, u64), BenchError> {
        let failed = |activity| BenchError::store(self.workload, activity);
        let table = S::open(place, &SessionOptions::default());
        let table = table.map_err(failed("opening the table for the check"))?;
        let record_count = audit(&table, checker, tally, progress);
        let memory_bytes = table.memory_bytes();
        let memory_bytes = memory_bytes.map_err(failed("measuring the table"))?;
        table.close().map_err(failed("closing a session"))?;
        Ok((record_count, memory_bytes))
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
            slots: config.strings.is_none().then_some(config.slots),
            fill_percent: Some(config.fill_percent.into()),
            epsilon: Some(config.epsilon_keys),
            in_flight: Some(config.in_flight as u64),
            key_size_bytes: config
                .strings
                .filter(|_| self.keys.strings().is_none())
                .map(|strings| strings.key_size_bytes() as u64),
            value_size: config.strings.map(|strings| strings.value_size.to_string()),
            field_count: config
                .strings
                .map(|strings| strings.field_count as u64)
                .filter(|count| *count > 1),
            page_size_bytes: config.strings.map(|strings| strings.page_size_bytes),
            inline_value_size_bytes: config
                .strings
                .map(|strings| strings.inline_value_size_bytes),
            partitions: (config.partitions > 1).then_some(config.partitions as u64),
            metadata_budget_bytes: config.metadata_budget_bytes,
            link_count_max: config.link_count_max,
            model_cache: is_xstore.then(|| config.model_cache.to_string()),
            fallback_count: is_xstore.then_some(crew.fallback_count),
        }
    }
}

/// As many pools as the table has parts.
fn make_pools(config: &RunConfig, keys: &KeySet, size_bytes: u64) -> Result<Pools, Error> {
    let make = |_| {
        Pool::embedded(&PoolOptions {
            fabric: config.fabric.embedded(&config.verbs),
            size_bytes,
            ..PoolOptions::default()
        })
    };
    if let Some(strings) = config.strings {
        return Ok(Pools::Strings((make(0)?, Spelling::new(strings, keys))));
    }
    if config.partitions == 1 {
        return Ok(Pools::One(make(0)?));
    }
    let pools: Result<Vec<Pool>, Error> = (0..config.partitions).map(make).collect();
    Ok(Pools::Several(PartitionedPool::new(pools?)?))
}

/// Makes the table and loads all keys, with the values that [`loaded_value`] gives them.
pub(crate) fn load_keys(
    pool: &Pool,
    config: &RunConfig,
    keys: &KeySet,
    progress: &dyn ProgressSink,
) -> Result<(), Error> {
    load_into(&Pools::One(pool.clone()), config, keys, progress)
}

fn load_into(
    pools: &Pools,
    config: &RunConfig,
    keys: &KeySet,
    progress: &dyn ProgressSink,
) -> Result<(), Error> {
    let kind = config.strings.map_or(TableKind::Words, |strings| {
        TableKind::Bytes(PageOptions {
            page_size_bytes: strings.page_size_bytes,
            inline_value_size_bytes: strings.inline_value_size_bytes,
        })
    });
    let options = TableOptions {
        kind,
        slots: config.slots,
        layer: config.layer,
        fill_percent: config.fill_percent,
        epsilon_keys: config.epsilon_keys,
    };
    let advance = |done| progress.advance(done);
    pools.load(&options, keys.loaded(), loaded_value, advance)
}
