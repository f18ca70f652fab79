//! What the protocol of one leaf needs to know of how a leaf lies in memory.
//!
//! Reading, locking, waiting and recovering (D1, D2, D4, D5, D8) are the same for the leaves of all
//! kinds of tables, as long as their first words are: lock, state, low, high, link. What differs
//! is how many words there are, what the checksum covers, and how fences compare.

use core::fmt::Debug;

use farleaf_fabric::{Batch, Endpoint};
use farleaf_types::{RemoteAddr, TableId, WordAddr};

use crate::LeafError;
use crate::access::LeafAccess;
use crate::geometry::{HIGH_WORD, LINK_WORD, LOCK_WORD, LeafGeometry, STATE_WORD};
use crate::image::{LINK, LeafBuffer, LeafImage, STATE};

/// How leaves of a kind of table lie in memory. An *image* is the words of a leaf without the lock:
/// state, low, high, link, and the rest.
pub trait LeafFormat: Copy + Debug {
    /// A private copy of an image, to be looked at and changed.
    type Buffer: Debug;
    /// A lower fence by itself, as it compares with others of the table.
    type Low: Ord;

    /// Words of an image.
    fn image_size_words(self) -> usize;

    /// A buffer to be read into.
    fn blank(self) -> Self::Buffer;

    /// The buffer becomes a copy of an image.
    fn assign(self, buffer: &mut Self::Buffer, image: &[u64]);

    /// The words of a buffer's image.
    fn words(buffer: &Self::Buffer) -> &[u64];

    /// D4: whether an image is what a leaf of this table at this address would have.
    fn is_intact(self, image: &[u64], addr: RemoteAddr, table: TableId) -> bool;

    /// Whether an intact image lists no record.
    fn is_empty(self, image: &[u64]) -> bool;

    /// Changes the link in a buffer.
    fn set_link(self, buffer: &mut Self::Buffer, link: RemoteAddr);

    /// Gives a buffer the next version and the checksum that makes it intact; returns the state
    /// word, whose WRITE is the commit point (D1).
    fn seal(self, buffer: &mut Self::Buffer, addr: RemoteAddr, table: TableId) -> u64;

    /// The lower fence of an image, which is fixed: it is good also where the image is torn, as
    /// long as it is one of a leaf. It may take reads of other memory to know it; `None`: that is
    /// gone, as the leaf has been retired.
    ///
    /// # Errors
    /// The fabric failed, or the leaf is damaged.
    fn low<E: Endpoint>(
        access: &LeafAccess<'_, E, Self>,
        batch: &mut Batch,
        leaf: (RemoteAddr, &[u64]),
    ) -> impl Future<Output = Result<Option<Self::Low>, LeafError>>;

    /// D8: finishes, in a torn leaf's buffer, what its owner began, all but the state. Where
    /// `sibling_low` tells that the leaf to the right begins before this one ends, the split is
    /// finished; records beyond the fences are not listed any more. Returns the words of the leaf
    /// that have to be written before the state, in order: their places and what they are to be. It
    /// may take reads of other memory.
    ///
    /// # Errors
    /// The leaf is damaged, or contradicts its sibling; or the fabric failed.
    fn finish<E: Endpoint>(
        access: &LeafAccess<'_, E, Self>,
        batch: &mut Batch,
        leaf: (RemoteAddr, &mut Self::Buffer),
        sibling_low: Option<&Self::Low>,
    ) -> impl Future<Output = Result<Vec<(u64, u64)>, LeafError>>;

    /// The lock of a leaf.
    #[inline]
    fn lock_addr(self, leaf: RemoteAddr) -> WordAddr {
        leaf.word_at(LOCK_WORD)
    }

    /// The state of a leaf, where its image starts.
    #[inline]
    fn state_addr(self, leaf: RemoteAddr) -> WordAddr {
        leaf.word_at(STATE_WORD)
    }

    /// The link of a leaf.
    #[inline]
    fn link_addr(self, leaf: RemoteAddr) -> WordAddr {
        leaf.word_at(LINK_WORD)
    }
}

/// The right sibling that an image names, or with the *retired* flag the leaf that took over. It is
/// one word, so it is good also where the image is torn.
#[inline]
pub fn link_of(image: &[u64]) -> RemoteAddr {
    RemoteAddr::from_word(image[LINK])
}

/// Whether no state was ever committed where this image was read: one that was has a version, and a
/// checksum of that.
#[inline]
pub fn was_never_written(image: &[u64]) -> bool {
    image[STATE] == 0
}

impl LeafFormat for LeafGeometry {
    type Buffer = LeafBuffer;
    type Low = u64;

    #[inline]
    fn image_size_words(self) -> usize {
        self.image_size_words()
    }

    #[inline]
    fn blank(self) -> LeafBuffer {
        LeafBuffer::new(self, 0, 0, RemoteAddr::NULL)
    }

    #[inline]
    fn assign(self, buffer: &mut LeafBuffer, image: &[u64]) {
        buffer.assign(LeafImage::new(self, image));
    }

    fn words(buffer: &LeafBuffer) -> &[u64] {
        buffer.image().words()
    }

    #[inline]
    fn is_intact(self, image: &[u64], addr: RemoteAddr, table: TableId) -> bool {
        LeafImage::new(self, image).is_intact(addr, table)
    }

    fn is_empty(self, image: &[u64]) -> bool {
        LeafImage::new(self, image).record_count() == 0
    }

    fn set_link(self, buffer: &mut LeafBuffer, link: RemoteAddr) {
        buffer.set_link(link);
    }

    fn seal(self, buffer: &mut LeafBuffer, addr: RemoteAddr, table: TableId) -> u64 {
        buffer.seal(addr, table)
    }

    async fn low<E: Endpoint>(
        access: &LeafAccess<'_, E>,
        _batch: &mut Batch,
        (_, image): (RemoteAddr, &[u64]),
    ) -> Result<Option<u64>, LeafError> {
        Ok(Some(LeafImage::new(access.geometry, image).low()))
    }

    async fn finish<E: Endpoint>(
        _access: &LeafAccess<'_, E>,
        _batch: &mut Batch,
        (_, buffer): (RemoteAddr, &mut LeafBuffer),
        sibling_low: Option<&u64>,
    ) -> Result<Vec<(u64, u64)>, LeafError> {
        let mut writes = Vec::new();
        let end = sibling_low.map(|low| low - 1);
        if let Some(end) = end.filter(|end| *end < buffer.image().high()) {
            buffer.set_high(end);
            writes.push((HIGH_WORD, end));
        }
        let image = buffer.image();
        let fences = image.low()..=image.high();
        let kept = image
            .live_slots()
            .filter(|slot| fences.contains(&image.key(*slot)));
        let kept = kept.fold(0, |kept, slot| kept | 1 << slot);
        buffer.set_bitmap(kept);
        Ok(writes)
    }
}
