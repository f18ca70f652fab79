//! Replaces synonym leaf tables of kept models in the reserve, so that the reserve can be freed.

use crate::hint::SYNONYM_TABLE_HEADER_SIZE_WORDS;
use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint};

use super::splice::SplicedModels;
use super::{ByteTableView, CountedModel, LateCounter};
use crate::strings::error::ByteIndexError;
use crate::strings::snapshot::Contents;

/// Kept model that gets another synonym leaf table.
pub(super) struct RenewedModel {
    /// Number of the model in the new snapshot.
    run: usize,
    /// Counters in the old table.
    was: CountedModel,
}

impl<E: Endpoint> ByteTableView<'_, E> {
    /// Chooses the kept models whose tables lie in the reserve. They have none until the snapshot
    /// is written. Returns the counters of the old tables.
    pub(super) fn renew(&self, spliced: &mut SplicedModels<'_>) -> Vec<LateCounter> {
        let layout = self.access.layout;
        let is_reserve = |table: RemoteAddr| {
            let chunk = layout.chunk_of(table);
            chunk.is_some_and(|chunk| layout.is_reserve(chunk))
        };
        let mut late = Vec::new();
        for (number, run) in spliced.runs.iter_mut().enumerate() {
            let table = run.synonym_table;
            // Tables of new models have no address yet.
            if table.is_null() || run.synonym_capacity == 0 || !is_reserve(table) {
                continue;
            }
            let mut counted = self.counted.iter();
            let model = counted.position(|model| model.synonym_table == table);
            let model = model.expect("a kept model is one that was looked at");
            let was = self.counted[model];
            late.push(LateCounter::of(&self.contents, model, was));
            run.synonym_table = RemoteAddr::NULL;
            spliced.renewed.push(RenewedModel { run: number, was });
        }
        late
    }

    /// Copies the counters and announcements to the new tables, which nothing names yet. Costs two
    /// round trips for each.
    pub(super) async fn fill_renewed(
        &self,
        batch: &mut Batch,
        contents: &Contents,
        renewed: &[RenewedModel],
    ) -> Result<(), ByteIndexError> {
        for RenewedModel { run, was } in renewed {
            let run = &contents.runs[*run];
            let entry_count = was.splits.min(run.synonym_capacity.into());
            let mut words = vec![was.splits, was.underfull];
            if entry_count > 0 {
                batch.clear();
                let entries = was.synonym_table.word_at(SYNONYM_TABLE_HEADER_SIZE_WORDS);
                let read = batch.read(entries, entry_count as usize);
                self.access.endpoint.execute(batch).await?;
                words.extend_from_slice(batch.words(read));
            }
            batch.clear();
            batch.write(run.synonym_table.word_at(0), &words);
            self.access.endpoint.execute(batch).await?;
        }
        Ok(())
    }
}
