//! Places for a record, and the moves that must precede it.
//!
//! A window of the record's size, and the word of a new slot, are cleared. Each record and upper
//! fence in the way is moved to space that is unlisted at that moment, which may be space that an
//! earlier move freed. The window with the fewest words to move is taken. No string is moved twice,
//! so a page that would need that counts as full and is repacked.

use core::cmp::Reverse;
use core::ops::Range;

use super::{Space, fence_extent, record_extent};
use crate::strings::geometry::HEADER_SIZE_WORDS;
use crate::strings::image::PageImage;

/// Listed string that can be moved by the WRITE of one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Movable {
    /// Record in a slot.
    Record(usize),
    /// Upper fence.
    High,
}

/// Move of one string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    /// String to move.
    pub(crate) what: Movable,
    /// Offset of its new place in words.
    pub(crate) to_words: usize,
}

/// Offset for a record, and the moves that free it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordPlacement {
    /// Moves to make first, in this order.
    pub(crate) moves: Vec<Move>,
    /// Offset of the record in words after these moves.
    pub(crate) offset_words: usize,
}

/// Returns the strings that can be moved, and their extents.
fn movables_of(image: PageImage<'_>) -> Vec<(Movable, Range<usize>)> {
    let records = image.slots();
    let records = records.iter().map(|slot| {
        let extent = record_extent(image.slot_word(slot));
        (Movable::Record(slot), extent)
    });
    let high = (Movable::High, fence_extent(image.high_word()));
    records
        .chain([high])
        .filter(|(_, extent)| !extent.is_empty())
        .collect()
}

/// Words that must be unclaimed in the end.
struct Wanted {
    window: Range<usize>,
    /// Word of a new slot; empty if none is needed.
    slot: Range<usize>,
}

impl Wanted {
    fn overlaps(&self, extent: &Range<usize>) -> bool {
        [&self.window, &self.slot]
            .into_iter()
            .any(|wanted| wanted.start < extent.end && extent.start < wanted.end)
    }
}

/// Returns a place for a record of this size. `new_slot` is its slot if that is not within the
/// listed ones. Returns `None` if no sequence of such moves makes space.
pub(crate) fn find_place(
    image: PageImage<'_>,
    size_words: usize,
    new_slot: Option<usize>,
) -> Option<RecordPlacement> {
    let mut space = Space::of(image);
    let slot = new_slot.map_or(0..0, |slot| {
        let word = HEADER_SIZE_WORDS + slot;
        assert!(word == image.heap_start_words(), "slots grow by one");
        word..word + 1
    });
    if size_words + slot.len() > space.free_size_words() {
        return None;
    }
    if space.is_free(slot.clone()) {
        space.claim(slot.clone());
        if let Some(offset_words) = space.last_free(size_words) {
            return Some(RecordPlacement {
                moves: Vec::new(),
                offset_words,
            });
        }
    }
    find_window(image, size_words, &slot)
}

fn find_window(
    image: PageImage<'_>,
    size_words: usize,
    slot: &Range<usize>,
) -> Option<RecordPlacement> {
    let fixed = Space::fixed_of(image);
    let movables = movables_of(image);
    if !fixed.is_free(slot.clone()) {
        return None;
    }
    let first = image.heap_start_words() + slot.len();
    let last = fixed.size_words.checked_sub(size_words)?;
    let mut best: Option<(usize, RecordPlacement)> = None;
    for start in (first..=last).rev() {
        let wanted = Wanted {
            window: start..start + size_words,
            slot: slot.clone(),
        };
        if !fixed.is_free(wanted.window.clone()) {
            continue;
        }
        let in_the_way = movables
            .iter()
            .filter(|(_, extent)| wanted.overlaps(extent));
        let in_the_way: Vec<_> = in_the_way.cloned().collect();
        let cost = in_the_way.iter().map(|(_, extent)| extent.len()).sum();
        if best.as_ref().is_some_and(|(least, _)| *least <= cost) {
            continue;
        }
        if let Some(moves) = clear(image, &wanted, in_the_way) {
            let offset_words = if size_words == 0 { 0 } else { start };
            best = Some((
                cost,
                RecordPlacement {
                    moves,
                    offset_words,
                },
            ));
        }
    }
    best.map(|(_, place)| place)
}

/// Returns the moves that clear the wanted words, largest first, each to the last free extent.
fn clear(
    image: PageImage<'_>,
    wanted: &Wanted,
    mut in_the_way: Vec<(Movable, Range<usize>)>,
) -> Option<Vec<Move>> {
    in_the_way.sort_by_key(|(_, extent)| Reverse(extent.len()));
    let mut space = Space::of(image);
    // Claimed so that nothing is moved into them.
    space.claim(wanted.window.clone());
    space.claim(wanted.slot.clone());
    let mut moves = Vec::with_capacity(in_the_way.len());
    for (what, extent) in in_the_way {
        let to_words = space.last_free(extent.len())?;
        space.claim(to_words..to_words + extent.len());
        space.release(extent);
        moves.push(Move { what, to_words });
    }
    Some(moves)
}
