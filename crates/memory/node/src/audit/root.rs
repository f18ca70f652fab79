//! Audits the snapshot that a table's root names, and the load that it belongs to.

use farleaf_base::RemoteAddr;
use farleaf_fabric::{BatchErrorKind, Endpoint};
use farleaf_index::IndexError;
use farleaf_index::directory::Directory;
use farleaf_index::snapshot::read_contents;
use farleaf_pool::chunk::ChunkPurpose;

use super::{AuditedTable, Auditor, Finding};

impl<E: Endpoint> Auditor<'_, E> {
    /// Checks that the root belongs to the load that retired the first leaf, to no load, or to a
    /// retraining, and that it leads to leaves of the chain. Called after [`walk`](Self::walk).
    pub(super) async fn check_root(&mut self, table: &mut AuditedTable) -> Result<(), IndexError> {
        let (id, root) = (table.entry.record.id, table.entry.root);
        let (generation, is_retired) = (root.spare(), table.is_first_retired);
        // If the first leaf is unreadable, it is unknown whether it was retired.
        let is_known = is_retired || !table.chain.is_empty();
        let pending = table.entry.pending_root;
        // A retraining zeroes the pending root, and may not have reached the first leaf.
        let is_retrained = generation != 0 && pending.is_null();
        // A move of the first leaf to a node that was then lost could not be committed.
        let is_known = is_known && !(is_retired && table.chain.is_empty() && self.has_lost());
        if is_known && !is_retrained && is_retired != (generation != 0) {
            self.findings.push(Finding::RootContradictsFirstLeaf {
                table: id,
                generation,
                is_retired,
            });
        }
        // A pending root is meaningless before a load retires the first leaf.
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
            return self.check_tree(table).await;
        }
        let read = read_contents(self.endpoint, self.layout, table.geometry, id, root).await;
        let Some(contents) = self.unless_damaged(table, read)? else {
            return Ok(());
        };
        table.named = Some(contents.named_chunks(self.layout, table.geometry, root));
        let directory = contents.into_directory(table.geometry);
        // If the loss of a node stopped a retraining from committing, its leaves are reachable only
        // by links.
        if table.is_whole && !self.has_lost() {
            self.check_trained_leaves(table, &directory);
        }
        Ok(())
    }

    /// Returns the decoded data that the root names; `None` if it is corrupted, which adds a
    /// finding.
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

    /// Returns whether a snapshot of the root's load may begin at the root.
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

    /// Checks that all trained leaves are linked, and that the chain begins with the first of them.
    /// Trained leaves never move and are never merged.
    fn check_trained_leaves(&mut self, table: &AuditedTable, directory: &Directory) {
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

/// Returns whether the snapshot's own words cause the error, and not the fabric.
fn is_of_bytes(error: &IndexError) -> bool {
    match error.fabric_failure() {
        // Counts that are too large lead out of the memory.
        Some(failure) => matches!(failure.kind(), BatchErrorKind::Refused { .. }),
        None => matches!(error, IndexError::SnapshotDamaged(_)),
    }
}
