//! Operations on one table of byte strings, on behalf of one session.
//!
//! Each operation starts from a hint, examines the page, and moves on as the page directs (LEAF-4,
//! LEAF-5). It records the pages that it finds in the search layer. State that outlives an
//! operation (hints, leased pages and value blocks) is in [`ByteIndexState`]. Operations borrow it
//! only between awaits, so a session can run many operations at once.
//!
//! | module | contents |
//! |---|---|
//! | `state` | a session's state for a table |
//! | `place` | locations of keys, and reads of the parts that give them |
//! | `announced` | announcements of splits: written and read |
//! | `read` | get, and the walk from page to page |
//! | `strings` | strings in value blocks that an answer depends on |
//! | `change` | requested changes of a key and their results |
//! | `write` | changes of a key under its page's lock |
//! | `blocks` | value blocks that a change writes and unlinks |
//! | `space` | full pages: split in place, or replaced |
//! | `records` | records as scans return them |
//! | `cursor` | position of an ascending scan |
//! | `scan` | ascending scans |
//! | `scan_run` | fast path of a scan: pages used in place in the batch |
//! | `scan_page` | slow path of a scan: a page with strings outside it |
//! | `reverse` | descending scans |
//! | `survey` | scan of a whole table; page data for the memory node |
//! | `walked` | pages as a retraining sees them, and links past retired pages |
//! | `merge` | merges of two neighbors into one page |

mod announced;
mod blocks;
mod change;
mod cursor;
mod merge;
mod place;
mod provide;
mod read;
mod records;
mod reverse;
mod scan;
mod scan_page;
mod scan_run;
mod splitting;
mod state;
mod strings;
mod survey;
mod walked;
mod write;

pub use change::{Change, Changed, Condition};
pub use cursor::ScanCursor;
pub(crate) use merge::MergeResult;
pub use place::PinnedPart;
pub use records::{Record, RecordBuffer};
pub use reverse::ReverseCursor;
pub use state::ByteIndexState;
pub use survey::{PageReport, PageSurvey};
pub(crate) use walked::{PageWalk, WalkedPage};

use core::future::Future;
use core::pin::Pin;

use crate::IndexError;
use crate::hint::Hint;
use farleaf_base::{OwnerWord, RemoteAddr};
use farleaf_fabric::{Batch, Endpoint, ProtocolCheck, ReadSlot};
use farleaf_leaf::blobs::BlockAccess;
use farleaf_leaf::strings::format::{PageAccess, block_access};
use farleaf_leaf::strings::{KeyPlacement, Outside, PageChange, PageImage};
use farleaf_leaf::words::{LeafCheck, LeafError, SearchPath};

use crate::strings::error::ByteIndexError;

/// Boxed future of a rarely used path: a future is as large as the largest one inside it.
type Rare<'a, R> = Pin<Box<dyn Future<Output = R> + 'a>>;

/// No strings outside pages have been read.
const NOTHING_OUTSIDE: &Outside = &Outside::new();

/// Result of examining a page for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageVerdict {
    /// Result as for a leaf of fixed-size records.
    LeafCheck(LeafCheck),
    /// A string outside the page must be read first.
    Unsure(farleaf_leaf::strings::Reference),
}

/// One table, as one session operates on it.
#[derive(Debug)]
pub struct ByteIndex<'a, E> {
    access: PageAccess<'a, E>,
    state: &'a ByteIndexState,
    /// Part that the operation has pinned under a metadata budget.
    pinned_part: Option<&'a PinnedPart<'a>>,
    /// Version of the layer when the operation began.
    layer_version: u32,
}

impl<E> Clone for ByteIndex<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<E> Copy for ByteIndex<'_, E> {}

impl<'a, E: Endpoint> ByteIndex<'a, E> {
    /// Combines a session's access to the table with its state.
    #[inline]
    pub fn new(access: PageAccess<'a, E>, state: &'a ByteIndexState) -> Self {
        let layer_version = state.layer_version();
        Self {
            access,
            state,
            pinned_part: None,
            layer_version,
        }
    }

    /// Sets the pinned part for one operation of a session with a metadata budget. The operation
    /// keeps the part of the snapshot that it needs until it ends.
    #[must_use]
    pub fn with_pinned_part(self, pinned_part: Option<&'a PinnedPart<'a>>) -> Self {
        Self {
            pinned_part,
            ..self
        }
    }

    /// Returns the page that probably covers a key, if that is known without reading anything.
    pub fn expected_page(&self, key: &[u8]) -> Option<RemoteAddr> {
        Some(self.state.layer().expected(key)?.addr)
    }

