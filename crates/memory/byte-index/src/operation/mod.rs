//! Operations on one table of byte strings in the name of one session.
//!
//! Each operation starts from a hint, looks at the page, and moves on as the page says (D4, D5);
//! what it meets on the way it teaches the layer. The state that outlives an operation, hints and
//! leased pages and value blocks, is in [`ByteIndexState`]; it is borrowed only between awaits, so
//! many operations of a session can be under way.
//!
//! | module | what it holds |
//! |---|---|
//! | `state` | what a session keeps of a table |
//! | `place` | where keys are, and what has to be read to know |
//! | `announced` | splits that others are told of, and that they have told of |
//! | `read` | get, and the walk from page to page |
//! | `strings` | strings in value blocks that an answer depends on |
//! | `change` | what is asked of a key, and what became of it |
//! | `write` | changes of a key under its page's lock |
//! | `blocks` | value blocks that a change writes and unlinks |
//! | `room` | pages that are full: split in place, or out of place |
//! | `records` | records as scans bring them |
//! | `cursor` | where a scan in ascending order stands |
//! | `scan` | keys in ascending order |
//! | `scan_run` | its usual way: pages taken where they lie in the batch |
//! | `scan_page` | a page of which something lies outside |
//! | `reverse` | and in descending order |
//! | `survey` | a whole table; what the memory node wants to know of a page |
//! | `walked` | pages as a retraining sees them, and links past those that are retired |
//! | `merge` | neighbours that become one page |

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
mod room;
mod scan;
mod scan_page;
mod scan_run;
mod state;
mod strings;
mod survey;
mod walked;
mod write;

pub use change::{Change, Changed, Condition};
pub use cursor::ScanCursor;
pub(crate) use merge::Merged;
pub use place::InHand;
pub use records::{Record, RecordBuffer};
pub use reverse::ReverseCursor;
pub use state::ByteIndexState;
pub use survey::{PageReport, PageSurvey};
pub(crate) use walked::{Walked, WalkedPage};

use core::future::Future;
use core::pin::Pin;

use farleaf_block::BlockAccess;
use farleaf_fabric::{Batch, Endpoint, ProtocolCheck, ReadSlot};
use farleaf_index::IndexError;
use farleaf_index::hint::Hint;
use farleaf_leaf::{Course, LeafError, Look};
use farleaf_page::format::{PageAccess, block_access};
use farleaf_page::{Outside, PageChange, PageImage, Placement};
use farleaf_types::{OwnerWord, RemoteAddr};

use crate::error::ByteIndexError;

/// What is awaited rarely: a future is as large as the largest one inside it.
type Rare<'a, R> = Pin<Box<dyn Future<Output = R> + 'a>>;

/// Nothing that lies outside pages was read.
const NOTHING_OUTSIDE: &Outside = &Outside::new();

/// What one look at a page told about a key: an outcome, not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sight {
    /// What a leaf would tell.
    Look(Look),
    /// A string outside has to be read first.
    Unsure(farleaf_page::Reference),
}

/// One table, as one session works on it.
#[derive(Debug)]
pub struct ByteIndex<'a, E> {
    access: PageAccess<'a, E>,
    state: &'a ByteIndexState,
    /// What the operation has in hand under a metadata budget.
    in_hand: Option<&'a InHand<'a>>,
    /// Of the layer when the operation began.
    layer_version: u32,
}

impl<E> Clone for ByteIndex<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<E> Copy for ByteIndex<'_, E> {}

impl<'a, E: Endpoint> ByteIndex<'a, E> {
    /// Joins what a session may do with what it knows.
    #[inline]
    pub fn new(access: PageAccess<'a, E>, state: &'a ByteIndexState) -> Self {
        let layer_version = state.layer_version();
        Self {
            access,
            state,
            in_hand: None,
            layer_version,
        }
    }

    /// The same for one operation of a session with a metadata budget: what it needs of a snapshot
    /// stays for as long as it is under way (BL6).
    #[must_use]
    pub fn with_in_hand(self, in_hand: Option<&'a InHand<'a>>) -> Self {
        Self { in_hand, ..self }
    }

    /// The page that a key is probably in, if that is known without reading anything.
    pub fn expected_page(&self, key: &[u8]) -> Option<RemoteAddr> {
        Some(self.state.layer().expected(key)?.addr)
    }

