//! The snapshot that a table's root names, and the load that it is of.

use farleaf_fabric::{BatchErrorKind, Endpoint};
use farleaf_index::IndexError;
use farleaf_index::directory::Directory;
use farleaf_index::snapshot::read_contents;
use farleaf_region::chunk::ChunkPurpose;
use farleaf_types::RemoteAddr;

use super::{AuditedTable, Auditor, Finding};

impl<E: Endpoint> Auditor<'_, E> {
    /// B2 to B4: the root is of the load that retired the first leaf, or of none, or of a
    /// retraining; and it leads to leaves of the chain. After [`walk`](Self::walk).
    pub(super) async fn look_at_root(
        &mut self,
        table: &mut AuditedTable,
    ) -> Result<(), IndexError> {
        let (id, root) = (table.entry.record.id, table.entry.root);
        let (generation, is_retired) = (root.spare(), table.is_first_retired);
        // Of a first leaf that cannot be read it is not known whether it was retired.
        let is_known = is_retired || !table.chain.is_empty();
        let pending = table.entry.pending_root;
        // Who retrains zeroes the pending root (R1), and may not have come to the first leaf (R6).
        let is_retrained = generation != 0 && pending.is_null();
        // U4: who moved the first leaf to a lost node could not commit that.
        let is_known = is_known && !(is_retired && table.chain.is_empty() && self.has_lost());
        if is_known && !is_retrained && is_retired != (generation != 0) {
            self.findings.push(Finding::RootContradictsFirstLeaf {
                table: id,
                generation,
                is_retired,
            });
        }
        // Before a load retires the first leaf, a pending root means nothing.
        if is_retired && pending != root && !pending.is_null() {
            self.findings.push(Finding::RootUnfinished {
                table: id,
                root,
                pending,
            });
        }
        if !self.begins_snapshot(table, root) {
            self.findings
                .push(Finding::RootElsewhere { table: id, root });
            return Ok(());
        }
        if table.has_tree() {
            return self.look_at_tree(table).await;
        }
        let read = read_contents(self.endpoint, self.layout, table.geometry, id, root).await;
        let Some(contents) = self.unless_damaged(table, read)? else {
            return Ok(());
        };
        table.named = Some(contents.named_chunks(self.layout, table.geometry, root));
        let directory = contents.into_directory(table.geometry);
        // U4: a retraining that a loss kept from being committed left all of it to links.
        if table.is_whole && !self.has_lost() {
            self.look_at_trained(table, &directory);
        }
        Ok(())
    }

    /// What was read of what the root names; `None`: it is damaged, which is found.
    pub(super) fn unless_damaged<T>(
        &mut self,
        table: &AuditedTable,
        read: Result<T, IndexError>,
    ) -> Result<Option<T>, IndexError> {
        match read {
            Err(error) if is_of_bytes(&error) => {
                self.findings.push(Finding::SnapshotDamaged {
                    table: table.entry.record.id,
                    root: table.entry.root,
                    how: error.to_string(),
                });
                Ok(None)
            }
            read => read.map(Some),
        }
    }

    /// Whether a snapshot of the root's load may begin at the root.
    fn begins_snapshot(&self, table: &AuditedTable, root: RemoteAddr) -> bool {
        let Some(index) = self.layout.chunk_of(root) else {
            return false;
        };
        let Some(chunk) = self.chunks.get(index) else {
            return false;
        };
        let generation = root.spare();
        self.layout.chunk_start(index) == root.place()
            && chunk.purpose == Some(ChunkPurpose::Snapshot { generation })
            && chunk.table == table.entry.record.id
    }

    /// Leaves that training knows never move and are never merged: all are linked, and the chain
    /// begins with the first.
    fn look_at_trained(&mut self, table: &AuditedTable, directory: &Directory) {
        let id = table.entry.record.id;
        let trained = (0..directory.leaf_count()).filter_map(|number| directory.leaf(number));
        for (number, leaf) in trained.map(|hint| hint.addr.place()).enumerate() {
            if self.is_lost(leaf.node()) {
                continue;
            }
            let is_first = number > 0 || table.chain.first() == Some(&leaf);
            if !is_first || !table.linked.contains(&leaf) {
                self.findings
                    .push(Finding::TrainedLeafNotLinked { table: id, leaf });
            }
        }
    }
}

/// Whether the snapshot's own words are to blame, and not the fabric.
fn is_of_bytes(error: &IndexError) -> bool {
    match error.fabric_failure() {
        // Counts that are too large lead out of the region.
        Some(failure) => matches!(failure.kind(), BatchErrorKind::Refused { .. }),
        None => matches!(error, IndexError::SnapshotDamaged(_)),
    }
}
