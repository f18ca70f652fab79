//! Recovery of pages whose owners are fenced (D8, BP2): what a torn page is made of what is there.
//!
//! Any prefix of a change's WRITEs leaves a page that lists what it listed before one of them, or
//! after it (BP1). What is to be done is to finish a split, of which the link is there and the
//! fence is not, to drop what the fence leaves out, and to compute the state anew. Nothing is
//! undone.

use farleaf_fabric::Batch;

use crate::buffer::PageBuffer;
use crate::change::{PageChange, fence_in_page};
use crate::error::PageError;
use crate::fence::Fence;
use crate::image::PageImage;
use crate::outside::Outside;
use crate::record::SlotSet;
use crate::words::FenceWord;

/// What a torn page lacks of being whole, besides its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repair {
    /// Where it ends, if a split has not come to write that.
    pub high: Option<FenceWord>,
    /// What it lists, if that is less than it says.
    pub slots: Option<SlotSet>,
}

impl Repair {
    /// What a torn page needs. `sibling_low` is the lower fence of the page that it links to, if
    /// there is one that is not retired away and has its fences in the page
    /// ([`PageImage::low_in_page`]): one that has not is no sibling of a split in place.
    ///
    /// # Errors
    /// The page, or its sibling, is damaged; or a string has to be read first.
    pub fn of(
        image: PageImage<'_>,
        sibling_low: Option<&Fence>,
        outside: &Outside,
    ) -> Result<Self, PageError> {
        if !image.is_well_formed() {
            return Err(PageError::Malformed);
        }
        let mut repair = Self {
            high: None,
            slots: None,
        };
        // A retired page is what its successor has taken over, as it is; and one with a fence or
        // the prefix outside was never split in place.
        if image.is_retired() || !image.is_self_contained() {
            return Ok(repair);
        }
        if let Some(sibling_low) = sibling_low {
            repair.high = missing_high(image, sibling_low)?;
        }
        let mut shrunk = PageBuffer::copy_of(image);
        if let Some(high) = repair.high {
            shrunk.set_high(high);
        }
        let mut kept = image.slots();
        for slot in image.slots().iter() {
            if !shrunk.image().is_below_high(slot, outside)? {
                kept = kept.without(slot);
            }
        }
        repair.slots = (kept != image.slots()).then_some(kept);
        Ok(repair)
    }
}

/// The upper fence that a page ought to have, if it has another. Whether its link is old or names a
/// new sibling, the sibling begins where this page ends.
fn missing_high(image: PageImage<'_>, sibling_low: &Fence) -> Result<Option<FenceWord>, PageError> {
    let nothing = Outside::new();
    if *sibling_low <= image.whole_fence(image.low(), &nothing)? {
        return Err(PageError::LinkToTheLeft);
    }
    if *sibling_low >= image.whole_fence(image.high(), &nothing)? {
        return Ok(None);
    }
    let high = fence_in_page(image, image.prefix_bytes(&nothing)?, sibling_low);
    high.map(Some).ok_or(PageError::NoFence)
}

impl PageChange {
    /// D8: repairs a torn page: `high` and `bitmap` if the repair has them, then state, then
    /// unlock. May be cut off like any change, and is then done again.
    pub fn repair(&self, batch: &mut Batch, page: &mut PageBuffer, repair: &Repair) {
        if let Some(high) = repair.high {
            self.write_high(batch, page, high);
        }
        if let Some(slots) = repair.slots {
            self.write_slots(batch, page, slots);
        }
        self.commit(batch, page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::tests::{at, page, record};

    fn torn() -> PageBuffer {
        page(
            &at(100),
            &[
                record(b"aa", b"1"),
                record(b"bbc", b"2"),
                record(b"cc", b"3"),
            ],
        )
    }

    fn repair(sibling_low: &Fence) -> Result<Repair, PageError> {
        Repair::of(torn().image(), Some(sibling_low), &Outside::new())
    }

    /// The split is finished: the fence's bytes are the first ones of a key, or all of one.
    #[test]
    fn a_fence_is_found_in_the_page() {
        for (fence, kept) in [
            (Fence::Before(b"bb".to_vec()), 0b001),
            (Fence::Behind(b"bbc".to_vec()), 0b011),
            (Fence::Before(b"c".to_vec()), 0b011),
        ] {
            let found = repair(&fence).expect("it is there");
            assert_eq!(found.slots, Some(SlotSet(kept)));
            let mut page = torn();
            at(100).repair(&mut Batch::new(), &mut page, &found);
            let image = page.image();
            assert!(image.is_intact(at(100).addr, at(100).table));
            let high = image.whole_fence(image.high(), &Outside::new());
            assert_eq!(high, Ok(fence));
        }
    }

    /// Nothing but the state is missing where the sibling begins where the page ends.
    #[test]
    fn a_page_that_was_not_split_keeps_all() {
        let nothing = Repair {
            high: None,
            slots: None,
        };
        assert_eq!(repair(&Fence::End), Ok(nothing));
        assert_eq!(
            Repair::of(torn().image(), None, &Outside::new()),
            Ok(nothing)
        );
    }

    /// What cannot have come about is said.
    #[test]
    fn contradictions_are_errors() {
        assert_eq!(repair(&Fence::START), Err(PageError::LinkToTheLeft));
        assert_eq!(
            repair(&Fence::Before(b"bx".to_vec())),
            Err(PageError::NoFence)
        );
        let words = vec![u64::MAX; 63];
        let image = PageImage::new(at(100).geometry, &words);
        let nothing = Outside::new();
        assert_eq!(Repair::of(image, None, &nothing), Err(PageError::Malformed));
    }
}
