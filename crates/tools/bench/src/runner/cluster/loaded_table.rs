//! Table of one workload, from its creation to its deletion.

use std::thread;
use std::time::{Duration, Instant};

use farleaf::persistent::{
    ClientError, Cluster, Durability, PersistentTable, PersistentTableOptions,
};
use farleaf_cluster::ClusterError;
use farleaf_cluster::coordinator::Coordinator as _;
use farleaf_cluster::view::View;

use super::super::string_codec::StringCodec;
use super::super::string_table::StringStore;
use super::super::{BenchError, ProgressSink, RunConfig, TABLE_NAME};
use super::config::{PersistentConfig, ServersConfig};
use super::device::DeviceBytes;
use super::load::load;
use super::servers::OwnServers;
use crate::dataset::KeySet;
use crate::report::PersistentReport;
use crate::workload::WorkloadLetter;

/// Longest time to wait for servers, for replicas, and for the end of a table.
pub(super) const WAIT_LIMIT: Duration = Duration::from_secs(30);
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Loaded table in a cluster. When it is dropped, the table is dropped, too, or its own servers
/// stop.
#[derive(Debug)]
pub(in super::super) struct LoadedClusterTable {
    store: StringStore<PersistentTable>,
    config: PersistentConfig,
    cluster: Cluster,
    own: Option<OwnServers>,
    load_time: Duration,
    load_device: Option<DeviceBytes>,
    is_dropped: bool,
}

impl LoadedClusterTable {
    /// Starts own servers, if requested, creates the table, and loads the keys.
    ///
    /// # Errors
    /// The cluster has a table of that name, which is not changed; it has not enough servers; it
    /// failed; or own servers cannot be started.
    pub(in super::super) fn make_loaded(
        run: &RunConfig,
        config: &PersistentConfig,
        keys: &KeySet,
        workload: WorkloadLetter,
        progress: &dyn ProgressSink,
    ) -> Result<Self, BenchError> {
        let mut loaded_table = Self::make(run, config, keys, workload)?;
        loaded_table.wait_replicated(workload)?;
        let before = loaded_table.device_bytes();
        let StringStore {
            place: table,
            string_codec,
        } = &loaded_table.store;
        loaded_table.load_time = load(table, string_codec, keys, workload, run.threads, progress)?;
        let after = loaded_table.device_bytes();
        loaded_table.load_device = after.zip(before).map(|(after, before)| after.since(before));
        Ok(loaded_table)
    }

    fn make(
        run: &RunConfig,
        config: &PersistentConfig,
        keys: &KeySet,
        workload: WorkloadLetter,
    ) -> Result<Self, BenchError> {
        let strings = run.strings.expect("the options have been checked");
        let string_codec = StringCodec::new(strings, keys);
        let own = match &config.servers {
            ServersConfig::Cluster(_) => None,
            ServersConfig::Own {
                directory,
                l0_size_bytes,
            } => Some(OwnServers::start(
                directory,
                config.replicas,
                run.threads,
                *l0_size_bytes,
            )?),
        };
        let cluster = match (&config.servers, &own) {
            (ServersConfig::Cluster(cluster), _) => cluster.clone(),
            (_, Some(own)) => own.cluster().clone(),
            (ServersConfig::Own { .. }, None) => unreachable!("they have been started"),
        };
        let options = PersistentTableOptions {
            replica_count: config.replicas,
            split_keys: split_keys(config.regions, keys, &string_codec),
        };
        let table = cluster.create_table(TABLE_NAME, &options);
        let table = table.map_err(BenchError::store(workload, "creating the table"))?;
        let table = match config.durability {
            Some(durability) => table.with_durability(durability),
            None => table,
        };
        Ok(Self {
            store: StringStore {
                place: table,
                string_codec,
            },
            config: config.clone(),
            cluster,
            own,
            load_time: Duration::ZERO,
            load_device: None,
            is_dropped: false,
        })
    }