    /// Returns access to the value blocks of the table.
    fn blocks(&self) -> BlockAccess<'a, E> {
        block_access(&self.access)
    }

    /// Returns the page at an address as the target of a change.
    fn change(&self, addr: RemoteAddr) -> PageChange {
        PageChange {
            geometry: self.access.geometry,
            addr,
            table: self.access.table,
            next: OwnerWord::FREE,
        }
    }

    fn skips_check(&self, check: ProtocolCheck) -> bool {
        self.access.endpoint.skips_check(check)
    }

    /// Adds the READ of a page's image to a batch.
    #[inline]
    fn post_page(&self, batch: &mut Batch, addr: RemoteAddr) -> ReadSlot {
        let geometry = self.access.geometry;
        batch.cost_mut().leaves_read += 1;
        batch.read(geometry.state(addr), geometry.image_size_words())
    }

    #[inline]
    fn image<'b>(&self, batch: &'b Batch, slot: ReadSlot) -> PageImage<'b> {
        PageImage::new(self.access.geometry, batch.words(slot))
    }

    /// LEAF-4: examines an image that was just read for a key.
    #[inline]
    fn look(&self, image: PageImage<'_>, addr: RemoteAddr, key: &[u8]) -> PageVerdict {
        if self.access.is_intact(image.words(), addr) {
            self.check_intact(image, key, NOTHING_OUTSIDE)
        } else {
            PageVerdict::LeafCheck(LeafCheck::Torn)
        }
    }

    /// Examines an image that is known to be intact for a key.
    #[inline]
    fn check_intact(&self, image: PageImage<'_>, key: &[u8], outside: &Outside) -> PageVerdict {
        if image.is_retired() && !self.skips_check(ProtocolCheck::LeafIsNotRetired) {
            // The page that replaced a page and its left neighbor covers keys that the left
            // neighbor may still contain, if its retirement must be finished (LEAF-8). Its strings
            // may be gone.
            return PageVerdict::LeafCheck(match image.placement(key, outside) {
                KeyPlacement::Left => LeafCheck::Left,
                _ => LeafCheck::Retired(image.link().place()),
            });
        }
        PageVerdict::LeafCheck(match image.placement(key, outside) {
            KeyPlacement::Here => LeafCheck::Here,
            KeyPlacement::Right => LeafCheck::Right(image.link().place()),
            KeyPlacement::Left => LeafCheck::Left,
            KeyPlacement::Unsure(reference) => return PageVerdict::Unsure(reference),
        })
    }

    /// Returns the page to examine next after one that does not cover the key. `look` is neither
    /// [`LeafCheck::Here`] nor [`LeafCheck::Torn`]. `low` is the page's lower fence, if it is
    /// known.
    fn go_on(
        &self,
        batch: &mut Batch,
        course: &mut SearchPath<Vec<u8>>,
        key: &[u8],
        hint: Hint,
        low: Option<Vec<u8>>,
        look: LeafCheck,
    ) -> Result<Hint, IndexError> {
        if let Err(what) = course.leave(hint.parent, low, look) {
            return Err(self.access.contradiction(hint.addr, what).into());
        }
        self.state.count_hint(|counters| match look {
            LeafCheck::Right(_) => counters.synonym_count += 1,
            LeafCheck::Retired(_) => counters.stale_count += 1,
            LeafCheck::Left | LeafCheck::Here | LeafCheck::Torn => counters.left_count += 1,
        });
        let layer = self.state.layer();
        match look {
            LeafCheck::Right(link) => {
                batch.cost_mut().links += 1;
                match layer.next_trained(hint.parent) {
                    Some(next) if next.addr == link => Ok(next),
                    _ => Ok(Hint {
                        addr: link,
                        parent: hint.parent,
                    }),
                }
            }
            LeafCheck::Retired(link) if link.is_null() => Err(LeafError::TableDropped {
                table: self.access.table,
            }
            .into()),
            LeafCheck::Retired(_) if !self.state.follows_retired() => Err(IndexError::Outdated),
            LeafCheck::Retired(link) => {
                batch.cost_mut().links += 1;
                Ok(Hint {
                    addr: link,
                    parent: hint.parent,
                })
            }
            LeafCheck::Left | LeafCheck::Here | LeafCheck::Torn => {
                let left = layer.left_of(key, hint);
                Ok(left.unwrap_or_else(|| layer.first_page()))
            }
        }
    }

    /// Returns whether the layer is still the one that the operation began with.
    #[inline]
    fn is_current(&self) -> bool {
        self.layer_version == self.state.layer_version()
    }

    /// Records a page that was found: a synonym of its parent, unless it is the trained page
    /// itself.
    fn learn(&self, low: &[u8], page: Hint) {
        if self.is_current() {
            self.state.layer_mut().learn(low, page);
        }
    }
}

/// Checks that a key and a value do not exceed their maximum sizes.
///
/// # Errors
/// [`ByteIndexError::KeyTooLong`] and [`ByteIndexError::ValueTooLong`].
pub fn check_record(key: &[u8], value: &[u8]) -> Result<(), ByteIndexError> {
    check_key(key)?;
    check_value(value)
}

/// Checks that a key does not exceed the maximum size.
fn check_key(key: &[u8]) -> Result<(), ByteIndexError> {
    let size_bytes = key.len();
    if size_bytes <= farleaf_base::limits::KEY_SIZE_BYTES_MAX {
        return Ok(());
    }
    Err(ByteIndexError::KeyTooLong { size_bytes })
}

/// Checks that a value does not exceed the maximum size.
fn check_value(value: &[u8]) -> Result<(), ByteIndexError> {
    let size_bytes = value.len();
    if size_bytes <= farleaf_base::limits::VALUE_SIZE_BYTES_MAX {
        return Ok(());
    }
    Err(ByteIndexError::ValueTooLong { size_bytes })
}

/// Returns the smallest key that the page can contain, as far as the page itself stores it: for the
/// first page, the empty key.
fn low_of(image: PageImage<'_>) -> Option<Vec<u8>> {
    image.low_in_page()?.least_key()
}
