//! What the leaf protocol needs to know of a leaf's layout in memory.
//!
//! All leaves begin with the words lock, state, low, high and link. So reading, locking, waiting
//! and recovery (LEAF-1, LEAF-2, LEAF-4, LEAF-5, LEAF-8) are the same for all kinds of tables.
//! Formats differ in the number of words, in what the checksum covers, and in how fences compare.

use core::fmt::Debug;

use farleaf_base::{RemoteAddr, TableId, WordAddr};
use farleaf_fabric::{Batch, Endpoint};

use crate::words::LeafError;
use crate::words::access::LeafAccess;
use crate::words::geometry::{HIGH_WORD, LINK_WORD, LOCK_WORD, LeafGeometry, STATE_WORD};
use crate::words::image::{LINK, LOW, LeafBuffer, LeafImage, STATE};

/// Memory layout of the leaves of a kind of table. An *image* is the words of a leaf without the
/// lock: state, low, high, link, and the rest.
pub trait LeafFormat: Copy + Debug {
    /// Private, modifiable copy of an image.
    type Buffer: Debug;
    /// Lower fence, comparable with other lower fences of the table.
    type Low: Ord;

    /// Returns the size of an image in words.
    fn image_size_words(self) -> usize;

    /// Returns a buffer to read into.
    fn blank(self) -> Self::Buffer;

    /// Overwrites the buffer with an image.
    fn assign(self, buffer: &mut Self::Buffer, image: &[u64]);

    /// Returns the words of a buffer's image.
    fn words(buffer: &Self::Buffer) -> &[u64];

    /// Returns whether an image is intact, that is, possible for a leaf of this table at this
    /// address (LEAF-4).
    fn is_intact(self, image: &[u64], addr: RemoteAddr, table: TableId) -> bool;

    /// Returns whether an intact image lists no record.
    fn is_empty(self, image: &[u64]) -> bool;

    /// Sets the link in a buffer.
    fn set_link(self, buffer: &mut Self::Buffer, link: RemoteAddr);

    /// Sets a buffer's next version, and the checksum that makes it intact. Returns the state word,
    /// whose WRITE is the commit point (LEAF-1).
    fn seal(self, buffer: &mut Self::Buffer, addr: RemoteAddr, table: TableId) -> u64;

    /// Returns the lower fence of an image. The fence never changes, so it is valid even in a torn
    /// image of a leaf. The format may have to read other memory. Returns `None` if that memory was
    /// reused because the leaf has been retired.
    ///
    /// # Errors
    /// The fabric failed, or the leaf is corrupted.
    fn low<E: Endpoint>(
        access: &LeafAccess<'_, E, Self>,
        batch: &mut Batch,
        addr: RemoteAddr,
        image: &[u64],
    ) -> impl Future<Output = Result<Option<Self::Low>, LeafError>>;

    /// Finishes, in a torn leaf's buffer, everything that its owner began except the state
    /// (LEAF-8). If `sibling_low` shows that the leaf to the right begins before this one ends,
    /// finishes the split. Unlists records beyond the fences. Returns the words of the leaf to
    /// write before the state, in order: their places and values. May read other memory.
    ///
    /// # Errors
    /// The leaf is corrupted or contradicts its sibling, or the fabric failed.
    fn finish<E: Endpoint>(
        access: &LeafAccess<'_, E, Self>,
        batch: &mut Batch,
        addr: RemoteAddr,
        leaf: &mut Self::Buffer,
        sibling_low: Option<&Self::Low>,
    ) -> impl Future<Output = Result<Vec<(u64, u64)>, LeafError>>;

    /// Returns the address of a leaf's lock.
    #[inline]
    fn lock_addr(self, leaf: RemoteAddr) -> WordAddr {
        leaf.word_at(LOCK_WORD)
    }

    /// Returns the address of a leaf's state, where its image starts.
    #[inline]
    fn state_addr(self, leaf: RemoteAddr) -> WordAddr {
        leaf.word_at(STATE_WORD)
    }

    /// Returns the address of a leaf's link.
    #[inline]
    fn link_addr(self, leaf: RemoteAddr) -> WordAddr {
        leaf.word_at(LINK_WORD)
    }
}

/// Returns the right sibling that an image names, or, with the *retired* flag, the leaf that took
/// over. The link is one word, so it is valid even in a torn image.
#[inline]
pub fn link_of(image: &[u64]) -> RemoteAddr {
    RemoteAddr::from_word(image[LINK])
}

/// Returns the word of an image that holds or names the lower fence.
#[inline]
pub fn low_word_of(image: &[u64]) -> u64 {
    image[LOW]
}

/// Returns whether no state was ever committed where this image was read. A committed state has a
/// version and a checksum.
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
        _addr: RemoteAddr,
        image: &[u64],
    ) -> Result<Option<u64>, LeafError> {
        Ok(Some(LeafImage::new(access.geometry, image).low()))
    }

    async fn finish<E: Endpoint>(
        _access: &LeafAccess<'_, E>,
        _batch: &mut Batch,
        _addr: RemoteAddr,
        buffer: &mut LeafBuffer,
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
        let left_slots = image
            .live_slots()
            .filter(|slot| fences.contains(&image.key(*slot)));
        let left_slots = left_slots.fold(0, |left_slots, slot| left_slots | 1 << slot);
        buffer.set_bitmap(left_slots);
        Ok(writes)
    }
}
