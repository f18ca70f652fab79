//! Counters of a backup's work, by part.

use std::time::Instant;

use farleaf_lsm::engine::WorkCounts;

/// Work that a backup has done since it was created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackupCounts {
    /// Bytes of log that were received and read from the buffers.
    pub log_received_size_bytes: u64,
    /// Bytes of trees and of the base's log that were received.
    pub index_received_size_bytes: u64,
    /// Bytes of the base that the backup already had, so that they were not sent (REPLICATION-14).
    pub kept_size_bytes: u64,
    /// Number of requests answered.
    pub request_count: u64,
    /// Number of requests refused.
    pub refused_count: u64,
    /// Number of edits received and made.
    pub edit_count: u64,
    /// Number of log syncs that the primary requested.
    pub sync_count: u64,
    /// Time spent on the log, in nanoseconds.
    pub log_time_ns: u64,
    /// Part of the log time spent on inserting records into the backup's own L0 (Build-Index), in
    /// nanoseconds.
    pub feed_time_ns: u64,
    /// Time spent on requests, including trees, in nanoseconds.
    pub request_time_ns: u64,
    /// Time spent on the backup's own flushes and merges, in nanoseconds.
    pub maintain_time_ns: u64,
    /// Flushes, merges, and bytes read from and written to devices.
    pub work: WorkCounts,
}

/// Adds the time since `since`.
pub(super) fn add_time(to: &mut u64, since: Instant) {
    *to += u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
}
