//! Recovery of pages whose owners are fenced (LEAF-8): repairs a torn page from its own contents.
//!
//! After any prefix of a change's WRITEs, a page lists the contents before or after one of them
//! (docs/explanation/byte-tables.md, *Changing a page*). Recovery finishes a split whose link is
//! written but whose fence is not, unlists records beyond the fence, and recomputes the state. It
//! undoes nothing.

use farleaf_fabric::Batch;

use crate::strings::buffer::PageBuffer;
use crate::strings::change::{PageChange, fence_in_page};
use crate::strings::error::PageError;
use crate::strings::fence::Fence;
use crate::strings::image::PageImage;
use crate::strings::outside::Outside;
use crate::strings::record::SlotSet;
use crate::strings::words::FenceWord;

/// Changes that make a torn page intact, besides its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repair {
    /// Upper fence, if a split has not written it yet.
    pub high: Option<FenceWord>,
    /// Remaining listed slots, if records must be unlisted.
    pub slots: Option<SlotSet>,
}

impl Repair {
    /// Determines the repair of a torn page. `sibling_low` is the lower fence of the page that it
    /// links to ([`PageImage::low_in_page`]), if that page is not retired and its fences are
    /// inline. A page with outside fences is not the sibling of a split in place.
    ///
    /// # Errors
    /// The page or its sibling is corrupted, or a string must be read first.
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
        // A retired page stays as its successor took it over. A page with an outside fence or
        // prefix was never split in place.
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
        let mut slots = image.slots();
        for slot in image.slots().iter() {
            if !shrunk.image().is_below_high(slot, outside)? {
                slots = slots.without(slot);
            }
        }
        repair.slots = (slots != image.slots()).then_some(slots);
        Ok(repair)
    }
}

/// Returns the upper fence that the page should have, if it has another one. Whether its link is
/// old or names a new sibling, the sibling begins where this page ends.
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
    /// Repairs a torn page (LEAF-8): `high` and `bitmap` if the repair has them, then state, then
    /// unlock. If it is interrupted, like any change, the next recovery repeats it.
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
    use crate::strings::change::tests::{at, page, record};

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

    /// A split is finished: the fence's bytes are the beginning of a key, or all of one.
    #[test]
    fn a_fence_is_found_in_the_page() {
        for (fence, slots) in [
            (Fence::Before(b"bb".to_vec()), 0b001),
            (Fence::Behind(b"bbc".to_vec()), 0b011),
            (Fence::Before(b"c".to_vec()), 0b011),
        ] {
            let found = repair(&fence).expect("it is there");
            assert_eq!(found.slots, Some(SlotSet(slots)));
            let mut page = torn();
            at(100).repair(&mut Batch::new(), &mut page, &found);
            let image = page.image();
            assert!(image.is_intact(at(100).addr, at(100).table));
            let high = image.whole_fence(image.high(), &Outside::new());
            assert_eq!(high, Ok(fence));
        }
    }

    /// Only the state is missing if the sibling begins where the page ends.
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

    /// Impossible states return errors.
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
