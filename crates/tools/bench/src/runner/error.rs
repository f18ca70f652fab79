//! What keeps a run from being made.

use std::path::PathBuf;
use std::{fmt, io};

use farleaf::LayerKind;
use farleaf::persistent::ClientError;
use farleaf_cluster::ClusterError;
use farleaf_server::ServerError;

use crate::dataset::DatasetError;
use crate::workload::{WorkloadError, WorkloadLetter};

/// What keeps a run from being made or finished. Wrong answers of the store are none of these: they
/// are counted in the report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// An option is out of range.
    #[error("--{option} is {given}: it must be {allowed}")]
    BadOption {
        /// Its name on the command line.
        option: &'static str,
        /// What was given.
        given: String,
        /// What may be given.
        allowed: String,
    },
    /// The host has not enough memory.
    #[error(
        "{records} records and {insert_count} inserts need {needed_bytes} bytes, and the host has \
         {available_bytes} available: take fewer --records or --operations, or {instead}"
    )]
    TooLarge {
        /// Records to load.
        records: u64,
        /// Inserts to prepare for.
        insert_count: u64,
        /// What pool and keys need.
        needed_bytes: u64,
        /// What there is.
        available_bytes: u64,
        /// What else may be given.
        instead: &'static str,
    },
    /// The key file has fewer keys than the run needs.
    #[error(
        "key file {path} has {available} distinct keys, and the run needs {needed}: {records} to \
         load and {insert_count} to insert; take fewer --records or, for workloads D and E, fewer \
         --operations",
        path = path.display(),
        needed = records + insert_count
    )]
    KeysTooFew {
        /// The file.
        path: PathBuf,
        /// How many distinct keys it has.
        available: u64,
        /// Records to load.
        records: u64,
        /// Inserts to prepare for.
        insert_count: u64,
    },
    /// The keys cannot be made.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// The operations cannot be made.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The store failed outside of the operations that are counted.
    #[error("workload {workload}: the store failed while {activity}: {source}")]
    Store {
        /// Which workload.
        workload: WorkloadLetter,
        /// While doing what.
        activity: &'static str,
        /// How it failed.
        source: Box<farleaf::Error>,
    },
    /// The cluster failed outside of the operations that are counted.
    #[error("workload {workload}: the cluster failed while {activity}: {source}")]
    Cluster {
        /// Which workload.
        workload: WorkloadLetter,
        /// While doing what.
        activity: &'static str,
        /// How it failed.
        source: Box<ClientError>,
    },
    /// The cluster has a table of the benchmark's name. It is left as it is.
    #[error(
        "there is a table '{name}' already in the cluster, and the benchmark makes one of that \
         name, and drops it: drop that one first (`farleaf table drop {name}`; its name is free \
         when its servers have removed it), or take another cluster; nothing was changed"
    )]
    TableIsThere {
        /// Which.
        name: String,
    },
    /// A table has not got its replicas.
    #[error(
        "a region of the new table has {member_count} of {replica_count} replicas after \
         {waited_s} s: start more servers, or take fewer --replicas; `farleaf cluster status` shows \
         what is lacking"
    )]
    NotWhole {
        /// How many the region has that has fewest.
        member_count: usize,
        /// How many there are to be.
        replica_count: usize,
        /// For how long was waited.
        waited_s: u64,
    },
    /// The benchmark's own servers cannot be started.
    #[error("a server of the benchmark cannot be started in {path}: {source}", path = path.display())]
    Server {
        /// Where its directory is.
        path: PathBuf,
        /// How it failed.
        source: Box<ServerError>,
    },
    /// No directory can be made for them, or removed.
    #[error("the servers' directory in {path} cannot be made, or removed: {source}", path = path.display())]
    Directory {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The echo that calls are compared with failed.
    #[error("the echo over loopback TCP failed: {0}")]
    Echo(io::Error),
    /// The store failed outside of the operations that are counted with a search layer.
    #[error("{layer}: the store failed: {source}")]
    Layer {
        /// Which layer.
        layer: LayerKind,
        /// How it failed.
        source: Box<farleaf::Error>,
    },
    /// A thread could not be started.
    #[error("cannot start {thread_count} threads ({source}): take fewer --threads")]
    Thread {
        /// How many were asked for.
        thread_count: usize,
        /// What the system said.
        source: io::Error,
    },
}

/// What a store fails with.
pub(crate) trait StoreFailure: fmt::Display {
    /// Whether operations that follow will fail, too, and may take long to.
    fn is_lasting(&self) -> bool {
        false
    }

    /// As what ends a run.
    fn during(self, workload: WorkloadLetter, activity: &'static str) -> BenchError;
}

impl StoreFailure for farleaf::Error {
    fn during(self, workload: WorkloadLetter, activity: &'static str) -> BenchError {
        BenchError::Store {
            workload,
            activity,
            source: Box::new(self),
        }
    }
}

impl StoreFailure for ClientError {
    /// Each operation would wait as long as its client's patience lasts.
    fn is_lasting(&self) -> bool {
        matches!(self, Self::NotServed { .. } | Self::TableGone { .. })
    }

    fn during(self, workload: WorkloadLetter, activity: &'static str) -> BenchError {
        match self {
            Self::Cluster(ClusterError::TableExists(name)) => BenchError::TableIsThere { name },
            other => BenchError::Cluster {
                workload,
                activity,
                source: Box::new(other),
            },
        }
    }
}

impl BenchError {
    /// For `map_err`: the store failed in `workload` while doing `activity`.
    pub(crate) fn store<E: StoreFailure>(
        workload: WorkloadLetter,
        activity: &'static str,
    ) -> impl FnOnce(E) -> Self {
        move |failure| failure.during(workload, activity)
    }
}