    /// Waits until each region has all of its replicas.
    fn wait_replicated(&self, workload: WorkloadLetter) -> Result<(), BenchError> {
        let since = Instant::now();
        let replica_count = self.config.replicas;
        loop {
            let view = view(&self.cluster);
            let view = view.map_err(BenchError::store(workload, "creating the table"))?;
            let member_count = member_count_min(&view, &self.store.place);
            if member_count == replica_count {
                return Ok(());
            }
            if since.elapsed() >= WAIT_LIMIT {
                return Err(BenchError::NotWhole {
                    member_count,
                    replica_count,
                    waited_s: WAIT_LIMIT.as_secs(),
                });
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns the table on which the workload's operations run.
    pub(in super::super) const fn store(&self) -> &StringStore<PersistentTable> {
        &self.store
    }

    /// Returns the device bytes of own servers so far.
    pub(in super::super) fn device_bytes(&self) -> Option<DeviceBytes> {
        self.own.as_ref().map(OwnServers::device_bytes)
    }

    /// Returns the settings of the table, and the cost of loading this many records.
    pub(in super::super) fn report(&self, record_count: u64) -> PersistentReport {
        let durability = match self.store.place.durability() {
            Durability::Memory => "memory",
            Durability::Sync => "sync",
        };
        PersistentReport {
            replicas: self.config.replicas as u64,
            regions: self.config.regions as u64,
            durability: durability.to_owned(),
            servers: self.config.servers.name().to_owned(),
            load_records_per_s: record_count as f64 / self.load_time.as_secs_f64().max(1e-9),
            load_device: self.load_device.map(|bytes| bytes.for_each(record_count)),
            device: None,
        }
    }

    /// Drops the table, and waits until its name is free, or until the wait times out; then stops
    /// own servers.
    ///
    /// # Errors
    /// The cluster failed, and the table still exists; or files cannot be removed.
    pub(in super::super) fn close(mut self, workload: WorkloadLetter) -> Result<(), BenchError> {
        let failed = || BenchError::store(workload, "dropping the table");
        match self.cluster.drop_table(TABLE_NAME) {
            // Another client has dropped it.
            Ok(()) | Err(ClientError::Cluster(ClusterError::NoTable(_))) => {}
            Err(error) => return Err(failed()(error)),
        }
        self.is_dropped = true;
        let since = Instant::now();
        while since.elapsed() < WAIT_LIMIT {
            match self.cluster.open_table(TABLE_NAME) {
                Err(ClientError::Cluster(ClusterError::NoTable(_))) => break,
                Ok(_) | Err(ClientError::TableGone { .. }) => {}
                Err(error) => return Err(failed()(error)),
            }
            thread::sleep(POLL_INTERVAL);
        }
        // Without a table, servers that stop later do not fill backups for those that stopped
        // earlier.
        self.own.take().map_or(Ok(()), OwnServers::stop)
    }
}

impl Drop for LoadedClusterTable {
    fn drop(&mut self) {
        if !self.is_dropped && self.own.is_none() {
            // There is already an error to report.
            let _ = self.cluster.drop_table(TABLE_NAME);
        }
    }
}

/// Returns the first keys of all regions but the first, which give each region the same number of
/// loaded records.
fn split_keys(region_count: usize, keys: &KeySet, string_codec: &StringCodec) -> Vec<Vec<u8>> {
    let loaded = keys.loaded();
    let first = |region: usize| loaded[region * loaded.len() / region_count];
    let split_keys = (1..region_count).map(|region| {
        let mut key = Vec::new();
        string_codec.key(first(region), &mut key);
        key
    });
    split_keys.collect()
}

/// Returns all current records of the coordinator. One round trip.
pub(super) fn view(cluster: &Cluster) -> Result<View, ClientError> {
    let snapshot = cluster.coordinator().range("");
    let snapshot = snapshot.map_err(ClusterError::from)?;
    Ok(View::of(snapshot.revision, &snapshot.entries))
}

/// Returns the least number of live, complete replicas of a region.
fn member_count_min(view: &View, table: &PersistentTable) -> usize {
    let regions = view.regions_of(table.id());
    let counts = regions.iter().map(|region| {
        let members = region.members();
        members.filter(|member| view.is_alive(*member)).count()
    });
    counts.min().unwrap_or(0)
}
