//! Audits the tree that a table's root names: each level covers all keys, and lists existing nodes
//! or leaves.

use farleaf_base::{OwnerWord, RemoteAddr};
use farleaf_fabric::{BatchError, Endpoint};
use farleaf_index::IndexError;
use farleaf_index::tree::head::read_head;
use farleaf_index::tree::node::{
    ChildEntry, InnerNode, NODE_SIZE_BLOCKS, NODE_SIZE_WORDS, lock_addr,
};
use farleaf_leaf::words::LeafAccess;
use farleaf_pool::chunk::ChunkPurpose;
use farleaf_pool::layout::ChunkIndex;

use super::{AuditedTable, Auditor, Finding};

impl<E: Endpoint> Auditor<'_, E> {
    /// Checks all levels from the root down.
    pub(super) async fn check_tree(&mut self, table: &mut AuditedTable) -> Result<(), IndexError> {
        let id = table.entry.record.id;
        let access = LeafAccess {
            endpoint: self.endpoint,
            layout: self.layout,
            geometry: table.geometry,
            table: id,
            owner: OwnerWord::FREE,
        };
        let read = read_head(&access, table.entry.root).await;
        let Some(head) = self.unless_damaged(table, read)? else {
            return Ok(());
        };
        let purpose = Some(ChunkPurpose::Inner {
            generation: head.generation,
        });
        let own = self.chunks.iter();
        let own = own.filter(|(_, chunk)| chunk.table == id && chunk.purpose == purpose);
        let own = own.map(|(index, _)| index);
        table.named = Some(own.chain(self.layout.chunk_of(head.addr)).collect());
        let mut first = head.root.place();
        for level in (1..=head.height()).rev() {
            let below = self.walk_level(table, first, level).await?;
            let Some(below) = below else { break };
            first = below;
        }
        Ok(())
    }

    /// Follows the links of a level. Returns the first child of its first node; `None` if the level
    /// is broken, or cut off by a lost node.
    async fn walk_level(
        &mut self,
        table: &mut AuditedTable,
        first: RemoteAddr,
        level: u16,
    ) -> Result<Option<RemoteAddr>, BatchError> {
        let id = table.entry.record.id;
        let (mut place, mut due, mut first_child) = (first, 0, None);
        loop {
            if self.is_lost(place.node()) {
                return Ok(None);
            }
            let node = self.read_inner(table, place).await?;
            let node = node.filter(|node| {
                let is_new = table.inner.insert(place);
                is_new && node.level() == level && node.low() == due && node.low() <= node.high()
            });
            let Some(node) = node else {
                self.findings.push(Finding::InnerRangeBroken {
                    table: id,
                    level,
                    node: place,
                });
                return Ok(None);
            };
            let entries = node.sorted_entries();
            first_child = first_child.or(entries.first().map(|entry| entry.child.place()));
            if level == 1 {
                self.check_children(table, place, &entries);
                let children = entries.iter();
                let children = children.map(|entry| (entry.low, entry.child.place()));
                table.listed.extend(children);
            }
            match node.high().checked_add(1) {
                Some(next) => (place, due) = (node.link().place(), next),
                None => return Ok(first_child),
            }
        }
    }

    /// Reads an inner node; it must lie in one of the tree's chunks and be intact.
    async fn read_inner(
        &mut self,
        table: &AuditedTable,
        place: RemoteAddr,
    ) -> Result<Option<InnerNode>, BatchError> {
        let index = self.layout.chunk_of(place);
        let is_own = |index: &ChunkIndex| {
            table
                .named
                .as_ref()
                .is_some_and(|named| named.contains(index))
        };
        let Some(index) = index.filter(is_own) else {
            return Ok(None);
        };
        let inside = place.block() - self.layout.chunk_start(index).block();
        if !inside.is_multiple_of(NODE_SIZE_BLOCKS) {
            return Ok(None);
        }
        let words = self.read(lock_addr(place), NODE_SIZE_WORDS).await?;
        let node = InnerNode::from_words(&words[1..]);
        Ok(node.is_intact(place, table.entry.record.id).then_some(node))
    }

    /// Checks that the listed children are leaves of the chain.
    fn check_children(&mut self, table: &AuditedTable, node: RemoteAddr, entries: &[ChildEntry]) {
        if !table.is_whole || self.has_lost() {
            return;
        }
        let children = entries.iter().map(|entry| entry.child.place());
        let unlinked = children.filter(|child| !table.linked.contains(child));
        let findings = unlinked.map(|child| Finding::ChildNotLinked {
            table: table.entry.record.id,
            node,
            child,
        });
        self.findings.extend(findings);
    }
}
