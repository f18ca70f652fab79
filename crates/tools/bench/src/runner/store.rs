//! Store of a workload: created, loaded, run, checked.

use std::sync::Arc;

use farleaf::{LayerKind, Pool, SessionOptions};

use super::audit::audit;
use super::client_threads::{OperationResults, ThreadSettings, run_operations};
use super::cluster::{ClusterStore, DeviceBytes, LoadedClusterTable};
use super::fault_counts::FaultCounts;
use super::pools::Pools;
use super::string_table::{PoolStore, StringTable};
use super::subject::{OneTable, Subject, TableOfParts};
use super::{BenchError, ProgressSink, RunConfig};
use crate::dataset::KeySet;
use crate::report::{PersistentReport, RunReport};
use crate::verify::ScanChecker;
use crate::workload::{InsertLedger, WorkloadLetter, WorkloadSpec};

/// Name of the table in YCSB.
pub(crate) const TABLE_NAME: &str = "usertable";

/// Location of a run's table.
#[derive(Debug)]
pub(super) enum TableLocation {
    /// In one or several pools inside this process.
    Pools(Pools),
    /// On the disks of servers.
    Cluster(Box<LoadedClusterTable>),
}

/// Loaded table in one or several pools inside this process, or in a cluster, for one run of one
/// workload.
///
/// [`run`](super::run) executes all steps. They are separate for callers that change the store in
/// between, through [`pool`](Self::pool).
#[derive(Debug)]
pub struct LoadedStore {
    config: RunConfig,
    workload: WorkloadLetter,
    keys: Arc<KeySet>,
    site: TableLocation,
}

impl LoadedStore {
    /// Creates pools with space for all records and inserts, or a table in a cluster, and loads the
    /// keys.
    ///
    /// # Errors
    /// The host has not enough memory, the store failed, or the cluster has a table of that name.
    pub fn load(
        config: &RunConfig,
        keys: &Arc<KeySet>,
        workload: WorkloadLetter,
        progress: &dyn ProgressSink,
    ) -> Result<Self, BenchError> {
        progress.begin(&format!("YCSB {workload}, loading"), keys.record_count());
        let site = match &config.persistent {
            None => TableLocation::Pools(Pools::make_loaded(config, keys, workload, progress)?),
            Some(persistent) => {
                let loaded_table =
                    LoadedClusterTable::make_loaded(config, persistent, keys, workload, progress)?;
                TableLocation::Cluster(Box::new(loaded_table))
            }
        };
        Ok(Self {
            config: config.clone(),
            workload,
            keys: Arc::clone(keys),
            site,
        })
    }

    /// Returns the pool, whose only table is the loaded one; with partitions, the first part's.
    ///
    /// # Panics
    /// The table is in a cluster.
    pub fn pool(&self) -> &Pool {
        match &self.site {
            TableLocation::Pools(pools) => pools.first(),
            TableLocation::Cluster(_) => panic!("a persistent table is in no pool"),
        }
    }

    /// Runs the workload, then checks the whole table, and drops it if other clients would see it.
    ///
    /// # Errors
    /// The store failed outside of the counted operations, or a thread cannot be started.
    pub fn run(self, progress: &dyn ProgressSink) -> Result<RunReport, BenchError> {
        let Self {
            config,
            workload,
            keys,
            site,
        } = &self;
        let spec = WorkloadSpec::of(*workload);
        let ledger = InsertLedger::new(keys.record_count(), config.insert_count_of(*workload));
        let ledger = Arc::new(ledger);
        let checker = ScanChecker::new(Arc::clone(keys), Arc::clone(&ledger));

        progress.begin(&format!("YCSB {workload}, running"), config.operations);
        let assignment = ThreadSettings {
            config,
            spec,
            site,
            keys,
            ledger: &ledger,
            checker: &checker,
        };
        let device_before = self.device_bytes();
        let mut client_threads = run_operations(assignment, progress)?;
        let device_after = self.device_bytes();

        progress.begin(
            &format!("YCSB {workload}, checking"),
            ledger.existing_count(),
        );
        let faults = &mut client_threads.fault_counts;
        let (record_count, memory_bytes) = match site {
            TableLocation::Pools(Pools::One(pool)) => {
                self.check::<OneTable>(pool, &checker, faults, progress)?
            }
            TableLocation::Pools(Pools::Several(pools)) => {
                self.check::<TableOfParts>(pools, &checker, faults, progress)?
            }
            TableLocation::Pools(Pools::Strings(pool)) => {
                self.check::<StringTable<PoolStore>>(pool, &checker, faults, progress)?
            }
            TableLocation::Cluster(loaded_table) => self.check::<StringTable<ClusterStore>>(
                loaded_table.store(),
                &checker,
                faults,
                progress,
            )?,
        };
        for description in &client_threads.fault_counts.descriptions {
            progress.fault(&format!("YCSB {workload}: {description}"));
        }
        let mut report = self.report(&client_threads, record_count, memory_bytes);
        if let (Some(persistent), Some(after), Some(before)) =
            (&mut report.persistent, device_after, device_before)
        {
            persistent.device = Some(after.since(before).for_each(report.operations));
        }
        self.close()?;
        Ok(report)
    }

