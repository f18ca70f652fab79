//! Splits in place, as batches.

use farleaf_base::{RemoteAddr, WordAddr};
use farleaf_fabric::{AtomicSlot, Batch};

use crate::strings::buffer::PageBuffer;
use crate::strings::change::{FitOutcome, PageChange, fence_in_page};
use crate::strings::contents::{Contents, PageFence, PutPosition, released};
use crate::strings::cut::{Cut, cuts};
use crate::strings::draft::{PageDraft, is_worth_it};
use crate::strings::error::PageError;
use crate::strings::fence::Fence;
use crate::strings::geometry::PREFIX_INLINE_SIZE_BYTES_MAX;
use crate::strings::image::PageImage;
use crate::strings::outside::Outside;
use crate::strings::record::{NewRecord, SlotSet};
use crate::strings::words::{FenceWord, Reference};

/// Largest number of cuts to try; worse ones make the halves too unequal.
const CUT_COUNT_MAX: usize = 3;

/// Inputs of a split besides the page.
#[derive(Clone, Copy, Debug)]
pub struct SplitRequest<'a> {
    /// Record that did not fit: a new one, or one with another value. An updated record whose key
    /// is outside must have the page's reference to that key.
    pub record: NewRecord<'a>,
    /// Address of a leased page that nothing points to.
    pub sibling: RemoteAddr,
    /// Counter of synonym leaves to increment with the split, if any.
    pub counter: Option<WordAddr>,
}

/// Whether a page is split in place.
#[derive(Clone, Debug)]
pub enum InPlace<'a> {
    /// Yes, by this plan.
    Split(SplitPlan<'a>),
    /// No: rewrite the page ([`rewrite`](crate::strings::rewrite)).
    No(NotInPlace),
}

/// Why a page is not split in place; an outcome, not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotInPlace {
    /// A fence or the prefix is outside.
    FencesOutside,
    /// The page has no bytes for a fence that separates the halves.
    NoFence,
    /// The record does not fit into its half.
    NoSpace,
    /// The halves would have a much longer prefix as new pages.
    LongerPrefix,
}

/// Planned split in place.
#[derive(Clone, Debug)]
pub struct SplitPlan<'a> {
    request: SplitRequest<'a>,
    right: PageBuffer,
    fence: Fence,
    high: FenceWord,
    left_slots: SlotSet,
    /// Change of the left page after the split, if the record belongs there.
    left_change: Option<LeftChange>,
    released: Vec<Reference>,
}

/// How the record enters the left page.
#[derive(Clone, Copy, Debug)]
enum LeftChange {
    Insert,
    Update(usize),
}

/// Result of a split.
#[derive(Clone, Debug)]
pub struct Split {
    /// Lower fence of the sibling.
    pub sibling_low: Fence,
    /// Batch slot that returns the counter's value before the split.
    pub counter: Option<AtomicSlot>,
    /// References that the page or the record named, and neither page names any more.
    pub released: Vec<Reference>,
}

impl PageChange {
    /// Plans a split in place that puts a record into the half where it belongs.
    ///
    /// The halves are about equal in bytes, cut at the shortest separator in the middle. A record
    /// near the end of the table's last page starts the right page. A record near the beginning of
    /// the first page ends the left page. Ascending and descending inserts thus fill pages.
    ///
    /// # Errors
    /// A string must be read first, or the page is corrupted.
    pub fn plan_split<'a>(
        &self,
        page: &'a PageBuffer,
        request: &SplitRequest<'a>,
        outside: &Outside,
    ) -> Result<InPlace<'a>, PageError> {
        let image = page.image();
        if !image.is_self_contained() {
            return Ok(InPlace::No(NotInPlace::FencesOutside));
        }
        let slots = image.sorted_slots(outside)?;
        let mut contents = Contents::of(image, outside)?;
        let put = contents.put(&request.record)?;
        let planning = Planning {
            change: *self,
            page,
            request,
            slots,
            contents,
            put,
        };
        let cuts = cuts(
            &planning.contents.pieces(),
            planning.contents.ends(),
            put.inserted(),
        );
        let mut first_reason = None;
        for cut in cuts.iter().take(CUT_COUNT_MAX) {
            match planning.plan(cut) {
                Ok(plan) => return Ok(InPlace::Split(plan)),
                Err(NotInPlace::LongerPrefix) => {
                    return Ok(InPlace::No(NotInPlace::LongerPrefix));
                }
                Err(reason) => first_reason = first_reason.or(Some(reason)),
            }
        }
        Ok(InPlace::No(first_reason.unwrap_or(NotInPlace::NoSpace)))
    }

    /// Splits a page and puts the record where it belongs, in one batch. If the sibling is on the
    /// same node, it is one WRITE. Five WRITEs of 40 bytes follow. If the record belongs left,
    /// those of an insert or update are added, without another unlock.
    ///
    /// If the sibling is on another node, the caller writes it in an earlier, awaited batch
    /// ([`write_sibling_of`](Self::write_sibling_of)), because verbs to different nodes are
    /// unordered (FABRIC-2).
    pub fn split(&self, batch: &mut Batch, page: &mut PageBuffer, plan: &SplitPlan<'_>) -> Split {
        let request = &plan.request;
        if request.sibling.node() == self.addr.node() {
            self.write_sibling_of(batch, plan);
        }
        self.shrink(batch, page, plan);
        if let Some(put) = plan.left_change {
            // LEAF-3: a second change, after the split's state.
            let fit = self.put_left(batch, page, &request.record, put);
            assert!(fit == FitOutcome::Enough, "the plan has tried this");
            self.write_state(batch, page);
        }
        self.unlock(batch);
        let counter = request.counter.map(|counter| batch.fetch_add(counter, 1));
        Split {
            sibling_low: plan.fence.clone(),
            counter,
            released: plan.released.clone(),
        }
    }

    /// Writes the complete sibling of a later split. If the sibling is on another node, this batch
    /// must complete before the split is posted.
    pub fn write_sibling_of(&self, batch: &mut Batch, plan: &SplitPlan<'_>) {
        let addr = plan.request.sibling;
        Self { addr, ..*self }.write_new(batch, &mut plan.right.clone());
    }

    /// Writes link, high, bitmap, state.
    fn shrink(&self, batch: &mut Batch, page: &mut PageBuffer, plan: &SplitPlan<'_>) {
        self.write_link(batch, page, plan.request.sibling);
        self.write_high(batch, page, plan.high);
        self.write_slots(batch, page, plan.left_slots);
        self.write_state(batch, page);
    }

    fn put_left(
        &self,
        batch: &mut Batch,
        page: &mut PageBuffer,
        record: &NewRecord<'_>,
        put: LeftChange,
    ) -> FitOutcome {
        match put {
            LeftChange::Insert => self.put_record(batch, page, record),
            LeftChange::Update(slot) => self.put_value(batch, page, slot, record.value),
        }
    }
}

