//! Synonym leaf tables of kept models that make room in the reserve (BR9).

use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::hint::SYNONYM_TABLE_HEADER_SIZE_WORDS;
use farleaf_types::RemoteAddr;

use super::splice::Spliced;
use super::{CountedModel, LateCounter, Looked};
use crate::error::ByteIndexError;
use crate::snapshot::Contents;

/// A kept model that gets another synonym leaf table.
pub(super) struct Renewed {
    /// Its number in the new snapshot.
    run: usize,
    /// What was counted in the old one.
    was: CountedModel,
}

impl<E: Endpoint> Looked<'_, E> {
    /// BR9: chooses the kept models whose tables lie in the reserve. They are without one until the
    /// snapshot is written. Returns the counters of the old tables.
    pub(super) fn renew(&self, spliced: &mut Spliced<'_>) -> Vec<LateCounter> {
        let layout = self.access.layout;
        let is_reserve = |table: RemoteAddr| {
            let chunk = layout.chunk_of(table);
            chunk.is_some_and(|chunk| layout.is_reserve(chunk))
        };
        let mut late = Vec::new();
        for (number, run) in spliced.runs.iter_mut().enumerate() {
            let table = run.synonym_table;
            // Those of new models have no place yet.
            if table.is_null() || run.synonym_capacity == 0 || !is_reserve(table) {
                continue;
            }
            let mut counted = self.counted.iter();
            let model = counted.position(|model| model.synonym_table == table);
            let model = model.expect("a kept model is one that was looked at");
            let was = self.counted[model];
            late.push(LateCounter::of(&self.contents, model, was));
            run.synonym_table = RemoteAddr::NULL;
            spliced.renewed.push(Renewed { run: number, was });
        }
        late
    }

    /// Writes what was counted and announced into the new tables, which nothing names yet. Two
    /// round trips for each.
    pub(super) async fn fill_renewed(
        &self,
        batch: &mut Batch,
        contents: &Contents,
        renewed: &[Renewed],
    ) -> Result<(), ByteIndexError> {
        for Renewed { run, was } in renewed {
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