    /// Returns the device bytes of own servers so far.
    fn device_bytes(&self) -> Option<DeviceBytes> {
        match &self.site {
            TableLocation::Pools(_) => None,
            TableLocation::Cluster(loaded_table) => loaded_table.device_bytes(),
        }
    }

    fn close(self) -> Result<(), BenchError> {
        match self.site {
            TableLocation::Pools(_) => Ok(()),
            TableLocation::Cluster(loaded_table) => loaded_table.close(self.workload),
        }
    }

    /// Checks the whole table. Returns its number of records, and its bytes of far memory.
    fn check<S: Subject>(
        &self,
        place: &S::Place,
        checker: &ScanChecker,
        fault_counts: &mut FaultCounts,
        progress: &dyn ProgressSink,
    ) -> Result<(u64, Option<u64>), BenchError> {
        let failed = |activity| BenchError::store(self.workload, activity);
        let table = S::open(place, &SessionOptions::default());
        let table = table.map_err(failed("opening the table for the check"))?;
        let record_count = audit(&table, checker, fault_counts, progress);
        let memory_bytes = table.memory_bytes();
        let memory_bytes = memory_bytes.map_err(failed("measuring the table"))?;
        table.close().map_err(failed("closing a session"))?;
        Ok((record_count, memory_bytes))
    }

    fn report(
        &self,
        client_threads: &OperationResults,
        record_count: u64,
        memory_bytes: Option<u64>,
    ) -> RunReport {
        let config = &self.config;
        let operation_count = client_threads.recorder.operation_count();
        let spec = WorkloadSpec::of(self.workload);
        // An empty table has lost all its records, which `missing` reports.
        let per_key = |bytes: u64| bytes as f64 / record_count.max(1) as f64;
        let seconds = client_threads.wall_time.as_secs_f64();
        let persistent = self.persistent_report();
        let is_in_memory = persistent.is_none();
        let pages = config.strings.filter(|_| is_in_memory);
        let is_xstore = config.layer == LayerKind::Xstore;
        RunReport {
            workload: self.workload.to_string(),
            index: persistent
                .as_ref()
                .map_or_else(|| config.layer.to_string(), |_| "lsm".to_owned()),
            fabric: persistent
                .as_ref()
                .map_or_else(|| config.fabric.to_string(), |_| "tcp".to_owned()),
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
            metadata_bytes_per_key: client_threads.metadata_bytes_max.map(per_key),
            memory_bytes_per_key: memory_bytes.map(per_key),
            errors: client_threads.fault_counts.errors,
            missing: client_threads.fault_counts.missing,
            operations_by_kind: client_threads.recorder.operations_by_kind(),
            slots: config.strings.is_none().then_some(config.slots),
            fill_percent: is_in_memory.then_some(config.fill_percent.into()),
            epsilon: is_in_memory.then_some(config.epsilon_keys),
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
            page_size_bytes: pages.map(|strings| strings.page_size_bytes),
            inline_value_size_bytes: pages.map(|strings| strings.inline_value_size_bytes),
            partitions: (config.partitions > 1).then_some(config.partitions as u64),
            metadata_budget_bytes: config.metadata_budget_bytes,
            link_count_max: config.link_count_max,
            model_cache: is_xstore.then(|| config.model_cache.to_string()),
            fallback_count: is_xstore.then_some(client_threads.fallback_count),
            persistent,
        }
    }

    fn persistent_report(&self) -> Option<PersistentReport> {
        match &self.site {
            TableLocation::Pools(_) => None,
            TableLocation::Cluster(loaded_table) => {
                Some(loaded_table.report(self.keys.record_count()))
            }
        }
    }
}