impl SplitPlan<'_> {
    /// Returns the lower fence of the sibling.
    pub const fn sibling_low(&self) -> &Fence {
        &self.fence
    }

    /// Returns the references that neither page will name any more.
    pub fn released(&self) -> &[Reference] {
        &self.released
    }

    /// Returns the sibling as it will be written.
    pub fn sibling(&self) -> PageImage<'_> {
        self.right.image()
    }
}

/// Split whose cut has not been chosen yet.
struct Planning<'p, 'a> {
    change: PageChange,
    page: &'a PageBuffer,
    request: &'p SplitRequest<'a>,
    /// Slots of the listed records, in key order.
    slots: Vec<usize>,
    /// Records of the page, including the new one.
    contents: Contents<'a>,
    put: PutPosition,
}

impl<'a> Planning<'_, 'a> {
    fn plan(&self, cut: &Cut) -> Result<SplitPlan<'a>, NotInPlace> {
        let (fence, high) = self.fence(cut).ok_or(NotInPlace::NoFence)?;
        self.check_prefixes(cut, &fence)?;
        let bound = |fence: &Fence| PageFence {
            fence: fence.clone(),
            block: None,
        };
        let records = self.contents.records[cut.left_count..].to_vec();
        let right = PageDraft::in_page(
            self.contents.geometry,
            bound(&fence),
            bound(&self.contents.high.fence),
            records,
        );
        assert!(
            right.wanted().is_empty(),
            "BP5: a longer prefix makes nothing longer"
        );
        if !right.fits() {
            return Err(NotInPlace::NoSpace);
        }
        let mut plan = SplitPlan {
            request: *self.request,
            right: right.build(self.page.image().link()),
            fence,
            high,
            left_slots: self.left_slots(cut),
            left_change: self.left_change(cut),
            released: Vec::new(),
        };
        let left = self.tried(&plan).ok_or(NotInPlace::NoSpace)?;
        let after = [left.image(), plan.right.image()];
        let after = after.iter().flat_map(PageImage::references);
        let mut before = self.page.image().references();
        // The record's key may fit into the sibling.
        before.extend(self.request.record.references());
        plan.released = released(before, after);
        Ok(plan)
    }

    /// Returns the left page after the split; `None` if the record does not fit.
    fn tried(&self, plan: &SplitPlan<'_>) -> Option<PageBuffer> {
        let (mut batch, mut left) = (Batch::new(), self.page.clone());
        self.change.shrink(&mut batch, &mut left, plan);
        let fit = plan.left_change.map_or(FitOutcome::Enough, |put| {
            self.change
                .put_left(&mut batch, &mut left, &self.request.record, put)
        });
        (fit == FitOutcome::Enough).then_some(left)
    }

    /// Returns the cut's fence, or an adjacent one, whose bytes are in the page.
    fn fence(&self, cut: &Cut) -> Option<(Fence, FenceWord)> {
        let image = self.page.image();
        let records = &self.contents.records;
        let (left, right) = (
            &records[cut.left_count - 1].key,
            &records[cut.left_count].key,
        );
        let fences = [
            Some(cut.fence.clone()),
            Fence::between(left, right),
            Some(Fence::Behind(left.clone())),
        ];
        let prefix = image.prefix_bytes(&Outside::new()).ok()?.to_vec();
        fences.into_iter().flatten().find_map(|fence| {
            let word = fence_in_page(image, &prefix, &fence)?;
            Some((fence, word))
        })
    }

    /// Checks that neither half would gain much from a longer prefix in a new page: the left half
    /// keeps the current prefix, the right one can have an inline prefix.
    fn check_prefixes(&self, cut: &Cut, fence: &Fence) -> Result<(), NotInPlace> {
        // A page that appends leave behind gets no more records, so free space in it is useless.
        // Rewriting would leave a retired page behind each full one.
        if cut.is_at_the_end {
            return Ok(());
        }
        let contents = &self.contents;
        let left = contents.low.fence.common_prefix_size_bytes(fence) - contents.prefix.size_bytes;
        let right = contents.high.fence.common_prefix_size_bytes(fence);
        let right = right.saturating_sub(PREFIX_INLINE_SIZE_BYTES_MAX);
        let right_count = contents.records.len() - cut.left_count;
        if is_worth_it(contents.geometry, left, cut.left_count)
            || is_worth_it(contents.geometry, right, right_count)
        {
            return Err(NotInPlace::LongerPrefix);
        }
        Ok(())
    }

    /// Returns the number of listed records that stay left.
    fn listed_left_count(&self, cut: &Cut) -> usize {
        let is_new_left = self
            .put
            .inserted()
            .is_some_and(|index| index < cut.left_count);
        cut.left_count - usize::from(is_new_left)
    }

    fn left_slots(&self, cut: &Cut) -> SlotSet {
        let slots = self.slots[..self.listed_left_count(cut)].iter();
        slots.fold(SlotSet::default(), |left_slots, slot| {
            left_slots.with(*slot)
        })
    }

    fn left_change(&self, cut: &Cut) -> Option<LeftChange> {
        (self.put.index() < cut.left_count).then(|| match self.put {
            PutPosition::Inserted(_) => LeftChange::Insert,
            PutPosition::Replaced(index) => LeftChange::Update(self.slots[index]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strings::change::tests::{at, page, record, written};

    fn request<'a>(key: &'a [u8], value: &'a [u8]) -> SplitRequest<'a> {
        SplitRequest {
            record: record(key, value),
            sibling: at(500).addr,
            counter: Some(at(900).addr.word_at(0)),
        }
    }

    fn full() -> PageBuffer {
        let keys: [&[u8]; 8] = [b"b0", b"b1", b"b2", b"b3", b"c4", b"c5", b"c6", b"c7"];
        page(&at(100), &keys.map(|key| record(key, &[7; 38])))
    }

    fn split(page: &mut PageBuffer, request: &SplitRequest<'_>) -> (Batch, Split) {
        let before = page.clone();
        let planned = at(100).plan_split(&before, request, &Outside::new());
        let Ok(InPlace::Split(plan)) = planned else {
            panic!("{planned:?}");
        };
        let mut batch = Batch::new();
        let split = at(100).split(&mut batch, page, &plan);
        (batch, split)
    }

    /// A split writes sibling, link, high, bitmap, state, unlock; then the counter.
    #[test]
    fn an_insert_to_the_right_is_in_the_sibling() {
        let mut page = full();
        let (batch, split) = split(&mut page, &request(b"c55", &[1; 30]));
        assert_eq!(split.sibling_low, Fence::Before(b"c".to_vec()));
        let words = [(4, 1), (3, 1), (5, 1), (1, 1), (0, 1)].map(Some);
        let expected = [&[None][..], &words, &[None]].concat();
        assert_eq!(written(&batch, at(100).addr), expected);
        assert!(split.counter.is_some() && split.released.is_empty());
        assert_eq!(page.image().record_count(), 4);
    }

    /// An insert into the left half is a second change, after the split's state.
    #[test]
    fn an_insert_to_the_left_follows_the_splits_state() {
        let mut page = full();
        let (batch, _) = split(&mut page, &request(b"b22", &[1; 37]));
        let written = written(&batch, at(100).addr);
        let words: Vec<_> = written.iter().flatten().map(|(word, _)| *word).collect();
        assert_eq!(words[..4], [4, 3, 5, 1]);
        assert!(words[4] > 14, "the record, in the heap");
        assert_eq!(words[5..], [11, 5, 1, 0], "slot, bitmap, state, unlock");
        assert_eq!(page.image().record_count(), 5);
    }

    /// The table's last page stays full, and its sibling begins directly behind it.
    #[test]
    fn appends_leave_the_left_page_full() {
        let mut page = full();
        let (_, split) = split(&mut page, &request(b"c8", &[1; 38]));
        assert_eq!(split.sibling_low, Fence::Behind(b"c7".to_vec()));
        assert_eq!(page.image().record_count(), 8);
    }
}
