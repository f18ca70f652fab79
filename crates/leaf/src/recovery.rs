//! Recovery of leaves whose owners are fenced (D8). Any session may do it, and may die of it.

use farleaf_fabric::{Batch, Endpoint};
use farleaf_types::{OwnerWord, RemoteAddr};

use crate::LeafError;
use crate::access::LeafAccess;
use crate::image::{LeafBuffer, LeafImage};

impl<E: Endpoint> LeafAccess<'_, E> {
    /// D8: takes the lock over from `dead`, whose session is fenced, repairs the leaf and unlocks
    /// it. Returns false when somebody else was faster. Costs about four round trips.
    ///
    /// # Errors
    /// The fabric failed; the lock is then still held by `dead` or by this session.
    pub async fn recover(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        dead: OwnerWord,
    ) -> Result<bool, LeafError> {
        batch.clear();
        let lock = self.geometry.lock(addr);
        let swap = batch.compare_swap(lock, dead.word(), self.owner.word());
        let read = batch.read(self.geometry.state(addr), self.geometry.image_size_words());
        self.endpoint.execute(batch).await?;
        if batch.previous(swap) != dead.word() {
            return Ok(false);
        }
        batch.cost_mut().leaves_read += 1;
        let image = LeafImage::new(self.geometry, batch.words(read));
        let intact = image.is_intact(addr, self.table);
        let mut leaf = LeafBuffer::copy_of(image);
        if intact {
            self.finish_takeover(batch, addr, &mut leaf).await?;
        } else {
            self.repair(batch, addr, &mut leaf).await?;
        }
        Ok(true)
    }

    /// An intact leaf keeps its state, unless it was about to be retired: then its link leads
    /// through retired leaves to the one that already covers its low end, and it is retired to
    /// that.
    async fn finish_takeover(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        leaf: &mut LeafBuffer,
    ) -> Result<(), LeafError> {
        let low = leaf.image().low();
        let mut successor = None;
        if !leaf.image().is_retired() {
            let mut next = leaf.image().link().place();
            while !next.is_null() {
                let right = Box::pin(self.read_intact(batch, next)).await?;
                let image = right.image();
                if image.is_retired() {
                    next = image.link().place();
                } else {
                    successor = (image.low() <= low).then_some(next);
                    break;
                }
            }
        }
        batch.clear();
        match successor {
            Some(successor) => self.change(addr).retire(batch, leaf, successor),
            None => self.change(addr).unlock(batch),
        }
        Ok(self.endpoint.execute(batch).await?)
    }

    /// A torn leaf: the retirement or the split that its owner began is finished, and the state is
    /// computed anew. Nothing is undone.
    async fn repair(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        leaf: &mut LeafBuffer,
    ) -> Result<(), LeafError> {
        let link = leaf.image().link();
        let mut shrunk = None;
        if !link.is_retired() && !link.is_null() {
            // Whether the link is old or names a new sibling, the sibling's low tells where this
            // leaf ends (the second consequence in the rules).
            let sibling = Box::pin(self.read_intact(batch, link.place())).await?;
            let end = sibling.image().low().checked_sub(1);
            shrunk = end.filter(|end| (leaf.image().low()..leaf.image().high()).contains(end));
        }
        batch.clear();
        if let Some(high) = shrunk {
            leaf.set_high(high);
            batch.write_word(self.geometry.high(addr), high);
        }
        let image = leaf.image();
        let fences = image.low()..=image.high();
        let kept = image
            .live_slots()
            .filter(|slot| fences.contains(&image.key(*slot)));
        let kept = kept.fold(0, |kept, slot| kept | 1 << slot);
        leaf.set_bitmap(kept);
        self.change(addr).commit(batch, leaf);
        Ok(self.endpoint.execute(batch).await?)
    }
}
