//! Value blocks that a change takes for strings outside of pages, and returns if it is not
//! committed.

use farleaf_base::NodeId;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_leaf::blobs::{BlockError, Content, Role, SizeClass};
use farleaf_leaf::strings::{NewKey, NewRecord, PageBuffer, PageImage, Value};
use farleaf_leaf::words::Critical;

use super::blocks::{TakeResult, TakenBlock, is_ahead};
use super::write::RecordWrite;
use super::{ByteIndex, ByteIndexState, Change};
use crate::strings::error::ByteIndexError;

/// Pieces that are missing on the node of a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct MissingPieces {
    pub(super) class: SizeClass,
    /// Number of pieces needed.
    pub(super) count: usize,
    pub(super) role: Role,
}

/// Blocks that a change has taken before or under the lock.
#[derive(Default)]
pub(super) struct Provision {
    /// Block of the value, if the value is stored outside.
    pub(super) value: Option<TakenBlock>,
    /// Block of the key, if the key is stored outside.
    pub(super) key: Option<TakenBlock>,
    /// Whether the value must be stored outside although it is short.
    pub(super) is_value_outside: bool,
    /// Whether a new page's own strings may be placed on any node because the page's node is full.
    pub(super) is_elsewhere: bool,
    /// State of the lock of the page that is being changed.
    pub(super) lock: PageLockState,
}

impl Provision {
    /// Marks the batch that refers to the blocks as about to be executed. They are not returned
    /// afterwards, whatever the outcome.
    pub(super) fn commit(&mut self) {
        self.lock = PageLockState::Committing;
        (self.value, self.key) = (None, None);
    }

    /// Does the same as [`commit`](Self::commit) for a batch that may not contain the record.
    pub(super) fn commit_if(&mut self, is_put: bool) {
        if is_put {
            self.commit();
        } else {
            self.lock = PageLockState::Committing;
        }
    }
}

/// State of the lock of a page that an attempt changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PageLockState {
    /// The lock is held, and the page has not been changed.
    #[default]
    Held,
    /// The batch that changes the page and releases the lock is being executed.
    Committing,
    /// The lock has been released.
    Released,
}

/// Blocks that a change has taken. They are returned when the change ends or its future is dropped:
/// otherwise a session that is not broken would close as one that holds nothing.
pub(super) struct ProvisionGuard<'s> {
    pub(super) provision: Provision,
    pub(super) state: &'s ByteIndexState,
    /// Lost node, whose blocks have no owner any more.
    pub(super) lost: Option<NodeId>,
}

impl Drop for ProvisionGuard<'_> {
    fn drop(&mut self) {
        // FABRIC-5: blocks that a batch of unknown outcome refers to stay this session's until it
        // is closed.
        if self.state.broken.get() {
            return;
        }
        let unused = [self.provision.value.take(), self.provision.key.take()];
        for unused in unused.into_iter().flatten() {
            if Some(unused.pointer.place().node()) != self.lost {
                self.state.blocks.put_back(unused.pointer);
            }
        }
    }
}

