//! Splits in place (BP5), as batches.

use farleaf_fabric::{AtomicSlot, Batch};
use farleaf_types::{RemoteAddr, WordAddr};

use crate::buffer::PageBuffer;
use crate::change::{PageChange, Room, fence_in_page};
use crate::contents::{Bound, Contents, Put, released};
use crate::cut::{Cut, cuts};
use crate::draft::{PageDraft, is_worth_it};
use crate::error::PageError;
use crate::fence::Fence;
use crate::geometry::PREFIX_INLINE_SIZE_BYTES_MAX;
use crate::image::PageImage;
use crate::outside::Outside;
use crate::record::{NewRecord, SlotSet};
use crate::words::{FenceWord, Reference};

/// So many cuts are tried at the most; a worse one makes halves that are too unequal.
const CUT_COUNT_MAX: usize = 3;

/// What a split needs besides the page.
#[derive(Clone, Copy, Debug)]
pub struct SplitRequest<'a> {
    /// The record that has found no room: a new one, or one with another value, whose key lies
    /// where the page says if it is outside.
    pub record: NewRecord<'a>,
    /// A leased page that nothing points to.
    pub sibling: RemoteAddr,
    /// Counter of synonym leaves to be advanced with the split, if there is one.
    pub counter: Option<WordAddr>,
}

/// Whether a page is split in place.
#[derive(Clone, Debug)]
pub enum InPlace<'a> {
    /// Yes, like this.
    Split(SplitPlan<'a>),
    /// No: rewrite it (BP6).
    No(NotInPlace),
}

/// Why a page is not split in place: an outcome, not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotInPlace {
    /// A fence or the prefix lies outside.
    FencesOutside,
    /// No fence that the page has bytes of separates the halves.
    NoFence,
    /// A half would have no room for the record.
    NoRoom,
    /// The halves would have a much longer prefix as new pages.
    LongerPrefix,
}

/// A split in place that can be written down.
#[derive(Clone, Debug)]
pub struct SplitPlan<'a> {
    request: SplitRequest<'a>,
    right: PageBuffer,
    fence: Fence,
    high: FenceWord,
    kept: SlotSet,
    /// What is put into the left page after the split.
    left_put: Option<LeftPut>,
    released: Vec<Reference>,
}

/// How the record comes into the left page.
#[derive(Clone, Copy, Debug)]
enum LeftPut {
    Insert,
    Update(usize),
}

/// What a split did.
#[derive(Clone, Debug)]
pub struct Split {
    /// Lower fence of the sibling.
    pub sibling_low: Fence,
    /// What the counter was before.
    pub counter: Option<AtomicSlot>,
    /// References that the page named, or the record, and neither page names any more.
    pub released: Vec<Reference>,
}

impl PageChange {
    /// Plans a split in place that puts a record into the half where it belongs.
    ///
    /// The halves are about equal in bytes; in the middle the shortest separator is taken. But a
    /// record near the end of the table's last page goes right of all that are below it, and one
    /// near the beginning of its first page left of all that are above it, so that ascending and
    /// descending inserts make full pages.
    ///
    /// # Errors
    /// A string has to be read first; or the page is damaged.
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
        Ok(InPlace::No(first_reason.unwrap_or(NotInPlace::NoRoom)))
    }

    /// BP5: splits a page and puts the record where it belongs, all in one batch: the sibling, if
    /// it is on the same node, as one WRITE, then five WRITEs and 40 bytes, and, if the record
    /// belongs left, those of BP3 without the unlock.
    ///
    /// A sibling on another node is written by a batch of its own before
    /// ([`write_sibling_of`](Self::write_sibling_of)): nothing orders verbs to different nodes
    /// (F2).
    pub fn split(&self, batch: &mut Batch, page: &mut PageBuffer, plan: &SplitPlan<'_>) -> Split {
        let request = &plan.request;
        if request.sibling.node() == self.addr.node() {
            self.write_sibling_of(batch, plan);
        }
        self.shrink(batch, page, plan);
        if let Some(put) = plan.left_put {
            // D3: a change of its own, after the split's state.
            let room = self.put_left(batch, page, &request.record, put);
            assert!(room == Room::Enough, "the plan has tried this");
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

    /// BP5: the sibling of a split that follows, whole: what is to be complete before the split is
    /// posted, where the sibling is on another node.
    pub fn write_sibling_of(&self, batch: &mut Batch, plan: &SplitPlan<'_>) {
        let addr = plan.request.sibling;
        Self { addr, ..*self }.write_new(batch, &mut plan.right.clone());
    }

    /// Link, high, bitmap, state.
    fn shrink(&self, batch: &mut Batch, page: &mut PageBuffer, plan: &SplitPlan<'_>) {
        self.write_link(batch, page, plan.request.sibling);
        self.write_high(batch, page, plan.high);
        self.write_slots(batch, page, plan.kept);
        self.write_state(batch, page);
    }

    fn put_left(
        &self,
        batch: &mut Batch,
        page: &mut PageBuffer,
        record: &NewRecord<'_>,
        put: LeftPut,
    ) -> Room {
        match put {
            LeftPut::Insert => self.put_record(batch, page, record),
            LeftPut::Update(slot) => self.put_value(batch, page, slot, record.value),
        }
    }
}

impl SplitPlan<'_> {
    /// Lower fence of the sibling.
    pub const fn sibling_low(&self) -> &Fence {
        &self.fence
    }

    /// References that neither page will name any more.
    pub fn released(&self) -> &[Reference] {
        &self.released
    }

    /// The sibling as it will be.
    pub fn sibling(&self) -> PageImage<'_> {
        self.right.image()
    }
}

