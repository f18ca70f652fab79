//! What a backup has done, by part.

use std::time::Instant;

use farleaf_lsm::engine::WorkCounts;

/// What a backup has done since it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackupCounts {
    /// Bytes of the log that came into its buffers, and were taken from there;
    pub log_received_size_bytes: u64,
    /// of trees, and of the base's log.
    pub index_received_size_bytes: u64,
    /// Bytes of the base that it had already, and that did not come (RP14).
    pub kept_size_bytes: u64,
    /// Requests that were answered.
    pub request_count: u64,
    /// Of them, refused.
    pub refused_count: u64,
    /// Edits that it was sent, and made.
    pub edit_count: u64,
    /// Syncs of the log that its primary wished for.
    pub sync_count: u64,
    /// Time spent with the log; with requests, trees among them; and with its own flushes and
    /// merges.
    pub log_time_ns: u64,
    /// Of the time with the log, what it took to put its records into an L0 of its own
    /// (Build-Index).
    pub feed_time_ns: u64,
    /// See [`log_time_ns`](Self::log_time_ns).
    pub request_time_ns: u64,
    /// See there.
    pub maintain_time_ns: u64,
    /// Flushes, merges, and what went from and to its devices.
    pub work: WorkCounts,
}

/// Adds the time since a moment.
pub(super) fn add_time(to: &mut u64, since: Instant) {
    *to += u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
}