    /// The value blocks of the table.
    fn blocks(&self) -> BlockAccess<'a, E> {
        block_access(&self.access)
    }

    /// A page as something to be changed.
    fn change(&self, addr: RemoteAddr) -> PageChange {
        PageChange {
            geometry: self.access.geometry,
            addr,
            table: self.access.table,
            next: OwnerWord::FREE,
        }
    }

    fn leaves_out(&self, check: ProtocolCheck) -> bool {
        self.access.endpoint.leaves_out(check)
    }

    /// Adds the READ of a page's image.
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

    /// D4: what an image that was just read tells about a key.
    #[inline]
    fn look(&self, image: PageImage<'_>, addr: RemoteAddr, key: &[u8]) -> Sight {
        if self.access.is_intact(image.words(), addr) {
            self.look_intact(image, key, NOTHING_OUTSIDE)
        } else {
            Sight::Look(Look::Torn)
        }
    }

    /// What an image that is known to be intact tells about a key.
    #[inline]
    fn look_intact(&self, image: PageImage<'_>, key: &[u8], outside: &Outside) -> Sight {
        if image.is_retired() && !self.leaves_out(ProtocolCheck::LeafIsNotRetired) {
            // BR6: what has taken over a page and its left neighbour covers keys which that may
            // still have, where its retirement is to be finished (D8). Strings of it may be gone.
            return Sight::Look(match image.placement(key, outside) {
                Placement::Left => Look::Left,
                _ => Look::Retired(image.link().place()),
            });
        }
        Sight::Look(match image.placement(key, outside) {
            Placement::Here => Look::Here,
            Placement::Right => Look::Right(image.link().place()),
            Placement::Left => Look::Left,
            Placement::Unsure(reference) => return Sight::Unsure(reference),
        })
    }

    /// Where to look next after a page that does not cover the key; `look` is neither
    /// [`Look::Here`] nor [`Look::Torn`]. `low` is the page's lower fence, if it is known.
    fn go_on(
        &self,
        batch: &mut Batch,
        course: &mut Course<Vec<u8>>,
        key: &[u8],
        (hint, low): (Hint, Option<Vec<u8>>),
        look: Look,
    ) -> Result<Hint, IndexError> {
        if let Err(what) = course.leave(hint.parent, low, look) {
            return Err(self.access.contradiction(hint.addr, what).into());
        }
        self.state.count_hint(|counters| match look {
            Look::Right(_) => counters.synonym_count += 1,
            Look::Retired(_) => counters.stale_count += 1,
            Look::Left | Look::Here | Look::Torn => counters.left_count += 1,
        });
        let layer = self.state.layer();
        match look {
            Look::Right(link) => {
                batch.cost_mut().links += 1;
                match layer.next_trained(hint.parent) {
                    Some(next) if next.addr == link => Ok(next),
                    _ => Ok(Hint {
                        addr: link,
                        parent: hint.parent,
                    }),
                }
            }
            Look::Retired(link) if link.is_null() => Err(LeafError::TableDropped {
                table: self.access.table,
            }
            .into()),
            Look::Retired(_) if !self.state.follows_retired() => Err(IndexError::Outdated),
            Look::Retired(link) => {
                batch.cost_mut().links += 1;
                Ok(Hint {
                    addr: link,
                    parent: hint.parent,
                })
            }
            Look::Left | Look::Here | Look::Torn => {
                let left = layer.left_of(key, hint);
                Ok(left.unwrap_or_else(|| layer.first_page()))
            }
        }
    }

    /// Whether the layer is still the one that the operation began with.
    #[inline]
    fn is_current(&self) -> bool {
        self.layer_version == self.state.layer_version()
    }

    /// Notes a page that was met: a synonym of its parent, unless it is the trained page itself.
    fn learn(&self, low: &[u8], page: Hint) {
        if self.is_current() {
            self.state.layer_mut().learn(low, page);
        }
    }
}

/// Refuses keys and values that are longer than these can be.
///
/// # Errors
/// [`ByteIndexError::KeyTooLong`] and [`ByteIndexError::ValueTooLong`].
pub fn check_record(key: &[u8], value: &[u8]) -> Result<(), ByteIndexError> {
    check_key(key)?;
    check_value(value)
}

/// Refuses keys that are longer than keys can be.
fn check_key(key: &[u8]) -> Result<(), ByteIndexError> {
    let size_bytes = key.len();
    if size_bytes <= farleaf_page::KEY_SIZE_BYTES_MAX {
        return Ok(());
    }
    Err(ByteIndexError::KeyTooLong { size_bytes })
}

/// Refuses values that are longer than values can be.
fn check_value(value: &[u8]) -> Result<(), ByteIndexError> {
    let size_bytes = value.len();
    if size_bytes <= farleaf_page::VALUE_SIZE_BYTES_MAX {
        return Ok(());
    }
    Err(ByteIndexError::ValueTooLong { size_bytes })
}

/// The least key that a page can have, as far as the page itself tells; of the first page the empty
/// one.
fn low_of(image: PageImage<'_>) -> Option<Vec<u8>> {
    image.low_in_page()?.least_key()
}
