//! What a change takes for the strings that it writes outside of pages (BV1), and gives back if it
//! comes to nothing.

use farleaf_block::{BlockError, Content, Role, SizeClass};
use farleaf_fabric::{Batch, Endpoint};
use farleaf_leaf::Critical;
use farleaf_page::{NewKey, NewRecord, PageBuffer, PageImage, Value};
use farleaf_types::NodeId;

use super::blocks::{Take, Taken, is_ahead};
use super::write::Writing;
use super::{ByteIndex, ByteIndexState, Change};
use crate::error::ByteIndexError;

/// Pieces that are missing on the node of a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lacking {
    pub(super) class: SizeClass,
    /// So many have to be there.
    pub(super) count: usize,
    pub(super) role: Role,
}

/// What a change has taken before, or under, the lock.
#[derive(Default)]
pub(super) struct Provision {
    /// The value's block, if the value is outside.
    pub(super) value: Option<Taken>,
    /// The key's block, if the key is.
    pub(super) key: Option<Taken>,
    /// Whether the value must be outside although it is short.
    pub(super) is_value_outside: bool,
    /// A new page's own strings are taken on any node: its own has no room.
    pub(super) is_elsewhere: bool,
    /// What has become of the lock of the page that is worked on.
    pub(super) lock: Lock,
}

impl Provision {
    /// The batch that refers to what was taken is about to be executed: whatever becomes of it,
    /// that is no more to be put back.
    pub(super) fn commit(&mut self) {
        self.lock = Lock::Committing;
        (self.value, self.key) = (None, None);
    }

    /// The same of a batch that may not have the record in it.
    pub(super) fn commit_if(&mut self, is_put: bool) {
        if is_put {
            self.commit();
        } else {
            self.lock = Lock::Committing;
        }
    }
}

/// The lock of a page that an attempt works on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Lock {
    /// It is held, and nothing of the page has been changed.
    #[default]
    Held,
    /// The batch that changes the page and gives the lock back is under way.
    Committing,
    /// It has been given back.
    Released,
}

/// What a change has taken, which goes back when the change ends, also if its future is dropped
/// where it stands: a session that is not broken by that would close as one that holds nothing.
pub(super) struct Provided<'s> {
    pub(super) provision: Provision,
    pub(super) state: &'s ByteIndexState,
    /// Nothing on this node is anybody's any more (U4).
    pub(super) lost: Option<NodeId>,
}

impl Drop for Provided<'_> {
    fn drop(&mut self) {
        // F5: what a batch of unknown outcome refers to stays this session's until that is closed.
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

    /// Writes what is large before the page is locked.
    pub(super) async fn provide_ahead(
        &self,
        batch: &mut Batch,
        (node, key): (NodeId, &[u8]),
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

    /// [`write_ahead`](Self::write_ahead) in critical time: cut off, the session may own chunks
    /// that it does not know of.
    async fn write_critically(
        &self,
        batch: &mut Batch,
        node: NodeId,
        content: &Content<'_>,
    ) -> Result<Taken, ByteIndexError> {
        let critical = Critical::enter(&self.state.broken);
        let written = Box::pin(self.write_ahead(batch, node, content)).await;
        Self::pass_unless_unknown(critical, &written);
        written
    }

    /// Takes the pieces that a record needs and that are not there yet; what is missing.
    pub(super) fn provide(
        &self,
        node: NodeId,
        page: &PageBuffer,
        writing: &Writing<'_>,
        provision: &mut Provision,
    ) -> Result<Option<Lacking>, ByteIndexError> {
        let lacking = |role, class| {
            let count = 1;
            Ok(Some(Lacking { class, count, role }))
        };
        // BV1: what is written with the page's batch lies on its node.
        for taken in [&mut provision.value, &mut provision.key] {
            let is_astray = |it: &Taken| !it.is_written && it.pointer.place().node() != node;
            if let Some(astray) = taken.take_if(|it| is_astray(it)) {
                self.state.blocks.put_back(astray.pointer);
            }
        }
        if provision.value.is_none() && self.is_value_outside(writing.value, provision) {
            let content = Self::content(Role::Value, writing.key, writing.value)?;
            match self.take(node, &content) {
                Take::Taken(taken) => provision.value = Some(taken),
                Take::Lease(class) => return lacking(Role::Value, class),
            }
        }
        let suffix_size_bytes = writing.key.len() - page.image().prefix_size_bytes();
        let is_inline = self.access.geometry.is_suffix_inline(suffix_size_bytes);
        if is_inline || writing.slot.is_some() {
            // The page that it was for has been split since, or another operation has written the
            // key meanwhile: its record keeps the block that it has.
            if let Some(unused) = provision.key.take() {
                self.state.blocks.put_back(unused.pointer);
            }
        } else if provision.key.is_none() {
            let content = Self::content(Role::Key, writing.key, writing.key)?;
            match self.take(node, &content) {
                Take::Taken(taken) => provision.key = Some(taken),
                Take::Lease(class) => return lacking(Role::Key, class),
            }
        }
        Ok(None)
    }

    /// Posts the WRITEs of the blocks that a record refers to. (BV1: those on another node than the
    /// page are written already.)
    pub(super) fn post_provision(
        &self,
        batch: &mut Batch,
        writing: &Writing<'_>,
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

    /// Leases value blocks on a node. If there is no room there, writes the value or the key
    /// elsewhere, ahead; strings of new pages are to be taken elsewhere.
    pub(super) async fn lease_blocks(
        &self,
        batch: &mut Batch,
        (node, lacking): (NodeId, Lacking),
        (key, change): (&[u8], &Change<'_>),
        provision: &mut Provision,
    ) -> Result<(), ByteIndexError> {
        // What this session has unlinked may be free by now, which costs less than a chunk.
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

    /// Leases value blocks for the strings of a new page: on its node, or elsewhere if there is no
    /// room.
    pub(super) async fn lease_for_page(
        &self,
        node: NodeId,
        lacking: Lacking,
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

    /// Sees to it that so many pieces of a size are there.
    async fn lease_on(&self, node: NodeId, lacking: Lacking) -> Result<(), ByteIndexError> {
        let Lacking { class, count, .. } = lacking;
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

    /// The same on any other node than one that is full.
    async fn lease_elsewhere(
        &self,
        node: NodeId,
        lacking: Lacking,
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

/// What a page is given of a record whose blocks are provided. A key that the page has outside
/// stays where it is.
pub(super) fn record_of<'w>(
    image: PageImage<'_>,
    writing: &Writing<'w>,
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
