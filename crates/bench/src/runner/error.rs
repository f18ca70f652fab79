//! What keeps a run from being made.

use std::io;
use std::path::PathBuf;

use farleaf::LayerKind;

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

impl BenchError {
    /// For `map_err`: the store failed in `workload` while doing `activity`.
    pub(crate) fn store(
        workload: WorkloadLetter,
        activity: &'static str,
    ) -> impl FnOnce(farleaf::Error) -> Self {
        move |source| Self::Store {
            workload,
            activity,
            source: Box::new(source),
        }
    }
}
