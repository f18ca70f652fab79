//! Errors that prevent a run.

use std::path::PathBuf;
use std::{fmt, io};

use farleaf::LayerKind;
use farleaf::persistent::ClientError;
use farleaf_base::size_text::size_in_bytes;
use farleaf_cluster::ClusterError;
use farleaf_server::ServerError;

use crate::dataset::DatasetError;
use crate::workload::{WorkloadError, WorkloadLetter};

/// Error that prevents a run or ends it. Wrong answers of the store are not among them: the report
/// counts these.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// An option is out of range.
    #[error("--{option} is {given}: it must be {allowed}")]
    BadOption {
        /// Name of the option on the command line.
        option: &'static str,
        /// Value that was given.
        given: String,
        /// Permitted values.
        allowed: String,
    },
    /// The host has not enough memory.
    #[error(
        "not enough memory: {records} records and {insert_count} inserts need {}, and the host has \
         {} available; use fewer --records or --operations, or {instead}",
        size_in_bytes(*needed_bytes),
        size_in_bytes(*available_bytes)
    )]
    TooLarge {
        /// Number of records to load.
        records: u64,
        /// Number of inserts to prepare.
        insert_count: u64,
        /// Bytes that pool and keys need.
        needed_bytes: u64,
        /// Bytes that are available.
        available_bytes: u64,
        /// Options that need less memory.
        instead: &'static str,
    },
    /// The host has not enough memory for a table that changes.
    #[error(
        "not enough memory: {key_count} keys need {}, and the host has {} available; use fewer \
         keys or a smaller --size",
        size_in_bytes(*needed_bytes),
        size_in_bytes(*available_bytes)
    )]
    TooManyKeys {
        /// Number of keys that ever exist.
        key_count: u64,
        /// Bytes that pool and keys need.
        needed_bytes: u64,
        /// Bytes that are available.
        available_bytes: u64,
    },
    /// The key file has fewer keys than the run needs.
    #[error(
        "key file '{path}' has {available} distinct keys, but the run needs {needed} ({records} to \
         load and {insert_count} to insert); use fewer --records or, for workloads D and E, fewer \
         --operations",
        path = path.display(),
        needed = records + insert_count
    )]
    KeysTooFew {
        /// Path of the file.
        path: PathBuf,
        /// Number of distinct keys in it.
        available: u64,
        /// Number of records to load.
        records: u64,
        /// Number of inserts to prepare.
        insert_count: u64,
    },
    /// The keys cannot be generated.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// The operations cannot be generated.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The store failed outside of the counted operations.
    #[error("workload {workload}: the store failed while {activity}: {source}")]
    Store {
        /// Letter of the workload.
        workload: WorkloadLetter,
        /// Activity that failed.
        activity: &'static str,
        /// Cause of the failure.
        source: Box<farleaf::Error>,
    },
    /// The store of a table that changes failed outside of the counted operations.
    #[error("the store failed while {activity}: {source}")]
    Table {
        /// Activity that failed.
        activity: &'static str,
        /// Cause of the failure.
        source: Box<farleaf::Error>,
    },
    /// The cluster failed outside of the counted operations.
    #[error("workload {workload}: the cluster failed while {activity}: {source}")]
    Cluster {
        /// Letter of the workload.
        workload: WorkloadLetter,
        /// Activity that failed.
        activity: &'static str,
        /// Cause of the failure.
        source: Box<ClientError>,
    },
    /// The cluster has a table with the benchmark's name, which is not changed.
    #[error(
        "table '{name}' already exists in the cluster, and the benchmark creates and drops a table \
         of this name; nothing was changed; drop the table with `farleaf table drop {name}` (its \
         name is free when its servers have removed it), or use another cluster"
    )]
    TableIsThere {
        /// Name of the table.
        name: String,
    },
    /// A new table did not get its replicas in time.
    #[error(
        "timed out after {waited_s} s: a region of the new table has {member_count} of \
         {replica_count} replicas; start more servers or use fewer --replicas (see `farleaf \
         cluster status`)"
    )]
    NotWhole {
        /// Least number of replicas of a region.
        member_count: usize,
        /// Requested number of replicas.
        replica_count: usize,
        /// Seconds that the run waited.
        waited_s: u64,
    },
    /// The benchmark's own servers cannot be started.
    #[error("cannot start a server of the benchmark in '{path}': {source}", path = path.display())]
    Server {
        /// Path of its directory.
        path: PathBuf,
        /// Cause of the failure.
        source: Box<ServerError>,
    },
    /// The directory of own servers cannot be created or removed.
    #[error("cannot create or remove the servers' directory in '{path}': {source}", path = path.display())]
    Directory {
        /// Path of the directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The echo with which calls are compared failed.
    #[error("echo over loopback TCP failed: {0}")]
    Echo(io::Error),
    /// The store with a search layer failed outside of the counted operations.
    #[error("{layer}: the store failed: {source}")]
    Layer {
        /// Search layer of the table.
        layer: LayerKind,
        /// Cause of the failure.
        source: Box<farleaf::Error>,
    },
    /// A thread could not be started.
    #[error("cannot start {thread_count} threads: {source}; use fewer --threads")]
    Thread {
        /// Number of threads that were requested.
        thread_count: usize,
        /// Error of the system.
        source: io::Error,
    },
}

/// Error of a store.
pub(crate) trait StoreFailure: fmt::Display {
    /// Returns whether the following operations will fail, too, and may take long to do so.
    fn is_lasting(&self) -> bool {
        false
    }

    /// Returns the error that ends a run.
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
    /// Each operation would wait until its client times out.
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
    /// Returns the error of an out-of-range option.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "callers pass numbers and new strings"
    )]
    pub(crate) fn bad(
        option: &'static str,
        given: impl ToString,
        allowed: impl Into<String>,
    ) -> Self {
        Self::BadOption {
            option,
            given: given.to_string(),
            allowed: allowed.into(),
        }
    }

    /// Checks that the value of an option is in a range.
    pub(crate) fn within<T: PartialOrd + ToString + Copy>(
        option: &'static str,
        given: T,
        lowest: T,
        highest: T,
        unit: &str,
    ) -> Result<(), Self> {
        if (&lowest..=&highest).contains(&&given) {
            return Ok(());
        }
        let allowed = format!(
            "from {} to {}{unit}",
            lowest.to_string(),
            highest.to_string()
        );
        Err(Self::bad(option, given, allowed))
    }

    /// Checks that the value of an option is valid.
    pub(crate) fn check(
        option: &'static str,
        is_good: bool,
        given: impl ToString,
        allowed: impl Into<String>,
    ) -> Result<(), Self> {
        if is_good {
            return Ok(());
        }
        Err(Self::bad(option, given, allowed))
    }

    /// Returns a converter for `map_err`: the store of a table that changes failed during
    /// `activity`.
    pub(crate) fn table(activity: &'static str) -> impl FnOnce(farleaf::Error) -> Self {
        move |source| Self::Table {
            activity,
            source: Box::new(source),
        }
    }

    /// Returns a converter for `map_err`: the store failed in `workload` during `activity`.
    pub(crate) fn store<E: StoreFailure>(
        workload: WorkloadLetter,
        activity: &'static str,
    ) -> impl FnOnce(E) -> Self {
        move |failure| failure.during(workload, activity)
    }
}
