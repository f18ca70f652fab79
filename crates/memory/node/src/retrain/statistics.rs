//! Statistics of retraining.

use std::ops::Range;

use farleaf_fabric::Endpoint;
use farleaf_index::retrain::RetrainSummary;
use farleaf_pool::PoolError;
use farleaf_pool::tally::RetrainCounters;

use super::Retrainer;
use super::look::{self, LearnedTableView};
use crate::sweep::MemoryMaintainer;

impl Retrainer {
    pub(super) fn count(&self, change: impl FnOnce(&mut RetrainCounters)) {
        let mut tally = self.tally.get();
        change(&mut tally);
        self.tally.set(tally);
    }

    pub(super) fn note<E>(
        &self,
        table: &LearnedTableView<'_, E>,
        models: Range<usize>,
        summary: &RetrainSummary,
        time_ns: u64,
    ) {
        let queued = self.queued.borrow();
        let models = &table.contents.models[models];
        let is_queued = |model: &&_| queued.contains(&look::table_of(model));
        let queued_count = models.iter().filter(is_queued).count() as u64;
        self.count(|tally| {
            add(tally, summary, time_ns);
            tally.queued_count += queued_count;
            tally.found_count += models.len() as u64 - queued_count;
        });
        tracing::debug!(
            table = %table.access.table,
            models = models.len(),
            moved = summary.moved_count,
            made = summary.made_count,
            time_ns,
            "retrained"
        );
    }

    /// Publishes the statistics if they have changed. Costs one round trip.
    pub(super) async fn publish_tally<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
    ) -> Result<(), PoolError> {
        if self.published.replace(self.tally.get()) == self.tally.get() {
            return Ok(());
        }
        let mut batch = maintainer.counted_batch();
        batch.write(maintainer.layout.tally(), &self.tally.get().encode());
        Ok(maintainer.endpoint.execute(&mut batch).await?)
    }
}

/// Adds a retraining or a compaction to the statistics.
pub(super) fn add(tally: &mut RetrainCounters, summary: &RetrainSummary, time_ns: u64) {
    tally.retraining_count += 1;
    tally.moved_count += summary.moved_count;
    tally.made_count += summary.made_count;
    tally.model_count += summary.model_count;
    tally.adopted_count += summary.adopted_count;
    tally.late_count += summary.late_count;
    tally.record_count += summary.record_count;
    tally.time_ns += time_ns;
    tally.time_ns_max = tally.time_ns_max.max(time_ns);
    let longest = tally.step_round_trips_max;
    tally.step_round_trips_max = longest.max(summary.step_round_trips_max);
}