/// A split whose cut is not known yet.
struct Planning<'p, 'a> {
    change: PageChange,
    page: &'a PageBuffer,
    request: &'p SplitRequest<'a>,
    /// Slots of the listed records, in the order of keys.
    slots: Vec<usize>,
    /// The records, the new one among them.
    contents: Contents<'a>,
    put: Put,
}

impl<'a> Planning<'_, 'a> {
    fn plan(&self, cut: &Cut) -> Result<SplitPlan<'a>, NotInPlace> {
        let (fence, high) = self.fence(cut).ok_or(NotInPlace::NoFence)?;
        self.check_prefixes(cut, &fence)?;
        let bound = |fence: &Fence| Bound {
            fence: fence.clone(),
            block: None,
        };
        let fences = (bound(&fence), bound(&self.contents.high.fence));
        let records = self.contents.records[cut.left_count..].to_vec();
        let right = PageDraft::in_page(self.contents.geometry, fences, records);
        assert!(
            right.wanted().is_empty(),
            "BP5: a longer prefix makes nothing longer"
        );
        if !right.fits() {
            return Err(NotInPlace::NoRoom);
        }
        let mut plan = SplitPlan {
            request: *self.request,
            right: right.build(self.page.image().link()),
            fence,
            high,
            kept: self.kept(cut),
            left_put: self.left_put(cut),
            released: Vec::new(),
        };
        let left = self.tried(&plan).ok_or(NotInPlace::NoRoom)?;
        let after = [left.image(), plan.right.image()];
        let after = after.iter().flat_map(PageImage::references);
        let mut before = self.page.image().references();
        // The record's key may have room in the sibling.
        before.extend(self.request.record.references());
        plan.released = released(before, after);
        Ok(plan)
    }

    /// The left page as it will be; `None` if the record has no room in it.
    fn tried(&self, plan: &SplitPlan<'_>) -> Option<PageBuffer> {
        let (mut batch, mut left) = (Batch::new(), self.page.clone());
        self.change.shrink(&mut batch, &mut left, plan);
        let room = plan.left_put.map_or(Room::Enough, |put| {
            self.change
                .put_left(&mut batch, &mut left, &self.request.record, put)
        });
        (room == Room::Enough).then_some(left)
    }

    /// The cut's fence, or one beside it, that the page has the bytes of.
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

    /// Whether the halves are content with the prefixes that they have when split in place: the
    /// left one with what there is, the right one with what lies in a page.
    fn check_prefixes(&self, cut: &Cut, fence: &Fence) -> Result<(), NotInPlace> {
        // What appends leave behind gets no more records, so it has no use for room; and rewriting
        // it would leave a retired page behind each full one.
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

    /// How many of the listed records stay left.
    fn listed_left_count(&self, cut: &Cut) -> usize {
        let is_new_left = self
            .put
            .inserted()
            .is_some_and(|index| index < cut.left_count);
        cut.left_count - usize::from(is_new_left)
    }

    fn kept(&self, cut: &Cut) -> SlotSet {
        let slots = self.slots[..self.listed_left_count(cut)].iter();
        slots.fold(SlotSet::default(), |kept, slot| kept.with(*slot))
    }

    fn left_put(&self, cut: &Cut) -> Option<LeftPut> {
        (self.put.index() < cut.left_count).then(|| match self.put {
            Put::Inserted(_) => LeftPut::Insert,
            Put::Replaced(index) => LeftPut::Update(self.slots[index]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::tests::{at, page, record, written};

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

    /// BP5: sibling, link, high, bitmap, state, unlock; then the counter.
    #[test]
    fn bp5_an_insert_to_the_right_is_in_the_sibling() {
        let mut page = full();
        let (batch, split) = split(&mut page, &request(b"c55", &[1; 30]));
        assert_eq!(split.sibling_low, Fence::Before(b"c".to_vec()));
        let words = [(4, 1), (3, 1), (5, 1), (1, 1), (0, 1)].map(Some);
        let expected = [&[None][..], &words, &[None]].concat();
        assert_eq!(written(&batch, at(100).addr), expected);
        assert!(split.counter.is_some() && split.released.is_empty());
        assert_eq!(page.image().record_count(), 4);
    }

    /// BP5: an insert that belongs left is a change of its own, after the split's state.
    #[test]
    fn bp5_an_insert_to_the_left_follows_the_splits_state() {
        let mut page = full();
        let (batch, _) = split(&mut page, &request(b"b22", &[1; 37]));
        let written = written(&batch, at(100).addr);
        let words: Vec<_> = written.iter().flatten().map(|(word, _)| *word).collect();
        assert_eq!(words[..4], [4, 3, 5, 1]);
        assert!(words[4] > 14, "the record, in the heap");
        assert_eq!(words[5..], [11, 5, 1, 0], "slot, bitmap, state, unlock");
        assert_eq!(page.image().record_count(), 5);
    }

    /// The table's last page stays full, and its sibling begins right behind it.
    #[test]
    fn appends_leave_the_left_page_full() {
        let mut page = full();
        let (_, split) = split(&mut page, &request(b"c8", &[1; 38]));
        assert_eq!(split.sibling_low, Fence::Behind(b"c7".to_vec()));
        assert_eq!(page.image().record_count(), 8);
    }
}