impl<E: Endpoint> ByteIndex<'_, E> {
    fn is_value_outside(&self, value: &[u8], provision: &Provision) -> bool {
        let geometry = self.access.geometry;
        let inline = self.state.inline_value_size_bytes;
        provision.is_value_outside || !geometry.is_value_inline(value.len(), inline)
    }

    /// Writes large strings before the page is locked.
    pub(super) async fn provide_ahead(
        &self,
        batch: &mut Batch,
        node: NodeId,
        key: &[u8],
        change: &Change<'_>,
        provision: &mut Provision,
    ) -> Result<(), ByteIndexError> {
        let Some(value) = change
            .value
            .filter(|it| self.is_value_outside(it, provision))
        else {
            return Ok(());
        };
        let content = Self::content(Role::Value, key, value)?;
        if is_ahead(&content) {
            provision.value = Some(self.write_critically(batch, node, &content).await?);
        }
        Ok(())
    }

    /// Calls [`write_ahead`](Self::write_ahead) in a critical section: if it is interrupted, the
    /// session may own chunks that it does not know of.
    async fn write_critically(
        &self,
        batch: &mut Batch,
        node: NodeId,
        content: &Content<'_>,
    ) -> Result<TakenBlock, ByteIndexError> {
        let critical = Critical::enter(&self.state.broken);
        let written = Box::pin(self.write_ahead(batch, node, content)).await;
        Self::pass_unless_unknown(critical, &written);
        written
    }

    /// Takes the pieces that a record still needs; returns what is missing.
    pub(super) fn provide(
        &self,
        node: NodeId,
        page: &PageBuffer,
        writing: &RecordWrite<'_>,
        provision: &mut Provision,
    ) -> Result<Option<MissingPieces>, ByteIndexError> {
        let lacking = |role, class| {
            let count = 1;
            Ok(Some(MissingPieces { class, count, role }))
        };
        // Blocks written with the page's batch must lie on its node.
        for taken in [&mut provision.value, &mut provision.key] {
            let is_astray = |it: &TakenBlock| !it.is_written && it.pointer.place().node() != node;
            if let Some(astray) = taken.take_if(|it| is_astray(it)) {
                self.state.blocks.put_back(astray.pointer);
            }
        }
        if provision.value.is_none() && self.is_value_outside(writing.value, provision) {
            let content = Self::content(Role::Value, writing.key, writing.value)?;
            match self.take(node, &content) {
                TakeResult::TakenBlock(taken) => provision.value = Some(taken),
                TakeResult::Lease(class) => return lacking(Role::Value, class),
            }
        }
        let suffix_size_bytes = writing.key.len() - page.image().prefix_size_bytes();
        let is_inline = self.access.geometry.is_suffix_inline(suffix_size_bytes);
        if is_inline || writing.slot.is_some() {
            // The page that the block was for has been split since, or another operation has
            // written the key in the meantime. The record keeps its existing block.
            if let Some(unused) = provision.key.take() {
                self.state.blocks.put_back(unused.pointer);
            }
        } else if provision.key.is_none() {
            let content = Self::content(Role::Key, writing.key, writing.key)?;
            match self.take(node, &content) {
                TakeResult::TakenBlock(taken) => provision.key = Some(taken),
                TakeResult::Lease(class) => return lacking(Role::Key, class),
            }
        }
        Ok(None)
    }

    /// Posts the WRITEs of the blocks that a record refers to. Blocks on other nodes than the
    /// page's are already written.
    pub(super) fn post_provision(
        &self,
        batch: &mut Batch,
        writing: &RecordWrite<'_>,
        provision: &Provision,
    ) -> Result<(), ByteIndexError> {
        if let Some(taken) = provision.value {
            let content = Self::content(Role::Value, writing.key, writing.value)?;
            self.post_taken(batch, taken, &content);
        }
        if let Some(taken) = provision.key {
            let content = Self::content(Role::Key, writing.key, writing.key)?;
            self.post_taken(batch, taken, &content);
        }
        Ok(())
    }

    /// Leases value blocks on a node. If the node is full, writes the value or the key to another
    /// one ahead of the lock; strings of new pages will be taken on another node.
    pub(super) async fn lease_blocks(
        &self,
        batch: &mut Batch,
        node: NodeId,
        lacking: MissingPieces,
        key: &[u8],
        change: &Change<'_>,
        provision: &mut Provision,
    ) -> Result<(), ByteIndexError> {
        // Unlinked blocks of this session may be free by now, which costs less than a chunk.
        self.recycle().await?;
        let leased = self.lease_on(node, lacking).await;
        let Err(error) = leased else {
            return Ok(());
        };
        if !error.is_full() {
            return Err(error);
        }
        match (lacking.role, change.value) {
            (Role::Value, Some(value)) => {
                let content = Self::content(Role::Value, key, value)?;
                provision.value = Some(self.write_critically(batch, node, &content).await?);
                provision.is_value_outside = true;
            }
            (Role::Key, _) => {
                let content = Self::content(Role::Key, key, key)?;
                provision.key = Some(self.write_critically(batch, node, &content).await?);
            }
            _ => {
                self.lease_elsewhere(node, lacking, error).await?;
                provision.is_elsewhere = true;
            }
        }
        Ok(())
    }

    /// Leases value blocks for the strings of a new page: on its node, or on another one if it is
    /// full.
    pub(super) async fn lease_for_page(
        &self,
        node: NodeId,
        lacking: MissingPieces,
        is_elsewhere: &mut bool,
    ) -> Result<(), ByteIndexError> {
        match self.lease_on(node, lacking).await {
            Err(error) if error.is_full() => {
                self.lease_elsewhere(node, lacking, error).await?;
                *is_elsewhere = true;
                Ok(())
            }
            leased => leased,
        }
    }

    /// Ensures that enough pieces of a size are available.
    async fn lease_on(&self, node: NodeId, lacking: MissingPieces) -> Result<(), ByteIndexError> {
        let MissingPieces { class, count, .. } = lacking;
        let blocks = self.blocks();
        let critical = Critical::enter(&self.state.broken);
        let leased = async {
            while self.state.blocks.piece_count(node, class) < count {
                self.state.blocks.lease_more(&blocks, node, class).await?;
            }
            Ok::<_, BlockError>(())
        };
        let leased = Box::pin(leased).await.map_err(ByteIndexError::from);
        Self::pass_unless_unknown(critical, &leased);
        leased
    }

    /// Ensures that enough pieces are available on any node other than a full one.
    async fn lease_elsewhere(
        &self,
        node: NodeId,
        lacking: MissingPieces,
        full: ByteIndexError,
    ) -> Result<(), ByteIndexError> {
        for other in self.other_nodes(node) {
            match self.lease_on(other, lacking).await {
                Ok(()) => return Ok(()),
                Err(error) if error.is_full() => {}
                Err(error) if error.lost_node() == Some(other) => self.state.blocks.forget(other),
                Err(error) => return Err(error),
            }
        }
        Err(full)
    }
}

/// Returns the record as the page stores it, with the provided blocks. A key that the page already
/// stores outside stays in its block.
pub(super) fn record_of<'w>(
    image: PageImage<'_>,
    writing: &RecordWrite<'w>,
    provision: &Provision,
) -> NewRecord<'w> {
    let known = writing.slot.and_then(|slot| image.key(slot).reference());
    let key_block = known.or(provision.key.map(|taken| taken.reference));
    NewRecord {
        key: match key_block {
            None => NewKey::Inline(writing.key),
            Some(reference) => NewKey::Outside(writing.key, reference),
        },
        value: match provision.value {
            None => Value::Inline(writing.value),
            Some(taken) => Value::Outside(taken.reference),
        },
    }
}
