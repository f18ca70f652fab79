//! The table of one workload, from when it is made until it is gone.

use std::thread;
use std::time::{Duration, Instant};

use farleaf::persistent::{
    ClientError, Cluster, Durability, PersistentTable, PersistentTableOptions,
};
use farleaf_cluster::ClusterError;
use farleaf_cluster::coordinator::Coordinator as _;
use farleaf_cluster::view::View;

use super::super::spelling::Spelling;
use super::super::{BenchError, ProgressSink, RunConfig, TABLE_NAME};
use super::config::{PersistentConfig, ServersConfig};
use super::device::DeviceBytes;
use super::load::load;
use super::servers::OwnServers;
use super::table::ClusterPlace;
use crate::dataset::KeySet;
use crate::report::PersistentReport;
use crate::workload::WorkloadLetter;

/// For how long servers, replicas, and the end of a table, are waited for.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// A loaded table in a cluster. Dropped, the table is, too, or its own servers stop.
#[derive(Debug)]
pub(in super::super) struct ClusterHome {
    place: ClusterPlace,
    config: PersistentConfig,
    cluster: Cluster,
    own: Option<OwnServers>,
    load_time: Duration,
    load_device: Option<DeviceBytes>,
    is_dropped: bool,
}

impl ClusterHome {
    /// Starts servers, if they are to be own ones, makes the table, and loads the keys.
    ///
    /// # Errors
    /// The cluster has a table of that name, which is left as it is; it has not enough servers; it
    /// failed; or own servers cannot be started.
    pub(in super::super) fn make_loaded(
        (run, config): (&RunConfig, &PersistentConfig),
        keys: &KeySet,
        workload: WorkloadLetter,
        progress: &dyn ProgressSink,
    ) -> Result<Self, BenchError> {
        let mut home = Self::make((run, config), keys, workload)?;
        home.wait_whole(workload)?;
        let before = home.device_bytes();
        let what = (&home.place.table, &home.place.spelling);
        home.load_time = load(what, (keys, workload), run.threads, progress)?;
        let after = home.device_bytes();
        home.load_device = after.zip(before).map(|(after, before)| after.since(before));
        Ok(home)
    }

    fn make(
        (run, config): (&RunConfig, &PersistentConfig),
        keys: &KeySet,
        workload: WorkloadLetter,
    ) -> Result<Self, BenchError> {
        let strings = run.strings.expect("the options have been checked");
        let spelling = Spelling::new(strings, keys);
        let own = match &config.servers {
            ServersConfig::Cluster(_) => None,
            ServersConfig::Own {
                directory,
                l0_size_bytes,
            } => Some(OwnServers::start(
                directory,
                (config.replicas, run.threads),
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
            split_keys: split_keys(config.regions, keys, &spelling),
        };
        let table = cluster.create_table(TABLE_NAME, &options);
        let table = table.map_err(BenchError::store(workload, "making the table"))?;
        let table = match config.durability {
            Some(durability) => table.with_durability(durability),
            None => table,
        };
        Ok(Self {
            place: ClusterPlace { table, spelling },
            config: config.clone(),
            cluster,
            own,
            load_time: Duration::ZERO,
            load_device: None,
            is_dropped: false,
        })
    }

    /// Waits until each region has all of its replicas.
    fn wait_whole(&self, workload: WorkloadLetter) -> Result<(), BenchError> {
        let since = Instant::now();
        let replica_count = self.config.replicas;
        loop {
            let view = view(&self.cluster);
            let view = view.map_err(BenchError::store(workload, "making the table"))?;
            let member_count = member_count_min(&view, &self.place.table);
            if member_count == replica_count {
                return Ok(());
            }
            if since.elapsed() >= PATIENCE {
                return Err(BenchError::NotWhole {
                    member_count,
                    replica_count,
                    waited_s: PATIENCE.as_secs(),
                });
            }
            thread::sleep(LOOK_INTERVAL);
        }
    }

    /// What the workload's operations work on.
    pub(in super::super) const fn place(&self) -> &ClusterPlace {
        &self.place
    }

    /// What the devices of own servers were asked for until now.
    pub(in super::super) fn device_bytes(&self) -> Option<DeviceBytes> {
        self.own.as_ref().map(OwnServers::device_bytes)
    }

    /// What the table was, and what its load of so many records took.
    pub(in super::super) fn report(&self, record_count: u64) -> PersistentReport {
        let durability = match self.place.table.durability() {
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

    /// Drops the table, and waits until its name is free, if the patience lasts; then stops own
    /// servers.
    ///
    /// # Errors
    /// The cluster failed: the table is there still; or files cannot be removed.
    pub(in super::super) fn close(mut self, workload: WorkloadLetter) -> Result<(), BenchError> {
        let failed = || BenchError::store(workload, "dropping the table");
        match self.cluster.drop_table(TABLE_NAME) {
            // Somebody else has.
            Ok(()) | Err(ClientError::Cluster(ClusterError::NoTable(_))) => {}
            Err(error) => return Err(failed()(error)),
        }
        self.is_dropped = true;
        let since = Instant::now();
        while since.elapsed() < PATIENCE {
            match self.cluster.open_table(TABLE_NAME) {
                Err(ClientError::Cluster(ClusterError::NoTable(_))) => break,
                Ok(_) | Err(ClientError::TableGone { .. }) => {}
                Err(error) => return Err(failed()(error)),
            }
            thread::sleep(LOOK_INTERVAL);
        }
        // With no table, who stops last does not fill backups for who has stopped first.
        self.own.take().map_or(Ok(()), OwnServers::stop)
    }
}

impl Drop for ClusterHome {
    fn drop(&mut self) {
        if !self.is_dropped && self.own.is_none() {
            // There is an error to tell already.
            let _ = self.cluster.drop_table(TABLE_NAME);
        }
    }
}

/// The first keys of all regions but the first: so that each has as many records of the load.
fn split_keys(region_count: usize, keys: &KeySet, spelling: &Spelling) -> Vec<Vec<u8>> {
    let loaded = keys.loaded();
    let first = |region: usize| loaded[region * loaded.len() / region_count];
    let split_keys = (1..region_count).map(|region| {
        let mut key = Vec::new();
        spelling.key(first(region), &mut key);
        key
    });
    split_keys.collect()
}

/// Everything that the coordinator has, as of now. One round trip.
pub(super) fn view(cluster: &Cluster) -> Result<View, ClientError> {
    let snapshot = cluster.coordinator().range("");
    let snapshot = snapshot.map_err(ClusterError::from)?;
    Ok(View::of(snapshot.revision, &snapshot.entries))
}

/// How many replicas are alive and have everything, of the region that has fewest.
fn member_count_min(view: &View, table: &PersistentTable) -> usize {
    let regions = view.regions_of(table.id());
    let counts = regions.iter().map(|region| {
        let members = region.members();
        members.filter(|member| view.is_alive(*member)).count()
    });
    counts.min().unwrap_or(0)
}
